"""A scripted model service on a real socket. It speaks the protocols of `Protocol`.

    async with ModelServer([calls("code.read_file", path="a.txt"), "It says hello."]) as server:
        config = ModelConfig(provider="openai", name="m", base_url=server.base_url("openai"))
        ...
        assert server.requests[0].body["model"] == "m"
        server.assert_complete()

Questions about models (`GET /v1/models`, `GET /props`, `POST /api/show`) are in `questions`. They
are answered by `facts`, by path, or with 404, and take no reply but a `Status(200)` that is next.

Each request takes the next reply, whatever the protocol; a function instead of the list answers
every request (`def answer(asked: Received) -> Reply`), and may be one of the replies as well. What
can be replied:

* what `agent_core.providers.scripted` knows: text, `Says`, `Calls`, `Pauses`, `Hangs`, `Fails` (an
  HTTP error of the fitting status; an error event inside the stream when it has text);
* `Status(429, headers={"Retry-After": "1"})`: an HTTP answer that is no stream;
* `Sends(reply, ...)`: a reply, or literal body bytes, sent in an unusual way: in pieces of n bytes,
  slowly, compressed, cut off at a byte, ended by a close or a reset, with other headers;
* `Silence()`: the request is read and never answered.

`with ModelServer.in_thread([...]) as server:` runs it in a thread, for code that starts processes.
`server.add(...)` appends replies while it runs. A request after the last reply is answered 500.
"""

import asyncio
import gzip
import socket
import ssl
import struct
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from types import TracebackType
from typing import Any, Self

import orjson

from agent_core.errors import ErrorCode
from agent_core.providers import scripted
from agent_core.providers.scripted import Calls, Fails, Hangs, Pauses, Says
from model_server_wire import STATUS, Protocol, error_body, events, no_tools, overflow


@dataclass(frozen=True, slots=True)
class Received:
    """One request as it came in. Header names are lower case."""

    protocol: Protocol
    path: str
    headers: Mapping[str, str]
    raw: bytes
    body: dict[str, Any]
    method: str = "POST"

    @property
    def text(self) -> str:
        """The whole body as text, to look for words in."""
        return self.raw.decode()


@dataclass(frozen=True, slots=True)
class Status:
    """An HTTP answer with a body of its own; by default an error in the words of the protocol."""

    status: int
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    content_type: str = "application/json"


class Ending(Enum):
    """How a connection goes on after the body."""

    COMPLETE = auto()
    CLOSE = auto()
    RESET = auto()
    HANG = auto()


@dataclass(frozen=True, slots=True)
class Sends:
    """A reply with something done to its bytes.

    `piece`: bytes per write, else one event per write. `cut`: only so many bytes of the body.
    `pause_s`: between writes. `chunked=False` and no length: the body ends with the connection.
    """

    reply: str | Says | Calls | Fails | Hangs | bytes | Sequence[bytes]
    piece: int | None = None
    cut: int | None = None
    ending: Ending = Ending.COMPLETE
    pause_s: float = 0.0
    gzipped: bool = False
    chunked: bool = True
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    content_type: str | None = None


@dataclass(frozen=True, slots=True)
class Silence:
    """The request is read and never answered."""


def sse(*chunks: Any) -> bytes:
    """Return JSON values as the server-sent events of a body."""
    return b"".join(b"data: " + orjson.dumps(chunk) + b"\n\n" for chunk in chunks)


_QUESTIONS = frozenset({"/api/show"})
"""Paths of questions that are no `GET`."""

Reply = str | Says | Calls | Fails | Hangs | Pauses | Status | Sends | Silence
Answer = Callable[[Received], Reply]


class ModelServer:
    """The service. `url` is known once it runs; `requests` holds what came in, oldest first."""

    def __init__(
        self,
        replies: Sequence[Reply | Answer] | Answer = (),
        *,
        tls: ssl.SSLContext | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self._tls = tls
        self.facts: dict[str, Any] = dict(facts or {})
        self.questions: list[Received] = []
        self.requests: list[Received] = []
        self.requested = asyncio.Event()
        """Set by the first request."""
        self.disconnected = asyncio.Event()
        """Set when a client hangs up before its answer is complete."""
        self.disconnects = 0
        """How often that happened."""
        self.connections = 0
        """Connections accepted so far."""
        self._answer = replies if callable(replies) else None
        self._replies: list[Reply | Answer] = [] if callable(replies) else list(replies)
        self._played = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._port = 0
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"http{'s' if self._tls else ''}://127.0.0.1:{self._port}"

    def base_url(self, protocol: str) -> str:
        """What `[model] base_url` must say for this protocol."""
        return f"{self.url}/v1" if protocol in {"openai", "responses"} else self.url

    def settings(self, protocol: str) -> dict[str, Any]:
        """What `[model]` must say for this protocol; `responses` is of provider `openai`."""
        named: dict[str, Any] = {"provider": protocol, "base_url": self.base_url(protocol)}
        return named | ({"provider": "openai", "api": protocol} if protocol == "responses" else {})

    def add(self, *replies: Reply | Answer) -> None:
        """More replies, after those there are."""
        self._replies.extend(replies)

    def assert_complete(self) -> None:
        """Fail unless every reply has been asked for."""
        left = self._replies[self._played :]
        assert not left, f"{len(left)} of {len(self._replies)} replies were not asked for: {left}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self._port, ssl=self._tls
        )
        self._port = self._server.sockets[0].getsockname()[1]
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

    @classmethod
    @contextmanager
    def in_thread(
        cls, replies: Sequence[Reply | Answer] | Answer = (), *, tls: ssl.SSLContext | None = None
    ) -> "Generator[ModelServer]":
        """The same in a thread of its own; it stops at the end of the block."""
        server = cls(replies, tls=tls)
        ready: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

        async def run() -> None:
            stop = asyncio.Event()
            async with server:
                ready.set_result((asyncio.get_running_loop(), stop))
                await stop.wait()

        thread = threading.Thread(target=asyncio.run, args=(run(),), daemon=True)
        thread.start()
        loop, stop = ready.result(timeout=10)
        try:
            yield server
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join(timeout=10)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        unread = b""
        try:
            while True:
                received = await _receive(reader, unread)
                if self._is_question(received):
                    self.questions.append(received)
                    writer.write(_plain(self._facts_at(received.path), received.protocol))
                    await writer.drain()
                    unread = b""
                    continue
                self.requests.append(received)
                self.requested.set()
                async with _watched(reader) as watch:
                    stays_open = await self._reply(received, writer)
                if not stays_open:
                    watch.stop()
                    break
                unread = await watch.unread()
        except asyncio.IncompleteReadError:
            pass  # the client has closed a connection it no longer needs
        except ConnectionError:
            self.disconnects += 1
            self.disconnected.set()
        except asyncio.CancelledError:
            pass  # the server stops; nobody else cancels this task
        finally:
            self._tasks.discard(task)
            writer.close()

    def _is_question(self, received: Received) -> bool:
        coming = next(iter(self._replies[self._played :]), None)
        is_next = isinstance(coming, Status) and coming.status == 200
        is_about_models = received.method == "GET" or received.path in _QUESTIONS
        return is_about_models and (received.path in self.facts or not is_next)

    def _facts_at(self, path: str) -> Status:
        known = self.facts.get(path)
        if isinstance(known, Status):
            return known
        return Status(404) if known is None else Status(200, orjson.dumps(known))

    async def _reply(self, received: Received, writer: asyncio.StreamWriter) -> bool:
        """Answer one request. Returns whether the connection stays open."""
        serial = len(self.requests)
        reply = self._next(received)
        while isinstance(reply, Pauses):
            await asyncio.sleep(reply.seconds)
            reply = self._next(received)
        if isinstance(reply, Fails) and not reply.text:
            reply = _refusal(reply, received.protocol)
        match reply:
            case Silence():
                await asyncio.Event().wait()
            case Status():
                writer.write(_plain(reply, received.protocol))
                await writer.drain()
            case Sends():
                return await _send(writer, reply, received.protocol, serial)
            case _:
                ending = Ending.HANG if isinstance(reply, Hangs) else Ending.COMPLETE
                return await _send(writer, Sends(reply, ending=ending), received.protocol, serial)
        return True

    def _next(self, received: Received) -> Reply:
        if self._answer is not None:
            return self._answer(received)
        if self._played == len(self._replies):
            text = f"the script has {len(self._replies)} replies and all are used"
            return Status(500, error_body(received.protocol, text))
        reply = self._replies[self._played]
        self._played += 1
        return reply(received) if callable(reply) else reply


class _Watch:
    """Reads one byte ahead while an answer is sent, to notice a client that has gone."""

    def __init__(self, reader: asyncio.StreamReader, answering: "asyncio.Task[None]") -> None:
        self.gone = False
        self._answering = answering
        self._read = asyncio.create_task(reader.read(1))
        self._read.add_done_callback(self._arrived)

    def _arrived(self, read: "asyncio.Task[bytes]") -> None:
        if not read.cancelled() and (read.exception() or not read.result()):
            self.gone = True
            self._answering.cancel()

    async def unread(self) -> bytes:
        """What was read of the next request."""
        return await self._read

    def stop(self) -> None:
        self._read.cancel()


@asynccontextmanager
async def _watched(reader: asyncio.StreamReader) -> AsyncGenerator[_Watch]:
    """Stop answering as soon as the client has gone."""
    answering = asyncio.current_task()
    assert answering is not None
    watch = _Watch(reader, answering)
    try:
        yield watch
    except (asyncio.CancelledError, ConnectionError) as error:
        watch.stop()
        if watch.gone or isinstance(error, ConnectionError):
            raise ConnectionResetError("the client has gone") from error
        raise


async def _receive(reader: asyncio.StreamReader, unread: bytes) -> Received:
    """The next request, of which `unread` has been read already."""
    head = (unread + await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    request_line, *lines = head.strip().split("\r\n")
    headers = {
        name.strip().lower(): value.strip()
        for name, _, value in (line.partition(":") for line in lines)
    }
    raw = await reader.readexactly(int(headers.get("content-length", "0")))
    method, path, *_ = request_line.split(" ")
    protocol = Protocol.of_path(path.partition("?")[0])
    return Received(protocol, path, headers, raw, orjson.loads(raw or b"{}"), method)


def _refusal(reply: Fails, protocol: Protocol) -> Status:
    match reply.code:
        case ErrorCode.PROMPT_TOO_LONG:
            body = overflow(protocol)
        case ErrorCode.UNSUPPORTED_CAPABILITY:
            body = no_tools(protocol)
        case _:
            body = error_body(protocol, reply.message)
    return Status(STATUS.get(reply.code, 500), body)


def _plain(reply: Status, protocol: Protocol) -> bytes:
    body = error_body(protocol, f"status {reply.status}") if reply.body is None else reply.body
    headers = {
        "Content-Type": reply.content_type,
        "Content-Length": str(len(body)),
        **reply.headers,
    }
    return _head(reply.status, headers) + body


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} Scripted", *(f"{name}: {text}" for name, text in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


async def _send(
    writer: asyncio.StreamWriter, sends: Sends, protocol: Protocol, serial: int
) -> bool:
    headers = {"Content-Type": sends.content_type or protocol.content_type, **sends.headers}
    if sends.gzipped:
        headers["Content-Encoding"] = "gzip"
    if sends.chunked:
        headers["Transfer-Encoding"] = "chunked"
    first = _head(sends.status, headers)
    for part in _parts(sends, protocol, serial):
        framed = b"%x\r\n%b\r\n" % (len(part), part) if sends.chunked else part
        writer.write(first + framed)
        await writer.drain()
        await asyncio.sleep(sends.pause_s)
        first = b""
    writer.write(first)
    return await _end(writer, sends)


async def _end(writer: asyncio.StreamWriter, sends: Sends) -> bool:
    match sends.ending:
        case Ending.COMPLETE:
            writer.write(b"0\r\n\r\n" if sends.chunked else b"")
            await writer.drain()
            return sends.chunked
        case Ending.HANG:
            await asyncio.Event().wait()
        case Ending.RESET:
            await writer.drain()
            await asyncio.sleep(0.01)  # what was written must leave before the reset does
            sock: socket.socket = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        case Ending.CLOSE:
            await writer.drain()
    return False


def _parts(sends: Sends, protocol: Protocol, serial: int) -> Iterator[bytes]:
    reply = sends.reply
    if isinstance(reply, bytes):
        parts = [reply]
    elif isinstance(reply, str):
        parts = events(protocol, scripted.Says(text=reply), serial=serial)
    elif isinstance(reply, Says | Calls | Fails | Hangs):
        parts = events(protocol, reply, serial=serial)
    else:
        parts = list(reply)
    if sends.piece is None and sends.cut is None and not sends.gzipped:
        yield from filter(None, parts)
        return
    body = b"".join(parts)
    body = gzip.compress(body) if sends.gzipped else body
    body = body[: sends.cut]
    size = sends.piece or max(1, len(body))
    for start in range(0, len(body), size):
        yield body[start : start + size]
