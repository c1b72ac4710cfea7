"""The rules: the changes that a command makes in a Task, or the reason why it may not.

Pure functions; nothing is changed here.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import islice
from typing import Any

from agent_core.errors import ErrorCode, PermissionDeniedError, TaskError
from agent_core.tasks.graph import Dag, GraphEdit
from agent_core.tasks.model import (
    CLAIMS,
    OPEN,
    UNFINISHED,
    AbortTask,
    AddStep,
    ClaimStep,
    CloseRun,
    Command,
    Complete,
    ExpireLeases,
    NewStep,
    Payload,
    ReportStep,
    StepBlocked,
    StepCancelled,
    StepClaimed,
    StepCompleted,
    StepEnd,
    StepFailed,
    StepLeaseExpired,
    StepReady,
    StepStarted,
    StepUpdated,
    Task,
    TaskCancelled,
    TaskChange,
    TaskCompleted,
    TaskCreated,
    TaskDocument,
    TaskFailed,
    TaskReopened,
    TaskRunning,
    TaskStatus,
    TaskStep,
    TaskStepStatus,
    TaskUpdated,
    Update,
    describe_claim,
    not_cancellable,
    not_dispatchable,
    shown_time,
    step_error,
    task_error,
    task_over,
)
from agent_core.text import short_line

Pair = tuple[str | None, Payload]
"""The step that a change concerns, or None for the Task, and its payload."""

_ENDS: Mapping[TaskStepStatus | None, type[StepEnd]] = {
    TaskStepStatus.BLOCKED: StepBlocked,
    TaskStepStatus.COMPLETED: StepCompleted,
    TaskStepStatus.FAILED: StepFailed,
    TaskStepStatus.CANCELLED: StepCancelled,
}
_LONGEST = 120
"""Most characters of a reason in a message."""
_DESCRIBED = 10
_WAYS_OUT = (
    "Ready steps need a worker; with agent.task_update a failed or blocked step is reopened"
    " (reopen_step), and a pending one no longer waits for a failed or cancelled step after"
    " remove_dependency"
)
GIVE_UP = (
    'a step that is not needed any more is given up by update_step with "fields": {"required":'
    " false} (cancelling a required step alone cannot complete the Task)"
)
"""Says how the orchestrator gives up a required step."""

_SHOWN = 50
"""Largest number of ids in an error's details."""


def decide(dag: Dag, command: Command, at: datetime) -> list[TaskChange]:
    """Return the changes that a command makes, in order; none if there is nothing to do.

    Raises:
        TaskError: the state of the Task does not allow it.
        PermissionDeniedError: the run does not hold the claim.
    """
    if dag.task.status.is_terminal:
        raise task_over(dag.task.task_id, dag.task.status)
    match command:
        case Update():
            pairs = _update(dag, command, at)
        case ClaimStep():
            pairs = _claim(dag, command)
        case ReportStep():
            pairs = _report(dag, command)
        case Complete(result_summary=result):
            pairs = _complete(dag, result)
        case AbortTask():
            pairs = _abort(dag, command)
        case CloseRun():
            pairs = _close_run(dag, command)
        case _:
            pairs = _expire(dag, command, at)
    return [TaskChange(at, payload, step_id) for step_id, payload in pairs]


def decide_creation(task: Task, steps: Iterable[NewStep]) -> list[TaskChange]:
    """Return the changes that create a Task: itself, its first ready steps, and its start.

    Raises:
        TaskError: the steps do not form a graph without cycles.
    """
    edit = GraphEdit(Dag(task), task.created_at)
    edit.run(AddStep(op="add_step", step=step) for step in steps)
    created = tuple(edit.changed.values())
    roots = tuple(step.step_id for step in created if not step.depends_on_step_ids)
    document = TaskDocument(**dict(task), root_step_ids=roots, steps=created)
    pairs = [(None, TaskCreated(task=document)), *_promote(edit.freed(), task.status)]
    return [TaskChange(task.created_at, payload, step_id) for step_id, payload in pairs]


def _update(dag: Dag, update: Update, at: datetime) -> Iterator[Pair]:
    edit = GraphEdit(dag, at).run(update.operations)
    title, status, counts = edit.task.title, edit.task.status, edit.counts()
    payload = TaskUpdated(
        operations=tuple(update.operations),
        updated_after_dispatch_step_ids=tuple(edit.marked),
        task_summary={"title": title, "status": status.value, "step_counts": counts},
    )
    yield None, payload
    yield from edit.outcomes()
    if dag.task.status is TaskStatus.BLOCKED and status is TaskStatus.PENDING:
        yield None, TaskReopened(previous_status=TaskStatus.BLOCKED)
    is_active = bool(counts.keys() & {TaskStepStatus.READY, *CLAIMS})
    yield from _promote(edit.freed(), status, is_active=is_active)


def _promote(
    freed: Iterable[TaskStep], status: TaskStatus, *, is_active: bool = False
) -> Iterator[Pair]:
    """Make steps ready, and start the Task with its first active step."""
    for step in freed:
        is_active = True
        depends_on = step.depends_on_step_ids
        payload = StepReady(previous_status=TaskStepStatus.PENDING, depends_on_step_ids=depends_on)
        yield step.step_id, payload
    if is_active and status is TaskStatus.PENDING:
        yield None, TaskRunning(previous_status=status, reason="step_ready")


def _claim(dag: Dag, wanted: ClaimStep) -> Iterator[Pair]:
    step = dag.step(wanted.step_id)
    if (earlier := dag.claims.get(wanted.run_id)) is not None:
        message = f"this run has already claimed step {earlier.step_id}; a run claims one step"
        code = ErrorCode.STEP_ALREADY_CLAIMED_BY_RUN
        raise task_error(code, message, step_id=earlier.step_id)
    if dag.task.status is TaskStatus.BLOCKED:
        raise not_dispatchable(dag.task)
    if step.status.is_claim:
        until = shown_time(step.lease_expires_at)
        held = f", not free: {step.claimed_by_run_id} of {step.claimed_by_agent_id} holds it"
        rule = f"{held} until {until}, and longer if it renews its lease"
        if step.claimed_by_agent_id == wanted.agent_id:  # a worker has one run at a time
            held = (
                f", not free: an earlier run of this worker, {step.claimed_by_run_id}, left it so"
            )
            rule = f"{held}. Its lease ends at {until}; then the step is ready again"
        raise step_error(ErrorCode.STEP_ALREADY_CLAIMED, step, rule)
    if step.status is not TaskStepStatus.READY:
        raise _not_ready(dag, step)
    payload = StepClaimed(
        previous_status=step.status,
        claimed_by_agent_id=wanted.agent_id,
        claimed_by_run_id=wanted.run_id,
        lease_expires_at=wanted.lease,
        fencing_token=dag.next_token,
    )
    yield step.step_id, payload
    yield from _promote((), dag.task.status, is_active=True)


def _not_ready(dag: Dag, step: TaskStep) -> TaskError:
    """Return the error for a step that cannot be claimed, with the reason for its state."""
    steps = map(dag.step, step.depends_on_step_ids if step.status in OPEN else ())
    direct = [each for each in steps if each.status is not TaskStepStatus.COMPLETED]
    obstacles = dag.obstacles(step.step_id)
    found = list({each.step_id: each for each in (*direct, *obstacles)}.values())
    facts = [{"step_id": each.step_id, "status": each.status.value} for each in found]
    words: list[str] = []
    for each, fact in zip(found, facts, strict=True):
        reason = dag.explain(each)
        fact |= {"reason": reason} if reason else {}
        shown = f": {short_line(reason, _LONGEST)}" if reason else ""
        words.append(f"{each.step_id} ({each.status}{shown})")
    rule = ", not ready"
    if reason := dag.explain(step):
        rule += f": {short_line(reason, _LONGEST)}"
    if found:
        rule += f"; it waits for {', '.join(words[:10])}"
    if obstacles:
        rule += (
            ". A failed or cancelled step does not let others begin: only the orchestrator can "
            "reopen it if it failed, or remove the dependency"
        )
    waits_for = [each.step_id for each in direct]
    details = {"waits_for": waits_for[:_SHOWN], "dependencies": facts[:_SHOWN]}
    return step_error(ErrorCode.STEP_NOT_READY, step, rule, **details)


def _report(dag: Dag, command: ReportStep) -> Iterator[Pair]:
    report, step = command.report, dag.step(command.report.step_id)
    _require_right(dag, step, command)
    update = report.update()
    after = step.model_copy(update=update)
    if (kind := _ENDS.get(report.status)) is not None:
        yield _end(kind, after, report.reason)
        if kind is StepCompleted:
            waiting = (
                s
                for s in map(dag.step, dag.dependents(step.step_id))
                if s.status is TaskStepStatus.PENDING
            )
            freed = (s for s in waiting if dag.waits_for(s.step_id) == 1)
            yield from _promote(freed, dag.task.status)
        return
    lease = command.lease if command.holder is not None else step.lease_expires_at
    starts = report.status is TaskStepStatus.RUNNING and step.status is TaskStepStatus.CLAIMED
    if starts:
        yield step.step_id, StepStarted(previous_status=step.status, lease_expires_at=lease)
    if update or not starts:
        payload = StepUpdated(
            previous_status=step.status,
            status=TaskStepStatus.RUNNING if starts else step.status,
            result_summary=after.result_summary,
            artifact_ids=after.artifact_ids,
            lease_expires_at=lease,
        )
        yield step.step_id, payload


def _require_right(dag: Dag, step: TaskStep, command: ReportStep) -> None:
    run_id = command.holder
    if run_id is None:
        # The holder of a step may give it up; an orchestrator may only cancel a waiting step.
        if command.report.status is TaskStepStatus.CANCELLED and step.status not in OPEN:
            raise not_cancellable(step)
        if command.report.status is not TaskStepStatus.CANCELLED and not step.status.is_claim:
            raise step_error(ErrorCode.NO_STEP_CLAIMED, step, ": no run works on it")
        return
    if step.is_held_by(run_id):
        return
    claim = dag.claims.get(run_id)
    why, reason = "this run has not claimed it", "not_claimed"
    if claim is not None and claim.step_id == step.step_id:
        why, reason = explain_loss(dag, step, run_id), "claim_lost"
    message = f"step {step.step_id} cannot be updated: {why}"
    raise claim_error(step, message, reason)


def explain_loss(dag: Dag, step: TaskStep, run_id: str) -> str:
    """Return the reason why a run no longer holds the step that it claimed."""
    why = "this run's claim on it is gone"
    if (ended := dag.expired.get(run_id)) is not None:
        why = f"this run's lease ended at {shown_time(ended)}"
    elif step.is_held_by(run_id):  # the end could not be written
        return f"this run's lease ended at {shown_time(step.lease_expires_at)}"
    if step.status.is_claim:
        until = shown_time(step.lease_expires_at)
        return f"{why}, and {step.claimed_by_run_id} holds the step until {until}"
    return f"{why}, and the step is {step.status}"


def claim_error(step: TaskStep, message: str, reason: str) -> PermissionDeniedError:
    """Return the error for work on a step whose claim the run does not hold."""
    facts = {"reason": reason, "step_id": step.step_id, "status": step.status.value}
    details = facts | describe_claim(step)
    return PermissionDeniedError(ErrorCode.PERMISSION_DENIED, message, details=details)


def _end(kind: type[StepEnd], step: TaskStep, reason: str | None) -> Pair:
    """Return the payload that ends the work on a step, with the step's result."""
    known: dict[str, Any] = {
        "previous_status": step.status,
        "reason": reason,
        "result_summary": step.result_summary,
        "artifact_ids": step.artifact_ids,
    }
    return step.step_id, kind(**{name: known[name] for name in kind.model_fields})


def _describe_missing(dag: Dag, step: TaskStep) -> str:
    """Return a step that is not completed, with its state and the reason for it."""
    about = step.status.value
    if step.status is TaskStepStatus.PENDING:
        above = [each for each in step.depends_on_step_ids if not _is_done(dag, each)]
        about += f", waits for {', '.join(above[:_DESCRIBED])}"
    elif reason := dag.explain(step):
        about += f": {short_line(reason, _LONGEST)}"
    return f"{step.step_id} ({about})"


def _is_done(dag: Dag, step_id: str) -> bool:
    step = dag.find(step_id)
    return step is not None and step.status is TaskStepStatus.COMPLETED


def _complete(dag: Dag, result_summary: str | None) -> Iterator[Pair]:
    if not dag.is_completable:
        steps = dag.steps()
        unfinished = (s for s in steps if s.required and s.status is not TaskStepStatus.COMPLETED)
        missing = list(islice(unfinished, _SHOWN))
        held = [step.step_id for step in islice(dag.steps(*CLAIMS), _SHOWN)]
        states = ", ".join(_describe_missing(dag, step) for step in missing[:_DESCRIBED])
        why = [f"required and not completed: {states}"] if missing else []
        why += [f"still being worked on: {', '.join(held[:_DESCRIBED])}"] if held else []
        message = f"Task {dag.task.task_id} is not complete; {'; '.join(why)}"
        if missing:
            message = f"{message}. {_WAYS_OUT}; {GIVE_UP}"
        facts = {"required_step_ids": [s.step_id for s in missing], "claimed_step_ids": held}
        raise task_error(ErrorCode.TASK_NOT_COMPLETABLE, message, **facts)
    left = list(dag.steps(*OPEN))
    yield from (_end(StepCancelled, step, "task_completed") for step in left)
    step_ids = tuple(step.step_id for step in left)
    yield None, TaskCompleted(result_summary=result_summary, cancelled_optional_step_ids=step_ids)


def _abort(dag: Dag, end: AbortTask) -> Iterator[Pair]:
    unfinished = list(dag.steps(*UNFINISHED))
    step_ids = tuple(step.step_id for step in unfinished)
    if end.status is TaskStatus.FAILED:
        yield from (_end(StepFailed, step, "task_failed") for step in unfinished)
        yield None, TaskFailed(reason=end.reason, failed_step_ids=step_ids)
    else:
        yield from (_end(StepCancelled, step, "task_cancelled") for step in unfinished)
        yield None, TaskCancelled(reason=end.reason, cancelled_step_ids=step_ids)


def _close_run(dag: Dag, close: CloseRun) -> Iterator[Pair]:
    if (step := dag.held_by(close.run_id)) is not None:
        if close.error:
            parts = (step.result_summary, close.error)
            result = "\n\n".join(each for each in parts if each)
            step = step.model_copy(update={"result_summary": result})
        yield _end(StepFailed, step, close.ending.value)


def _expire(dag: Dag, command: ExpireLeases, at: datetime) -> Iterator[Pair]:
    expired = [step for step in map(dag.step, command.step_ids) if step.status.is_claim]
    for step in expired:
        payload = StepLeaseExpired(
            previous_status=step.status,
            claimed_by_agent_id=step.claimed_by_agent_id,
            claimed_by_run_id=step.claimed_by_run_id,
            expired_at=step.lease_expires_at or at,
        )
        yield step.step_id, payload
    pending = dag.steps(TaskStepStatus.PENDING) if command.may_promote else ()
    freed = (step for step in (*expired, *pending) if dag.waits_for(step.step_id) == 0)
    is_active = command.may_promote and dag.is_active
    yield from _promote(freed, dag.task.status, is_active=is_active)
