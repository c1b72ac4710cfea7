"""The rules of single steps: who may claim one, what its holder may say, when one is ready."""

from collections.abc import Iterable, Iterator
from datetime import datetime

from agent_core.errors import ErrorCode, PermissionDeniedError, TaskError
from agent_core.tasks.changes import (
    Payload,
    StepBlocked,
    StepCancelled,
    StepClaimed,
    StepCompleted,
    StepFailed,
    StepReady,
    StepStarted,
    StepUpdated,
    TaskRunning,
)
from agent_core.tasks.commands import ClaimStep, Report, ReportStep
from agent_core.tasks.dag import Dag
from agent_core.tasks.edit import not_cancellable
from agent_core.tasks.model import Step, StepStatus, Task, TaskStatus

Pair = tuple[str | None, Payload]
"""The step a change concerns, or None for the Task, and what it says."""

OPEN = (StepStatus.PENDING, StepStatus.READY)
SHOWN = 50
"""How many ids an error's details hold at most."""


def promote(
    freed: Iterable[Step], status: TaskStatus, *, is_active: bool = False
) -> Iterator[Pair]:
    """Make steps ready, and start the Task with its first active step."""
    for step in freed:
        is_active = True
        depends_on = step.depends_on_step_ids
        payload = StepReady(previous_status=StepStatus.PENDING, depends_on_step_ids=depends_on)
        yield step.step_id, payload
    if is_active and status is TaskStatus.PENDING:
        yield None, TaskRunning(previous_status=status, reason="step_ready")


def claim_step(dag: Dag, wanted: ClaimStep) -> Iterator[Pair]:
    step = dag.step(wanted.step_id)
    if (earlier := dag.claims.get(wanted.run_id)) is not None:
        message = f"this run has already claimed step {earlier.step_id}; a run claims one step"
        details = {"step_id": earlier.step_id}
        raise TaskError(ErrorCode.STEP_ALREADY_CLAIMED_BY_RUN, message, details=details)
    if dag.task.status is TaskStatus.BLOCKED:
        raise not_dispatchable(dag.task)
    if step.status.is_claim:
        message = f"step {step.step_id} has just been claimed by {step.claimed_by_agent_id}"
        details = {"step_id": step.step_id, "claimed_by_agent_id": step.claimed_by_agent_id}
        raise TaskError(ErrorCode.STEP_ALREADY_CLAIMED, message, details=details)
    if step.status is not StepStatus.READY:
        raise _not_ready(dag, step)
    yield (
        step.step_id,
        StepClaimed(
            previous_status=step.status,
            claimed_by_agent_id=wanted.agent_id,
            claimed_by_run_id=wanted.run_id,
            lease_expires_at=wanted.lease,
            fencing_token=dag.next_token,
        ),
    )
    yield from promote((), dag.task.status, is_active=True)


def not_dispatchable(task: Task) -> TaskError:
    """The error for starting work in a Task that is blocked or over."""
    message = f"Task {task.task_id} is {task.status}; no new work starts in it"
    if task.status is TaskStatus.BLOCKED:
        message += " until agent.task_update sets its status to pending"
    details = {"task_id": task.task_id, "status": task.status.value}
    return TaskError(ErrorCode.TASK_NOT_DISPATCHABLE, message, details=details)


def _not_ready(dag: Dag, step: Step) -> TaskError:
    steps = (dag.find(step_id) for step_id in step.depends_on_step_ids)
    waits_for = [s.step_id for s in steps if s and s.status is not StepStatus.COMPLETED][:SHOWN]
    message = f"step {step.step_id} is {step.status}, not ready"
    if step.status is StepStatus.PENDING and waits_for:
        message += f"; it waits for {', '.join(waits_for[:10])}"
    details = {"step_id": step.step_id, "status": step.status.value, "waits_for": waits_for}
    return TaskError(ErrorCode.STEP_NOT_READY, message, details=details)


def report_step(dag: Dag, command: ReportStep) -> Iterator[Pair]:
    said = command.report
    step = dag.step(said.step_id)
    if command.holder is not None:
        _require_holder(dag, step, command.holder)
    elif said.status is StepStatus.CANCELLED:
        # Whoever works on a step may give it up; from outside only what nobody works on.
        if step.status not in OPEN:
            raise not_cancellable(step)
    elif not step.status.is_claim:
        message = f"step {step.step_id} is {step.status}: nobody works on it"
        details = {"step_id": step.step_id, "status": step.status.value}
        raise TaskError(ErrorCode.NO_STEP_CLAIMED, message, details=details)
    lease = command.lease if command.holder is not None else step.lease_expires_at
    for payload in _payloads(step, said, lease):
        yield step.step_id, payload
    if said.status is StepStatus.COMPLETED:
        waiting = (dag.step(step_id) for step_id in dag.dependents(step.step_id))
        freed = (s for s in waiting if _is_last_wait(dag, s))
        yield from promote(freed, dag.task.status)


def _is_last_wait(dag: Dag, step: Step) -> bool:
    return step.status is StepStatus.PENDING and dag.waits_for(step.step_id) == 1


def _require_holder(dag: Dag, step: Step, run_id: str) -> None:
    if step.is_held_by(run_id):
        return
    claim = dag.claims.get(run_id)
    if claim is not None and claim.step_id == step.step_id:
        reason, why = "claim_lost", "this run's claim on it is gone"
    else:
        reason, why = "not_claimed", "this run has not claimed it"
    message = f"step {step.step_id} cannot be updated: {why}"
    details = {"reason": reason, "step_id": step.step_id, "status": step.status.value}
    raise PermissionDeniedError(ErrorCode.PERMISSION_DENIED, message, details=details)


def _payloads(step: Step, said: Report, lease: datetime | None) -> Iterator[Payload]:
    before, reason = step.status, said.reason
    result = step.result_summary if said.result_summary is None else said.result_summary
    artifact_ids = step.artifact_ids if said.artifact_ids is None else said.artifact_ids
    match said.status:
        case StepStatus.BLOCKED:
            yield StepBlocked(
                previous_status=before,
                reason=reason,
                result_summary=result,
                artifact_ids=artifact_ids,
            )
        case StepStatus.COMPLETED:
            yield StepCompleted(
                previous_status=before, result_summary=result, artifact_ids=artifact_ids
            )
        case StepStatus.FAILED:
            yield StepFailed(
                previous_status=before,
                reason=reason,
                result_summary=result,
                artifact_ids=artifact_ids,
            )
        case StepStatus.CANCELLED:
            yield StepCancelled(previous_status=before, reason=reason, result_summary=result)
        case _:
            starts = said.status is StepStatus.RUNNING and before is StepStatus.CLAIMED
            if starts:
                yield StepStarted(previous_status=before, lease_expires_at=lease)
            says_more = said.result_summary is not None or said.artifact_ids is not None
            if says_more or not starts:
                yield StepUpdated(
                    previous_status=before,
                    status=StepStatus.RUNNING if starts else before,
                    result_summary=result,
                    artifact_ids=artifact_ids,
                    lease_expires_at=lease,
                )


def failed(step: Step, reason: str) -> StepFailed:
    return StepFailed(
        previous_status=step.status,
        reason=reason,
        result_summary=step.result_summary,
        artifact_ids=step.artifact_ids,
    )
