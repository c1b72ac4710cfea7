"""Every change a Task can go through, with the payload its log line carries."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, ClassVar

from pydantic import Field

from agent_core.tasks.model import StepId, StepStatus, TaskDocument, TaskStatus
from agent_core.tasks.operations import Operation
from agent_core.types import EventType, Frozen, SafeId, UtcDatetime


class Payload(Frozen):
    """What a line says.

    `concerns_step`: the line names the step in `step_id`. `is_sparse`: absent values are left
    out of the log, for payloads that hold whole documents.
    """

    event_type: ClassVar[EventType]
    concerns_step: ClassVar[bool] = True
    is_sparse: ClassVar[bool] = False


class TaskPayload(Payload):
    """A change of the Task itself."""

    concerns_step = False


class TaskCreated(TaskPayload):
    event_type = EventType.TASK_CREATED
    is_sparse = True
    task: TaskDocument


class TaskRunning(TaskPayload):
    event_type = EventType.TASK_RUNNING
    previous_status: TaskStatus
    status: TaskStatus = TaskStatus.RUNNING
    reason: str | None = None


class TaskUpdated(TaskPayload):
    """`task_summary` is what the Task looked like after the operations, for people."""

    event_type = EventType.TASK_UPDATED
    is_sparse = True
    operations: tuple[Operation, ...]
    updated_after_dispatch_step_ids: tuple[StepId, ...] = ()
    task_summary: Any = None


class TaskReopened(TaskPayload):
    event_type = EventType.TASK_REOPENED
    previous_status: TaskStatus
    status: TaskStatus = TaskStatus.PENDING
    reason: str | None = None


class TaskCompleted(TaskPayload):
    event_type = EventType.TASK_COMPLETED
    result_summary: str | None = None
    cancelled_optional_step_ids: tuple[StepId, ...] = ()


class TaskFailed(TaskPayload):
    event_type = EventType.TASK_FAILED
    reason: str | None = None
    failed_step_ids: tuple[StepId, ...] = ()


class TaskCancelled(TaskPayload):
    event_type = EventType.TASK_CANCELLED
    reason: str | None = None
    cancelled_step_ids: tuple[StepId, ...] = ()


class StepReady(Payload):
    event_type = EventType.TASK_STEP_READY
    previous_status: StepStatus
    status: StepStatus = StepStatus.READY
    depends_on_step_ids: tuple[StepId, ...] = ()


class StepClaimed(Payload):
    """`fencing_token` only grows within a Task; logs of the first release may lack it."""

    event_type = EventType.TASK_STEP_CLAIMED
    previous_status: StepStatus
    claimed_by_agent_id: SafeId
    claimed_by_run_id: SafeId
    lease_expires_at: UtcDatetime
    fencing_token: Annotated[int, Field(ge=1)] | None = None


class StepStarted(Payload):
    event_type = EventType.TASK_STEP_STARTED
    previous_status: StepStatus
    status: StepStatus = StepStatus.RUNNING
    lease_expires_at: UtcDatetime | None


class StepUpdated(Payload):
    event_type = EventType.TASK_STEP_UPDATED
    previous_status: StepStatus
    status: StepStatus
    result_summary: str | None = None
    artifact_ids: tuple[SafeId, ...] = ()
    lease_expires_at: UtcDatetime | None


class StepBlocked(Payload):
    event_type = EventType.TASK_STEP_BLOCKED
    previous_status: StepStatus
    reason: str | None = None
    result_summary: str | None = None
    artifact_ids: tuple[SafeId, ...] = ()


class StepCompleted(Payload):
    event_type = EventType.TASK_STEP_COMPLETED
    previous_status: StepStatus
    result_summary: str | None = None
    artifact_ids: tuple[SafeId, ...] = ()


class StepFailed(Payload):
    event_type = EventType.TASK_STEP_FAILED
    previous_status: StepStatus
    reason: str | None = None
    result_summary: str | None = None
    artifact_ids: tuple[SafeId, ...] = ()


class StepCancelled(Payload):
    event_type = EventType.TASK_STEP_CANCELLED
    previous_status: StepStatus
    reason: str | None = None
    result_summary: str | None = None


class StepReopened(Payload):
    event_type = EventType.TASK_STEP_REOPENED
    previous_status: StepStatus
    status: StepStatus = StepStatus.PENDING
    reason: str | None = None


class StepLeaseExpired(Payload):
    event_type = EventType.TASK_STEP_LEASE_EXPIRED
    previous_status: StepStatus
    claimed_by_agent_id: SafeId | None
    claimed_by_run_id: SafeId | None
    expired_at: UtcDatetime


PAYLOADS: Mapping[EventType, type[Payload]] = {
    kind.event_type: kind
    for kind in (
        TaskCreated,
        TaskRunning,
        TaskUpdated,
        TaskReopened,
        TaskCompleted,
        TaskFailed,
        TaskCancelled,
        StepReady,
        StepClaimed,
        StepStarted,
        StepUpdated,
        StepBlocked,
        StepCompleted,
        StepFailed,
        StepCancelled,
        StepReopened,
        StepLeaseExpired,
    )
}

TASK_ENDS: Mapping[EventType, TaskStatus] = {
    EventType.TASK_COMPLETED: TaskStatus.COMPLETED,
    EventType.TASK_FAILED: TaskStatus.FAILED,
    EventType.TASK_CANCELLED: TaskStatus.CANCELLED,
}
"""A log whose last line is one of these is over."""

DURABLE = frozenset(
    {
        *TASK_ENDS,
        EventType.TASK_STEP_COMPLETED,
        EventType.TASK_STEP_FAILED,
        EventType.TASK_STEP_CANCELLED,
    }
)
"""Ends: on the disk, not only in the system's cache, before anybody is told."""


@dataclass(frozen=True, slots=True)
class Change:
    """One step of a Task's history; `at` only stamps what it touches."""

    at: datetime
    payload: Payload
    step_id: str | None = None

    @property
    def event_type(self) -> EventType:
        return self.payload.event_type
