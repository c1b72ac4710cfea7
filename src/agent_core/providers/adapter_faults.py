"""Reports mistakes of adapters from outside the package: their place, and the cure."""

import traceback
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from pathlib import Path
from typing import Any, cast, get_args

from msgspec import Struct

from agent_core.errors import ErrorCode, ProviderError
from agent_core.providers.base import ProviderAdapter
from agent_core.providers.tally import CallTally, size_of
from agent_core.text import kind_of
from agent_core.types import (
    ModelCompleted,
    ModelEvent,
    ModelRequest,
    ModelStarted,
    ModelTextDelta,
    StopReason,
    TextBlock,
    ToolCallBlock,
    ToolCallDelta,
)

_EVENTS: tuple[type, ...] = get_args(get_args(ModelEvent)[0])
_KINDS = frozenset(_EVENTS)
_PACKAGE = Path(__file__).parents[1]
_WRAPPERS = {"adapter_faults.py", "fallback.py", "retrying.py", "scripted.py"}
"""Modules next to the package's adapters that may call an adapter from outside."""


class AdapterCheck(Struct, eq=False):
    """Checks the events of one call against the contract of `ProviderAdapter`.

    Behaviour that a service may show, like an empty answer, is not a mistake of its adapter.
    """

    _request: ModelRequest
    _tally: CallTally
    _started: ModelStarted | None = None
    _has_shown_text: bool = False
    _is_over: bool = False

    def take(self, event: Any) -> None:
        """Check the next event, and count it.

        Raises:
            ProviderError: the event breaks the contract.
        """
        kind = event.__class__
        if kind is ModelTextDelta and not self._is_over:  # most events are
            if text := event.text:
                self._has_shown_text = True
                self._tally.arrived += size_of(text)
            return
        if kind not in _KINDS and not isinstance(event, _EVENTS):
            raise self._mistake(
                f"yielded {kind_of(event)}; yield ModelStarted, deltas and one "
                "ModelCompleted or ModelFailed, from agent_core"
            )
        if self._is_over:
            raise self._mistake(
                f"yielded {kind_of(event)} after its ModelCompleted, which must be the last"
            )
        self._tally.take(event)
        if kind is ToolCallDelta:
            return
        if isinstance(event, ModelTextDelta):
            self._has_shown_text = self._has_shown_text or bool(event.text)
        elif isinstance(event, ModelCompleted):
            self._is_over = True
            self._check_reply(event)
        elif isinstance(event, ModelStarted):
            self._started = event

    def _check_reply(self, reply: ModelCompleted) -> None:
        calls = {call.tool_call_id for call in reply.tool_calls}
        has_text = False
        for block in reply.content:
            if isinstance(block, TextBlock):
                has_text = has_text or bool(block.text)
            elif isinstance(block, ToolCallBlock) and block.tool_call_id not in calls:
                raise self._mistake(
                    f"has the call {block.tool_call_id} in ModelCompleted.content but not in "
                    "tool_calls; put it in both"
                )
        if calls or reply.stop_reason not in {StopReason.END_TURN, StopReason.TOOL_USE}:
            return
        if reply.stop_reason is StopReason.TOOL_USE:
            raise self._mistake('completed with stop_reason "tool_use" and without a tool call')
        is_made_by_hand = reply.raw_stop_reason is None and not reply.metadata
        if self._has_shown_text and not has_text:
            raise self._mistake(
                "completed without the text that its deltas have shown; deltas are only shown, so "
                "ModelCompleted.content must hold the whole reply"
            )
        if is_made_by_hand and not reply.content and not reply.usage.output_tokens:
            raise self._mistake(
                "completed without content, calls, usage or raw_stop_reason; put the reply in "
                "ModelCompleted.content, and set raw_stop_reason if the reply is really empty"
            )

    def explain(self, error: Exception) -> Exception:
        """Return the error for an exception; an error of the package itself is unchanged."""
        frames = traceback.extract_tb(error.__traceback__)
        outside = (f for f in frames if not Path(f.filename).is_relative_to(_PACKAGE))
        place = next(outside, None)
        before = frames[: frames.index(place)] if place else frames
        paths = [Path(frame.filename) for frame in before]
        is_ours = any(
            path.parent == Path(__file__).parent and path.name not in _WRAPPERS for path in paths
        )
        if place is None or is_ours:
            return error
        return self._mistake(
            f"broke in {place.name}, {place.filename} line {place.lineno}: {type(error).__name__}: "
            f"{error}; a failure of the service is a ModelFailed event, or a ProviderError raised "
            "before ModelStarted"
        )

    def _mistake(self, what: str) -> ProviderError:
        whose = f"the adapter of model {self._request.model!r}"
        if (started := self._started) is not None:
            whose = f"the adapter of provider {started.provider!r}, model {started.model!r},"
        return _mistake(whose, what)


def open_stream(
    adapter: ProviderAdapter, request: ModelRequest
) -> AbstractAsyncContextManager[AsyncIterator[ModelEvent]]:
    """Call an adapter; its events can be read in the block, whose end closes the call.

    Raises:
        ProviderError: the adapter's return value cannot be iterated.
    """
    events: Any = adapter.stream(request)
    if isinstance(events, AsyncGenerator):
        return aclosing(cast("AsyncGenerator[ModelEvent]", events))
    if hasattr(events, "__aiter__"):
        return nullcontext(events)
    if hasattr(events, "close"):
        events.close()  # a coroutine that nothing will await
    what = (
        f"returned {kind_of(events)} from stream; write it as "
        "`async def stream(self, request)` with `yield` for every event"
    )
    raise _mistake(f"the adapter of model {request.model!r}", what)


def _mistake(whose: str, what: str) -> ProviderError:
    return ProviderError(ErrorCode.PROVIDER_ERROR, f"{whose} {what}")


async def ask_adapter(
    adapter: ProviderAdapter, request: ModelRequest
) -> AsyncGenerator[ModelEvent]:
    """Yield the events of a call as a generator; closing this closes the call.

    Raises:
        ProviderError: the adapter's return value cannot be iterated.
    """
    async with open_stream(adapter, request) as events:
        async for event in events:
            yield event
