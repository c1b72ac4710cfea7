"""What a parent gets of its child: one structured result, checked if the parent gave a schema."""

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, cast

from agent_core.context.messages import artifact_ids
from agent_core.errors import ErrorCode, ToolError
from agent_core.events import Journal
from agent_core.loop.context import Hooks
from agent_core.providers.jsontext import unfenced
from agent_core.tools.json_schema import BoundedValidator, CheckTooSlowError, SchemaUnusableError
from agent_core.tools.results import storable
from agent_core.tools.schema import json_path
from agent_core.types import Node, Role, ToolCall, ToolDefinition, ToolResult

_MAX_ERRORS = 5


class ExpectedOutput:
    """The shape that an answer has to have.

    Raises:
        ToolError: `validation_error`, it is no JSON Schema that can be used.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        try:
            self._validator = BoundedValidator(schema)
        except SchemaUnusableError as error:
            reason = str(error).partition("\n")[0][:300]
            message = f"expected_output_schema cannot be used: {reason}"
            details = {"path": "$.expected_output_schema"}
            raise ToolError(ErrorCode.VALIDATION_ERROR, message, details=details) from error

    def faults(self, text: str) -> list[str]:
        """What is wrong with an answer; empty if it fits."""
        try:
            value = parse_answer(text)
        except ValueError as error:
            return [f"$: it is not JSON: {error}"]
        try:
            found = list(islice(self._validator.errors(value), _MAX_ERRORS))
        except (CheckTooSlowError, RecursionError):
            return ["$: it takes too long to check, or is nested too deeply"]
        return [f"{json_path(e.absolute_path)}: {str(e.message)[:300]}" for e in found]


def parse_answer(text: str) -> Any:
    """The JSON value that an answer is, with or without a fence around it.

    Raises:
        ValueError: it is none.
    """
    try:
        return storable(json.loads(unfenced(text)))
    except (RecursionError, TypeError) as error:
        raise ValueError("it is nested too deeply") from error


def build_report(
    text: str,
    path: Iterable[Node],
    *,
    status: str,
    step_id: str | None = None,
    has_shape: bool = False,
    metadata: Mapping[str, Any],
) -> dict[str, Any]:
    """Build the result of what a child said last and what its tools kept.

    This is what its parent gets and what is kept with the agent. An answer that is an object with
    a `summary` is taken apart; any other answer is the summary. `metadata` holds ids and usage
    and, for an expected shape, the answer itself as `output`.
    """
    value: Any = None
    with suppress(ValueError):
        value = parse_answer(text)
    fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    if not isinstance(fields.get("summary"), str):
        fields = {"summary": text}
    named = [each for each in _as_list(fields.get("artifacts")) if isinstance(each, str)]
    kept = (each for node in path for result in node.results for each in artifact_ids(result))
    output: dict[str, Any] = {"output": value} if has_shape and value is not None else {}
    return {
        "status": status,
        "summary": fields["summary"],
        "findings": _as_list(fields.get("findings")),
        "artifacts": list(dict.fromkeys([*named, *kept])),
        **({"step_id": step_id} if step_id is not None else {}),
        "proposed_actions": _as_list(fields.get("proposed_actions")),
        "metadata": {**metadata, **output},
    }


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return cast("list[Any]", value) if isinstance(value, list) else [value]


class OutputSchemaCheck:
    """The hooks of a run whose answer must fit a schema: it gets one chance to mend its answer."""

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
        """Ask the user's hooks first; then demand once an answer that fits."""
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
            elif node.flags.reason != "max_output_tokens":
                break
        return "".join(reversed(pieces))
