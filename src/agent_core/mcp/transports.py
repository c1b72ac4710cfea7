"""Transports of messages to a server: the pipes of a child process, or HTTP.

The SDK has a transport for child processes; this one adds what a hostile or broken server makes
necessary: lines of bounded length, a standard error that never reaches the terminal, and
descendants that are gone when the context is left, however it is left. For HTTP the SDK's is used,
with bounded bodies. The SDK follows a redirect only within the server's origin.
"""

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    suppress,
)
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import anyio
import httpx2
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.sse import sse_client
from mcp.client.streamable_http import MCP_SESSION_ID, streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import (
    INTERNAL_ERROR,
    ContentBlock,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from pydantic import TypeAdapter, ValidationError

from agent_core.mcp.config import HttpServer, StdioServer
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

Incoming = SessionMessage | Exception
Streams = tuple[Any, Any]


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


def parse_message(line: bytes) -> JSONRPCMessage | None:
    """Parse a message; None if it is not one, because many servers print a greeting."""
    with suppress(ValidationError):
        return jsonrpc_message_adapter.validate_json(line, by_name=False)
    try:
        loose: Any = json.loads(line.decode(errors="replace"))
    except (ValueError, RecursionError):
        return None
    # A half surrogate or a broken byte in a tool's text must not lose the answer.
    mended = json.dumps(loose, ensure_ascii=False).encode(errors="replace")
    with suppress(ValidationError):
        return jsonrpc_message_adapter.validate_json(mended, by_name=False)
    match loose:
        case {"id": bool()}:  # an integer to Python, but not a valid id
            return None
        case {"id": int() | str() as request_id, **rest} if "method" not in rest:
            # A broken answer fails its call at once, instead of letting it wait for another one.
            failure = ErrorData(code=INTERNAL_ERROR, message="its answer is not a JSON-RPC message")
            return JSONRPCError(jsonrpc="2.0", id=request_id, error=failure)
        case _:
            return None


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
        on_refusal: gets the status of every response that is an error, and whether it answers a
            message of a session that the server had agreed to.
    """

    async def watch(response: httpx2.Response) -> None:
        if response.is_error:
            request = response.request
            in_session = request.method == "POST" and MCP_SESSION_ID in request.headers
            on_refusal(response.status_code, in_session)

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
            event_hooks={"request": [_name_span], "response": [watch, _bound]},
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
    is_events = response.headers.get("content-type", "").lower().startswith("text/event-stream")
    if not is_events and isinstance(response.stream, httpx2.AsyncByteStream):
        response.stream = _Bounded(response.stream)


class _Bounded(httpx2.AsyncByteStream):
    """The bytes of another stream, up to the limit."""

    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        total = 0
        async for chunk in self._stream:
            total += len(chunk)
            if total > MAX_MESSAGE_BYTES:
                raise BodyTooLargeError(f"the answer is larger than {MAX_MESSAGE_BYTES:,} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


_HINTS = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")


@asynccontextmanager
async def with_readable_messages(
    transport: AbstractAsyncContextManager[Streams],
) -> AsyncGenerator[Streams]:
    """Open the same transport, with messages changed so that the SDK reads them correctly.

    In a list of tools the hints become booleans or are dropped: the SDK takes `"true"`, `1` or
    `"yes"` for true. `readOnlyHint` lowers a guard, so only JSON's true counts; `openWorldHint`
    raises one, so any value but false or null counts. One hint of another type must not cost the
    whole list of tools. Output schemas are removed, because the SDK discards the result of a call
    that does not fit one.

    In the result of a call, parts become text if the SDK would refuse them and the result with
    them.
    """
    async with transport as (incoming, outgoing):
        yield _ReadableMessages(incoming), outgoing


class _ReadableMessages:
    """The incoming messages of a transport, in a form that the SDK reads."""

    def __init__(self, source: Any) -> None:
        self._source = source

    def __getattr__(self, name: str) -> Any:  # `aclose`, and `last_context` where there is one
        return getattr(self._source, name)

    async def receive(self) -> Incoming:
        return _plain(await self._source.receive())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Incoming:
        return _plain(await self._source.__anext__())

    async def __aenter__(self) -> Self:
        await self._source.__aenter__()
        return self

    async def __aexit__(self, *failure: Any) -> bool | None:
        return await self._source.__aexit__(*failure)


def _plain(item: Incoming) -> Incoming:
    """Return the message with clear hints, or with a readable result of a call."""
    match item:
        case SessionMessage(message=JSONRPCResponse(result=result)) if not _OF_A_CALL.isdisjoint(
            result
        ):
            _make_readable(result)
        case SessionMessage(message=JSONRPCResponse(result={"tools": [*tools]})):
            for tool in tools:
                _forget_output_schema(tool)
                match tool:
                    case {"annotations": dict()}:
                        given: Mapping[str, Any] = tool["annotations"]
                        plain = {n: given[n] for n in _HINTS if isinstance(given.get(n), bool)}
                        is_unclear = "destructiveHint" not in plain
                        if is_unclear and given.get("destructiveHint") is not None:
                            plain["readOnlyHint"] = False  # an unclear hint contradicts it
                        if given.get("openWorldHint") not in (None, False):
                            plain["openWorldHint"] = True  # it raises a guard
                        title = given.get("title")
                        has_title = isinstance(title, str)
                        tool["annotations"] = plain | ({"title": title} if has_title else {})
                    case {"annotations": _}:
                        del tool["annotations"]
                    case _:
                        pass
        case _:
            pass
    return item


def _forget_output_schema(tool: Any) -> None:
    if isinstance(tool, dict):
        cast("dict[str, Any]", tool).pop("outputSchema", None)


_OF_A_CALL = frozenset({"content", "structuredContent", "toolResult"})
"""Fields that only the result of a call has."""


def _make_readable(result: dict[str, Any]) -> None:
    """Keep the readable parts of the result of a call, because the call has been made.

    A result without a readable part stays unchanged, and is refused.
    """
    given = result.get("content", [])
    parts = cast("list[Any]", given if isinstance(given, list) else [given])
    is_modern = "resultType" in result
    if not is_modern and not isinstance(result.get("structuredContent", {}), dict):
        parts = [*parts, _text_part(result.pop("structuredContent"))]
    if "toolResult" in result:  # from the first protocol version
        parts = [*parts, _text_part(result.pop("toolResult"))]
    read = [_read_part(part) for part in parts]
    if read and not any(read) and not result.get("structuredContent"):
        return
    unreadable = {"type": "text", "text": "[a part that cannot be read]"}
    result["content"] = [part or unreadable for part in read]
    result.setdefault("resultType", "complete")
    if not isinstance(result.get("isError", False), bool):
        result["isError"] = bool(result["isError"])
    if not isinstance(result.get("_meta", {}), dict):
        del result["_meta"]


def _read_part(part: Any) -> dict[str, Any] | None:
    """Return a part in the protocol's form, or as text; None if it is empty."""
    if isinstance(part, dict):
        fields = cast("dict[str, Any]", part)
        plain = {key: value for key, value in fields.items() if key not in {"annotations", "_meta"}}
        for candidate in (fields, plain):
            with suppress(ValidationError):
                _part_adapter().validate_python(candidate, by_name=False)
                return candidate
        if not plain.keys() - {"type"}:
            return None
    elif isinstance(part, bool | int | float) or part is None:
        return None
    return _text_part(part)


def _text_part(value: Any) -> dict[str, Any]:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return {"type": "text", "text": text}


@cache
def _part_adapter() -> TypeAdapter[ContentBlock]:
    return TypeAdapter(ContentBlock)
