"""One turn's question to the model: compose, stream, write the reply down."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from time import perf_counter

from agent_core.aio import stop_if_cancelled
from agent_core.errors import AgentCoreError, ErrorCode, ProviderError
from agent_core.loop.compose import compose, recover
from agent_core.loop.context import RunContext
from agent_core.loop.outcome import RunStats
from agent_core.tools.bounds import shortened_name
from agent_core.types import (
    ContentBlock,
    Draft,
    ErrorPayload,
    EventLevel,
    EventType,
    ModelCompleted,
    ModelEvent,
    ModelFailed,
    ModelReasoningDelta,
    ModelRequest,
    ModelRetry,
    ModelStarted,
    ModelTextDelta,
    Role,
    StopReason,
    TextBlock,
    ToolCall,
    ToolCallBlock,
    new_id,
)

PARTIAL_CHARS = 1_000_000
"""Characters that are kept of a reply that was cut off: no model reads it again."""

_LONGEST_STRETCH_S = 0.02
"""Seconds for which a stream may arrive without a pause for the rest of the program."""


@dataclass(slots=True)
class _Seen:
    """The beginning of a reply that is arriving, and how long it is by now."""

    pieces: list[str] = field(default_factory=list[str])
    characters: int = 0

    def add(self, text: str) -> None:
        if (room := PARTIAL_CHARS - self.characters) > 0:
            self.pieces.append(text[:room])
        self.characters += len(text)


@dataclass(frozen=True, slots=True)
class Reply:
    """A finished model message, written down."""

    calls: list[ToolCall]
    stop_reason: StopReason


async def take_turn(ctx: RunContext, stats: RunStats) -> Reply:
    """Get the next reply; a prompt the provider finds too long is compacted and tried once more.

    Raises:
        ProviderError: the call failed; what was seen of it is stored as a partial message.
        StorageError: the history so far could not be stored; nothing more is asked.
    """
    stop_if_cancelled()
    if ctx.journal.failure is not None:
        raise ctx.journal.failure
    stats.turns += 1
    request = await compose(ctx)
    started = perf_counter()
    try:
        completed = await ask(ctx, request)
    except ProviderError as error:
        if error.code is not ErrorCode.PROMPT_TOO_LONG:
            raise
        completed = await ask(ctx, await recover(ctx, request, error))
    return _write_down(ctx, completed, stats, duration_ms=round((perf_counter() - started) * 1e3))


async def ask(ctx: RunContext, request: ModelRequest) -> ModelCompleted:
    """Stream one reply. If the stream breaks, keep the text the user has already seen."""
    seen = _Seen()
    completed: ModelCompleted | None = None
    events = ctx.provider.stream(request)
    paused = perf_counter()
    try:
        async for event in events:
            if perf_counter() - paused > _LONGEST_STRETCH_S:
                await asyncio.sleep(0)  # what comes without a wait leaves room for a cancellation
                paused = perf_counter()
            if isinstance(event, ModelCompleted):
                completed = event
            else:
                await _show(ctx, event, seen)
        if completed is None:
            raise ProviderError(ErrorCode.PROVIDER_ERROR, "the stream ended without a reply")
        if completed.stop_reason is StopReason.ERROR:
            message = f"the model gave up in the middle of its reply ({completed.raw_stop_reason})"
            raise ProviderError(ErrorCode.PROVIDER_ERROR, message)
        ctx.journal.end_deltas()
    except BaseException as error:
        _keep_partial(ctx, seen, error)
        raise
    finally:
        if isinstance(events, AsyncGenerator):
            await events.aclose()  # the connection closes now, not when it is collected
    return completed


async def _show(ctx: RunContext, event: ModelEvent, seen: _Seen) -> None:
    match event:
        case ModelTextDelta(text=text):
            seen.add(text)
            await ctx.journal.delta(EventType.MODEL_TEXT_DELTA, text)
        case ModelReasoningDelta(text=text):
            await ctx.journal.delta(EventType.MODEL_REASONING_DELTA, text)
        case ModelStarted(provider=provider, model=model):
            ctx.journal.note(EventType.MODEL_STARTED, {"provider": provider, "model": model})
            await ctx.journal.commit()
        case ModelRetry():
            payload = event.model_dump(mode="json", exclude={"type"})
            ctx.journal.note(EventType.MODEL_RETRY, payload, level=EventLevel.WARNING)
            await ctx.journal.commit()
        case ModelFailed(error=error):
            raise _as_exception(error)
        case _:
            pass  # pieces of tool calls are for display, and nobody shows them yet


def _as_exception(error: ErrorPayload) -> ProviderError:
    return ProviderError(error.code, error.message, error.retryable, error.details)


def _keep_partial(ctx: RunContext, seen: _Seen, error: BaseException) -> None:
    """Store the beginning of a reply that will not be finished; no model gets to see it."""
    ctx.journal.end_deltas()
    metadata: dict[str, object] = {"partial": True}
    if isinstance(error, asyncio.CancelledError):
        metadata["aborted"] = True
    else:
        failure = error if isinstance(error, AgentCoreError) else None
        payload = ErrorPayload.of(failure).model_dump(mode="json") if failure else {}
        metadata |= {"failed": True, "error": payload}
        ctx.journal.note(EventType.MODEL_FAILED, {"error": payload}, level=EventLevel.ERROR)
    if text := "".join(seen.pieces):
        if seen.characters > PARTIAL_CHARS:
            metadata |= {"truncated": True, "characters": seen.characters}
        draft = Draft(Role.ASSISTANT, [TextBlock(text=text)], metadata=metadata)
        ctx.journal.add(draft, EventType.MESSAGE_CREATED, payload={"role": "assistant", **metadata})


def _write_down(
    ctx: RunContext, completed: ModelCompleted, stats: RunStats, *, duration_ms: int
) -> Reply:
    calls, content = _with_unique_ids(completed, stats.call_ids)
    usage = completed.usage
    stats.usage = stats.usage.plus(usage)
    ctx.composer.observe(usage)
    ctx.journal.note(
        EventType.MODEL_COMPLETED,
        {
            "usage": usage.model_dump(),
            "stop_reason": completed.stop_reason,
            "raw_stop_reason": completed.raw_stop_reason,
            "tool_calls": [{"tool_call_id": c.tool_call_id, "name": c.name} for c in calls],
            "duration_ms": duration_ms,
            "metadata": completed.metadata,
        },
    )
    node = ctx.journal.add(
        Draft(Role.ASSISTANT, content, metadata={"stop_reason": completed.stop_reason}),
        EventType.MESSAGE_COMPLETED,
        payload={"role": "assistant", "tool_calls": len(calls)},
    )
    if stats.continuations == 0:
        stats.answer.clear()
    stats.answer.append(node.text)
    return Reply(calls, completed.stop_reason)


def _with_unique_ids(
    completed: ModelCompleted, used: set[str]
) -> tuple[list[ToolCall], list[ContentBlock]]:
    """Make sure that no call of this history shares its id with another, and each has its block."""
    renamed: dict[str, ToolCall] = {}
    calls: list[ToolCall] = []
    for call in completed.tool_calls:
        fresh = call.model_copy(update={"name": shortened_name(call.name)})
        if call.tool_call_id in used:
            raw = call.metadata.get("raw_tool_call_id", call.tool_call_id)
            metadata = {**call.metadata, "raw_tool_call_id": raw}
            fresh = fresh.model_copy(update={"tool_call_id": new_id("call"), "metadata": metadata})
        used.add(fresh.tool_call_id)
        renamed[call.tool_call_id] = fresh
        calls.append(fresh)
    content: list[ContentBlock] = []
    for block in completed.content:
        if isinstance(block, ToolCallBlock):
            if fresh := renamed.pop(block.tool_call_id, None):
                content.append(_block_of(fresh))
        else:
            content.append(block)
    content.extend(_block_of(call) for call in renamed.values())
    return calls, content


def _block_of(call: ToolCall) -> ToolCallBlock:
    return ToolCallBlock(
        tool_call_id=call.tool_call_id,
        name=call.name,
        arguments=call.arguments,
        metadata=call.metadata,
    )
