"""Artifacts that every machine can read: the content is a redacted blob, the row names it."""

import asyncio
import io
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, Protocol

from agent_core.artifacts import files
from agent_core.artifacts.store import ArtifactRows, ArtifactStore
from agent_core.blobs.base import BlobId, spooled
from agent_core.disk.folders import is_due, mark_done
from agent_core.disk.unfinished import Notes
from agent_core.errors import ErrorCode, StorageError
from agent_core.redaction import Redactor
from agent_core.types import ArtifactRecord, ArtifactSource, CleanupFailure, ErrorPayload

BLOB_PATH = "blob:"
"""Prefix of the path of an artifact whose content is a blob; the digest follows."""


class ArtifactBlobs(Protocol):
    """The operations on blobs that artifacts need. Every method blocks."""

    def keep(self, blob: BlobId, file: BinaryIO, *, session_id: str, used_by: str) -> None:
        """Keep the content of an artifact."""
        ...

    def pieces(self, digest: str) -> Iterator[bytes]:
        """Yield a content in pieces; fails at the end if it does not match its digest."""
        ...

    def release(self, session_id: str, used_by: str | None = None) -> None:
        """End the use by one artifact, or by all artifacts of a session."""
        ...

    def sweep_daily(self) -> None:
        """Remove blobs that nothing uses, unless that was done within a day."""
        ...


class BlobArtifactStore(ArtifactStore):
    """Keeps the content of artifacts in blobs; the path of a row is `blob:` and the SHA-256.

    A row with another path belongs to a file below `root`, on the machine that wrote it.

    Args:
        root: the folder of all sessions; contents are spooled there, in files without a name.
        rows: registers artifacts.
        redactor: cleans everything that is written.
        notes: notes of files that are not registered yet.
        blobs: keeps the contents.
    """

    def __init__(
        self,
        root: Path,
        rows: ArtifactRows,
        redactor: Redactor,
        *,
        notes: Notes,
        blobs: ArtifactBlobs,
    ) -> None:
        super().__init__(root, rows, redactor, notes=notes)
        self._blobs = blobs
        self._swept = root / ".blobs-swept"

    async def sweep(self) -> None:
        """Once a day, remove what dead processes have left."""
        await super().sweep()
        await asyncio.to_thread(self._sweep_if_due)

    async def delete_session_files(self, session_id: str) -> list[CleanupFailure]:
        """Remove everything kept for a session, including its snapshots."""
        failures = await super().delete_session_files(session_id)
        try:
            await asyncio.to_thread(self._blobs.release, session_id)
        except StorageError as error:
            failures.append(CleanupFailure(id=session_id, error=ErrorPayload.of(error)))
        return failures

    async def _store(
        self, record: ArtifactRecord, place: Path, data: ArtifactSource
    ) -> ArtifactRecord:
        session_id, artifact_id = record.session_id, record.artifact_id

        def write() -> BlobId:
            with (
                files.explaining(place),
                spooled(files.redacted_pieces(data, self._redactor), self._root) as (blob, file),
            ):
                self._blobs.keep(blob, file, session_id=session_id, used_by=artifact_id)
                return blob

        blob = await asyncio.to_thread(write)
        stored = record.model_copy(
            update={"path": f"{BLOB_PATH}{blob.digest}", "size_bytes": blob.size_bytes}
        )
        try:
            await self._rows.add_artifact(stored)
        except StorageError:
            await asyncio.to_thread(self._blobs.release, session_id, artifact_id)
            raise
        if isinstance(data, Path):
            await asyncio.to_thread(data.unlink, missing_ok=True)
        return stored

    def _changed_at(self, record: ArtifactRecord) -> datetime:
        return record.created_at

    async def _open(self, record: ArtifactRecord) -> BinaryIO:
        return io.BytesIO(await self._read(record))

    async def _read(self, record: ArtifactRecord) -> bytes:
        if not record.path.startswith(BLOB_PATH):
            return await super()._read(record)
        digest = record.path.removeprefix(BLOB_PATH)
        try:
            return await asyncio.to_thread(self._content, digest)
        except StorageError as error:
            if error.code is not ErrorCode.FILE_NOT_FOUND:
                raise
            message = f"the content of artifact {record.artifact_id} is gone: {error.message}"
            raise StorageError(error.code, message, details=error.details) from error

    def _content(self, digest: str) -> bytes:
        content = io.BytesIO()
        for piece in self._blobs.pieces(digest):
            content.write(piece)
        return content.getvalue()

    async def _delete(self, record: ArtifactRecord) -> None:
        if record.path.startswith(BLOB_PATH):
            await asyncio.to_thread(self._blobs.release, record.session_id, record.artifact_id)
            await self._rows.delete_artifact_row(record.artifact_id)
        else:
            await super()._delete(record)

    def _sweep_if_due(self) -> None:
        if is_due(self._swept):
            with suppress(OSError, StorageError):  # tried again later
                self._blobs.sweep_daily()
                mark_done(self._swept)
