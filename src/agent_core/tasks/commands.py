"""What can be asked of a Task, as data."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from agent_core.tasks.model import StepStatus, TaskStatus
from agent_core.tasks.operations import Operation


@dataclass(frozen=True, slots=True)
class Update:
    """Change the graph; only an orchestrator does."""

    operations: Sequence[Operation]


@dataclass(frozen=True, slots=True)
class ClaimStep:
    """Take a ready step, until `lease` unless renewed."""

    step_id: str
    agent_id: str
    run_id: str
    lease: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """How a step goes; absent values stay as they are.

    `status` is one of running, blocked, completed, failed, cancelled; None is a sign of life.
    """

    step_id: str
    status: StepStatus | None = None
    result_summary: str | None = None
    artifact_ids: tuple[str, ...] | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class ReportStep:
    """Write a report down.

    `holder` is the run that must hold the claim, and renews it until `lease`; None is the
    orchestrator, who may speak for any step and renews nothing.
    """

    report: Report
    holder: str | None
    lease: datetime


@dataclass(frozen=True, slots=True)
class Complete:
    """End the Task well."""

    result_summary: str | None = None


@dataclass(frozen=True, slots=True)
class AbortTask:
    """End the Task, failed or cancelled, with everything that is unfinished."""

    status: TaskStatus
    reason: str | None = None


class RunEnding(StrEnum):
    """How a worker's run ended while its step was open; the reason in the step's last line."""

    FINISHED = "worker_finished_without_step_terminal"
    CANCELLED = "worker_cancelled"
    TIMEOUT = "worker_timeout"
    FAILED = "worker_failed"


@dataclass(frozen=True, slots=True)
class CloseRun:
    """A worker's run is over: if its step is still open, the step has failed.

    `error` says what made the run fail; it is added to the step's result.
    """

    run_id: str
    ending: RunEnding
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ExpireLeases:
    """Take these claims back. `may_promote` also writes what a crash left unwritten."""

    step_ids: Sequence[str]
    may_promote: bool = False


Command = Update | ClaimStep | ReportStep | Complete | AbortTask | CloseRun | ExpireLeases
