"""Child processes: from a program's name to its exit code and output.

Every child leads a session and a process group of its own and ends with all its descendants: see
`agent_core.process.supervisor`, which also ends them when this process is killed.
"""

import asyncio
import contextlib
import errno
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from agent_core.aio import finish_uncancelled
from agent_core.errors import ErrorCode, ToolError
from agent_core.opening import open_descriptor
from agent_core.process.capture import Capture, Output
from agent_core.process.launcher import Launcher
from agent_core.process.starts import check_folder, check_program_file, check_start, not_started
from agent_core.process.supervisor import (
    ENDED,
    FAILED,
    FIELD_END,
    GONE,
    LEFT,
    LENGTH_BYTES,
    STARTED,
    TERMINATE,
    message,
    renewal,
)
from agent_core.text import shortened

if TYPE_CHECKING:
    from agent_core.process.confinement import Confinement
    from agent_core.process.live import LiveOutput

GRACE_S = 0.5
"""Between asking a group to stop (TERM) and making it (KILL)."""

_START_S = 30.0
_END_S = 2.0
"""Seconds to wait for killed processes; one that hangs in a disk ends when the disk answers."""

_DRAIN_S = 0.25
"""Seconds to wait for the rest of the output if a descendant could not be ended."""

_CHUNK = 65_536
_KILLED = 128 + 9
_MESSAGE_BYTES = len(message(GONE))
_LATE = (
    "the program was ended: for longer than its lease this process could not tell the database that"
    " it lives, and another one might have gone on with the run. What the program has done until"
    " then is unknown; look at the current state before starting it again"
)


class Command(Struct, frozen=True, kw_only=True):
    """A program to start.

    Attributes:
        argv: the program's absolute path (see `find_program`), and its arguments.
        cwd: the folder it runs in.
        env: its whole environment.
        stdin: the bytes it can read; nothing by default.
        is_fed: its standard input is a pipe instead, for `Child.write`.
        confinement: the limits of what it may touch; None: what this user may touch.
    """

    argv: Sequence[str]
    cwd: Path | str
    env: Mapping[str, str]
    stdin: bytes | None = None
    is_fed: bool = False
    confinement: "Confinement | None" = None


class CompletedProcess(Struct, frozen=True, kw_only=True):
    """Exit code and output of a program. `exit_code` is 128 + N if signal N ended it.

    Attributes:
        exit_code: of the program.
        stdout: its output.
        stderr: its standard error.
        timed_out: it was stopped because its time was over.
        cancelled: it was stopped because its caller was cancelled.
        left_running: the command lines of other programs that still ran, and were stopped.
    """

    exit_code: int
    stdout: Output
    stderr: Output
    timed_out: bool = False
    cancelled: bool = False
    left_running: tuple[str, ...] = ()

    def discard(self) -> None:
        """Close the spool files."""
        self.stdout.discard()
        self.stderr.discard()


def find_program(name: str, *, cwd: Path, env: Mapping[str, str]) -> Path:
    """Return the absolute path of the program, links not followed.

    It is looked up once, so that the program the user agreed to is the one that runs. A name with a
    slash is relative to `cwd`, any other is looked up in the child's `PATH`.

    Raises:
        ToolError: `file_not_found` or `validation_error`; there is none, or it cannot be run.
    """
    if not name or "\0" in name:
        raise ToolError(ErrorCode.VALIDATION_ERROR, "argv[0] must name a program")
    shown = repr(shortened(name, 200))
    if "/" in name:
        path = cwd / name
        absolute = Path(os.path.normpath(path)) if ".." not in path.parts else path
        if not name.startswith("/"):
            check_folder(cwd)
        check_program_file(str(absolute), name)
        return absolute
    # An empty or relative entry of PATH means the folder the command runs in.
    folders = [cwd / each for each in (env.get("PATH") or os.defpath).split(os.pathsep)]
    for folder in folders:
        if found := shutil.which(name, path=str(folder)):
            return Path(found)
    for folder in folders:
        place = str(folder / name)
        if os.path.isfile(place):  # noqa: PTH113 - whatever its permissions
            check_program_file(place, place)
    raise ToolError(
        ErrorCode.FILE_NOT_FOUND,
        f"there is no program {shown} in PATH; give its path, or another program",
    )


async def run(
    command: Command,
    *,
    launcher: Launcher,
    timeout_s: float,
    stdout_limit_bytes: int = 65_536,
    stderr_limit_bytes: int = 65_536,
    takes_cut: bool = False,
    live: "LiveOutput | None" = None,
) -> CompletedProcess:
    """Run a program and gather its output, in bounded memory.

    The program and all its descendants are gone when this returns or is cancelled.
    Output beyond a limit is cut in the middle, and is whole in a file without a name:
    `Output.spool`.

    Args:
        command: what to start.
        launcher: starts it.
        timeout_s: after this it is stopped, and `timed_out` is set.
        stdout_limit_bytes: bytes of its output kept in memory.
        stderr_limit_bytes: likewise for its standard error.
        takes_cut: if it is cancelled after its start, the output so far is returned, with
            `cancelled` set; the caller has to raise the cancellation.
        live: shows the output as it comes.

    Raises:
        ToolError: `validation_error` or `internal_error`; the system would not start it, or it was
            ended because the lease of this process was over.
    """
    with Capture(stdout_limit_bytes) as stdout, Capture(stderr_limit_bytes) as stderr:
        timed_out = False
        cancelled: asyncio.CancelledError | None = None
        async with _request(command, launcher=launcher) as child:
            try:
                await _started(child, command)
            except asyncio.CancelledError as error:  # it may run already, before that is reported
                cancelled = error
            async with asyncio.TaskGroup() as group:
                pumps = [
                    group.create_task(_pump(child.stdout, stdout, live)),
                    group.create_task(_pump(child.stderr, stderr, live)),
                ]
                try:
                    if cancelled is None:
                        async with asyncio.timeout(timeout_s):
                            await child.exited()
                except TimeoutError:
                    timed_out = True
                except asyncio.CancelledError as error:
                    cancelled = error
                try:
                    await child.stop()
                except asyncio.CancelledError as error:  # it has only skipped the grace
                    cancelled = error
                try:
                    await finish_uncancelled(_drain(pumps))
                except asyncio.CancelledError as error:
                    cancelled = error
        if cancelled is not None and not (takes_cut and child.has_started):
            raise cancelled
        if child.was_late:
            raise ToolError(ErrorCode.INTERNAL_ERROR, _LATE)
        code = child.exit_code
        return CompletedProcess(
            exit_code=_KILLED if code is None else code,
            stdout=stdout.take(),
            stderr=stderr.take(),
            timed_out=timed_out,
            cancelled=cancelled is not None,
            left_running=child.left_running,
        )


async def _drain(pumps: Sequence[asyncio.Task[None]]) -> None:
    """Read the rest of the output of a program that was ended."""
    await asyncio.wait(pumps, timeout=_DRAIN_S)
    for pump in pumps:
        pump.cancel()
    await asyncio.wait(pumps)


async def _pump(chunks: AsyncIterator[bytes], capture: Capture, live: "LiveOutput | None") -> None:
    take = capture.add if live is None else live.beside(capture.add)
    async for chunk in chunks:
        take(chunk)


@asynccontextmanager
async def open_child(command: Command, *, launcher: Launcher) -> AsyncGenerator["Child"]:
    """Start a program; whatever happens, it and its descendants are gone when the block is left.

    Raises:
        ToolError: `validation_error`, `file_not_found` or `internal_error`; the system would not
            start it, or `tool_not_available`; it cannot hold it to a rule that is required.
    """
    async with _request(command, launcher=launcher) as child:
        await _started(child, command)
        yield child


@asynccontextmanager
async def _request(command: Command, *, launcher: Launcher) -> AsyncGenerator["Child"]:
    """Like `open_child`, without waiting for the start."""
    program = command.argv[0]
    check_start(program, cwd=command.cwd, env=command.env)
    jail = b""
    if command.confinement is not None:
        from agent_core.process.confinement import prepare  # noqa: PLC0415 - for few

        prefix, jail = await asyncio.to_thread(prepare, command.confinement)
        command = replace(command, argv=[*prefix, *command.argv])
    with ExitStack() as files:
        try:
            child = Child(command, jail, launcher=launcher, files=files)
        except (OSError, ValueError) as error:
            raise not_started(error, program) from error
        try:
            yield child
        finally:
            await child.stop()


async def _started(child: "Child", command: Command) -> None:
    try:
        await child.started()
    except OSError as error:
        raise not_started(error, command.argv[0], child.failed_step) from error


class Child:
    """A program and this side of its pipes. Made by `open_child`, which also ends it.

    Attributes:
        failed_step: the part of its sandbox that failed, so that it was not started.
        was_late: it was ended because its lease was not renewed in time.
        left_running: the command lines of other programs that still ran when it was ended.

    Raises:
        OSError: its folder cannot be opened, or there is no supervisor.
        ValueError: a part of the command cannot be passed to a program.
    """

    def __init__(
        self, command: Command, jail: bytes, *, launcher: Launcher, files: ExitStack
    ) -> None:
        words = [os.fsencode(word) for word in command.argv]
        variables = command.env
        if launcher.more_env is not None and not command.is_fed:
            variables = {**variables, **launcher.more_env()}
        env = [os.fsencode(f"{name}={value}") for name, value in variables.items()]
        if any(b"\0" in field for field in (*words, *env)):
            raise ValueError("embedded null byte")
        fields = (str(len(words)).encode(), *words, *env)
        body = b"".join(field + FIELD_END for field in fields)
        sizes = (len(part).to_bytes(LENGTH_BYTES, "big") for part in (jail, body))
        until = b"" if launcher.deadline is None else renewal(launcher.deadline)
        self._request = b"".join((*sizes, jail, body, until))
        self._launcher = launcher
        self._stdin: int | None = None
        self._can_write = asyncio.Event()
        with ExitStack() as theirs:
            if command.is_fed:
                stdin, self._stdin = os.pipe()
                theirs.callback(os.close, stdin)
                files.callback(self.close_stdin)
                os.set_blocking(self._stdin, False)
            elif command.stdin is None:
                stdin = open_descriptor(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
                theirs.callback(os.close, stdin)
            else:
                # A nameless file instead of a pipe: nothing to feed, and nothing to block on.
                file = theirs.enter_context(tempfile.TemporaryFile(buffering=0))
                file.write(command.stdin)
                file.seek(0)
                stdin = file.fileno()
            self._stdout, stdout = _pipe(files, theirs)
            self._stderr, stderr = _pipe(files, theirs)
            self._control: socket.socket = launcher.request(
                command.cwd, (stdin, stdout, stderr), is_confined=bool(jail)
            )
        files.callback(self._control.close)
        self._received = bytearray()
        self._keeper = 0
        self._failure: int | None = None
        self.failed_step = ""
        self.was_late = False
        self.left_running: tuple[str, ...] = ()
        self._code: int | None = None
        self._is_gone = False

    @property
    def stdout(self) -> AsyncGenerator[bytes]:
        """Yield its output as it comes, until all writers are gone."""
        return _chunks(self._stdout)

    @property
    def stderr(self) -> AsyncGenerator[bytes]:
        """Yield its standard error as it comes."""
        return _chunks(self._stderr)

    @property
    def has_started(self) -> bool:
        """Return whether the program is known to have run."""
        return self._keeper != 0

    @property
    def exit_code(self) -> int | None:
        """Return the program's code, 128 + N if signal N ended it; None while it runs."""
        return _KILLED if self._code is None and self._is_gone else self._code

    async def write(self, data: bytes) -> None:
        """Write to the standard input of a command that is fed; return when all is in its pipe.

        Raises:
            OSError: nothing reads any more, or the input is closed.
        """
        rest, loop = memoryview(data), asyncio.get_running_loop()
        while rest:
            if self._stdin is None:
                raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
            try:
                rest = rest[os.write(self._stdin, rest) :]
            except BlockingIOError:
                self._can_write.clear()
                loop.add_writer(self._stdin, self._can_write.set)
                try:
                    await self._can_write.wait()
                finally:
                    self._forget_writer()

    def close_stdin(self) -> None:
        """Let the program read the end of its input; a `write` that is waiting fails."""
        self._forget_writer()
        if self._stdin is not None:
            os.close(self._stdin)
        self._stdin = None
        self._can_write.set()

    def _forget_writer(self) -> None:
        if self._stdin is not None:
            asyncio.get_running_loop().remove_writer(self._stdin)

    async def started(self) -> None:
        """Wait until the program runs.

        Raises:
            OSError: the system would not start it; a TimeoutError if it does not report so in time.
        """
        loop = asyncio.get_running_loop()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # reported below
            await loop.sock_sendall(self._control, self._request)
            self._launcher.has_started(self._control)
        self._request = b""
        async with asyncio.timeout(_START_S):
            while not (self._keeper or self._is_gone):
                await self._receive()
        if not self._keeper:
            number = self._failure or errno.EIO
            raise OSError(number, os.strerror(number))

    async def exited(self) -> None:
        """Wait until the program (not: its children) has ended."""
        while self.exit_code is None:
            await self._receive()

    async def stop(self, grace_s: float = GRACE_S) -> None:
        """End it and all its descendants: TERM and a short grace if it still runs, then KILL.

        Cancelling this only skips the grace. Harmless when called again.
        """
        try:
            if self.exit_code is None:
                with contextlib.suppress(OSError):
                    self._control.send(TERMINATE)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(grace_s):
                        await self.exited()
        finally:
            if not self._is_gone:
                with contextlib.suppress(OSError):
                    self._control.shutdown(
                        socket.SHUT_WR
                    )  # to the keeper it is as if this process had died
                await finish_uncancelled(self._gone())

    async def _gone(self) -> None:
        try:
            async with asyncio.timeout(_END_S):
                while not self._is_gone:
                    await self._receive()
        except TimeoutError:  # it was stopped, or a disk hangs
            if self._keeper:
                with contextlib.suppress(OSError):
                    os.kill(self._keeper, signal.SIGKILL)

    async def _receive(self) -> None:
        """Read the keeper's next report."""
        await _readable(self._control.fileno())
        try:
            chunk = self._control.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        self._is_gone |= not chunk
        self._received += chunk
        while self._failure is None and len(self._received) >= _MESSAGE_BYTES:
            kind = bytes(self._received[:1])
            number = int.from_bytes(self._received[1:_MESSAGE_BYTES], "big", signed=True)
            end = _MESSAGE_BYTES + (number if kind == LEFT else 0)
            if len(self._received) < end:
                return
            content = bytes(self._received[_MESSAGE_BYTES:end])
            del self._received[:end]
            if kind == STARTED:
                self._keeper = number
            elif kind == LEFT:
                lines = content.decode(errors="replace").split(FIELD_END.decode())
                self.left_running = tuple(map(self._launcher.clean, lines))
            elif kind == ENDED:
                self._code = number
            elif kind == FAILED:
                self._failure = number
            else:
                self._is_gone, self.was_late = True, number != 0
        if self._failure is not None and self._is_gone:
            self.failed_step = self._received.decode(errors="replace")


def _pipe(ours: ExitStack, theirs: ExitStack) -> tuple[int, int]:
    read, write = os.pipe()
    ours.callback(os.close, read)
    theirs.callback(os.close, write)
    return read, write


async def _chunks(fd: int) -> AsyncGenerator[bytes]:
    os.set_blocking(fd, False)
    while True:
        # Waiting even when there is more: a flood must not keep the event loop to itself.
        await _readable(fd)
        with contextlib.suppress(BlockingIOError):
            chunk = os.read(fd, _CHUNK)
            if not chunk:
                return
            yield chunk


async def _readable(fd: int) -> None:
    """Wait until there is something to read, or every writer is gone."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(fd, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(fd)
