"""What each change does to a Task. Live or replayed, every change goes through here."""

from collections.abc import Iterable
from functools import reduce
from typing import Any

from agent_core.errors import ErrorCode, SchemaError
from agent_core.tasks.changes import (
    Change,
    Payload,
    StepBlocked,
    StepCancelled,
    StepClaimed,
    StepCompleted,
    StepFailed,
    StepLeaseExpired,
    StepReady,
    StepStarted,
    StepUpdated,
    TaskCancelled,
    TaskCompleted,
    TaskCreated,
    TaskFailed,
    TaskRunning,
    TaskUpdated,
)
from agent_core.tasks.dag import Dag
from agent_core.tasks.edit import Edit
from agent_core.tasks.model import Claim, Step, StepStatus, Task, TaskDocument, TaskStatus
from agent_core.tasks.transitions import require_new, require_step_change, require_task_change
from agent_core.types import EventType

_NO_CLAIM = {"claimed_by_agent_id": None, "claimed_by_run_id": None, "lease_expires_at": None}


def replay(changes: Iterable[Change]) -> Dag | None:
    """Fold a whole history; None for an empty one."""
    return reduce(apply, changes, None)


def apply(dag: Dag | None, change: Change) -> Dag:
    """Let the change happen, and return the Task after it: a new one, or `dag` itself, changed.

    Raises:
        SchemaError: the change does not fit the Task; the Task may be half changed.
        TaskError: the same, found by the rules of an update.
    """
    if isinstance(change.payload, TaskCreated):
        if dag is not None:
            raise SchemaError(ErrorCode.SCHEMA_ERROR, "a Task is created once")
        return _created(change.payload.task)
    if dag is None:
        raise SchemaError(ErrorCode.SCHEMA_ERROR, "a Task begins with task_created")
    if dag.task.status.is_terminal:
        raise SchemaError(ErrorCode.SCHEMA_ERROR, f"nothing follows a {dag.task.status} Task")
    step = None if change.step_id is None else dag.find(change.step_id)
    if change.step_id is not None and step is None:
        raise SchemaError(ErrorCode.SCHEMA_ERROR, f"there is no step {change.step_id}")
    if dag.announced and dag.announced[0] == (change.step_id, change.event_type):
        dag.announced.popleft()
        _stamp(dag, step, change)
        return dag
    dag.announced.clear()
    if step is None:
        _change_task(dag, change)
    else:
        _change_step(dag, step, change)
    return dag


def _created(document: TaskDocument) -> Dag:
    header = {name: getattr(document, name) for name in Task.model_fields}
    dag = Dag(Task.model_validate(header))
    for step in document.steps:
        dag.put(step)
    require_new(document, dag)
    return dag


def _stamp(dag: Dag, step: Step | None, change: Change) -> None:
    """The update before it has made the change already."""
    if step is not None:
        dag.put(step.model_copy(update={"updated_at": change.at}))
    dag.task = dag.task.model_copy(update={"updated_at": change.at})


def _change_task(dag: Dag, change: Change) -> None:
    require_task_change(dag, change.payload)
    match change.payload:
        case TaskUpdated() as update:
            _update(dag, update, change)
        case TaskRunning(status=status):
            _set_task(dag, change, status)
        case TaskCompleted():
            _set_task(dag, change, TaskStatus.COMPLETED)
        case TaskFailed():
            _set_task(dag, change, TaskStatus.FAILED)
        case TaskCancelled():
            _set_task(dag, change, TaskStatus.CANCELLED)
        case payload:
            raise _misplaced(payload)


def _set_task(dag: Dag, change: Change, status: TaskStatus) -> None:
    dag.task = dag.task.model_copy(update={"status": status, "updated_at": change.at})


def _update(dag: Dag, update: TaskUpdated, change: Change) -> None:
    edit = Edit(dag, change.at).run(update.operations)
    if set(edit.marked) != set(update.updated_after_dispatch_step_ids):
        message = "updated_after_dispatch_step_ids are not the claimed steps it changes"
        raise SchemaError(ErrorCode.SCHEMA_ERROR, message)
    was_blocked = dag.task.status is TaskStatus.BLOCKED
    for step_id in edit.removed:
        dag.remove(step_id)
    for step in edit.changed.values():
        dag.put(step)
    dag.marked.update(update.updated_after_dispatch_step_ids)
    for step_id, reason in edit.reasons.items():
        _remember(dag, step_id, reason)
    dag.task = edit.task.model_copy(update={"updated_at": change.at})
    dag.announced.extend((step_id, each.event_type) for step_id, each in edit.outcomes())
    if was_blocked and dag.task.status is TaskStatus.PENDING:
        dag.announced.append((None, EventType.TASK_REOPENED))


def _change_step(dag: Dag, step: Step, change: Change) -> None:
    require_step_change(dag, step, change.payload)
    update: dict[str, Any]
    match change.payload:
        case StepReady(status=status):
            update = {"status": status}
        case StepClaimed() as claim:
            dag.marked.discard(step.step_id)
            dag.reasons.pop(step.step_id, None)
            token = claim.fencing_token or dag.next_token
            dag.remember_claim(claim.claimed_by_run_id, Claim(step.step_id, token))
            update = {
                "status": StepStatus.CLAIMED,
                "claimed_by_agent_id": claim.claimed_by_agent_id,
                "claimed_by_run_id": claim.claimed_by_run_id,
                "lease_expires_at": claim.lease_expires_at,
            }
        case StepStarted(status=status, lease_expires_at=lease):
            update = {"status": status, "lease_expires_at": lease}
        case StepUpdated() as note:
            update = {
                "status": note.status,
                "lease_expires_at": note.lease_expires_at,
                "result_summary": note.result_summary,
                "artifact_ids": note.artifact_ids,
            }
        case StepLeaseExpired():
            update = {"status": StepStatus.PENDING, **_NO_CLAIM}
        case payload:
            update = _ended(dag, step, payload)
    dag.put(step.model_copy(update={**update, "updated_at": change.at}))
    dag.task = dag.task.model_copy(update={"updated_at": change.at})


def _ended(dag: Dag, step: Step, payload: Payload) -> dict[str, Any]:
    update: dict[str, Any] = {"lease_expires_at": None}
    match payload:
        case StepCompleted(result_summary=result, artifact_ids=artifact_ids):
            update |= {"status": StepStatus.COMPLETED, "artifact_ids": artifact_ids}
        case StepFailed(reason=reason, result_summary=result, artifact_ids=artifact_ids):
            _remember(dag, step.step_id, reason)
            update |= {"status": StepStatus.FAILED, "artifact_ids": artifact_ids}
        case StepBlocked(reason=reason, result_summary=result, artifact_ids=artifact_ids):
            _remember(dag, step.step_id, reason)
            update |= {"status": StepStatus.BLOCKED, "artifact_ids": artifact_ids, **_NO_CLAIM}
        case StepCancelled(reason=reason, result_summary=result):
            _remember(dag, step.step_id, reason)
            update["status"] = StepStatus.CANCELLED
        case _:
            raise _misplaced(payload)
    dag.marked.discard(step.step_id)
    return {**update, "result_summary": result}


def _remember(dag: Dag, step_id: str, reason: str | None) -> None:
    if reason:
        dag.reasons[step_id] = reason
    else:
        dag.reasons.pop(step_id, None)


def _misplaced(payload: Payload) -> SchemaError:
    message = f"{payload.event_type} belongs to {'a step' if payload.concerns_step else 'the Task'}"
    return SchemaError(ErrorCode.SCHEMA_ERROR, message)
