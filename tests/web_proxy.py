"""A real HTTP proxy on a real socket: CONNECT, and requests with a whole address.

    async with WebProxy(server.port) as proxy:
        ... ModelConfig(base_url="https://model.test/v1", proxy=proxy.url)
        assert proxy.asked == ["CONNECT model.test:443"]

Every host is taken for the one service behind the proxy, so that names need no resolver.
"""

import asyncio
import base64
from contextlib import suppress
from types import TracebackType
from typing import Self


class WebProxy:
    """The proxy; with `credentials` ("name:password") it refuses whoever does not have them."""

    def __init__(self, target_port: int, *, credentials: str = "", refuses: int = 0) -> None:
        self.asked: list[str] = []
        """Method and address of each request, or host of each tunnel."""
        self._target_port = target_port
        self._proof = base64.b64encode(credentials.encode()).decode() if credentials else ""
        self._refuses = refuses
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def host(self) -> str:
        """Host and port."""
        assert self._server is not None
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    @property
    def url(self) -> str:
        return f"http://{self.host}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            head = await reader.readuntil(b"\r\n\r\n")
            self.asked.append(" ".join(head.decode().split(" ")[:2]))
            status = self._refuses
            if self._proof and f"Basic {self._proof}".encode() not in head:
                status = 407
            if status:
                body = b"Content-Length: 0\r\nConnection: close\r\n\r\n"
                writer.write(b"HTTP/1.1 %d No Entry\r\n" % status + body)
                await writer.drain()
            else:
                await self._pass_on(head, reader, writer)
        writer.close()

    async def _pass_on(
        self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        service = await asyncio.open_connection("127.0.0.1", self._target_port)
        if head.startswith(b"CONNECT "):
            writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
        else:
            service[1].write(head)
        try:
            await asyncio.gather(_copy(reader, service[1]), _copy(service[0], writer))
        finally:
            service[1].close()


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while block := await source.read(65536):
            sink.write(block)
            await sink.drain()
    with suppress(OSError, NotImplementedError):
        sink.write_eof() if sink.can_write_eof() else sink.close()
