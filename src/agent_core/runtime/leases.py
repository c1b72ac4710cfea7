"""Leases of this runtime on sessions: extended by a heartbeat, released, and lost."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING
from weakref import WeakSet

from msgspec import Struct

from agent_core.aio import finish_uncancelled
from agent_core.config.stores import RunWorkerConfig
from agent_core.errors import StorageError
from agent_core.events import Journal
from agent_core.storage.owners import HEARTBEAT, Owner, now
from agent_core.storage.store import SessionStore
from agent_core.types import (
    LEASE,
    Claim,
)

if TYPE_CHECKING:
    from agent_core.runtime.fence import SessionLease

logger = logging.getLogger(__name__)


class RemoteControls(Struct, frozen=True):
    """The functions that do what other processes ask of runs under way here.

    Each takes the ids of the runs.

    Attributes:
        cancel: cancels the runs.
        look_for_messages: has the runs read the messages that wait for them.
        end_after_turn: cancels the runs after their turn.
    """

    cancel: Callable[[Iterable[str]], None]
    look_for_messages: Callable[[Iterable[str]], None]
    end_after_turn: Callable[[Iterable[str]], None]


class SessionLeases:
    """Extends and ends this runtime's leases on sessions, and stores missing ends of their runs.

    A session stays held while the end of its run could not be stored. If the runtime dies before
    that, the next one closes the run as lost.

    Args:
        store: the store in which sessions are claimed.
        owner: this runtime.
        is_busy: returns whether a run of a session is queued or running here.
        controls: called with the runs of which other processes ask something.
        on_lost: called with the id of a run whose session another process has, and whether the
            store has refused a write; only where several machines share the store.
        on_extended: called there with the time until which the sessions are sure to be held.
        shared: says how often the leases are extended there, and for how long.
    """

    def __init__(
        self,
        store: SessionStore,
        owner: Owner,
        *,
        is_busy: Callable[[str], bool],
        controls: RemoteControls,
        on_lost: Callable[[str, bool], None] | None = None,
        on_extended: Callable[[float], None] | None = None,
        shared: RunWorkerConfig | None = None,
    ) -> None:
        self._store = store
        self._owner = owner
        self._on_lost = on_lost
        self._on_extended = on_extended
        self._beat_s = shared.heartbeat_s if shared else HEARTBEAT.total_seconds()
        self._duration = timedelta(seconds=shared.lease_s) if shared else LEASE
        self._leases: WeakSet[SessionLease] = WeakSet()
        self._is_busy = is_busy
        self._controls = controls
        self._unclosed: list[Journal] = []
        self._closing = asyncio.Lock()
        self._unreleased: set[str] = set()

    def claim(self) -> Claim:
        """Return this runtime's claim to a session whose last run may have ended."""
        return Claim(self._owner.owner_id, self._duration)

    def lease_for(
        self, run_id: str, session_id: str, epoch: int, asked_at: float
    ) -> "SessionLease | None":
        """Create the lease that stops a run once its session is lost; None if that cannot happen.

        `asked_at` is the time at which the claim to the session was sent.
        """
        if self._on_lost is None:
            return None
        from agent_core.runtime.fence import SessionLease  # noqa: PLC0415 - one machine has none

        lease = SessionLease(run_id, session_id, epoch, extended_at=asked_at, confirm=self._confirm)
        self._leases.add(lease)
        self._tell_extended(asked_at)
        return lease

    def _tell_extended(self, at: float) -> None:
        """Report until when all sessions are sure to be held; without any, one lease from `at`."""
        extended = [lease.extended_at for lease in self._leases if not lease.is_lost]
        if self._on_extended is not None:
            self._on_extended(min(extended, default=at) + self._duration.total_seconds())

    async def _confirm(self, lease: "SessionLease") -> None:
        """Wait until a session is known to be held or lost; asks the store if a lease may be over.

        This waits for a session that another transaction has locked.
        """
        pause_s, lease_s = 0.0, self._duration.total_seconds()
        while not lease.is_lost and now() >= lease.extended_at + lease_s:
            await asyncio.sleep(pause_s)
            await self._beat()
            pause_s = self._beat_s / 5

    async def _beat(self) -> None:
        """Extend the leases, and find out which sessions are lost."""
        began, leases = now(), list(self._leases)
        beat = await self._store.heartbeat(self._owner.owner_id, self._duration)
        if self._on_lost is not None:
            self._owner.heard(self._duration.total_seconds())
            for lease in leases:
                if lease.is_lost:
                    continue
                if beat.epochs.get(lease.session_id) != lease.epoch:
                    lease.is_lost = True
                    self._on_lost(lease.run_id, False)
                elif lease.session_id not in beat.late:
                    lease.extended_at = max(lease.extended_at, began)
            self._tell_extended(began)
        self._controls.cancel(beat.cancelled)
        self._controls.look_for_messages(beat.sent_to)
        self._controls.end_after_turn(beat.in_last_turn)

    def refused(self, journal: Journal) -> None:
        """Mark a run as lost: the store refuses its writes, as another process has its session."""
        if self._on_lost is None:  # the other process has closed the run
            return
        for lease in self._leases:
            if lease.run_id == journal.run.run_id and lease.epoch == journal.epoch:
                lease.is_lost = True
                self._on_lost(lease.run_id, True)

    def add_unclosed(self, journal: Journal) -> None:
        """Keep a journal whose end could not be stored."""
        self._unclosed.append(journal)

    async def store_ends(self) -> None:
        """Store every missing end of a run.

        Raises:
            StorageError: the store does not accept them now; they are kept for later.
        """
        async with self._closing:
            while self._unclosed:
                await finish_uncancelled(self._close(self._unclosed[0]))

    async def release(self, session_id: str) -> None:
        """Release a session once its last background work is over, if nothing runs.

        A run whose end is stored may be busy here for a moment: then it is tried again later.
        """
        self._unreleased.discard(session_id)
        try:
            still_open = await self._store.active_run_ids(session_id)
            if not still_open and self._is_busy(session_id):
                self._unreleased.add(session_id)
            elif not still_open:
                await self._store.release(session_id, self._owner.owner_id)
        except StorageError as error:
            self._unreleased.add(session_id)
            logger.warning("the session %s could not be given back yet: %s", session_id, error)

    async def keep_alive(self) -> None:
        """Extend the leases until cancelled, and store ends that could not be stored before.

        Storing them may wait for a locked session; heartbeats do not wait for that.
        """
        async with asyncio.TaskGroup() as aside:
            closing: asyncio.Task[None] | None = None
            while True:
                await asyncio.sleep(self._beat_s)
                try:
                    await self._beat()
                except Exception as error:  # noqa: BLE001 - the next beat may succeed
                    logger.warning("the sessions' lease could not be renewed: %s", error)
                has_left = self._unclosed or self._unreleased
                if has_left and (closing is None or closing.done()):
                    closing = aside.create_task(self._close_up())

    async def _close_up(self) -> None:
        """Store missing ends, and release sessions that could not be released before."""
        try:
            await self.store_ends()
            for session_id in tuple(self._unreleased):
                await self.release(session_id)
        except Exception as error:  # noqa: BLE001 - it is tried again after the next beat
            logger.warning("ends of runs could not be stored yet: %s", error)

    async def give_back(self, *, is_shared: bool = False) -> None:
        """Store missing ends, and release every session this runtime holds.

        What cannot be stored is left to the next runtime, which finds this one dead. If the owner
        `is_shared` with other projects, their sessions stay held.
        """
        try:
            await self.store_ends()
        except StorageError as error:
            logger.warning("some runs are left open: %s", error)
        if is_shared:
            for session_id in tuple(self._unreleased):
                await self.release(session_id)
            return
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
