"""Runs taken from a shared queue: started or continued, handed over, or lost to another process."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent_core.aio import SideTasks, to_the_end
from agent_core.errors import ErrorCode, StorageError
from agent_core.runtime.factory import RunFactory
from agent_core.runtime.opening import LiveRuns, RequestedRun
from agent_core.runtime.reading import RunReader
from agent_core.runtime.recovery import SessionLeases
from agent_core.runtime.scheduler import Run, RunProgress, Scheduler, identity_of
from agent_core.runtime.waiting import WaitingRuns
from agent_core.storage.owners import Owner
from agent_core.storage.store import SessionStore
from agent_core.types import OpenedRun, RunRecord, RunStatus, RuntimeEvent

if TYPE_CHECKING:
    from agent_core.runtime.dispatch import Dispatcher
    from agent_core.storage.postgres.queue import Job

logger = logging.getLogger(__name__)

_HANDED_OVER = "this run was handed over to another process, which continues it"


class Turns:
    """Executes runs of the queue, each as long as this process holds its session.

    Args:
        store, owner, reader, leases, scheduler: of this process.
        live, waiting, contexts: of its runs.
        aside: runs tasks in the background.
        max_takeovers: number of dead processes after which a run is no longer taken.
    """

    def __init__(
        self,
        store: SessionStore,
        owner: Owner,
        *,
        reader: RunReader,
        leases: SessionLeases,
        scheduler: Scheduler,
        live: LiveRuns,
        waiting: WaitingRuns,
        contexts: RunFactory,
        aside: SideTasks,
        max_takeovers: int,
    ) -> None:
        self._store = store
        self._owner = owner
        self._reader = reader
        self._leases = leases
        self._scheduler = scheduler
        self._live = live
        self._waiting = waiting
        self._contexts = contexts
        self._aside = aside
        self._max_takeovers = max_takeovers

    async def begin(
        self, dispatcher: "Dispatcher", requested: RequestedRun, timeout_s: float | None
    ) -> RunProgress:
        """Queue a run of this process, and execute it when it is next; its job ends with it.

        Raises:
            StorageError: as for `Dispatcher.turn`.
            AgentCoreError: `validation_error`: this runtime is being closed.
        """
        opening = requested.opening
        turn = await dispatcher.turn(opening, timeout_s)
        if turn is None:
            record = await self._reader.record(opening.run_id)
            return RunProgress(identity=identity_of(record), status=record.status)
        job, taken = turn
        before: Sequence[RuntimeEvent] = ()
        failure: BaseException | None = None
        try:
            before = await self._store.events_after(opening.run_id, 0)
        except BaseException as error:  # noqa: BLE001 - raised once the run has its end
            failure = error
        self._scheduler.announce(opening.session_id)
        record = taken.run.model_copy(update={"prompt": requested.prompt})
        run = self._carry_on(replace(taken, run=record), requested)
        for event in before:
            run.stream.write(event)
        self._aside.start(self._finish(dispatcher, job, run))
        if failure is not None or self._scheduler.is_closed:
            await to_the_end(self._scheduler.cancel(run))
            if failure is not None:
                raise failure
            self._scheduler.require_open()
        return run

    async def take_up(self, record: RunRecord) -> Run | None:
        """Execute a run that is next, from its beginning or from where its process died.

        Returns:
            The run; None if it has ended or waits for an answer, so that there is nothing to do.

        Raises:
            StorageError: `session_active`: a living owner has the session.
            AgentCoreError: `validation_error`: this runtime is being closed.
        """
        await self._leases.store_ends()
        scheduler, session_id = self._scheduler, record.session_id
        scheduler.announce(session_id)
        try:
            scheduler.require_open()
            taking = self._store.take_run(
                record.run_id,
                self._leases.claim(),
                max_takeovers=self._max_takeovers,
            )
            taken = await to_the_end(taking)
        except BaseException:
            scheduler.withdraw(session_id)
            raise
        if taken is None:
            scheduler.withdraw(session_id)
            return None
        return self._carry_on(taken)

    async def hand_over(self, run_id: str) -> bool:
        """Stop the work on a run, and leave the rest to the process that takes it next.

        For that process, work that was begun and cut off has an unknown effect.

        Returns:
            Whether it was handed over; False if the run has ended or is ending.
        """
        run = self._live.get(run_id)
        if run is None or run.journal.is_closing or run.ended.is_set():
            return False
        with suppress(StorageError):
            await run.journal.commit()
        if run.journal.is_closing:
            return False
        await self._abandon(run, StorageError(ErrorCode.SESSION_ACTIVE, _HANDED_OVER))
        return await self._store.hand_over(run_id, self._owner.owner_id)

    def lose(self, run_id: str, is_refused: bool) -> None:
        """Stop a run at once because another process has taken its session over.

        Skips a run that is ending and has released its session, unless its end is refused, and a
        run that claimed the session again after waiting.
        """
        run = self._live.get(run_id)
        if run is None or run.ended.is_set() or (run.journal.is_closing and not is_refused):
            return
        if run.scope.hold is not None and not run.scope.hold.is_lost:
            return
        from agent_core.runtime.fence import session_lost  # noqa: PLC0415 - loaded by now

        reason = session_lost(run_id)
        logger.warning("%s", reason)
        run.journal.abandon(reason)
        self._aside.start(self._abandon(run, reason))

    def _carry_on(
        self,
        taken: OpenedRun,
        requested: RequestedRun | None = None,
    ) -> Run:
        """Begin or continue a run from the queue; its session is announced already."""
        record = taken.run
        self._contexts.session_opened(taken.session)
        if taken.waiting is not None:
            self._waiting.keep(taken.waiting)
        run = self._live.new(
            record,
            taken.session,
            is_new=taken.session.active_node_id is None,
            options=requested.options if requested else self._waiting.options_of(record.run_id),
            context=requested.context if requested else self._waiting.context_of(record.run_id),
            asked_at=taken.asked_at,
        )
        run.goes_on = record.status is not RunStatus.QUEUED
        run.cancel_requested = record.cancel_requested_at is not None
        if requested is not None:
            run.nesting = requested.nesting
            if requested.trace is not None:
                requested.trace.identify(run.identity)
                run.trace = requested.trace
        self._scheduler.enqueue(run)
        if run.cancel_requested:
            self._aside.start(self._end_unbegun(run))
        return run

    async def _end_unbegun(self, run: Run) -> None:
        """Cancel a run whose cancellation was requested before it could begin or continue here."""
        await self._scheduler.dequeue(run)
        if run.goes_on:
            await self._waiting.end_children(run.identity.run_id)

    async def _abandon(self, run: Run, reason: StorageError) -> None:
        """Stop the work on a run that belongs, or will belong, to another owner."""
        self._live.forget(run)
        if not await self._scheduler.abandon(run, reason):
            run_id = run.identity.run_id
            logger.warning(
                "run %s now belongs to another process, and did not stop in time", run_id
            )

    async def _finish(self, dispatcher: "Dispatcher", job: "Job", run: Run) -> None:
        """Finish the job of a run once its end is stored, here or by the process that closed it."""
        await run.ended.wait()
        while True:
            with suppress(StorageError):
                if run.journal.has_end:
                    return  # the job was removed with it
                is_stored = run.journal.is_stored
                if is_stored or (await self._reader.record(job.run_id)).status.is_terminal:
                    await dispatcher.queue.finish(job)
                    return
            await asyncio.sleep(dispatcher.heartbeat_s)
