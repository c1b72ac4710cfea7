"""Servers on real sockets that send whatever bytes a test wants them to."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(serve: Serve, *, tls: ssl.SSLContext | None = None) -> AsyncGenerator[str]:
    """Serve each connection with a function, and give the address; connections end with it."""
    tasks: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await serve(reader, writer)
        finally:
            tasks.discard(task)
            writer.transport.abort()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=tls)
    try:
        port = server.sockets[0].getsockname()[1]
        yield f"http{'s' if tls else ''}://127.0.0.1:{port}"
    finally:
        server.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Return head and body of a request."""
    head = await reader.readuntil(b"\r\n\r\n")
    size = 0
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            size = int(line.partition(b":")[2])
    return head, await reader.readexactly(size)


def answering(*pieces: bytes, stays: bool = False) -> Serve:
    """Answer one request with these writes, and close the connection or let it be."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        if stays:
            await reader.read()
        else:
            writer.close()
            await writer.wait_closed()

    return serve


def open_sockets() -> int:
    """Return how many sockets this process has open."""
    count = 0
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            count += str(link.readlink()).startswith("socket:")
    return count
