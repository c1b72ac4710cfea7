"""A program's output in bounded memory: its head, its tail, and the whole of it on disk."""

import contextlib
import tempfile
from codecs import getincrementaldecoder
from typing import BinaryIO, Self, cast

from msgspec import Struct

from agent_core.text import noun

SPOOL_LIMIT_BYTES = 64 * 2**20
"""Bytes kept on disk at most: a program that floods its output must not fill the disk."""


class Output(Struct, frozen=True):
    """The output of a program on one of its streams.

    Attributes:
        text: all of it, or head and tail with a line between them that counts the bytes left out.
        size_bytes: bytes written in total.
        truncated: `text` is not complete.
        spool: then, an open file with all of it (at most 64 MiB), unless the disk refused it. It
            has no name: it is gone when it is closed, or when this process ends.
    """

    text: str
    size_bytes: int
    truncated: bool = False
    spool: BinaryIO | None = None

    def discard(self) -> None:
        """Close the spool file. Harmless when called again."""
        if self.spool is not None:
            self.spool.close()


class Capture:
    """Takes chunks as they come. Leaving it as a context removes a file that was not taken."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._half = max(limit_bytes // 2, 1)
        self._head = bytearray()
        self._tail = bytearray()
        self._size = 0
        self._truncated = False
        self._file: BinaryIO | None = None
        self._room = SPOOL_LIMIT_BYTES

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_failure: object) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, chunk: bytes) -> None:
        """Keep the next piece of output."""
        self._size += len(chunk)
        if not self._truncated:
            self._head += chunk
            if self._size > self._limit:
                self._overflow()
            return
        self._spool(chunk)
        self._tail += chunk
        if len(self._tail) > 4 * self._half:
            del self._tail[: -self._half]

    def take(self) -> Output:
        """Return the output that was kept. The spool file, if any, now belongs to the caller."""
        file, self._file = self._file, None
        if not self._truncated:
            return Output(self._head.decode(errors="replace"), self._size)
        head, tail = _whole_characters(self._head, self._tail[-self._half :])
        left_out = self._size - len(head) - len(tail)
        marker = f"\n… [{left_out} {noun(left_out, 'byte')} left out] …\n"
        text = head.decode(errors="replace") + marker + tail.decode(errors="replace")
        return Output(text, self._size, truncated=True, spool=file)

    def _overflow(self) -> None:
        self._truncated = True
        with contextlib.suppress(OSError):  # no room for a file: head and tail are still there
            self._file = cast(
                "BinaryIO",
                tempfile.TemporaryFile(buffering=0),  # noqa: SIM115 - closed by the caller
            )
        self._spool(self._head)
        self._tail[:] = self._head[self._half :]
        del self._head[self._half :]

    def _spool(self, chunk: bytes | bytearray) -> None:
        if self._file is None or not self._room:
            return
        kept = chunk[: self._room]
        try:
            written = self._file.write(kept)
        except OSError:  # the disk is full: keep the part that was written
            written = 0
        self._room = self._room - written if written == len(kept) else 0


def _whole_characters(head: bytearray, tail: bytearray) -> tuple[bytes, bytes]:
    """Both without the halves of UTF-8 characters that the cut has left at their edges."""
    decoder = getincrementaldecoder("utf-8")("replace")
    decoder.decode(bytes(head))
    end = len(head) - len(decoder.getstate()[0])
    start = 0
    while start < min(3, len(tail)) and tail[start] & 0xC0 == 0x80:
        start += 1
    return bytes(head[:end]), bytes(tail[start:])
