"""Starts the runs of users and carries them out; watches, awaits and cancels them by their id."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from agent_core.agents.child_runs import ChildRuns
from agent_core.agents.spawner import ChildSpawner, RunSpec, SpawnerDeps
from agent_core.agents.workers import Workers
from agent_core.aio import begun_at_once, stop_if_cancelled, to_the_end
from agent_core.artifacts.images import sendable
from agent_core.artifacts.store import ArtifactStore
from agent_core.config.models import ModelConfig
from agent_core.errors import AgentCoreError, ConfigError, ErrorCode, ParkedError, StorageError
from agent_core.events import EventStream, Journal, SessionJournal, SessionStore
from agent_core.loop import conclude, converse, settle_waiting
from agent_core.loop.options import NO_OPTIONS, RunOptions, restored_options, stored_options
from agent_core.permissions.questions import current_decider
from agent_core.providers.estimates import estimate_blocks
from agent_core.redaction.redactor import JournalRedactor, Redactor
from agent_core.runtime.background import Jobs, UsageLedger
from agent_core.runtime.factory import RunFactory
from agent_core.runtime.memory_service import MemoryService
from agent_core.runtime.models import Models, Traces
from agent_core.runtime.project import Project
from agent_core.runtime.project_files import ProjectFiles
from agent_core.runtime.reading import CONTROL, RunReader
from agent_core.runtime.recovery import SessionHistory, SessionLeases
from agent_core.runtime.scheduler import ROLES, Run, RunProgress, Scheduler, identity_of
from agent_core.storage.owners import Owner
from agent_core.storage.rows import session_not_found
from agent_core.text import first_words
from agent_core.types import (
    CLOSING_EVENTS,
    MODEL_KEY,
    AgentRole,
    ApprovalRecord,
    ApprovalState,
    CancelResult,
    Decision,
    Draft,
    EventLevel,
    ImageBlock,
    Node,
    OpenedRun,
    Role,
    RunIdentity,
    RunMode,
    RunOpening,
    RunPrompt,
    RunRecord,
    RunStatus,
    RuntimeEvent,
    StoredOptions,
    TextBlock,
    new_id,
    words_of,
)
from agent_core.types.lanes import ANYWHERE, Placement

if TYPE_CHECKING:
    from agent_core.loop.guards import RunGuards
    from agent_core.runtime.dispatch import Dispatcher
    from agent_core.storage.postgres.notices import Notices
    from agent_core.storage.postgres.queue import Job
    from agent_core.telemetry.spans import RunTrace, Telemetry
    from agent_core.tools.output import ExpectedOutput

logger = logging.getLogger(__name__)

_NO_MESSAGE = Draft(Role.USER, [])
"""Stands for the message of a run that goes on, which is in the history."""

_WITHHELD = "(withheld until the guards of the run have passed it)"
"""Stands in the store for a message that a guard may replace."""

_HANDED_OVER = "this run was handed over to another process, which goes on with it"


class Runs:
    """The runs of this process, and a view of those of others.

    A handle keeps a run's ids and this object: every method below `compact` takes a run's id, and
    answers for runs of other processes from the store.

    Args:
        project: what the runs work on.
        store, owner, models, artifacts, redactor: of the process.
        files: of the project.
        telemetry: records the runs, if something does.
        traces: keeps tracebacks, with `debug=True`.
        notices: of the store, if processes can send each other any.
        dispatcher: puts runs into the queue of the workers, if there are any.
    """

    def __init__(
        self,
        project: Project,
        *,
        store: SessionStore,
        owner: Owner,
        models: Models,
        artifacts: ArtifactStore,
        redactor: Redactor,
        traces: Traces | None,
        files: ProjectFiles,
        telemetry: "Telemetry | None" = None,
        notices: "Notices | None" = None,
        dispatcher: "Dispatcher | None" = None,
    ) -> None:
        config = project.setup.config
        self._project = project
        self._store = store
        self._owner = owner
        self._models = models
        self._artifacts = artifacts
        self._redactor = redactor
        self._journal_redactor = JournalRedactor(redactor)
        self._reader = RunReader(store, owner, self._journal_redactor, notices)
        self._notices = notices
        self._dispatcher = dispatcher
        self._traces = traces
        self._telemetry = telemetry
        self._numbers = count()
        self._known: WeakValueDictionary[str, Run] = WeakValueDictionary()
        self._aside: set[asyncio.Task[object]] = set()
        self._waiting: dict[str, RunRecord] = {}
        self._options_of_waiting: dict[str, RunOptions] = {}
        self._cancel_timeout_s = config.runtime.cancel_timeout_ms / 1000
        self._scheduler = Scheduler(
            partial(self._conduct_in_span, telemetry) if telemetry else self._conduct,
            max_running=config.runtime.max_concurrent_runs,
            cancel_timeout_s=self._cancel_timeout_s,
        )
        self.leases = SessionLeases(
            store,
            owner,
            is_busy=self._scheduler.is_busy,
            on_cancel=self._cancel_requested,
            on_lost=self._lose if dispatcher else None,
            on_extended=project.launcher.keep_until,
            shared=config.worker if dispatcher else None,
        )
        self.jobs = Jobs(grace_s=config.memory.exit_wait_ms / 1000)
        session_journal = SessionJournal(store, self._journal_redactor, estimate_blocks)
        usage = UsageLedger(store, session_journal)
        self._memory = MemoryService(
            project.setup,
            store=store,
            models=models,
            jobs=self.jobs,
            usage=usage,
            session_journal=session_journal,
            redactor=redactor,
            is_busy=self._scheduler.is_busy,
        )
        self._contexts = RunFactory(
            project,
            models=models,
            memory=self._memory,
            artifacts=artifacts,
            store=store,
            files=files,
            jobs=self.jobs,
            usage=usage,
            session_journal=session_journal,
            open_journal=self._open_journal,
            claim=self.leases.claim,
            release=self.leases.release,
            telemetry=telemetry,
        )
        self.children = ChildRuns(
            store,
            config.agents,
            on_failure=traces.keep_failure if traces else None,
            on_left_behind=self.leases.release,
            is_asking=project.guard.questions.is_asking,
        )
        self._spawner_deps = SpawnerDeps(
            setup=project.setup,
            store=store,
            definitions=project.definitions,
            children=self.children,
            workers=Workers(config.agents, project.definitions),
            build_context=self._contexts.context,
            model_of=lambda definition, options: models.resolve(
                definition.model_profile, instead=options.model
            ),
            are_sessions_limited=config.budget.is_limited,
            work_tools=project.toolboxes.work_tools,
            is_disabled=project.toolboxes.is_disabled,
            can_ask=project.toolboxes.can_ask,
            goes_on=self._waiting_history,
            open_journal=self._open_journal,
            redactor=redactor,
            telemetry=telemetry,
            task_logs=project.task_logs,
        )

    async def start(
        self,
        prompt: Draft | None,
        *,
        session_id: str,
        mode: RunMode,
        move_session: bool = False,
        options: RunOptions = NO_OPTIONS,
        placement: Placement = ANYWHERE,
    ) -> RunProgress:
        """Open a run and start it, or put it into the queue of its session.

        Where workers carry runs out it is recorded and queued, and nothing is opened here, unless
        `placement` says that it is this process' own.

        A run without a prompt summarises the history and ends. Runs of the session that a dead
        process had queued go first, in their order.

        Raises:
            ConfigError: the model is none or its provider is not registered, or an orchestrator has
                no valid worker pool; nothing was stored.
            StorageError: `session_active`: another living process has the session;
                `session_elsewhere`: it works in another folder and is not to be moved;
                `artifact_not_found`: an image of the message is not there.
            AgentCoreError: `validation_error`: no model can be shown an image of the message, or
                the options name a tool that there is not; the placement cannot be had.
        """
        opening, clean_prompt, trace = await self._opening(
            prompt,
            session_id,
            mode,
            move_session=move_session,
            options=options,
            placement=placement,
        )
        if (dispatcher := self._dispatcher) is not None:
            if opening.dispatch is not None and opening.dispatch.process is None:
                return await dispatcher.add(opening)
            turn = await dispatcher.turn(opening, placement.queue_timeout_s)
            return await self._begin_turn(dispatcher, opening, turn, clean_prompt, options, trace)
        scheduler = self._scheduler
        scheduler.announce(session_id)
        opened: OpenedRun | None = None

        async def open_run() -> OpenedRun:
            nonlocal opened
            opened = await self._store.open_run(opening, is_dead=self._owner.is_dead)
            return opened

        try:
            opened = await begun_at_once(open_run())
            scheduler.require_open()
        except BaseException:
            if opened is not None:  # the caller was cancelled and gets no handle
                self._take_over(opened)
                run = self._new_run(opened.run, opened.session.epoch, is_new=not opened.resumed)
                await to_the_end(scheduler.settle_unbegun(run))
            scheduler.withdraw(session_id)
            raise
        record = opened.run.model_copy(update={"prompt": clean_prompt})
        return await self._enqueue(opened, record, options, trace)

    async def _opening(
        self,
        prompt: Draft | None,
        session_id: str,
        mode: RunMode,
        *,
        move_session: bool,
        options: RunOptions,
        placement: Placement,
    ) -> "tuple[RunOpening, RunPrompt | None, RunTrace | None]":
        """What is stored of a run that is asked for; its message without secrets; its span, if any.

        Raises:
            ConfigError, AgentCoreError: what `start` raises.
            StorageError: `artifact_not_found`.
        """
        dispatcher, dispatch = self._dispatcher, None
        if dispatcher is None and placement is not ANYWHERE:
            placement.require_one_machine()
        is_here = dispatcher is None or placement.here or prompt is None
        model = self._models.resolve(instead=options.model)
        if is_here:
            self._models.open(model)
            with suppress(AgentCoreError):  # the run itself says what is wrong with a toolset
                await self._project.open_toolsets()
            if options is not NO_OPTIONS:
                self._project.toolboxes.check_options(options)
        stored = None if options is NO_OPTIONS else self._store_options(options, model)
        if dispatcher is not None:
            has_message = prompt is not None
            dispatch = await dispatcher.dispatch_of(placement, stored, has_message=has_message)
        clean_prompt = stored_prompt = title = None
        if prompt is not None:
            clean_prompt = await self._clean_prompt(prompt, model)
            stored_prompt, title = self._stored_prompt(clean_prompt, options)
        if mode is RunMode.ORCHESTRATOR and is_here:
            self._require_workers()
        await self.leases.store_ends()
        run_id, trace = new_id("run"), None
        if self._telemetry is not None:
            trace, carrier = self._begin_trace(self._telemetry, session_id, run_id, mode, is_here)
            stored = (stored or StoredOptions()).model_copy(update={"trace": carrier})
        opening = RunOpening(
            session_id=session_id,
            cwd=str(self._project.setup.project),
            move_session=move_session,
            owner=self._owner.owner_id,
            agent_type=ROLES[mode][0],
            agent_id=new_id("agent"),
            run_id=run_id,
            mode=mode,
            prompt=stored_prompt,
            title=title,
            options=stored,
            run_metadata={MODEL_KEY: f"{model.provider}:{model.name}"},
            dispatch=dispatch,
        )
        return opening, clean_prompt, trace

    def _begin_trace(
        self, telemetry: "Telemetry", session_id: str, run_id: str, mode: RunMode, is_here: bool
    ) -> "tuple[RunTrace | None, Mapping[str, str]]":
        """The span of a run that begins here, and what names it, or what is above it, elsewhere."""
        if not is_here:
            return None, telemetry.carrier()
        begins = RunIdentity(
            session_id=session_id,
            agent_id=new_id("agent"),
            run_id=run_id,
            role=ROLES[mode][1],
            mode=mode,
        )
        trace = telemetry.begin_run(begins, self._journal_redactor.payload)
        return trace, trace.carrier

    async def _clean_prompt(self, prompt: Draft, model: ModelConfig) -> RunPrompt:
        """The message without secrets, its images as the model takes them.

        Raises:
            AgentCoreError: `validation_error`: no model can be shown an image of it.
            StorageError: `artifact_not_found`: an image is not there.
        """
        limit = model.max_image_bytes
        content = [
            await sendable(block, self._artifacts, max_bytes=limit)
            if isinstance(block, ImageBlock)
            else block
            for block in prompt.content
        ]
        return RunPrompt(
            content=self._journal_redactor.content(content),
            metadata=self._journal_redactor.metadata(prompt.metadata),
        )

    def _stored_prompt(
        self, prompt: RunPrompt, options: RunOptions
    ) -> tuple[RunPrompt, str | None]:
        """The message as it is stored, without what a guard may replace, and the title it gives."""
        if any(guard.may_replace("message") for guard in options.guards):
            rest = [block for block in prompt.content if not isinstance(block, TextBlock)]
            return prompt.model_copy(update={"content": [TextBlock(text=_WITHHELD), *rest]}), None
        return prompt, first_words(self._redactor.text(words_of(prompt.content)))

    async def _begin_turn(
        self,
        dispatcher: "Dispatcher",
        opening: RunOpening,
        turn: "tuple[Job, OpenedRun] | None",
        prompt: RunPrompt | None,
        options: RunOptions,
        trace: "RunTrace | None",
    ) -> RunProgress:
        """Carry out a run of this process whose turn it is; its job ends with it."""
        if turn is None:
            record = await self._reader.record(opening.run_id)
            return RunProgress(identity=identity_of(record), status=record.status)
        job, taken = turn
        before = await self._store.events_after(opening.run_id, 0)
        self._scheduler.announce(opening.session_id)
        self._memory.take_up_backlog()
        record = taken.run.model_copy(update={"prompt": prompt})
        run = self._carry_on(replace(taken, run=record), options, trace)
        for event in before:
            run.stream.write(event)
        self._do_aside(self._finish_turn(dispatcher, job, run))
        if self._scheduler.is_closed:
            await to_the_end(self._scheduler.cancel(run))
            self._scheduler.require_open()
        return run

    async def _finish_turn(self, dispatcher: "Dispatcher", job: "Job", run: Run) -> None:
        """Finish the job of a run once its end is stored, here or by who has closed it."""
        await run.ended.wait()
        while True:
            with suppress(StorageError):
                is_stored = run.journal.is_stored
                if is_stored or (await self._reader.record(job.run_id)).status.is_terminal:
                    await dispatcher.queue.finish(job)
                    return
            await asyncio.sleep(dispatcher.heartbeat_s)

    async def take_up(self, record: RunRecord) -> Run | None:
        """Carry out a run whose turn it is, from its beginning or from where its process has died.

        Returns:
            None: there is nothing to do; it has ended, or waits for an answer.

        Raises:
            StorageError: `session_active`: a living owner has the session.
            AgentCoreError: `validation_error`: this runtime is being closed.
        """
        await self.leases.store_ends()
        scheduler, session_id = self._scheduler, record.session_id
        scheduler.announce(session_id)
        try:
            scheduler.require_open()
            taking = self._store.take_run(
                record.run_id,
                self.leases.claim(),
                is_dead=self._owner.is_lost,
                max_takeovers=self._project.setup.config.worker.max_takeovers,
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
        """Stop the work on a run, and leave the rest of it to the process that takes it up next.

        What was begun and is cut off has an unknown effect for that one.

        Returns:
            False: the run has ended, or is ending; nothing was handed over.
        """
        run = self._known.get(run_id)
        if run is None or run.journal.is_closing or run.ended.is_set():
            return False
        with suppress(StorageError):
            await run.journal.commit()
        if run.journal.is_closing:
            return False
        await self._abandon(run, StorageError(ErrorCode.SESSION_ACTIVE, _HANDED_OVER))
        return await self._store.hand_over(run_id, self._owner.owner_id)

    async def compact(self, session_id: str, *, move_session: bool = False) -> RunProgress:
        """Start a run that summarises a session's history and does nothing else.

        Raises:
            ConfigError: the model's provider is not registered.
            StorageError: `session_not_found`, `session_active`, `session_elsewhere`.
        """
        if await self._store.session(session_id) is None:
            raise session_not_found(session_id)
        return await self.start(
            None, session_id=session_id, mode=RunMode.NORMAL, move_session=move_session
        )

    def expected_output(self, run_id: str) -> "ExpectedOutput | None":
        """What the answer of a run of this process has to be; None for plain text."""
        run = self._known.get(run_id)
        return run.options.expected() if run is not None and run.options is not None else None

    def watch(
        self, run_id: str, *, after: int | None = None, debug: bool = False
    ) -> AsyncGenerator[RuntimeEvent]:
        """What happens in a run of this process from this call on; one consumer at a time.

        With `after`, and for a run of another process: first the stored events with a higher
        `run_seq` and then, without a gap, what follows them, for any number of readers. The run
        does not wait for these: one that is slow misses deltas, and no stored event.

        Raises:
            AgentCoreError: `validation_error`: without `after`, and it has a consumer already.
        """
        run = self._known.get(run_id)
        if run is not None and after is None:
            return run.stream.read(debug=debug)
        events = self._watch_after(run_id, after or 0, run)
        return events if debug else _hide_debug(events)

    async def watch_child(
        self, run_id: str, *, parent_run_id: str, debug: bool = False
    ) -> AsyncGenerator[RuntimeEvent]:
        """What happens in a child run from now on; nothing if it has ended.

        Of a child of another process: all that has happened, and then what follows.

        Raises:
            StorageError: `run_not_found`: no such run, or not a child of that parent.
            AgentCoreError: `validation_error`: this run's live events have a consumer already.
        """
        stream = self.children.stream(run_id, parent_run_id=parent_run_id)
        if stream is None:
            child = await self.require_child(run_id, parent_run_id=parent_run_id)
            if child.status.is_terminal or parent_run_id in self._known:
                return
            stored = self._reader.events(run_id, 0)
            read = stored if debug else _hide_debug(stored)
        else:
            read = stream.read(debug=debug)
        async with aclosing(read) as events:
            async for event in events:
                yield event

    def known(self, run_id: str) -> Run | None:
        """The run, if this process has it still."""
        return self._known.get(run_id)

    async def require_run(self, run_id: str) -> RunRecord:
        """The run, if it is one of a user.

        Raises:
            StorageError: `run_not_found`: no such run, or it is a child.
        """
        record = await self._reader.record(run_id)
        if record.parent_run_id is not None:
            message = f"{run_id} is a child run of {record.parent_run_id}; attach to that one"
            raise StorageError(ErrorCode.RUN_NOT_FOUND, message, details={"run_id": run_id})
        return record

    async def require_child(self, run_id: str, *, parent_run_id: str) -> RunRecord:
        """The run, if it is a child of that one.

        Raises:
            StorageError: `run_not_found`.
        """
        run = await self._store.run(run_id)
        if run is None or run.parent_run_id != parent_run_id:
            message = f"{run_id} is not a child run of {parent_run_id}"
            raise StorageError(ErrorCode.RUN_NOT_FOUND, message, details={"run_id": run_id})
        return run

    async def wait(self, run_id: str) -> RunStatus:
        """Return the status of a run that has ended, or waits for an answer.

        Raises:
            StorageError: `run_not_found`.
        """
        while run := self._known.get(run_id):
            await run.ended.wait()
            if self._known.get(run_id) is run:  # otherwise it goes on already
                break
        if run is not None and run.status.is_terminal:
            return run.status
        return await self._reader.wait(run_id)

    async def cancel(self, run_id: str) -> CancelResult:
        """Cancel, and wait for the end as long as `runtime.cancel_timeout_ms` allows.

        The owner of a run of another process reads the request with its next heartbeat.

        Raises:
            StorageError: `run_not_found`.
        """
        run = self._known.get(run_id)
        if run is not None and (run.status is not RunStatus.WAITING or not run.ended.is_set()):
            result = await self._scheduler.cancel(run)
            if run.goes_on and result.status.is_terminal:
                await self._end_children(run_id)
            return result
        record = await self._reader.record(run_id)
        if record.status is RunStatus.WAITING:
            with suppress(StorageError):  # it goes on in another process by now, perhaps
                await self._close_waiting(run_id)
        elif record.status is RunStatus.QUEUED:
            await self._store.drop_queued(run_id)
        if await self._store.request_cancel(run_id) and record.is_for_workers:
            await self._store.queue_again(run_id)  # a worker closes what still waits
        self._send("cancel", run_id=run_id)
        ending = self._reader.wait(run_id, only_end=record.is_for_workers)
        with suppress(TimeoutError):
            await asyncio.wait_for(ending, self._cancel_timeout_s)
        status = (await self._reader.record(run_id)).status
        return CancelResult(run_id=run_id, status=status, timed_out=not status.is_terminal)

    async def answer(
        self,
        request_id: str,
        decision: Decision,
        *,
        reason: str | None,
        by: str,
    ) -> str:
        """Answer a question, have its run go on here if it waits, and return the run's id.

        A run that cannot go on here goes on at the next start of its session.

        Raises:
            AgentCoreError: `validation_error`: there is no such question, or it is closed.
            StorageError: the answer cannot be stored.
        """
        questions = self._project.guard.questions
        found, is_first = await self._store.answer(
            request_id,
            decision,
            reason=questions.clean_reason(reason),
            by=by,
            decider=current_decider(),
        )
        if found is None:
            message = f"there is no request {request_id[:80]!r}"
            raise AgentCoreError(ErrorCode.VALIDATION_ERROR, message)
        if not is_first:
            raise AgentCoreError(
                ErrorCode.VALIDATION_ERROR,
                _closed_because(found),
                details={"request_id": request_id, "state": found.state.value},
            )
        if not questions.take(request_id):
            self._send("answer", request_id=request_id)
            with suppress(StorageError):
                await self._resume(found.root_run_id)
        return found.root_run_id

    async def require_idle(self, session_id: str, *, cancel_jobs: bool = False) -> None:
        """Refuse to change a session that a run of this process is using.

        `cancel_jobs`: its work in the background is cancelled first.

        Raises:
            StorageError: `session_active`.
        """
        if self._scheduler.is_busy(session_id):
            message = f"session {session_id} has a run that is queued or running; cancel it first"
            details = {"session_id": session_id}
            raise StorageError(ErrorCode.SESSION_ACTIVE, message, details=details)
        if cancel_jobs:
            await self.jobs.cancel(session_id)
        await self.leases.store_ends()

    async def close(self) -> None:
        """Cancel every run, then their children, then wait a while for the background work.

        A caller that is cancelled meanwhile leaves none of these out.
        """
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._memory.keep_backlog)
            stack.push_async_callback(self.jobs.close)
            stack.callback(self._memory.close)
            stack.push_async_callback(self.children.close)
            stack.push_async_callback(self._end_aside)
            await self._scheduler.close()

    async def _end_aside(self) -> None:
        """Wait a while for what is done beside the runs."""
        if self._aside:
            _, left = await asyncio.wait(self._aside, timeout=self._cancel_timeout_s)
            for task in left:
                task.cancel()

    async def serve(self, notices: "Notices") -> None:
        """Do at once what other processes ask of the runs of this one, until cancelled."""
        from agent_core.runtime.control import RunControl  # noqa: PLC0415 - loads what notices need

        control = RunControl(
            notices,
            self._store,
            self._project.guard.questions,
            stream_of=self._stream_of,
            on_cancel=self._cancel_requested,
        )
        await control.serve()

    def _stream_of(self, run_id: str) -> EventStream | None:
        """The events of a run that is under way here."""
        run = self._known.get(run_id)
        if run is None:
            return self.children.stream(run_id)
        return None if run.ended.is_set() else run.stream

    def _send(self, what: str, **ids: str) -> None:
        """Ask whichever process carries a run out; what is asked is stored already."""
        if self._notices is not None:
            self._notices.send(CONTROL, json.dumps({"what": what, **ids}))

    async def _resume(self, run_id: str) -> None:
        """Carry on a run that waits, if this process can; one of the workers is queued for them.

        Raises:
            StorageError: what `resume_run` raises.
        """
        record = await self._reader.record(run_id)
        if record.is_for_workers:
            await self._store.queue_again(run_id)
            return
        needs_caller = record.options is not None and record.options.needs_caller
        if record.status is not RunStatus.WAITING or (
            needs_caller and run_id not in self._options_of_waiting
        ):
            return
        await self.leases.store_ends()
        async with self._claimed(record) as opened:
            if self._goes_on_here(run_id):
                return
            self._memory.run_begins(record.session_id)
            self._contexts.compactions.session_opened(opened.session)
            self._waiting.pop(record.session_id, None)
            self._take_over(replace(opened, waiting=opened.run, is_answered=True))

    async def _close_waiting(self, run_id: str) -> None:
        """Cancel a run that waits; its calls are answered.

        Raises:
            StorageError: what `resume_run` raises.
        """
        async with self._claimed(await self._reader.record(run_id)) as opened:
            self._waiting.pop(opened.run.session_id, None)
            try:
                await to_the_end(self._end_waiting(run_id))
            finally:
                self._take_over(opened)
        if self._goes_on_here(run_id) and (run := self._known.get(run_id)) is not None:
            await self._scheduler.cancel(run)

    async def _end_waiting(self, run_id: str) -> None:
        """Cancel a run that waits, and has its session claimed here."""
        record = await self._reader.record(run_id)
        if record.status is not RunStatus.WAITING or self._goes_on_here(run_id):
            return  # it has gone on since
        run = self._new_run(record, None, is_new=False)
        run.cancel_requested = True
        await self._scheduler.settle_unbegun(run)
        run.ended.set()
        self._options_of_waiting.pop(record.run_id, None)
        await self._end_children(record.run_id)

    def _goes_on_here(self, run_id: str) -> bool:
        """Whether a run that has waited is under way here by now, or is being ended."""
        run = self._known.get(run_id)
        return run is not None and run.goes_on and run.outcome is None

    async def _end_children(self, run_id: str) -> None:
        """Cancel the children that a run, which has ended, leaves waiting; close its questions."""
        for child in await self._store.waiting_children(run_id):
            identity = RunIdentity(
                session_id=child.session_id,
                agent_id=child.agent_id,
                run_id=child.run_id,
                role=AgentRole.SUB,
                mode=child.mode,
                parent_run_id=run_id,
            )
            journal = self._open_journal(identity, EventStream())
            await settle_waiting(journal, self._waiting_history(child))
        await self._store.close_waiting(run_id)

    @asynccontextmanager
    async def _claimed(self, record: RunRecord) -> AsyncGenerator[OpenedRun]:
        """The run and its session, which is busy here meanwhile.

        Raises:
            StorageError: what `resume_run` raises.
        """
        scheduler, session_id = self._scheduler, record.session_id
        scheduler.announce(session_id)
        claiming = asyncio.create_task(
            self._store.resume_run(
                record.run_id,
                self.leases.claim(),
                cwd=str(self._project.setup.project),
                is_dead=self._owner.is_dead,
            )
        )
        try:
            opened = await to_the_end(claiming)
            scheduler.require_open()
            yield opened
        finally:
            scheduler.withdraw(session_id)
            if not scheduler.is_busy(session_id):
                await to_the_end(self.leases.release(session_id))

    def _carry_on(
        self,
        taken: OpenedRun,
        options: RunOptions | None = None,
        trace: "RunTrace | None" = None,
    ) -> Run:
        """Begin a run that was taken from the queue, or go on with it; its session is announced."""
        record = taken.run
        self._memory.run_begins(record.session_id)
        self._contexts.compactions.session_opened(taken.session)
        if taken.waiting is not None:
            self._waiting[record.session_id] = taken.waiting
        run = self._new_run(record, taken.session.epoch, is_new=False)
        run.goes_on = record.status is not RunStatus.QUEUED
        run.cancel_requested = record.cancel_requested_at is not None
        run.options = options or run.options
        if trace is not None:
            trace.identify(run.identity)
            run.trace = trace
        self._scheduler.enqueue(run)
        if run.cancel_requested:
            self._do_aside(self._end_unbegun(run))
        return run

    async def _end_unbegun(self, run: Run) -> None:
        """Cancel a run that was asked to end before it could begin, or go on, here."""
        await self._scheduler.dequeue(run)
        if run.goes_on:
            await self._end_children(run.identity.run_id)

    def _lose(self, run_id: str) -> None:
        """Stop a run at once whose session another process has taken over.

        One that is ending has given its session back, or is refused its end; one that goes on here
        after it has waited holds its session anew.
        """
        run = self._known.get(run_id)
        if run is None or run.ended.is_set() or run.journal.is_closing:
            return
        if run.hold is not None and not run.hold.is_lost:
            return
        from agent_core.runtime.fence import session_lost  # noqa: PLC0415 - loaded by now

        reason = session_lost(run_id)
        logger.warning("%s", reason)
        run.journal.abandon(reason)
        self._do_aside(self._abandon(run, reason))

    async def _abandon(self, run: Run, reason: StorageError) -> None:
        """Stop the work on a run that is, or will be, another owner's."""
        run_id = run.identity.run_id
        if self._known.get(run_id) is run:
            del self._known[run_id]
        if not await self._scheduler.abandon(run, reason):
            logger.warning("run %s is another process's now, and did not stop in time", run_id)

    async def _enqueue(
        self, opened: OpenedRun, record: RunRecord, options: RunOptions, trace: "RunTrace | None"
    ) -> Run:
        self._memory.run_begins(record.session_id)
        self._memory.take_up_backlog()
        self._contexts.compactions.session_opened(opened.session)
        self._take_over(opened)
        run = self._new_run(record, opened.session.epoch, is_new=not opened.resumed)
        run.options = options
        if trace is not None:
            trace.identify(run.identity)
            run.trace = trace
        if self._scheduler.enqueue(run):
            in_front = [waiting.run_id for waiting in opened.queued]
            run.journal.queue({"taken_over": in_front} if in_front else {})
            try:
                await run.journal.commit()
                stop_if_cancelled()
            except BaseException:  # there is no handle: the run must not hold its place
                await to_the_end(self._scheduler.cancel(run))
                raise
        return run

    def _store_options(self, options: RunOptions, model: ModelConfig) -> StoredOptions:
        """What is written of the options: without secrets, those of the model included."""
        if options.model is not None:
            self._project.learn_secrets(model)
        plain = stored_options(options).model_dump(mode="json", exclude_defaults=True)
        clean = self._journal_redactor.metadata(plain)
        if clean.get("model") != plain.get("model"):
            clean["needs_caller"] = [*plain.get("needs_caller", ()), "model"]
        return StoredOptions.model_validate(clean)

    def _take_over(self, opened: OpenedRun) -> None:
        """Run what a dead owner of the session had queued; it has its `run_queued` already.

        What was to be cancelled while it had no owner ends without having begun.
        """
        if self._scheduler.is_closed:
            return  # they wait on, for the next owner
        waiting = opened.waiting
        if waiting is not None and not self._goes_on_here(waiting.run_id):
            self._waiting.pop(waiting.session_id, None)
            can_ask = self._project.guard.questions.has_callback
            is_unwanted = waiting.cancel_requested_at is not None
            if (opened.is_answered or can_ask) and not is_unwanted:
                self._scheduler.announce(waiting.session_id)
                run = self._new_run(waiting, opened.session.epoch, is_new=False)
                self._scheduler.enqueue(run)
            else:
                self._waiting[waiting.session_id] = waiting
        for record in opened.queued:
            run = self._new_run(record, opened.session.epoch, is_new=False)
            run.cancel_requested = record.cancel_requested_at is not None
            self._scheduler.announce(record.session_id)
            self._scheduler.enqueue(run)
            if run.cancel_requested:
                self._do_aside(self._scheduler.dequeue(run))

    def _new_run(self, record: RunRecord, epoch: int | None, *, is_new: bool) -> Run:
        identity = identity_of(record)
        stream = EventStream()
        prompt = record.prompt
        owner = self._owner.owner_id
        run = Run(
            identity=identity,
            status=record.status,
            number=next(self._numbers),
            prompt=Draft(Role.USER, prompt.content, metadata=prompt.metadata) if prompt else None,
            options=self._options_of_waiting.get(record.run_id),
            stored_options=record.options,
            goes_on=record.status is RunStatus.WAITING,
            journal=self._open_journal(identity, stream, session_owner=owner, epoch=epoch),
            stream=stream,
            history=SessionHistory(
                self._store,
                identity.session_id,
                is_new=is_new,
                known=partial(self._contexts.last_path, identity.agent_id),
                is_message=prompt is not None,
            ),
        )
        self._known[identity.run_id] = run
        if epoch is not None and self._dispatcher is not None:
            run.hold = self.leases.hold(identity.run_id, identity.session_id, epoch)
            self._contexts.fence(identity.run_id, run.hold)
        return run

    def _waiting_history(self, child: RunRecord) -> SessionHistory:
        from_node_id = child.end_node_id
        return SessionHistory(
            self._store, child.session_id, is_new=False, from_node_id=from_node_id
        )

    def _open_journal(
        self,
        run: RunIdentity,
        stream: EventStream,
        path: Iterable[Node] = (),
        *,
        session_owner: str | None = None,
        epoch: int | None = None,
    ) -> Journal:
        return Journal(
            run,
            store=self._store,
            stream=stream,
            redactor=self._journal_redactor,
            estimate=estimate_blocks,
            path=path,
            session_owner=session_owner,
            epoch=epoch,
            on_unclosed=self.leases.add_unclosed,
        )

    @asynccontextmanager
    async def _open_spawner(
        self, parent: Journal, options: RunOptions
    ) -> AsyncGenerator[ChildSpawner]:
        """Open what a run may start, by its role; an orchestrator's Tasks are replayed.

        Raises:
            TaskError: the folder of the Task logs cannot be used.
        """
        if parent.run.role is not AgentRole.ORCHESTRATOR:
            yield ChildSpawner(self._spawner_deps, parent, options)
            return
        # Tasks and workers are a third of all code, and most runs have neither.
        from agent_core.agents.orchestrator import open_orchestrator_spawner  # noqa: PLC0415

        async with open_orchestrator_spawner(self._spawner_deps, parent, options) as spawner:
            yield spawner

    async def _conduct_in_span(self, telemetry: "Telemetry", run: Run) -> None:
        if run.trace is None:  # of another process, or it has waited for an answer
            carrier = run.stored_options.trace if run.stored_options else None
            run.trace = telemetry.begin_run(run.identity, run.journal.clean, carrier=carrier)
        with run.trace.current():
            await self._conduct(run)

    async def _conduct(self, run: Run) -> None:
        run.journal.begin()
        asked = run.options or run.stored_options
        meter = self._models.meter(run.identity, asked.budget if asked else None)
        try:
            async with (
                conclude(
                    run.journal, run.finish, goes_on=run.history if run.goes_on else None
                ) as stats,
                self._traced(run.identity),
                meter.in_time() if meter else nullcontext(),
            ):
                if before := self._waiting.get(run.session_id):
                    if run.prompt is None and not run.goes_on:
                        raise _still_waits(before)
                    del self._waiting[run.session_id]
                    await self._end_waiting(before.run_id)
                if run.identity.mode is RunMode.ORCHESTRATOR:  # of another process, perhaps
                    self._require_workers()
                options = run.options or self._restore_options(run.stored_options)
                async with (
                    _checked(run, options) as (prompt, guards),
                    self._project.with_toolsets(options, run.journal) as options,
                    self._contexts.recording(run.journal),
                    self._open_spawner(run.journal, options) as spawner,
                ):
                    ctx, source = await self._contexts.context_and_source(
                        RunSpec(
                            run=run.identity,
                            journal=run.journal,
                            history=self._project.with_mentions(run.history, prompt),
                            options=options,
                            guards=guards,
                            trace=run.trace,
                            tools=spawner.tools,
                            board=spawner.board,
                        )
                    )
                    if prompt is not None or run.goes_on:
                        await converse(ctx, prompt or _NO_MESSAGE, stats)
                    elif self._project.setup.config.compact.enabled:
                        await ctx.history.resume(ctx.journal)
                        await source.compact(ctx.toolbox.definitions, stats)
                    else:
                        message = "histories are not summarised: [compact] enabled is false"
                        raise ConfigError(ErrorCode.CONFIG_ERROR, message)
        finally:
            is_cancelled = (
                run.status in {RunStatus.CANCELLED, RunStatus.WAITING} or run.journal.is_abandoned
            )
            if not run.journal.is_abandoned:
                await self._note_waiting(run)
            is_private = asked is not None and not asked.memory
            if not (is_cancelled or is_private or run.identity.permission_mode == "plan"):
                self._memory.run_ended(run.identity, run.journal.path)
            self._contexts.compactions.run_ended(run.session_id, is_cancelled=is_cancelled)

    async def _note_waiting(self, run: Run) -> None:
        """Keep what a run needs that waits now; clear up what one leaves that has waited."""
        run_id = run.identity.run_id
        with suppress(StorageError):  # the next owner of the session finds it as it is
            if run.status is not RunStatus.WAITING:
                if run.goes_on:
                    self._options_of_waiting.pop(run_id, None)
                    await self._end_children(run_id)
                return
            if run.options is not None:
                self._options_of_waiting[run_id] = run.options
            if (record := await self._store.run(run_id)) is not None:
                self._waiting[run.session_id] = record
            if await self._store.is_answered(run_id):  # while the run was stored as waiting
                await self._resume(run_id)

    def _restore_options(self, stored: StoredOptions | None) -> RunOptions:
        """The options of a run that a process now dead has left in the queue.

        Raises:
            AgentCoreError: they cannot be had, or name a tool that there is not here.
        """
        if stored is None:
            return NO_OPTIONS
        options = restored_options(stored)
        self._project.toolboxes.check_options(options)
        if options.model is not None:
            self._project.learn_secrets(self._models.resolve(instead=options.model))
        return options

    @asynccontextmanager
    async def _traced(self, run: RunIdentity) -> AsyncGenerator[None]:
        try:
            yield
        except Exception as error:
            if self._traces and not isinstance(error, ParkedError):
                await self._traces.keep_failure(run, error)
            raise

    def _require_workers(self) -> None:
        self._spawner_deps.workers.require_any(self._project.toolboxes.known_names())

    def _cancel_requested(self, run_ids: Iterable[str]) -> None:
        for run_id in run_ids:
            run = self._known.get(run_id)
            if run is not None and not run.cancel_requested:
                self._do_aside(self._scheduler.cancel(run))

    def _do_aside(self, work: Coroutine[Any, Any, object]) -> None:
        task = asyncio.create_task(work)
        self._aside.add(task)
        task.add_done_callback(self._aside.discard)

    async def _watch_after(
        self, run_id: str, seen: int, run: Run | None
    ) -> AsyncGenerator[RuntimeEvent]:
        """The stored events after `seen`, and then those of the stream, or of the store."""
        if run is None or run.ended.is_set():
            async for event in self._reader.events(run_id, seen):
                yield event
            return
        is_behind = True
        while is_behind:
            shown = run.stream.last_run_seq
            with run.stream.follow() as follower:
                async for event in self._reader.events(run_id, seen, follow=False):
                    seen = event.run_seq or seen
                    yield event
                    if event.event_type in CLOSING_EVENTS:
                        return
                async with aclosing(follower.events()) as live:
                    async for event in live:
                        shown = event.run_seq or shown
                        # A delta without a number is as old as the last event shown before it.
                        if shown > seen or (shown == seen and event.run_seq is None):
                            yield event
                            seen = event.run_seq or seen
                        if event.event_type in CLOSING_EVENTS:
                            return
                is_behind = follower.is_behind
        if run.status is not RunStatus.WAITING and not run.status.is_terminal:
            async for event in self._reader.events(run_id, seen):  # another process has it now
                yield event


def _still_waits(waiting: RunRecord) -> StorageError:
    """A run that only summarises the history closes none that waits for an answer."""
    return StorageError(
        ErrorCode.SESSION_ACTIVE,
        f"run {waiting.run_id} of session {waiting.session_id} waits for an answer; answer its"
        " question (soong-agent approvals list), or cancel it",
        details={"session_id": waiting.session_id, "run_id": waiting.run_id},
    )


def _closed_because(question: ApprovalRecord) -> str:
    """Why an answer comes too late."""
    match question.state:
        case ApprovalState.ANSWERED:
            when = f"{question.decided_at:%Y-%m-%d %H:%M:%S} UTC"
            decider = f" ({question.decider})" if question.decider else ""
            said = f"{question.decision} by {question.decided_by}{decider}, {when}"
            return f"already answered: {said}"
        case ApprovalState.SUPERSEDED:
            return "what the call would do has changed; it was asked anew"
        case _:
            return "the run has ended without an answer"


@asynccontextmanager
async def _checked(
    run: Run, options: RunOptions
) -> AsyncGenerator[tuple[Draft | None, "RunGuards | None"]]:
    """The message of a run as its guards let it in, and the guards."""
    if not options.guards:
        yield run.prompt, None
        return
    from agent_core.loop.guards import RunGuards  # noqa: PLC0415 - most runs have none

    guards = RunGuards(options.guards, run.journal, options.deps)
    async with guards.watching(run.prompt) as prompt:
        yield prompt, guards


async def _hide_debug(events: AsyncGenerator[RuntimeEvent]) -> AsyncGenerator[RuntimeEvent]:
    async with aclosing(events):
        async for event in events:
            if event.level is not EventLevel.DEBUG:
                yield event
