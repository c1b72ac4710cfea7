"""Starts programs through a supervisor, so that nothing of them outlives their call.

The supervisor (`supervisor.py`) is a process of its own: it is there when this one was killed, and
it has no threads, so that it may fork and change itself before it starts a program. There is one
for each launcher, from the first program on.
"""

import array
import contextlib
import os
import socket
import sys
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path

from agent_core.errors import ErrorCode, ToolError

_FOLDER = os.O_DIRECTORY | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
_LIBRARIES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")


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

    def request(self, cwd: Path | str, streams: tuple[int, int, int]) -> socket.socket:
        """Ask for a program; its keeper reads the arguments from the socket that is returned.

        Args:
            cwd: where the program runs.
            streams: descriptors that become its standard input, output and error. They stay open
                here.

        Raises:
            OSError: the folder cannot be opened, or there is no supervisor.
        """
        folder = os.open(cwd, _FOLDER)
        try:
            control, theirs = socket.socketpair()
            try:
                with theirs:
                    self._send([theirs.fileno(), folder, *streams])
                control.setblocking(False)
            except BaseException:
                control.close()
                raise
            return control
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
        # A launcher that is not closed still leaves no process.
        self._close_socket = weakref.finalize(self, self._requests.close)
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
        self._close_socket()
        self._wait_for_boot(0)

    def _wait_for_boot(self, flags: int) -> None:
        """Once only: later its number may be that of another child of the program around us."""
        if self._boot:
            try:
                has_ended = os.waitpid(self._boot, flags)[0] != 0
            except ChildProcessError:  # the program around us waits for all children
                has_ended = True
            self._boot = 0 if has_ended else self._boot
