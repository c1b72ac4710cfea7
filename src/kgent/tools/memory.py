"""The tools that recall and write memories."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Annotated, TypeVar

from pydantic import Field

from agent_core.errors import ErrorCode
from agent_core.text import quoted
from agent_core.tools.results import in_own_thread
from agent_core.tools.schema import Arguments
from kgent.errors import ErrorCategory, KgentError
from kgent.memory.contract import MemoryClient
from kgent.records.lines import now
from kgent.tools.calls import OwnTool, ToolCallScope
from kgent.tools.results import ToolResult

R = TypeVar("R")


CANDIDATES = "candidate-memory.jsonl"
GRACE_S = 5.0
"""Seconds that a memory call may continue after the run was cancelled."""


def memory_tools(memory: MemoryClient) -> list[OwnTool]:
    """Return the tools for the memory of a run."""
    return [
        OwnTool("recall_memory", _RecallMemory, "read", partial(_recall_memory, memory)),
        OwnTool("write_memory", _WriteMemory, "write", partial(_write_memory, memory)),
    ]


class _RecallMemory(Arguments):
    """Look for what was remembered in earlier runs."""

    query: Annotated[str, Field(min_length=1, max_length=2000)]
    scope: Annotated[str, Field(max_length=200, description="Empty means any.")] = ""
    limit: Annotated[int, Field(ge=1, le=50)] = 5


async def _recall_memory(
    memory: MemoryClient, arguments: _RecallMemory, call: ToolCallScope
) -> ToolResult:
    scope, limit = arguments.scope, arguments.limit
    _check_scope(call, scope, may_be_empty=True)
    call.note("memory.recall.started", "recall begins", {"scope": scope})
    found = await _in_thread(partial(memory.recall_memory, arguments.query, scope, limit))
    allowed = call.context.config.memory.scopes
    items = [
        item.model_dump(mode="json", exclude_none=True)
        for item in found[:limit]
        if not allowed or item.scope in allowed
    ]
    summary = f"memories found: {len(items)}"
    call.note("memory.recall.completed", summary, {"count": len(items)})
    return ToolResult(ok=True, summary=summary, data={"items": items})


class _WriteMemory(Arguments):
    """Remember something for later runs."""

    content: Annotated[str, Field(min_length=1, max_length=20_000)]
    scope: Annotated[str, Field(max_length=200)] = ""
    tags: list[str] = []


async def _write_memory(
    memory: MemoryClient, arguments: _WriteMemory, call: ToolCallScope
) -> ToolResult:
    """Write to the memory in external mode; otherwise record a candidate for review."""
    content, scope, tags = arguments.content, arguments.scope, arguments.tags
    _check_scope(call, scope)
    mode = call.context.config.memory.write_mode
    call.note(
        "memory.write.requested",
        f"asked to remember {len(content)} characters ({mode})",
        {"mode": mode, "scope": scope, "tags": tags},
    )
    if mode == "external":
        written = await _in_thread(partial(memory.write_memory, content, scope, list(tags)))
        if not written.accepted:
            message = f"the memory did not take it: {written.summary or 'no reason given'}"
            raise KgentError(ErrorCode.MEMORY_WRITE_FAILED, message, category=ErrorCategory.MEMORY)
        data = {"memory_id": written.memory_id}
        return ToolResult(ok=True, summary=written.summary or "remembered", data=data)
    line = {
        "content": content,
        "scope": scope,
        "tags": tags,
        "run_id": call.context.run_id,
        "call_id": call.call_id,
        "timestamp": now(),
    }
    path = call.context.records.archive.add_lines(CANDIDATES, line)
    summary = "kept as a candidate; a person decides whether it is remembered"
    return ToolResult(ok=True, summary=summary, data={"candidate": True}, artifacts=[path])


def _check_scope(call: ToolCallScope, scope: str, *, may_be_empty: bool = False) -> None:
    allowed = call.context.config.memory.scopes
    if not allowed or scope in allowed or (may_be_empty and not scope):
        return
    raise KgentError(
        ErrorCode.VALIDATION_ERROR,
        f"the scope {quoted(scope)} is not in memory.scopes; there are: {', '.join(allowed)}",
        category=ErrorCategory.MEMORY,
    )


async def _in_thread(function: Callable[[], R]) -> R:
    """Call a memory in its own thread; after a cancellation it has `GRACE_S` seconds to end."""
    work = asyncio.create_task(in_own_thread(function))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        work.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait([work], timeout=GRACE_S)
        raise
