"""A TCP proxy before a database: it cuts, stalls and half-closes connections, and loses answers."""

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Self

_PIECE = 1 << 16
_TLS = 80_877_103
_RESET = struct.pack("ii", 1, 0)


@dataclass(eq=False)
class _Connection:
    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    is_mute: bool = False
    is_answered: bool = True
    unread: bytearray = field(default_factory=bytearray)
    has_begun: bool = False

    def count(self, data: bytes) -> int:
        """How many statements end in what a client of PostgreSQL sends."""
        self.unread += data
        count = 0
        while True:
            head = 1 if self.has_begun else 0  # what opens a connection has no letter in front
            if len(self.unread) < head + 4:
                return count
            size = head + int.from_bytes(self.unread[head : head + 4])
            if len(self.unread) < size:
                return count
            count += head and chr(self.unread[0]) in "EQ"
            asks_for_tls = not head and int.from_bytes(self.unread[4:8]) == _TLS
            self.has_begun = self.has_begun or not asks_for_tls
            del self.unread[:size]

    def reset(self) -> None:
        for writer in (self.client, self.server):
            sock: socket.socket = writer.get_extra_info("socket")
            with suppress(OSError):  # it is closed by now
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()


@dataclass
class Proxy:
    """Passes on what comes to `port`. Its methods may be called from any thread.

    A client that has sent what is `unanswered` gets no answer any more; what it sends arrives.
    """

    target: int
    port: int = 0
    passed: int = 0
    """Connections taken so far."""
    unanswered: bytes | None = None
    muted: int = 0
    """Connections on which it was sent."""
    asked: int = 0
    """Round trips: how often a client has gone on after an answer."""
    executed: int = 0
    """Statements that clients of PostgreSQL have sent; several in one text are one."""
    _loop: asyncio.AbstractEventLoop | None = None
    _open: set[_Connection] = field(default_factory=set[_Connection])
    _flows: asyncio.Event = field(default_factory=asyncio.Event)

    @classmethod
    @contextmanager
    def in_thread(cls, target: int) -> "Generator[Self]":
        """A proxy to a port of this machine; it stops at the end of the block."""
        proxy = cls(target)
        ready: Future[asyncio.Event] = Future()

        async def run() -> None:
            stop = asyncio.Event()
            proxy._loop = asyncio.get_running_loop()
            proxy._flows.set()
            server = await asyncio.start_server(proxy._serve, "127.0.0.1", 0)
            proxy.port = server.sockets[0].getsockname()[1]
            ready.set_result(stop)
            await stop.wait()
            server.close()
            proxy._reset_all()

        thread = threading.Thread(target=asyncio.run, args=(run(),), daemon=True)
        thread.start()
        stop = ready.result(timeout=10)
        try:
            yield proxy
        finally:
            proxy._call(stop.set)
            thread.join(timeout=10)

    def cut(self) -> None:
        """Reset every connection, in both directions."""
        self._call(self._reset_all)

    def half_close(self) -> None:
        """End the server's half of every connection: the client reads its end, and may write."""
        self._call(self._end_halves)

    def stall(self) -> None:
        """Keep all connections, old and new ones, and let nothing through until `flow`."""
        self._call(self._flows.clear)

    def flow(self) -> None:
        """Let everything through again."""
        self._call(self._flows.set)

    def _call(self, action: Callable[[], None]) -> None:
        assert self._loop is not None
        done: Future[None] = Future()
        self._loop.call_soon_threadsafe(lambda: done.set_result(action()))
        done.result(timeout=10)

    def _reset_all(self) -> None:
        for connection in tuple(self._open):
            connection.reset()

    def _end_halves(self) -> None:
        for connection in self._open:
            if not connection.client.is_closing():
                connection.client.write_eof()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.passed += 1
        try:
            answers, server = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:  # as if the server were not there
            writer.transport.abort()
            return
        connection = _Connection(writer, server)
        self._open.add(connection)
        try:
            with suppress(asyncio.CancelledError):  # the proxy stops
                await asyncio.gather(
                    self._pump(reader, server, connection), self._pump(answers, writer, connection)
                )
        finally:
            self._open.discard(connection)
            writer.close()
            server.close()

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, connection: _Connection
    ) -> None:
        is_answer = sink is connection.client
        with suppress(ConnectionError, RuntimeError):  # cut, or half of it is closed
            while data := await source.read(_PIECE):
                await self._flows.wait()
                self.asked += connection.is_answered and not is_answer
                self.executed += 0 if is_answer else connection.count(data)
                connection.is_answered = is_answer
                if is_answer and connection.is_mute:
                    continue
                if not is_answer and self.unanswered is not None and self.unanswered in data:
                    connection.is_mute = True
                    self.muted += 1
                sink.write(data)
                await sink.drain()
        if not sink.is_closing() and not (is_answer and connection.is_mute):
            with suppress(OSError, RuntimeError):
                sink.write_eof()
