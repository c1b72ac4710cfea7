"""Objects in packs: compressed contents, named by SHA-256, in files that never change.

A pack is written under another name, flushed, and renamed when it is complete, so a process that
dies leaves no partial pack. The objects follow one another, each with a header; after them come all
digests in order, the position of each object, and a footer. If this end is damaged, the objects are
found by their headers.
"""

import hashlib
import os
import re
import secrets
import struct
import zlib
from bisect import bisect_left
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Self

from agent_core.disk.folders import flush_folder, make_private
from agent_core.errors import ErrorCode, StorageError
from agent_core.opening import open_descriptor

DIGEST_BYTES = 32

_MAGIC = b"soongpk1"
_HEADER = struct.Struct("<32sQQB")  # digest, stored bytes, bytes, is compressed
_FOOTER = struct.Struct("<QQ32s8s")  # start of the index, objects, its SHA-256, magic
_PLACE = struct.Struct("<Q")
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_NAME = re.compile(r"[0-9a-f]{16}\.pack").fullmatch
_PROBE_BYTES = 16_384
_LARGEST = 1 << 32


def digest_of(content: bytes) -> bytes:
    """Return the digest that names an object."""
    return hashlib.sha256(content).digest()


class MissingObjectError(StorageError):
    """No pack has the object, or every copy of it is damaged."""

    def __init__(self, digest: bytes, folder: Path, problem: str) -> None:
        super().__init__(
            ErrorCode.STORAGE_ERROR,
            f"the object {digest.hex()[:16]} {problem} in the snapshots at {folder}",
            details={"reason": "damaged", "digest": digest.hex()},
        )


class Pack:
    """One complete pack, open for reading."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = open_descriptor(path, _READ)
        try:
            self.size = os.fstat(self._file).st_size
            self._digests, self._places = self._read_index() or self._scan()
        except BaseException:
            os.close(self._file)
            raise
        self._numbers = range(len(self._digests) // DIGEST_BYTES)

    def close(self) -> None:
        os.close(self._file)

    def items(self) -> Iterator[tuple[bytes, int]]:
        """Return the digests of its objects in order, with the position of each."""
        places = (place for (place,) in _PLACE.iter_unpack(self._places))
        return zip(map(self._digest, self._numbers), places, strict=True)

    def find(self, digest: bytes) -> int | None:
        """Return the position of an object; None if this pack does not have it."""
        at = bisect_left(self._numbers, digest, key=self._digest)
        if at == len(self._numbers) or self._digest(at) != digest:
            return None
        return _PLACE.unpack_from(self._places, at * _PLACE.size)[0]

    def stored_size(self, place: int) -> int:
        """Return the bytes that the object at this position takes.

        Raises:
            OSError: the pack cannot be read.
        """
        header = os.pread(self._file, _HEADER.size, place)
        if len(header) < _HEADER.size:
            return 0
        return _HEADER.size + min(_HEADER.unpack(header)[1], self.size)

    def record(self, place: int) -> bytes:
        """Return the object at this position as it is stored, including its header."""
        return os.pread(self._file, self.stored_size(place), place)

    def read(self, digest: bytes, place: int) -> bytes | None:
        """Return the content of the object at this position; None if it is damaged.

        Raises:
            OSError: the pack cannot be read.
        """
        record = self.record(place)
        if len(record) < _HEADER.size:
            return None
        _, stored, size, is_compressed = _HEADER.unpack_from(record)
        content = record[_HEADER.size :]
        if len(content) != stored or size > _LARGEST:
            return None
        if is_compressed:
            try:
                content = zlib.decompressobj().decompress(content, size + 1)
            except zlib.error:
                return None
        return content if digest_of(content) == digest else None

    def _digest(self, number: int) -> bytes:
        return self._digests[number * DIGEST_BYTES : (number + 1) * DIGEST_BYTES]

    def _read_index(self) -> tuple[bytes, bytes] | None:
        """Read the digests and positions at the end; None if they are damaged."""
        footer = os.pread(self._file, _FOOTER.size, max(0, self.size - _FOOTER.size))
        if len(footer) < _FOOTER.size:
            return None
        begin, objects, checksum, magic = _FOOTER.unpack(footer)
        length = objects * (DIGEST_BYTES + _PLACE.size)
        if magic != _MAGIC or begin + length + _FOOTER.size != self.size:
            return None
        index = os.pread(self._file, length, begin)
        if digest_of(index) != checksum:
            return None
        return index[: objects * DIGEST_BYTES], index[objects * DIGEST_BYTES :]

    def _scan(self) -> tuple[bytes, bytes]:
        """Find the digests and positions of undamaged objects, up to the first damaged one."""
        found: dict[bytes, int] = {}
        place = len(_MAGIC)
        while len(header := os.pread(self._file, _HEADER.size, place)) == _HEADER.size:
            digest, stored = _HEADER.unpack(header)[:2]
            if self.read(digest, place) is None:
                break
            found[digest] = place
            place += _HEADER.size + stored
        return _index_of(found)


class PackWriter:
    """A pack that is being written; its file exists from the first object on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._part: Path | None = None
        self._file: BinaryIO | None = None
        self._at = 0
        self.places: dict[bytes, int] = {}

    def add(self, digest: bytes, content: bytes) -> None:
        """Write an object.

        Raises:
            StorageError: it cannot be written.
        """
        stored = _compressed(content)
        header = _HEADER.pack(digest, len(stored), len(content), stored is not content)
        self.add_record(digest, header + stored)

    def add_record(self, digest: bytes, record: bytes) -> None:
        """Write an object in the form stored in another pack.

        Raises:
            StorageError: it cannot be written.
        """
        with self._writing():
            if self._file is None:
                self._part = self._folder / f".{secrets.token_hex(8)}.part"
                self._file = os.fdopen(open_descriptor(self._part, _NEW, 0o600), "wb", 1 << 20)
                self._at = self._file.write(_MAGIC)
            self.places[digest] = self._at
            self._at += self._file.write(record)

    def commit(self) -> int:
        """Complete the pack and give it its name, with its objects on the disk; return its size.

        Raises:
            StorageError: it cannot be written.
        """
        if self._file is None or self._part is None:
            return 0
        with self._writing():
            digests, places = _index_of(self.places)
            index = digests + places
            self._file.write(index)
            footer = _FOOTER.pack(self._at, len(self.places), digest_of(index), _MAGIC)
            self._file.write(footer)
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._part.replace(self._folder / f"{self._part.name[1:17]}.pack")
            flush_folder(self._folder)
        self._part = self._file = None
        self.places = {}
        return self._at + len(index) + len(footer)

    @contextmanager
    def _writing(self) -> Generator[None]:
        """Distinguish a disk that cannot be written from a workspace that cannot be read.

        Raises:
            StorageError: instead of the `OSError`.
        """
        try:
            yield
        except OSError as error:
            raise StorageError(
                ErrorCode.STORAGE_ERROR,
                f"no snapshot can be written to {self._folder}: {error.strerror};"
                " check the space, the limits and the permissions there",
                details={"path": str(self._folder)},
            ) from error

    def abandon(self) -> None:
        """Remove the objects that were not committed; harmless after a commit."""
        if self._part is not None:
            self._part.unlink(missing_ok=True)
        if self._file is not None:
            with suppress(OSError):  # the buffered bytes do not fit either
                self._file.close()
        self._part = self._file = None
        self.places = {}


class Packs:
    """All packs of a folder, for one operation; the caller prevents their removal.

    Objects that are put are found at once, and are stored with the next `commit`.
    """

    def __init__(self, folder: Path) -> None:
        make_private(folder)
        self._folder = folder
        self._packs: list[Pack] | None = None
        self._writer = PackWriter(folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.abandon()
        for pack in self._packs or ():
            pack.close()
        self._packs = None

    def __iter__(self) -> Iterator[Pack]:
        """Iterate over the packs, newest first."""
        return iter(self._opened())

    def has(self, digest: bytes) -> bool:
        """Return whether an object exists."""
        if digest in self._writer.places:
            return True
        return any(pack.find(digest) is not None for pack in self._opened())

    def put(self, content: bytes) -> bytes:
        """Put a content, unless it exists, and return its digest."""
        digest = digest_of(content)
        if not self.has(digest):
            self._writer.add(digest, content)
        return digest

    def get(self, digest: bytes) -> bytes:
        """Return the content of an object, checked against its digest.

        Raises:
            MissingObjectError: there is none, or it is damaged.
            OSError: a pack cannot be read.
        """
        problem = "is missing"
        for pack in self._opened():
            place = pack.find(digest)
            if place is not None:
                content = pack.read(digest, place)
                if content is not None:
                    return content
                problem = f"is damaged ({pack.path.name})"
        raise MissingObjectError(digest, self._folder, problem)

    def record(self, digest: bytes) -> bytes:
        """Return an object as it is stored, with its header and unchecked.

        Raises:
            MissingObjectError: there is none.
            OSError: a pack cannot be read.
        """
        for pack in self._opened():
            place = pack.find(digest)
            if place is not None and (record := pack.record(place)).startswith(digest):
                return record
        raise MissingObjectError(digest, self._folder, "is missing")

    def count(self) -> int:
        """Return the number of packs."""
        return sum(1 for name in os.listdir(self._folder) if _NAME(name))  # noqa: PTH208

    def commit(self) -> None:
        """Write all objects that were put to the disk.

        Raises:
            StorageError: it cannot be written.
        """
        self._writer.commit()
        if self._packs is not None:
            for pack in self._packs:
                pack.close()
            self._packs = None

    def _opened(self) -> list[Pack]:
        if self._packs is None:
            paths = [path for path in self._folder.iterdir() if _NAME(path.name)]
            paths.sort(key=lambda path: path.lstat().st_mtime_ns, reverse=True)
            self._packs = []
            for path in paths:
                self._packs.append(Pack(path))
        return self._packs


def _compressed(content: bytes) -> bytes:
    """Compress the content; the same object if that does not save space."""
    probe = content[:_PROBE_BYTES]
    if len(content) > len(probe) and len(zlib.compress(probe, 1)) > 0.9 * len(probe):
        return content
    smaller = zlib.compress(content, 1)
    return smaller if len(smaller) < len(content) else content


def _index_of(places: dict[bytes, int]) -> tuple[bytes, bytes]:
    digests = sorted(places)
    return b"".join(digests), b"".join(_PLACE.pack(places[digest]) for digest in digests)
