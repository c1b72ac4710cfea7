"""Artifacts: a redacted file below the session's folder, and the row that describes it."""

import asyncio
import copy
import io
import logging
from collections.abc import Collection
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from agent_core.aio import finish_uncancelled
from agent_core.artifacts import files
from agent_core.disk.unfinished import Note, Notes
from agent_core.errors import ArgumentError, ErrorCode, StorageError
from agent_core.redaction import Redactor
from agent_core.text import shown_id
from agent_core.types import (
    ArtifactRecord,
    ArtifactSource,
    ErrorPayload,
    SessionRecord,
    new_id,
    utc_now,
)

if TYPE_CHECKING:
    from agent_core.types import CleanupFailure, CleanupResult

logger = logging.getLogger(__name__)

DEBUG_KINDS = frozenset({"debug", "raw_provider", "traceback"})
"""The kinds that a clean-up removes without `include_all`."""


class ArtifactRows(Protocol):
    """The operations on the session store that artifacts need."""

    def of_tenant(self, tenant: str) -> "ArtifactRows":
        """Return the rows of one tenant, for reading."""
        ...

    async def session(self, session_id: str) -> SessionRecord | None:
        """Return the session, or None."""
        ...

    async def artifact(self, artifact_id: str) -> ArtifactRecord | None:
        """Return the artifact's row, or None."""
        ...

    async def artifacts(
        self, *, session_id: str | None = None, kinds: Collection[str] | None = None
    ) -> list[ArtifactRecord]:
        """Artifact rows that fit, oldest first."""
        ...

    async def add_artifact(self, artifact: ArtifactRecord) -> None:
        """Register a file that is complete on disk."""
        ...

    async def delete_artifact_row(self, artifact_id: str) -> None:
        """Forget an artifact."""
        ...


class ArtifactStore:
    """Keeps files in `<root>/<session_id>/artifacts/<artifact_id>/<filename>`.

    Args:
        root: the folder of all sessions; created when first needed.
        rows: where artifacts are registered.
        redactor: cleans everything that is written.
        notes: notes of files not registered yet; only stores with the same rows may share them.
    """

    def __init__(self, root: Path, rows: ArtifactRows, redactor: Redactor, *, notes: Notes) -> None:
        self._root = root
        self._rows = rows
        self._redactor = redactor
        self._notes = notes

    async def put(
        self,
        data: ArtifactSource,
        *,
        session_id: str,
        agent_id: str | None = None,
        run_id: str | None = None,
        tool_call_id: str | None = None,
        kind: str,
        filename: str,
        mime_type: str | None = None,
        summary: str | None = None,
    ) -> ArtifactRecord:
        """Store `data`, redacted, and register it; a file given by its path is moved.

        The file is complete and flushed before the row exists. The operation is finished even if
        the caller is cancelled.

        Raises:
            StorageError: it could not be stored; no file and no row is left, and a path is kept.
        """
        artifact_id = new_id("art")
        name = files.safe_filename(self._redactor.text(filename))
        place = files.place_of(self._root, session_id, artifact_id, filename=name)
        record = ArtifactRecord(
            artifact_id=artifact_id,
            session_id=session_id,
            agent_id=agent_id,
            run_id=run_id,
            tool_call_id=tool_call_id,
            kind=kind,
            path=str(place),
            filename=name,
            mime_type=mime_type,
            size_bytes=0,
            summary=self._redactor.text(summary) if summary else summary,
            created_at=utc_now(),
        )
        return await finish_uncancelled(self._store(record, place, data))

    async def sweep(self) -> None:
        """Remove the files of killed processes that were never registered."""
        for note in await asyncio.to_thread(self._notes.take_abandoned):
            try:
                about = (note.about or b"").decode(errors="replace")
                session_id, _, artifact_id = about.partition("/")
                if session_id and artifact_id:
                    place = files.place_of(self._root, session_id, artifact_id, filename="artifact")
                    if await self._rows.artifact(artifact_id) is None:
                        await asyncio.to_thread(files.remove, place)
                await asyncio.to_thread(self._notes.remove, note)
            except StorageError as error:
                logger.warning("an unfinished artifact is left where it is: %s", error)
            finally:
                note.close()

    async def find(self, artifact_id: str, rows: ArtifactRows) -> ArtifactRecord:
        """Return the record of an artifact, as these rows have it.

        Raises:
            StorageError: `artifact_not_found`.
        """
        is_id = artifact_id.isascii() and artifact_id.isprintable()
        record = await rows.artifact(artifact_id) if is_id else None
        if record is None:
            raise _unknown(artifact_id)
        return record

    def of_tenant(self, tenant: str | None) -> "ArtifactStore":
        """Return the store as one tenant reads it; None: as it is."""
        if tenant is None:
            return self
        bound = copy.copy(self)
        bound._rows = self._rows.of_tenant(tenant)  # noqa: SLF001 - a copy of this store
        return bound

    async def read(self, artifact_id: str) -> bytes:
        """Read an artifact's content as it was stored, without secrets.

        Raises:
            StorageError: `artifact_not_found`; `file_not_found` if only its row is left.
        """
        return await self._read(await self._known(artifact_id))

    async def open(self, artifact_id: str, *, session_id: str) -> BinaryIO:
        """Open the content of an artifact of a session for reading.

        Raises:
            StorageError: `artifact_not_found`: the session has no such artifact; `file_not_found`
                if only its row is left.
        """
        record = await self._rows.artifact(artifact_id)
        if record is None or record.session_id != session_id:
            message = (
                f"this session has no artifact {shown_id(artifact_id)}; results name the artifacts"
                " that they have, by ids such as art_…"
            )
            raise StorageError(ErrorCode.ARTIFACT_NOT_FOUND, message)
        return await self._open(record)

    async def delete(self, artifact_id: str) -> None:
        """Remove an artifact's file, then its row.

        Raises:
            StorageError: `artifact_not_found`, or the file cannot be removed; the row stays.
        """
        await self._delete(await self._known(artifact_id))

    async def cleanup(
        self,
        *,
        session_id: str | None = None,
        dry_run: bool = True,
        include_all: bool = False,
        older_than: datetime | None = None,
        max_bytes: int | None = None,
    ) -> "CleanupResult":
        """Find artifacts that are not needed, and remove them unless this is a dry run.

        Args:
            session_id: only this session's.
            dry_run: only list what would go; `freed_bytes` is what would be freed.
            include_all: all kinds, not only those kept for debugging.
            older_than: only those last changed before; an aware time.
            max_bytes: remove the oldest until all that were found take no more than this.

        Raises:
            AgentCoreError: `validation_error`: `older_than` is naive or `max_bytes` negative.
            StorageError: `session_not_found`.
        """
        from agent_core.types import CleanupFailure, CleanupResult  # noqa: PLC0415 - few runs need it

        if older_than is not None and older_than.utcoffset() is None:
            message = "older_than needs a time zone, as in datetime.now(UTC)"
            raise ArgumentError(message, "older_than")
        if max_bytes is not None and max_bytes < 0:
            raise ArgumentError("max_bytes is negative", "max_bytes")
        if session_id is not None and await self._rows.session(session_id) is None:
            message = f"there is no session {shown_id(session_id)}"
            raise StorageError(ErrorCode.SESSION_NOT_FOUND, message)
        kinds = None if include_all else DEBUG_KINDS
        rows = await self._rows.artifacts(session_id=session_id, kinds=kinds)
        times = await asyncio.to_thread(lambda: list(map(self._changed_at, rows)))
        found = sorted(zip(times, rows, strict=True), key=lambda one: one[0])
        chosen: list[ArtifactRecord] = []
        rest = sum(record.size_bytes for record in rows)
        for changed_at, record in found:  # oldest first
            if older_than is not None and changed_at >= older_than:
                break
            if max_bytes is not None and rest <= max_bytes:
                break
            chosen.append(record)
            rest -= record.size_bytes
        deleted: list[str] = []
        failed: list[CleanupFailure] = []
        freed = 0
        for record in chosen:
            try:
                if not dry_run:
                    await self._delete(record)
                    deleted.append(record.artifact_id)
                freed += record.size_bytes
            except StorageError as error:
                failed.append(CleanupFailure(id=record.artifact_id, error=ErrorPayload.of(error)))
        return CleanupResult(
            dry_run=dry_run,
            candidates=[record.artifact_id for record in chosen],
            deleted=deleted,
            failed=failed,
            freed_bytes=freed,
        )

    async def delete_session_files(self, session_id: str) -> "list[CleanupFailure]":
        """Remove everything kept for a session, and return what could not be removed."""
        from agent_core.types import CleanupFailure  # noqa: PLC0415 - few runs need it

        try:
            folder = files.session_folder(self._root, session_id)
        except StorageError as error:
            return [CleanupFailure(id=session_id, error=ErrorPayload.of(error))]
        failures = await asyncio.to_thread(files.remove_folder, folder)
        return [
            CleanupFailure(id=str(path.relative_to(self._root)), error=ErrorPayload.of(error))
            for path, error in failures
        ]

    async def _store(
        self, record: ArtifactRecord, place: Path, data: ArtifactSource
    ) -> ArtifactRecord:
        def write() -> tuple[Note, int]:
            with files.explaining(place):
                note = self._notes.take(f"{record.session_id}/{record.artifact_id}".encode())
            try:
                return note, files.write(place, data, self._redactor)
            except BaseException:
                self._notes.remove(note)
                raise

        note, size = await asyncio.to_thread(write)
        try:
            stored = record.model_copy(update={"size_bytes": size})
            await self._rows.add_artifact(stored)
        except StorageError:
            await asyncio.to_thread(files.remove, place)
            raise
        finally:
            await asyncio.to_thread(self._notes.remove, note)
        if isinstance(data, Path):
            await asyncio.to_thread(data.unlink, missing_ok=True)
        return stored

    async def _known(self, artifact_id: str) -> ArtifactRecord:
        record = await self._rows.artifact(artifact_id)
        if record is None:
            raise _unknown(artifact_id)
        return record

    def _place(self, record: ArtifactRecord) -> Path:
        return files.place_of(
            self._root, record.session_id, record.artifact_id, filename=record.filename
        )

    def _changed_at(self, record: ArtifactRecord) -> datetime:
        changed_at = None
        with suppress(StorageError):  # deleting it reports the problem
            changed_at = files.changed_at(self._place(record))
        return changed_at or record.created_at

    async def _read(self, record: ArtifactRecord) -> bytes:
        return await asyncio.to_thread(files.read, self._place(record))

    async def _open(self, record: ArtifactRecord) -> BinaryIO:
        return await asyncio.to_thread(files.open_place, self._place(record))

    async def _delete(self, record: ArtifactRecord) -> None:
        await asyncio.to_thread(files.remove, self._place(record))
        await self._rows.delete_artifact_row(record.artifact_id)


class InMemoryArtifactStore(ArtifactStore):
    """Keeps the content of artifacts in memory.

    Args:
        content: contents by artifact id, also of rows that were added before.
        rows: registers artifacts.
        redactor: cleans everything that is kept.
    """

    def __init__(self, content: dict[str, bytes], rows: ArtifactRows, redactor: Redactor) -> None:
        super().__init__(Path("memory"), rows, redactor, notes=Notes(Path("memory")))
        self._content = content

    async def sweep(self) -> None:
        """Do nothing: other processes leave nothing in memory."""

    async def delete_session_files(self, session_id: str) -> "list[CleanupFailure]":
        """Forget everything kept for a session."""
        for record in await self._rows.artifacts(session_id=session_id):
            self._content.pop(record.artifact_id, None)
        return []

    async def _store(
        self, record: ArtifactRecord, place: Path, data: ArtifactSource
    ) -> ArtifactRecord:
        with files.explaining(place):
            pieces = files.redacted_pieces(data, self._redactor)
            content = await asyncio.to_thread(lambda: b"".join(pieces))
        stored = record.model_copy(update={"size_bytes": len(content)})
        await self._rows.add_artifact(stored)
        self._content[record.artifact_id] = content
        if isinstance(data, Path):
            await asyncio.to_thread(data.unlink, missing_ok=True)
        return stored

    async def _read(self, record: ArtifactRecord) -> bytes:
        if record.artifact_id not in self._content:
            message = f"the content of artifact {record.artifact_id} is gone"
            raise StorageError(ErrorCode.FILE_NOT_FOUND, message)
        return self._content[record.artifact_id]

    async def _open(self, record: ArtifactRecord) -> BinaryIO:
        return io.BytesIO(await self._read(record))

    def _changed_at(self, record: ArtifactRecord) -> datetime:
        return record.created_at

    async def _delete(self, record: ArtifactRecord) -> None:
        self._content.pop(record.artifact_id, None)
        await self._rows.delete_artifact_row(record.artifact_id)


def _unknown(artifact_id: str) -> StorageError:
    message = f"there is no artifact {shown_id(artifact_id)}"
    return StorageError(ErrorCode.ARTIFACT_NOT_FOUND, message)
