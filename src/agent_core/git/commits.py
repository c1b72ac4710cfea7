"""Commits in the object store of a repository, read within bounds."""

import os
import struct
import zlib
from pathlib import Path
from typing import Self

from agent_core.opening import open_descriptor, read_text_file

_MAX_OBJECT = 16 << 20
_MAX_DELTAS = 60
_MAX_PACKS = 200
_COMMIT, _BY_PLACE, _BY_DIGEST = 1, 6, 7
_IDX_MAGIC = b"\xfftOc\0\0\0\2"
_FANOUT_AT = 8
_ITEMS_AT = _FANOUT_AT + 4 * 256
_FAR = 1 << 31


class UnreadableError(Exception):
    """A repository cannot be read, or not within bounds."""


class GitCommits:
    """Reads the commits of one repository.

    Args:
        folder: `.git/objects`.
        digest_bytes: the size of a digest.
    """

    def __init__(self, folder: Path, digest_bytes: int) -> None:
        self._folder = folder
        self._digest_bytes = digest_bytes
        self._packs: list[tuple[int, int]] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pair in self._packs or ():
            for descriptor in pair:
                os.close(descriptor)

    def tree_of(self, commit: bytes) -> bytes:
        """Return the digest of the root folder of a commit.

        Raises:
            UnreadableError: it cannot be read.
        """
        try:
            line = self._read(commit).partition(b"\n")[0]
            if line.startswith(b"tree "):
                return bytes.fromhex(line[5:].decode("ascii"))
        except (OSError, struct.error, zlib.error, IndexError, ValueError) as error:
            raise UnreadableError from error
        raise UnreadableError

    def _read(self, digest: bytes) -> bytes:
        stored = self._loose(digest)
        return self._packed(digest, _MAX_DELTAS) if stored is None else stored

    def _loose(self, digest: bytes) -> bytes | None:
        name = digest.hex()
        try:
            stored = read_text_file(self._folder / name[:2] / name[2:], _MAX_OBJECT)
        except OSError:
            return None
        head, _, content = zlib.decompressobj().decompress(stored, _MAX_OBJECT).partition(b"\0")
        if not head.startswith(b"commit "):
            raise UnreadableError
        return content

    def _packed(self, digest: bytes, deltas: int) -> bytes:
        for index, pack in self._opened():
            place = self._find(index, digest)
            if place is not None:
                return self._at(pack, place, deltas)
        raise UnreadableError

    def _opened(self) -> list[tuple[int, int]]:
        if self._packs is None:
            self._packs = []
            for path in sorted((self._folder / "pack").glob("*.idx"))[:_MAX_PACKS]:
                flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
                index = open_descriptor(path, flags)
                try:
                    self._packs.append((index, open_descriptor(path.with_suffix(".pack"), flags)))
                except OSError:
                    os.close(index)
                    raise
        return self._packs

    def _find(self, index: int, digest: bytes) -> int | None:
        """Return the position of an object in the pack of this index; None if it is not there."""
        if os.pread(index, 8, 0) != _IDX_MAGIC:
            return None
        size = self._digest_bytes
        begin = 0
        if digest[0]:
            (begin,) = struct.unpack(">I", os.pread(index, 4, _FANOUT_AT + 4 * (digest[0] - 1)))
        (end,) = struct.unpack(">I", os.pread(index, 4, _FANOUT_AT + 4 * digest[0]))
        (count,) = struct.unpack(">I", os.pread(index, 4, _FANOUT_AT + 4 * 255))
        while begin < end:
            middle = (begin + end) // 2
            found = os.pread(index, size, _ITEMS_AT + middle * size)
            if found == digest:
                places_at = _ITEMS_AT + count * (size + 4)
                (place,) = struct.unpack(">I", os.pread(index, 4, places_at + 4 * middle))
                if place & _FAR:
                    far_at = places_at + 4 * count + 8 * (place & ~_FAR)
                    (place,) = struct.unpack(">Q", os.pread(index, 8, far_at))
                return place
            if found < digest:
                begin = middle + 1
            else:
                end = middle
        return None

    def _at(self, pack: int, place: int, deltas: int) -> bytes:
        """Return the commit at this position, resolving its deltas."""
        head = os.pread(pack, 64, place)
        kind, size, at = head[0] >> 4 & 7, head[0] & 15, 1
        shift = 4
        while head[at - 1] & 0x80:
            size |= (head[at] & 0x7F) << shift
            shift += 7
            at += 1
        if size > _MAX_OBJECT or not deltas:
            raise UnreadableError
        if kind == _COMMIT:
            return _inflated_at(pack, place + at, size)
        if kind == _BY_PLACE:
            back = head[at] & 0x7F
            while head[at] & 0x80:
                at += 1
                back = (back + 1 << 7) | (head[at] & 0x7F)
            base = self._at(pack, place - back, deltas - 1)
            return _patched(base, _inflated_at(pack, place + at + 1, size))
        if kind == _BY_DIGEST:
            base = self._packed(head[at : at + self._digest_bytes], deltas - 1)
            at += self._digest_bytes
            return _patched(base, _inflated_at(pack, place + at, size))
        raise UnreadableError


def _inflated_at(pack: int, place: int, size: int) -> bytes:
    inflate = zlib.decompressobj()
    content = b""
    while len(content) < size and not inflate.eof:
        stored = os.pread(pack, 65_536, place)
        if not stored:
            raise UnreadableError
        place += len(stored)
        content += inflate.decompress(stored, size - len(content))
    return content


def _patched(base: bytes, delta: bytes) -> bytes:
    """Apply a delta to the object it is based on."""
    at = _skip_number(delta, _skip_number(delta, 0))
    pieces: list[bytes] = []
    size = 0
    while at < len(delta):
        sign = delta[at]
        at += 1
        if sign & 0x80:
            numbers = [0] * 7
            for bit in range(7):
                if sign & 1 << bit:
                    numbers[bit] = delta[at]
                    at += 1
            begin = int.from_bytes(numbers[:4], "little")
            pieces.append(base[begin : begin + (int.from_bytes(numbers[4:], "little") or 0x10000)])
        else:
            pieces.append(delta[at : at + sign])
            at += sign
        size += len(pieces[-1])
        if size > _MAX_OBJECT:
            raise UnreadableError
    return b"".join(pieces)


def _skip_number(content: bytes, at: int) -> int:
    while content[at] & 0x80:
        at += 1
    return at + 1
