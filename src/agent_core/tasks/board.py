"""A session's Tasks: who may do what to which, one change at a time.

Every change goes the same way: decide (rights, state, graph), append to the log, apply, tell the
journal. A caller that is cancelled never leaves one half done.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial, wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from agent_core.errors import AgentCoreError, ErrorCode, TaskError
from agent_core.redaction.redactor import Redactor
from agent_core.tasks.actor import Actor
from agent_core.tasks.commands import (
    AbortTask,
    ClaimStep,
    CloseRun,
    Command,
    Complete,
    ExpireLeases,
    Report,
    ReportStep,
    RunEnding,
    Update,
)
from agent_core.tasks.dag import Dag
from agent_core.tasks.decide import decide, decide_creation
from agent_core.tasks.exclusive import SerialExecutor
from agent_core.tasks.folder import LogFolder
from agent_core.tasks.leases import Leases
from agent_core.tasks.ledger import TaskRepository, Written
from agent_core.tasks.model import CLAIMS, Step, Task, TaskStatus
from agent_core.tasks.operations import NewTask, Operation
from agent_core.tasks.ports import Clock, RunStopper, SystemClock
from agent_core.tasks.shelf import AnyLog, EndedLog, OpenTask, TaskLogStore, log_name
from agent_core.tasks.step_rules import not_dispatchable
from agent_core.types import EventLevel, EventType

logger = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardSettings:
    """Where a session's logs are, and how long things may take."""

    session_id: str
    project_dir: Path
    wal_dir: Path
    step_lease_timeout_ms: int = 300_000
    child_cancel_timeout_ms: int = 30_000


@dataclass(frozen=True, slots=True)
class ClaimedStep:
    """The step a run claimed, as it is now, and whether the run still holds it."""

    task_id: str
    step: Step
    is_held: bool


@dataclass(frozen=True, slots=True)
class ClaimOutcome:
    """What became of the step that a run claimed.

    Attributes:
        is_lost: the claim ended without the run: its lease ran out, the Task ended, the
            orchestrator or another run changed the step.
        step: the step as far as it is this run's; None once it is another run's, or unknown.
    """

    step_id: str
    is_lost: bool
    step: Step | None


@asynccontextmanager
async def open_board(
    settings: BoardSettings, by: Actor, *, redactor: Redactor, clock: Clock | None = None
) -> AsyncGenerator["TaskBoard"]:
    """Replay a session's Tasks, and give their logs back at the end.

    `by` is the run that needs the board first: its journal hears what was replayed, what cannot
    be read, and which leases have run out. Live claims of earlier runs are left alone.
    `redactor` cleans every text of a Task before it is written.
    """
    folder = LogFolder(settings.wal_dir, settings.session_id, project_dir=settings.project_dir)
    ledger = TaskRepository(TaskLogStore(folder), settings.session_id, redactor=redactor)
    board = TaskBoard(ledger, settings, clock or SystemClock())
    try:
        await board.resume(by)
        yield board
    finally:
        await board.close()


def in_turn(
    method: Callable[Concatenate["TaskBoard", P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["TaskBoard", P], Coroutine[Any, Any, T]]:
    """Give a method the board for itself, and run it to its end even if its caller is gone."""

    @wraps(method)
    async def taking_turns(board: "TaskBoard", *args: P.args, **kwargs: P.kwargs) -> T:
        return await board.turns.run(partial(method, board, *args, **kwargs))

    return taking_turns


class TaskBoard:
    """The Tasks of one session. Made by `open_board`.

    A `Dag` that a method returns is the living one: read it before the next `await`. Every
    method may raise `TaskError` with `task_not_found`, `task_terminal` or `task_wal_unavailable`,
    and `PermissionDeniedError` for what is beyond the actor's scope.
    """

    def __init__(self, ledger: TaskRepository, settings: BoardSettings, clock: Clock) -> None:
        self.turns = SerialExecutor()
        self._ledger = ledger
        self._clock = clock
        self._leases = Leases(clock, timedelta(milliseconds=settings.step_lease_timeout_ms))
        self._stop_timeout = settings.child_cancel_timeout_ms / 1000
        self._workers: dict[str, str] = {}
        self._claims: dict[str, tuple[str, str]] = {}
        self._left: dict[str, Step] = {}

    @in_turn
    async def resume(self, by: Actor) -> None:
        """Replay the logs; take back what has expired, mend what a crash left half written."""
        await self._ledger.load(by)
        for task in list(self._ledger.open.values()):
            await self._settle(task, by)

    @in_turn
    async def close(self) -> None:
        """Give the logs back."""
        self._ledger.close()

    # what an orchestrator does

    @in_turn
    async def create(self, new: NewTask, by: Actor) -> Written:
        """Make a Task and its log.

        Raises:
            TaskError: `validation_error` (an id is taken), `path_conflict`, `dependency_cycle`,
                `step_not_found`.
        """
        by.require_orchestrator()
        if await self._is_active(new.task_id, by):
            message = (
                f"Task {new.task_id} is active already; take another task_id, or go on with it"
            )
            details = {"task_id": new.task_id}
            raise TaskError(ErrorCode.VALIDATION_ERROR, message, details=details)
        now, name = self._clock.now(), log_name(new.wal_name)
        header = Task(
            task_id=new.task_id,
            wal_path=self._ledger.path(name),
            title=new.title,
            summary=new.summary,
            created_by_agent_id=by.agent_id,
            created_by_run_id=by.run_id,
            created_at=now,
            updated_at=now,
        )
        return await self._ledger.create(name, decide_creation(header, new.steps), by)

    @in_turn
    async def update(self, task_id: str, operations: Sequence[Operation], by: Actor) -> Written:
        """Change the graph: all operations or none.

        Raises:
            TaskError: the rule that an operation breaks.
        """
        by.require_orchestrator()
        return await self._do(task_id, Update(operations), by)

    @in_turn
    async def complete(self, task_id: str, result_summary: str | None, by: Actor) -> Written:
        """End a Task well; optional steps that nobody has begun are cancelled.

        Raises:
            TaskError: `task_not_completable`, naming the steps in the way.
        """
        by.require_orchestrator()
        return await self._do(task_id, Complete(result_summary), by)

    async def give_up(
        self, task_id: str, end: AbortTask, by: Actor, *, stopper: RunStopper
    ) -> Written:
        """Fail or cancel a Task, after asking the runs that work on it to stop.

        These are the runs that hold a claim and the workers that were sent to it. They have
        `child_cancel_timeout_ms`; then the Task ends without them.
        """
        by.require_orchestrator()
        task = await self._find_open(task_id, by)
        task.require_steady()
        task.ending = ending = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as group:
                for run_id in await self._runs_on(task):
                    group.create_task(self._stop(run_id, task_id, by, stopper=stopper))
            return await self._end(task_id, end, by)
        finally:
            try:
                if task.is_ending:
                    await self._go_on(task, by)
            finally:
                ending.set()

    # what a worker does

    @in_turn
    async def claim(self, task_id: str, step_id: str, by: Actor) -> Written:
        """Take a ready step for this run.

        Raises:
            TaskError: `step_not_ready`, `step_already_claimed_by_run`, `task_not_dispatchable`;
                `step_already_claimed`, somebody was faster, noted as `task_step_claim_skipped`.
        """
        by.require_scope(task_id, step_id)
        task = await self._ledger.find_open(task_id, by)
        await self._settle(task, by)
        task.require_steady()
        by.require_pool(task.dag.step(step_id))
        claim = ClaimStep(step_id, by.agent_id, by.run_id, self._leases.end_of_new())
        try:
            changes = decide(task.dag, claim, self._clock.now())
        except TaskError as error:
            if error.code is ErrorCode.STEP_ALREADY_CLAIMED:
                payload = {"task_id": task_id, **error.details}
                skipped = EventType.TASK_STEP_CLAIM_SKIPPED
                by.journal.note(skipped, payload, level=EventLevel.DEBUG)
            raise
        written = await self._ledger.commit(task, changes, by)
        self._leases.begin(task, step_id)
        self._claims[by.run_id] = task_id, step_id
        return written

    @in_turn
    async def report(self, task_id: str, said: Report, by: Actor) -> Written:
        """Say how a step goes. A worker's report renews its lease; an orchestrator's does not.

        Raises:
            PermissionDeniedError: the worker's run does not hold the step (`details.reason`).
            TaskError: `no_step_claimed`, `step_not_cancellable`.
        """
        by.require_scope(task_id, said.step_id)
        task = await self._ledger.find_open(task_id, by)
        command = ReportStep(said, by.holder, self._leases.end_of_new())
        changes = decide(task.dag, command, self._clock.now())
        written = await self._ledger.commit(task, changes, by)
        if by.holder is not None:
            step = task.dag.step(said.step_id)
            if step.status.is_claim:
                self._leases.begin(task, said.step_id)
            else:
                self._left[by.run_id] = step
        return written

    @in_turn
    async def run_ended(
        self, run_id: str, ending: RunEnding, by: Actor, *, error: str | None = None
    ) -> Written | None:
        """Fail the step that a worker's run leaves open; None if there is none.

        Only the process of that run calls this. While the whole Task is being given up, that
        settles the step. `error` says what made the run fail.
        """
        claimed, close = self.claimed_by(run_id), CloseRun(run_id, ending, error)
        if claimed is None or not claimed.is_held:
            return None
        task = self._ledger.open[claimed.task_id]
        if task.is_ending:
            task.left_open.append(close)
            return None
        return await self._close(task, close, by)

    # what everybody may ask

    @in_turn
    async def get(self, task_id: str, by: Actor) -> Dag:
        """The Task as it is now, whatever its state."""
        by.require_scope(task_id)
        task = await self._ledger.find(task_id, by)
        if isinstance(task, EndedLog):
            return await self._ledger.read(task)
        await self._settle(task, by)
        return task.dag

    @in_turn
    async def tasks(self, by: Actor) -> list[AnyLog]:
        """Every Task of the session: active ones, then unreadable ones, then those that are over.

        Each group has the last changed first. Finished ones are not read for it.
        """
        for task in list(self._ledger.open.values()):
            await self._settle(task, by)
        active = sorted(self.active(), key=lambda task: task.dag.task.updated_at, reverse=True)
        ended = sorted(self._ledger.ended, key=lambda log: log.updated_at, reverse=True)
        return [*active, *self._ledger.unreadable.values(), *ended]

    async def read(self, log: EndedLog) -> Dag:
        """Replay a Task that is over."""
        return await self._ledger.read(log)

    async def require_dispatchable(
        self, task_id: str, step_ids: Sequence[str] | None, by: Actor
    ) -> None:
        """Return if a worker may be sent to this Task, for these steps or (None) for any.

        Raises:
            TaskError: `task_not_dispatchable`; `validation_error`, a step is unknown or the list
                is empty.
        """
        dag = await self.get(task_id, by)
        if dag.task.status.is_terminal or dag.task.status is TaskStatus.BLOCKED:
            raise not_dispatchable(dag.task)
        self._ledger.open[task_id].require_steady()
        unknown = [step_id for step_id in step_ids or () if dag.find(step_id) is None]
        if step_ids is not None and (unknown or not step_ids):
            what = f"unknown steps: {', '.join(unknown[:10])}" if unknown else "no step"
            message = f"allowed_step_ids names {what}; leave it out to allow every step"
            details = {"task_id": task_id, "unknown_step_ids": unknown[:50]}
            raise TaskError(ErrorCode.VALIDATION_ERROR, message, details=details)

    def active(self) -> list[OpenTask]:
        """The Tasks that go on, in the order of their creation."""
        return sorted(self._ledger.open.values(), key=lambda task: task.dag.task.created_at)

    def claimed_by(self, run_id: str) -> ClaimedStep | None:
        """The step of an active Task that a run has claimed, whatever became of it."""
        for task in self._ledger.open.values():
            claim = task.dag.claims.get(run_id)
            step = task.dag.find(claim.step_id) if claim is not None else None
            if step is not None:
                return ClaimedStep(task.dag.task.task_id, step, step.is_held_by(run_id))
        return None

    def admit(self, run_id: str, task_id: str) -> None:
        """Count a worker's run among those of a Task, from its first moment on.

        Raises:
            TaskError: `task_not_dispatchable`, the Task has been blocked or ended meanwhile.
        """
        task = self._ledger.open.get(task_id)
        if task is None:
            message = f"Task {task_id} is not active any more; no new work starts in it"
            details = {"task_id": task_id}
            raise TaskError(ErrorCode.TASK_NOT_DISPATCHABLE, message, details=details)
        task.require_steady()
        if task.dag.task.status is TaskStatus.BLOCKED:
            raise not_dispatchable(task.dag.task)
        self._workers[run_id] = task_id

    def dismiss(self, run_id: str) -> None:
        """The run has ended, or never began."""
        self._workers.pop(run_id, None)

    def has_lost_claim(self, run_id: str) -> bool:
        """Whether a worker's run must not change anything any more.

        Its Task has ended or is being ended, or it has claimed a step that it does not hold now,
        unless it ended that step itself and nothing has happened to the step since.
        """
        claimed = self._claims.get(run_id)
        task_id = claimed[0] if claimed else self._workers.get(run_id)
        if task_id is None:
            return False
        task = self._ledger.open.get(task_id)
        if task is None or task.is_ending:
            return True
        if claimed is None:
            return False
        dag, left = task.dag, self._left.get(run_id)
        step = dag.find(claimed[1])
        if step is not None and step.is_held_by(run_id):
            return False
        is_as_left = left is not None and step is not None and step.status is left.status
        return not is_as_left or dag.has_later_claim(run_id)

    async def outcome(self, run_id: str, by: Actor) -> ClaimOutcome | None:
        """What became of the step that a run claimed here; None if it claimed none.

        If the Task is being failed or cancelled, that is waited for.
        """
        if (claimed := self._claims.get(run_id)) is None:
            return None
        task_id, step_id = claimed
        task, left = self._ledger.open.get(task_id), self._left.get(run_id)
        if task is not None and task.ending is not None:
            await task.ending.wait()
        try:
            dag = await self.get(task_id, by)
        except TaskError as error:
            logger.warning("step %s of %s cannot be read: %s", step_id, run_id, error.message)
            return ClaimOutcome(step_id, left is None, left)
        step = dag.find(step_id)
        if step is None or run_id not in dag.claims or dag.has_later_claim(run_id):
            return ClaimOutcome(step_id, left is None, left)
        return ClaimOutcome(step_id, left is None and not step.is_held_by(run_id), step)

    # inside a turn

    async def _do(self, task_id: str, command: Command, by: Actor) -> Written:
        task = await self._ledger.find_open(task_id, by)
        changes = decide(task.dag, command, self._clock.now())
        return await self._ledger.commit(task, changes, by)

    async def _close(self, task: OpenTask, close: CloseRun, by: Actor) -> Written:
        step_id = task.dag.claims[close.run_id].step_id
        changes = decide(task.dag, close, self._clock.now())
        written = await self._ledger.commit(task, changes, by)
        if changes:
            self._left[close.run_id] = task.dag.step(step_id)
        return written

    async def _is_active(self, task_id: str, by: Actor) -> bool:
        try:
            return isinstance(await self._ledger.find(task_id, by), OpenTask)
        except TaskError as error:
            if error.code is ErrorCode.TASK_NOT_FOUND:
                return False
            raise

    async def _settle(self, task: OpenTask, by: Actor) -> None:
        """Take back claims whose lease has run out, and once what a crash left half written.

        A full disk keeps nobody from looking: then all stays, and the journal has heard why.
        """
        expired = self._leases.expired(task)
        if expired or not task.is_settled:
            command = ExpireLeases(expired, may_promote=not task.is_settled)
            changes = decide(task.dag, command, self._clock.now())
            with suppress(TaskError):
                await self._ledger.commit(task, changes, by)
                task.is_settled = True

    # the parts of `give_up`

    @in_turn
    async def _find_open(self, task_id: str, by: Actor) -> OpenTask:
        return await self._ledger.find_open(task_id, by)

    @in_turn
    async def _runs_on(self, task: OpenTask) -> list[str]:
        """The runs that hold a claim or were sent for one, once what was under way is written."""
        task_id = task.dag.task.task_id
        holders = (step.claimed_by_run_id for step in task.dag.steps(*CLAIMS))
        sent = (run_id for run_id, sent_to in self._workers.items() if sent_to == task_id)
        return [run_id for run_id in dict.fromkeys((*holders, *sent)) if run_id is not None]

    @in_turn
    async def _end(self, task_id: str, end: AbortTask, by: Actor) -> Written:
        task = await self._ledger.find_open(task_id, by)
        written = await self._ledger.commit(task, decide(task.dag, end, self._clock.now()), by)
        task.ending = None
        return written

    @in_turn
    async def _go_on(self, task: OpenTask, by: Actor) -> None:
        """The Task did not end after all; runs that ended meanwhile left their steps to that."""
        task.ending = None
        for close in task.left_open:
            with suppress(AgentCoreError):
                await self._close(task, close, by)
        task.left_open.clear()

    async def _stop(self, run_id: str, task_id: str, by: Actor, *, stopper: RunStopper) -> None:
        try:
            async with asyncio.timeout(self._stop_timeout):
                await stopper.stop(run_id)
        except TimeoutError:
            payload = {"child_run_id": run_id, "task_id": task_id}
            late = EventType.CHILD_AGENT_CANCEL_TIMEOUT
            by.journal.note(late, payload, level=EventLevel.WARNING)
        except AgentCoreError:
            logger.warning("run %s could not be asked to stop", run_id, exc_info=True)
