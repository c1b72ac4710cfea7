"""Deletes sessions that were not used for some time, when it is asked for or at a start."""

import asyncio
import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from agent_core.disk.folders import is_due, mark_done
from agent_core.errors import ArgumentError, ErrorCode
from agent_core.runtime.deleting import Deletions
from agent_core.runtime.start_clock import StartClock
from agent_core.storage.store import SessionStore
from agent_core.types import (
    CleanupFailure,
    CleanupResult,
    DeleteSessionResult,
    ErrorPayload,
    utc_now,
)

logger = logging.getLogger(__name__)

_AT_ONCE = 5000
"""Sessions after which the database is rewritten without them."""
_MEASURED_AT_ONCE = 200

_LEFT = {ErrorCode.SESSION_ACTIVE, ErrorCode.SESSION_NOT_FOUND}
"""Why an unused session is not deleted after all: it is used now, or another process deleted it."""


class Retention:
    """Deletes several sessions at once.

    Args:
        store: of the sessions.
        deletions: deletes them.
    """

    def __init__(self, store: SessionStore, deletions: Deletions) -> None:
        self._store = store
        self._deletions = deletions

    async def delete_unused(
        self,
        before: datetime,
        *,
        project: str | None = None,
        keep_last: int = 0,
        dry_run: bool = False,
    ) -> "CleanupResult":
        """Delete the sessions that were last used before then; sessions at work are left.

        Args:
            before: the time.
            project: only sessions that work in this folder.
            keep_last: this many of the last used of these sessions are kept.
            dry_run: only find them.
        """
        found = await self._store.unused_sessions(before, project=project, keep_last=keep_last)
        if dry_run:
            return CleanupResult(
                dry_run=True, candidates=found, freed_bytes=sum(await self._bytes_of(found))
            )
        return await self._delete(found, unused_since=before)

    async def delete_these(self, session_ids: Sequence[str], *, dry_run: bool) -> "CleanupResult":
        """Delete sessions; the reason why one was not deleted is among the failures."""
        if dry_run:
            freed = sum(await self._bytes_of(session_ids))
            return CleanupResult(dry_run=True, candidates=[*session_ids], freed_bytes=freed)
        return await self._delete(session_ids, unused_since=None)

    async def apply(self, keep_days: int, clock: StartClock, mark: Path) -> None:
        """Delete sessions that were not used for `keep_days`, at most once a day.

        Args:
            keep_days: the days.
            clock: says from when they are counted, or that the time is not known.
            mark: the file whose time is when this was done last.
        """
        now = await clock.now()
        if now is None or not await asyncio.to_thread(is_due, mark):
            return
        before = now - timedelta(days=keep_days)
        found = await self._store.unused_sessions(before)
        result = await self._delete(found, unused_since=before, gives_way=True)
        for failure in result.failed:
            logger.warning("%s: %s", failure.id, failure.error.message)
        await asyncio.to_thread(mark_done, mark)

    async def _delete(
        self,
        session_ids: Sequence[str],
        *,
        unused_since: datetime | None,
        gives_way: bool = False,
    ) -> "CleanupResult":
        deleted: list[str] = []
        left: set[str] = set()
        failed: dict[tuple[str, str], CleanupFailure] = {}
        freed = 0
        for begin in range(0, len(session_ids), _AT_ONCE):
            some = session_ids[begin : begin + _AT_ONCE]
            sizes = await self._bytes_of(some)
            results = await self._deletions.delete(
                some, unused_since=unused_since, gives_way=gives_way
            )
            for session_id, size, result in zip(some, sizes, results, strict=True):
                if isinstance(result, DeleteSessionResult):
                    deleted.append(session_id)
                    freed += size
                    failures = result.failed
                elif unused_since is not None and result.code in _LEFT:
                    left.add(session_id)
                    failures = []
                else:
                    failures = [CleanupFailure(id=session_id, error=ErrorPayload.of(result))]
                failed |= {(each.id, each.error.message): each for each in failures}
        return CleanupResult(
            dry_run=False,
            candidates=[each for each in session_ids if each not in left],
            deleted=deleted,
            failed=list(failed.values()),
            freed_bytes=freed,
        )

    async def _bytes_of(self, session_ids: Sequence[str]) -> list[int]:
        """Return the bytes that each of these sessions takes in rows and artifacts."""
        found: dict[str, tuple[int, int]] = {}
        for begin in range(0, len(session_ids), _MEASURED_AT_ONCE):
            some = session_ids[begin : begin + _MEASURED_AT_ONCE]
            found |= await self._store.session_bytes(some)
        return [sum(found.get(session_id, ())) for session_id in session_ids]


def read_age(older_than: datetime | timedelta) -> datetime:
    """Return the time before which a session was last used if it is older than that.

    Raises:
        AgentCoreError: `validation_error`: a time without a zone, or an age that is negative or too
            long.
    """
    try:
        if isinstance(older_than, timedelta):
            if older_than < timedelta():
                raise ArgumentError("older_than is negative", "older_than")
            return utc_now() - older_than
        if older_than.utcoffset() is None:
            message = "older_than needs a time zone, as in datetime.now(UTC), or is a timedelta"
            raise ArgumentError(message, "older_than")
        return older_than.astimezone(UTC)
    except OverflowError:
        message = "older_than is before the first year"
        raise ArgumentError(message, "older_than") from None
