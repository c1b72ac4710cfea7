"""Reads which files Git tracks, from the index of a repository, without running Git."""

import os
import struct
from collections.abc import Iterator
from contextlib import suppress

from agent_core.opening import read_beginning

GITLINK = 0o160000
"""The mode of a folder that is a repository of its own."""

_HEADER, _MODE, _FIXED, _EXTENDED = 12, 24, 40, 0x4000
_LARGEST_INDEX = 64_000_000


def read_index(file: str, *, digest: int) -> Iterator[tuple[int, str]]:
    """Yield the modes and paths in an index, as far as it can be read.

    Args:
        file: of the index.
        digest: the length of its digests.
    """
    with suppress(ValueError, IndexError, struct.error):
        for mode, name in _entries(read_beginning(file, _LARGEST_INDEX), digest):
            yield mode, os.fsdecode(name)


def _entries(content: bytes, digest: int) -> Iterator[tuple[int, bytes]]:
    signature, version, count = struct.unpack_from(">4sII", content)
    if signature != b"DIRC" or version not in {2, 3, 4}:
        raise ValueError(version)
    at, name = _HEADER, b""
    for _ in range(count):
        begin = at
        (mode,) = struct.unpack_from(">I", content, at + _MODE)
        (flags,) = struct.unpack_from(">H", content, at + _FIXED + digest)
        at += _FIXED + digest + (4 if flags & _EXTENDED else 2)
        if version == 4:
            cut, at = _variable_number(content, at)
            end = content.index(b"\0", at)
            name = name[: len(name) - cut] + content[at:end]
            at = end + 1
        else:
            end = content.index(b"\0", at)
            name = content[at:end]
            at = begin + (end - begin + 8) // 8 * 8
        yield mode, name


def _variable_number(content: bytes, at: int) -> tuple[int, int]:
    """Return a number of variable length, and where the next field begins."""
    number = content[at] & 0x7F
    while content[at] & 0x80:
        at += 1
        number = ((number + 1) << 7) | (content[at] & 0x7F)
    return number, at + 1
