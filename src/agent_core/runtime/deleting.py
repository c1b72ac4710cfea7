"""Deletes sessions: their rows, and then everything that only they held in the files of the home.

A note is taken before the rows are deleted, and removed when nothing is left. If the process dies
or has to give up before that, the next start finishes the work.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime

from msgspec import Struct

from agent_core.artifacts.store import ArtifactStore
from agent_core.disk.unfinished import Note, Notes
from agent_core.errors import AgentCoreError, ErrorCode, StorageError
from agent_core.runtime.moves import NodeMoves
from agent_core.runtime.runs import Runs
from agent_core.runtime.workspaces import Workspaces
from agent_core.storage.rows import iso
from agent_core.storage.store import SessionStore
from agent_core.types import CleanupFailure, DeleteSessionResult, ErrorPayload

logger = logging.getLogger(__name__)

_MOST_SNAPSHOTS = 1000
"""Snapshots that one note names; a note has a limited length."""


_HELD_NOTES = 100
"""Deletions whose notes stay locked until all is erased; each locked note is an open file."""


class _Deletion(Struct):
    """A session whose rows are deleted, or about to be, with its notes."""

    session_id: str
    created_at: str
    snapshots: set[str]
    notes: list[Note]


class Deletions:
    """Deletes sessions of one store.

    Args:
        store: of the sessions.
        runs: knows the sessions that are in use.
        artifacts, moves, workspaces: have the sessions' files.
        forget: forgets the answers to questions of a session.
        notes: notes of deletions that have not ended.
    """

    def __init__(
        self,
        store: SessionStore,
        *,
        runs: Runs,
        artifacts: ArtifactStore,
        moves: NodeMoves,
        workspaces: Workspaces,
        forget: Callable[[str], Awaitable[object]],
        notes: Notes | None,
    ) -> None:
        self._store = store
        self._runs = runs
        self._artifacts = artifacts
        self._moves = moves
        self._workspaces = workspaces
        self._forget = forget
        self._notes = notes

    async def delete(
        self,
        session_ids: Sequence[str],
        *,
        unused_since: datetime | None = None,
        gives_way: bool = False,
    ) -> "list[DeleteSessionResult | AgentCoreError]":
        """Delete sessions, and return each one's result, or the reason why it was not deleted.

        What could not be removed is among the failures of every result. With `unused_since`, a
        session that was used since then, or has an open run, is refused. With `gives_way`, writes
        of this process go before the rewriting of the database.
        """
        results: list[DeleteSessionResult | AgentCoreError] = []
        begun: list[_Deletion] = []
        try:
            for session_id in session_ids:
                try:
                    results.append(await self._delete_rows(session_id, begun, unused_since))
                except AgentCoreError as error:
                    results.append(error)
                if len(begun) > _HELD_NOTES:  # another start may finish it as well
                    for note in begun[-1].notes:
                        note.close()
            left = await self._erase(begun, gives_way=gives_way) if begun else []
        finally:
            for deletion in begun:
                for note in deletion.notes:
                    note.close()
        return [
            each.model_copy(update={"failed": [*each.failed, *left]})
            if isinstance(each, DeleteSessionResult)
            else each
            for each in results
        ]

    async def _delete_rows(
        self, session_id: str, begun: list[_Deletion], unused_since: datetime | None
    ) -> "DeleteSessionResult":
        """Delete a session's rows and its own files, and add it to the deletions that have begun.

        Raises:
            StorageError: `session_not_found`, `session_active`; a note cannot be written.
        """
        await self._runs.require_idle(session_id, cancel_jobs=True)
        session = await self._store.require_session(session_id)
        snapshots = await self._store.snapshots_of(session_id)
        created_at = iso(session.created_at)
        notes = await asyncio.to_thread(self._take_notes, session_id, created_at, sorted(snapshots))
        begun.append(deletion := _Deletion(session_id, created_at, snapshots, notes))
        try:
            await self._store.delete_session(session_id, unused_since=unused_since)
        except AgentCoreError:  # after anything else the rows may be gone
            begun.remove(deletion)
            await asyncio.to_thread(self._remove_notes, deletion)
            raise
        await self._forget(session_id)
        failed = await self._remove_files(session_id)
        return DeleteSessionResult(session_id=session_id, deleted=True, failed=failed)

    async def resume(self) -> list[_Deletion]:
        """Remove the files of sessions whose deletion was interrupted, and return the deletions.

        Call it before the first run; `finish` does the rest.
        """
        if self._notes is None:
            return []
        begun: list[_Deletion] = []
        for note in await asyncio.to_thread(self._notes.take_abandoned):
            deletion = _read(note)
            session = deletion and await self._store.session(deletion.session_id)
            if deletion is None or (session and iso(session.created_at) == deletion.created_at):
                await asyncio.to_thread(self._notes.remove, note)  # nothing had been deleted
                continue
            begun.append(deletion)
            if session is None:
                for failure in await self._remove_files(deletion.session_id):
                    logger.warning("a file is left: %s: %s", failure.id, failure.error.message)
        return begun

    async def finish(self, resumed: list[_Deletion]) -> None:
        """Finish deletions that were interrupted."""
        try:
            for failure in await self._erase(resumed, gives_way=True):
                logger.warning("a deletion has not ended: %s", failure.error.message)
        finally:
            for deletion in resumed:
                for note in deletion.notes:
                    note.close()

    async def _remove_files(self, session_id: str) -> "list[CleanupFailure]":
        failed = await self._artifacts.delete_session_files(session_id)
        await self._workspaces.forget(session_id)
        return failed

    async def _erase(
        self, begun: Sequence[_Deletion], *, gives_way: bool
    ) -> "list[CleanupFailure]":
        """Remove what deleted sessions have left in shared files, and return what stays for now."""
        left: list[CleanupFailure] = []
        snapshots = {each for deletion in begun for each in deletion.snapshots}
        for name, work in (
            ("snapshots", self._moves.erase(snapshots)),
            ("database", self._store.erase_deleted(gives_way=gives_way)),
        ):
            try:
                await work
            except (AgentCoreError, OSError) as error:
                message = f"deleted text is still in the {name}: {error}; the next start erases it"
                failure = StorageError(ErrorCode.STORAGE_ERROR, message, retryable=True)
                left.append(CleanupFailure(id=name, error=ErrorPayload.of(failure)))
        if not left:
            for deletion in begun:
                await asyncio.to_thread(self._remove_notes, deletion)
        return left

    def _take_notes(self, session_id: str, created_at: str, snapshots: Sequence[str]) -> list[Note]:
        """Note that a session is about to be deleted.

        Raises:
            StorageError: the note cannot be written, so nothing is deleted.
        """
        if self._notes is None:
            return []
        taken: list[Note] = []
        try:
            for begin in range(0, len(snapshots) or 1, _MOST_SNAPSHOTS):
                some = snapshots[begin : begin + _MOST_SNAPSHOTS]
                about = json.dumps([session_id, created_at, some]).encode()
                taken.append(self._notes.take(about))
        except OSError as error:
            message = f"session {session_id} is not deleted: no note of it can be kept: {error}"
            raise StorageError(ErrorCode.STORAGE_ERROR, message) from error
        return taken

    def _remove_notes(self, deletion: _Deletion) -> None:
        for note in deletion.notes:
            if self._notes is not None:
                self._notes.remove(note)


def _read(note: Note) -> _Deletion | None:
    """Return the deletion that a note is about; None if its writer died while writing it."""
    try:
        session_id, created_at, snapshots = json.loads(note.about or b"")
    except ValueError:
        return None
    return _Deletion(session_id, created_at, set(snapshots), [note])
