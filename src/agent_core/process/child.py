"""One child process, from start to the last of its descendants.

Every child leads a session and a process group of its own, reads nothing, and ends with all its
descendants: see `agent_core.process.supervisor`, which also ends them when this process is killed.
"""

import asyncio
import contextlib
import errno
import os
import tempfile
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from agent_core.errors import ErrorCode, ToolError
from agent_core.process.launcher import Launcher, Program, readable
from agent_core.redaction.visible import shortened

GRACE_S = 0.5
"""Between asking a group to stop (TERM) and making it (KILL)."""

_CHUNK = 65_536
_KILLED = 128 + 9


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
async def open_child(command: Command, *, launcher: Launcher) -> AsyncGenerator["Child"]:
    """Start a program; whatever happens, it and its descendants are gone when the block is left.

    Raises:
        ToolError: `validation_error` or `internal_error`; the system would not start it.
    """
    with ExitStack() as files:
        try:
            child = Child(command, launcher=launcher, files=files)
        except (OSError, ValueError) as error:
            raise _unstartable(error, command.argv) from error
        try:
            await child.started()
            yield child
        finally:
            await child.stop()


class Child:
    """A running program. Made by `open_child`, which also ends it."""

    def __init__(self, command: Command, *, launcher: Launcher, files: ExitStack) -> None:
        with ExitStack() as theirs:
            source = theirs.enter_context(_source(command.stdin))
            self._stdout, stdout = _pipe(files, theirs)
            self._stderr, stderr = _pipe(files, theirs)
            self._argv = command.argv
            self._program: Program = launcher.start(
                command.argv,
                cwd=command.cwd,
                env=command.env,
                streams=(source.fileno(), stdout, stderr),
            )
        files.callback(self._program.close)

    @property
    def stdout(self) -> AsyncGenerator[bytes]:
        """What it writes, as it comes, until all writers are gone."""
        return _chunks(self._stdout)

    @property
    def stderr(self) -> AsyncGenerator[bytes]:
        """What it complains about, as it comes."""
        return _chunks(self._stderr)

    @property
    def exit_code(self) -> int:
        """The program's code, 128 + N if signal N ended it. Known once it was stopped."""
        code = self._program.exit_code
        return _KILLED if code is None else code

    async def started(self) -> None:
        """Wait until the program runs.

        Raises:
            ToolError: `validation_error` or `internal_error`; the system would not start it.
        """
        try:
            await self._program.started()
        except OSError as error:
            raise _unstartable(error, self._argv) from error

    async def exited(self) -> None:
        """Wait until the program (not: its children) has ended."""
        await self._program.exited()

    async def stop(self) -> None:
        """End it and all its descendants: TERM and a short grace if it still runs, then KILL.

        Cancelling this only skips the grace. Harmless when called again.
        """
        try:
            if self._program.exit_code is None:
                self._program.terminate()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(GRACE_S):
                        await self.exited()
        finally:
            await self._program.kill()


def _source(stdin: bytes | None) -> IO[bytes]:
    if stdin is None:
        return Path(os.devnull).open("rb", buffering=0)
    # A nameless file instead of a pipe: nothing to feed, and nothing to block on.
    file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - the caller closes it
    try:
        file.write(stdin)
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return file


def _pipe(ours: ExitStack, theirs: ExitStack) -> tuple[int, int]:
    read, write = os.pipe()
    ours.callback(os.close, read)
    theirs.callback(os.close, write)
    return read, write


async def _chunks(fd: int) -> AsyncGenerator[bytes]:
    os.set_blocking(fd, False)
    while True:
        # Waiting even when there is more: a flood must not keep the event loop to itself.
        await readable(fd)
        with contextlib.suppress(BlockingIOError):
            chunk = os.read(fd, _CHUNK)
            if not chunk:
                return
            yield chunk


def _unstartable(error: OSError | ValueError, argv: Sequence[str]) -> ToolError:
    program = shortened(argv[0], 200)
    if isinstance(error, ValueError):  # a NUL, or text that is no Unicode
        message = f"the command for {program!r} has a character no argument can hold: {error}"
        return ToolError(ErrorCode.VALIDATION_ERROR, message)
    if error.errno == errno.E2BIG:
        message = f"the arguments of {program!r} are too long for this system; use a file"
        return ToolError(ErrorCode.VALIDATION_ERROR, message)
    message = f"{program!r} could not be started: {error.strerror or 'it did not answer in time'}"
    return ToolError(ErrorCode.INTERNAL_ERROR, message, retryable=True)
