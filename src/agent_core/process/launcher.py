"""Starts programs through a supervisor, so that nothing of them outlives their call.

The supervisor (`supervisor.py`) is a process of its own: it is there when this one was killed, and
it has no threads, so that it may fork and change itself before it starts a program. There is one
for each launcher, from the first program on.
"""

import array
import asyncio
import contextlib
import errno
import os
import signal
import socket
import sys
import threading
import weakref
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_core.errors import ErrorCode, ToolError
from agent_core.process.supervisor import (
    ENDED,
    FAILED,
    FIELD_END,
    GONE,
    LENGTH_BYTES,
    STARTED,
    TERMINATE,
    message,
)

_MESSAGE_BYTES = len(message(GONE))
_START_S = 30.0
_END_S = 2.0
"""How long to wait for killed processes; one that hangs in a disk ends when the disk answers."""

_FOLDER = os.O_DIRECTORY | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
_LIBRARIES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
_KILLED = 128 + 9


class Launcher:
    """Starts programs. Cheap to make: its supervisor starts with the first program.

    Everything it has started ends when it is closed, or when this process ends in any way.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._supervisor: _Supervisor | None = None

    def close(self) -> None:
        """Let the supervisor go. A program that is started later brings another one."""
        with self._lock:
            if self._supervisor is not None:
                self._supervisor.close()
            self._supervisor = None

    def start(
        self,
        argv: Sequence[str],
        *,
        cwd: Path | str,
        env: Mapping[str, str],
        streams: tuple[int, int, int],
    ) -> "Program":
        """Ask for a program; it runs when `Program.started` returns.

        Args:
            argv: its absolute path, and its arguments.
            cwd: where it runs.
            env: all of its environment.
            streams: descriptors that become its standard input, output and error. They stay open
                here.

        Raises:
            OSError: the folder cannot be opened, or there is no supervisor.
            ValueError: something of it cannot be handed to a program.
        """
        request = _request(argv, env)
        folder = os.open(cwd, _FOLDER)
        try:
            ours, theirs = socket.socketpair()
            try:
                with theirs:
                    self._send([theirs.fileno(), folder, *streams])
                ours.setblocking(False)
                return Program(ours, request)
            except BaseException:
                ours.close()
                raise
        finally:
            os.close(folder)

    def _send(self, descriptors: Sequence[int]) -> None:
        with self._lock:
            if self._supervisor is not None:
                with contextlib.suppress(OSError):  # it was killed: another one takes its place
                    self._supervisor.send(descriptors)
                    return
                self._supervisor.close()
            self._supervisor = _Supervisor()
            self._supervisor.send(descriptors)


class _Supervisor:
    """The process, which runs in the background, and our end of its socket.

    Raises:
        ToolError: `internal_error`; there is no interpreter to run it with.
        OSError: it cannot be started.
    """

    def __init__(self) -> None:
        if not sys.executable or getattr(sys, "frozen", False):
            message = "programs cannot be started: there is no interpreter to run the supervisor"
            raise ToolError(ErrorCode.INTERNAL_ERROR, message)
        self._requests, theirs = socket.socketpair()
        # Whoever forgets to close a launcher still leaves no process.
        self._closing = weakref.finalize(self, self._requests.close)
        with theirs, Path(os.devnull).open("r+b", buffering=0) as null:
            # What is started here only forks the supervisor and ends.
            self._boot = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", str(Path(__file__).with_name("supervisor.py"))],
                {name: os.environ[name] for name in _LIBRARIES if name in os.environ},
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, theirs.fileno(), 0),
                    (os.POSIX_SPAWN_DUP2, null.fileno(), 1),
                    (os.POSIX_SPAWN_DUP2, null.fileno(), 2),
                ],
                setsid=True,
                setsigmask=[],
            )

    def send(self, descriptors: Sequence[int]) -> None:
        """Ask for a program, whose descriptors these are."""
        self._wait_for_boot(os.WNOHANG)
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
        self._requests.sendmsg([b"+"], [rights])

    def close(self) -> None:
        """Let it go: it ends when the programs that it has started have ended."""
        self._closing()
        self._wait_for_boot(0)

    def _wait_for_boot(self, flags: int) -> None:
        """Once only: later its number may be that of another child of the program around us."""
        if self._boot:
            try:
                has_ended = os.waitpid(self._boot, flags)[0] != 0
            except ChildProcessError:  # the program around us waits for all children
                has_ended = True
            self._boot = 0 if has_ended else self._boot


class Program:
    """A program that was asked for, as its keeper reports it."""

    def __init__(self, control: socket.socket, request: bytes) -> None:
        self._control = control
        self._request = request
        self._received = bytearray()
        self._keeper = 0
        self._failure: int | None = None
        self._code: int | None = None
        self._is_gone = False

    @property
    def exit_code(self) -> int | None:
        """The program's code, 128 + N if signal N ended it; None as long as it runs."""
        if self._code is None and self._is_gone:
            return _KILLED
        return self._code

    async def started(self) -> None:
        """Wait until the program runs.

        Raises:
            OSError: the system would not start it; a TimeoutError if it does not say so in time.
        """
        loop = asyncio.get_running_loop()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # told below
            await loop.sock_sendall(self._control, self._request)
        self._request = b""
        async with asyncio.timeout(_START_S):
            while not (self._keeper or self._is_gone):
                await self._hear()
        if not self._keeper:
            number = self._failure or errno.EIO
            raise OSError(number, os.strerror(number))

    async def exited(self) -> None:
        """Wait until the program (not: its children) has ended."""
        while self.exit_code is None:
            await self._hear()

    def terminate(self) -> None:
        """Ask the program and its group to end."""
        with contextlib.suppress(OSError):
            self._control.send(TERMINATE)

    async def kill(self) -> None:
        """End the program and all its descendants, wherever they are. Not stopped by a cancel."""
        if not self._is_gone:
            with contextlib.suppress(OSError):
                self._control.shutdown(socket.SHUT_WR)  # to the keeper this is as if we had died
            await _to_the_end(self._gone())

    def close(self) -> None:
        """Let go; what still runs is ended."""
        self._control.close()

    async def _gone(self) -> None:
        try:
            async with asyncio.timeout(_END_S):
                while not self._is_gone:
                    await self._hear()
        except TimeoutError:  # it was stopped, or a disk hangs
            if self._keeper:
                with contextlib.suppress(OSError):
                    os.kill(self._keeper, signal.SIGKILL)

    async def _hear(self) -> None:
        await readable(self._control.fileno())
        try:
            chunk = self._control.recv(1024)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk:
            self._is_gone = True
        self._received += chunk
        while len(self._received) >= _MESSAGE_BYTES:
            kind, number = self._received[:1], self._received[1:_MESSAGE_BYTES]
            del self._received[:_MESSAGE_BYTES]
            self._take(bytes(kind), int.from_bytes(number, "big", signed=True))

    def _take(self, kind: bytes, number: int) -> None:
        if kind == STARTED:
            self._keeper = number
        elif kind == ENDED:
            self._code = number
        else:
            self._is_gone = True
        if kind == FAILED:
            self._failure = number


async def readable(fd: int) -> None:
    """Wait until there is something to read, or nobody is left to write."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(fd, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(fd)


async def _to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Wait for something short even if cancelled meanwhile, and be cancelled afterwards."""
    task = asyncio.create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    task.result()


def _request(argv: Sequence[str], env: Mapping[str, str]) -> bytes:
    words = [os.fsencode(word) for word in argv]
    entries = [os.fsencode(f"{name}={value}") for name, value in env.items()]
    if any(b"\0" in field for field in (*words, *entries)):
        raise ValueError("embedded null byte")
    fields = [str(len(words)).encode(), *words, *entries]
    body = b"".join(field + FIELD_END for field in fields)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body
