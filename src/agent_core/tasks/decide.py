"""The rules: what a command changes in a Task, or why it may not. Pure; nothing is changed here."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import islice

from agent_core.errors import ErrorCode, TaskError
from agent_core.tasks.changes import (
    Change,
    StepCancelled,
    StepLeaseExpired,
    TaskCancelled,
    TaskCompleted,
    TaskCreated,
    TaskFailed,
    TaskReopened,
    TaskUpdated,
)
from agent_core.tasks.commands import (
    AbortTask,
    ClaimStep,
    CloseRun,
    Command,
    Complete,
    ExpireLeases,
    ReportStep,
    Update,
)
from agent_core.tasks.dag import Dag
from agent_core.tasks.edit import Edit
from agent_core.tasks.model import (
    CLAIMS,
    UNFINISHED,
    StepStatus,
    Task,
    TaskDocument,
    TaskStatus,
)
from agent_core.tasks.operations import AddStep, NewStep, Operation
from agent_core.tasks.step_rules import OPEN, SHOWN, Pair, claim_step, failed, promote, report_step


def decide(dag: Dag, command: Command, at: datetime) -> list[Change]:
    """Return the changes a command means, in order; none if there is nothing to do.

    Raises:
        TaskError: the state of the Task does not allow it.
        PermissionDeniedError: the run does not hold the claim.
    """
    if dag.task.status.is_terminal:
        raise task_over(dag.task.task_id, dag.task.status)
    return [Change(at, payload, step_id) for step_id, payload in _pairs(dag, command, at)]


def _pairs(dag: Dag, command: Command, at: datetime) -> Iterator[Pair]:
    match command:
        case Update(operations=operations):
            yield from _update(dag, operations, at)
        case ClaimStep():
            yield from claim_step(dag, command)
        case ReportStep():
            yield from report_step(dag, command)
        case Complete(result_summary=result):
            yield from _complete(dag, result)
        case AbortTask():
            yield from _give_up(dag, command)
        case CloseRun():
            yield from _close_run(dag, command)
        case ExpireLeases():
            yield from _expire(dag, command, at)


def task_over(task_id: str, status: TaskStatus) -> TaskError:
    """The error for changing a Task that has ended."""
    message = f"Task {task_id} is {status}; nothing in it changes any more"
    details = {"task_id": task_id, "status": status.value}
    return TaskError(ErrorCode.TASK_TERMINAL, message, details=details)


def decide_creation(task: Task, steps: Iterable[NewStep]) -> list[Change]:
    """Return the changes that make a new Task: itself, its first ready steps, and its start.

    Raises:
        TaskError: the steps do not form a graph without cycles.
    """
    edit = Edit(Dag(task), task.created_at)
    edit.run(AddStep(op="add_step", step=step) for step in steps)
    made = tuple(edit.changed.values())
    roots = tuple(step.step_id for step in made if not step.depends_on_step_ids)
    document = TaskDocument(**dict(task), root_step_ids=roots, steps=made)
    pairs = [(None, TaskCreated(task=document)), *promote(edit.freed(), task.status)]
    return [Change(task.created_at, payload, step_id) for step_id, payload in pairs]


def _update(dag: Dag, operations: Sequence[Operation], at: datetime) -> Iterator[Pair]:
    edit = Edit(dag, at).run(operations)
    title, status = edit.task.title, edit.task.status
    yield (
        None,
        TaskUpdated(
            operations=tuple(operations),
            updated_after_dispatch_step_ids=tuple(edit.marked),
            task_summary={"title": title, "status": status.value, "step_counts": edit.counts()},
        ),
    )
    yield from edit.outcomes()
    if dag.task.status is TaskStatus.BLOCKED and status is TaskStatus.PENDING:
        yield None, TaskReopened(previous_status=TaskStatus.BLOCKED)
    active = edit.counts().keys() & {StepStatus.READY, *CLAIMS}
    yield from promote(edit.freed(), status, is_active=bool(active))


def _complete(dag: Dag, result_summary: str | None) -> Iterator[Pair]:
    if not dag.is_completable:
        steps = dag.steps()
        unfinished = (s for s in steps if s.required and s.status is not StepStatus.COMPLETED)
        missing = [step.step_id for step in islice(unfinished, SHOWN)]
        held = [step.step_id for step in islice(dag.steps(*CLAIMS), SHOWN)]
        why = [f"required and not completed: {', '.join(missing[:10])}"] if missing else []
        why += [f"still being worked on: {', '.join(held[:10])}"] if held else []
        message = f"Task {dag.task.task_id} is not complete; {'; '.join(why)}"
        details = {"required_step_ids": missing, "claimed_step_ids": held}
        raise TaskError(ErrorCode.TASK_NOT_COMPLETABLE, message, details=details)
    left = list(dag.steps(*OPEN))
    for step in left:
        payload = StepCancelled(
            previous_status=step.status,
            reason="task_completed",
            result_summary=step.result_summary,
        )
        yield step.step_id, payload
    step_ids = tuple(step.step_id for step in left)
    yield (
        None,
        TaskCompleted(result_summary=result_summary, cancelled_optional_step_ids=step_ids),
    )


def _give_up(dag: Dag, end: AbortTask) -> Iterator[Pair]:
    unfinished = list(dag.steps(*UNFINISHED))
    step_ids = tuple(step.step_id for step in unfinished)
    if end.status is TaskStatus.FAILED:
        for step in unfinished:
            yield step.step_id, failed(step, "task_failed")
        yield None, TaskFailed(reason=end.reason, failed_step_ids=step_ids)
    else:
        for step in unfinished:
            payload = StepCancelled(
                previous_status=step.status,
                reason="task_cancelled",
                result_summary=step.result_summary,
            )
            yield step.step_id, payload
        yield None, TaskCancelled(reason=end.reason, cancelled_step_ids=step_ids)


def _close_run(dag: Dag, close: CloseRun) -> Iterator[Pair]:
    claim = dag.claims.get(close.run_id)
    step = dag.find(claim.step_id) if claim is not None else None
    if step is not None and step.is_held_by(close.run_id):
        payload = failed(step, close.ending.value)
        if close.error:
            words = (step.result_summary, close.error)
            result = "\n\n".join(each for each in words if each)
            payload = payload.model_copy(update={"result_summary": result})
        yield step.step_id, payload


def _expire(dag: Dag, command: ExpireLeases, at: datetime) -> Iterator[Pair]:
    expired = [step for step in map(dag.step, command.step_ids) if step.status.is_claim]
    for step in expired:
        yield (
            step.step_id,
            StepLeaseExpired(
                previous_status=step.status,
                claimed_by_agent_id=step.claimed_by_agent_id,
                claimed_by_run_id=step.claimed_by_run_id,
                expired_at=step.lease_expires_at or at,
            ),
        )
    pending = dag.steps(StepStatus.PENDING) if command.may_promote else ()
    freed = (step for step in (*expired, *pending) if dag.waits_for(step.step_id) == 0)
    is_active = command.may_promote and dag.is_active
    yield from promote(freed, dag.task.status, is_active=is_active)
