"""Content kept under its own SHA-256: what is stored twice takes the space of once."""

import asyncio
import hashlib
import io
import re
import secrets
from collections.abc import Collection, Iterator
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, Protocol

from agent_core.artifacts import files
from agent_core.disk.folders import flush_folder, make_private
from agent_core.errors import ErrorCode, StorageError
from agent_core.types import ArtifactSource, utc_now

_DIGEST = re.compile(r"[0-9a-f]{64}").fullmatch


class Blobs(Protocol):
    """Keeps bytes, unchanged, by the hex SHA-256 of what they are.

    Every method raises `StorageError` when the content cannot be read or written.
    """

    async def put(self, data: ArtifactSource) -> str:
        """Store the whole content, or nothing, and return its digest; a path is left in place."""
        ...

    async def open(self, digest: str) -> BinaryIO:
        """The content, from its start; the caller closes it.

        Raises:
            StorageError: `file_not_found`: there is no such content.
        """
        ...

    async def has(self, digest: str) -> bool:
        """Whether the content is there."""
        ...

    async def sweep(self, needed: Collection[str], *, put_before: datetime) -> int:
        """Remove content that is not needed and was last put before this; returns the bytes.

        The time keeps what was put a moment ago and is not referred to yet.
        """
        ...


class FileBlobs:
    """Blobs as private files, `<folder>/<2 digits>/<62 digits>`; several processes may share it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def put(self, data: ArtifactSource) -> str:
        return await asyncio.to_thread(self._put, data)

    async def open(self, digest: str) -> BinaryIO:
        place = self._place(digest)
        with files.explaining(place):
            return await asyncio.to_thread(files.open_file, place)

    async def has(self, digest: str) -> bool:
        return bool(_DIGEST(digest)) and await asyncio.to_thread(self._place(digest).is_file)

    async def sweep(self, needed: Collection[str], *, put_before: datetime) -> int:
        return await asyncio.to_thread(self._sweep, frozenset(needed), put_before)

    def _place(self, digest: str) -> Path:
        if not _DIGEST(digest):
            raise StorageError(ErrorCode.FILE_NOT_FOUND, f"{digest[:80]!r} is no SHA-256")
        return self._folder / digest[:2] / digest[2:]

    def _put(self, data: ArtifactSource) -> str:
        part = self._folder / f".{secrets.token_hex(8)}.part"
        digest = hashlib.sha256()

        def hashed_pieces() -> Iterator[bytes]:
            for piece in files.pieces_of(data):
                digest.update(piece)
                yield piece

        with files.explaining(part):
            make_private(self._folder)
            try:
                files.write_new(part, hashed_pieces())
                place = self._place(digest.hexdigest())
                make_private(place.parent)
                part.replace(place)  # the time of a blob is that of its last put
            except BaseException:
                part.unlink(missing_ok=True)
                raise
            flush_folder(place.parent)
        return digest.hexdigest()

    def _sweep(self, needed: Collection[str], put_before: datetime) -> int:
        freed = 0
        with files.explaining(self._folder):
            for path in [*self._folder.glob("??/*"), *self._folder.glob(".*.part")]:
                changed_at = files.changed_at(path)
                if path.parent.name + path.name in needed or changed_at is None:
                    continue
                if changed_at < put_before:
                    freed += path.lstat().st_size
                    path.unlink(missing_ok=True)
        return freed


class InMemoryBlobs:
    """Blobs that end with this object."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[bytes, datetime]] = {}

    async def put(self, data: ArtifactSource) -> str:
        with files.explaining(Path("memory")):
            content = await asyncio.to_thread(lambda: b"".join(files.pieces_of(data)))
        digest = hashlib.sha256(content).hexdigest()
        self._kept[digest] = (content, utc_now())
        return digest

    async def open(self, digest: str) -> BinaryIO:
        if digest not in self._kept:
            raise StorageError(ErrorCode.FILE_NOT_FOUND, f"there is no content {digest[:80]!r}")
        return io.BytesIO(self._kept[digest][0])

    async def has(self, digest: str) -> bool:
        return digest in self._kept

    async def sweep(self, needed: Collection[str], *, put_before: datetime) -> int:
        gone = [
            digest
            for digest, (_, put_at) in self._kept.items()
            if digest not in needed and put_at < put_before
        ]
        return sum(len(self._kept.pop(digest)[0]) for digest in gone)
