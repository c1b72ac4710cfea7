"""Runs a server as a child process and carries messages over its pipes.

The SDK has such a transport; this one adds what a hostile or broken server makes necessary: lines
of bounded length, a standard error that never reaches the terminal, an environment that is an
allowlist, and descendants that are gone when the context is left, however it is left.
"""

import asyncio
import errno
import json
import os
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import (
    INTERNAL_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError

from agent_core.errors import ToolError
from agent_core.process import Launcher, Program, find_program

MAX_MESSAGE_BYTES = 8 * 2**20
"""One line from a server; base64 images of six megabytes pass, bombs do not."""

MAX_LOG_LINE_BYTES = 4096
LOG_TAIL_LINES = 20

EXIT_SECONDS = 1.0
"""How long a server may take to end by itself after its standard input was closed."""

TERMINATE_SECONDS = 1.0
"""How long its group may take to end after SIGTERM."""

_LOG_SECONDS = 0.2
_CHUNK_BYTES = 65_536

Incoming = SessionMessage | Exception
Streams = tuple[MemoryObjectReceiveStream[Incoming], MemoryObjectSendStream[SessionMessage]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What is started, where, and everything it can see of our environment."""

    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str]


class LineTooLongError(Exception):
    """The server sent a line beyond `MAX_MESSAGE_BYTES`; what follows cannot be trusted."""


class StdioTransport:
    """One child process; `streams()` may be entered once.

    Args:
        launch: what to start.
        launcher: starts it.
        log: gets each line of the server's standard error, shortened; must not block.
        on_end: called once when the server's output has ended, for whatever reason.
    """

    def __init__(
        self,
        launch: Launch,
        *,
        launcher: Launcher,
        log: Callable[[str], None],
        on_end: Callable[[], None],
    ) -> None:
        self._launch = launch
        self._launcher = launcher
        self._log = log
        self._on_end = on_end
        self._tail: deque[str] = deque(maxlen=LOG_TAIL_LINES)
        self._log_ended = asyncio.Event()
        self._program: Program | None = None
        self.fault: str | None = None

    @property
    def last_words(self) -> str:
        """How the process ended and the last line it wrote to its standard error."""
        code = self._program.exit_code if self._program else None
        ended = [self.fault] if self.fault else [] if code is None else [f"exit code {code}"]
        return ": ".join([*ended, *list(self._tail)[-1:]])

    @asynccontextmanager
    async def streams(self) -> AsyncGenerator[Streams]:
        """Start the process; on leaving, it and all its descendants are stopped.

        Raises:
            OSError: it cannot be started.
        """
        async with _started(self._launch, self._launcher) as child:
            self._program = child.program
            sends, incoming = anyio.create_memory_object_stream[Incoming](0)
            outgoing, receives = anyio.create_memory_object_stream[SessionMessage](0)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._read, child.stdout, sends)
                tasks.start_soon(self._keep_log, child.stderr)
                tasks.start_soon(_write, child.stdin, receives)
                try:
                    yield incoming, outgoing
                finally:
                    # The readers still run: a server that is flushing must not block on its pipe.
                    with anyio.CancelScope(shield=True):
                        await child.stop()
                        with anyio.move_on_after(_LOG_SECONDS):
                            await self._log_ended.wait()
                    tasks.cancel_scope.cancel()
                    for stream in (incoming, outgoing):
                        stream.close()

    async def _read(
        self, stdout: asyncio.StreamReader, messages: MemoryObjectSendStream[Incoming]
    ) -> None:
        async with messages:
            try:
                await self._deliver(stdout, messages)
            except LineTooLongError as error:
                self.fault = str(error)
            except OSError as error:
                self.fault = f"its output broke: {error}"
            finally:
                self._on_end()  # first the fact, then the end of the stream that wakes the callers

    async def _deliver(
        self, stdout: asyncio.StreamReader, messages: MemoryObjectSendStream[Incoming]
    ) -> None:
        is_heard = True
        async for line in _lines(stdout):
            message = _parse(line) if is_heard and line.strip() else None
            if message is None:
                continue
            try:
                await messages.send(SessionMessage(message))
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                is_heard = False  # the session is over; read on, so that nobody blocks

    async def _keep_log(self, stderr: asyncio.StreamReader) -> None:
        with suppress(OSError):
            async for line in _lines(stderr, cut=MAX_LOG_LINE_BYTES):
                if text := line.decode(errors="replace").rstrip():
                    self._tail.append(text)
                    self._log(text)
        self._log_ended.set()


async def _write(
    stdin: asyncio.StreamWriter, messages: MemoryObjectReceiveStream[SessionMessage]
) -> None:
    async with messages:
        async for item in messages:
            stdin.write(item.message.model_dump_json(by_alias=True, exclude_unset=True).encode())
            stdin.write(b"\n")
            try:
                await stdin.drain()
            except OSError:
                return  # closing our end of the stream fails whoever sends next


async def _lines(reader: asyncio.StreamReader, *, cut: int | None = None) -> AsyncIterator[bytes]:
    """Whole lines in bounded memory; what is beyond `cut` is left out.

    Raises:
        LineTooLongError: a line beyond `MAX_MESSAGE_BYTES` where nothing is to be cut.
    """
    line = bytearray()

    def add(part: bytes) -> None:
        line.extend(part if cut is None else part[: max(cut - len(line), 0)])
        if len(line) > MAX_MESSAGE_BYTES:
            raise LineTooLongError(f"it sent a line of more than {MAX_MESSAGE_BYTES:,} bytes")

    while chunk := await reader.read(_CHUNK_BYTES):
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            add(end)
            yield bytes(line)
            line.clear()
        add(rest)
    if line:
        yield bytes(line)


def _parse(line: bytes) -> JSONRPCMessage | None:
    """The message, or nothing: many servers print a greeting where only messages belong."""
    try:
        return jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValidationError:
        pass
    try:
        loose: Any = json.loads(line.decode(errors="replace"))
    except (ValueError, RecursionError):
        return None
    # A half surrogate or a broken byte in a tool's text is no reason to lose the answer.
    mended = json.dumps(loose, ensure_ascii=False).encode(errors="replace")
    with suppress(ValidationError):
        return jsonrpc_message_adapter.validate_json(mended, by_name=False)
    return _as_failure(loose)


def _as_failure(loose: Any) -> JSONRPCError | None:
    """A broken answer fails its call at once, instead of letting it wait for another one."""
    match loose:
        case {"id": bool()}:  # an integer to Python, and no id
            return None
        case {"id": int() | str() as request_id, **rest} if "method" not in rest:
            failure = ErrorData(code=INTERNAL_ERROR, message="its answer is not a JSON-RPC message")
            return JSONRPCError(jsonrpc="2.0", id=request_id, error=failure)
        case _:
            return None


class _Child:
    """A running server, and our ends of its pipes."""

    def __init__(
        self,
        program: Program,
        stdin: asyncio.StreamWriter,
        stdout: asyncio.StreamReader,
        stderr: asyncio.StreamReader,
    ) -> None:
        self.program = program
        self.stdin = stdin
        self.stdout = stdout
        self.stderr = stderr

    async def stop(self) -> None:
        """Ask by closing its input, then by SIGTERM; in the end nothing that it started is left."""
        try:
            self.stdin.close()
            if not await self._ends_within(EXIT_SECONDS):
                self.program.terminate()
                await self._ends_within(TERMINATE_SECONDS)
        finally:
            await self.program.kill()

    async def _ends_within(self, seconds: float) -> bool:
        with anyio.move_on_after(seconds):
            await self.program.exited()
        return self.program.exit_code is not None


@asynccontextmanager
async def _started(launch: Launch, launcher: Launcher) -> AsyncGenerator[_Child]:
    with ExitStack() as ours:
        with ExitStack() as theirs:
            stdin, stdin_fd = await _write_pipe(ours, theirs)
            stdout, stdout_fd = await _read_pipe(ours, theirs)
            stderr, stderr_fd = await _read_pipe(ours, theirs)
            program = launcher.start(
                _argv(launch),
                cwd=launch.cwd,
                env=launch.env,
                streams=(stdin_fd, stdout_fd, stderr_fd),
            )
        ours.callback(program.close)
        try:
            await program.started()
            yield _Child(program, stdin, stdout, stderr)
        finally:
            await program.kill()


def _argv(launch: Launch) -> list[str]:
    """The arguments, with the program looked up in the environment it will have.

    Raises:
        FileNotFoundError: there is no such program.
    """
    try:
        program = find_program(launch.argv[0], cwd=launch.cwd, env=launch.env)
    except ToolError as error:
        raise FileNotFoundError(errno.ENOENT, error.message) from error
    return [str(program), *launch.argv[1:]]


async def _read_pipe(ours: ExitStack, theirs: ExitStack) -> tuple[asyncio.StreamReader, int]:
    read_fd, write_fd = os.pipe()
    theirs.callback(os.close, write_fd)
    pipe = ours.enter_context(os.fdopen(read_fd, "rb", 0))
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    ours.callback(transport.close)
    return reader, write_fd


async def _write_pipe(ours: ExitStack, theirs: ExitStack) -> tuple[asyncio.StreamWriter, int]:
    read_fd, write_fd = os.pipe()
    theirs.callback(os.close, read_fd)
    pipe = ours.enter_context(os.fdopen(write_fd, "wb", 0))
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    ours.callback(_let_go, transport)
    return asyncio.StreamWriter(transport, protocol, reader, loop), read_fd


def _let_go(transport: asyncio.WriteTransport) -> None:
    if transport.get_write_buffer_size():
        transport.abort()  # what a deaf server has not read by now is not waited for
    else:
        transport.close()
