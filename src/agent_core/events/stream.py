"""A run's live events for one consumer: nothing is lost, and a slow reader slows the run down."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator

from agent_core.types import CLOSING_EVENTS, LIVE_EVENTS, EventLevel, EventType, RuntimeEvent

_OUTPUT = LIVE_EVENTS | {EventType.MODEL_COMPLETED}
_MERGED_CHARS = 16_384
"""Waiting deltas are merged up to this length: what waits stays bounded, and so does the work."""


class EventStream:
    """Written by one run, read by at most one consumer at a time.

    `write` never waits and never drops a structural event; `drain` waits while the consumer is
    more than `capacity` events behind. Deltas that wait are merged, text intact.

    Without a consumer nothing is kept once the model has begun to answer: until then a consumer
    that comes right after `start` still gets everything from the first event on.
    """

    def __init__(self, capacity: int = 256) -> None:
        self._capacity = capacity
        self._waiting: deque[RuntimeEvent] = deque()
        self._consumer: object | None = None
        self._keeps_unread = True
        self._closed = False
        self._readable = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()

    def write(self, event: RuntimeEvent) -> None:
        """Hand an event to the consumer, now or when it gets to it."""
        if self._consumer is None:
            if event.event_type in _OUTPUT:
                self._keeps_unread = False
                self._waiting.clear()
            if not self._keeps_unread:
                return
        last = self._waiting[-1] if self._waiting else None
        if last is not None and _is_more_of(last, event):
            self._waiting[-1] = _merged(last, event)
        else:
            self._waiting.append(event)
        self._readable.set()
        if self._consumer is not None and len(self._waiting) >= self._capacity:
            self._writable.clear()

    async def drain(self) -> None:
        """Wait until the consumer, if there is one, has caught up."""
        if not self._writable.is_set():
            await self._writable.wait()

    def close(self) -> None:
        """Nothing follows. Waiting events can still be read; nobody waits for room any more."""
        self._closed = True
        if self._consumer is None:
            self._waiting.clear()
        self._readable.set()
        self._writable.set()

    async def read(self, *, debug: bool = False) -> AsyncGenerator[RuntimeEvent]:
        """Yield events from now until the run's closing event.

        Raises:
            RuntimeError: somebody is reading this stream already.
        """
        if self._consumer is not None:
            raise RuntimeError("this run's events are being read already; they have one consumer")
        me = self._consumer = object()
        try:
            while (event := await self._next()) is not None:
                if debug or event.level is not EventLevel.DEBUG:
                    yield event
                if event.event_type in CLOSING_EVENTS:
                    return
        finally:
            if self._consumer is me:
                self._consumer = None
                self._keeps_unread = False
                self._waiting.clear()
                self._writable.set()

    async def _next(self) -> RuntimeEvent | None:
        while not self._waiting:
            if self._closed:
                return None
            self._readable.clear()
            await self._readable.wait()
        event = self._waiting.popleft()
        if len(self._waiting) < self._capacity:
            self._writable.set()
        return event


def _is_more_of(last: RuntimeEvent, event: RuntimeEvent) -> bool:
    return (
        event.event_type in LIVE_EVENTS
        and event.event_type is last.event_type
        and len(last.payload["text"]) < _MERGED_CHARS
    )


def _merged(last: RuntimeEvent, event: RuntimeEvent) -> RuntimeEvent:
    text = last.payload["text"] + event.payload["text"]
    return last.model_copy(update={"payload": {**last.payload, "text": text}})
