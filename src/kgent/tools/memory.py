"""Remembering, for the model. In candidate mode people decide later what is kept."""

from collections.abc import Callable
from typing import Annotated

from pydantic import Field

from agent_core.errors import ErrorCode
from agent_core.tools.schema import Arguments
from kgent.errors import ErrorCategory, KgentError
from kgent.memory.contract import MemoryClient
from kgent.records.events import EventType
from kgent.runtime.state import now
from kgent.tools.guarded import Call
from kgent.tools.results import ToolResult

CANDIDATES = "candidate-memory.jsonl"
_MAX_CONTENT = 20_000


class RecallMemory(Arguments):
    """Look for what was remembered in earlier runs."""

    query: Annotated[str, Field(min_length=1, max_length=2000)]
    scope: Annotated[str, Field(max_length=200, description="Empty means any.")] = ""
    limit: Annotated[int, Field(ge=1, le=50)] = 5


class WriteMemory(Arguments):
    """Remember something for later runs."""

    content: Annotated[str, Field(min_length=1, max_length=_MAX_CONTENT)]
    scope: Annotated[str, Field(max_length=200)] = ""
    tags: list[str] = []


def recall_memory(memory: MemoryClient) -> Callable[[RecallMemory, Call], ToolResult]:
    """The tool, for one memory."""

    def perform(arguments: RecallMemory, call: Call) -> ToolResult:
        _check_scope(call, arguments.scope, may_be_empty=True)
        call.note(EventType.MEMORY_RECALL_STARTED, "recall begins", {"scope": arguments.scope})
        found = memory.recall_memory(arguments.query, arguments.scope, arguments.limit)
        allowed = call.context.config.memory.scopes
        items = [
            item.model_dump(mode="json", exclude_none=True)
            for item in found[: arguments.limit]
            if not allowed or item.scope in allowed
        ]
        call.note(
            EventType.MEMORY_RECALL_COMPLETED,
            f"memories found: {len(items)}",
            {"count": len(items)},
        )
        return ToolResult(ok=True, summary=f"memories found: {len(items)}", data={"items": items})

    return perform


def write_memory(memory: MemoryClient) -> Callable[[WriteMemory, Call], ToolResult]:
    """The tool, for one memory; the profile says whether it reaches it."""

    def perform(arguments: WriteMemory, call: Call) -> ToolResult:
        _check_scope(call, arguments.scope)
        mode = call.context.config.memory.write_mode
        call.note(
            EventType.MEMORY_WRITE_REQUESTED,
            f"asked to remember {len(arguments.content)} characters ({mode})",
            {"mode": mode, "scope": arguments.scope, "tags": arguments.tags},
        )
        if mode == "external":
            return _external(memory, arguments)
        return _candidate(arguments, call)

    return perform


def _candidate(arguments: WriteMemory, call: Call) -> ToolResult:
    line = {
        "content": arguments.content,
        "scope": arguments.scope,
        "tags": arguments.tags,
        "run_id": call.context.run_id,
        "call_id": call.call_id,
        "timestamp": now(),
    }
    path = call.context.records.archive.add_lines(CANDIDATES, line)
    summary = "kept as a candidate; a person decides whether it is remembered"
    return ToolResult(ok=True, summary=summary, data={"candidate": True}, artifacts=[path])


def _external(memory: MemoryClient, arguments: WriteMemory) -> ToolResult:
    written = memory.write_memory(arguments.content, arguments.scope, list(arguments.tags))
    if not written.accepted:
        message = f"the memory did not take it: {written.summary or 'no reason given'}"
        raise KgentError(ErrorCode.MEMORY_WRITE_FAILED, message, category=ErrorCategory.MEMORY)
    data = {"memory_id": written.memory_id}
    return ToolResult(ok=True, summary=written.summary or "remembered", data=data)


def _check_scope(call: Call, scope: str, *, may_be_empty: bool = False) -> None:
    allowed = call.context.config.memory.scopes
    if not allowed or scope in allowed or (may_be_empty and not scope):
        return
    raise KgentError(
        ErrorCode.VALIDATION_ERROR,
        f"the scope {scope[:80]!r} is not in memory.scopes; there are: {', '.join(allowed)}",
        category=ErrorCategory.MEMORY,
    )
