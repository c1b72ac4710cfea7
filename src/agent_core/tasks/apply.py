"""Applies each change to a Task, live or replayed, and checks that it can follow the Task's state.

The rules produce no other changes. A log with another one is damaged: a wrong byte has turned one
event into another, or an edit claims something that cannot have happened.
"""

from typing import Any

from agent_core.errors import ErrorCode, SchemaError
from agent_core.tasks.graph import Dag, GraphEdit, find_cycle
from agent_core.tasks.model import (
    OPEN,
    UNFINISHED,
    StepBlocked,
    StepCancelled,
    StepClaim,
    StepClaimed,
    StepCompleted,
    StepFailed,
    StepLeaseExpired,
    StepPayload,
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
    TaskRunning,
    TaskStatus,
    TaskStep,
    TaskStepStatus,
    TaskUpdated,
)
from agent_core.types import EventType

_COPIED = {
    "status",
    "claimed_by_agent_id",
    "claimed_by_run_id",
    "lease_expires_at",
    "result_summary",
    "artifact_ids",
}
"""The fields of a payload that are copied to the step."""


def apply(dag: Dag | None, change: TaskChange) -> Dag:
    """Apply a change, and return the changed Task: a new one, or `dag` itself.

    Raises:
        SchemaError: the change does not fit the Task; the Task may be half changed.
        TaskError: likewise, found by the rules of an update.
    """
    payload = change.payload
    if dag is None:
        if not isinstance(payload, TaskCreated):
            raise schema_error("a Task begins with task_created")
        return _create(payload.task)
    step = _find_subject(dag, change)
    if dag.announced and dag.announced[0] == (change.step_id, change.event_type):
        dag.announced.popleft()  # the preceding update has made this change already
        if step is not None:
            dag.put(step.model_copy(update={"updated_at": change.at}))
    else:
        dag.announced.clear()
        if step is not None and isinstance(payload, StepPayload):
            _change_step(dag, step, payload, change)
        else:
            _change_task(dag, change)
    dag.task = dag.task.model_copy(update={"updated_at": change.at})
    return dag


def _find_subject(dag: Dag, change: TaskChange) -> TaskStep | None:
    """Return the step that a change concerns (None for the Task), if the change is allowed now."""
    if isinstance(change.payload, TaskCreated):
        raise schema_error("a Task is created once")
    if dag.task.status.is_terminal:
        raise schema_error(f"nothing follows a {dag.task.status} Task")
    step = None if change.step_id is None else dag.find(change.step_id)
    if change.step_id is not None and step is None:
        raise schema_error(f"there is no step {change.step_id}")
    if (step is not None) is not change.payload.concerns_step:
        owner = "a step" if change.payload.concerns_step else "the Task"
        raise schema_error(f"{change.event_type} belongs to {owner}")
    return step


def schema_error(message: str, **details: Any) -> SchemaError:
    """Return the error for an invalid log or line."""
    return SchemaError(ErrorCode.SCHEMA_ERROR, message, details=details)


def _create(document: TaskDocument) -> Dag:
    """Build a new Task: a graph in which nothing has happened."""
    dag = Dag(Task.model_validate({name: getattr(document, name) for name in Task.model_fields}))
    steps = {step.step_id: step for step in document.steps}
    for step in document.steps:
        dag.put(step)
    if len(steps) != len(document.steps):
        raise schema_error("two steps have one id")
    if any(each not in steps for step in document.steps for each in step.depends_on_step_ids):
        raise schema_error("a step depends on an unknown step")
    if find_cycle(steps, lambda step_id: steps[step_id].depends_on_step_ids):
        raise schema_error("steps wait for each other")
    names_roots = "root_step_ids" in document.model_fields_set
    if names_roots and document.root_step_ids != tuple(dag.roots()):
        raise schema_error("root_step_ids are not the steps that depend on nothing")
    given = {"step_id", "title", "summary", "depends_on_step_ids", "required"}
    given |= {"worker_pool_id", "updated_at"}
    fresh = (TaskStep(**{name: getattr(step, name) for name in given}) for step in document.steps)
    if document.status is not TaskStatus.PENDING or tuple(fresh) != document.steps:
        raise schema_error("a new Task and its steps are pending, and no run has claimed one")
    return dag


def _change_task(dag: Dag, change: TaskChange) -> None:
    task, payload = dag.task, change.payload
    match payload:
        case TaskUpdated():
            _update(dag, payload, change)
            return
        case TaskRunning(previous_status=before, status=after):
            is_possible = before is task.status is TaskStatus.PENDING
            is_possible = is_possible and after is TaskStatus.RUNNING
        case TaskCompleted():
            is_possible = dag.is_completable and dag.count(*OPEN) == 0
            after = TaskStatus.COMPLETED
        case TaskFailed() | TaskCancelled():
            is_possible = dag.count(*UNFINISHED) == 0
            is_failed = isinstance(payload, TaskFailed)
            after = TaskStatus.FAILED if is_failed else TaskStatus.CANCELLED
        case _:
            is_possible, after = False, task.status  # only a task_updated line reopens a Task
    if not is_possible:
        raise schema_error(f"{payload.event_type} cannot be: the Task is {task.status}")
    dag.task = task.model_copy(update={"status": after})


def _update(dag: Dag, update: TaskUpdated, change: TaskChange) -> None:
    edit = GraphEdit(dag, change.at).run(update.operations)
    if set(edit.marked) != set(update.updated_after_dispatch_step_ids):
        raise schema_error("updated_after_dispatch_step_ids are not the claimed steps it changes")
    was_blocked = dag.task.status is TaskStatus.BLOCKED
    for step_id in edit.removed:
        dag.remove(step_id)
    for step in edit.changed.values():
        dag.put(step)
    dag.marked.update(edit.marked)
    for step_id, reason in edit.reasons.items():
        _set_reason(dag, step_id, reason)
    dag.task = edit.task
    dag.announced.extend((step_id, each.event_type) for step_id, each in edit.outcomes())
    if was_blocked and dag.task.status is TaskStatus.PENDING:
        dag.announced.append((None, EventType.TASK_REOPENED))


def _change_step(dag: Dag, step: TaskStep, payload: StepPayload, change: TaskChange) -> None:
    if step.status not in payload.begins_in or not _is_possible(dag, step, payload):
        message = f"{payload.event_type} cannot be: step {step.step_id} is {step.status}"
        raise schema_error(message)
    match payload:
        case StepClaimed(claimed_by_run_id=run_id, fencing_token=token):
            dag.add_claim(run_id, StepClaim(step.step_id, token or dag.next_token))
            dag.marked.discard(step.step_id)
            dag.reasons.pop(step.step_id, None)
        case StepBlocked() | StepFailed() | StepCancelled():
            dag.marked.discard(step.step_id)
            _set_reason(dag, step.step_id, payload.reason)
        case StepCompleted():
            dag.marked.discard(step.step_id)
        case StepLeaseExpired(claimed_by_run_id=str(run_id)):
            dag.expired[run_id] = payload.expired_at
        case _:
            pass
    update = {name: value for name, value in payload if name in _COPIED}
    if payload.becomes is not None:
        update["status"] = payload.becomes
    dag.put(step.model_copy(update={**update, **payload.clears, "updated_at": change.at}))


def _is_possible(dag: Dag, step: TaskStep, payload: StepPayload) -> bool:
    """Return whether a change that may begin in the step's state fits everything else."""
    has_come_from = payload.previous_status is step.status
    match payload:
        case StepReady(status=after):
            return (
                has_come_from and after is TaskStepStatus.READY and not dag.waits_for(step.step_id)
            )
        case StepClaimed(claimed_by_run_id=run_id, fencing_token=token):
            is_new = run_id not in dag.claims and dag.accepts_token(token)
            return has_come_from and is_new and dag.task.status is not TaskStatus.BLOCKED
        case StepStarted(status=after):
            return has_come_from and after is TaskStepStatus.RUNNING
        case StepUpdated(previous_status=before, status=after):
            has_started = before is TaskStepStatus.CLAIMED and step.status is TaskStepStatus.RUNNING
            return after is step.status and (has_come_from or has_started)
        case StepLeaseExpired(claimed_by_run_id=run_id):
            return has_come_from and run_id == step.claimed_by_run_id
        case _:
            return has_come_from


def _set_reason(dag: Dag, step_id: str, reason: str | None) -> None:
    if reason:
        dag.reasons[step_id] = reason
    else:
        dag.reasons.pop(step_id, None)
