"""The sessions that this runtime holds: kept while it works on them, given back when it is done."""

import asyncio
import logging
from collections.abc import Callable, Iterable

from agent_core.aio import to_the_end
from agent_core.errors import StorageError
from agent_core.events import Journal, SessionStore
from agent_core.storage.owners import HEARTBEAT, Owner
from agent_core.types import Claim

logger = logging.getLogger(__name__)


class SessionLeases:
    """Extends and ends this runtime's hold on sessions, and stores the ends of runs it owes them.

    A session whose run has an end that the store did not take stays held. A runtime that dies
    before the store takes it leaves it to the next one, which closes the run as lost.

    Args:
        store: where sessions are claimed.
        owner: this runtime.
        is_busy: whether a run of a session is queued or running here.
        on_cancel: called with the ids of runs whose cancellation another process requests.
    """

    def __init__(
        self,
        store: SessionStore,
        owner: Owner,
        *,
        is_busy: Callable[[str], bool],
        on_cancel: Callable[[Iterable[str]], None],
    ) -> None:
        self._store = store
        self._owner = owner
        self._is_busy = is_busy
        self._on_cancel = on_cancel
        self._unclosed: list[Journal] = []
        self._closing = asyncio.Lock()
        self._unreleased: set[str] = set()

    def claim(self) -> Claim:
        """This runtime's claim to a session whose last run may have ended."""
        return Claim(self._owner.owner_id)

    def add_unclosed(self, journal: Journal) -> None:
        """Keep a journal whose end the store has refused."""
        self._unclosed.append(journal)

    async def store_ends(self) -> None:
        """Store every end of a run that is still missing.

        Raises:
            StorageError: the store does not take them now; what it did not take is kept.
        """
        async with self._closing:
            while self._unclosed:
                await to_the_end(self._close(self._unclosed[0]))

    async def release(self, session_id: str) -> None:
        """Give a session back once its last work in the background is over, if nothing runs."""
        self._unreleased.discard(session_id)
        try:
            still_open = await self._store.active_run_ids(session_id)
            if not still_open and not self._is_busy(session_id):
                await self._store.release(session_id, self._owner.owner_id)
        except StorageError as error:
            self._unreleased.add(session_id)
            logger.warning("the session %s could not be given back yet: %s", session_id, error)

    async def keep_alive(self) -> None:
        """Extend the leases until cancelled, and store ends that could not be stored before."""
        while True:
            await asyncio.sleep(HEARTBEAT.total_seconds())
            try:
                self._on_cancel(await self._store.heartbeat(self._owner.owner_id))
                await self.store_ends()
                for session_id in tuple(self._unreleased):
                    await self.release(session_id)
            except Exception as error:  # noqa: BLE001 - the next beat may succeed
                logger.warning("the sessions' lease could not be renewed: %s", error)

    async def give_back(self) -> None:
        """Store the ends that are still missing, and free every session this runtime holds.

        What cannot be stored is left to the next runtime, which finds this one dead.
        """
        try:
            await self.store_ends()
        except StorageError as error:
            logger.warning("some runs are left open: %s", error)
        try:
            await self._store.release_all(self._owner.owner_id)
        except StorageError as error:
            logger.warning("the sessions could not be given back: %s", error)

    async def _close(self, journal: Journal) -> None:
        try:
            await journal.close_again()
        except StorageError as error:
            if error.retryable:
                raise
            # Closed as lost by another process, or deleted: there is nothing to add.
            logger.warning("the end of %s is not stored: %s", journal.run.run_id, error)
        self._unclosed.remove(journal)
