"""The server beneath the console: clients that do not read, or come in crowds."""

import asyncio
import socket
import ssl
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from starlette.types import Receive, Scope, Send

from agent_core.cli.listening import listen
from agent_core.http import serving as module
from agent_core.http.serving import HttpConnection, Server, Tls


class Endless:
    """An application that sends without end, unless nobody takes it."""

    def __init__(self) -> None:
        self.sent = 0
        self.has_ended = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/body":
            await _left(receive)
        headers = [(b"content-type", b"text/plain")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if scope["path"] != "/endless":
            await send({"type": "http.response.body", "body": b"{}"})
            return
        left = asyncio.create_task(_left(receive))
        try:
            while not left.done():
                await send({"type": "http.response.body", "body": b"x" * 8192, "more_body": True})
                self.sent += 8192
                await asyncio.sleep(0)
        finally:
            self.has_ended.set()


async def test_what_a_server_sends_waits_for_no_acknowledgement() -> None:
    accepted = asyncio.get_running_loop().create_future()

    def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sock = writer.get_extra_info("socket")
        accepted.set_result(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    listening = listen("127.0.0.1", 0)
    async with await asyncio.start_server(connected, sock=listening):
        _, writer = await asyncio.open_connection(*listening.getsockname())
        assert await accepted
        writer.close()


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


@asynccontextmanager
async def running(application: Endless, tls: Tls | None = None) -> AsyncGenerator[int]:
    listening = listen("127.0.0.1", 0)
    server = Server(application, tls)
    work = asyncio.create_task(server.serve(sockets=[listening]))
    await server.listens.wait()
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        await asyncio.wait_for(work, 30)


async def request(port: int, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**12)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    await writer.drain()
    return reader, writer


async def test_a_client_that_does_not_read_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_READ_S", 0.3)
    application = Endless()
    async with running(application) as port:
        _, slow = await request(port, "/endless")
        await asyncio.wait_for(application.has_ended.wait(), 30)
        assert application.sent < 64 * 2**20  # what fits into the buffers, and no more
        reader, quick = await request(port, "/")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        slow.close()
        quick.close()


@pytest.mark.long
async def test_the_server_ends_while_a_client_does_not_read() -> None:
    application = Endless()
    async with running(application) as port:
        _, slow = await request(port, "/endless")
        while not application.sent:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.01)
    slow.close()


async def test_of_too_many_connections_the_longest_silent_one_makes_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(HttpConnection, "most", 3)
    async with running(Endless()) as port:
        busy = await request(port, "/endless")
        first = await asyncio.open_connection("127.0.0.1", port)
        assert (await busy[0].readline()).startswith(b"HTTP/1.1 200")
        second = await asyncio.open_connection("127.0.0.1", port)
        reader, writer = await request(port, "/")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        assert await _is_cut(first[0])
        assert not second[0].at_eof()
        for each in (busy[1], first[1], second[1], writer):
            each.close()


async def _is_cut(reader: asyncio.StreamReader) -> bool:
    try:
        return await asyncio.wait_for(reader.read(), 30) == b""
    except ConnectionError:
        return True


async def test_a_request_that_does_not_arrive_makes_room_where_none_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(HttpConnection, "most", 2)
    async with running(Endless()) as port:
        busy = await request(port, "/endless")
        assert (await busy[0].readline()).startswith(b"HTTP/1.1 200")
        half = await asyncio.open_connection("127.0.0.1", port)
        half[1].write(b"POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf")
        reader, writer = await request(port, "/")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        assert await _is_cut(half[0])
        assert (await busy[0].read(1000)) != b""
        for each in (busy[1], half[1], writer):
            each.close()


async def test_who_speaks_no_tls_to_a_server_with_tls_is_cut(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "_HEAD_S", 0.5)
    files = [str(tmp_path / name) for name in ("cert.pem", "key.pem")]
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=x"
    command = [*make.split(), "-out", files[0], "-keyout", files[1]]
    subprocess.run(command, stderr=subprocess.DEVNULL, check=True)  # noqa: S603, ASYNC221
    async with running(Endless(), Tls(*files)) as port:
        for said in (b"", b"\x16\x03\x01", b"GET / HTTP/1.1\r\n\r\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(said)
            assert await _is_cut(reader)
            writer.close()
        tls = ssl.create_default_context()
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()


async def test_where_every_connection_works_a_new_one_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(HttpConnection, "most", 1)
    async with running(Endless()) as port:
        busy = await request(port, "/endless")
        assert (await busy[0].readline()).startswith(b"HTTP/1.1 200")
        late = await asyncio.open_connection("127.0.0.1", port)
        assert await _is_cut(late[0])
        assert (await busy[0].read(1000)) != b""
        for each in (busy[1], late[1]):
            each.close()
