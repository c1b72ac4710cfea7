"""Tasks as data: steps, commands to a Task, and every change that its log can hold."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal, Protocol

from msgspec import Struct
from pydantic import Field, StringConstraints

from agent_core.errors import ErrorCode, PermissionDeniedError, TaskError
from agent_core.text.json_text import JsonSchema
from agent_core.tools.schema import Arguments
from agent_core.types import EventLevel, EventType, Frozen, SafeId, UtcDatetime

TaskId = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_-]{1,64}$")]
"""Id chosen by the model; unique among the session's active Tasks."""

StepId = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_-]{1,64}$")]
"""Id chosen by the model; unique within its Task."""

WalName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_-]{1,80}(\.wal\.jsonl)?$")]
"""File name of a log, with or without its ending; never derived from a title."""

PoolId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.:\-]{0,128}$")]
"""Id of a worker pool; empty removes the step from its pool."""

Title = Annotated[str, StringConstraints(max_length=1000)]
Text = Annotated[str, StringConstraints(max_length=100_000)]
"""Text written by a model. Anything longer belongs in an artifact."""


class TaskStatus(StrEnum):
    """The state of a Task."""

    PENDING = "pending"
    RUNNING = "running"
    BLOCKED = "blocked"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """Return whether the Task has ended for good."""
        return self in {TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED}


class TaskStepStatus(StrEnum):
    """The state of a step."""

    PENDING = "pending"
    READY = "ready"
    CLAIMED = "claimed"
    RUNNING = "running"
    BLOCKED = "blocked"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """Return whether the work on it is over, though a failed step can be reopened."""
        return self not in UNFINISHED

    @property
    def is_claim(self) -> bool:
        """Return whether a run holds it."""
        return self in CLAIMS


OPEN = (TaskStepStatus.PENDING, TaskStepStatus.READY)
CLAIMS = (TaskStepStatus.CLAIMED, TaskStepStatus.RUNNING)
UNFINISHED = (*OPEN, *CLAIMS, TaskStepStatus.BLOCKED)
NO_LEASE: Mapping[str, None] = {"lease_expires_at": None}
NO_CLAIM: Mapping[str, None] = {"claimed_by_agent_id": None, "claimed_by_run_id": None, **NO_LEASE}


class TaskStep(Frozen):
    """One piece of work.

    A step that ended keeps the agent and run of its claim; `lease_expires_at` is set only while the
    claim holds.
    """

    step_id: StepId
    title: str = ""
    summary: str = ""
    status: TaskStepStatus = TaskStepStatus.PENDING
    depends_on_step_ids: tuple[StepId, ...] = ()
    required: bool = True
    worker_pool_id: str | None = None
    claimed_by_agent_id: SafeId | None = None
    claimed_by_run_id: SafeId | None = None
    lease_expires_at: UtcDatetime | None = None
    result_summary: str | None = None
    artifact_ids: tuple[SafeId, ...] = ()
    updated_at: UtcDatetime

    def is_held_by(self, run_id: str) -> bool:
        """Return whether this run holds the claim now."""
        return self.status.is_claim and self.claimed_by_run_id == run_id

    def has_ended_lease(self, now: datetime) -> bool:
        """Return whether a run still holds the claim although its stored lease has expired."""
        lease = self.lease_expires_at
        return self.status.is_claim and lease is not None and lease <= now


class Task(Frozen):
    """A Task without its steps."""

    task_id: TaskId
    wal_path: str
    title: str = ""
    summary: str = ""
    status: TaskStatus = TaskStatus.PENDING
    created_by_agent_id: SafeId
    created_by_run_id: SafeId
    created_at: UtcDatetime
    updated_at: UtcDatetime


class TaskDocument(Task):
    """A whole Task: the payload of its first line."""

    root_step_ids: tuple[StepId, ...] = ()
    steps: tuple[TaskStep, ...] = ()


class SessionTask(TaskDocument):
    """A whole Task with the session that it belongs to."""

    session_id: SafeId


class StepClaim(Struct, frozen=True):
    """A run's claim of a step; `token` only grows, which orders the claims."""

    step_id: str
    token: int


# Arguments of `agent.task_create` and `agent.task_update`; the log keeps operations unchanged.


class NewStep(Arguments):
    """A step as the model writes it down."""

    step_id: StepId
    title: Title = ""
    summary: Text = ""
    depends_on_step_ids: tuple[StepId, ...] = ()
    required: bool = True
    worker_pool_id: PoolId | None = None


class StepFields(Arguments):
    """Changes of a step; absent fields keep their values."""

    title: Title | None = None
    summary: Text | None = None
    depends_on_step_ids: tuple[StepId, ...] | None = None
    required: bool | None = None
    worker_pool_id: PoolId | None = None


class NewTask(Arguments):
    """Create a Task: a graph of steps that workers claim. task_id and step_id are yours to choose
    ([a-z0-9_-]); wal_name names its log file. Steps without open dependencies are ready at once.
    """

    task_id: TaskId
    wal_name: WalName
    title: Title = ""
    summary: Text = ""
    steps: tuple[NewStep, ...] = ()


class UpdateTask(Arguments):
    """Change the Task's title or summary, block it (`blocked`) or unblock it (`pending`)."""

    op: Literal["update_task"]
    title: Title | None = None
    summary: Text | None = None
    status: Literal["blocked", "pending"] | None = None


class AddStep(Arguments):
    """Add a step at the end."""

    op: Literal["add_step"]
    step: NewStep


class UpdateStep(Arguments):
    """Change the texts or dependencies of a step."""

    op: Literal["update_step"]
    step_id: StepId
    fields: StepFields


class DeleteStep(Arguments):
    """Remove a pending, ready or cancelled step on which nothing depends."""

    op: Literal["delete_step"]
    step_id: StepId


class ChangeDependency(Arguments):
    """Let a step wait for another one, or no longer wait for it."""

    op: Literal["add_dependency", "remove_dependency"]
    step_id: StepId
    depends_on_step_id: StepId


class CancelStep(Arguments):
    """Give up a pending or ready step."""

    op: Literal["cancel_step"]
    step_id: StepId
    reason: Text | None = None


class ReopenStep(Arguments):
    """Bring a blocked or failed step back to pending."""

    op: Literal["reopen_step"]
    step_id: StepId
    reason: Text | None = None


def _drop_discriminator(schema: JsonSchema) -> None:
    """Each kind names its `op`; the table of kinds is no JSON Schema and costs tokens."""
    schema.pop("discriminator", None)


Operation = Annotated[
    UpdateTask | AddStep | UpdateStep | DeleteStep | ChangeDependency | CancelStep | ReopenStep,
    Field(discriminator="op", json_schema_extra=_drop_discriminator),
]


# Commands to a board about a Task.


class Update(Struct, frozen=True):
    """Changes the graph."""

    operations: Sequence[Operation]


class ClaimStep(Struct, frozen=True):
    """Claims a ready step, until `lease` unless renewed."""

    step_id: str
    agent_id: str
    run_id: str
    lease: datetime


class Report(Struct, frozen=True, kw_only=True):
    """The progress of a step; absent values are not changed.

    `status` is one of running, blocked, completed, failed, cancelled; None renews the lease.
    """

    step_id: str
    status: TaskStepStatus | None = None
    result_summary: str | None = None
    artifact_ids: tuple[str, ...] | None = None
    reason: str | None = None

    def update(self) -> dict[str, Any]:
        """Return the fields of the step that it replaces."""
        fields = {"result_summary": self.result_summary, "artifact_ids": self.artifact_ids}
        return {name: value for name, value in fields.items() if value is not None}


class ReportStep(Struct, frozen=True):
    """Records a report.

    `holder` is the run that must hold the claim, and renews it until `lease`; None is the
    orchestrator, which may report on any step and renews nothing.
    """

    report: Report
    holder: str | None
    lease: datetime


class Complete(Struct, frozen=True):
    """Ends the Task as completed."""

    result_summary: str | None = None


class AbortTask(Struct, frozen=True):
    """Ends the Task as failed or cancelled, with everything that is unfinished."""

    status: TaskStatus
    reason: str | None = None


class WorkerEnding(StrEnum):
    """The reason for a run's end while its step was open, as written in the step's last line."""

    FINISHED = "worker_finished_without_step_terminal"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    FAILED = "worker_failed"


class CloseRun(Struct, frozen=True):
    """Fails the step that a worker's ended run left open; `error` is added to the step's result."""

    run_id: str
    ending: WorkerEnding
    error: str | None = None


class ExpireLeases(Struct, frozen=True):
    """Takes these claims back. `may_promote` also writes changes that a crash left unwritten."""

    step_ids: Sequence[str]
    may_promote: bool = False


Command = Update | ClaimStep | ReportStep | Complete | AbortTask | CloseRun | ExpireLeases


# The actors on whose behalf changes are made.


class TaskJournal(Protocol):
    """Receives a run's events; `agent_core.events.Journal` implements it."""

    def note(
        self,
        event_type: EventType,
        payload: Mapping[str, Any] | None = None,
        *,
        level: EventLevel = EventLevel.INFO,
    ) -> None:
        """Record an event."""
        ...


class TaskScope(Struct, frozen=True):
    """The part of a Task that a worker may see and claim, set by its dispatch.

    Attributes:
        task_id: the only Task it may see.
        allowed_step_ids: the only steps it may see; None for all.
        worker_pool_id: the worker's pool; steps reserved for another pool are not for it.
    """

    task_id: str
    allowed_step_ids: frozenset[str] | None = None
    worker_pool_id: str | None = None

    def allows(self, step_id: str) -> bool:
        """Return whether the worker was sent for this step."""
        return self.allowed_step_ids is None or step_id in self.allowed_step_ids


class Actor(Struct, frozen=True):
    """The run on whose behalf something is done, with its journal, scope and tool call.

    `scope` is None for an orchestrator, and for core itself.
    """

    agent_id: str
    run_id: str
    journal: TaskJournal
    scope: TaskScope | None = None
    tool_call_id: str | None = None

    @property
    def holder(self) -> str | None:
        """The run that must hold the step; None for an actor that may change all steps."""
        return None if self.scope is None else self.run_id

    def require_orchestrator(self) -> None:
        """Return if this is an orchestrator, or raise `PermissionDeniedError`."""
        if self.scope is not None:
            raise _denied("only the orchestrator changes a Task itself", "orchestrator_only")

    def require_scope(self, task_id: str, step_id: str | None = None) -> None:
        """Return if the Task, and the step if one is named, are within the actor's scope.

        Raises:
            PermissionDeniedError: they are not.
        """
        scope = self.scope
        if scope is None:
            return
        if task_id != scope.task_id:
            raise _denied(f"this worker was sent to Task {scope.task_id} only", "other_task")
        if step_id is not None and not scope.allows(step_id):
            allowed = ", ".join(sorted(scope.allowed_step_ids or ()))
            raise _denied(f"this worker was sent for {allowed}, not for {step_id}", "other_step")

    def require_pool(self, step: TaskStep) -> None:
        """Return unless the step is reserved for another pool, or raise `PermissionDeniedError`."""
        wanted = step.worker_pool_id
        if wanted is not None and self.scope is not None and wanted != self.scope.worker_pool_id:
            message = f"step {step.step_id} is reserved for the worker pool {wanted}"
            raise _denied(message, "other_pool")


# Contents of log lines.


class Payload(Frozen):
    """The contents of a line.

    `concerns_step`: the line names the step in `step_id`. `is_sparse`: absent values are left out
    of the log, for payloads with whole documents.
    """

    event_type: ClassVar[EventType]
    concerns_step: ClassVar[bool] = False
    is_sparse: ClassVar[bool] = False


class TaskCreated(Payload):
    event_type = EventType.TASK_CREATED
    is_sparse = True
    task: TaskDocument


class TaskRunning(Payload):
    event_type = EventType.TASK_RUNNING
    previous_status: TaskStatus
    status: TaskStatus = TaskStatus.RUNNING
    reason: str | None = None


class TaskUpdated(Payload):
    """`task_summary` describes the Task after the operations, for people."""

    event_type = EventType.TASK_UPDATED
    is_sparse = True
    operations: tuple[Operation, ...]
    updated_after_dispatch_step_ids: tuple[StepId, ...] = ()
    task_summary: Any = None


class TaskReopened(Payload):
    event_type = EventType.TASK_REOPENED
    previous_status: TaskStatus
    status: TaskStatus = TaskStatus.PENDING
    reason: str | None = None


class TaskCompleted(Payload):
    event_type = EventType.TASK_COMPLETED
    result_summary: str | None = None
    cancelled_optional_step_ids: tuple[StepId, ...] = ()


class TaskFailed(Payload):
    event_type = EventType.TASK_FAILED
    reason: str | None = None
    failed_step_ids: tuple[StepId, ...] = ()


class TaskCancelled(Payload):
    event_type = EventType.TASK_CANCELLED
    reason: str | None = None
    cancelled_step_ids: tuple[StepId, ...] = ()


class StepPayload(Payload):
    """A change of one step.

    `begins_in`: the states it can follow. `becomes`: the state after it; None means the payload's
    own `status`. `clears`: the fields of the step that it empties.
    """

    concerns_step = True
    begins_in: ClassVar[Collection[TaskStepStatus]]
    becomes: ClassVar[TaskStepStatus | None] = None
    clears: ClassVar[Mapping[str, None]] = {}
    previous_status: TaskStepStatus


class StepReady(StepPayload):
    event_type = EventType.TASK_STEP_READY
    begins_in = (TaskStepStatus.PENDING,)
    status: TaskStepStatus = TaskStepStatus.READY
    depends_on_step_ids: tuple[StepId, ...] = ()


class StepClaimed(StepPayload):
    """`fencing_token` only grows within a Task; logs of the first release may lack it."""

    event_type = EventType.TASK_STEP_CLAIMED
    begins_in = (TaskStepStatus.READY,)
    becomes = TaskStepStatus.CLAIMED
    claimed_by_agent_id: SafeId
    claimed_by_run_id: SafeId
    lease_expires_at: UtcDatetime
    fencing_token: Annotated[int, Field(ge=1)] | None = None


class StepStarted(StepPayload):
    event_type = EventType.TASK_STEP_STARTED
    begins_in = (TaskStepStatus.CLAIMED,)
    status: TaskStepStatus = TaskStepStatus.RUNNING
    lease_expires_at: UtcDatetime | None


class StepUpdated(StepPayload):
    event_type = EventType.TASK_STEP_UPDATED
    begins_in = CLAIMS
    status: TaskStepStatus
    result_summary: str | None = None
    artifact_ids: tuple[SafeId, ...] = ()
    lease_expires_at: UtcDatetime | None


class StepReopened(StepPayload):
    """Only repeats a change made by an earlier `task_updated` line: it begins in no state."""

    event_type = EventType.TASK_STEP_REOPENED
    begins_in = ()
    status: TaskStepStatus = TaskStepStatus.PENDING
    reason: str | None = None


class StepLeaseExpired(StepPayload):
    event_type = EventType.TASK_STEP_LEASE_EXPIRED
    begins_in = CLAIMS
    becomes = TaskStepStatus.PENDING
    clears = NO_CLAIM
    claimed_by_agent_id: SafeId | None
    claimed_by_run_id: SafeId | None
    expired_at: UtcDatetime


class StepEnd(StepPayload):
    """A change after which no run works on the step."""

    begins_in = UNFINISHED
    clears = NO_LEASE
    result_summary: str | None = None


class StepCompleted(StepEnd):
    event_type = EventType.TASK_STEP_COMPLETED
    begins_in = CLAIMS
    becomes = TaskStepStatus.COMPLETED
    artifact_ids: tuple[SafeId, ...] = ()


class StepBlocked(StepEnd):
    event_type = EventType.TASK_STEP_BLOCKED
    begins_in = CLAIMS
    becomes = TaskStepStatus.BLOCKED
    clears = NO_CLAIM
    reason: str | None = None
    artifact_ids: tuple[SafeId, ...] = ()


class StepFailed(StepEnd):
    event_type = EventType.TASK_STEP_FAILED
    becomes = TaskStepStatus.FAILED
    reason: str | None = None
    artifact_ids: tuple[SafeId, ...] = ()


class StepCancelled(StepEnd):
    event_type = EventType.TASK_STEP_CANCELLED
    becomes = TaskStepStatus.CANCELLED
    reason: str | None = None


PAYLOADS: Mapping[EventType, type[Payload]] = {
    kind.event_type: kind
    for kind in (
        *(TaskCreated, TaskRunning, TaskUpdated, TaskReopened),
        *(TaskCompleted, TaskFailed, TaskCancelled),
        *(StepReady, StepClaimed, StepStarted, StepUpdated, StepReopened, StepLeaseExpired),
        *(StepBlocked, StepCompleted, StepFailed, StepCancelled),
    )
}

TASK_ENDS: Mapping[EventType, TaskStatus] = {
    EventType.TASK_COMPLETED: TaskStatus.COMPLETED,
    EventType.TASK_FAILED: TaskStatus.FAILED,
    EventType.TASK_CANCELLED: TaskStatus.CANCELLED,
}
"""A log whose last line is one of these has ended."""

DURABLE = {
    *TASK_ENDS,
    EventType.TASK_STEP_COMPLETED,
    EventType.TASK_STEP_FAILED,
    EventType.TASK_STEP_CANCELLED,
}
"""Ends: they are on the disk, not only in the system's cache, before they are announced."""


class TaskChange(Struct, frozen=True):
    """One change in a Task's history; `at` only stamps what it touches."""

    at: datetime
    payload: Payload
    step_id: str | None = None

    @property
    def event_type(self) -> EventType:
        return self.payload.event_type


# Errors for refusals.


def describe_claim(step: TaskStep) -> dict[str, Any]:
    """Return the claim of a step for the details of an error: agent, run and end of the lease."""
    return step.model_dump(mode="json", include=set(NO_CLAIM))


def shown_time(at: datetime | None) -> str:
    """Return a time as messages show it."""
    return f"{at:%Y-%m-%dT%H:%M:%SZ}" if at is not None else "an unknown time"


def task_error(code: ErrorCode, message: str, **details: Any) -> TaskError:
    """Return the error for a refusal, with its facts."""
    return TaskError(code, message, details=details)


def step_error(code: ErrorCode, step: TaskStep, rule: str, **details: Any) -> TaskError:
    """Return the error for a request that a step's state does not allow."""
    message = f"step {step.step_id} is {step.status}{rule}"
    facts = {"step_id": step.step_id, "status": step.status.value, **details}
    if step.claimed_by_run_id is not None:
        facts |= describe_claim(step)
    return task_error(code, message, **facts)


def not_cancellable(step: TaskStep) -> TaskError:
    """Return the error for cancelling a step that is not pending or ready."""
    rule = "; only pending and ready steps can be cancelled, agent.task_cancel ends the whole Task"
    return step_error(ErrorCode.STEP_NOT_CANCELLABLE, step, rule)


def not_dispatchable(task: Task) -> TaskError:
    """Return the error for starting work in a Task that is blocked or has ended."""
    message = f"Task {task.task_id} is {task.status}; no new work starts in it"
    if task.status is TaskStatus.BLOCKED:
        message += " until agent.task_update sets its status to pending"
    status = task.status.value
    return task_error(ErrorCode.TASK_NOT_DISPATCHABLE, message, task_id=task.task_id, status=status)


def task_over(task_id: str, status: TaskStatus) -> TaskError:
    """Return the error for changing a Task that has ended."""
    message = f"Task {task_id} is {status}; nothing in it changes any more"
    return task_error(ErrorCode.TASK_TERMINAL, message, task_id=task_id, status=status.value)


def _denied(message: str, reason: str) -> PermissionDeniedError:
    details = {"reason": reason}
    return PermissionDeniedError(ErrorCode.PERMISSION_DENIED, message, details=details)
