"""Texts from outside, made safe to read, to list and to count."""

import hashlib
import os
import stat
from pathlib import Path
from typing import Any

from pydantic_core import PydanticSerializationError, to_json

MAX_TEXT_BYTES = 262_144
"""What is kept of an instruction file or a skill at most."""
HEAD_BYTES = 16_384
"""Enough for any front matter."""


def read_text_file(path: Path, limit: int) -> bytes:
    """The first `limit` bytes of a regular file.

    Raises:
        OSError: it cannot be read, or is no regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(0, "it is no regular file")
        return file.read(limit)


def digest(content: bytes) -> str:
    """The hash by which versions of a text are told apart."""
    return hashlib.sha256(content).hexdigest()


def one_line(text: str) -> str:
    """Without line breaks and control characters: an entry of a list stays an entry."""
    return "".join(c for c in " ".join(text.split()) if c.isprintable())


def json_bytes(value: Any) -> bytes:
    """`value` as JSON, or as near to it as something that has no form in JSON comes."""
    try:
        return to_json(value)
    except (PydanticSerializationError, ValueError, RecursionError):
        pass
    try:
        return repr(value).encode("utf-8", "replace")
    except (ValueError, RecursionError):
        return f"({type(value).__name__})".encode()
