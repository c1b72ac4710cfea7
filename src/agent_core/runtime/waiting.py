"""Runs that wait for an answer: continued here, or ended if they get none."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from contextvars import Context, copy_context
from weakref import WeakValueDictionary

from msgspec import Struct
from msgspec.structs import replace

from agent_core.aio import SideTasks, to_the_end
from agent_core.errors import ErrorCode, StorageError
from agent_core.events import EventStream
from agent_core.loop import settle_waiting
from agent_core.loop.options import RunOptions
from agent_core.runtime.factory import RunFactory
from agent_core.runtime.opening import Journals, LiveRuns
from agent_core.runtime.project import Project
from agent_core.runtime.reading import RunReader
from agent_core.runtime.recovery import SessionHistory, SessionLeases
from agent_core.runtime.scheduler import Nesting, Run, Scheduler
from agent_core.storage.owners import Owner
from agent_core.storage.store import SessionStore
from agent_core.types import AgentRole, OpenedRun, RunIdentity, RunRecord, RunStatus


class _Kept(Struct, frozen=True):
    """Parts of a run that only its program can provide."""

    options: RunOptions | None = None
    context: Context | None = None


class WaitingRuns:
    """Tracks the waiting run of each session, with the options and variables of its program.

    A run that never waits, in a session without a waiting run, does not use this.

    Args:
        project: the project the runs work on.
        store, owner, reader, leases, scheduler: of this process.
        live, journals, contexts: of its runs.
        aside: runs tasks in the background.

    Attributes:
        by_session: the waiting run of each session; only this class changes it.
    """

    def __init__(
        self,
        project: Project,
        *,
        store: SessionStore,
        owner: Owner,
        reader: RunReader,
        leases: SessionLeases,
        scheduler: Scheduler,
        live: LiveRuns,
        journals: Journals,
        contexts: RunFactory,
        aside: SideTasks,
    ) -> None:
        self._questions = project.guard.questions
        self._cwd = str(project.setup.project)
        self._store = store
        self._owner = owner
        self._reader = reader
        self._leases = leases
        self._scheduler = scheduler
        self._live = live
        self._journals = journals
        self._contexts = contexts
        self._aside = aside
        self.by_session: dict[str, RunRecord] = {}
        self._kept: dict[str, _Kept] = {}
        self._locks = WeakValueDictionary[str, asyncio.Lock]()

    def keep(self, waiting: RunRecord) -> None:
        """Remember a run that waits in its session, until the next run there ends it."""
        self.by_session[waiting.session_id] = waiting

    def options_of(self, run_id: str) -> RunOptions | None:
        """Return the options of a run that has waited here, as its caller has set them."""
        return self._kept_of(run_id).options

    def context_of(self, run_id: str) -> Context | None:
        """Return the context variables of a run that has waited here."""
        return self._kept_of(run_id).context

    def history_of(self, run: RunRecord) -> SessionHistory:
        """Return the history of a waiting run, which continues from its end node."""
        return SessionHistory(
            self._store, run.session_id, is_new=False, from_node_id=run.end_node_id
        )

    async def make_way(self, run: Run) -> None:
        """End the session's waiting run, because this one has begun after it.

        Raises:
            StorageError: `session_active`: the run only summarises the history.
        """
        before = self.by_session[run.session_id]
        if run.prompt is None and not run.goes_on:
            raise _still_waits(before)
        del self.by_session[run.session_id]
        await self._end(before.run_id)

    async def note(self, run: Run) -> None:
        """Keep what a run needs that waits now; clean up after a run that has waited and ended."""
        run_id = run.identity.run_id
        with suppress(StorageError):  # the next owner of the session finds it unchanged
            if run.status is not RunStatus.WAITING:
                self._kept.pop(run_id, None)
                await self.end_children(run_id)
                return
            options = run.options if run.options is not None else self.options_of(run_id)
            self._kept[run_id] = _Kept(options=options, context=run.context)
            if (record := await self._store.run(run_id)) is not None:
                self.keep(record)
            if await self._store.is_answered(run_id):  # answered while it was being stored
                await self.resume(run_id)

    def can_continue(self, run: RunRecord) -> bool:
        """Return whether this process has the options that only the run's program can have."""
        needs_caller = run.options is not None and run.options.needs_caller
        return not needs_caller or self.options_of(run.run_id) is not None

    def warnings(self, session_id: str) -> list[str]:
        """Return warnings about the waiting run that a new message of the session will end."""
        before = self.by_session[session_id]
        if self.can_continue(before) or before.options is None:
            return []
        needed = ", ".join(before.options.needs_caller)
        why = f"it was started with {needed}, which this process does not have"
        what = "of this session waits for an answer, and ends with this message"
        return [f"run {before.run_id} {what}: {why}"]

    async def resume(self, run_id: str, options: RunOptions | None = None) -> None:
        """Continue a waiting run if this process can; a run for workers is left to them.

        `options` are the ones that its caller has handed over again.

        Raises:
            StorageError: as for `resume_run`.
        """
        async with self._deciding(run_id):
            record = await self._reader.record(run_id)
            if record.is_for_workers:
                return  # its answer has queued it, or its worker gives the job back
            if record.status is not RunStatus.WAITING:
                return
            if options is not None:
                self._kept[run_id] = replace(self._kept_of(run_id), options=options)
            if not self.can_continue(record):
                return
            await self._leases.store_ends()
            async with self._claimed(record) as opened:
                if self._live.goes_on(run_id):
                    return
                self._contexts.session_opened(opened.session)
                self.by_session.pop(record.session_id, None)
                if (kept := self._kept_of(run_id)).context is None:
                    self._kept[run_id] = replace(kept, context=copy_context())
                self.take_over(replace(opened, waiting=opened.run, is_answered=True))

    def _deciding(self, run_id: str) -> asyncio.Lock:
        """Return the lock held while deciding whether a waiting run continues or ends.

        The store's answer is out of date if the other decision was stored before it arrived.
        """
        return self._locks.setdefault(run_id, asyncio.Lock())

    async def cancel(self, run_id: str) -> None:
        """Cancel a waiting run; its calls are answered.

        Raises:
            StorageError: as for `resume_run`.
        """
        async with self._claimed(await self._reader.record(run_id)) as opened:
            self.by_session.pop(opened.run.session_id, None)
            try:
                await to_the_end(self._end(run_id))
            finally:
                self.take_over(opened)
        if self._live.goes_on(run_id) and (run := self._live.get(run_id)) is not None:
            await self._scheduler.cancel(run)

    def take_over(self, opened: OpenedRun) -> None:
        """Run what a dead owner of the session had queued; their `run_queued` events exist already.

        These runs get no context variables: the caller's belong to another run. A run that was
        cancelled while it had no owner ends without having begun.
        """
        if self._scheduler.is_closed:
            return  # they keep waiting, for the next owner
        waiting = opened.waiting
        if waiting is not None and not self._live.goes_on(waiting.run_id):
            self.by_session.pop(waiting.session_id, None)
            is_unwanted = waiting.cancel_requested_at is not None
            may_continue = not is_unwanted and self.can_continue(waiting)
            if may_continue and (opened.is_answered or self._questions.has_callback):
                self._scheduler.announce(waiting.session_id)
                kept = self._kept_of(waiting.run_id)
                run = self._live.new(
                    waiting,
                    opened.session,
                    is_new=False,
                    options=kept.options,
                    context=kept.context or Context(),
                    asked_at=opened.asked_at,
                )
                if run.nesting is None and (found := self._live.enclosing()) is not None:
                    # The run whose code gives the answer may wait for this one.
                    session_id = waiting.session_id
                    run.nesting = Nesting(outer=found[0], payer=None, session_id=session_id)
                self._scheduler.enqueue(run)
            else:
                self.keep(waiting)
        for record in opened.queued:
            run = self._live.new(
                record,
                opened.session,
                is_new=False,
                context=Context(),
                asked_at=opened.asked_at,
            )
            run.cancel_requested = record.cancel_requested_at is not None
            self._scheduler.announce(record.session_id)
            self._scheduler.enqueue(run)
            if run.cancel_requested:
                self._aside.start(self._scheduler.dequeue(run))

    async def end_children(self, run_id: str) -> None:
        """Cancel the waiting children of a run that has ended, and close its questions."""
        for child in await self._store.waiting_children(run_id):
            identity = RunIdentity(
                session_id=child.session_id,
                agent_id=child.agent_id,
                run_id=child.run_id,
                role=AgentRole.SUB,
                mode=child.mode,
                parent_run_id=run_id,
            )
            journal = self._journals.open(identity, EventStream())
            await settle_waiting(journal, self.history_of(child))
        await self._store.close_waiting(run_id)

    async def _end(self, run_id: str) -> None:
        """Cancel a waiting run whose session is claimed here."""
        async with self._deciding(run_id):
            record = await self._reader.record(run_id)
            if record.status is not RunStatus.WAITING or self._live.goes_on(run_id):
                return  # it has continued since
            run = self._live.new(record, None, is_new=False, options=self.options_of(run_id))
            run.cancel_requested = True
            await self._scheduler.settle_unbegun(run)
            run.ended.set()
        self._kept.pop(run_id, None)
        await self.end_children(run_id)

    def _kept_of(self, run_id: str) -> "_Kept":
        return self._kept.get(run_id, _Kept())

    @asynccontextmanager
    async def _claimed(self, record: RunRecord) -> AsyncGenerator[OpenedRun]:
        """Claim the session of a run, which is busy here until the end of the block.

        Raises:
            StorageError: as for `resume_run`.
        """
        scheduler, session_id = self._scheduler, record.session_id
        scheduler.announce(session_id)
        claiming = asyncio.create_task(
            self._store.resume_run(
                record.run_id,
                self._leases.claim(),
                cwd=self._cwd,
            )
        )
        try:
            opened = await to_the_end(claiming)
            scheduler.require_open()
            yield opened
        finally:
            scheduler.withdraw(session_id)
            if not scheduler.is_busy(session_id):
                await to_the_end(self._leases.release(session_id))


def _still_waits(waiting: RunRecord) -> StorageError:
    """Return the error for a run that only summarises while another run waits for an answer."""
    return StorageError(
        ErrorCode.SESSION_ACTIVE,
        f"run {waiting.run_id} of session {waiting.session_id} waits for an answer; answer its"
        " question (soong-agent approvals list), or cancel it",
        details={"session_id": waiting.session_id, "run_id": waiting.run_id},
    )
