"""Streams of server-sent events."""

import asyncio
import re
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import aclosing, contextmanager
from typing import NamedTuple, TypeVar

from starlette.types import Receive, Scope, Send

from agent_core.serve.principals import Principal
from agent_core.serve.problems import HttpProblem

MOST = 100
"""Streams that one principal may have open."""

MOST_OF_BROWSER = 4
"""Streams that the pages of one browser may have open at once.

Over HTTP/1.1 a browser has six connections to a server, for all its windows: the others are for
pages and forms. With more windows, streams take turns: the oldest one ends, and its page comes
back after `RETRY_MS` for what has happened since.
"""

RETRY_MS = 2000
"""Milliseconds after which a client whose stream was cut comes back."""

COMMENT_S = 15.0
"""Seconds between two comments, which keep the connection open."""

SEND_S = 30.0
"""Seconds that a reader may take for one part of a stream, until it is cut."""

END_S = 5.0
"""Seconds that streams have to end once the server stops."""

_QUIET_S = 1.5
"""Seconds without an event after which a stream of a stopping server has shown what is stored."""

_GATHER_S = 0.01
"""Seconds within which events are sent together."""

_PACE_S, _AT_FULL_PACE = 0.025, 40
"""Seconds between two pieces of live text, and up to how many streams that holds."""

_AHEAD = 2**17
"""Bytes that are written ahead of a reader."""

_MOST_FRAMES = 256
"""Events that are kept as they were sent."""

_LINE_ENDS = re.compile(r"\r\n|\r|\n")


Item = TypeVar("Item")


class ServerEvent(NamedTuple):
    """One event of a stream.

    Attributes:
        data: its text; each line becomes a `data:` line.
        event: its type; None for none.
        id: what a client sends as `Last-Event-ID` when it comes back; None for none.
    """

    data: str
    event: str | None = None
    id: str | None = None

    def encode(self) -> bytes:
        """Return the event as it is sent."""
        lines = [f"data: {line}" for line in _LINE_ENDS.split(self.data)]
        if self.event is not None:
            lines.insert(0, f"event: {self.event}")
        if self.id is not None:
            lines.insert(0, f"id: {self.id}")
        return "".join(f"{line}\n" for line in (*lines, "")).encode()


class Frames:
    """The last events as they were sent, for streams that send the same ones."""

    def __init__(self) -> None:
        self._known = OrderedDict[int, tuple[object, ServerEvent]]()

    def frame(self, event: Item, make: Callable[[Item], ServerEvent]) -> ServerEvent:
        """Return what `make` returns for an event, which is called once for each object."""
        known = self._known.get(id(event))
        if known is not None:  # it keeps the object, so that no other one has its id
            return known[1]
        frame = make(event)
        self._known[id(event)] = event, frame
        if len(self._known) > _MOST_FRAMES:
            self._known.popitem(last=False)
        return frame


class Streams:
    """The open streams of an application, counted by principal.

    Attributes:
        stopping: set once streams have to end.
        frames: the last events that were sent.
    """

    def __init__(self) -> None:
        self.stopping = asyncio.Event()
        self.frames = Frames()
        self._open = Counter[tuple[str | None, str]]()
        self._of_browser: dict[str, list[asyncio.Event]] = {}

    @contextmanager
    def opened(self, principal: Principal, browser: str | None = None) -> Generator[asyncio.Event]:
        """Count a stream of a principal within the block.

        Args:
            principal: who has it.
            browser: identifies the browser whose page has it; None: it is no page's.

        Yields:
            An event that is set once the stream has to end: its browser needs the connection.

        Raises:
            HttpProblem: 429: the principal has too many.
        """
        key = (principal.tenant, principal.name)
        if self._open[key] >= MOST:
            detail = f"{principal.name} has {MOST} streams open, the most there may be; close some"
            raise HttpProblem(429, detail, headers={"Retry-After": str(round(COMMENT_S))})
        self._open[key] += 1
        gives_way = asyncio.Event()
        others = self._of_browser.setdefault(f"{key} {browser}", []) if browser else []
        others.append(gives_way)
        for each in [each for each in others if not each.is_set()][:-MOST_OF_BROWSER]:
            each.set()
        try:
            yield gives_way
        finally:
            others.remove(gives_way)
            if browser and not others:
                del self._of_browser[f"{key} {browser}"]
            self._open[key] -= 1
            if not self._open[key]:
                del self._open[key]

    @property
    def pace_s(self) -> float:
        """Seconds between two pieces of live text of a stream: the more streams, the longer."""
        return _PACE_S * max(1.0, self._open.total() / _AT_FULL_PACE)

    def end(self) -> None:
        """Let streams end with what is stored, in `END_S` seconds at most."""
        self.stopping.set()


class EventResponse:
    """A response that streams events until they end, the client leaves, or the server stops.

    Args:
        streams: the open streams of the application.
        principal: the sender of the request.
        begin: called once the stream counts as open; returns the events. What it raises is the
            answer to the request.
        headers: further headers.
        retry_ms: sent to the client at the head of the stream; None: not sent.
        comments: send a comment every 15 seconds.
        browser: identifies the browser whose page gets it; None: it is no page's.
    """

    def __init__(
        self,
        streams: Streams,
        principal: Principal,
        begin: Callable[[], Awaitable[AsyncGenerator[ServerEvent]]],
        *,
        headers: Mapping[str, str] | None = None,
        retry_ms: int | None = RETRY_MS,
        comments: bool = True,
        browser: str | None = None,
    ) -> None:
        self._browser = browser
        self._gives_way = asyncio.Event()
        self._streams = streams
        self._principal = principal
        self._begin = begin
        self._retry_ms = retry_ms
        self._comments = comments
        self._headers = {
            "content-type": "text/event-stream; charset=utf-8",
            "cache-control": "no-store",
            "x-accel-buffering": "no",
            **(headers or {}),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response.

        Raises:
            HttpProblem: 429: the principal has too many streams; or an error of `begin`.
        """
        with self._streams.opened(self._principal, self._browser) as self._gives_way:
            async with aclosing(await self._begin()) as events:
                await self._send_all(events, scope, receive, send)

    async def _send_all(
        self, events: AsyncGenerator[ServerEvent], scope: Scope, receive: Receive, send: Send
    ) -> None:
        headers = [(name.encode(), value.encode()) for name, value in self._headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if scope["method"] != "HEAD":
            left = asyncio.create_task(client_gone(receive))
            try:
                await self._send_parts(events, left, send)
            finally:
                left.cancel()
            if left.done() and not left.cancelled():
                return
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_parts(
        self, events: AsyncGenerator[ServerEvent], left: asyncio.Task[None], send: Send
    ) -> None:
        async def send_part(body: bytes) -> None:
            try:
                async with asyncio.timeout(SEND_S):
                    await send({"type": "http.response.body", "body": body, "more_body": True})
            except TimeoutError:
                raise HttpProblem(408, "the stream was read too slowly") from None

        await send_part(b"" if self._retry_ms is None else f"retry: {self._retry_ms}\n\n".encode())
        async with aclosing(self._parts(events, left)) as parts:
            async for part in parts:
                await send_part(part)

    async def _parts(
        self, events: AsyncGenerator[ServerEvent], left: asyncio.Task[None]
    ) -> AsyncGenerator[bytes]:
        """Yield events and comments, until the client has left or the server stops."""
        clock = asyncio.get_running_loop().time
        comment_at = clock() + COMMENT_S
        ends_at: float | None = None
        written = _Written()
        stopping = asyncio.create_task(self._streams.stopping.wait())
        reading = asyncio.create_task(written.take_all(events))
        leaving = asyncio.create_task(self._gives_way.wait())
        for each in (left, stopping, reading, leaving):
            each.add_done_callback(written.wake)
        try:
            while not (left.done() or (reading.done() and not written.parts)):
                if ends_at is not None:
                    timeout = min(_QUIET_S, ends_at - clock())
                else:
                    timeout = max(comment_at - clock(), 0.0) if self._comments else None
                is_quiet = await written.wait(timeout)
                if written.parts:
                    await asyncio.sleep(_GATHER_S)
                    yield written.taken()
                elif leaving.done() or (ends_at is not None and is_quiet):
                    return
                if ends_at is None and stopping.done():
                    ends_at = clock() + END_S
                if self._comments and clock() >= comment_at:
                    comment_at = clock() + COMMENT_S
                    yield b":\n\n"
            if reading.done():
                reading.result()
        finally:
            stopping.cancel()
            leaving.cancel()
            reading.cancel()
            await asyncio.wait([reading])


class _Written:
    """Events that are written and not sent yet.

    Attributes:
        parts: the events.
    """

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self._size = 0
        self._changed = asyncio.Event()
        self._has_room = asyncio.Event()

    async def take_all(self, events: AsyncGenerator[ServerEvent]) -> None:
        """Write events, as long as the reader keeps up."""
        async with aclosing(events):
            async for event in events:
                self.parts.append(event.encode())
                self._size += len(self.parts[-1])
                self._changed.set()
                if self._size > _AHEAD:
                    self._has_room.clear()
                    await self._has_room.wait()

    def wake(self, _: object) -> None:
        """Let `wait` return."""
        self._changed.set()

    async def wait(self, timeout_s: float | None) -> bool:
        """Return once there are events, after `wake`, or when the time is over; whether it is."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return True
        self._changed.clear()
        return False

    def taken(self) -> bytes:
        """Return all events, as they are sent, and make room for others."""
        taken = b"".join(self.parts)
        self.parts, self._size = [], 0
        self._has_room.set()
        return taken


async def client_gone(receive: Receive) -> None:
    """Return once the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
