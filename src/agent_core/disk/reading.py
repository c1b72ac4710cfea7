"""Read the first bytes of a file of any kind."""

import os
import stat
import time
from pathlib import Path

from agent_core.opening import open_descriptor

MAX_TEXT_BYTES = 262_144
"""Most bytes that are kept of an instruction file or a skill."""
HEAD_BYTES = 16_384
"""Bytes that are enough for any front matter."""


FileVersion = tuple[int, int, int, int]

_SETTLED_NS = 2_000_000_000
"""No file system's clock is coarser: an older file was not changed twice within one tick."""


def version_of(path: Path) -> FileVersion | None:
    """Return a value that identifies this content of a file; None while the file is too new.

    Raises:
        OSError: there is no such file.
    """
    found = os.stat(path)  # noqa: PTH116 - called for every file, in every run
    changed_ns = max(found.st_mtime_ns, found.st_ctime_ns)
    if time.time_ns() - changed_ns < _SETTLED_NS:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def read_text_file(path: Path, limit: int) -> bytes:
    """Read the first `limit` bytes of a regular file; never wait for a pipe.

    Raises:
        OSError: it cannot be read, or is not a regular file.
    """
    descriptor = open_descriptor(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(0, "it is no regular file")
        return file.read(limit)
