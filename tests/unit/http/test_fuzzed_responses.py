"""Responses in random pieces, and random responses."""

import asyncio
import gzip
from collections.abc import Sequence

import pytest
from hypothesis import given, settings, strategies as st

from agent_core.http.errors import HttpError, ProtocolError
from agent_core.http.response import MAX_HELD, Response
from sweeps import examples

SIZES = st.lists(st.integers(1, 5000), max_size=20)
BODIES = st.binary(max_size=20_000)
WORDS = st.sampled_from(
    [
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.0 204 None\r\n",
        b"HTTP/1.1 101 Other\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"Content-Length: 5\r\n",
        b"Content-Length: 0\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Content-Encoding: gzip\r\n",
        b"Content-Encoding: deflate\r\n",
        b"Connection: close\r\n",
        b"X: \r\n y\r\n",
        b"\r\n",
        b"\n",
        b"\r",
        b"5\r\nhello\r\n",
        b"0\r\n\r\n",
        b"hello",
        gzip.compress(b"hello"),
        b"\0",
    ]
)
ANY = st.lists(WORDS | st.binary(max_size=20), max_size=15).map(b"".join)


class Wire:
    """A connection without a network: it notes what the response wants of it."""

    def __init__(self) -> None:
        self.is_paused = self.is_aborted = False
        self.released: list[bool] = []

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False

    def unsent(self) -> int:
        return 0

    def abort(self) -> None:
        self.is_aborted = True

    def release(self, *, keeps: bool) -> None:
        self.released.append(keeps)


def split(data: bytes, sizes: Sequence[int]) -> list[bytes]:
    pieces: list[bytes] = []
    for size in sizes:
        pieces.append(data[:size])
        data = data[size:]
    return [piece for piece in (*pieces, data) if piece]


async def play(pieces: Sequence[bytes]) -> tuple[int, bytes, bool] | type[BaseException]:
    """Feed a response while it is read; return status, body, and whether the connection is kept."""
    wire = Wire()
    response = Response(wire, limit_s=60)

    async def read() -> tuple[int, bytes]:
        await response.wait_for_head()
        response.unpack()
        body = b""
        while block := await response.read():
            body += block
        assert response.is_read
        return response.status, body

    reading = asyncio.create_task(read())
    for piece in pieces:
        if wire.is_aborted:
            break
        response.feed(piece)
        if wire.is_paused:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
    response.end(None)
    outcome: tuple[int, bytes, bool] | type[BaseException]
    try:
        async with asyncio.timeout(5):
            outcome = (*await reading, False)
    except HttpError as error:
        outcome = type(error)
    response.close()
    assert len(wire.released) == 1
    if isinstance(outcome, tuple):
        return (*outcome[:2], wire.released[0])
    assert wire.is_aborted or not wire.released[0]
    return outcome


@given(BODIES, st.lists(st.integers(1, 3000), min_size=1, max_size=8), SIZES, st.booleans())
@settings(max_examples=examples(150), deadline=None)
def test_a_response_is_the_same_however_it_is_split(
    body: bytes, chunks: list[int], sizes: list[int], packed: bool
) -> None:
    sent = gzip.compress(body) if packed else body
    head = b"HTTP/1.1 200 OK\r\n" + (b"Content-Encoding: gzip\r\n" if packed else b"")
    parts = split(sent, chunks)
    framed = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    for whole in (
        head + b"Content-Length: %d\r\n\r\n" % len(sent) + sent,
        head + b"Transfer-Encoding: chunked\r\n\r\n" + framed,
    ):
        assert asyncio.run(play(split(whole, sizes))) == (200, body, True)
    assert asyncio.run(play(split(head + b"\r\n" + sent, sizes))) == (200, body, False)


@pytest.mark.long
@given(ANY, SIZES)
@settings(max_examples=examples(2000), deadline=None)
def test_whatever_comes_is_a_response_or_an_error(data: bytes, sizes: list[int]) -> None:
    whole, in_pieces = (
        asyncio.run(play([data] if data else [])),
        asyncio.run(play(split(data, sizes))),
    )
    if isinstance(whole, tuple) and isinstance(in_pieces, tuple):
        assert whole[:2] == in_pieces[:2]
    else:
        assert isinstance(whole, type) == isinstance(in_pieces, type)


def test_a_body_that_is_not_read_pauses_the_connection_until_it_is() -> None:
    async def run() -> None:
        wire = Wire()
        response = Response(wire, limit_s=60)
        response.feed(b"HTTP/1.1 200 OK\r\n\r\n" + bytes(MAX_HELD))
        assert not wire.is_paused
        response.feed(b"x")
        assert wire.is_paused
        assert len(await response.read()) == MAX_HELD + 1
        assert not wire.is_paused
        response.close()

    asyncio.run(run())


def test_a_body_that_is_damaged_keeps_no_connection() -> None:
    async def run() -> None:
        wire = Wire()
        response = Response(wire, limit_s=60)
        response.feed(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\n")
        response.feed(b"hello")
        response.unpack()
        for _ in range(2):
            with pytest.raises(ProtocolError):
                await response.read()
        response.close()
        assert wire.released == [False]

    asyncio.run(run())
