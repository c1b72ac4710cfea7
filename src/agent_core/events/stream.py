"""A run's live events: for one consumer, which the run waits for, and for followers."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager, suppress
from typing import Any

from agent_core.errors import validation_error
from agent_core.types import (
    CLOSING_EVENTS,
    LIVE_EVENTS,
    EventLevel,
    EventType,
    RuntimeEvent,
    new_id,
)

MESSAGE_BOUNDS = frozenset(
    {
        EventType.MODEL_STARTED,
        EventType.MODEL_RETRY,
        EventType.MODEL_FAILED,
        EventType.MESSAGE_COMPLETED,
    }
)
"""Events that separate messages: between two of them, deltas of one kind belong to one message."""

_OUTPUT = LIVE_EVENTS | {EventType.MODEL_COMPLETED}
# A name of the module is read in a fifth of the time that a member of an enumeration takes.
_DEBUG, _TOOL_OUTPUT = EventLevel.DEBUG, EventType.TOOL_OUTPUT
_MERGED_CHARS = 16_384
"""Characters up to which waiting deltas are merged, to limit the waiting data and the work."""


class EventStream:
    """Written by one run, read by at most one consumer at a time and any number of followers.

    `write` never waits and never drops a structural event; `drain` waits while the consumer is more
    than `capacity` events behind. Waiting deltas are merged, with their text intact. `last_run_seq`
    is the number of the last stored event that was written, and `last_bound` the number of the last
    event after which another message begins.

    Without a consumer nothing is kept once the model has begun to answer: until then a consumer
    that comes right after `start` still gets everything from the first event on.
    """

    def __init__(self, capacity: int = 256) -> None:
        self.last_run_seq = 0
        self.last_bound = 0
        self._capacity = capacity
        self._waiting: deque[RuntimeEvent] = deque()
        self._followers: list[Follower] = []
        self._unfinished: dict[EventType, list[str]] = {}
        self._latest: RuntimeEvent
        self._consumer: object | None = None
        self._is_consumed = False
        self._keeps_unread = True
        self._closed = False
        self._readable = asyncio.Event()
        self._is_awaited = False
        self._writable = asyncio.Event()
        self._writable.set()

    def write(self, event: RuntimeEvent) -> None:
        """Pass an event to the consumer, now or when it gets to it."""
        self.last_run_seq = event.run_seq or self.last_run_seq
        for follower in self._followers:
            follower.add(event)
        event_type = event.event_type
        if event_type in LIVE_EVENTS:
            self._unfinished.setdefault(event_type, []).append(event.payload["text"])
            self._latest = event
        elif event_type in MESSAGE_BOUNDS:
            self.last_bound = self.last_run_seq
            self._unfinished.clear()
        if self._consumer is None:
            if event_type in _OUTPUT:
                self._keeps_unread = False
                self._waiting.clear()
            if not self._keeps_unread:
                return
        _append(self._waiting, event)
        if self._is_awaited:
            self._wake()
        if self._is_consumed and len(self._waiting) >= self._capacity and not self._closed:
            self._writable.clear()

    @property
    def is_read(self) -> bool:
        """Return whether what is written is read, or kept for a reader."""
        return self._keeps_unread or self._consumer is not None or bool(self._followers)

    def pass_over(self, event_type: EventType, run_seq: int) -> None:
        """Note that a stored event was not written, because nothing reads it."""
        self.last_run_seq = run_seq
        if event_type in MESSAGE_BOUNDS:
            self.last_bound = run_seq
            self._unfinished.clear()

    async def drain(self) -> None:
        """Wait until the consumer, if there is one, has caught up."""
        if not self._writable.is_set():
            await self._writable.wait()

    def close(self) -> None:
        """End the stream. Waiting events can still be read; no writer waits for room any more."""
        self._closed = True
        if self._consumer is None:
            self._waiting.clear()
        self._wake()
        self._writable.set()
        for follower in self._followers:
            follower.end()

    @contextmanager
    def follow(self) -> Generator["Follower"]:
        """Follow the events from now on; the run never waits for a follower.

        The text so far of an unfinished message comes first, as one delta.
        """
        follower = Follower(self._capacity)
        for event_type, pieces in self._unfinished.items():
            pieces[:] = ["".join(pieces)]
            follower.add(whole_text(self._latest, event_type, pieces[0]))
        self._followers.append(follower)
        if self._closed:
            follower.end()
        try:
            yield follower
        finally:
            self._followers.remove(follower)

    @property
    def is_closed(self) -> bool:
        """Return whether the stream has ended."""
        return self._closed

    def read(self, *, debug: bool = False, holds_run: bool = True) -> "Subscription":
        """Subscribe: every event from now until the run's closing event.

        Until its first step, and without `holds_run`, the subscription keeps events and makes no
        writer wait.

        Raises:
            AgentCoreError: `validation_error`: this stream has a consumer already.
        """
        if self._consumer is not None:
            message = "this run's events are being read already; they have one consumer"
            raise validation_error(message)
        token = self._consumer = object()
        return Subscription(self, token, debug=debug, holds_run=holds_run)

    def take(self, token: object, *, holds_run: bool) -> RuntimeEvent | None:
        """Return the next event; None if none waits.

        With `holds_run`, the run waits for the consumer from its first step on, unless the consumer
        stops waiting.
        """
        if holds_run and self._consumer is token:
            self._is_consumed = True
        waiting = self._waiting
        if not waiting:
            return None
        event = waiting.popleft()
        if len(waiting) == self._capacity - 1:
            self._writable.set()
        return event

    async def wait(self) -> bool:
        """Wait for an event, and return whether there is one; False at the end."""
        while not self._waiting and not self._closed:
            self._readable.clear()
            self._is_awaited = True
            try:
                await self._readable.wait()
            except asyncio.CancelledError:
                self._is_consumed = False
                raise
        return bool(self._waiting)

    def leave(self, token: object) -> None:
        """Remove the consumer; may be repeated."""
        if self._consumer is token:
            self._consumer = None
            self._is_consumed = False
            self._keeps_unread = False
            self._waiting.clear()
            self._writable.set()

    def _wake(self) -> None:
        self._is_awaited = False
        self._readable.set()


class Subscription(AsyncGenerator[RuntimeEvent, None]):
    """One consumer of a stream, from its creation until it is closed or collected.

    It is an object and not a generator function, because a generator would subscribe with its first
    step and leave only when the event loop gets to it.
    """

    def __init__(self, stream: EventStream, token: object, *, debug: bool, holds_run: bool) -> None:
        self._stream = stream
        self._token = token
        self._debug = debug
        self._holds_run = holds_run
        self._is_over = False

    async def asend(self, value: None, /) -> RuntimeEvent:  # noqa: ARG002 - the protocol's
        """Return the next event.

        Raises:
            StopAsyncIteration: the run's closing event was the last one.
        """
        return await self.__anext__()

    async def __anext__(self) -> RuntimeEvent:
        while not self._is_over:
            event = self._stream.take(self._token, holds_run=self._holds_run)
            if event is None:
                if not await self._stream.wait():
                    self._end()
                continue
            if event.event_type in CLOSING_EVENTS:
                self._end()
            if self._debug or event.level is not _DEBUG:
                return event
        raise StopAsyncIteration

    async def athrow(self, error: Any, value: Any = None, _: Any = None, /) -> RuntimeEvent:
        """Leave the stream, and raise the error."""
        self._end()
        raise error if value is None else value

    async def aclose(self) -> None:
        """Leave the stream to others; may be repeated."""
        self._end()

    def __del__(self) -> None:
        self._end()

    def _end(self) -> None:
        self._is_over = True
        self._stream.leave(self._token)


class Follower:
    """One of several readers of a stream; if it falls too far behind, it ends `is_behind`."""

    def __init__(self, capacity: int) -> None:
        self.is_behind = False
        self._capacity = capacity
        self._waiting: deque[RuntimeEvent] = deque()
        self.is_over = False
        self._readable = asyncio.Event()

    def add(self, event: RuntimeEvent) -> None:
        """Keep an event until it is read."""
        if self.is_over:
            return
        _append(self._waiting, event)
        if len(self._waiting) > self._capacity:
            self._waiting.clear()
            self.is_behind = True
            self.end()
        self._readable.set()

    def end(self) -> None:
        """End the events; waiting ones can still be read."""
        self.is_over = True
        self._readable.set()

    async def gather(self, for_s: float, *, timeout_s: float) -> list[RuntimeEvent]:
        """Return the events within `for_s` seconds of the first; none at the end or a timeout."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not (self._waiting or self.is_over):
                    self._readable.clear()
                    await self._readable.wait()
                if not self.is_over:
                    await asyncio.sleep(for_s)
        gathered = list(self._waiting)
        self._waiting.clear()
        return gathered

    async def events(self) -> AsyncGenerator[RuntimeEvent]:
        """Yield the events, until the stream is closed or this reader has fallen behind."""
        while True:
            while self._waiting:
                yield self._waiting.popleft()
            if self.is_over:
                return
            self._readable.clear()
            await self._readable.wait()


def whole_text(beside: RuntimeEvent, event_type: EventType, text: str) -> RuntimeEvent:
    """Return a delta that replaces all earlier deltas of its message."""
    new = {"event_id": new_id("evt"), "event_type": event_type, "level": EventLevel.INFO}
    data = {"payload": {"text": text, "from_start": True}, "seq": None, "run_seq": None}
    return beside.model_copy(update=new | data)


def _append(waiting: deque[RuntimeEvent], event: RuntimeEvent) -> None:
    event_type = event.event_type
    if event_type in LIVE_EVENTS:
        last = waiting[-1] if waiting else event
        is_more = last is not event and last.event_type is event_type
        if is_more and len(last.payload["text"]) < _MERGED_CHARS:
            waiting[-1] = _merged(last, event)
            return
    elif event_type is _TOOL_OUTPUT:
        for at in range(len(waiting) - 1, -1, -1):
            if waiting[at].event_type is not event_type:
                break
            if waiting[at].tool_call_id == event.tool_call_id:
                waiting[at] = event
                return
    waiting.append(event)


def _merged(last: RuntimeEvent, event: RuntimeEvent) -> RuntimeEvent:
    if "from_start" in event.payload:
        return event
    text = last.payload["text"] + event.payload["text"]
    return last.model_copy(update={"payload": {**last.payload, "text": text}})
