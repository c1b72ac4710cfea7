"""Blobs in an object store: S3, Google Cloud Storage, Azure, or a folder that machines share."""

import os
import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import unquote, urlsplit

from agent_core.blobs.base import PIECE_BYTES, BlobId
from agent_core.disk.folders import flush_folder, make_private
from agent_core.errors import ConfigError, ErrorCode, StorageError
from agent_core.opening import open_descriptor

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_PARTS_AT_ONCE = 4
_PART_BYTES = 8 << 20
_TIMEOUT = "60s"  # of one request; a large blob is sent in several
_PATIENCE = timedelta(seconds=60)
_ENDPOINTS = ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")
_QUERY = re.compile(r"\?\S*")


class ObjectBlobs:
    """Keeps each blob as the object `<first two digits>/<digest>` below the address.

    Args:
        objects: the opened store.
        name: its name in messages.
        folder: the folder of the objects, if they are files of this machine.
    """

    max_bytes = None

    def __init__(self, objects: "ObjectStore", *, name: str, folder: Path | None = None) -> None:
        self._objects = objects
        self._name = name
        self._folder = folder

    @classmethod
    def at(cls, url: str) -> "ObjectBlobs":
        """Open the store at an address: `s3://`, `gs://`, `az://` or `file:///`.

        Credentials come from the environment variables of the services.

        Raises:
            ConfigError: there is no such store, or the package for it is not installed.
        """
        try:
            # Programs on one machine neither need it nor pay for it.
            from obstore.exceptions import BaseError  # noqa: PLC0415
            from obstore.store import LocalStore, from_url  # noqa: PLC0415
        except ImportError as error:
            from agent_core.installation import extra_command  # noqa: PLC0415 - rarely missing

            message = f"the blobs at {url} need the extra objects: {extra_command('objects')}"
            raise ConfigError(ErrorCode.CONFIG_ERROR, message) from error
        try:
            if url.startswith("file:"):
                folder = Path(unquote(urlsplit(url).path))
                make_private(folder)
                return cls(LocalStore(folder), name=url, folder=folder)
            objects = from_url(
                url,
                client_options={"timeout": _TIMEOUT, "allow_http": _allows_http(url)},
                retry_config={"retry_timeout": _PATIENCE},
            )
            return cls(objects, name=url)
        except (BaseError, OSError, ValueError) as error:
            message = f"store.blobs names {url}, which cannot be used: {_reason(error)}"
            raise ConfigError(ErrorCode.CONFIG_ERROR, message) from error

    def put(self, blob: BlobId, file: BinaryIO) -> None:
        """See `BlobStore.put`."""
        from obstore import put  # noqa: PLC0415

        path = _path(blob.digest)
        file.seek(0)
        missing = f"there is nothing to put blobs into at {self._name}: make the bucket"
        with self._explained(blob.digest, missing):
            put(
                self._objects,
                path,
                file,
                use_multipart=blob.size_bytes > _PART_BYTES,
                chunk_size=_PART_BYTES,
                max_concurrency=_PARTS_AT_ONCE,
            )
            if self._folder is not None:
                _flush(self._folder / path)

    def pieces(self, digest: str) -> Iterator[bytes]:
        """See `BlobStore.pieces`."""
        from obstore import get  # noqa: PLC0415

        with self._explained(digest):
            for piece in get(self._objects, _path(digest)).stream(min_chunk_size=PIECE_BYTES):
                yield bytes(piece)

    def delete(self, digest: str) -> None:
        """See `BlobStore.delete`."""
        from obstore import delete  # noqa: PLC0415

        try:
            with self._explained(digest):
                delete(self._objects, _path(digest))
        except StorageError as error:
            if error.code is not ErrorCode.FILE_NOT_FOUND:
                raise

    @contextmanager
    def _explained(self, digest: str, missing: str = "") -> Generator[None]:
        """Explain an error of the store; `missing` is the message if nothing is found.

        Raises:
            StorageError: instead of the error.
        """
        from obstore.exceptions import BaseError  # noqa: PLC0415

        try:
            yield
        except FileNotFoundError as error:
            code = ErrorCode.STORAGE_ERROR if missing else ErrorCode.FILE_NOT_FOUND
            message = missing or f"the blob {digest[:16]} is not at {self._name}"
            raise StorageError(code, message) from error
        except (BaseError, OSError) as error:
            raise StorageError(
                ErrorCode.STORAGE_ERROR,
                f"the blobs at {self._name} cannot be used: {_reason(error)};"
                " check the address of store.blobs, the credentials and the network",
                details={"blob": digest},
            ) from error


def _allows_http(url: str) -> bool:
    """Return whether S3 may be used without encryption: client options override the variable.

    Raises:
        ConfigError: the endpoint is `http://` and `AWS_ALLOW_HTTP` is not set.
    """
    if not url.startswith("s3:"):
        return False
    if os.environ.get("AWS_ALLOW_HTTP", "").lower() in {"1", "true", "on", "yes"}:
        return True
    for name in _ENDPOINTS:
        if os.environ.get(name, "").lower().startswith("http:"):
            message = (
                f"{name} is an http: address, where others on the network can read what is sent;"
                " use https:, or allow this with AWS_ALLOW_HTTP=true"
            )
            raise ConfigError(ErrorCode.CONFIG_ERROR, message)
    return False


def _path(digest: str) -> str:
    return f"{digest[:2]}/{digest}"


def _flush(file: Path) -> None:
    """Make a new file survive a loss of power."""
    descriptor = open_descriptor(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    flush_folder(file.parent)


def _reason(error: Exception) -> str:
    """Return the first line of an error, without the part of an address that may hold a key."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return _QUERY.sub("", line)[:300]
