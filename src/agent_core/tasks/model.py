"""Tasks and steps as data: what a log holds, what the graph is made of, what answers show."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pydantic import StringConstraints

from agent_core.types import Frozen, SafeId, UtcDatetime

TaskId = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_-]{1,64}$")]
"""Chosen by the model; unique among the session's active Tasks."""

StepId = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_-]{1,64}$")]
"""Chosen by the model; unique within its Task."""

WalName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_-]{1,80}(\.wal\.jsonl)?$")]
"""The log's file name, with or without its ending; never made from a title."""

Title = Annotated[str, StringConstraints(max_length=1000)]
Text = Annotated[str, StringConstraints(max_length=100_000)]
"""Prose of a model. Anything longer belongs into an artifact."""


class TaskStatus(StrEnum):
    """Where a Task is."""

    PENDING = "pending"
    RUNNING = "running"
    BLOCKED = "blocked"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """The Task is over for good."""
        return self in _TASK_ENDS


class StepStatus(StrEnum):
    """Where a step is."""

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
        """Nobody works on it any more, though a failed step can be reopened."""
        return self in _STEP_ENDS

    @property
    def is_claim(self) -> bool:
        """A run holds it."""
        return self in CLAIMS


_TASK_ENDS = frozenset({TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED})
_STEP_ENDS = frozenset({StepStatus.COMPLETED, StepStatus.FAILED, StepStatus.CANCELLED})
CLAIMS = (StepStatus.CLAIMED, StepStatus.RUNNING)
UNFINISHED = tuple(status for status in StepStatus if status not in _STEP_ENDS)


class Step(Frozen):
    """One piece of work.

    The claim's agent and run stay named on a step that they ended; `lease_expires_at` is set
    only while the claim holds.
    """

    step_id: StepId
    title: str = ""
    summary: str = ""
    status: StepStatus = StepStatus.PENDING
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
        """This run holds the claim now."""
        return self.status.is_claim and self.claimed_by_run_id == run_id


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
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class Claim:
    """That a run took a step; `token` only grows, so that a later claim is known to be later."""

    step_id: str
    token: int
