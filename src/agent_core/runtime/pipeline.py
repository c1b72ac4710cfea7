"""The way of a run through this process: requested, taken, continued, parked, handed over or lost.

Every run is admitted in the same way (`_admit`), whatever stored it: this process, which claimed it
or waited for its turn; a dead process, which had queued it; a worker's queue; or an answer, for
which it waited. Each transaction that claims a session returns what else the session holds.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from msgspec.structs import replace

from agent_core.aio import SideTasks, finish_uncancelled, stop_if_cancelled, take_first_step
from agent_core.errors import AgentCoreError, ErrorCode, StorageError
from agent_core.events import EventStream
from agent_core.loop import Outcome, settle_parked
from agent_core.loop.options import RunOptions
from agent_core.runtime.execute import Executor
from agent_core.runtime.factory import ContextFactory
from agent_core.runtime.project import Project
from agent_core.runtime.reading import RunReader
from agent_core.runtime.run import (
    Caller,
    Nesting,
    Run,
    RunProgress,
    RunRequest,
    identity_of,
)
from agent_core.runtime.scheduler import Scheduler
from agent_core.runtime.table import ParkedRun, RunTable
from agent_core.types import (
    AgentRole,
    ClaimedRun,
    EndReason,
    RunIdentity,
    RunRecord,
    RunStatus,
    RuntimeEvent,
)

if TYPE_CHECKING:
    from agent_core.runtime.dispatch import Dispatcher
    from agent_core.storage.postgres.queue import Job

logger = logging.getLogger(__name__)

_HANDED_OVER = "this run was handed over to another process, which continues it"


class Pipeline:
    """Takes runs to their end, or to where another process or an answer is needed.

    Args:
        project: the project the runs work on.
        table: the runs of this process.
        scheduler: decides which of them is next.
        reader: reads other processes' runs.
        contexts: knows what the last run of a session has left.
        executor: executes a run.
        aside: runs tasks in the background.
    """

    def __init__(
        self,
        project: Project,
        *,
        table: RunTable,
        scheduler: Scheduler,
        reader: RunReader,
        contexts: ContextFactory,
        executor: Executor,
        aside: SideTasks,
    ) -> None:
        self._questions = project.gate.questions
        self._begin_session = project.gate.begin_session
        self._cwd = str(project.setup.project)
        self._max_takeovers = project.setup.config.worker.max_takeovers
        self._table = table
        self._store = table.store
        self._leases = table.leases
        self._scheduler = scheduler
        self._reader = reader
        self._contexts = contexts
        self._execute = partial(executor.execute, before=self._make_way, after=self._settle_parked)
        self._aside = aside
        self._deciding = WeakValueDictionary[str, asyncio.Lock]()

    # requested here

    async def start(self, request: RunRequest) -> Run:
        """Open a requested run, and start it or put it into the queue of its session.

        Raises:
            StorageError: as for `SessionStore.open_run`.
            AgentCoreError: `validation_error`: this runtime is being closed.
        """
        session_id = request.new_run.session_id
        claiming: asyncio.Future[ClaimedRun] | None = None
        with self._scheduler.keep_busy(session_id):
            try:
                if (last := self._scheduler.ending(session_id)) is not None:
                    await last.ended.wait()
                known = self._table.last_claim(session_id)
                claiming = take_first_step(self._store.open_run(request.new_run, known))
                claimed = await finish_uncancelled(claiming)
                self._scheduler.require_open()
            except BaseException:
                if claiming is not None and not (claiming.cancelled() or claiming.exception()):
                    claimed = claiming.result()  # the caller was cancelled and gets no handle
                    self._adopt(claimed)
                    is_new = claimed.session.active_node_id is None and not claimed.resumed
                    run = self._table.add(
                        claimed.run,
                        claimed,
                        Caller(),
                        known=partial(self._contexts.last_path, claimed.run.agent_id),
                        execute=self._execute,
                        is_new=is_new,
                    )
                    try:
                        await finish_uncancelled(self._scheduler.settle_unbegun(run))
                    finally:
                        run.leave()
                raise
            self._contexts.session_opened(claimed.session)
            if not claimed.resumed:
                self._begin_session(session_id)
            self._adopt(claimed)
            record = claimed.run.model_copy(update={"prompt": request.prompt})
            parked = list[str]()
            if request.prompt is not None and session_id in self._table.parked:
                parked = self._warnings(self._table.parked[session_id])
            is_new = claimed.session.active_node_id is None and not claimed.resumed
            run = self._admit(record, claimed, request.caller, is_new=is_new)
            run.warnings = [*request.warnings, *parked]
            run.inbox.has_mail = False  # no sender knew the run until now
        if run.status is RunStatus.QUEUED:
            in_front = [waiting.run_id for waiting in claimed.queued]
            run.journal.queue({"taken_over": in_front} if in_front else {})
            try:
                await run.journal.commit()
                stop_if_cancelled()
            except BaseException:  # no handle exists: the run must not keep its place
                await finish_uncancelled(self._scheduler.cancel(run))
                raise
        return run

    def _warnings(self, parked: ParkedRun) -> list[str]:
        """Return warnings about a waiting run that a new message of its session will end."""
        if parked.can_continue or parked.record.options is None:
            return []
        needed = ", ".join(parked.record.options.needs_caller)
        why = f"it was started with {needed}, which this process does not have"
        what = "of this session waits for an answer, and ends with this message"
        return [f"run {parked.record.run_id} {what}: {why}"]

    async def start_in_turn(
        self, dispatcher: "Dispatcher", request: RunRequest, timeout_s: float | None
    ) -> RunProgress:
        """Queue a run of this process among the workers' runs, and execute it when it is next.

        Raises:
            StorageError: as for `Dispatcher.turn`.
            AgentCoreError: `validation_error`: this runtime is being closed.
        """
        new_run = request.new_run
        turn = await dispatcher.turn(new_run, timeout_s)
        if turn is None:
            if request.caller.nesting is not None:
                request.caller.nesting.end()
            if request.caller.trace is not None:
                request.caller.trace.finish(Outcome(EndReason.ABORTED_STREAMING))
            record = await self._reader.record(new_run.run_id)
            return RunProgress(identity=identity_of(record), status=record.status)
        job, taken = turn
        with self._scheduler.keep_busy(new_run.session_id):  # closing waits for the run
            before: Sequence[RuntimeEvent] = ()
            failure: BaseException | None = None
            try:
                before = await self._store.events_after(new_run.run_id, 0)
            except BaseException as error:  # noqa: BLE001 - raised once the run has its end
                failure = error
            record = taken.run.model_copy(update={"prompt": request.prompt})
            run = self._admit_taken(record, taken, request.caller)
            for event in before:
                run.stream.write(event)
            self._aside.start(self._finish_job(dispatcher, job, run))
            if failure is not None or self._scheduler.is_closed:
                await finish_uncancelled(self._scheduler.cancel(run))
                if failure is not None:
                    raise failure
                self._scheduler.require_open()
            return run

    async def _finish_job(self, dispatcher: "Dispatcher", job: "Job", run: Run) -> None:
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
            if self._store.is_hurried:
                return  # the next process finds the job
            await asyncio.sleep(dispatcher.heartbeat_s)

    # taken from a queue

    async def take(self, record: RunRecord) -> Run | None:
        """Execute a run that is next, from its beginning or from where its process died.

        Returns:
            The run; None if it has ended or waits for an answer, so that there is nothing to do.

        Raises:
            StorageError: `session_active`: a living owner has the session.
            AgentCoreError: `validation_error`: this runtime is being closed.
        """
        await self._leases.store_ends()
        taken: ClaimedRun | None = None

        async def take_run() -> None:
            nonlocal taken
            taken = await self._store.take_run(
                record.run_id, self._leases.claim(), max_takeovers=self._max_takeovers
            )

        with self._scheduler.keep_busy(record.session_id):
            try:
                self._scheduler.require_open()
                await finish_uncancelled(take_run())
            except BaseException:
                if taken is not None:  # the caller was cancelled: the next process may have the run
                    owner_id = self._table.owner.owner_id
                    await finish_uncancelled(self._store.hand_over(record.run_id, owner_id))
                raise
            if taken is None:
                return None
            return self._admit_taken(taken.run, taken, self._table.parked_as(taken.run).caller)

    def _admit_taken(self, record: RunRecord, taken: ClaimedRun, caller: Caller) -> Run:
        """Admit a run from the workers' queue, begun or not."""
        self._contexts.session_opened(taken.session)
        if taken.session.active_node_id is None:
            self._begin_session(record.session_id)
        if taken.waiting is not None:
            self._table.parked[taken.waiting.session_id] = self._table.parked_as(taken.waiting)
        return self._admit(
            record,
            taken,
            caller,
            is_new=taken.session.active_node_id is None,
            is_continued=record.status is not RunStatus.QUEUED,
        )

    # left by a dead process

    def _adopt(self, claimed: ClaimedRun) -> None:
        """Admit a dead owner's queued runs, and continue its parked run if that is possible.

        Their `run_queued` events exist already. These runs get no context variables: the caller's
        belong to another run.
        """
        if self._scheduler.is_closed:
            return  # they keep waiting, for the next owner
        if claimed.waiting is not None and not self._table.is_continuing(claimed.waiting.run_id):
            parked = self._table.parked_as(claimed.waiting)
            may_continue = claimed.waiting.cancel_requested_at is None and parked.can_continue
            if may_continue and (claimed.is_answered or self._questions.has_callback):
                context = parked.caller.context or Context()
                self._continue(claimed.waiting, claimed, replace(parked.caller, context=context))
            else:
                self._table.parked[claimed.waiting.session_id] = parked
        for record in claimed.queued:
            self._admit(record, claimed, Caller(context=Context()))

    # answered

    async def resume(self, run_id: str, options: RunOptions | None = None) -> None:
        """Continue a waiting run if this process can; a run for workers is left to them.

        `options` are the ones that its caller has handed over again.

        Raises:
            StorageError: as for `SessionStore.resume_run`.
        """
        async with self._decision(run_id):
            record = await self._reader.record(run_id)
            if record.is_for_workers:
                return  # its answer has queued it, or its worker gives the job back
            if record.status is not RunStatus.WAITING:
                return
            parked = self._table.parked_as(record)
            if options is not None:
                parked = replace(parked, caller=replace(parked.caller, options=options))
                self._table.parked[record.session_id] = parked
            if not parked.can_continue:
                return
            await self._leases.store_ends()
            async with self._claimed(record) as claimed:
                if not self._table.is_continuing(run_id):
                    self._contexts.session_opened(claimed.session)
                    self._continue(claimed.run, claimed, parked.caller)
                    self._adopt(claimed)

    def _continue(self, record: RunRecord, claimed: ClaimedRun, caller: Caller) -> None:
        """Continue a run that has waited; it is no longer the session's waiting run."""
        self._table.parked.pop(record.session_id, None)
        before = self._table.get(record.run_id)
        is_nested = before is not None and before.nesting is not None
        if not is_nested and (found := self._table.enclosing()) is not None:
            # The run whose code gives the answer may wait for this one.
            nesting = Nesting(outer=found[0], payer=None, session_id=record.session_id)
            caller = replace(caller, nesting=nesting)
        self._admit(record, claimed, caller, is_continued=True)

    async def cancel_parked(self, run_id: str) -> None:
        """Cancel a waiting run; its calls are answered.

        Raises:
            StorageError: as for `SessionStore.resume_run`.
        """
        async with self._claimed(await self._reader.record(run_id)) as claimed:
            try:
                await finish_uncancelled(self._end_parked(run_id))
            finally:
                self._adopt(claimed)
        if self._table.is_continuing(run_id) and (run := self._table.get(run_id)) is not None:
            await self._scheduler.cancel(run)

    async def _end_parked(self, run_id: str) -> None:
        """Cancel a waiting run whose session is claimed here, and forget what was kept for it."""
        async with self._decision(run_id):
            record = await self._reader.record(run_id)
            if record.status is not RunStatus.WAITING or self._table.is_continuing(run_id):
                return  # it has continued since
            caller = self._table.parked_as(record).caller
            run = self._table.add(
                record,
                None,
                caller,
                known=partial(self._contexts.last_path, record.agent_id),
                execute=self._execute,
                is_continued=True,
            )
            run.is_stopping = True
            try:
                await self._scheduler.settle_unbegun(run)
            finally:
                run.leave()
            self._table.unpark(record)
        await self.end_children(run_id)

    @asynccontextmanager
    async def _claimed(self, record: RunRecord) -> AsyncGenerator[ClaimedRun]:
        """Claim the session of a waiting run, which is busy here until the end of the block.

        Raises:
            StorageError: as for `SessionStore.resume_run`.
        """
        session_id = record.session_id
        claiming = self._store.resume_run(record.run_id, self._leases.claim(), cwd=self._cwd)
        try:
            with self._scheduler.keep_busy(session_id):
                claimed = await finish_uncancelled(claiming)
                self._scheduler.require_open()
                yield claimed
        finally:
            if not self._scheduler.is_busy(session_id):
                await finish_uncancelled(self._leases.release(session_id))

    def _decision(self, run_id: str) -> asyncio.Lock:
        """Return the lock held while deciding whether a waiting run continues or ends.

        The store's answer is out of date if the other decision was stored before it arrived.
        """
        return self._deciding.setdefault(run_id, asyncio.Lock())

    # given to another process

    async def hand_over(self, run_id: str) -> bool:
        """Stop the work on a run, and leave the rest to the process that takes it next.

        For that process, work that was begun and cut off has an unknown effect.

        Returns:
            Whether it was handed over; False if the run has ended or is ending.
        """
        run = self._table.get(run_id)
        if run is None or run.journal.is_closing or run.ended.is_set():
            return False
        with suppress(StorageError):
            await run.journal.commit()
        if run.journal.is_closing:
            return False
        await self._abandon(run, StorageError(ErrorCode.SESSION_ACTIVE, _HANDED_OVER))
        return await self._store.hand_over(run_id, self._table.owner.owner_id)

    def lose(self, run_id: str, is_refused: bool) -> None:
        """Stop a run at once because another process has taken its session over.

        Skips a run that is ending and has released its session, unless its end is refused, and a
        run that claimed the session again after waiting.
        """
        run = self._table.get(run_id)
        if run is None or run.ended.is_set() or (run.journal.is_closing and not is_refused):
            return
        if run.scope.lease is not None and not run.scope.lease.is_lost:
            return
        from agent_core.runtime.fence import session_lost  # noqa: PLC0415 - loaded by now

        reason = session_lost(run_id)
        logger.warning("%s", reason)
        run.journal.abandon(reason)
        self._aside.start(self._abandon(run, reason))

    async def _abandon(self, run: Run, reason: StorageError) -> None:
        """Stop the work on a run that belongs, or will belong, to another owner."""
        self._table.forget(run)
        if not await self._scheduler.abandon(run, reason):
            run_id = run.identity.run_id
            logger.warning(
                "run %s now belongs to another process, and did not stop in time", run_id
            )

    # what all of them share

    def _admit(
        self,
        record: RunRecord,
        claimed: ClaimedRun,
        caller: Caller,
        *,
        is_new: bool = False,
        is_continued: bool = False,
    ) -> Run:
        """Make a run of a claimed session the last in its queue.

        A run that was cancelled while it had no owner ends without having begun or continued.
        """
        run = self._table.add(
            record,
            claimed,
            caller,
            known=partial(self._contexts.last_path, record.agent_id),
            execute=self._execute,
            is_new=is_new,
            is_continued=is_continued,
        )
        self._scheduler.enqueue(run)
        if run.is_stopping:
            self._aside.start(self._end_unbegun(run))
        return run

    async def _make_way(self, run: Run) -> None:
        """End the session's waiting run, if there is one, because this one has begun after it.

        Raises:
            StorageError: `session_active`: the run only summarises the history.
        """
        parked = self._table.parked.get(run.identity.session_id)
        if parked is None:
            return
        before = parked.record
        if run.prompt is None and not run.is_continued:
            raise _still_waits(before)
        await finish_uncancelled(self._end_parked(before.run_id))

    async def _settle_parked(self, run: Run) -> None:
        """Keep what a run needs that waits now; clean up after one that has waited and ended.

        A run that fails or is cancelled in its first process may leave a question, too: another
        call of the same reply, or a child of it, may have begun to wait.
        """
        self._table.run_ended(run)
        if not run.is_continued and run.status is RunStatus.COMPLETED:  # it has left no question
            return
        run_id = run.identity.run_id
        self._questions.run_ended(run_id)
        if run.journal.is_abandoned:
            return
        with suppress(AgentCoreError):  # the next owner of the session finds it unchanged
            if run.status is not RunStatus.WAITING:
                await self.end_children(run_id)
                return
            if (record := await self._store.run(run_id)) is not None:
                caller = Caller(options=run.options, context=run.context, nesting=run.nesting)
                self._table.parked[run.identity.session_id] = ParkedRun(record, caller)
            if await self._store.is_answered(run_id):  # answered while it was being stored
                await self.resume(run_id)

    async def _end_unbegun(self, run: Run) -> None:
        """Cancel a run whose cancellation was requested before it could begin or continue here."""
        await self._scheduler.dequeue(run)
        if run.is_continued:
            await self.end_children(run.identity.run_id)

    async def end_children(self, run_id: str) -> None:
        """Cancel the waiting children of a run that has ended, and close its questions."""
        await self._cancel_waiting(run_id)
        await self._store.close_waiting(run_id)

    async def _cancel_waiting(self, run_id: str) -> None:
        """Cancel the waiting children of a run, and theirs before them."""
        for child in await self._store.waiting_children(run_id):
            identity = RunIdentity(
                session_id=child.session_id,
                agent_id=child.agent_id,
                run_id=child.run_id,
                role=AgentRole.SUB,
                mode=child.mode,
                parent_run_id=run_id,
            )
            await self._cancel_waiting(child.run_id)
            journal = self._table.open_journal(identity, EventStream())
            await settle_parked(journal, self._table.history_of(child))


def _still_waits(waiting: RunRecord) -> StorageError:
    """Return the error for a run that only summarises while another run waits for an answer."""
    return StorageError(
        ErrorCode.SESSION_ACTIVE,
        f"run {waiting.run_id} of session {waiting.session_id} waits for an answer; answer its"
        " question (soong-agent approvals list), or cancel it (in code: runtime.approvals() lists"
        " the questions, runtime.answer(...) answers one)",
        details={"session_id": waiting.session_id, "run_id": waiting.run_id},
    )
