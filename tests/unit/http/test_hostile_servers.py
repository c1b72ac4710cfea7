"""Servers that send what they should not: every response is complete or an error, never a hang."""

import asyncio
import gzip
import zlib
from collections.abc import Sequence

import pytest

from agent_core.http.client import Client
from agent_core.http.errors import ConnectionLostError, HttpError, ProtocolError
from agent_core.http.opening import Route
from agent_core.http.response import MAX_HEAD, MAX_UNPACKED
from raw_servers import answering, serving
from tables import together

OK = b"HTTP/1.1 200 OK\r\n"
SIZED = OK + b"Content-Length: 5\r\n\r\nhello"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"
PACKED = gzip.compress(b"hello", mtime=0)
PACKED_HEAD = OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(PACKED)

GOOD: dict[str, bytes] = {
    "a size": SIZED,
    "chunks": CHUNKED,
    "compressed": PACKED_HEAD + PACKED,
    "compressed in two members": OK
    + b"Content-Encoding: gzip\r\nConnection: close\r\n\r\n"
    + gzip.compress(b"hel")
    + gzip.compress(b"lo"),
    "compressed with padding": OK
    + b"Content-Encoding: gzip\r\nConnection: close\r\n\r\n"
    + PACKED
    + bytes(7),
    "deflate": OK + b"Content-Encoding: deflate\r\n\r\n" + zlib.compress(b"hello"),
    "deflate without the head of zlib": OK
    + b"Content-Encoding: deflate\r\n\r\n"
    + zlib.compress(b"hello", wbits=-15),
    "an encoding that was not offered": OK + b"Content-Encoding: own\r\n\r\nhello",
    "until the end": OK + b"\r\nhello",
    "HTTP/1.0": b"HTTP/1.0 200 OK\r\n\r\nhello",
    "no explanation": b"HTTP/1.1 200\r\nContent-Length: 5\r\n\r\nhello",
    "a null byte in the explanation": b"HTTP/1.1 200 O\0K\r\nContent-Length: 5\r\n\r\nhello",
    "an explanation in Latin-1": b"HTTP/1.1 200 \xe4\xf6\r\nContent-Length: 5\r\n\r\nhello",
    "a header in Latin-1": OK + b"X: \xe4\r\nContent-Length: 5\r\n\r\nhello",
    "an empty header": OK + b"X:\r\nY: \r\nContent-Length: 5\r\n\r\nhello",
    "names in any case": OK + b"cOnTeNt-LeNgTh: 5\r\n\r\nhello",
    "early hints": b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + SIZED,
    "continue": b"HTTP/1.1 100 Continue\r\n\r\n" * 3 + CHUNKED,
    "chunk extensions": OK
    + b"Transfer-Encoding: chunked\r\n\r\n5;a=b;c=\"d\"\r\nhello\r\n0;x\r\n\r\n",
    "a trailer": OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n",
    "capital hex": OK + b"Transfer-Encoding: Chunked\r\n\r\n0005\r\nhello\r\n0\r\n\r\n",
    "a second response": SIZED + SIZED,
    "what follows": SIZED + b"garbage" * 100,
    "what follows the last one": OK + b"Connection: close\r\nContent-Length: 5\r\n\r\nhello" + b"!",
    "line feeds only": b"HTTP/1.1 200 OK\nX:\nContent-Length: 5\n\nhello",
    "blanks after a chunk size": OK
    + b"Transfer-Encoding: chunked\r\n\r\n5  \r\nhello\r\n0 \r\n\r\n",
    "no coding by name": OK + b"Transfer-Encoding: identity\r\n\r\nhello",
    "compressed nothing before": OK
    + b"Content-Encoding: gzip\r\nConnection: close\r\n\r\n"
    + gzip.compress(b"") + PACKED,
    "an offer of HTTP/2": OK
    + b"Upgrade: h2,h2c\r\nConnection: Upgrade, Keep-Alive\r\nContent-Length: 5\r\n\r\nhello",
}  # fmt: skip
BAD: dict[str, bytes] = {
    "something else": b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    "HTML": b"<html>hello</html>",
    "TLS": b"\x15\x03\x01\x00\x02\x02\x28",
    "zeros": bytes(1000),
    "HTTP/0.9": b"HTTP/0.9 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    "HTTP/2": b"HTTP/2.0 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    "HTTP/9": b"HTTP/9.9 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    "another protocol": b"RTSP/3.0 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    "no status": b"HTTP/1.1 OK\r\nContent-Length: 5\r\n\r\nhello",
    "a status of two digits": b"HTTP/1.1 20 OK\r\nContent-Length: 5\r\n\r\nhello",
    "a status of four digits": b"HTTP/1.1 2000 OK\r\nContent-Length: 5\r\n\r\nhello",
    "the status 0": b"HTTP/1.1 000 OK\r\nContent-Length: 5\r\n\r\nhello",
    "another protocol from here on": b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n"
    b"Connection: Upgrade\r\n\r\nhello",
    "a long explanation": b"HTTP/1.1 200 " + b"x" * (MAX_HEAD + 1) + b"\r\n\r\nhello",
    "a long header": OK + b"X: " + b"x" * (MAX_HEAD + 1) + b"\r\n\r\nhello",
    "a long name": OK + b"x" * (MAX_HEAD + 1) + b": x\r\n\r\nhello",
    "many headers": OK + b"X: x\r\n" * MAX_HEAD + b"\r\nhello",
    "many responses before it": b"HTTP/1.1 100 Continue\r\nX: y\r\n\r\n" * MAX_HEAD + SIZED,
    "a folded header": OK + b"X: a\r\n b\r\nContent-Length: 5\r\n\r\nhello",
    "a space before the colon": OK + b"Content-Length : 5\r\n\r\nhello",
    "no colon": OK + b"Content-Length 5\r\n\r\nhello",
    "no name": OK + b": 5\r\n\r\nhello",
    "a null byte in a header": OK + b"X: a\0b\r\nContent-Length: 5\r\n\r\nhello",
    "a bare CR": OK + b"X: a\rb\r\nContent-Length: 5\r\n\r\nhello",
    "two sizes": OK + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    "two sizes in one": OK + b"Content-Length: 5, 6\r\n\r\nhello",
    "a negative size": OK + b"Content-Length: -5\r\n\r\nhello",
    "a signed size": OK + b"Content-Length: +5\r\n\r\nhello",
    "a size in words": OK + b"Content-Length: five\r\n\r\nhello",
    "an empty size": OK + b"Content-Length:\r\n\r\nhello",
    "a size beyond all": OK + b"Content-Length: 99999999999999999999\r\n\r\nhello",
    "a size and chunks": OK
    + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "chunks and a size": OK
    + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "a size and no coding by name": OK
    + b"Content-Length: 5\r\nTransfer-Encoding: identity\r\n\r\nhello",
    "chunks and no coding by name": OK
    + b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "a blank inside of a chunk size": OK
    + b"Transfer-Encoding: chunked\r\n\r\n0 5\r\nhello\r\n0\r\n\r\n",
    "a folded header after line feeds": b"HTTP/1.1 200 OK\nX: a\n b\nContent-Length: 5\n\nhello",
    "an unknown coding": OK + b"Transfer-Encoding: gzip\r\n\r\nhello",
    "two codings": OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "two codings in two headers": OK
    + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "chunks first": OK + b"Transfer-Encoding: chunked, gzip\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "chunks twice": OK
    + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: gzip\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "no chunk size": OK + b"Transfer-Encoding: chunked\r\n\r\n\r\nhello\r\n0\r\n\r\n",
    "a chunk size in words": OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n",
    "a negative chunk size": OK + b"Transfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n",
    "a chunk size with a prefix": OK
    + b"Transfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n",
    "a chunk size beyond all": OK
    + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\nhello\r\n0\r\n\r\n",
    "a chunk that is too long": OK
    + b"Transfer-Encoding: chunked\r\n\r\n3\r\nhello\r\n0\r\n\r\n",
    "a chunk without its end": OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello0\r\n\r\n",
    "many trailers": OK
    + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"X: y\r\n" * MAX_HEAD + b"\r\n",
    "a long trailer": OK
    + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: " + b"x" * 1_000_000,
    "a long chunk extension": OK
    + b"Transfer-Encoding: chunked\r\n\r\n5;" + b"x" * 1_000_000,
    "no gzip": OK + b"Content-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello",
    "damaged gzip": PACKED_HEAD + PACKED[:-6] + b"\0\0\0\0\0\0",
}  # fmt: skip
"""What is an error, with the end of the connection or without."""


async def received(url: str) -> bytes:
    """Return the body of a response."""
    client = Client(headers={})
    try:
        response = await client.request("GET", url, headers={}, route=Route(), silence_s=20)
        response.unpack()
        body = b""
        try:
            while block := await response.read():
                body += block
            assert response.is_read
            return body
        finally:
            response.close()
    finally:
        await client.close()


async def answered(pieces: Sequence[bytes], *, stays: bool = False) -> bytes:
    async with serving(answering(*pieces, stays=stays)) as url:
        return await received(url)


def bytewise(data: bytes) -> list[bytes]:
    """Return single bytes."""
    head, rest, tail = data[:1000], data[1000:-1000], data[max(1000, len(data) - 1000) :]
    return [
        *map(bytes, zip(head, strict=True)),
        *filter(None, [rest]),
        *map(bytes, zip(tail, strict=True)),
    ]


@together("name", GOOD)
@together("is_whole", [True, False])
async def test_an_odd_response_is_read(name: str, is_whole: bool) -> None:
    data = GOOD[name]
    async with asyncio.timeout(30):
        body = await answered([data] if is_whole else bytewise(data))
    assert body == b"hello"


@together("name", BAD)
@together("stays", [True, False])
async def test_what_is_not_http_is_an_error(name: str, stays: bool) -> None:
    async with asyncio.timeout(30):
        with pytest.raises(HttpError) as caught:
            await answered([BAD[name]], stays=stays)
    expected = ProtocolError if stays else (ProtocolError, ConnectionLostError)
    assert isinstance(caught.value, expected)


@pytest.mark.long
@together("name", ["a size", "chunks", "early hints", "chunk extensions", "a trailer"])
async def test_a_response_that_is_cut_anywhere_is_an_error(name: str) -> None:
    whole = GOOD[name]
    for end in range(len(whole)):
        with pytest.raises(ConnectionLostError):
            await answered([whole[:end]])


async def test_a_head_that_drips_is_given_up_in_time() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.01)

    async with serving(serve) as url:
        client = Client(headers={})
        with pytest.raises(TimeoutError):
            await client.request("GET", url, headers={}, route=Route(), silence_s=0.2)
        await client.close()


async def test_a_body_may_drip_for_longer_than_the_limit_of_silence() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK + b"Transfer-Encoding: chunked\r\n\r\n40\r\n")
        for _ in range(64):
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.02)
        writer.write(b"\r\n0\r\n\r\n")

    async with serving(serve) as url:
        client = Client(headers={})
        response = await client.request("GET", url, headers={}, route=Route(), silence_s=1)
        body = b""
        while block := await response.read():
            body += block
        response.close()
        await client.close()
    assert body == b"x" * 64


@pytest.mark.long
async def test_data_that_unpacks_to_much_more_is_unpacked_in_pieces() -> None:
    bomb = gzip.compress(bytes(50_000_000))
    head = OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb)
    async with serving(answering(head + bomb)) as url:
        client = Client(headers={})
        response = await client.request("GET", url, headers={}, route=Route())
        response.unpack()
        sizes: list[int] = []
        while block := await response.read():
            sizes.append(len(block))
        response.close()
        await client.close()
    assert sum(sizes) == 50_000_000
    assert max(sizes) <= 1024 * 1024


@together("wbits", [-15, 15, 31])
@together("size", [MAX_UNPACKED - 1, MAX_UNPACKED, MAX_UNPACKED + 20, 2 * MAX_UNPACKED + 99])
async def test_nothing_is_lost_that_zlib_holds_back(wbits: int, size: int) -> None:
    """Zlib may have taken all of the data while more than a piece is to come out of it."""
    coding = b"gzip" if wbits > 15 else b"deflate"
    packed = zlib.compress(bytes(size), wbits=wbits)
    head = OK + b"Content-Encoding: %b\r\nContent-Length: %d\r\n\r\n" % (coding, len(packed))
    assert len(await answered([head + packed])) == size
    assert len(await answered([head, packed[:-1], packed[-1:]])) == size


@together("coding", [b"gzip", b"deflate"])
async def test_compressed_data_without_its_end_is_an_error(coding: bytes) -> None:
    packed = gzip.compress(b"hello") if coding == b"gzip" else zlib.compress(b"hello")
    for end in range(1, len(packed)):
        sized = b"Content-Length: %d\r\n\r\n" % end
        for framing in (sized, b"Connection: close\r\n\r\n"):
            head = OK + b"Content-Encoding: %b\r\n" % coding + framing
            with pytest.raises(ConnectionLostError, match="inside of its compressed data"):
                await answered([head + packed[:end]])


@together("head", [OK, b"HTTP/1.1 204 None\r\n"])
async def test_no_data_at_all_is_an_empty_body(head: bytes) -> None:
    head += b"Content-Encoding: gzip\r\nContent-Length: 0\r\n\r\n"
    assert await answered([head]) == b""
