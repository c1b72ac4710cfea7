"""The stop check of a run that owes an answer of a certain shape: it gets one chance to mend it."""

from collections.abc import Mapping
from typing import Any

from agent_core.agents.report import ExpectedOutput
from agent_core.events import Journal
from agent_core.loop.context import Hooks
from agent_core.types import Role, ToolCall, ToolDefinition, ToolResult


class OutputSchemaCheck:
    """The hooks of a run, and after them the look at its answer."""

    def __init__(self, hooks: Hooks, journal: Journal, expected: ExpectedOutput) -> None:
        self._hooks = hooks
        self._journal = journal
        self._expected = expected
        self._has_complained = False

    async def session_start(self) -> None:
        await self._hooks.session_start()

    async def user_prompt(self, text: str) -> None:
        await self._hooks.user_prompt(text)

    async def before_tool(
        self, call: ToolCall, definition: ToolDefinition
    ) -> Mapping[str, Any] | None:
        return await self._hooks.before_tool(call, definition)

    async def after_tool(self, call: ToolCall, result: ToolResult) -> None:
        await self._hooks.after_tool(call, result)

    async def before_stop(self) -> str | None:
        """Let the user's hooks object first; then ask once for an answer that fits."""
        if objection := await self._hooks.before_stop():
            return objection
        faults = [] if self._has_complained else self._expected.faults(self._answer())
        if not faults:
            return None
        self._has_complained = True
        return (
            "Your answer does not have the expected shape: "
            + "; ".join(faults)
            + ". Answer again, with nothing but one JSON value that fits the schema you were given."
        )

    def _answer(self) -> str:
        """The last reply, with the pieces before it if it was cut off and went on."""
        pieces: list[str] = []
        for node in reversed(self._journal.path):
            if node.role is Role.ASSISTANT:
                pieces.append(node.text)
            elif node.metadata.get("reason") != "max_output_tokens":
                break
        return "".join(reversed(pieces))
