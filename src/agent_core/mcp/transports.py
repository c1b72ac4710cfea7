"""Transports of messages to a server: the pipes of a child process, or HTTP.

The SDK has a transport for child processes; this one adds what a hostile or broken server makes
necessary: lines of bounded length, a standard error that never reaches the terminal, and
descendants that are gone when the context is left, however it is left. For HTTP the SDK's is used,
with bounded bodies. The SDK follows a redirect only within the server's origin.
"""

import asyncio
import re
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import httpx2
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.sse import sse_client
from mcp.client.streamable_http import MCP_SESSION_ID, streamable_http_client
from mcp.shared.message import SessionMessage
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from agent_core.mcp.config import HttpServer, StdioServer
from agent_core.mcp.readable import Incoming, Streams, parse_message, readable_body
from agent_core.mcp.route import RoutedTransport
from agent_core.process import Child, Command, Launcher, find_program, open_child
from agent_core.process.starts import CANNOT_RUN, explain_exit

if TYPE_CHECKING:
    from agent_core.process.sandbox import Sandbox, SandboxPlan

MAX_MESSAGE_BYTES = 8 * 2**20
"""Limit of one line, one answer or one event; base64 images of six megabytes fit."""

MAX_LOG_LINE_BYTES = 4096
LOG_TAIL_LINES = 20

EXIT_SECONDS = 1.0
"""Seconds that a server may take to end by itself after its standard input was closed."""

TERMINATE_SECONDS = 1.0
"""Seconds that its process group may take to end after SIGTERM."""

CONNECT_SECONDS = 30.0
_LOG_SECONDS = 0.2

_TRACE_CONTEXT = TraceContextTextMapPropagator()


class LineTooLongError(Exception):
    """The server sent a line beyond `MAX_MESSAGE_BYTES`; what follows cannot be trusted."""


class StdioTransport:
    """One child process; `streams()` may be entered once.

    Args:
        server: the program to start.
        env: the server's whole environment.
        launcher: starts it.
        sandbox: confines it; None for no confinement.
        log: gets each line of the server's standard error, shortened; must not block.
        on_end: called once when the server's output has ended, for whatever reason.
    """

    def __init__(
        self,
        server: StdioServer,
        env: Mapping[str, str],
        *,
        launcher: Launcher,
        sandbox: "Sandbox | None" = None,
        log: Callable[[str], None],
        on_end: Callable[[], None],
    ) -> None:
        self._server = server
        self._env = env
        self._launcher = launcher
        self._sandbox = sandbox
        self._plan: SandboxPlan | None = None
        self._log = log
        self._on_end = on_end
        self._tail: deque[str] = deque(maxlen=LOG_TAIL_LINES)
        self._log_ended = asyncio.Event()
        self._child: Child | None = None
        self._fault: str | None = None

    @property
    def end_report(self) -> str:
        """Describe how the process ended, with the last line of its standard error."""
        code = self._child.exit_code if self._child else None
        ended = [self._fault] if self._fault else [] if code is None else [f"exit code {code}"]
        report = [*ended, *list(self._tail)[-1:]]
        if code in CANNOT_RUN:  # a shell says that it was not found
            argv, cwd = (self._server.command, *self._server.args), self._server.cwd or Path.home()
            why = explain_exit(code, argv, "\n".join(self._tail), cwd=cwd, env=self._env)
            report += [why] if why else []
        if self._plan is not None:
            from agent_core.process.denials import find_denial  # noqa: PLC0415 - in a sandbox only

            said, cwd = "\n".join(self._tail), Path(self._server.cwd or Path.home())
            denial = find_denial(said, self._plan.confinement, cwd=cwd)
            kept = denial.named(len(denial.paths)) if denial else []
            report += [f"blocked by the sandbox: {', '.join(kept)}"] if kept else []
        return ": ".join(report)

    @asynccontextmanager
    async def streams(self) -> AsyncGenerator[Streams]:
        """Start the process; on leaving, it and all its descendants are stopped.

        Raises:
            ToolError: it cannot be started, or not be confined.
        """
        cwd = Path(self._server.cwd or Path.home())
        program = find_program(self._server.command, cwd=cwd, env=self._env)
        argv = [str(program), *self._server.args]
        command = Command(argv=argv, cwd=cwd, env=self._env, is_fed=True)
        async with AsyncExitStack() as stack:
            if self._sandbox is not None:
                self._plan = await asyncio.to_thread(self._sandbox.plan, "own")
                command = await stack.enter_async_context(self._plan.confine(command))
            child = await stack.enter_async_context(open_child(command, launcher=self._launcher))
            self._child = child
            sends, incoming = anyio.create_memory_object_stream[Incoming](0)
            outgoing, receives = anyio.create_memory_object_stream[SessionMessage](0)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._read, child.stdout, sends)
                tasks.start_soon(self._keep_log, child.stderr)
                tasks.start_soon(_write, child, receives)
                try:
                    yield incoming, outgoing
                finally:
                    # The readers still run: a server that is flushing must not block on its pipe.
                    with anyio.CancelScope(shield=True):
                        child.close_stdin()
                        with anyio.move_on_after(EXIT_SECONDS):
                            await child.exited()
                        await child.stop(TERMINATE_SECONDS)
                        with anyio.move_on_after(_LOG_SECONDS):
                            await self._log_ended.wait()
                    tasks.cancel_scope.cancel()
                    incoming.close()
                    outgoing.close()

    async def _read(
        self, stdout: AsyncIterator[bytes], messages: MemoryObjectSendStream[Incoming]
    ) -> None:
        async with messages:
            is_open = True
            try:
                async for line in _lines(stdout):
                    message = parse_message(line) if is_open and line.strip() else None
                    if message is None:
                        if fault := _find_spelling_fault(line):
                            self._fault = fault
                            break
                        continue
                    try:
                        await messages.send(SessionMessage(message))
                    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                        is_open = False  # the session is over; but the server must not block
            except LineTooLongError as error:
                self._fault = str(error)
            except OSError as error:
                self._fault = f"its output broke: {error}"
            finally:
                self._on_end()  # before the stream ends, which wakes the callers

    async def _keep_log(self, stderr: AsyncIterator[bytes]) -> None:
        with suppress(OSError):
            async for line in _lines(stderr, cut=MAX_LOG_LINE_BYTES):
                if text := line.decode(errors="replace").rstrip():
                    self._tail.append(text)
                    self._log(text)
        self._log_ended.set()


def _find_spelling_fault(line: bytes) -> str | None:
    """Return why the messages of a server cannot be read, if this line shows it."""
    if line.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        return "its output begins with a byte order mark; it must be UTF-8 without one"
    if line.strip() in (b"{", b"["):
        return "its output is JSON over several lines; a message must be on one line"
    return None


async def _write(child: Child, messages: MemoryObjectReceiveStream[SessionMessage]) -> None:
    async with messages:
        async for item in messages:
            text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
            try:
                await child.write(f"{text}\n".encode())
            except OSError:
                return  # closing our end of the stream fails whatever is sent next


async def _lines(chunks: AsyncIterator[bytes], *, cut: int | None = None) -> AsyncIterator[bytes]:
    """Yield whole lines in bounded memory, cut to `cut` bytes if it is given.

    Raises:
        LineTooLongError: a line is longer than `MAX_MESSAGE_BYTES`, without a `cut`.
    """
    line = bytearray()
    async for chunk in chunks:
        parts = chunk.split(b"\n")
        for number, part in enumerate(parts, 1):
            line.extend(part if cut is None else part[: max(cut - len(line), 0)])
            if len(line) > MAX_MESSAGE_BYTES:
                raise LineTooLongError(f"it sent a line of more than {MAX_MESSAGE_BYTES:,} bytes")
            if number < len(parts):
                yield bytes(line)
                line.clear()
    if line:
        yield bytes(line)


class BodyTooLargeError(httpx2.StreamError):
    """A response is larger than `MAX_MESSAGE_BYTES`, or compressed so that its size is unknown."""


@asynccontextmanager
async def http_streams(
    server: HttpServer,
    *,
    authorization: httpx2.Auth | None,
    on_refusal: Callable[[int, bool], None],
) -> AsyncGenerator[Streams]:
    """Open the SDK's transport for this server.

    Args:
        server: the address of the server and the headers for it.
        authorization: signs requests, for programs that log in on a user's behalf.
        on_refusal: gets the status of every response that is an error, and whether it says that
            the server does not know the session.
    """

    async def watch(response: httpx2.Response) -> None:
        if response.is_error:
            request = response.request
            in_session = request.method == "POST" and MCP_SESSION_ID in request.headers
            is_unknown = in_session and response.status_code == HTTP_NOT_FOUND
            if in_session and response.status_code == HTTP_BAD_REQUEST:
                is_unknown = re.search(_ABOUT_THE_SESSION, await response.aread()) is not None
            on_refusal(response.status_code, is_unknown)

    def client(
        headers: dict[str, str] | None = None,
        timeout: httpx2.Timeout | None = None,  # noqa: ARG001 - the SDK's would cut long calls
        auth: httpx2.Auth | None = None,
    ) -> httpx2.AsyncClient:
        # A stream may be silent as long as it likes: the caller of a tool bounds it. Compressed
        # bodies are not asked for, because their size is known only when it is too late.
        return httpx2.AsyncClient(
            headers={**(headers or {}), **server.headers, "Accept-Encoding": "identity"},
            auth=auth or authorization,
            timeout=httpx2.Timeout(CONNECT_SECONDS, read=None),
            transport=RoutedTransport(),
            event_hooks={"request": [_name_span], "response": [_bound, watch]},
        )

    if server.transport == "sse":
        async with sse_client(server.url, httpx_client_factory=client) as streams:
            yield streams
        return
    async with (
        client() as opened,
        streamable_http_client(
            server.url, http_client=opened, max_sse_event_size=MAX_MESSAGE_BYTES
        ) as streams,
    ):
        yield streams


async def _name_span(request: httpx2.Request) -> None:
    """Add the trace context to the headers, as `_meta` has it in messages."""
    _TRACE_CONTEXT.inject(request.headers)


async def _bound(response: httpx2.Response) -> None:
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise BodyTooLargeError("the server compressed its answer although it was asked not to")
    kind = response.headers.get("content-type", "").lower().partition(";")[0].strip()
    is_answer = response.request.method == "POST" and response.status_code == HTTP_OK
    if is_answer and kind not in _READ_BY_THE_SDK:
        response.headers["content-type"] = kind = "application/json"  # it is hardly anything else
    if isinstance(response.stream, httpx2.AsyncByteStream):
        if kind == "text/event-stream":
            response.stream = _Events(response.stream)
        else:
            response.stream = _Bounded(response.stream, is_message=kind == "application/json")


HTTP_OK = 200
HTTP_BAD_REQUEST = 400
HTTP_NOT_FOUND = 404
_ABOUT_THE_SESSION = rb"(?i)session|not initialized"
_READ_BY_THE_SDK = frozenset({"application/json", "text/event-stream", "text/html"})


class _Bounded(httpx2.AsyncByteStream):
    """The bytes of another stream, up to the limit; one message is changed so that it is read."""

    def __init__(self, stream: httpx2.AsyncByteStream, *, is_message: bool) -> None:
        self._stream = stream
        self._is_message = is_message

    async def __aiter__(self) -> AsyncIterator[bytes]:
        body = bytearray()
        total = 0
        async for chunk in self._stream:
            total += len(chunk)
            if total > MAX_MESSAGE_BYTES:
                raise BodyTooLargeError(f"the answer is larger than {MAX_MESSAGE_BYTES:,} bytes")
            if self._is_message:
                body.extend(chunk)
            else:
                yield chunk
        if self._is_message:
            yield readable_body(bytes(body))

    async def aclose(self) -> None:
        await self._stream.aclose()


class _Events(httpx2.AsyncByteStream):
    """The events of another stream, whose messages are changed so that they are read.

    The SDK limits the size of an event; here a line beyond that limit is only passed on.
    """

    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        rest = bytearray()
        async for chunk in self._stream:
            rest.extend(chunk)
            end = rest.rfind(b"\n") + 1
            if end or len(rest) > MAX_MESSAGE_BYTES:
                end = end or len(rest)
                yield b"".join(map(_readable_line, bytes(rest[:end]).splitlines(keepends=True)))
                del rest[:end]
        yield bytes(rest)

    async def aclose(self) -> None:
        await self._stream.aclose()


def _readable_line(line: bytes) -> bytes:
    """Return a line of an event; one that holds a whole message is changed if need be."""
    if line.startswith(b"data:") and (text := line[5:].strip()).startswith((b"{", b"[")):
        readable = readable_body(text)
        return line if readable is text else b"data: " + readable + b"\n"
    return line
