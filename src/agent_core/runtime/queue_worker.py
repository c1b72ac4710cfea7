"""Takes queued runs out of a database and executes them concurrently, until it is drained."""

import asyncio
import logging
import os
import platform
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from time import monotonic
from typing import TYPE_CHECKING

from msgspec import Struct

from agent_core.aio import finish_uncancelled, stop_task
from agent_core.config.stores import RunWorkerConfig
from agent_core.errors import AgentCoreError, ErrorCode, StorageError
from agent_core.events import EventStream, HeldSession, Journal
from agent_core.loading import installed_version
from agent_core.loop import Outcome, settle
from agent_core.providers.estimates import estimate_blocks
from agent_core.redaction import Redactor, log_failure
from agent_core.redaction.redactor import JournalRedactor
from agent_core.runtime.projects import OpenProjects
from agent_core.runtime.run import identity_of
from agent_core.runtime.workspaces import Workspaces
from agent_core.types import (
    Claim,
    ClaimedRun,
    EndReason,
    ErrorPayload,
    RunRecord,
    RunStatus,
    SessionRecord,
    utc_now,
)
from agent_core.types.lanes import PROTOCOL, SNAPSHOT, Lane, own_place
from agent_core.types.workers import QueueDepth, WorkerRecord

if TYPE_CHECKING:
    from agent_core.runtime.run import Run
    from agent_core.runtime.services import Services
    from agent_core.runtime.stores import OpenedStore
    from agent_core.storage.postgres.queue import Job, RunQueue
    from agent_core.storage.postgres.workers import WorkerTable

logger = logging.getLogger(__name__)

_POLL_S = 1.0
"""Seconds between checks of an idle worker: no notice announces that a run behind another one is
next.
"""

_LOOK_S = 5.0
"""Seconds that a query for the queue's figures may wait for the database."""

_BUSY_S = 1.0
"""Seconds that a run waits while another process is still using its session."""


_QUEUED = "procrastinate_any_queue_v1"
"""The channel on which Procrastinate announces jobs."""


class _FetchedJob(Struct, eq=False, kw_only=True):
    """A job of this worker, and its run once it is executed.

    Attributes:
        is_left: another worker should continue it.
        leaving: the task that gives it up here.
        is_handed_over: it was given up here, in the database.
        is_fetched_again: others had given this worker up, and it has fetched the job again.
        is_unsure: the database has not confirmed whether this worker claimed the session.
    """

    job: "Job"
    services: "Services | None" = None
    run: "Run | None" = None
    is_left: bool = False
    leaving: asyncio.Task[None] | None = None
    is_handed_over: bool = False
    is_fetched_again: bool = False
    is_unsure: bool = False


class QueueWorker:
    """One worker, from its first heartbeat to its end.

    Args:
        opened: the database.
        queue, table: of the same database.
        projects: services of the projects that use this database.
        workspaces: folders of sessions whose files any machine can have.
        config: concurrency, queues, places and lease of the worker.
        tenant: the only tenant that it serves; None for all.
        redactor: removes secrets from what is stored about runs whose project cannot be opened.

    Attributes:
        started, ended, parked, takeovers, handed_over: counts of runs; `ended` counts by status.
    """

    def __init__(
        self,
        opened: "OpenedStore",
        projects: OpenProjects,
        workspaces: Workspaces,
        config: RunWorkerConfig,
        *,
        queue: "RunQueue",
        table: "WorkerTable",
        tenant: str | None,
        redactor: Redactor,
    ) -> None:
        self._store, self._owner, self._notices = opened.store, opened.owner, opened.notices
        self._blobs = opened.blobs
        self._queue, self._table = queue, table
        self._projects = projects
        self._workspaces = workspaces
        self._config = config
        self._tenant = tenant
        self._redactor = redactor
        self._places = config.places or [own_place(config.host_id), SNAPSHOT]
        self._jobs: dict[asyncio.Task[None], _FetchedJob] = {}
        self._wake = asyncio.Event()
        self._must_beat = asyncio.Event()
        self._began_at = utc_now()
        self._beat_at = monotonic()
        self._is_away = False
        self._draining = asyncio.Event()
        self._looking: asyncio.Task[list[QueueDepth]] | None = None
        self.started = 0
        self.ended: Counter[str] = Counter()
        self.parked = 0
        self.takeovers = 0
        self.handed_over = 0

    @property
    def worker_id(self) -> str:
        """Id under which this worker owns sessions."""
        return self._owner.owner_id

    @property
    def concurrency(self) -> int:
        """Largest number of runs executed at the same time."""
        return self._config.concurrency

    @property
    def is_alive(self) -> bool:
        """Return whether the worker's lease is still valid, as far as it knows."""
        return self.heartbeat_age_s < self._config.lease_s

    async def depths(self) -> Sequence[QueueDepth] | None:
        """Return the numbers of queued runs; None if the database does not answer."""
        try:
            async with asyncio.timeout(_LOOK_S):
                return await asyncio.shield(self._look())
        except (StorageError, TimeoutError):
            return None

    def _look(self) -> asyncio.Future[list[QueueDepth]]:
        """Query once at a time, however many ask while the database does not answer."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._depths())
        return self._looking

    async def _depths(self) -> list[QueueDepth]:
        """Return what is queued, including the worker's own empty lanes: a monitor needs the 0."""
        found = await self._table.depths()
        filled = {(each.queue, each.place, each.tenant, each.protocol) for each in found}
        own = [
            (queue, place, self._tenant, PROTOCOL)
            for queue in self._config.queues
            for place in self._places
        ]
        return found + [
            QueueDepth(
                queue=queue, place=place, tenant=tenant, protocol=protocol, depth=0, oldest_s=0
            )
            for queue, place, tenant, protocol in own
            if (queue, place, tenant, protocol) not in filled
        ]

    @property
    def is_draining(self) -> bool:
        """Return whether the worker takes no more runs."""
        return self._draining.is_set()

    @property
    def running(self) -> int:
        """Number of runs the worker has now."""
        return len(self._jobs)

    @property
    def heartbeat_age_s(self) -> float:
        """Seconds since the database accepted a heartbeat."""
        return monotonic() - self._beat_at

    def drain(self) -> None:
        """Take no more runs, and end once the current ones have ended or are handed over."""
        self._draining.set()
        self._wake.set()
        self._must_beat.set()

    async def work(self) -> bool:
        """Execute runs until drained; return whether every run was finished or handed over.

        If the caller is cancelled, the runs are handed over at once.

        Raises:
            StorageError: the database failed at the start.
        """
        await self._queue.register()
        await self._beat()
        what = "%s takes runs of %s in the queues %s, %d at a time%s"
        places, queues = ", ".join(self._places), ", ".join(self._config.queues)
        of = f", of the tenant {self._tenant}" if self._tenant else ""
        logger.info(what, self.worker_id, places, queues, self._config.concurrency, of)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._unregister)
            for loop in (self._keep_alive(), self._sweep_lost_runs(), self._listen()):
                stack.push_async_callback(stop_task, asyncio.create_task(loop))
            taking = asyncio.create_task(self._take_runs())
            draining = asyncio.create_task(self._draining.wait())
            try:
                await asyncio.wait([taking, draining], return_when=asyncio.FIRST_COMPLETED)
                if self._jobs:
                    patience = self._config.drain_seconds
                    what = "drains: takes no more runs; its active runs (%d) may continue for %g s"
                    logger.info(what, len(self._jobs), patience)
                    await asyncio.wait(self._jobs, timeout=patience)
            finally:
                self.drain()
                draining.cancel()
                is_clean = await finish_uncancelled(self._hand_over())
                await asyncio.wait([taking], timeout=_LOOK_S)  # a job may just be arriving
                taking.cancel()
        if taking.done() and not taking.cancelled():
            taking.result()
        return is_clean

    async def _take_runs(self) -> None:
        while not self.is_draining:
            self._wake.clear()
            if len(self._jobs) < self._config.concurrency and await self._take():
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLL_S):
                    await self._wake.wait()

    async def _take(self) -> bool:
        """Begin the next run, if there is one; return whether there may be more."""
        try:
            most = self._config.tenant_concurrency
            job = await self._queue.fetch_next(self._serves, tenant_concurrency=most)
        except StorageError as error:
            self._log_outage(error)
            return False
        if job is None:
            return False
        if self.is_draining:
            await self._queue.give_back(job, 0)
            return False
        for task, mine in self._jobs.items():
            is_its = mine.job.job_id == job.job_id  # given up by others, still running
            if is_its and not task.done():
                mine.is_fetched_again = True
                return True
        taken = _FetchedJob(job=job)
        task = asyncio.create_task(self._carry_out(taken), name=job.run_id)
        self._jobs[task] = taken
        task.add_done_callback(self._gone)
        return not job.is_last

    def _gone(self, task: asyncio.Task[None]) -> None:
        """Free the place of a task that has ended."""
        del self._jobs[task]
        self._wake.set()

    def _serves(self, lane: Lane) -> bool:
        """Return whether the worker takes the runs of a lane."""
        return lane.suits(self._places, self._config.queues, self._tenant)

    async def _carry_out(self, taken: _FetchedJob) -> None:
        """Finish a job: either its run has ended here, or it goes back into the queue."""
        run_id = taken.job.run_id
        try:
            pause_s = await self._conduct(taken)
        except Exception as error:  # noqa: BLE001 - the worker continues, and the run gets an end
            pause_s = await self._fail(taken, error)
        is_lost = taken.is_unsure or (taken.run is not None and taken.run.journal.is_abandoned)
        while True:
            try:
                if is_lost and not taken.is_handed_over:  # this worker may still own it
                    await self._store.hand_over(run_id, self._owner.owner_id)
                has_left = taken.run is not None and taken.run.journal.has_end
                if pause_s is not None or not (has_left or await self._is_over(taken)):
                    await self._queue.give_back(taken.job, pause_s or 0)
                elif not has_left or taken.is_fetched_again:  # others had put it back meanwhile
                    await self._queue.finish(taken.job)
                if not taken.is_fetched_again:
                    return
                taken.is_fetched_again = False
                continue
            except StorageError as error:
                self._log_outage(error)
            await asyncio.sleep(self._config.heartbeat_s)

    async def _conduct(self, taken: _FetchedJob) -> float | None:
        """Execute the run of a job.

        Returns:
            Seconds after which any worker may try again; None if the run has ended or belongs to
            another worker.

        Raises:
            Exception: its project cannot be opened or used.
        """
        run_id = taken.job.run_id
        record, session = taken.job.read() or await self._look_up(run_id)
        if record is None or session is None:
            return None  # it was deleted
        async with AsyncExitStack() as stack:
            folder = session.cwd
            if session.place == SNAPSHOT:
                folder = str(await stack.enter_async_context(self._workspaces.use(session)))
            services = await stack.enter_async_context(self._projects.use(folder))
            if taken.is_left:
                return 0
            taken.services = services
            try:
                taken.run = run = await services.runs.pipeline.take(record)
            except StorageError as error:
                if error.code is ErrorCode.SESSION_ACTIVE:
                    return _BUSY_S
                raise
            if run is None:
                return None
            self.started += 1
            verb = "begins" if record.status is RunStatus.QUEUED else "continues"
            logger.info("%s %s, of session %s", run_id, verb, record.session_id)
            if record.status is not RunStatus.QUEUED:
                now = await self._store.run(run_id)
                self.takeovers += now is not None and now.takeovers > record.takeovers
            if taken.is_left:
                await self._leave(taken)
            await run.ended.wait()
            if taken.leaving is not None:
                await taken.leaving
            if taken.is_handed_over:
                return 0
            if not run.journal.is_abandoned:
                self._count_end(run)
            return None

    def _count_end(self, run: "Run") -> None:
        """Count and log a run that has ended here, or waits for an answer."""
        if run.status is RunStatus.WAITING:
            self.parked += 1
        else:
            self.ended[run.status.value] += 1
        error = run.outcome.error if run.outcome is not None else None
        why = f": {error.code}: {error.message}" if error is not None else ""
        why = " ".join(self._redactor.text(why).split())
        logger.info("%s is %s%s", run.identity.run_id, run.status, why)

    async def _look_up(self, run_id: str) -> tuple[RunRecord | None, SessionRecord | None]:
        """Load a run, which was queued when it was taken, and its session."""
        record = await self._store.run(run_id)
        return record, await self._store.session(record.session_id) if record else None

    async def _is_over(self, taken: _FetchedJob) -> bool:
        """Return whether a run has its end in the database, or waits there for an answer."""
        run, run_id = taken.run, taken.job.run_id
        if run is not None and run.status.is_terminal and run.journal.is_stored:
            return True
        record = await self._store.run(run_id)
        if record is None or record.status.is_terminal:
            return True
        if record.status is RunStatus.WAITING:
            can_continue = record.cancel_requested_at or await self._store.is_answered(run_id)
            return not can_continue
        session = await self._store.session(record.session_id)
        if session is not None and session.owner == self._owner.owner_id:
            message = f"the end of run {run_id} is not stored yet"
            raise StorageError(ErrorCode.STORAGE_ERROR, message, retryable=True)
        return False

    async def _fail(self, taken: _FetchedJob, error: Exception) -> float | None:
        """End a run that cannot be begun here; return the same as `_conduct`.

        A failure of the database that another attempt may not meet is left to that attempt.
        """
        run_id = taken.job.run_id
        if isinstance(error, StorageError) and error.retryable:
            taken.is_unsure = True
            self._log_outage(error)
            return _BUSY_S
        if not isinstance(error, AgentCoreError):
            what = f"run {run_id} could not be begun"
            log_failure(logger, what, error=error, clean=self._redactor.text)
            message = f"the worker could not begin the run ({type(error).__name__}: {error})"
            error = AgentCoreError(ErrorCode.INTERNAL_ERROR, message)
        try:
            opened = await self._store.take_run(
                run_id,
                Claim(self._owner.owner_id),
                max_takeovers=self._config.max_takeovers,
            )
            if opened is not None:
                outcome = Outcome(EndReason.FAILED, error=ErrorPayload.of(error))
                await settle(self._journal(opened), outcome)
                await self._store.release(opened.run.session_id, self._owner.owner_id)
                self.started += 1
                self.ended[outcome.status.value] += 1
                logger.warning("%s cannot be executed here: %s", run_id, error)
        except StorageError as failure:
            if failure.retryable:
                taken.is_unsure = True
                self._log_outage(failure)
                return _BUSY_S
            logger.warning("%s cannot be executed: %s", run_id, failure)
            return self._config.lease_s  # its rows may be repaired meanwhile
        return None

    def _journal(self, opened: ClaimedRun) -> Journal:
        return Journal(
            identity_of(opened.run),
            store=self._store,
            stream=EventStream(),
            redactor=JournalRedactor(self._redactor),
            estimate=estimate_blocks,
            held=HeldSession(self._owner.owner_id, opened.session.epoch),
        )

    async def _hand_over(self) -> bool:
        """Hand the remaining runs over; return whether the database knows of all of them."""
        left = list(self._jobs.values())
        for taken in left:
            taken.is_left = True
            taken.leaving = asyncio.create_task(self._leave(taken))
        if self._jobs:  # the database may be away, or a tool may not stop
            await asyncio.wait(self._jobs, timeout=self._config.lease_s)
        stuck = list(self._jobs.items())
        if stuck or self._is_away or not self.is_alive:  # others find the runs; end now
            self._queue.hurry()
            if self._blobs is not None:
                self._blobs.hurry()
        for task, taken in stuck:
            logger.warning("%s could not be handed over", taken.job.run_id)
            task.cancel()
        if stuck:
            await asyncio.wait([task for task, _ in stuck])
        return not stuck

    async def _leave(self, taken: _FetchedJob) -> None:
        """Stop the work on a run, so that another worker can continue it."""
        if taken.run is None or taken.services is None:
            return  # `_conduct` looks before it begins
        run_id = taken.job.run_id
        try:
            if await taken.services.runs.pipeline.hand_over(run_id):
                taken.is_handed_over = True
                self.handed_over += 1
                logger.info("%s is handed over", run_id)
        except StorageError as error:
            self._log_outage(error)

    async def _keep_alive(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._config.heartbeat_s):
                    await self._must_beat.wait()
            self._must_beat.clear()
            try:
                await self._beat()
            except Exception as error:  # noqa: BLE001 - the next beat may succeed
                self._log_outage(error)

    async def _beat(self) -> None:
        """Send a heartbeat of this worker."""
        lease_s = self._config.lease_s
        leases = await self._table.beat(self._record(), lease_s)
        await self._queue.heartbeat()
        self._owner.heard(lease_s, leases)
        self._beat_at = monotonic()
        if self._is_away:
            self._is_away = False
            logger.info("the database answers again")

    async def _sweep_lost_runs(self) -> None:
        """Clean up after dead processes; this may wait for a locked session."""
        while True:
            try:
                await self._store.close_lost_runs()
                if await self._queue.sweep():
                    self._wake.set()
            except Exception as error:  # noqa: BLE001 - the next sweep may succeed
                self._log_outage(error)
            await asyncio.sleep(self._config.heartbeat_s)

    async def _listen(self) -> None:
        """Check for runs whenever one is queued."""
        if self._notices is None:
            return
        with self._notices.subscribe(_QUEUED) as inbox:
            while True:
                await inbox.wait()
                inbox.take()
                self._wake.set()

    async def _unregister(self) -> None:
        """Remove this worker from the lists of workers."""
        with suppress(Exception):  # its lease will expire
            await self._table.remove(self._owner.owner_id)
            await self._queue.unregister()

    def _log_outage(self, error: Exception) -> None:
        """Log a failure of the database, once until it answers again."""
        if not self._is_away:
            self._is_away = True
            logger.warning("the database fails, retrying: %s", self._redactor.text(str(error)))

    def _record(self) -> WorkerRecord:
        return WorkerRecord(
            worker_id=self._owner.owner_id,
            host=platform.node(),
            pid=os.getpid(),
            version=installed_version() or "unknown",
            protocol=PROTOCOL,
            places=self._places,
            queues=self._config.queues,
            tenant=self._tenant,
            concurrency=self._config.concurrency,
            running=len(self._jobs),
            is_draining=self.is_draining,
            started_at=self._began_at,
            heartbeat_at=utc_now(),
        )
