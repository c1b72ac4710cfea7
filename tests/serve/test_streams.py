"""How events are streamed to clients."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import ExitStack
from typing import Any

import aiohttp
import pytest
from starlette.types import Receive, Scope, Send

from agent_core.serve import streams
from agent_core.serve.principals import Principal
from agent_core.serve.problems import HttpProblem
from agent_core.serve.streams import EventResponse, Frames, ServerEvent, Streams
from consoles import served


def test_an_event_is_sent_with_its_type_and_its_id() -> None:
    assert ServerEvent("{}", "note", "7").encode() == b"id: 7\nevent: note\ndata: {}\n\n"


def test_no_line_of_the_data_is_read_as_a_field() -> None:
    sent = ServerEvent("one\rid: 2\r\nevent: 3\n\ndata").encode()
    assert sent == b"data: one\ndata: id: 2\ndata: event: 3\ndata: \ndata: data\n\n"


ANN = Principal("ann")


def test_an_event_that_many_streams_send_is_written_once() -> None:
    frames, written = Frames(), list[object]()

    def write(event: list[int]) -> ServerEvent:
        written.append(event)
        return ServerEvent(str(event))

    events = [[number] for number in range(1000)]
    for event in events:
        assert {frames.frame(event, write).data for _ in range(3)} == {str(event)}
    assert written == events
    assert frames.frame([1], write).data == "[1]"


class Ticks:
    """An application that streams two events, and then waits."""

    def __init__(self, *, retry_ms: int | None = streams.RETRY_MS) -> None:
        self.streams = Streams()
        self.closed = asyncio.Event()
        self.more = asyncio.Event()
        self._retry_ms = retry_ms

    async def _events(self) -> AsyncGenerator[ServerEvent]:
        try:
            yield ServerEvent("a", "tick", "1")
            yield ServerEvent("b", "tick", "2")
            await self.more.wait()
            yield ServerEvent("c", "tick", "3")
        finally:
            await asyncio.sleep(0)
            self.closed.set()

    async def _begin(self) -> AsyncGenerator[ServerEvent]:
        return self._events()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        stream = EventResponse(self.streams, ANN, self._begin, retry_ms=self._retry_ms)
        try:
            await stream(scope, receive, send)
        except HttpProblem as problem:
            await problem.response()(scope, receive, send)


async def test_a_stream_begins_with_the_time_to_come_back_and_ends_with_its_events() -> None:
    ticks = Ticks()
    ticks.more.set()
    async with (
        served(ticks) as address,
        aiohttp.ClientSession() as client,
        client.get(address) as response,
    ):
        assert response.content_type == "text/event-stream"
        lines = (await response.text()).splitlines()
    assert lines[0] == f"retry: {streams.RETRY_MS}"
    assert [line for line in lines if line.startswith("id")] == ["id: 1", "id: 2", "id: 3"]
    assert ticks.closed.is_set()


async def test_a_quiet_stream_has_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "COMMENT_S", 0.05)
    async with (
        served(Ticks()) as address,
        aiohttp.ClientSession() as client,
        client.get(address) as response,
    ):
        comments = 0
        async for line in response.content:
            comments += line == b":\n"
            if comments == 3:
                break
    assert comments == 3


async def test_the_events_are_closed_when_the_client_leaves() -> None:
    ticks = Ticks()
    async with served(ticks) as address:
        async with aiohttp.ClientSession() as client, client.get(address) as response:
            await response.content.readuntil(b"id: 2\n")
        async with asyncio.timeout(30):
            await ticks.closed.wait()


async def test_streams_end_with_what_is_there_when_the_server_stops() -> None:
    ticks = Ticks()
    async with (
        served(ticks) as address,
        aiohttp.ClientSession() as client,
        client.get(address) as response,
    ):
        await response.content.readuntil(b"id: 2\n")
        ticks.more.set()
        ticks.streams.end()
        assert b"id: 3" in await response.content.read()


async def test_streams_of_a_stopping_server_do_not_wait_for_more() -> None:
    ticks = Ticks()
    async with (
        served(ticks) as address,
        aiohttp.ClientSession() as client,
        client.get(address) as response,
    ):
        await response.content.readuntil(b"id: 2\n")
        ticks.streams.end()
        assert b"id: 3" not in await response.content.read()
    assert ticks.closed.is_set()


async def test_a_principal_has_a_limited_number_of_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MOST", 1)
    ticks = Ticks(retry_ms=None)
    async with served(ticks) as address, aiohttp.ClientSession() as client:
        async with client.get(address) as first, client.get(address) as second:
            assert (first.status, second.status) == (200, 429)
            assert int(second.headers["Retry-After"]) > 0
            assert await first.content.readline() == b"id: 1\n"
        async with asyncio.timeout(30):
            while await _status(client, address) == 429:
                pass


async def _status(client: aiohttp.ClientSession, address: str) -> int:
    async with client.get(address) as response:
        return response.status


async def test_events_that_come_together_are_sent_together() -> None:
    parts: list[bytes] = []

    async def events() -> AsyncGenerator[ServerEvent]:
        for number in range(5):
            yield ServerEvent(str(number))

    async def begin() -> AsyncGenerator[ServerEvent]:
        return events()

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        parts.append(message.get("body", b""))

    await EventResponse(Streams(), ANN, begin, retry_ms=None)({"method": "GET"}, receive, send)
    sent = [part for part in parts if part]
    assert sent == [b"".join(f"data: {number}\n\n".encode() for number in range(5))]


def test_the_oldest_stream_of_a_browser_gives_way_to_the_newest() -> None:
    some = Streams()
    with ExitStack() as stack:
        others = [stack.enter_context(some.opened(ANN)) for _ in range(9)]
        others += [stack.enter_context(some.opened(ANN, "another")) for _ in range(4)]
        mine = [stack.enter_context(some.opened(ANN, "browser")) for _ in range(6)]
        assert [each.is_set() for each in mine] == [True, True, False, False, False, False]
        assert not any(each.is_set() for each in others)


def test_the_more_streams_the_larger_the_pieces_of_text() -> None:
    some = Streams()
    alone = some.pace_s
    with ExitStack() as stack:
        for number in range(200):
            stack.enter_context(some.opened(Principal(f"user {number % 4}")))
        assert some.pace_s == pytest.approx(5 * alone)
    assert some.pace_s == alone


async def test_a_handler_of_events_that_fails_ends_its_stream() -> None:
    async def events() -> AsyncGenerator[ServerEvent]:
        yield ServerEvent("first")
        raise HttpProblem(500, "it broke")

    async def begin() -> AsyncGenerator[ServerEvent]:
        return events()

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(_: Any) -> None:
        pass

    with pytest.raises(HttpProblem, match="it broke"):
        await EventResponse(Streams(), ANN, begin)({"method": "GET"}, receive, send)
