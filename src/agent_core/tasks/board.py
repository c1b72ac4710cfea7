"""A session's Tasks: checks the rights for changes, and makes one change at a time.

Every change goes the same way: decide (rights, state, graph), append to the log, apply, note in the
journal. Cancelling a caller never leaves a change half done.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from msgspec import Struct

from agent_core.errors import AgentCoreError, ErrorCode, PermissionDeniedError, TaskError
from agent_core.redaction import log_failure
from agent_core.redaction.redactor import Redactor
from agent_core.tasks.apply import apply
from agent_core.tasks.graph import Dag
from agent_core.tasks.leases import IsWorking, StepLeases
from agent_core.tasks.log_format import Stamp, encode, redact_change
from agent_core.tasks.log_store import (
    SUFFIX,
    AnyLog,
    EndedLog,
    LogChangedError,
    OpenTask,
    TaskLog,
    TaskLogStore,
    UnreadableLog,
)
from agent_core.tasks.memory_logs import InMemoryTaskLogStore, TaskLogs
from agent_core.tasks.model import (
    CLAIMS,
    DURABLE,
    AbortTask,
    Actor,
    AddStep,
    ChangeDependency,
    ClaimStep,
    CloseRun,
    Command,
    Complete,
    ExpireLeases,
    NewTask,
    Operation,
    Report,
    ReportStep,
    StepCancelled,
    StepFailed,
    Task,
    TaskChange,
    TaskStatus,
    TaskStep,
    TaskUpdated,
    Update,
    UpdateStep,
    WorkerEnding,
    not_dispatchable,
    task_error,
    task_over,
)
from agent_core.tasks.notes import note_changes, note_failure, note_replay
from agent_core.tasks.rules import claim_error, decide, decide_creation, explain_loss
from agent_core.types import EventLevel, EventType, new_id, utc_now

logger = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")

StopRun = Callable[[str], Awaitable[None]]
"""Asks a run to stop; returns when it has stopped, or at once if there is no such run here.

The board limits the wait, and cancels the call when it takes too long; the request remains.
"""


class BoardSettings(Struct, frozen=True, kw_only=True):
    """Place of a session's logs, and time limits.

    With `logs`, the logs are kept there, and nothing is written to disk. The logs named in `others`
    belong to an earlier session with the same id: they are neither read nor written.
    """

    session_id: str
    project_dir: Path
    wal_dir: Path
    logs: TaskLogs | None = None
    others: frozenset[str] = frozenset()
    step_lease_timeout_ms: int = 300_000
    child_cancel_timeout_ms: int = 30_000

    def open_logs(self) -> TaskLogStore:
        """Return the store of the logs."""
        if self.logs is not None:
            return InMemoryTaskLogStore(self.logs, self.session_id)
        return TaskLogStore(self.wal_dir, self.session_id, project_dir=self.project_dir)


class Written(Struct, frozen=True):
    """A Task after a change, the ids of the change's lines, and the steps that it strands."""

    dag: Dag
    event_ids: list[str]
    stranded: Sequence[str] = ()


class WorkerRun(Struct):
    """A run of a worker, as far as the board knows it.

    Attributes:
        task_id: the Task that it was sent to.
        is_admitted: it has begun, and has not ended.
        step_id: the step that it has claimed.
        left: the step as the run has left it.
    """

    task_id: str
    is_admitted: bool = False
    step_id: str | None = None
    left: TaskStep | None = None


class ClaimOutcome(Struct, frozen=True):
    """The outcome of the step that a run claimed.

    Attributes:
        is_lost: the claim did not end by the run: its lease ran out, the Task ended, or the
            orchestrator or another run changed the step.
        step: the step while it is this run's; None once it is another run's, or unknown.
        stranded: the steps that cannot begin because this one has failed or is cancelled.
    """

    step_id: str
    is_lost: bool
    step: TaskStep | None
    stranded: Sequence[str] = ()


@asynccontextmanager
async def open_board(
    settings: BoardSettings,
    by: Actor,
    *,
    redactor: Redactor,
    is_working: IsWorking = lambda _: False,
    now: Callable[[], datetime] = utc_now,
    monotonic: Callable[[], float] = time.monotonic,
) -> AsyncGenerator["TaskBoard"]:
    """Replay a session's Tasks, keep the leases of runs at work, and close the logs at the end.

    `by` is the run that needs the board first: its journal gets the replayed and unreadable logs,
    and the expired leases. Live claims of earlier runs are left alone. `redactor` cleans every text
    of a Task before it is written. `now` stamps changes; only `monotonic`, in seconds, measures
    leases.
    """
    duration = timedelta(milliseconds=settings.step_lease_timeout_ms)
    leases = StepLeases(duration, is_working=is_working, now=now, monotonic=monotonic)
    board = TaskBoard(settings, redactor, leases, now=now)
    renewing = None
    try:
        await board.resume(by)
        renewing = asyncio.create_task(board.keep_leases(by), name="task leases")
        yield board
    finally:
        if renewing is not None:
            renewing.cancel()
        await board.close()


def in_turn(
    method: Callable[Concatenate["TaskBoard", P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["TaskBoard", P], Coroutine[Any, Any, T]]:
    """Give a method exclusive use of the board; complete it even if its caller is cancelled.

    A caller that is cancelled while it waits for its turn has done nothing.
    """

    @wraps(method)
    async def take_turn(board: "TaskBoard", *args: P.args, **kwargs: P.kwargs) -> T:
        await board.turn.acquire()
        work = asyncio.create_task(method(board, *args, **kwargs))
        work.add_done_callback(board.end_turn)
        return await asyncio.shield(work)

    return take_turn


class TaskBoard:
    """The Tasks of one session. Created by `open_board`.

    A `Dag` that a method returns is the live one: read it before the next `await`. Every method may
    raise `TaskError` with `task_not_found`, `task_terminal` or `task_wal_unavailable`, and
    `PermissionDeniedError` for anything beyond the actor's scope. Secrets are removed from changes
    before they are written: the log, the graph in memory and the events are the same.
    """

    def __init__(
        self,
        settings: BoardSettings,
        redactor: Redactor,
        leases: StepLeases,
        *,
        now: Callable[[], datetime],
    ) -> None:
        self.turn = asyncio.Lock()
        self._session_id = settings.session_id
        self._store = settings.open_logs()
        self._others = settings.others
        self._redactor = redactor
        self._leases = leases
        self._now = now
        self._stop_timeout_s = settings.child_cancel_timeout_ms / 1000
        self._open: dict[str, OpenTask] = {}
        self._ended: list[EndedLog] = []
        self._unreadable: dict[str, UnreadableLog] = {}
        self._runs: dict[str, WorkerRun] = {}

    def end_turn(self, work: "asyncio.Task[Any]") -> None:
        """Let the next caller use the board."""
        self.turn.release()
        if not work.cancelled():
            work.exception()  # retrieved: its caller may be gone

    @in_turn
    async def resume(self, by: Actor) -> None:
        """Replay the logs, take back expired claims and complete changes interrupted by a crash.

        A log that cannot be read is reported, and does not affect the others.
        """
        try:
            names = await asyncio.to_thread(self._store.names)
        except TaskError as error:
            note_failure(by, error)
            return
        for name in names:
            if name in self._others:
                continue
            self._place(await asyncio.to_thread(self._store.look_at, name), by)
        for task in list(self._open.values()):
            await self._settle(task, by)

    @in_turn
    async def close(self) -> None:
        """Close the logs."""
        for task in self._open.values():
            task.log.close()
        self._open.clear()

    # what an orchestrator does

    @in_turn
    async def create(self, new: NewTask, by: Actor) -> Written:
        """Create a Task and its log.

        Raises:
            TaskError: `validation_error` (an id is taken or holds a secret), `path_conflict`,
                `dependency_cycle`, `step_not_found`; no Task is created then.
        """
        by.require_orchestrator()
        if isinstance(await self._find(new.task_id, by), OpenTask):
            message = (
                f"Task {new.task_id} is active already; take another task_id, or use that Task"
            )
            raise task_error(ErrorCode.VALIDATION_ERROR, message, task_id=new.task_id)
        now = self._now()
        name = new.wal_name if new.wal_name.endswith(SUFFIX) else new.wal_name + SUFFIX
        if name in self._others:
            name = await asyncio.to_thread(self._store.free_name, name, self._others)
        header = Task(
            task_id=new.task_id,
            wal_path=str(self._store.path(name)),
            title=new.title,
            summary=new.summary,
            created_by_agent_id=by.agent_id,
            created_by_run_id=by.run_id,
            created_at=now,
            updated_at=now,
        )
        changes = decide_creation(header, new.steps)
        if self._redactor.secrets_only(name) != name:
            message = "wal_name holds the value of a configured secret; choose another name"
            raise task_error(ErrorCode.VALIDATION_ERROR, message)
        changes = [redact_change(change, self._redactor) for change in changes]
        dag = apply(None, changes[0])
        for change in changes[1:]:
            apply(dag, change)
        task_id = dag.task.task_id

        try:
            log, event_ids = await asyncio.to_thread(self._begin, name, task_id, changes, by)
        except TaskError as error:
            if error.code is ErrorCode.TASK_WAL_UNAVAILABLE:
                note_failure(by, error)
            raise
        task = self._open[task_id] = OpenTask(dag, log, len(changes))
        task.recent.extend(changes)
        note_changes(by, task_id, changes, event_ids)
        return Written(dag, event_ids)

    @in_turn
    async def change(self, task_id: str, command: Update | Complete, by: Actor) -> Written:
        """Change the graph, with all operations or none, or complete a Task.

        Raises:
            TaskError: the rule that an operation breaks; `task_not_completable`, naming the steps
                that prevent it.
        """
        by.require_orchestrator()
        return await self._do(task_id, command, by)

    async def abort(
        self, task_id: str, end: AbortTask, by: Actor, *, stop_run: StopRun | None
    ) -> Written:
        """Fail or cancel a Task, after asking the runs that work on it to stop.

        These are the runs that hold a claim and the workers that were sent to it. They have
        `child_cancel_timeout_ms`; then the Task ends without them. `stop_run` is None if there are
        no such runs.
        """
        by.require_orchestrator()
        task = await self._await_open(task_id, by)
        task.require_not_ending()
        task.ending = ending = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as group:
                for run_id in await self._runs_on(task):
                    if stop_run is not None:
                        group.create_task(self._stop(run_id, task_id, by, stop_run=stop_run))
            return await self._end(task_id, end, by)
        finally:
            try:
                if task.is_ending:
                    await self._cancel_ending(task, by)
            finally:
                ending.set()

    # what a worker does

    @in_turn
    async def claim(self, task_id: str, step_id: str, by: Actor) -> Written:
        """Claim a ready step for this run.

        Raises:
            TaskError: `step_not_ready`, `step_already_claimed_by_run`, `task_not_dispatchable`;
                `step_already_claimed`: another run was faster, noted as `task_step_claim_skipped`.
        """
        by.require_scope(task_id, step_id)
        task = await self._find_open(task_id, by)
        await self._settle(task, by)
        task.require_not_ending()
        by.require_pool(task.dag.step(step_id))
        command = ClaimStep(step_id, by.agent_id, by.run_id, self._leases.next_end())
        try:
            changes = decide(task.dag, command, self._now())
        except TaskError as error:
            if error.code is ErrorCode.STEP_ALREADY_CLAIMED:
                payload = {"task_id": task_id, **error.details}
                skipped = EventType.TASK_STEP_CLAIM_SKIPPED
                by.journal.note(skipped, payload, level=EventLevel.DEBUG)
            raise
        written = await self._commit(task, changes, by)
        self._leases.begin(task, step_id)
        self._run(by.run_id, task_id).step_id = step_id
        return written

    @in_turn
    async def report(self, task_id: str, report: Report, by: Actor) -> Written:
        """Record the progress of a step. Only a worker's report renews its lease.

        Raises:
            PermissionDeniedError: the worker's run does not hold the step (`details.reason`).
            TaskError: `no_step_claimed`, `step_not_cancellable`.
        """
        by.require_scope(task_id, report.step_id)
        command = ReportStep(report, by.holder, self._leases.next_end())
        written = await self._do(task_id, command, by)
        if by.holder is not None:
            step = written.dag.step(report.step_id)
            if step.status.is_claim:
                self._leases.begin(self._open[task_id], report.step_id)
            else:
                self._run(by.run_id, task_id).left = step
        return written

    async def begin_call(self, run_id: str, by: Actor) -> None:
        """Note that a tool call of a run begins; if its lease has ended, take the claim back."""
        task, step = self._held_by(run_id)
        if task and step and self._leases.end_if_over(task, step.step_id):
            await self._take_back(task, by)

    @in_turn
    async def _take_back(self, task: OpenTask, by: Actor) -> None:
        if self._open.get(task.dag.task.task_id) is task:
            await self._settle(task, by)

    async def end_call(self, run_id: str, by: Actor) -> None:
        """Renew the lease of a run whose tool call has ended."""
        task, step = self._held_by(run_id)
        if task and step and not self._leases.has_ended(task, step.step_id):
            await self._renew(task, step, by)

    async def keep_leases(self, by: Actor) -> None:
        """Renew the leases of runs with open work until cancelled.

        The renewals are written, so that other processes, and this one's successor, know of them.
        """
        while True:
            await asyncio.sleep(self._leases.renewal_s)
            for task in list(self._open.values()):
                for step in list(task.dag.steps(*CLAIMS)):
                    if self._leases.has_open_work(task, step):
                        await self._renew(task, step, by)

    async def _renew(self, task: OpenTask, step: TaskStep, by: Actor) -> None:
        """Renew a lease, and write it unless the written one has hardly begun.

        If it cannot be written, the lease holds in this process all the same.
        """
        self._leases.begin(task, step.step_id)
        agent_id, run_id = step.claimed_by_agent_id, step.claimed_by_run_id
        if agent_id is not None and run_id is not None and not self._leases.is_written(step):
            holder = Actor(agent_id, run_id, by.journal)
            with suppress(TaskError, PermissionDeniedError):
                await self._write_lease(task.dag.task.task_id, step.step_id, holder)

    @in_turn
    async def _write_lease(self, task_id: str, step_id: str, holder: Actor) -> None:
        if task_id in self._open:
            report = Report(step_id=step_id)
            renewal = ReportStep(report, holder.run_id, self._leases.next_end())
            await self._do(task_id, renewal, holder)

    @in_turn
    async def run_ended(
        self, run_id: str, ending: WorkerEnding, by: Actor, *, error: str | None = None
    ) -> Written | None:
        """Fail the step that a worker's run leaves open; None if there is none.

        Only the process of that run calls this. If the whole Task is being failed or cancelled,
        that settles the step. `error` says why the run failed.
        """
        (task, _), close = self._held_by(run_id), CloseRun(run_id, ending, error)
        if task is None:
            return None
        if task.is_ending:
            task.left_open.append(close)
            return None
        return await self._close_run(task, close, by)

    # what every run may ask

    @in_turn
    async def get(self, task_id: str, by: Actor) -> Dag:
        """Return the Task as it is now, whatever its state."""
        by.require_scope(task_id)
        task = await self._require(task_id, by)
        if isinstance(task, EndedLog):
            return await self.read(task)
        await self._settle(task, by)
        return task.dag

    @in_turn
    async def tasks(self, by: Actor) -> list[AnyLog]:
        """Return every Task of the session: active, then unreadable, then ended ones.

        Each group has the last changed first. Ended Tasks are not read for this.
        """
        for task in list(self._open.values()):
            await self._settle(task, by)
        active = sorted(self.active(), key=lambda task: task.dag.task.updated_at, reverse=True)
        ended = sorted(self._ended, key=lambda log: log.updated_at, reverse=True)
        return [*active, *self._unreadable.values(), *ended]

    async def read(self, log: EndedLog) -> Dag:
        """Replay a Task that has ended."""
        return await asyncio.to_thread(self._store.read, log.name)

    async def require_dispatchable(
        self, task_id: str, step_ids: Sequence[str] | None, by: Actor
    ) -> Dag:
        """Return the Task, if a worker may be sent to it for these steps (None for any).

        Raises:
            TaskError: `task_not_dispatchable`; `validation_error`: a step is unknown or the list is
                empty.
        """
        dag = await self.get(task_id, by)
        if dag.task.status.is_terminal or dag.task.status is TaskStatus.BLOCKED:
            raise not_dispatchable(dag.task)
        self._open[task_id].require_not_ending()
        unknown = [step_id for step_id in step_ids or () if dag.find(step_id) is None]
        if step_ids is not None and (unknown or not step_ids):
            what = f"unknown steps: {', '.join(unknown[:10])}" if unknown else "no step"
            message = f"allowed_step_ids names {what}; leave it out to allow every step"
            facts = {"task_id": task_id, "unknown_step_ids": unknown[:50]}
            raise task_error(ErrorCode.VALIDATION_ERROR, message, **facts)
        return dag

    def active(self) -> list[OpenTask]:
        """Return the active Tasks, in the order of their creation."""
        return sorted(self._open.values(), key=lambda task: task.dag.task.created_at)

    def step_held_by(self, run_id: str) -> str | None:
        """Return the id of the step that a run holds now."""
        step = self._held_by(run_id)[1]
        return None if step is None else step.step_id

    def admit(self, run_id: str, task_id: str) -> None:
        """Register a worker's run with its Task, from its first moment on.

        Raises:
            TaskError: `task_not_dispatchable`: the Task has been blocked or ended meanwhile.
        """
        task = self._open.get(task_id)
        if task is None:
            message = f"Task {task_id} is no longer active; no new work starts in it"
            raise task_error(ErrorCode.TASK_NOT_DISPATCHABLE, message, task_id=task_id)
        task.require_not_ending()
        if task.dag.task.status is TaskStatus.BLOCKED:
            raise not_dispatchable(task.dag.task)
        self._runs[run_id] = WorkerRun(task_id, is_admitted=True)

    def dismiss(self, run_id: str) -> None:
        """Unregister a run that has ended, or never began."""
        if (run := self._runs.get(run_id)) is not None:
            run.is_admitted = False

    def has_lost_claim(self, run_id: str) -> bool:
        """Return whether a worker's run must not change anything any more.

        This is so if its Task has ended or is being ended, if its lease had ended when its current
        call began, or if it no longer holds the step it claimed, unless it ended that step itself
        and nothing has happened to the step since.
        """
        run = self._runs.get(run_id)
        if run is None or not (run.is_admitted or run.step_id):
            return False
        task = self._open.get(run.task_id)
        if task is None or task.is_ending:
            return True
        if (held := task.dag.held_by(run_id)) is not None:
            return self._leases.has_ended(task, held.step_id)  # it could not be written
        if run.step_id is None:
            return False
        step = task.dag.find(run.step_id)
        is_as_left = run.left is not None and step is not None and step.status is run.left.status
        return not is_as_left or task.dag.has_later_claim(run_id)

    def claim_lost(self, run_id: str, what: str) -> PermissionDeniedError:
        """Return the error for something that a run does after it has lost its claim."""
        run = self._runs[run_id]
        task = self._open.get(run.task_id)
        step = None if task is None or run.step_id is None else task.dag.find(run.step_id)
        if task is None or step is None or task.is_ending:
            message = f"{what}: its Task has ended, or the step is gone"
            details = {"reason": "claim_lost", "task_id": run.task_id, "step_id": run.step_id}
            return PermissionDeniedError(ErrorCode.PERMISSION_DENIED, message, details=details)
        return claim_error(step, f"{what}: {explain_loss(task.dag, step, run_id)}", "claim_lost")

    async def outcome(self, run_id: str, by: Actor) -> ClaimOutcome | None:
        """Return the outcome of the step that a run claimed here; None if it claimed none.

        If the Task is being failed or cancelled, this waits for the end of that.
        """
        run = self._runs.get(run_id)
        if run is None or run.step_id is None:
            return None
        task_id, step_id, left = run.task_id, run.step_id, run.left
        if (task := self._open.get(task_id)) is not None and task.ending is not None:
            await task.ending.wait()
        try:
            dag = await self.get(task_id, by)
        except TaskError as error:
            logger.warning("step %s of %s cannot be read: %s", step_id, run_id, error.message)
            return ClaimOutcome(step_id, left is None, left)
        step = dag.find(step_id)
        if step is None or run_id not in dag.claims or dag.has_later_claim(run_id):
            return ClaimOutcome(step_id, left is None, left)
        is_over = dag.task.status.is_terminal
        stranded = () if is_over or not step.status.is_terminal else dag.stranded([step_id])
        is_lost = left is None and not step.is_held_by(run_id)
        return ClaimOutcome(step_id, is_lost, step, stranded)

    # the parts of `abort`

    @in_turn
    async def _await_open(self, task_id: str, by: Actor) -> OpenTask:
        return await self._find_open(task_id, by)

    @in_turn
    async def _runs_on(self, task: OpenTask) -> list[str]:
        """Return the runs that hold a claim or were sent for one, after pending writes."""
        task_id = task.dag.task.task_id
        holders = (step.claimed_by_run_id for step in task.dag.steps(*CLAIMS))
        runs = self._runs.items()
        sent = (run_id for run_id, run in runs if run.is_admitted and run.task_id == task_id)
        return [run_id for run_id in dict.fromkeys((*holders, *sent)) if run_id is not None]

    async def _stop(self, run_id: str, task_id: str, by: Actor, *, stop_run: StopRun) -> None:
        try:
            async with asyncio.timeout(self._stop_timeout_s):
                await stop_run(run_id)
        except TimeoutError:
            payload = {"child_run_id": run_id, "task_id": task_id}
            late = EventType.CHILD_AGENT_CANCEL_TIMEOUT
            by.journal.note(late, payload, level=EventLevel.WARNING)
        except AgentCoreError as error:
            what, clean = f"run {run_id} could not be asked to stop", self._redactor.text
            log_failure(logger, what, error=error, clean=clean, level=logging.WARNING)

    @in_turn
    async def _end(self, task_id: str, end: AbortTask, by: Actor) -> Written:
        task = await self._find_open(task_id, by)
        written = await self._commit(task, decide(task.dag, end, self._now()), by)
        task.ending = None
        return written

    @in_turn
    async def _cancel_ending(self, task: OpenTask, by: Actor) -> None:
        """Reactivate the Task, and close the runs that ended meanwhile."""
        task.ending = None
        for close in task.left_open:
            with suppress(AgentCoreError):
                await self._close_run(task, close, by)
        task.left_open.clear()

    # inside a turn

    async def _do(self, task_id: str, command: Command, by: Actor) -> Written:
        task = await self._find_open(task_id, by)
        return await self._commit(task, decide(task.dag, command, self._now()), by)

    async def _close_run(self, task: OpenTask, close: CloseRun, by: Actor) -> Written:
        step_id = task.dag.claims[close.run_id].step_id
        changes = decide(task.dag, close, self._now())
        written = await self._commit(task, changes, by)
        if changes:
            self._run(close.run_id, task.dag.task.task_id).left = task.dag.step(step_id)
        return written

    def _run(self, run_id: str, task_id: str) -> WorkerRun:
        return self._runs.setdefault(run_id, WorkerRun(task_id))

    def _held_by(self, run_id: str) -> tuple[OpenTask, TaskStep] | tuple[None, None]:
        """Return the step that a run holds now, with its Task."""
        for task in self._open.values():
            if (step := task.dag.held_by(run_id)) is not None:
                return task, step
        return None, None

    async def _settle(self, task: OpenTask, by: Actor) -> None:
        """Take back expired claims and complete, once, changes interrupted by a crash.

        A full disk does not keep a Task from being read: nothing changes, and the journal has the
        reason.
        """
        expired = self._leases.expired(task)
        if expired or not task.is_settled:
            command = ExpireLeases(expired, may_promote=not task.is_settled)
            changes = decide(task.dag, command, self._now())
            with suppress(TaskError):
                await self._commit(task, changes, by)
                task.is_settled = True

    async def _find(self, task_id: str, by: Actor) -> OpenTask | EndedLog | None:
        """Return the Task with this id; an active one takes precedence over an ended one."""
        if task_id not in self._open:
            await self._look_again(task_id, by)
        if (task := self._open.get(task_id)) is not None:
            return task
        for log in self._unreadable.values():
            if log.task_id == task_id:
                raise log.error
        ended = [log for log in self._ended if log.task_id == task_id]
        return max(ended, key=lambda log: log.updated_at, default=None)

    async def _require(self, task_id: str, by: Actor) -> OpenTask | EndedLog:
        if (task := await self._find(task_id, by)) is not None:
            return task
        message = f"this session has no Task {task_id}; agent.task_list lists them"
        if unknown := [log.error.message for log in self._unreadable.values() if not log.task_id]:
            message += f". It may be in a log that cannot be read: {unknown[0]}"
        raise task_error(ErrorCode.TASK_NOT_FOUND, message, task_id=task_id)

    async def _find_open(self, task_id: str, by: Actor) -> OpenTask:
        task = await self._require(task_id, by)
        if isinstance(task, EndedLog):
            raise task_over(task_id, task.status)
        return task

    async def _look_again(self, task_id: str, by: Actor) -> None:
        """Read an unreadable log again, in case it was repaired or unlocked in the meantime."""
        for name, log in list(self._unreadable.items()):
            if log.task_id in {task_id, None} and not self._store.is_unchanged(log):
                found = await asyncio.to_thread(self._store.look_at, name)
                if isinstance(found, UnreadableLog):
                    self._unreadable[name] = found
                else:
                    del self._unreadable[name]
                    self._place(found, by)

    def _place(self, found: AnyLog | None, by: Actor) -> None:
        if isinstance(found, OpenTask):
            task_id, path = found.dag.task.task_id, found.log.path
            if (other := self._open.get(task_id)) is None:
                self._open[task_id] = found
                note_replay(by, found)
                return
            found.log.close()
            message = (
                f"the Task log {path} cannot be used: Task {task_id} is open in "
                f"{other.log.path}. Move one of them away"
            )
            error = task_error(ErrorCode.TASK_WAL_UNAVAILABLE, message, path=str(path))
            found = self._store.describe_unreadable(path.name, error)
        if isinstance(found, EndedLog):
            self._ended.append(found)
        elif found is not None:
            self._unreadable[found.name] = found
            note_failure(by, found.error, task_id=found.task_id)

    async def _commit(self, task: OpenTask, changes: Sequence[TaskChange], by: Actor) -> Written:
        """Write changes and apply them; without changes do nothing.

        Raises:
            TaskError: `task_wal_unavailable`, or `validation_error` (an id holds a secret); nothing
                has changed.
        """
        if not changes:
            return Written(task.dag, [])
        changes = [redact_change(change, self._redactor) for change in changes]
        task_id, name = task.dag.task.task_id, task.log.path.name
        try:
            event_ids = await asyncio.to_thread(
                self._append, task.log, task_id, changes, by, first=task.lines + 1
            )
        except TaskError as error:
            note_failure(by, error)
            if isinstance(error, LogChangedError):
                del self._open[task_id]
                task.log.close()
                self._unreadable[name] = UnreadableLog(name, error, task_id, None)
            raise
        task.lines += len(changes)
        task.recent.extend(changes)
        for change in changes:
            apply(task.dag, change)
        header = task.dag.task
        if header.status.is_terminal:
            del self._open[task_id]
            self._ended.append(EndedLog(name, task_id, header.status, header.updated_at))
            task.log.close()
            stranded: list[str] = []
        else:
            stranded = task.dag.stranded(_touched_steps(changes))
        note_changes(by, task_id, changes, event_ids)
        return Written(task.dag, event_ids, stranded)

    def _begin(
        self, name: str, task_id: str, changes: Sequence[TaskChange], by: Actor
    ) -> tuple[TaskLog, list[str]]:
        """Create a log with its first lines, or none."""
        log = self._store.create(name)
        try:
            return log, self._append(log, task_id, changes, by, first=1)
        except BaseException:
            self._store.discard(name)
            log.close()
            raise

    def _append(
        self, log: TaskLog, task_id: str, changes: Sequence[TaskChange], by: Actor, *, first: int
    ) -> list[str]:
        """Append a line for each change; return the ids of the lines."""
        stamp = Stamp(
            session_id=self._session_id, task_id=task_id, agent_id=by.agent_id, run_id=by.run_id
        )
        event_ids = [new_id("evt") for _ in changes]
        numbered = enumerate(zip(changes, event_ids, strict=True), first)
        lines = [encode(c, stamp, wal_seq=number, event_id=e) for number, (c, e) in numbered]
        log.append(b"".join(lines), durable=any(c.event_type in DURABLE for c in changes))
        return event_ids


def _touched_steps(changes: Sequence[TaskChange]) -> Iterator[str]:
    """Yield the steps behind which others may wait in vain since these changes."""
    for change in changes:
        match change.payload:
            case StepFailed() | StepCancelled() if change.step_id is not None:
                yield change.step_id
            case TaskUpdated(operations=operations):
                yield from filter(None, map(_newly_linked, operations))
            case _:
                pass


def _newly_linked(operation: Operation) -> str | None:
    """Return the step that has new dependencies after this operation."""
    match operation:
        case AddStep(step=step):
            return step.step_id
        case ChangeDependency(op="add_dependency", step_id=step_id):
            return step_id
        case UpdateStep(step_id=step_id, fields=fields):
            return step_id if fields.depends_on_step_ids else None
        case _:
            return None
