"""Starts programs and ends them with everything they leave behind: a script of its own.

It runs as `python -I -S supervisor.py` and knows nothing of the rest of the package. Its standard
input is a socket; each message on it asks for one program and brings five descriptors: a control
socket, the working folder, and the program's three streams. For each program it forks a keeper,
which reads the arguments from the control socket, sends a message of five bytes for each thing
that happens, and passes on a request to terminate. A keeper that has a deadline for its
program ends it then, unless it gets a later one before: the runtime may be paused.

Where the system has it (Linux), every keeper is the *subreaper* of its program: a descendant
that has left its group, session and parents becomes a child of the keeper, and of no other
process. When the control socket closes, which a SIGKILL of the runtime does as well, the keeper
ends its children until it has none, and then itself. A keeper that was killed leaves them to the
process that has forked it, which ends them. Elsewhere the program's group is ended.
What is still running then is reported before, by its command lines.
"""

import array
import contextlib
import errno
import gc
import importlib
import marshal
import math
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from types import FrameType, ModuleType
from typing import NamedTuple

STARTED, FAILED, ENDED, LEFT, GONE = b"S", b"F", b"E", b"L", b"G"
TERMINATE, RENEW = b"T", b"R"
PLAIN, CONFINED = b"+", b"c"
DESCRIPTORS = 5
FIELD_END = b"\0"
LENGTH_BYTES = 8

_PR_SET_CHILD_SUBREAPER = 36
_LONGEST_PAUSE_S = 0.05
_END_BY_THEMSELVES_S = 0.1
"""Seconds in which processes that a program leaves behind may end, before they are reported."""
_MOST_LEFT, _LONGEST_LEFT = 20, 16_384
"""Command lines in a report, and bytes of one; the runtime removes secrets, and shows less."""
_LOOK_S = 0.5
"""Seconds between looks at the clock by a keeper with a deadline: waits do not end in sleep."""
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_SHELL = b"/bin/sh"
_IGNORED = 27
"""Place of the ignored signals in `/proc/<pid>/stat`, counted from the field after the group."""
_INTERRUPTS = 1 << signal.SIGINT - 1 | 1 << signal.SIGQUIT - 1
_DEFAULT_AGAIN = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGQUIT)
"""Signals that no program is started to ignore, whatever the starter of this one ignores."""


def message(kind: bytes, number: int = 0) -> bytes:
    """Return a keeper's message: the event, and its code."""
    return kind + number.to_bytes(4, "big", signed=True)


def now() -> float:
    """Return the seconds of a clock that runs while the process is paused or the machine asleep."""
    return time.clock_gettime(_CLOCK)


def renewal(deadline: float) -> bytes:
    """Return a message that lets the keeper's program run until `deadline`, by `now`."""
    return RENEW + int(deadline * 1000).to_bytes(LENGTH_BYTES, "big")


def adoption() -> Callable[[], object]:
    """Return a function that makes its caller the parent of every descendant that loses its own.

    It applies to the calling process, and not to its forks.
    """
    if sys.platform.startswith("linux"):
        with contextlib.suppress(ImportError, OSError, AttributeError):
            import ctypes  # noqa: PLC0415 - not every interpreter has it

            prctl = ctypes.CDLL(None).prctl
            return lambda: prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    return lambda: None


def children() -> list[int]:
    """Return the children of this process, including dead ones that were not waited for."""
    own = os.getpid()
    try:
        with open(f"/proc/self/task/{own}/children", "rb", buffering=0) as listed:  # noqa: PTH123
            return [int(pid) for pid in listed.read().split()]
    except OSError:  # a kernel without this list, or another system
        pass
    try:
        names = os.listdir("/proc")  # noqa: PTH208
    except OSError:
        return []
    return [int(name) for name in names if name.isdigit() and _parent_of(int(name)) == own]


def _parent_of(pid: int) -> int | None:
    try:
        status = Path(f"/proc/{pid}/stat").read_bytes()
        return int(status.rpartition(b")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return None


def left_running(program: int, own_line: bytes) -> list[bytes]:
    """Return the command lines of the living descendants of this process, apart from a program.

    Leaves out what the program itself waits for: descendants in its group that an interrupt from
    the keyboard would end. A shell lets those in the background ignore it, and all below them; a
    process that ignores it without its children waits for one of them, as `system` does. A subshell
    of the program that waits for others of them is left out: they say more.
    """
    below, lines = dict[int, list[int]](), dict[int, bytes]()
    groups, ignoring = dict[int, int](), set[int]()
    try:
        names = os.listdir("/proc")  # noqa: PTH208
    except OSError:  # another system
        return []
    for name in filter(str.isdigit, names):
        with contextlib.suppress(OSError, IndexError, ValueError):
            before, _, rest = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")
            state, parent, group, *others = rest.split()
            groups[int(name)] = int(group)
            if int(others[_IGNORED]) & _INTERRUPTS:
                ignoring.add(int(name))
            below.setdefault(int(parent), []).append(int(name))
            if state not in b"ZX":
                words = Path(f"/proc/{name}/cmdline").read_bytes().rstrip(FIELD_END)
                line = words.replace(FIELD_END, b" ") or before.partition(b"(")[2]
                lines[int(name)] = line
    pending, found = [(os.getpid(), False)], list[bytes]()
    for pid, is_awaited in pending:  # it grows meanwhile
        inner = below.get(pid, [])
        for each in inner:
            is_behind = each in ignoring and ignoring.issuperset(below.get(each, ()))
            awaits = (pid == program or is_awaited) and groups.get(each) == program
            pending.append((each, awaits and not is_behind))
        is_waiting = lines.get(pid, b"").endswith(own_line) and any(map(lines.get, inner))
        if pid in lines and pid not in {os.getpid(), program} and not (is_waiting or is_awaited):
            found.append(_cut(lines[pid]))
    return found


def _cut(line: bytes) -> bytes:
    """Return a line, or its whole words within the limit: half a secret is not recognised."""
    if len(line) <= _LONGEST_LEFT:
        return line
    return line[:_LONGEST_LEFT].rpartition(b" ")[0] + " …".encode()


def kill_children(pids: Iterable[int]) -> None:
    """End children that were not waited for yet, and their groups unless this process is in one.

    Only children are ever sent a signal: the number of one that was not waited for cannot mean
    another process. Processes they leave behind become children, and are next. A group is
    killed once: killing it for each member would take quadratic time.
    """
    groups = {os.getpgrp()}
    for pid in pids:
        with contextlib.suppress(OSError):
            group = os.getpgid(pid)
            if group not in groups:
                groups.add(group)
                os.killpg(group, signal.SIGKILL)
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def end_children(spared: Iterable[int] = ()) -> None:
    """Kill children, and the processes they leave, until only the spared ones are left."""
    spared, pause = set(spared), 0.0005
    while True:
        doomed = [pid for pid in children() if pid not in spared]
        kill_children(doomed)
        if [pid for pid in doomed if _has_ended(pid)]:
            continue
        # The list may miss a child while others end; with none to wait for, -1 counts as ended.
        if not doomed and (spared or _has_ended(-1)):
            return
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)


def _has_ended(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


class Keeper:
    """Guards one program for the runtime, from its start to the last of its descendants."""

    def __init__(self, control: socket.socket, wake: int) -> None:
        self._control = control
        self._wake = wake
        self._program = 0
        self._code: int | None = None
        self._line = b""
        self._left = list[bytes]()
        self._failed_step = ""
        self._deadline = math.inf
        self._is_late = False

    def run(self, folder: int, streams: list[int]) -> None:
        """Start the program, follow it, and end everything it leaves behind."""
        with ExitStack() as files:
            try:
                self._start(folder, streams, files)
            except OSError as error:
                self._report(FAILED, error.errno or 0)
                with contextlib.suppress(OSError):
                    self._control.sendall(self._failed_step.encode())
                return
            for stream in streams:
                os.close(stream)
            try:
                self._report(STARTED, os.getpid())
                self._follow()
                self._report_left()
            finally:  # whatever fails, nothing outlives the keeper
                kill_children([self._program])
                if self._code is None:
                    self._note_exit(0)
                _has_ended(self._program)
                end_children()
        self._report(GONE, self._is_late)

    def _start(self, folder: int, streams: list[int], files: ExitStack) -> None:
        request = read_request(self._control)
        self._line = b" ".join(request.argv)
        if not request.jail:
            os.fchdir(folder)
            os.close(folder)
            self._program = _spawn(request.argv, request.env, streams)
            return
        jail = import_jail().Jail(**marshal.loads(request.jail))  # noqa: S302 - from the runtime
        try:
            folder = jail.enter(folder, files)
            os.fchdir(folder)
            os.close(folder)
            argv = jail.command(request.argv, files)
            self._program = jail.start(lambda: _spawn(argv, request.env, streams))
        except OSError:
            self._failed_step = jail.step
            raise

    def _follow(self) -> None:
        """Report the program's end; return when the runtime asks for the end, is gone or late."""
        while (left := self._deadline - now()) > 0:
            wait_s = None if left == math.inf else min(left, _LOOK_S)
            ready, _, _ = select.select([self._control, self._wake], [], [], wait_s)
            if self._wake in ready:
                os.read(self._wake, 4096)
                self._reap()
            if self._control in ready:
                request = b""
                with contextlib.suppress(OSError):
                    request = self._control.recv(1)
                    if request == RENEW:
                        deadline = _receive(self._control, LENGTH_BYTES)
                        self._deadline = int.from_bytes(deadline, "big") / 1000
                        continue
                if request != TERMINATE:
                    return
                if self._code is None:
                    self._note_left()
                    with contextlib.suppress(OSError):
                        os.killpg(self._program, signal.SIGTERM)
        self._is_late = self._code is None

    def _note_left(self) -> None:
        """Note what still runs; a list that cannot be made keeps no program from being ended."""
        with contextlib.suppress(Exception):
            self._left = left_running(self._program, self._line)

    def _report_left(self) -> None:
        """Report what the program leaves running, apart from what is just ending."""
        until = now() + _END_BY_THEMSELVES_S
        while self._code is not None and not self._left and {*children()} - {self._program}:
            if now() > until:
                self._note_left()
                break
            time.sleep(_END_BY_THEMSELVES_S / 10)
            self._reap()
        more = len(self._left) - _MOST_LEFT
        lines = self._left[:_MOST_LEFT] + ([b"%d more" % more] if more > 0 else [])
        if lines:
            self._report(LEFT, len(FIELD_END.join(lines)))
            with contextlib.suppress(OSError):
                self._control.sendall(FIELD_END.join(lines))

    def _reap(self) -> None:
        # A thread that is just ending may still be the one that has the program for its child.
        for pid in {*children(), self._program}:
            if pid != self._program:
                _has_ended(pid)
            elif self._code is None:
                self._note_exit()

    def _note_exit(self, wait: int = os.WNOHANG) -> None:
        """Notice the program's end without taking its number away: it still means its group."""
        ended = os.waitid(os.P_PID, self._program, os.WEXITED | os.WNOWAIT | wait)
        if ended is not None:
            is_signal = ended.si_code != os.CLD_EXITED
            self._code = ended.si_status + (128 if is_signal else 0)
            self._report(ENDED, self._code)

    def _report(self, kind: bytes, number: int = 0) -> None:
        with contextlib.suppress(OSError):
            self._control.sendall(message(kind, number))


def _spawn(argv: list[bytes], env: dict[bytes, bytes], streams: list[int]) -> int:
    try:
        return _spawn_file(argv, env, streams)
    except OSError as error:
        if error.errno != errno.ENOEXEC or _is_binary(argv[0]):
            raise
        # A script without its first line: every shell runs it so.
        return _spawn_file([_SHELL, *argv], env, streams)


def _is_binary(file: bytes) -> bool:
    try:
        with open(file, "rb", buffering=0) as opened:  # noqa: PTH123
            return FIELD_END in opened.read(512)
    except OSError:
        return False


def _spawn_file(argv: list[bytes], env: dict[bytes, bytes], streams: list[int]) -> int:
    return os.posix_spawn(
        argv[0],
        argv,
        env,
        file_actions=[(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(streams)],
        setsid=True,
        setsigmask=[],
        setsigdef=_DEFAULT_AGAIN,
    )


class Request(NamedTuple):
    """A keeper's request: a program's arguments, its environment, and its confinement."""

    argv: list[bytes]
    env: dict[bytes, bytes]
    jail: bytes


def read_request(control: socket.socket) -> Request:
    """Read a request.

    Raises:
        OSError: the runtime has gone away in the middle of it.
    """
    sizes = _receive(control, 2 * LENGTH_BYTES)
    jail = _receive(control, int.from_bytes(sizes[:LENGTH_BYTES], "big"))
    content = _receive(control, int.from_bytes(sizes[LENGTH_BYTES:], "big"))
    fields = content.split(FIELD_END)[:-1]
    count = int(fields[0])
    env = (entry.partition(b"=") for entry in fields[1 + count :])
    return Request(fields[1 : 1 + count], {name: value for name, _, value in env}, jail)


def _receive(control: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        chunk = control.recv(min(size - len(received), 1 << 20))
        if not chunk:
            raise ConnectionResetError
        received += chunk
    return bytes(received)


def import_jail() -> ModuleType:
    """The module that confines programs, without the packages it lies in."""
    here = Path(__file__).parent
    for name, folder in (("agent_core", here.parent), ("agent_core.process", here)):
        package = sys.modules.setdefault(name, ModuleType(name))
        package.__path__ = [str(folder)]
    return importlib.import_module("agent_core.process.jail")


def _receive_descriptors(requests: socket.socket) -> list[int] | None:
    """Receive the descriptors of the next request; None when there will be no more."""
    flags = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
    fds = array.array("i")
    data, ancillary, _, _ = requests.recvmsg(
        1, socket.CMSG_SPACE(DESCRIPTORS * fds.itemsize), flags
    )
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    for fd in fds:
        os.set_inheritable(fd, False)
    if data == CONFINED:
        import_jail().prepare()  # here, so that the keepers inherit it
    return list(fds) if data else None


def serve(requests: socket.socket) -> None:
    """Fork a keeper for each request until the runtime is gone and all keepers are, too."""
    adopt = adoption()
    adopt()
    wake = _open_exit_pipe()
    gc.freeze()  # objects shared with keepers are not collected, and so not copied
    keepers = set[int]()
    is_open = True
    while is_open or keepers:
        ready, _, _ = select.select([wake, *([requests] if is_open else [])], [], [])
        if wake in ready:
            os.read(wake, 4096)
            keepers = {pid for pid in keepers if not _has_ended(pid)}
            end_children(spared=keepers)  # end processes left by a keeper that was killed
        if requests in ready:
            fds = _receive_descriptors(requests)
            is_open = fds is not None
            if fds and len(fds) == DESCRIPTORS:
                keepers.add(_fork_keeper(requests, fds, adopt))
            for fd in fds or ():
                os.close(fd)


def _open_exit_pipe() -> int:
    """A descriptor that can be read whenever a child has ended."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)

    def write_again(_number: int, _frame: FrameType | None) -> None:
        """The interpreter writes when the signal arrives; this makes up for a write that failed."""
        with contextlib.suppress(OSError):  # full: it can be read already
            os.write(write, FIELD_END)

    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, write_again)
    return read


def _fork_keeper(requests: socket.socket, fds: list[int], adopt: Callable[[], object]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        adopt()
        requests.close()
        control = socket.socket(fileno=fds[0])
        control.setblocking(True)
        Keeper(control, _open_exit_pipe()).run(fds[1], fds[2:])
    finally:
        os._exit(0)


def main() -> None:
    """Serve the socket that is the standard input, or print the abilities of jails."""
    if sys.argv[1:] == ["probe"]:
        sys.stdout.write(import_jail().abilities())
        return
    if os.fork():  # the runtime gets no child that it would have to wait for later
        os._exit(0)
    os.chdir("/")
    for name in os.listdir("/dev/fd"):  # noqa: PTH208
        if int(name) > 2:
            with contextlib.suppress(OSError):
                os.close(int(name))
    serve(socket.socket(fileno=0))


if __name__ == "__main__":
    main()
