"""Which change can follow which state: what a log may say, whoever wrote it.

`decide` yields nothing else. A log that says something else is damaged: a wrong byte has turned one
event into another, or an edit says what cannot have happened.
"""

from collections.abc import Collection, Mapping

from agent_core.errors import ErrorCode, SchemaError
from agent_core.tasks.changes import (
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
    TaskFailed,
    TaskReopened,
    TaskRunning,
)
from agent_core.tasks.cycles import find_cycle
from agent_core.tasks.dag import Dag
from agent_core.tasks.model import (
    CLAIMS,
    UNFINISHED,
    Step,
    StepStatus,
    TaskDocument,
    TaskStatus,
)

_OPEN = (StepStatus.PENDING, StepStatus.READY)
_FROM: Mapping[type[Payload], Collection[StepStatus]] = {
    StepReady: (StepStatus.PENDING,),
    StepClaimed: (StepStatus.READY,),
    StepStarted: (StepStatus.CLAIMED,),
    StepUpdated: CLAIMS,
    StepLeaseExpired: CLAIMS,
    StepBlocked: CLAIMS,
    StepCompleted: CLAIMS,
    StepFailed: UNFINISHED,
    StepCancelled: UNFINISHED,
}
"""The states that each change begins in. A step is reopened by a `task_updated` line alone."""


def require_new(document: TaskDocument, dag: Dag) -> None:
    """Return if the document is a Task as it is created: a graph in which nothing has happened.

    Raises:
        SchemaError: it is not; `dag` is what was made of it.
    """
    steps = {step.step_id: step for step in document.steps}
    fresh = (_fresh(step) for step in document.steps)
    if len(steps) != len(document.steps):
        raise _error("two steps have one id")
    if any(each not in steps for step in document.steps for each in step.depends_on_step_ids):
        raise _error("a step depends on one that is not there")
    if find_cycle(steps, lambda step_id: steps[step_id].depends_on_step_ids):
        raise _error("steps wait for each other")
    if "root_step_ids" in document.model_fields_set and document.root_step_ids != tuple(
        dag.roots()
    ):
        raise _error("root_step_ids are not the steps that depend on nothing")
    if document.status is not TaskStatus.PENDING or tuple(fresh) != document.steps:
        raise _error("a new Task and its steps are pending, and nobody has claimed one")


def require_task_change(dag: Dag, payload: Payload) -> None:
    """Return if the Task can change so now.

    Raises:
        SchemaError: it cannot.
    """
    status = dag.task.status
    match payload:
        case TaskRunning(previous_status=before, status=after):
            is_possible = before is status is TaskStatus.PENDING and after is TaskStatus.RUNNING
        case TaskCompleted():
            is_possible = dag.is_completable and dag.count(*_OPEN) == 0
        case TaskFailed() | TaskCancelled():
            is_possible = dag.count(*UNFINISHED) == 0
        case TaskReopened():
            is_possible = False  # only a task_updated line before it reopens a Task
        case _:
            return
    if not is_possible:
        raise _error(f"{payload.event_type} cannot be: the Task is {status}")


def require_step_change(dag: Dag, step: Step, payload: Payload) -> None:
    """Return if the step can change so now.

    Raises:
        SchemaError: it cannot.
    """
    if not _is_possible(dag, step, payload):
        raise _error(f"{payload.event_type} cannot be: step {step.step_id} is {step.status}")


def _is_possible(dag: Dag, step: Step, payload: Payload) -> bool:
    status = step.status
    if status not in _FROM.get(type(payload), ()):
        return False
    match payload:
        case StepReady(previous_status=before, status=after):
            has_become = after is StepStatus.READY
            return before is status and has_become and dag.waits_for(step.step_id) == 0
        case StepClaimed(previous_status=before, claimed_by_run_id=run_id, fencing_token=token):
            is_new = run_id not in dag.claims and dag.accepts_token(token)
            return before is status and is_new and dag.task.status is not TaskStatus.BLOCKED
        case StepUpdated(previous_status=before, status=after):
            has_started = before is StepStatus.CLAIMED and status is StepStatus.RUNNING
            return after is status and (before is status or has_started)
        case StepStarted(previous_status=before, status=after):
            return before is status and after is StepStatus.RUNNING
        case _:
            return _continues(step, payload)


def _continues(step: Step, payload: Payload) -> bool:
    match payload:
        case StepLeaseExpired(previous_status=before, claimed_by_run_id=run_id):
            return before is step.status and run_id == step.claimed_by_run_id
        case (
            StepBlocked(previous_status=before)
            | StepCompleted(previous_status=before)
            | StepFailed(previous_status=before)
            | StepCancelled(previous_status=before)
        ):
            return before is step.status
        case _:
            return False


def _fresh(step: Step) -> Step:
    """The step as it would be if nothing had happened to it."""
    return Step(
        step_id=step.step_id,
        title=step.title,
        summary=step.summary,
        depends_on_step_ids=step.depends_on_step_ids,
        required=step.required,
        worker_pool_id=step.worker_pool_id,
        updated_at=step.updated_at,
    )


def _error(message: str) -> SchemaError:
    return SchemaError(ErrorCode.SCHEMA_ERROR, message)
