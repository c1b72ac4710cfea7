"""What keeps blobs: immutable contents, named by their SHA-256 and checked when they are read."""

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
"""What is read or written at once."""


class BlobId(Struct, frozen=True):
    """Which blob: the hex SHA-256 of its content, and its size."""

    digest: str
    size_bytes: int


class BlobStore(Protocol):
    """Keeps the contents of blobs. Every method blocks: call it in a thread.

    What is put is there as a whole or not at all, whenever the writer dies.
    """

    @property
    def max_bytes(self) -> int | None:
        """The largest blob it takes; None: any."""
        ...

    def put(self, blob: BlobId, file: BinaryIO) -> None:
        """Keep a content that is read from the file's start; fine if it is there already.

        Raises:
            StorageError: it cannot be kept.
        """
        ...

    def pieces(self, digest: str) -> Iterator[bytes]:
        """The content as it is kept, in pieces; not checked.

        Raises:
            StorageError: `file_not_found`; it cannot be read.
        """
        ...

    def delete(self, digest: str) -> None:
        """Remove a content; fine if there is none.

        Raises:
            StorageError: it cannot be removed.
        """
        ...


def checked(pieces: Iterable[bytes], digest: str) -> Iterator[bytes]:
    """The pieces; the end is reached only if they are what the digest says.

    Raises:
        StorageError: they are not: the blob is damaged.
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
    """The pieces as a file that has no name, so that nothing is left of it, with its blob id.

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
    """What a file holds.

    Raises:
        OSError: it cannot be read.
    """
    with open_binary(path) as file:
        return BlobId(hashlib.file_digest(file, "sha256").hexdigest(), file.tell())
