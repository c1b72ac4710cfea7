"""Processes that left their group (`setsid`) but still hold a pipe of ours."""

import contextlib
import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")


def kill_writers(*pipes: int) -> None:
    """Kill whoever could still write into one of our pipes.

    Found where there is a `/proc`; elsewhere such a process outlives its command. One that has
    left its group and let go of the pipes is no longer to be told from any other.
    """
    wanted = {f"pipe:[{os.fstat(pipe).st_ino}]" for pipe in pipes if _has_writers(pipe)}
    if not wanted:
        return
    for pid in _writers(wanted):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _has_writers(pipe: int) -> bool:
    poll = select.poll()
    poll.register(pipe, 0)
    return not any(event & select.POLLHUP for _, event in poll.poll(0))


def _writers(wanted: set[str]) -> Iterator[int]:
    for process in _entries(_PROC):
        if process.name.isdigit() and int(process.name) != os.getpid():
            held = _entries(process / "fd")
            if any(_target(fd) in wanted and _writes(process, fd.name) for fd in held):
                yield int(process.name)


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:  # it has ended, or is not ours to look at
        return []


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""


def _writes(process: Path, number: str) -> bool:
    try:
        lines = (process / "fdinfo" / number).read_text(encoding="ascii").splitlines()
    except OSError:
        return False
    flags = next((line.split()[1] for line in lines if line.startswith("flags:")), "0")
    return int(flags, 8) & os.O_ACCMODE != os.O_RDONLY
