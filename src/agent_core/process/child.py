"""One child process, from start to the last of its descendants.

Every child leads a session and a process group of its own, reads nothing, and is stopped with its
whole group. A small shell stands between us and the program and keeps a guard beside it: the
guard waits at a pipe that only we hold open, so that even a SIGKILL of this process ends the
group. (`PR_SET_PDEATHSIG` would reach the program but not its children, is Linux's alone, and
needs `preexec_fn`, which may deadlock in a process with threads. The shell costs about a
millisecond.)
"""

import asyncio
import contextlib
import errno
import os
import select
import signal
import subprocess
import tempfile
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from agent_core.errors import ErrorCode, ToolError
from agent_core.process.holders import kill_writers

GRACE_S = 0.5
"""Between asking a group to stop (TERM) and making it (KILL)."""

_CHUNK = 65_536
_SHELL = "/bin/sh"
_GUARDED = """
exec 3<&0 <"$1"
shift
( trap '' TERM; read -r _ <&3; kill -KILL 0 ) </dev/null >/dev/null 2>&1 &
exec 3<&-
trap : TERM
unset PWD OLDPWD SHLVL
"$@"
code=$?
kill -KILL $!
wait $! 2>/dev/null
exit $code
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What to start.

    Attributes:
        argv: the program's absolute path (see `find_program`), and its arguments.
        cwd: where it runs.
        env: all of its environment.
        stdin: what it can read; nothing by default.
    """

    argv: Sequence[str]
    cwd: Path | str
    env: Mapping[str, str]
    stdin: bytes | None = None


@asynccontextmanager
async def open_child(command: Command) -> AsyncGenerator["Child"]:
    """Start a program; whatever happens, it and its group are gone when the block is left.

    Raises:
        ToolError: `validation_error` or `internal_error`; the system would not start it.
    """
    child = Child(command)
    try:
        yield child
    finally:
        await child.stop()


class Child:
    """A running program. Made by `open_child`, which also ends it."""

    def __init__(self, command: Command) -> None:
        try:
            with ExitStack() as stack:
                held, guard = os.pipe()
                stack.callback(os.close, held)
                on_failure = stack.enter_context(ExitStack())
                on_failure.callback(os.close, guard)
                self._process = _start(command, guard=held, files=stack)
                on_failure.pop_all()
        except (OSError, ValueError) as error:
            raise _unstartable(error, command.argv) from error
        self._guard = guard
        self._pidfd = _pidfd(self._process.pid)
        self._stopped = False

    @property
    def stdout(self) -> AsyncGenerator[bytes]:
        """What it writes, as it comes, until all writers are gone."""
        return _chunks(_fileno(self._process.stdout))

    @property
    def stderr(self) -> AsyncGenerator[bytes]:
        """What it complains about, as it comes."""
        return _chunks(_fileno(self._process.stderr))

    @property
    def exit_code(self) -> int:
        """The program's code, 128 + N if signal N ended it. Known once it was stopped."""
        code = self._process.returncode
        return 128 - code if code < 0 else code

    async def exited(self) -> None:
        """Wait until the program (not: its children) has ended."""
        if self._pidfd is not None:
            await _readable(self._pidfd)
            return
        while self._process.poll() is None:  # noqa: ASYNC110 - here nothing tells of it
            await asyncio.sleep(0.02)

    async def stop_group(self) -> None:
        """End the program and its group: TERM and a short grace if it still runs, then KILL.

        Cancelling this only skips the grace.
        """
        ended = self._has_ended()
        try:
            if not ended:
                self._signal(signal.SIGTERM)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(GRACE_S):
                        await self.exited()
        finally:
            # The leader is not reaped yet, so its number still means this group.
            self._signal(signal.SIGKILL)
            self._reap()
            if not ended:
                kill_writers(_fileno(self._process.stdout), _fileno(self._process.stderr))

    async def stop(self) -> None:
        """End it, and give everything back. Harmless when called again."""
        if self._stopped:
            return
        self._stopped = True
        try:
            if self._process.returncode is None:
                await self.stop_group()
        finally:
            os.close(self._guard)
            if self._pidfd is not None:
                os.close(self._pidfd)
            for pipe in (self._process.stdout, self._process.stderr):
                if pipe is not None:
                    pipe.close()

    def _has_ended(self) -> bool:
        if self._process.returncode is not None or self._pidfd is None:
            return self._process.poll() is not None
        return bool(select.select([self._pidfd], [], [], 0)[0])

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _reap(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1)  # after a KILL: microseconds, unless a disk hangs


def _start(command: Command, *, guard: int, files: ExitStack) -> subprocess.Popen[bytes]:
    source, inherited = os.devnull, list[int]()
    if command.stdin is not None:
        # A nameless file instead of a pipe: nothing to feed, and nothing to block on.
        file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed with `files`
        files.enter_context(file)
        file.write(command.stdin)
        file.seek(0)
        source, inherited = f"/dev/fd/{file.fileno()}", [file.fileno()]
    # Popen is synchronous on purpose: between the fork and our knowing of it nobody can cancel.
    return subprocess.Popen(  # noqa: S603 - whoever calls has asked for this very command
        [_SHELL, "-c", _GUARDED, _SHELL, source, *command.argv],
        cwd=command.cwd,
        env=dict(command.env),
        stdin=guard,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        pass_fds=inherited,
        start_new_session=True,
    )


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # not this system: the end is polled for
        return None


async def _readable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(fd, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(fd)


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


def _fileno(pipe: IO[bytes] | None) -> int:
    assert pipe is not None  # noqa: S101 - Popen was asked for both
    return pipe.fileno()


def _unstartable(error: OSError | ValueError, argv: Sequence[str]) -> ToolError:
    program = argv[0][:200]
    if isinstance(error, ValueError):  # a NUL, or text that is no Unicode
        message = f"the command for {program!r} has a character no argument can hold: {error}"
        return ToolError(ErrorCode.VALIDATION_ERROR, message)
    if error.errno == errno.E2BIG:
        message = f"the arguments of {program!r} are too long for this system; use a file"
        return ToolError(ErrorCode.VALIDATION_ERROR, message)
    message = f"{program!r} could not be started: {error.strerror}"
    return ToolError(ErrorCode.INTERNAL_ERROR, message, retryable=True)
