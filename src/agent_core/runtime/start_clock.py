"""Decides whether a process may delete by age: the clock of its machine may be wrong."""

import asyncio
import os
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from agent_core.disk.folders import make_private
from agent_core.storage.store import SessionStore
from agent_core.types import utc_now

DAY = timedelta(days=1)


class StartClock:
    """The time by which a process judges how old things are.

    If its clock is more than a day past the last use of the store, it may be wrong: the process
    deletes nothing by age, and leaves a mark. A later process measures ages until now, or until a
    day after the last use or the mark, if that is earlier.

    Args:
        store: the sessions; None if nothing is stored.
        mark: a file, whose time says when a process last found its clock too far ahead.
    """

    def __init__(self, store: SessionStore | None = None, mark: Path | None = None) -> None:
        self._store = store
        self._mark = mark
        self._lock = asyncio.Lock()
        self._is_judged = False
        self._behind: timedelta | None = timedelta()

    async def now(self) -> datetime | None:
        """Return the time until which ages are measured; None to delete nothing by age.

        Raises:
            StorageError: the store cannot be read.
        """
        async with self._lock:
            if not self._is_judged and self._store is not None and self._mark is not None:
                self._behind = await self._judge(self._store, self._mark)
            self._is_judged = True
        return None if self._behind is None else utc_now() - self._behind

    async def _judge(self, store: SessionStore, mark: Path) -> timedelta | None:
        """Return how far the clock is past the time for ages; None if it is not trusted."""
        last, now = await store.last_use(), utc_now()
        seen = await asyncio.to_thread(_read, mark)
        is_trusted = last is None or now - last <= DAY
        if is_trusted or seen is None or seen > now:
            await asyncio.to_thread(_write, mark, None if is_trusted else now)
            return timedelta() if is_trusted else None
        await asyncio.to_thread(_write, mark, now)
        return max(now - max(seen, last or seen) - DAY, timedelta())


def _read(mark: Path) -> datetime | None:
    with suppress(OSError, ValueError, OverflowError):
        return datetime.fromtimestamp(mark.stat().st_mtime, UTC)
    return None


def _write(mark: Path, seen: datetime | None) -> None:
    with suppress(OSError):  # the next start judges again
        if seen is None:
            mark.unlink(missing_ok=True)
        else:
            make_private(mark.parent)
            mark.touch(mode=0o600)
            os.utime(mark, (seen.timestamp(), seen.timestamp()))
