"""One model turn: build the request, stream the reply, add it to the journal."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from itertools import takewhile
from time import perf_counter
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from agent_core.aio import stop_if_cancelled
from agent_core.context.composer import BuiltRequest
from agent_core.context.messages import plain_text
from agent_core.errors import AgentCoreError, ErrorCode, ProviderError
from agent_core.loop.context import PAUSED, Reply, RunContext, RunStats
from agent_core.providers.adapter_faults import AdapterCheck, open_stream
from agent_core.providers.base import ProviderAdapter
from agent_core.providers.tally import CallTally
from agent_core.text import bounded_line, shorten_name, shortened
from agent_core.tools.registry import Toolbox
from agent_core.types import (
    FINAL_ANSWER,
    HELD_ANSWER,
    REFUSED_CALL,
    STOP_WORDS,
    CitationBlock,
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
    NodeFlags,
    OutputFormat,
    ProviderToolBlock,
    ReasoningBlock,
    Role,
    StopReason,
    TextBlock,
    ToolCall,
    ToolCallBlock,
    ToolCallDelta,
    new_id,
)

if TYPE_CHECKING:
    from agent_core.tools.output import ExpectedOutput

PARTIAL_CHARS = 1_000_000
"""Largest number of characters kept of a reply that was cut off: no model reads it again."""

_ABOUT_THE_REQUEST = frozenset({400, 413})
"""Statuses of refusals that may be about the length, whatever their words."""

_LONGEST_STRETCH_S = 0.02
"""Seconds for which a stream may arrive without a pause for the rest of the program."""


_PAUSE = "pause_turn"
"""Anthropic's reason for a reply that it continues when it gets it back."""
_BESIDE_ANSWERS = (ReasoningBlock, TextBlock, ProviderToolBlock, CitationBlock)
_NO_FACTS: Mapping[str, Any] = {}
_MAX_SHOWN = 2000


async def take_turn(ctx: RunContext, stats: RunStats) -> Reply:
    """Get the next reply; a prompt the provider finds too long is compacted and tried once more.

    So is one that it refuses without a reason, if its length may be the reason.

    Raises:
        ProviderError: the call failed, or the request does not fit even after leaving exchanges
            out.
        StorageError: the history so far could not be stored; nothing more is asked.
    """
    await asyncio.sleep(0)  # a run whose parts never wait must not block others
    stop_if_cancelled()
    if ctx.journal.failure is not None:
        raise ctx.journal.failure
    stats.turns += 1
    if stats.replayed_reply is not None:
        reply, stats.replayed_reply = stats.replayed_reply, None
        return reply
    started = 0.0
    refused: tuple[ModelRequest, ProviderError] | None = None
    if ctx.toolbox.may_change:
        await ctx.toolbox.refresh()
    while True:
        built = ctx.composer.build(ctx.journal.path, ctx.toolbox.definitions)
        if built.over_budget:  # compacted first, then cut
            await ctx.journal.commit()
            may_drop = not await ctx.compactor.recover(ctx.journal)
            built = ctx.composer.build(ctx.journal.path, ctx.toolbox.definitions, may_drop=may_drop)
            if built.over_budget:
                is_guess = refused is not None and not _is_too_long(refused[1])
                raise refused[1] if refused is not None and is_guess else _too_long(built)
        if refused is not None and _is_same(built.request, refused[0]):
            raise refused[1]
        ctx.journal.note(EventType.CONTEXT_BUILT, built.report)
        started = started or perf_counter()
        try:
            completed = await _ask(ctx, built, stats)
        except ProviderError as error:
            is_shorter = refused is not None and built.request.messages != refused[0].messages
            if is_shorter or not await _learn_length(ctx, error):
                raise
            refused = built.request, error
        else:
            break
    if refused is not None:
        await ctx.composer.confirm_window()
    duration_ms = round((perf_counter() - started) * 1e3)
    return _write_down(ctx, completed, stats, duration_ms=duration_ms)


async def _learn_length(ctx: RunContext, error: ProviderError) -> bool:
    """Return whether a refusal is about the length of the request, or may be, and learn from it."""
    is_stated = _is_too_long(error)
    if not is_stated:
        is_unexplained = error.code is ErrorCode.PROVIDER_ERROR and (
            error.details.get("status") in _ABOUT_THE_REQUEST
            and not error.details.get("quota_used_up")
        )
        if not is_unexplained or not ctx.composer.may_be_too_long:
            return False
    window = error.details.get("context_window")
    named = window if isinstance(window, int) else None
    await ctx.composer.correct_window(named, is_stated=is_stated)
    return True


def _is_too_long(error: ProviderError) -> bool:
    return error.code is ErrorCode.PROMPT_TOO_LONG


def _is_same(request: ModelRequest, refused: ModelRequest) -> bool:
    has_same_limit = request.max_output_tokens == refused.max_output_tokens
    return has_same_limit and request.messages == refused.messages


def _too_long(built: BuiltRequest) -> ProviderError:
    use, room = built.use, built.budget.prompt
    fixed = round((use.static_system + use.tools) * use.scale)
    return ProviderError(
        ErrorCode.PROMPT_TOO_LONG,
        f"the request needs about {use.total} tokens, {fixed} of them for the system prompt and"
        f" the tools, and the context window has room for {room}; raise [model] context_window to"
        " what the model really has, name tools in [tools] disabled, or send less at once",
        details={"tokens": use.total, "fixed_tokens": fixed, "room": room},
    )


async def _ask(ctx: RunContext, built: BuiltRequest, stats: RunStats) -> ModelCompleted:
    """Stream one reply. If the stream breaks, keep the text the user has already seen."""
    seen = _PartialText()
    journal, request = ctx.journal, built.request
    tally = CallTally(lambda: built.use.total)
    completed: ModelCompleted | None = None
    try:
        provider = ctx.extensions.around(ctx.provider)
        async with aclosing(stream_reply(provider, request, tally)) as events:
            async for event in events:
                match event:
                    case ModelTextDelta(text=text):
                        seen.add(text)
                        await journal.delta(EventType.MODEL_TEXT_DELTA, text)
                    case ToolCallDelta(name="final_answer", arguments_fragment=text) if (
                        ctx.toolbox.expected is not None
                    ):
                        seen.add(text)
                        await journal.delta(EventType.MODEL_TEXT_DELTA, text)
                    case ModelReasoningDelta(text=text):
                        await journal.delta(EventType.MODEL_REASONING_DELTA, text)
                    case ModelStarted(provider=name, model=model):
                        if request.output is not None:
                            require_native(request.output, event)
                        least = tally.least_cost()
                        facts = {"provider": name, "model": model, "estimate": least}
                        level = EventLevel.WARNING if event.left_out else EventLevel.INFO
                        if event.left_out:
                            facts |= {"left_out": {**event.left_out}}
                        journal.note(EventType.MODEL_STARTED, facts, level=level)
                        await journal.commit()
                    case ModelRetry():
                        payload = event.model_dump(mode="json", exclude={"type"})
                        payload |= stats.spend(tally.take_lost())
                        journal.note(EventType.MODEL_RETRY, payload, level=EventLevel.WARNING)
                        await journal.commit()
                    case ModelCompleted():
                        completed = event
                    case _:
                        pass  # pieces of other calls are not shown
        whole = require_whole(completed)
        journal.end_deltas()
    except BaseException as error:
        _keep_partial(ctx, seen, error, stats, stats.spend(tally.take_spent()))
        raise
    return whole


def require_native(output: OutputFormat, started: ModelStarted) -> None:
    """Refuse a request for a schema mode that the adapter does not use.

    Raises:
        ProviderError: `unsupported_capability`.
    """
    if output.mode == "native" and not started.native_output:
        facts = {"provider": started.provider, "model": started.model}
        raise ProviderError(
            ErrorCode.UNSUPPORTED_CAPABILITY,
            f"provider {started.provider} cannot hold {started.model} to the schema of a typed"
            ' answer; leave output_mode at "auto", or use output_mode="tool"',
            details={**facts, "capability": "native_output"},
        )


async def stream_reply(
    provider: ProviderAdapter, request: ModelRequest, tally: CallTally | None = None
) -> AsyncGenerator[ModelEvent]:
    """Ask the model and yield the events; `require_whole` checks the reply at the end.

    A `tally` counts the attempts, and is complete when the stream has ended.

    Raises:
        ProviderError: the call failed, or the adapter breaks its contract.
    """
    tally = tally or CallTally(lambda: 0)
    check = AdapterCheck(request, tally)
    paused = perf_counter()
    try:
        # Leaving the block closes the connection now, not when the stream is collected.
        async with open_stream(provider, request) as events:
            async for event in events:
                check.take(event)
                if perf_counter() - paused > _LONGEST_STRETCH_S:
                    await asyncio.sleep(0)  # a stream without a wait must leave room for others
                    paused = perf_counter()
                if isinstance(event, ModelFailed):
                    error = event.error
                    raise ProviderError(error.code, error.message, error.retryable, error.details)
                yield event
    except AgentCoreError:
        raise
    except Exception as error:
        raise check.explain(error) from error
    finally:
        tally.end()


def require_whole(completed: ModelCompleted | None) -> ModelCompleted:
    """Return the reply.

    Raises:
        ProviderError: there is no reply, or the model broke it off; `content_filtered`: the service
            has withheld it or the rest of it, or the model refused.
    """
    if completed is None:
        raise ProviderError(ErrorCode.PROVIDER_ERROR, "the stream ended without a reply")
    if completed.stop_reason is StopReason.CONTENT_FILTER:
        raise _filtered_error(completed)
    if completed.stop_reason is StopReason.ERROR and not _is_unread(completed):
        reason = (completed.raw_stop_reason or "")[:100]
        message = f"the model broke off its reply; its reason is {reason!r}"
        raise ProviderError(ErrorCode.PROVIDER_ERROR, message)
    return completed


def _is_unread(completed: ModelCompleted) -> bool:
    """Return whether a reply broke off because the service could not parse its calls."""
    calls = completed.tool_calls
    return bool(calls) and all(REFUSED_CALL in call.metadata for call in calls)


def _filtered_error(completed: ModelCompleted) -> ProviderError:
    words = completed.metadata.get(STOP_WORDS) or plain_text(completed.content)
    reason = (completed.raw_stop_reason or "content_filter")[:100]
    said = f": {bounded_line(str(words))}" if words else ""
    message = f"the reply was filtered or refused ({reason}){said}"
    return ProviderError(ErrorCode.CONTENT_FILTERED, message, details={"reason": reason})


class _PartialText(Struct):
    """The beginning of a reply that is arriving, and its length so far."""

    pieces: list[str] = field(default_factory=list[str])
    characters: int = 0

    def add(self, text: str) -> None:
        if (room := PARTIAL_CHARS - self.characters) > 0:
            self.pieces.append(text[:room])
        self.characters += len(text)


def _keep_partial(
    ctx: RunContext,
    seen: _PartialText,
    error: BaseException,
    stats: RunStats,
    spent: Mapping[str, Any],
) -> None:
    """Store the beginning of a reply that will not be finished; no model sees it."""
    ctx.journal.end_deltas()
    is_cancelled = isinstance(error, asyncio.CancelledError)
    flags = NodeFlags(partial=True, aborted=is_cancelled, failed=not is_cancelled)
    metadata: dict[str, object] = {}
    if not is_cancelled:
        failure = error if isinstance(error, AgentCoreError) else None
        payload = ErrorPayload.of(failure).model_dump(mode="json") if failure else {}
        metadata["error"] = payload
        ctx.journal.note(
            EventType.MODEL_FAILED, {"error": payload, **spent}, level=EventLevel.ERROR
        )
    if text := "".join(seen.pieces):
        if seen.characters > PARTIAL_CHARS:
            metadata |= {"truncated": True, "characters": seen.characters}
        draft = Draft(Role.ASSISTANT, [TextBlock(text=text)], metadata=metadata, flags=flags)
        payload = {"role": "assistant", **draft.stored_metadata}
        stats.follow(ctx.journal.add(draft, EventType.MESSAGE_CREATED, payload=payload))


def _write_down(
    ctx: RunContext, completed: ModelCompleted, stats: RunStats, *, duration_ms: int
) -> Reply:
    calls, content = _with_unique_ids(completed, stats.call_ids)
    answer: str | None = None
    if (expected := ctx.toolbox.expected) is not None:
        calls, content, answer = _take_answer(expected, ctx.toolbox, calls, content)
    usage = completed.usage
    stats.usage = stats.usage.plus(usage)
    ctx.composer.observe(usage)
    ctx.journal.note(
        EventType.MODEL_COMPLETED,
        {
            "usage": {**usage.__dict__},
            "stop_reason": completed.stop_reason,
            "raw_stop_reason": completed.raw_stop_reason,
            "tool_calls": [{"tool_call_id": c.tool_call_id, "name": c.name} for c in calls],
            "duration_ms": duration_ms,
            "metadata": completed.metadata,
            **(_service_facts(content) if len(content) > 1 else _NO_FACTS),
        },
    )
    is_invalid = bool(calls) and "invalid_arguments" in calls[0].metadata
    stats.invalid_calls = _count_invalid(ctx, calls, stats) if is_invalid else 0
    may_end = not calls and completed.stop_reason is StopReason.END_TURN
    if may_end and not plain_text(content).strip() and _is_empty(content):
        return Reply([], completed.stop_reason, is_empty=True)
    metadata: dict[str, Any] = {"stop_reason": completed.stop_reason}
    is_paused = completed.raw_stop_reason == _PAUSE and not calls
    if is_paused:
        metadata[PAUSED] = True
    if answer is not None:
        metadata[FINAL_ANSWER] = True
        if calls:
            metadata[HELD_ANSWER] = answer
    node = ctx.journal.add(
        Draft(Role.ASSISTANT, content, metadata=metadata),
        EventType.MESSAGE_COMPLETED,
        payload={"role": "assistant", "tool_calls": len(calls)},
    )
    stats.follow(node)
    deferred = answer if calls else None
    return Reply(calls, completed.stop_reason, deferred, is_paused=is_paused)


def _count_invalid(ctx: RunContext, calls: Sequence[ToolCall], stats: RunStats) -> int:
    """Return the number of replies in a row without a call that can be read.

    Raises:
        ProviderError: there were too many; the last one is not stored.
    """
    if not all("invalid_arguments" in call.metadata for call in calls):
        return 0
    if stats.invalid_calls < ctx.limits.max_invalid_calls:
        return stats.invalid_calls + 1
    reason = bounded_line(str(calls[0].metadata.get("invalid_reason", "")))
    message = (
        f"the model has sent calls that cannot be read {stats.invalid_calls + 1} times in a row; "
        f"the last time: {reason}"
    )
    raise ProviderError(ErrorCode.PROVIDER_ERROR, message)


def _is_empty(content: Sequence[ContentBlock]) -> bool:
    """Return whether a reply without calls and words has nothing else for the user, either."""
    return all(isinstance(block, _BESIDE_ANSWERS) for block in content)


def _service_facts(content: Sequence[ContentBlock]) -> dict[str, Any]:
    """Return the tools that the service has used for a reply, and its sources, for an event."""
    uses = [
        {
            "name": block.name,
            "arguments": block.arguments,
            "result": None if block.result is None else shortened(block.result, _MAX_SHOWN),
        }
        for block in content
        if isinstance(block, ProviderToolBlock)
    ]
    sources = [
        {"url": block.url, "title": block.title, "text_range": block.text_range}
        for block in content
        if isinstance(block, CitationBlock)
    ]
    facts: dict[str, Any] = {"provider_tools": uses} if uses else {}
    return facts | ({"citations": sources} if sources else {})


def _take_answer(
    expected: "ExpectedOutput",
    toolbox: Toolbox,
    calls: list[ToolCall],
    content: list[ContentBlock],
) -> tuple[list[ToolCall], list[ContentBlock], str | None]:
    """Replace a call of `final_answer` by its text, so that the call needs no answer.

    Beside other calls the answer is held back until they are made. Reasoning signatures bound to
    the removed call are dropped.
    """
    given = [call for call in calls if toolbox.unwrap(call).name == FINAL_ANSWER]
    if not given:
        return calls, content, None
    first = toolbox.unwrap(given[0])
    invalid = first.metadata.get("invalid_arguments")
    answer = expected.text_of(first.arguments) if invalid is None else str(invalid)
    gone = {call.tool_call_id for call in given}
    calls = [call for call in calls if call.tool_call_id not in gone]
    kept = [
        block
        for block in content
        if not (isinstance(block, ToolCallBlock) and block.tool_call_id in gone)
    ]
    if not calls:
        unsigned: dict[str, Any] = {"signature": None, "metadata": {}}
        kept = [
            block.model_copy(update=unsigned) if isinstance(block, ReasoningBlock) else block
            for block in kept
        ]
        kept.append(TextBlock(text=answer))
    return calls, kept, answer


def last_reply(ctx: RunContext) -> Reply | None:
    """Return the last reply of a continued run's path, if it is this run's and has no calls."""
    last = ctx.journal.path[-1]
    if last.role is not Role.ASSISTANT or last.run_id != ctx.run.run_id or last.calls:
        return None
    return Reply([], StopReason(last.metadata.get("stop_reason", StopReason.END_TURN)))


def release_answer(ctx: RunContext, reply: Reply, stats: RunStats) -> bool:
    """Add the answer of a reply with calls to the journal, and return whether there is one.

    It is the result of a call that ends the run, or the final answer that came with the calls, if
    none of them failed.
    """
    held, toolbox = reply.deferred_answer, ctx.toolbox
    ids = {call.tool_call_id: toolbox.get(toolbox.unwrap(call).name) for call in reply.calls}
    turn = takewhile(lambda node: not node.calls, reversed(ctx.journal.path))
    results = {
        each.tool_call_id: each
        for node in turn
        for each in node.results
        if each.tool_call_id in ids
    }
    answer: str | None = None
    for call_id, tool in ids.items():
        result = results.get(call_id)
        if tool is not None and tool.ends_run and result is not None and not result.is_error:
            answer = plain_text(result.content)
            break
    else:
        is_whole = len(results) == len(ids) and not any(r.is_error for r in results.values())
        answer = held if is_whole else None
    if answer is None:
        return False
    said = Draft(Role.ASSISTANT, [TextBlock(text=answer)])
    payload = {"role": "assistant", "tool_calls": 0}
    stats.follow(ctx.journal.add(said, EventType.MESSAGE_COMPLETED, payload=payload))
    return True


def _with_unique_ids(
    completed: ModelCompleted, used: set[str]
) -> tuple[list[ToolCall], list[ContentBlock]]:
    """Make every call id of this history unique, and give each call its block."""
    waiting: dict[str, deque[ToolCall]] = {}  # one reply may give several calls the same id
    calls: list[ToolCall] = []
    for call in completed.tool_calls:
        name = shorten_name(call.name)
        fresh = call if name == call.name else call.model_copy(update={"name": name})
        if call.tool_call_id in used:
            raw = call.metadata.get("raw_tool_call_id", call.tool_call_id)
            metadata = {**call.metadata, "raw_tool_call_id": raw}
            fresh = fresh.model_copy(update={"tool_call_id": new_id("call"), "metadata": metadata})
        used.add(fresh.tool_call_id)
        waiting.setdefault(call.tool_call_id, deque()).append(fresh)
        calls.append(fresh)
    content: list[ContentBlock] = []
    for block in completed.content:
        if isinstance(block, ToolCallBlock):
            if same := waiting.get(block.tool_call_id):
                content.append(_block_of(same.popleft()))
        else:
            content.append(block)
    for same in waiting.values():
        content.extend(map(_block_of, same))
    return calls, content


def _block_of(call: ToolCall) -> ToolCallBlock:
    return ToolCallBlock.of_checked(
        type="tool_call",
        tool_call_id=call.tool_call_id,
        name=call.name,
        arguments={**call.arguments},
        metadata={**call.metadata},
    )
