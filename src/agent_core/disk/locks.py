"""Locks between processes, which end with the process that holds them."""

import fcntl
import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from agent_core.opening import open_descriptor

_OPEN = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
_LONGEST_WAIT = 0.05


@contextmanager
def locked(
    path: Path, *, check: Callable[[], None], shared: bool = False, create: bool = True
) -> Generator[None]:
    """Hold the lock of this file.

    Args:
        path: the lock file; its folder exists.
        check: called while waiting; raises to give up.
        shared: others may hold it as shared too.
        create: make the file if it is missing; False opens it read-only.

    Raises:
        OSError: the file cannot be made, or opened.
    """
    with closing_lock(open_descriptor(path, _OPEN if create else _READ, 0o600)) as descriptor:
        wait = 0.001
        while not try_lock(descriptor, shared=shared):
            check()
            time.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT)
        yield


@contextmanager
def locked_if_free(path: Path, *, wait_s: float = 0.0) -> Generator[bool]:
    """Try to hold the lock of this file alone, and yield whether it was free.

    Args:
        path: the lock file; its folder exists.
        wait_s: the seconds for which it is tried.

    Raises:
        OSError: the file cannot be created.
    """
    ends, wait = time.monotonic() + wait_s, 0.001
    with closing_lock(open_descriptor(path, _OPEN, 0o600)) as descriptor:
        while not (is_free := try_lock(descriptor, shared=False)) and time.monotonic() < ends:
            time.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT)
        yield is_free


@contextmanager
def closing_lock(descriptor: int) -> Generator[int]:
    """Release the lock of an open file at the end of the block, and close the file.

    Closing alone would leave the lock to a process forked in the meantime, which itself does not
    release it.
    """
    process = os.getpid()
    try:
        yield descriptor
    finally:
        if os.getpid() == process:
            with suppress(OSError):  # the file system has no locks
                fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def try_lock(descriptor: int, *, shared: bool) -> bool:
    """Try to take the lock of an open file; False if another process has it.

    Raises:
        OSError: the file system has no locks.
    """
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
