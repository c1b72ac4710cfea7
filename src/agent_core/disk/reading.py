"""Reading the first bytes of a file that may be anything."""

import os
import stat
from pathlib import Path

MAX_TEXT_BYTES = 262_144
"""The most that is kept of an instruction file or a skill."""
HEAD_BYTES = 16_384
"""Enough for any front matter."""


def read_text_file(path: Path, limit: int) -> bytes:
    """Read the first `limit` bytes of a regular file; never wait for a pipe.

    Raises:
        OSError: it cannot be read, or is no regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(0, "it is no regular file")
        return file.read(limit)
