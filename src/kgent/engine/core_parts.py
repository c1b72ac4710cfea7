"""What agent_core's loop needs beside a model, for a run that nobody attends."""

from collections.abc import Mapping
from typing import Any

from agent_core.events import Journal
from agent_core.tools.base import Action, Concurrency, Tool, ToolContext
from agent_core.types import (
    Access,
    JsonBlock,
    RunIdentity,
    ToolCall,
    ToolDefinition as CoreDefinition,
    ToolPermission,
    ToolResult as CoreResult,
)
from kgent.engine.calling import call_in_thread
from kgent.runtime.context import RunContext
from kgent.tools.registry import ToolDefinition


class NullCollaborators:
    """No hooks, no summaries, no earlier messages, and nobody to ask.

    As a guard it lets every call pass: kgent's own policy is asked inside each handler, where it
    holds for every engine.
    """

    async def resume(self, journal: Journal) -> None:
        """There is nothing to resume: a run folder holds one run."""

    async def recover(self, journal: Journal) -> bool:  # noqa: ARG002 - the protocol's
        """Nothing was made shorter; what does not fit is left out."""
        return False

    async def require(
        self,
        call: ToolCall,
        definition: CoreDefinition,
        access: Access,
        run: RunIdentity,
        journal: Journal,
    ) -> None:
        """The handler asks the policy."""

    async def session_start(self) -> None:
        """Nobody to tell."""

    async def user_prompt(self, text: str) -> None:
        """Nobody to tell."""

    async def before_tool(
        self,
        call: ToolCall,  # noqa: ARG002
        definition: CoreDefinition,  # noqa: ARG002
    ) -> Mapping[str, Any] | None:
        """Nobody to ask."""
        return None

    async def after_tool(self, call: ToolCall, result: CoreResult) -> None:
        """Nobody to tell."""

    async def before_stop(self) -> str | None:
        """No objection."""
        return None


def core_tool(definition: ToolDefinition, context: RunContext, *, heard: set[str]) -> Tool:
    """A tool of kgent as agent_core's loop calls it.

    Args:
        definition: the tool.
        context: the run.
        heard: collects the ids of the calls that reached the handler, which records them itself.
    """
    permission = ToolPermission.READONLY if definition.reads_only else ToolPermission.WRITE

    async def prepare(arguments: dict[str, Any], facts: ToolContext) -> Action:
        async def run() -> CoreResult:
            heard.add(facts.tool_call_id)
            result = await call_in_thread(
                definition, arguments, context, call_id=facts.tool_call_id
            )
            block = JsonBlock(data=result.for_model())
            return CoreResult(content=[block], is_error=not result.ok)

        return Action(Access(summary=definition.name), run)

    return Tool(
        definition=CoreDefinition(
            name=definition.name,
            description=definition.description,
            input_schema=definition.input_schema,
            permission=permission,
        ),
        parse=dict,
        prepare=prepare,
        lane=Concurrency.READ if definition.reads_only else Concurrency.TASK,
        keeps_own_limits=True,
    )
