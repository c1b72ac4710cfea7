"""Reading the first bytes of a file that may be anything."""

import os
import stat
import time
from pathlib import Path

from agent_core.opening import open_descriptor

MAX_TEXT_BYTES = 262_144
"""The most that is kept of an instruction file or a skill."""
HEAD_BYTES = 16_384
"""Enough for any front matter."""


FileVersion = tuple[int, int, int, int]

_SETTLED_NS = 2_000_000_000
"""No file system's clock is coarser: what is older was not changed twice in one tick of it."""


def version_of(path: Path) -> FileVersion | None:
    """What tells this content of a file from any other; None while it is too new to tell.

    Raises:
        OSError: there is no such file.
    """
    found = os.stat(path)  # noqa: PTH116 - asked of every file, for every run
    changed_ns = max(found.st_mtime_ns, found.st_ctime_ns)
    if time.time_ns() - changed_ns < _SETTLED_NS:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def read_text_file(path: Path, limit: int) -> bytes:
    """Read the first `limit` bytes of a regular file; never wait for a pipe.

    Raises:
        OSError: it cannot be read, or is no regular file.
    """
    descriptor = open_descriptor(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(0, "it is no regular file")
        return file.read(limit)
