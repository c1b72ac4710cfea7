"""Blobs: immutable contents, named by their SHA-256 and checked when they are read."""

import hashlib
import tempfile
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

from msgspec import Struct

from agent_core.disk.folders import make_private
from agent_core.errors import ErrorCode, StorageError
from agent_core.opening import open_binary

PIECE_BYTES = 1 << 20
"""Bytes read or written at once."""


class BlobId(Struct, frozen=True):
    """The identity of a blob: the hex SHA-256 of its content, and its size."""

    digest: str
    size_bytes: int


class BlobStore(Protocol):
    """Keeps the contents of blobs. Every method blocks: call it in a thread.

    A blob is stored as a whole or not at all, whenever the writer dies.
    """

    @property
    def max_bytes(self) -> int | None:
        """Largest size of a blob in bytes; None for any size."""
        ...

    def put(self, blob: BlobId, file: BinaryIO) -> None:
        """Keep a content, read from the start of the file, unless it exists already.

        Raises:
            StorageError: it cannot be kept.
        """
        ...

    def pieces(self, digest: str) -> Iterator[bytes]:
        """Yield the stored content in pieces, unchecked.

        Raises:
            StorageError: `file_not_found`, or it cannot be read.
        """
        ...

    def delete(self, digest: str) -> None:
        """Remove a content, if there is one.

        Raises:
            StorageError: it cannot be removed.
        """
        ...


def checked(pieces: Iterable[bytes], digest: str) -> Iterator[bytes]:
    """Yield the pieces, and fail at the end if they do not match the digest.

    Raises:
        StorageError: they do not: the blob is damaged.
    """
    found = hashlib.sha256()
    for piece in pieces:
        found.update(piece)
        yield piece
    if found.hexdigest() != digest:
        raise StorageError(
            ErrorCode.STORAGE_ERROR,
            f"the blob {digest[:16]} is damaged: its content has another SHA-256",
            details={"reason": "damaged", "blob": digest},
        )


@contextmanager
def spooled(pieces: Iterable[bytes], folder: Path) -> Generator[tuple[BlobId, BinaryIO]]:
    """Write the pieces to a file without a name, and yield its blob id and the open file.

    Nothing of the file is left afterwards.

    Raises:
        OSError: it cannot be written, or the pieces cannot be read.
    """
    make_private(folder)
    found = hashlib.sha256()
    with tempfile.TemporaryFile(dir=folder) as file:
        for piece in pieces:
            found.update(piece)
            file.write(piece)
        yield BlobId(found.hexdigest(), file.tell()), file


def blob_of(path: Path) -> BlobId:
    """Return the blob id of a file's content.

    Raises:
        OSError: it cannot be read.
    """
    with open_binary(path) as file:
        return BlobId(hashlib.file_digest(file, "sha256").hexdigest(), file.tell())
