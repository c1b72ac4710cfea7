"""Starts programs through a supervisor, so that nothing of them outlives their call.

The supervisor (`supervisor.py`) is a process of its own: it survives a kill of this one, and
it has no threads, so that it may fork and change itself before it starts a program. Each launcher
has one, started with its first program.
"""

import array
import contextlib
import os
import socket
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from weakref import WeakSet

from agent_core.errors import ErrorCode, ToolError
from agent_core.opening import open_descriptor

_FOLDER = os.O_DIRECTORY | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
_LIBRARIES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")


class Launcher:
    """Starts programs. Cheap to make: its supervisor starts with the first program.

    Everything it has started ends when it is closed, or when this process ends in any way.

    Args:
        more_env: variables that each program gets besides its command's, as they are when it
            starts. A program that is fed gets none: it may work for many callers.
        clean: removes secrets from the command lines of programs.

    Attributes:
        deadline: time until which programs may run, by `supervisor.now`; None: for ever.
    """

    def __init__(
        self,
        more_env: Callable[[], Mapping[str, str]] | None = None,
        *,
        clean: Callable[[str], str] = lambda text: text,
    ) -> None:
        self.more_env = more_env
        self.clean = clean
        self._lock = threading.Lock()
        self._requests: socket.socket | None = None
        self._boot = 0
        self._started: WeakSet[socket.socket] = WeakSet()
        self.deadline: float | None = None

    def close(self) -> None:
        """Let the supervisor go. A program that is started later brings another one."""
        with self._lock:
            self._close()

    def keep_until(self, deadline: float) -> None:
        """Let the programs run until then, including those that are started later.

        Their keepers end them then, even if this process is paused.
        """
        self.deadline = deadline
        for control in tuple(self._started):
            self._renew(control, deadline)

    def has_started(self, control: socket.socket) -> None:
        """Note that a keeper got its request; send it `deadline` if that has moved meanwhile."""
        self._started.add(control)
        if self.deadline is not None:
            self._renew(control, self.deadline)

    def _renew(self, control: socket.socket, deadline: float) -> None:
        from agent_core.process.supervisor import renewal  # noqa: PLC0415 - for running programs

        with contextlib.suppress(OSError):  # it has ended; or its keeper is paused as well
            control.send(renewal(deadline))

    def request(
        self, cwd: Path | str, streams: tuple[int, int, int], *, is_confined: bool = False
    ) -> socket.socket:
        """Ask for a program; its keeper reads the arguments from the socket that is returned.

        Args:
            cwd: where the program runs.
            streams: descriptors that become its standard input, output and error. They stay open
                here.
            is_confined: the arguments say what the program may touch.

        Raises:
            OSError: the folder cannot be opened, or the supervisor cannot be started.
            ToolError: `internal_error`; there is no interpreter to run the supervisor with.
        """
        from agent_core.process.supervisor import CONFINED, PLAIN  # noqa: PLC0415 - likewise

        folder = open_descriptor(cwd, _FOLDER)
        try:
            control, its_end = socket.socketpair()
            try:
                with its_end, self._lock:
                    self._send(
                        CONFINED if is_confined else PLAIN, [its_end.fileno(), folder, *streams]
                    )
                control.setblocking(False)
            except BaseException:
                control.close()
                raise
            return control
        finally:
            os.close(folder)

    def _send(self, kind: bytes, descriptors: Sequence[int]) -> None:
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
        if self._requests is not None:
            with contextlib.suppress(OSError):  # it was killed: another one takes its place
                self._wait_for_boot(os.WNOHANG)
                self._requests.sendmsg([kind], [rights])
                return
            self._close()
        self._start_supervisor().sendmsg([kind], [rights])

    def _start_supervisor(self) -> socket.socket:
        if not sys.executable or getattr(sys, "frozen", False):
            text = "programs cannot be started: there is no interpreter to run the supervisor"
            raise ToolError(ErrorCode.INTERNAL_ERROR, text)
        if not hasattr(os, "waitid"):
            text = "programs cannot be started: on macOS that takes Python 3.13 or newer"
            raise ToolError(ErrorCode.TOOL_NOT_AVAILABLE, text)
        requests, its_end = socket.socketpair()
        weakref.finalize(self, requests.close)  # a launcher that is not closed leaves no process
        null_device = open_descriptor(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        with its_end, os.fdopen(null_device, "r+b", buffering=0) as null:
            # The process started here only forks the supervisor and ends.
            self._boot = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", str(Path(__file__).with_name("supervisor.py"))],
                {name: os.environ[name] for name in _LIBRARIES if name in os.environ},
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, its_end.fileno(), 0),
                    (os.POSIX_SPAWN_DUP2, null.fileno(), 1),
                    (os.POSIX_SPAWN_DUP2, null.fileno(), 2),
                ],
                setsid=True,
                setsigmask=[],
            )
        self._requests = requests
        return requests

    def _close(self) -> None:
        """The supervisor ends when the programs that it has started have ended."""
        if self._requests is not None:
            self._requests.close()
            self._wait_for_boot(0)
        self._requests = None

    def _wait_for_boot(self, flags: int) -> None:
        """Wait for the boot process, once: later its number may belong to another child."""
        if self._boot:
            try:
                has_ended = os.waitpid(self._boot, flags)[0] != 0
            except ChildProcessError:  # the surrounding program waits for all children
                has_ended = True
            self._boot = 0 if has_ended else self._boot
