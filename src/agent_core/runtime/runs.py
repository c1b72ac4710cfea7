"""Starts the runs of users, and watches, awaits and cancels them by id.

`requests` checks what is asked for, `pipeline` takes each run through this process, `scheduler`
decides which is next, and `execute` carries one out.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import AsyncExitStack, aclosing, suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING

from agent_core.agents.boards import TaskBoards
from agent_core.agents.child_runs import ChildRuns
from agent_core.agents.spawner import STARTING, SpawnerDeps
from agent_core.agents.workers import WorkerPools
from agent_core.aio import SideTasks
from agent_core.aio.loops import HomeLoop
from agent_core.config.models import ModelConfig
from agent_core.errors import AgentCoreError, ErrorCode, StorageError
from agent_core.events import EventStream, SessionJournal
from agent_core.loop import MESSAGE_ID, Outcome
from agent_core.loop.options import NO_OPTIONS, RunOptions
from agent_core.providers.estimates import estimate_blocks
from agent_core.redaction.redactor import JournalRedactor
from agent_core.runtime.background import Background, Jobs, UsageLedger
from agent_core.runtime.execute import Executor, not_summarised
from agent_core.runtime.factory import ContextFactory
from agent_core.runtime.leases import RemoteControls, SessionLeases
from agent_core.runtime.memory_service import MemoryService
from agent_core.runtime.pipeline import Pipeline
from agent_core.runtime.process import ProcessParts
from agent_core.runtime.project import Project
from agent_core.runtime.project_files import ProjectFiles
from agent_core.runtime.reading import CONTROL, RunReader
from agent_core.runtime.requests import RequestChecker
from agent_core.runtime.run import Phase, Run, RunProgress, identity_of
from agent_core.runtime.scheduler import Scheduler
from agent_core.runtime.table import RunTable
from agent_core.storage.messages import run_has_ended
from agent_core.text import shown_id
from agent_core.tools.limits import ResultLimiter
from agent_core.types import (
    CLOSING_EVENTS,
    AgentDefinition,
    CancelResult,
    Draft,
    EndReason,
    ErrorPayload,
    EventLevel,
    EventType,
    RunMode,
    RunRecord,
    RunStatus,
    RuntimeEvent,
    new_id,
    utc_now,
)
from agent_core.types.lanes import ANYWHERE, Placement

if TYPE_CHECKING:
    from agent_core.runtime.answers import Answers
    from agent_core.storage.postgres.notices import Notices
    from agent_core.tools.output import ExpectedOutput
    from agent_core.types import MemoryWish, WaitingMessage

_PAUSE_S = 0.05
"""Seconds before a run is looked at again whose end is being stored."""


class Runs:
    """The runs of this process, and a view of other processes' runs.

    A handle keeps a run's id and this object: every method below `compact` takes a run's id, and
    answers for runs of other processes from the store.

    Args:
        project: the project the runs work on.
        process: the parts of this process.
        files: files of the project.
        home: the event loop in which all of this is open.
    """

    def __init__(
        self, project: Project, process: ProcessParts, *, files: ProjectFiles, home: HomeLoop
    ) -> None:
        config, store, owner = project.setup.config, process.store, process.owner
        self.home = home
        self._project = project
        self._process = process
        self._store = store
        self._notices = process.notices
        self._dispatcher = process.dispatcher
        self._aside = SideTasks()
        self._cancel_timeout_s = config.runtime.cancel_timeout_ms / 1000
        redactor = JournalRedactor(process.redactor)
        self._reader = RunReader(store, owner, redactor, process.notices)
        self._scheduler = Scheduler(
            max_running=config.runtime.max_concurrent_runs,
            cancel_timeout_s=self._cancel_timeout_s,
            cancel_run=lambda run_id: self._aside.start(self.cancel(run_id)),
        )
        self._controls = RemoteControls(
            self._cancel_requested, self._look_for_messages, self._end_after_turn
        )
        self.leases = SessionLeases(
            store,
            owner,
            is_busy=self._scheduler.is_busy,
            controls=self._controls,
            on_lost=self._lose if process.dispatcher else None,
            on_extended=project.launcher.keep_until,
            shared=config.worker if process.dispatcher else None,
        )
        results = ResultLimiter(
            process.artifacts,
            limit_bytes=config.tools.result_limit_bytes,
            max_image_bytes=config.model.max_image_bytes,
        )
        self.table = RunTable(store, owner, redactor, self.leases, results)
        self.jobs = Jobs(grace_s=config.memory.exit_wait_ms / 1000)
        session_journal = SessionJournal(store, redactor, estimate_blocks, self.table.forget_path)
        background = Background(self.jobs, UsageLedger(store, session_journal), session_journal)
        self._memory = MemoryService(
            project.setup,
            process=process,
            background=background,
            is_busy=self._scheduler.is_busy,
        )
        contexts = ContextFactory(
            project,
            process=process,
            table=self.table,
            memory=self._memory,
            background=background,
            files=files,
        )
        self.children = ChildRuns(
            store,
            config.agents,
            on_failure=process.traces.keep_failure if process.traces else None,
            on_left_behind=self.leases.release,
            pausing=project.gate.questions.pausing,
        )
        self.boards = TaskBoards()
        workers = WorkerPools(config.agents, project.definitions)
        self._requests = RequestChecker(project, process, workers)
        self.pipeline = Pipeline(
            project,
            table=self.table,
            scheduler=self._scheduler,
            reader=self._reader,
            contexts=contexts,
            executor=Executor(
                project,
                process=process,
                contexts=contexts,
                spawning=self._spawning(workers),
                memory=self._memory,
            ),
            aside=self._aside,
        )

    def _spawning(self, workers: WorkerPools) -> SpawnerDeps:
        """Return what runs need to start other agents."""
        project, process, table = self._project, self._process, self.table

        def model_of(definition: AgentDefinition, options: RunOptions) -> ModelConfig:
            return process.models.resolve(definition.model_profile, instead=options.model)

        return SpawnerDeps(
            setup=project.setup,
            store=process.store,
            definitions=project.definitions,
            children=self.children,
            workers=workers,
            model_of=model_of,
            are_sessions_limited=project.setup.config.budget.is_limited,
            work_tools=project.toolboxes.work_tools,
            starting=[
                name for name in STARTING if not project.toolboxes.is_disabled(f"agent.{name}")
            ],
            is_disabled=project.toolboxes.is_disabled,
            can_ask=project.toolboxes.can_ask,
            check_options=partial(project.toolboxes.check_options, is_child=True),
            open_tools=project.with_toolsets,
            history_of=table.history_of,
            open_journal=table.open_journal,
            redactor=process.redactor,
            boards=self.boards,
            telemetry=process.telemetry,
            task_logs=project.task_logs,
        )

    @cached_property
    def answers(self) -> "Answers":
        """Stores answers to questions, and continues the runs that wait for them."""
        from agent_core.runtime.answers import Answers  # noqa: PLC0415 - few programs answer

        return Answers(
            self._project,
            process=self._process,
            reader=self._reader,
            table=self.table,
            pipeline=self.pipeline,
            tell=lambda request_id: self._send("answer", request_id=request_id),
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

        Where workers execute runs, the run is only recorded and queued, unless `placement` keeps it
        in this process.

        A run without a prompt summarises the history and ends. The session's runs that a dead
        process had queued go first, in their order.

        A run started inside another run of this runtime takes no place of its own and belongs to
        it: it is cancelled with the outer run, whose budget pays for it too.

        Raises:
            ConfigError: no model is configured, its provider is not registered or its key is not
                set, a tool would not get the `deps` it is annotated with, or an orchestrator has no
                valid worker pool; nothing was stored.
            StorageError: `session_active`: another living process has the session, or the session
                waits for the run inside which this one is started; `session_elsewhere`: it works in
                another folder and may not be moved; `artifact_not_found`: an image of the message
                does not exist.
            AgentCoreError: `validation_error`: no model can be shown an image of the message, the
                options name an unknown tool, or the placement is not possible; `cancelled`: the run
                inside which this one is started is being cancelled.
        """
        nesting = request = None
        if (found := self.table.enclosing()) is not None:
            outer, inside = found
            payer = outer.scope.meter_of(inside.run_id)
            nesting = self._scheduler.nest(outer, payer, session_id)
        try:
            await self.leases.store_ends()
            request = await self._requests.prepare(
                prompt,
                session_id=session_id,
                mode=mode,
                move_session=move_session,
                options=options,
                placement=placement,
                nesting=nesting,
            )
            dispatcher, dispatch = self._dispatcher, request.new_run.dispatch
            if dispatcher is None:
                return await self.pipeline.start(request)
            if dispatch is None or dispatch.process is not None:
                timeout_s = placement.queue_timeout_s
                return await self.pipeline.start_in_turn(dispatcher, request, timeout_s)
            queued = await dispatcher.add(request.new_run)
            if nesting is not None:
                nesting.add(queued)
        except BaseException as error:
            if request is not None and request.caller.trace is not None:
                request.caller.trace.finish(_unopened(error))
            if nesting is not None:
                nesting.end()
            raise
        return queued

    async def compact(
        self, session_id: str, *, instructions: str | None = None, move_session: bool = False
    ) -> RunProgress:
        """Start a run that summarises a session's history, as instructed, and does nothing else.

        Raises:
            ConfigError: histories are not summarised, or the model cannot be asked.
            StorageError: `session_not_found`, `session_active`, `session_elsewhere`.
        """
        if not self._project.setup.config.compact.enabled:
            raise not_summarised()
        await self._store.require_session(session_id)
        return await self.start(
            None,
            session_id=session_id,
            mode=RunMode.NORMAL,
            options=NO_OPTIONS if instructions is None else RunOptions(instructions=instructions),
            move_session=move_session,
        )

    def expected_output(self, run_id: str) -> "ExpectedOutput | None":
        """Return the expected form of the answer of a run of this process; None for plain text."""
        run = self.table.get(run_id)
        if run is not None and run.scope.has_handed_over:
            return run.scope.expected
        return run.options.expected() if run is not None and run.options is not None else None

    def watch(
        self,
        run_id: str,
        *,
        after: int | None = None,
        debug: bool = False,
        holds_run: bool = True,
    ) -> AsyncGenerator[RuntimeEvent]:
        """Yield the events of a run of this process from this call on; one consumer at a time.

        Without `holds_run`, the run does not wait for a slow consumer, whose events are kept.

        With `after`, and for a run of another process, the stored events with a higher `run_seq`
        come first, then the following ones without a gap, for any number of readers. The run does
        not wait for these readers: a slow one misses deltas, but no stored event.

        Raises:
            AgentCoreError: `validation_error`: without `after`, if it already has a consumer.
        """
        run = self.table.get(run_id)
        if run is not None and after is None:
            own = run.stream.read(debug=debug, holds_run=holds_run)
            return own if run.scope.lease is None else self._read_on(run, own, debug=debug)
        events = self._watch_after(run_id, after or 0, run)
        return events if debug else _hide_debug(events)

    async def watch_child(
        self, run_id: str, *, below: str, debug: bool = False
    ) -> AsyncGenerator[RuntimeEvent]:
        """Yield a child run's past events and then the following ones, for any number of readers.

        The child does not wait for a reader: a slow one misses deltas, but no stored event.

        Raises:
            StorageError: `run_not_found`: no such run, or it is not below that one.
        """
        stream = self.children.stream(run_id, below=below)
        if stream is None:
            await self.require_below(run_id, below)
            events = self._reader.events(run_id, 0)
        else:
            events = self._read_stored_first(run_id, 0, stream)
        async with aclosing(events if debug else _hide_debug(events)) as shown:
            async for event in shown:
                yield event

    async def require_run(self, run_id: str) -> RunRecord:
        """Return the run, if it is a user's run.

        Raises:
            StorageError: `run_not_found`: no such run, or it is a child.
        """
        record = await self._reader.record(run_id)
        if record.parent_run_id is not None:
            message = f"{run_id} is a child run of {record.parent_run_id}; attach to that one"
            raise StorageError(ErrorCode.RUN_NOT_FOUND, message, details={"run_id": run_id})
        return record

    async def require_below(self, run_id: str, above: str) -> None:
        """Check that a run is a child of another one, or of a child of it, at any depth.

        Raises:
            StorageError: `run_not_found`.
        """
        run = await self._store.run(run_id)
        seen = set[str]()
        while run is not None and run.parent_run_id != above and run.run_id not in seen:
            seen.add(run.run_id)
            run = await self._store.run(run.parent_run_id) if run.parent_run_id else None
        if run is None or run.parent_run_id != above:
            message = f"{shown_id(run_id)} is not a run below {above}"
            raise StorageError(ErrorCode.RUN_NOT_FOUND, message, details={"run_id": run_id})

    async def wait(self, run_id: str) -> RunStatus:
        """Return the status of a run once it has ended or waits for an answer.

        Raises:
            StorageError: `run_not_found`.
        """
        while run := self.table.get(run_id):
            await run.ended.wait()
            if self.table.get(run_id) is run:  # otherwise it continues already
                break
        if run is not None and run.status.is_terminal:
            return run.status
        return await self._reader.wait(run_id)

    async def cancel(self, run_id: str, *, after_turn: bool = False) -> CancelResult:
        """Cancel a run, and wait up to `runtime.cancel_timeout_ms` for its end.

        With `after_turn`, a run that is under way finishes its turn first.

        The effects of the cancellation up to then are stored when this returns. The owner of
        another process' run reads the request with its next heartbeat.

        Raises:
            StorageError: `run_not_found`.
        """
        run = self.table.get(run_id)
        if after_turn and (result := await self._cancel_later(run_id, run)) is not None:
            return result
        if run is not None and run.phase is not Phase.PARKED:
            result = await self._cancel_here(run)
            if result is not None:
                return result
        return await self._cancel_stored(await self._reader.record(run_id))

    async def _cancel_later(self, run_id: str, run: Run | None) -> CancelResult | None:
        """Cancel a run after its turn; None if it is in no turn, because it waits or has ended."""
        is_here = run is not None and run.phase in {Phase.STARTED, Phase.RUNNING}
        if not is_here:
            status = (await self._reader.record(run_id)).status
            if status not in {RunStatus.PENDING, RunStatus.RUNNING}:
                return None
        await self._store.request_cancel(run_id, after_turn=True)
        self._end_after_turn([run_id])
        self._send("cancel", run_id=run_id)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._cancel_timeout_s):
                await self.wait(run_id)
        status = (await self._reader.record(run_id)).status
        return CancelResult(run_id=run_id, status=status, timed_out=not status.is_terminal)

    async def _cancel_here(self, run: Run) -> CancelResult | None:
        """Cancel a run under way here; None if it was parked or taken over meanwhile."""
        result, run_id = await self._scheduler.cancel(run), run.identity.run_id
        await self.children.store(run_id)
        if run.is_continued and result.status.is_terminal:
            await self.pipeline.end_children(run_id)
        is_left = run.journal.is_abandoned or result.status is RunStatus.WAITING
        return None if is_left else result

    async def _cancel_stored(self, record: RunRecord) -> CancelResult:
        """Cancel a run that waits for an answer, is queued, or belongs to another process."""
        run_id = record.run_id
        if record.status is RunStatus.WAITING:
            with suppress(AgentCoreError):  # it may continue in another process by now
                await self.pipeline.cancel_parked(run_id)
        # The request comes first: a process that has the run now, and gives it up, ends it then.
        if await self._store.request_cancel(run_id) and not await self._store.cancel_idle(run_id):
            await self._store.queue_again(run_id)  # a worker closes children that still wait
        self._send("cancel", run_id=run_id)
        ending = self._reader.wait(run_id, only_end=record.is_for_workers)
        with suppress(TimeoutError):
            await asyncio.wait_for(ending, self._cancel_timeout_s)
        status = (await self._reader.record(run_id)).status
        if not status.is_terminal and self._notices is not None:
            await self._reader.wait_until_late(record)
        return CancelResult(run_id=run_id, status=status, timed_out=not status.is_terminal)

    async def send(self, run_id: str, message: Draft) -> str:
        """Send a message to a run that has not ended: see `RunHandle.send`.

        The process that executes it learns of the message at once, from a notice, or with its next
        heartbeat.

        Returns:
            The id of the message.

        Raises:
            AgentCoreError: `run_ended`; `validation_error`: the run takes no message;
                `guard_stopped`.
            StorageError: `run_not_found`; the message cannot be stored.
        """
        run = self.table.get(run_id)
        is_here = run is not None and not run.ended.is_set()
        if run is not None and is_here:
            message = await self._checked_message(run, message)
            identity, model, tenant = run.identity, run.scope.model, run.tenant
        else:
            record = await self.require_run(run_id)
            if record.options is not None and "guards" in record.options.needs_caller:
                raise _not_for(run_id, "only the process that executes it has its guards")
            session = await self._store.session(record.session_id)
            identity, model, tenant = identity_of(record), None, session and session.tenant
        model = model or self._process.models.resolve()
        prompt = await self._requests.clean_prompt(message, model, tenant)
        from agent_core.types import WaitingMessage  # noqa: PLC0415 - few runs need it

        waiting = WaitingMessage(
            message_id=new_id("msg"),
            session_id=identity.session_id,
            run_id=run_id,
            prompt=prompt,
            created_at=utc_now(),
        )
        if run is not None and is_here:
            if run.inbox.is_closed or run.journal.is_closing:
                raise run_has_ended(run_id)
            await run.inbox.send(waiting, run.journal)
        else:
            await self._store.send_message(waiting)
            self._send("message", run_id=run_id)
        return waiting.message_id

    async def _checked_message(self, run: Run, message: Draft) -> Draft:
        """Return a message for a run of this process as the guards of the run let it through.

        Raises:
            AgentCoreError: `validation_error`: the run takes no message; `guard_stopped`.
        """
        run_id = run.identity.run_id
        if run.prompt is None and not run.is_continued:
            raise _not_for(run_id, "it only summarises the conversation")
        if not run.options or not run.options.guards:
            return message
        if run.scope.checks is None:
            raise _not_for(run_id, "its guards check messages once it has begun")
        return await run.scope.checks.check_message(message)

    async def take_back(self, run_id: str, message_id: str) -> bool:
        """Take back a message that was sent to a run: see `RunHandle.take_back`."""
        run = self.table.get(run_id)
        record = await self.require_run(run_id)
        is_removed = await self._store.take_back_message(record.session_id, message_id)
        if is_removed and run is not None:
            run.journal.note(EventType.MESSAGE_TAKEN_BACK, {MESSAGE_ID: message_id})
        return is_removed

    async def waiting_messages(self, session_id: str) -> "list[WaitingMessage]":
        """Return the messages that were sent to runs of a session and not delivered."""
        return await self._store.waiting_messages(session_id)

    async def require_idle(self, session_id: str, *, cancel_jobs: bool = False) -> None:
        """Refuse to change a session that a run of this process is using.

        With `cancel_jobs`, the session's background work is cancelled first.

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

    @property
    def is_idle(self) -> bool:
        """Return whether no run or job is under way here."""
        return self._scheduler.is_idle and self._aside.is_idle and self.jobs.is_idle

    async def stop(self) -> None:
        """Take no more runs, park those with an open question, and cancel the others."""
        await self._scheduler.close(self._project.gate.questions.park)

    async def close(self) -> None:
        """Cancel every run, then their children, then wait a while for the background work.

        This is completed even if the caller is cancelled meanwhile.
        """
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._memory.keep_backlog)
            stack.push_async_callback(self.jobs.close)
            stack.callback(self._memory.close)
            stack.push_async_callback(self._memory.carry_out_wishes)
            stack.push_async_callback(self.children.close)
            stack.push_async_callback(self._aside.end, self._cancel_timeout_s)
            await self._scheduler.close()

    async def finish_wishes(
        self, on_wait: Callable[[], object] | None = None
    ) -> "list[MemoryWish]":
        """Wait until all wishes of runs that have ended are carried out; return the outcomes."""
        for run in self.table.ending():
            await run.ended.wait()
        return await self._memory.finish_wishes(on_wait)

    def leave_wishes(self) -> None:
        """Leave the wishes that are not carried out to the next process."""
        self._memory.leave_wishes()

    async def serve(self, notices: "Notices") -> None:
        """Serve requests of other processes about this process' runs, until cancelled."""
        from agent_core.runtime.control import RunControl  # noqa: PLC0415 - loads what notices need

        control = RunControl(
            notices,
            self._store,
            self._project.gate.questions,
            stream_of=self._stream_of,
            controls=self._controls,
        )
        await control.serve()

    def _stream_of(self, run_id: str) -> EventStream | None:
        """Return the events of a run that is under way here."""
        run = self.table.get(run_id)
        if run is None:
            return self.children.stream(run_id)
        return None if run.ended.is_set() else run.stream

    def _send(self, what: str, **ids: str) -> None:
        """Send a request to the process that executes a run; the request is stored already."""
        if self._notices is not None:
            self._notices.send(CONTROL, json.dumps({"what": what, **ids}))

    def _cancel_requested(self, run_ids: Iterable[str]) -> None:
        for run_id in run_ids:
            run = self.table.get(run_id)
            if run is not None and not run.is_stopping:
                self._aside.start(self._scheduler.cancel(run))

    def _look_for_messages(self, run_ids: Iterable[str]) -> None:
        """Have these runs look for messages at their next boundary."""
        for run_id in run_ids:
            if (run := self.table.get(run_id)) is not None:
                run.inbox.has_mail = True

    def _end_after_turn(self, run_ids: Iterable[str]) -> None:
        """Have these runs end as cancelled after their turn."""
        for run_id in run_ids:
            if (run := self.table.get(run_id)) is not None:
                run.inbox.is_last_turn = run.inbox.has_mail = True

    def _lose(self, run_id: str, is_refused: bool) -> None:
        self.pipeline.lose(run_id, is_refused)

    async def _read_on(
        self, run: Run, own: AsyncGenerator[RuntimeEvent], *, debug: bool
    ) -> AsyncGenerator[RuntimeEvent]:
        """Yield the events of a run's stream, then the store's if another process continues it."""
        seen = 0
        async with aclosing(own):
            async for event in own:
                seen = event.run_seq or seen
                yield event
        if run.journal.is_abandoned:
            rest = self._reader.events(run.identity.run_id, seen)
            async with aclosing(rest if debug else _hide_debug(rest)) as events:
                async for event in events:
                    yield event

    async def follow(
        self, run_id: str, after: int, *, debug: bool = False
    ) -> AsyncGenerator[RuntimeEvent]:
        """Yield the stored events after a number, then the following ones, to the closing event.

        It may be a child. While the run waits for an answer, the next event is waited for, wherever
        it then continues. For any number of readers, for which the run does not wait.

        Raises:
            StorageError: `run_not_found`.
        """
        events = self._followed(run_id, after)
        async with aclosing(events if debug else _hide_debug(events)) as shown:
            async for event in shown:
                yield event

    async def _followed(self, run_id: str, seen: int) -> AsyncGenerator[RuntimeEvent]:
        while True:
            stream, before = self._stream_here(run_id), seen
            if stream is not None:
                source = self._read_stored_first(run_id, seen, stream)
            else:
                source = self._reader.events(
                    run_id, seen, until=lambda: self._stream_here(run_id) is not None
                )
            async with aclosing(source):
                async for event in source:
                    seen = event.run_seq or seen
                    yield event
                    if event.event_type in CLOSING_EVENTS:
                        return
            if stream is None and self._stream_here(run_id) is None:
                if (await self._reader.record(run_id)).status.is_terminal:
                    return
            elif stream is not None and seen == before:
                await asyncio.sleep(_PAUSE_S)  # its end is being stored

    def _stream_here(self, run_id: str) -> EventStream | None:
        """Return the live events of a run or child that this process executes."""
        run = self.table.get(run_id)
        if run is not None:
            return None if run.ended.is_set() else run.stream
        return self.children.stream(run_id)

    async def _watch_after(
        self, run_id: str, seen: int, run: Run | None
    ) -> AsyncGenerator[RuntimeEvent]:
        """Yield the stored events after `seen`, then live events, wherever the run is executed."""
        if run is None or run.ended.is_set():
            async for event in self._reader.events(run_id, seen):
                yield event
            return
        async with aclosing(self._read_stored_first(run_id, seen, run.stream)) as events:
            async for event in events:
                seen = event.run_seq or seen
                yield event
                if event.event_type in CLOSING_EVENTS:
                    return
        if run.status is not RunStatus.WAITING and not run.status.is_terminal:
            async for event in self._reader.events(run_id, seen):  # another process has it now
                yield event

    async def _read_stored_first(
        self, run_id: str, seen: int, stream: EventStream
    ) -> AsyncGenerator[RuntimeEvent]:
        """Yield the stored events after `seen`, then the stream's without a gap."""
        is_behind = True
        while is_behind:
            shown = stream.last_run_seq
            with stream.follow() as follower:
                async for event in self._reader.events(run_id, seen, follow=False):
                    seen = event.run_seq or seen
                    yield event
                    if event.event_type in CLOSING_EVENTS:
                        return
                async with aclosing(follower.events()) as live:
                    async for event in live:
                        shown = event.run_seq or shown
                        # A delta has no number and is as old as the last event shown before it.
                        if shown > seen or (shown == seen and event.run_seq is None):
                            yield event
                            seen = event.run_seq or seen
                        if event.event_type in CLOSING_EVENTS:
                            return
                is_behind = follower.is_behind


def _not_for(run_id: str, why: str) -> AgentCoreError:
    """Return the error for a message to a run that takes none."""
    message = f"run {run_id} takes no message: {why}"
    return AgentCoreError(ErrorCode.VALIDATION_ERROR, message, details={"run_id": run_id})


async def _hide_debug(events: AsyncGenerator[RuntimeEvent]) -> AsyncGenerator[RuntimeEvent]:
    async with aclosing(events):
        async for event in events:
            if event.level is not EventLevel.DEBUG:
                yield event


def _unopened(error: BaseException) -> Outcome:
    """Return the outcome of a run that could not be opened, or whose caller was cancelled."""
    if isinstance(error, asyncio.CancelledError):
        return Outcome(EndReason.ABORTED_STREAMING)
    known = error if isinstance(error, AgentCoreError) else None
    failure = known or AgentCoreError(ErrorCode.INTERNAL_ERROR, type(error).__name__)
    return Outcome(EndReason.FAILED, error=ErrorPayload.of(failure))
