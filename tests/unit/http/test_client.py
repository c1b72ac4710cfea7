"""The HTTP client, over real sockets."""

import asyncio
import gc
import socket
import ssl
import subprocess
import warnings
from collections.abc import Coroutine, Generator
from pathlib import Path
from typing import Any

import pytest

from agent_core.http import client as client_module, opening
from agent_core.http.addresses import address_of
from agent_core.http.client import Client
from agent_core.http.connection import ClientConnection
from agent_core.http.errors import (
    ConnectError,
    ConnectionLostError,
    ConnectTimeoutError,
    HttpError,
    ProtocolError,
    ProxyRefusedError,
)
from agent_core.http.opening import Endpoint, Route, open_connection
from agent_core.http.response import MAX_HELD
from raw_servers import Serve, answering, open_sockets, read_request, serving
from sweeps import kept
from tables import together
from web_proxy import WebProxy

HELLO = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
PLAIN = Route()


async def fetched(client: Client, url: str, **more: Any) -> bytes:
    """Return the body of a response that is read to its end."""
    more = {"headers": {}, "route": PLAIN, **more}
    response = await client.request(more.pop("method", "GET"), url, **more)
    try:
        body = b""
        while block := await response.read():
            body += block
        return body
    finally:
        response.close()


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `cert.pem` and `key.pem`, for names below `test` and 127.0.0.1."""
    return signed_by_itself(tmp_path_factory.mktemp("certificate"))


@pytest.fixture(scope="module")
def other_certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return signed_by_itself(tmp_path_factory.mktemp("certificate"))


def signed_by_itself(folder: Path) -> Path:
    """Put a certificate and its key into a folder, and return the folder."""
    names = "subjectAltName=DNS:model.test,DNS:proxy.test,IP:127.0.0.1"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem"
    command += f" -subj /CN=t -addext {names}"
    subprocess.run(command.split(), cwd=folder, stderr=subprocess.DEVNULL, check=True)  # noqa: S603
    return folder


def serving_tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    return context


def trusting(certificate: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate / "cert.pem"))


# Requests


async def sent(url: str, *, route: Route = PLAIN, **more: Any) -> bytes:
    """Return what a server gets, head and body, instead of which it is called at `url`."""
    got: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.extend(await read_request(reader))
        writer.write(HELLO)
        await writer.drain()

    async with serving(serve) as here:
        client = Client(headers={"User-Agent": "us", "Accept": "*/*"})
        url = url.replace("HERE", here.removeprefix("http://"))
        assert await fetched(client, url, route=route, **more) == b"hello"
        await client.close()
    return b"".join(got).replace(here.removeprefix("http://").encode(), b"HERE")


async def test_a_get_and_a_post_are_written_plainly() -> None:
    got = await sent("http://HERE/a/b?c=d#e", headers={"X-Own": "grün", "accept": "a/b"})
    assert (
        got
        == (
            "GET /a/b?c=d HTTP/1.1\r\nHost: HERE\r\nUser-Agent: us\r\nAccept: a/b\r\n"
            "X-Own: grün\r\n\r\n"
        ).encode()
    )
    got = await sent("http://HERE", method="POST", body=b"12", headers={"Content-Length": "9"})
    assert got.startswith(b"POST / HTTP/1.1\r\n")
    assert got.endswith(b"\r\nContent-Length: 2\r\n\r\n12")
    assert b"Content-Length: 0\r\n" in await sent("http://HERE", method="POST", body=b"")


@together(
    ("name", "value"),
    [
        ("X", "a\r\nY: b"),
        ("X", "a\nb"),
        ("X", "a\rb"),
        ("X", "a\0b"),
        ("X: y\r\nZ", "a"),
        ("X Y", "a"),
        ("X:", "a"),
        ("", "a"),
        ("Ü", "a"),
    ],
)
async def test_no_header_can_be_another_one(name: str, value: str) -> None:
    client = Client(headers={})
    with pytest.raises(ValueError, match="header"):
        await client.request("GET", "http://127.0.0.1:1/", headers={name: value}, route=PLAIN)
    await client.close()


@together(
    ("path", "target"),
    [
        ("/a b", "/a%20b"),
        ("/a\r\nX: y", "/aX:%20y"),
        ("/a\0b", "/a%00b"),
        ("/grün?ä=ö", "/gr%C3%BCn?%C3%A4=%C3%B6"),
        ("/a%20b%2Fc", "/a%20b%2Fc"),
        ("/m:v/x@y?alt=sse&k=a/b", "/m:v/x@y?alt=sse&k=a/b"),
        ("?a=b", "/?a=b"),
        ('/"<>\\^`{|}', "/%22%3C%3E%5C%5E%60%7B%7C%7D"),
    ],
)
async def test_a_target_has_only_what_may_be_in_one(path: str, target: str) -> None:
    got = await sent(f"http://HERE{path}", headers={})
    assert got.startswith(f"GET {target} HTTP/1.1\r\nHost: HERE\r\n".encode())


@together(
    ("url", "host", "port", "authority"),
    [
        ("http://a.test", "a.test", 80, "a.test"),
        ("https://A.test:443/", "a.test", 443, "a.test"),
        ("https://a.test:80/", "a.test", 80, "a.test:80"),
        ("http://[::1]:8080/", "::1", 8080, "[::1]:8080"),
        ("http://[fe80::1%25eth0]/", "fe80::1%eth0", 80, "[fe80::1]"),
        ("https://bücher.example/", "xn--bcher-kva.example", 443, "xn--bcher-kva.example"),
        ("https://straße.example/", "xn--strae-oqa.example", 443, "xn--strae-oqa.example"),
    ],
)
def test_an_address_is_taken_apart(url: str, host: str, port: int, authority: str) -> None:
    address = address_of(url)
    assert (address.host, address.port, address.authority) == (host, port, authority)


@together(
    "url",
    [
        "ftp://a.test/",
        "a.test",
        "http://",
        "http:///a",
        "http://a.test:0/",
        "http://a.test:65536/",
        "http://a.test:x/",
        "http://a b/",
        "http://a\0b/",
        "http://a%00b/",
        "http://a%0d%0ab/",
        "http://.a.test/",
        "http://a/b@c:d@e\\f/",
        "http://[::1/",
        "http://\ud800.test/",
    ],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    if url == "http://a/b@c:d@e\\f/":
        assert address_of(url).host == "a"
        return
    with pytest.raises(ProtocolError):
        address_of(url)


async def test_a_name_that_cannot_be_looked_up_is_an_error() -> None:
    client = Client(headers={})
    with pytest.raises(ProtocolError):
        await fetched(client, f"http://{'a' * 64}.test/")
    with pytest.raises(ConnectError) as caught:
        await fetched(client, "http://nothing.invalid/")
    assert isinstance(caught.value.cause, socket.gaierror)
    await client.close()


# Connections that are kept


def counting(serve: Serve) -> tuple[Serve, list[int]]:
    """Return a server that notes each connection."""
    counted: list[int] = []

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        counted.append(len(counted))
        await serve(reader, writer)

    return count, counted


async def answer_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        await read_request(reader)
        writer.write(HELLO)
        await writer.drain()


async def test_a_connection_is_kept_and_used_by_the_next_request_of_its_origin_only() -> None:
    serve, counted = counting(answer_all)
    async with serving(serve) as url:
        client = Client(headers={})
        for _ in range(5):
            assert await fetched(client, url) == b"hello"
        assert counted == [0]
        await asyncio.gather(*(fetched(client, url) for _ in range(5)))
        assert len(counted) == 5
        elsewhere = url.replace("127.0.0.1", "localhost")
        assert await fetched(client, elsewhere) == b"hello"
        assert len(counted) == 6
        await client.close()


async def test_a_request_waits_for_no_acknowledgement() -> None:
    """Else each but the first of a connection takes 40 ms longer."""
    received: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while block := await reader.read(100_000):
            received.append(block)
            writer.write(HELLO)

    async with serving(answer) as url:
        client = Client(headers={})
        for _ in range(2):
            assert await fetched(client, url, method="POST", body=b"question") == b"hello"
        peers = [each for each in gc.get_objects() if isinstance(each, socket.socket)]
        (sock,) = [each for each in peers if _is_connected_to(each, port_of(url))]
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        await client.close()
    assert len(received) == 2, "head and body are sent together"


def _is_connected_to(sock: socket.socket, port: int) -> bool:
    try:
        return sock.getpeername()[1] == port
    except (OSError, IndexError):
        return False


@together(
    "response",
    [
        HELLO.replace(b"OK\r\n", b"OK\r\nConnection: close\r\n"),
        HELLO.replace(b"1.1", b"1.0"),
        HELLO + b"x",
        HELLO + HELLO,
    ],
)
async def test_a_connection_that_cannot_be_kept_is_closed(response: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(response)
        assert await reader.read() == b""

    noting, counted = counting(serve)
    async with serving(noting) as url:
        client = Client(headers={})
        for _ in range(2):
            assert await fetched(client, url) == b"hello"
        assert len(counted) == 2
        await client.close()


@together("method", ["GET", "POST"])
@together("extra", [b"", b"HTTP/1.1 408 Timeout\r\nContent-Length: 0\r\n\r\n"])
async def test_a_kept_connection_that_ended_meanwhile_is_not_used(
    method: str, extra: bytes
) -> None:
    closed = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(HELLO)
        await writer.drain()
        if not closed.is_set():
            await asyncio.sleep(0.01)
            writer.write(extra)
            writer.close()
            await writer.wait_closed()
            closed.set()
        else:
            await reader.read()

    noting, counted = counting(serve)
    async with serving(noting) as url:
        client = Client(headers={})
        assert await fetched(client, url, method=method, body=b"x") == b"hello"
        await closed.wait()
        assert await fetched(client, url, method=method, body=b"x") == b"hello"
        assert len(counted) == 2
        await client.close()


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_request_is_sent_twice_only_if_that_is_safe(method: str) -> None:
    """A server may close a kept connection just when a request is on its way."""
    requests: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append((await read_request(reader))[0])
        writer.write(HELLO)
        await writer.drain()
        if len(requests) == 1:
            requests.append((await read_request(reader))[0])
        else:
            await reader.read()

    async with serving(serve) as url:
        client = Client(headers={})
        assert await fetched(client, url, method=method, body=b"x") == b"hello"
        if method == "GET":
            assert await fetched(client, url, method=method) == b"hello"
        else:
            with pytest.raises(ConnectionLostError):
                await fetched(client, url, method=method, body=b"x")
        assert len(requests) == (3 if method == "GET" else 2)
        await client.close()


async def test_what_comes_unasked_ends_a_kept_connection() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(HELLO)
        await writer.drain()
        await asyncio.sleep(0.01)
        writer.write(HELLO)
        assert await reader.read() == b""

    noting, counted = counting(serve)
    async with serving(noting) as url:
        client = Client(headers={})
        for _ in range(3):
            assert await fetched(client, url) == b"hello"
            await asyncio.sleep(0.05)
        assert len(counted) == 3
        await client.close()


async def test_a_connection_without_a_request_is_closed_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_module, "IDLE_S", 0.05)
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(HELLO)
        assert await reader.read() == b""
        ended.set()

    async with serving(serve) as url:
        client = Client(headers={})
        assert await fetched(client, url) == b"hello"
        await asyncio.wait_for(ended.wait(), 10)
        await client.close()


async def test_no_more_requests_than_allowed_are_under_way() -> None:
    under_way, most = 0, 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal under_way, most
        while True:
            await read_request(reader)
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0.01)
            under_way -= 1
            writer.write(HELLO)

    async with serving(serve) as url:
        client = Client(headers={}, most=3)
        await asyncio.gather(*(fetched(client, url) for _ in range(12)))
        await client.close()
    assert most == 3


# Bodies


async def test_a_body_that_nobody_reads_does_not_fill_the_memory() -> None:
    size = 100_000_000
    written = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        piece = bytes(100_000)
        for _ in range(size // len(piece)):
            writer.write(piece)
            await writer.drain()
            written += len(piece)

    async with serving(serve) as url:
        client = Client(headers={})
        response = await client.request("GET", url, headers={}, route=PLAIN, silence_s=0.3)
        before = -1
        while written != before:
            before = written
            await asyncio.sleep(0.2)
        assert written < size / 2
        received, largest = 0, 0
        while block := await response.read():  # a pause of the reader is no silence of the server
            received += len(block)
            largest = max(largest, len(block))
        response.close()
        await client.close()
    assert received == size
    assert largest <= 4 * MAX_HELD


@pytest.mark.long
async def test_a_response_may_come_before_the_request_has_been_sent() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 5\r\n\r\nhello")
        await writer.drain()
        await asyncio.Event().wait()

    noting, counted = counting(serve)
    async with serving(noting) as url:
        client = Client(headers={})
        for _ in range(2):
            body = bytes(50_000_000)
            response = await client.request("POST", url, headers={}, body=body, route=PLAIN)
            assert response.status == 413
            assert await response.read() == b"hello"
            response.close()
        assert len(counted) == 2, "a connection was kept with half a request on it"
        await client.close()


async def test_an_upload_that_goes_on_is_no_silence_and_one_that_does_not_is() -> None:
    reads = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        left = 20_000_000
        while left and reads.is_set():
            left -= len(await reader.read(1_000_000))
            await asyncio.sleep(0.02)
        if left:
            await asyncio.Event().wait()
        writer.write(HELLO)
        await writer.drain()

    async with serving(serve) as url:
        client = Client(headers={})
        body = bytes(20_000_000)
        with pytest.raises(TimeoutError):
            await fetched(client, url, method="POST", body=body, silence_s=0.2)
        reads.set()
        assert await fetched(client, url, method="POST", body=body, silence_s=5) == b"hello"
        await client.close()


async def test_what_came_before_a_cut_can_be_read() -> None:
    cut = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello"
    async with serving(answering(cut)) as url:
        client = Client(headers={})
        response = await client.request("GET", url, headers={}, route=PLAIN)
        assert await response.read() == b"hello"
        for _ in range(2):
            with pytest.raises(ConnectionLostError):
                await response.read()
        assert not response.is_read
        response.close()
        response.close()
        await client.close()


async def test_a_response_that_was_closed_reads_nothing_of_the_next_one() -> None:
    async with serving(answer_all) as url:
        client = Client(headers={})
        first = await client.request("GET", url, headers={}, route=PLAIN)
        assert await first.read() == b"hello"
        first.close()
        second = await client.request("GET", url, headers={}, route=PLAIN)
        assert await first.read() == b""
        first.close()
        assert await second.read() == b"hello"
        second.close()
        await client.close()


# Time limits and the end


async def test_no_connection_in_time_is_an_error_of_its_own() -> None:
    with socket.socket() as full:  # whose queue of connections is full: no answer to another one
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(address)
        await asyncio.sleep(0.1)
        client = Client(headers={}, connect_s=0.3)
        with pytest.raises(ConnectTimeoutError):
            await fetched(client, f"http://127.0.0.1:{address[1]}/")
        await client.close()
        for filler in fillers:
            filler.close()


async def test_waiting_for_a_place_counts_as_connecting() -> None:
    async with serving(answering(stays=True)) as url:
        client = Client(headers={}, most=1, connect_s=0.2)
        first = asyncio.create_task(fetched(client, url))
        await asyncio.sleep(0.05)
        with pytest.raises(ConnectTimeoutError):
            await fetched(client, url)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await client.close()


async def test_closing_the_client_fails_what_is_under_way() -> None:
    async with serving(answering(HELLO[:-1], stays=True)) as url:
        client = Client(headers={})
        reading = asyncio.create_task(fetched(client, url))
        waiting = asyncio.create_task(fetched(client, "http://nothing.invalid/"))
        await asyncio.sleep(0.1)
        await client.close()
        for task in (reading, waiting):
            with pytest.raises(HttpError):
                await task


async def test_the_end_of_a_connection_that_was_closed_here_ends_no_body() -> None:
    async with serving(answering(b"HTTP/1.1 200 OK\r\n\r\nhello", stays=True)) as url:
        client = Client(headers={})
        response = await client.request("GET", url, headers={}, route=PLAIN)
        assert await response.read() == b"hello"
        await client.close()
        with pytest.raises(ConnectionLostError):
            await response.read()
        response.close()


# Ways


def unpooled(lost: asyncio.Event | None = None) -> ClientConnection:
    """Return a connection of no client, and set an event at its end."""

    def release(_: ClientConnection, keeps: bool) -> None:
        assert keeps

    return ClientConnection(release, lambda _: lost and lost.set())


async def test_the_next_address_is_tried_while_one_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(opening, "NEXT_ATTEMPT_S", 0.05)
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        silent = full.getsockname()
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(silent)
        async with serving(answer_all) as url:
            good = ("127.0.0.1", port_of(url))
            refusing = ("127.0.0.1", 1)

            async def resolve(host: str, port: int) -> list[Endpoint]:
                return [(socket.AF_INET, each) for each in (refusing, silent, good)]

            lost = asyncio.Event()
            connection = unpooled(lost)
            async with asyncio.timeout(20):
                await open_connection(connection, address_of(url), PLAIN, resolve)
            assert connection.is_usable
            connection.abort()
            await lost.wait()

            async def resolve_badly(host: str, port: int) -> list[Endpoint]:
                return [(socket.AF_INET, refusing)] * 3

            with pytest.raises(ConnectError) as caught:
                await open_connection(connection, address_of(url), PLAIN, resolve_badly)
            assert isinstance(caught.value.cause, ConnectionRefusedError)
        for filler in fillers:
            filler.close()


async def test_every_address_is_checked_before_a_connection_to_any() -> None:
    checked: list[tuple[str, str, int]] = []

    def check(host: str, address: object, port: int) -> None:
        checked.append((host, str(address), port))
        if len(checked) == 2:
            raise PermissionError("not there")

    serve, counted = counting(answer_all)
    async with serving(serve) as url:
        port = port_of(url)

        async def resolve(host: str, _: int) -> list[Endpoint]:
            return [(socket.AF_INET, (each, port)) for each in ("127.0.0.1", "127.0.0.2")]

        connection = unpooled()
        address = address_of(f"http://model.test:{port}/")
        with pytest.raises(Exception, match="not there"):
            await open_connection(connection, address, Route(check=check), resolve)
        assert checked == [("model.test", "127.0.0.1", port), ("model.test", "127.0.0.2", port)]
        assert counted == []


async def test_names_that_are_asked_for_at_once_are_looked_up_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_up: list[str] = []

    async def resolve(host: str, port: int) -> list[Endpoint]:
        looked_up.append(host)
        await asyncio.sleep(0.01)
        return [(socket.AF_INET, ("127.0.0.1", port))]

    monkeypatch.setattr(client_module, "resolve", resolve)
    async with serving(answer_all) as url:
        client = Client(headers={})
        named = url.replace("127.0.0.1", "model.test")
        await asyncio.gather(*(fetched(client, named) for _ in range(10)))
        assert looked_up == ["model.test"]
        await client.close()


class TlsProxy(WebProxy):
    """A proxy that speaks TLS itself."""

    tls: ssl.SSLContext

    async def __aenter__(self) -> "TlsProxy":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self.tls)
        return self


@pytest.mark.long
@pytest.mark.parametrize("encrypted", [False, True], ids=["http", "https"])
async def test_a_proxy_may_be_reached_over_tls(certificate: Path, encrypted: bool) -> None:
    tls = serving_tls(certificate)
    async with serving(answer_all, tls=tls if encrypted else None) as url:
        proxy = TlsProxy(port_of(url), credentials="me:ü§")
        proxy.tls = tls
        async with proxy:
            route = Route(proxy=f"https://me:%C3%BC%C2%A7@{proxy.host}", tls=trusting(certificate))
            client = Client(headers={})
            proxy._proof = "bWU6/Kc="  # in Latin-1, as it is sent if it can be
            scheme = "https" if encrypted else "http"
            for _ in range(2):
                named = f"{scheme}://model.test/x"
                assert await fetched(client, named, route=route) == b"hello"
            asked = ["CONNECT model.test:443"] if encrypted else ["GET http://model.test/x"]
            assert proxy.asked == asked
            with pytest.raises(ConnectError):
                await fetched(client, f"{scheme}://model.test/", route=Route(proxy=route.proxy))
            await client.close()


async def speaks_too_early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 Connected\r\n\r\n\x16\x03\x01")
    await reader.read()


@together(
    ("serve", "error"),
    [
        (answering(b"HTTP/1.1 502 No\r\nContent-Length: 0\r\n\r\n"), ProxyRefusedError),
        (answering(b"HTTP/1.1 407 \r\n\r\n"), ProxyRefusedError),
        (answering(b"HTTP/1.1 301 Away\r\nLocation: /\r\n\r\n"), ProxyRefusedError),
        (answering(b"HTTP/1.1 200 Connected\r\n\r\n"), ConnectError),
    ],
)
async def test_a_proxy_that_does_not_lead_there_is_an_error(
    serve: Serve, error: type[HttpError]
) -> None:
    async with serving(serve) as url:
        client = Client(headers={}, connect_s=20)
        with pytest.raises(error) as caught:
            await fetched(client, "https://model.test/", route=Route(proxy=url))
        assert type(caught.value) is error
        await client.close()


@together(
    ("serve", "said"),
    [
        (answering(b"HTTP/1.1 200 Connected\r\n"), "did not answer CONNECT"),
        (answering(), "did not answer CONNECT"),
        (answering(b"SSH-2.0-x\r\n"), "not HTTP"),
        (speaks_too_early, "not HTTP"),
    ],
)
async def test_a_proxy_that_does_not_answer_with_http_is_an_error_of_the_proxy(
    serve: Serve, said: str
) -> None:
    async with serving(serve) as url:
        client = Client(headers={}, connect_s=20)
        with pytest.raises(ConnectError, match=said) as caught:
            await fetched(client, "https://model.test/", route=Route(proxy=url))
        assert caught.value.stage == "proxy"
        await client.close()


@pytest.mark.parametrize("way", ["direct", "tunnel"])
async def test_the_dot_of_the_root_is_in_no_certificate(
    way: str, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def resolve(host: str, port: int) -> list[Endpoint]:
        return [(socket.AF_INET, ("127.0.0.1", port))]

    monkeypatch.setattr(client_module, "resolve", resolve)
    async with serving(answer_all, tls=serving_tls(certificate)) as url:
        port = port_of(url)
        async with WebProxy(port) as proxy:
            route = Route(proxy=proxy.url if way == "tunnel" else None, tls=trusting(certificate))
            client = Client(headers={})
            assert await fetched(client, f"https://model.test.:{port}/", route=route) == b"hello"
            await client.close()


async def test_no_trust_is_built_before_the_first_encrypted_address() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.read(1) == b"G":
            writer.write(HELLO)

    opening.default_trust.cache_clear()
    async with serving(serve) as url:
        client = Client(headers={})
        assert await fetched(client, url) == b"hello"
        assert opening.default_trust.cache_info().currsize == 0
        with pytest.raises(ConnectError):
            await fetched(client, url.replace("http:", "https:"))
        assert opening.default_trust.cache_info().currsize == 1
        await client.close()


async def test_trust_that_is_built_needs_no_thread(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted = opening.default_trust()

    def refuse(*_: object) -> None:
        raise AssertionError("a thread")

    monkeypatch.setattr(asyncio, "to_thread", refuse)
    async with serving(answer_all, tls=serving_tls(certificate)) as url:
        client = Client(headers={})
        with pytest.raises(ConnectError):
            await fetched(client, url.replace("http:", "https:"))
        await client.close()
    assert opening.default_trust() is trusted


@together(
    ("in_file", "in_folder", "is_looked_up"),
    [
        ("a", ["a"], True),
        ("a", ["b", "a"], True),
        ("aa", ["a"], True),
        ("ab", ["a"], False),
        ("b", ["a"], False),
        ("b", ["ab"], False),
        ("", ["a"], False),
        ("a", [], False),
    ],
)
def test_certificates_of_this_machine_are_looked_up_in_a_folder_that_has_all_of_them(
    in_file: str,
    in_folder: list[str],
    is_looked_up: bool,
    certificate: Path,
    other_certificate: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = {"a": (certificate / "cert.pem").read_text()}
    texts["b"] = (other_certificate / "cert.pem").read_text()
    (tmp_path / "all.pem").write_text("# name\n".join(["", *(texts[each] for each in in_file)]))
    for number, names in enumerate(in_folder):
        text = "".join(texts[each] for each in names)
        (tmp_path / f"0a1b2c3d.{number}").write_text(text.replace("\n", "\r\n"))
    (tmp_path / "0a1b2c3d.9").symlink_to("nothing")
    none = ssl.get_default_verify_paths()
    paths = none._replace(cafile=str(tmp_path / "all.pem"), capath=str(tmp_path))
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: paths)
    opening.default_trust.cache_clear()
    trusted = opening.default_trust()
    opening.default_trust.cache_clear()
    assert (trusted.cert_store_stats()["x509_ca"] == 0) == is_looked_up
    assert trusted.verify_mode is ssl.CERT_REQUIRED
    assert trusted.check_hostname


# Cancellation


class CancelsItself:
    """Awaits a coroutine, and cancels its task where it waits for the n-th time."""

    def __init__(self, work: Coroutine[Any, Any, Any], at: int) -> None:
        self._work = work
        self._at = at
        self.waits = 0

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._work.__await__()
        try:
            waited = next(steps)
            while True:
                self.waits += 1
                if self.waits == self._at:
                    task = asyncio.current_task()
                    assert task is not None
                    task.cancel()
                try:
                    answer = yield waited
                except BaseException as error:  # noqa: BLE001 - passed on
                    waited = steps.throw(error)
                else:
                    waited = steps.send(answer)
        except StopIteration as done:
            return done.value


async def settled(sockets: int, tasks: int) -> None:
    """Wait until no more sockets are open, and no more tasks are left, than these."""
    async with asyncio.timeout(20):
        while open_sockets() > sockets or len(asyncio.all_tasks()) > tasks:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def use(url: str, route: Route, at: int) -> int:
    """Make two requests on one connection, cancelled at one place; 0 if they did not come there."""
    client = Client(headers={}, connect_s=20)

    async def requests() -> None:
        for _ in range(2):
            assert await fetched(client, url, method="POST", body=b"x", route=route) == b"hello"

    cancelled = CancelsItself(requests(), at)

    async def run() -> None:
        await cancelled

    task = asyncio.create_task(run())
    await asyncio.wait([task])
    assert task.cancelled() or task.exception() is None
    await client.close()
    return at if task.cancelled() else 0


@pytest.mark.parametrize("way", kept(["plain", "name", "tls", "proxy", "tunnel"], "name", "tunnel"))
async def test_a_request_that_is_cancelled_anywhere_leaves_nothing_open(
    way: str, certificate: Path
) -> None:
    is_encrypted = way in {"tls", "tunnel"}
    tls = serving_tls(certificate) if is_encrypted else None
    trust = trusting(certificate) if is_encrypted else None
    is_through_proxy = way in {"proxy", "tunnel"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        async with serving(answer_all, tls=tls) as url, WebProxy(port_of(url)) as proxy:
            await asyncio.sleep(0)
            route = Route(proxy=proxy.url if is_through_proxy else None, tls=trust)
            target = url.replace("127.0.0.1", "localhost") if way == "name" else url
            at = sockets = 0
            await use(target, route, 0)
            for at in range(1, 100):
                sockets = sockets or open_sockets()
                tasks = len(asyncio.all_tasks())
                if not await use(target, route, at):
                    break
                await settled(sockets, tasks)
            gc.collect()  # what was left unclosed or never awaited warns now
            assert 3 <= at < 100
