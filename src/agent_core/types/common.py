"""What every shared type is built from: the strict base model, ids, times, statuses, usage."""

import os
import random
import time
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, StringConstraints

from agent_core.errors import AgentCoreError, ErrorCode, ProviderError


class Frozen(BaseModel):
    """Base of every public type: unknown fields are refused, values do not change.

    Validators are built when a type is first used: most programs use few of them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


SafeId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.:\-]{1,128}$")]
"""An id that is safe in a file name, a log line and a URL."""

SESSION_ID_PATTERN = r"[A-Za-z0-9_-]{1,64}"
"""What a caller may choose as a session id (matched as a whole)."""


def _to_utc(value: datetime) -> datetime:
    return value if value.tzinfo is UTC else value.astimezone(UTC)


UtcDatetime = Annotated[AwareDatetime, AfterValidator(_to_utc)]
"""An aware point in time, always in UTC; ISO-8601 when stored."""


def utc_now() -> datetime:
    """The current time, aware, in UTC."""
    return datetime.now(UTC)


_RANDOM = random.Random()  # noqa: S311 - ids are no secrets, and asking the kernel costs more
os.register_at_fork(after_in_child=_RANDOM.seed)


def new_id(prefix: str) -> str:
    """Make an id that sorts by creation time: `<prefix>_<28 hex digits>`.

    Nanoseconds first, then 48 random bits: unique even in the same tick of the clock. Order in
    history never relies on it; sequence numbers do that.
    """
    return f"{prefix}_{time.time_ns():016x}{_RANDOM.getrandbits(48):012x}"


class RunStatus(StrEnum):
    """Where a run is. `aborted` is understood when read and never written.

    `waiting`: the run has stopped at a question and goes on when that is answered.
    """

    QUEUED = "queued"
    PENDING = "pending"
    RUNNING = "running"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"
    ABORTED = "aborted"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """Nothing will happen in this run any more."""
        return self not in _OPEN_STATUSES


_OPEN_STATUSES = {RunStatus.QUEUED, RunStatus.PENDING, RunStatus.RUNNING, RunStatus.WAITING}


class EndReason(StrEnum):
    """Why a run's loop ended."""

    COMPLETED = "completed"
    MAX_TURNS = "max_turns"
    ABORTED_STREAMING = "aborted_streaming"
    ABORTED_TOOLS = "aborted_tools"
    PROMPT_TOO_LONG = "prompt_too_long"
    MAX_OUTPUT_TOKENS_RECOVERY = "max_output_tokens_recovery"
    FAILED = "failed"

    @property
    def status(self) -> RunStatus:
        """The run status that goes with this reason."""
        match self:
            case EndReason.COMPLETED:
                return RunStatus.COMPLETED
            case EndReason.ABORTED_STREAMING | EndReason.ABORTED_TOOLS:
                return RunStatus.CANCELLED
            case _:
                return RunStatus.FAILED


class RunMode(StrEnum):
    """Who leads the run: one agent, or an orchestrator with workers."""

    NORMAL = "normal"
    ORCHESTRATOR = "orchestrator"


class SessionStatus(StrEnum):
    """Whether a session still takes messages."""

    ACTIVE = "active"
    ARCHIVED = "archived"


class AgentStatus(StrEnum):
    """What an agent is doing between and during its runs."""

    IDLE = "idle"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class AgentType(StrEnum):
    """How an agent came to be. A worker is a `sub`, a compaction a `fork`, by `purpose`."""

    MAIN = "main"
    ORCHESTRATOR = "orchestrator"
    SUB = "sub"
    FORK = "fork"


class Usage(Frozen):
    """Tokens one model call or one run has cost, as the provider reported them."""

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    raw_usage: dict[str, Any] = {}

    @classmethod
    def from_input_output(cls, input_tokens: int, output_tokens: int) -> "Usage":
        """Usage of a call that reports no more than this."""
        return cls(
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            total_tokens=input_tokens + output_tokens,
        )

    @property
    def prompt_tokens(self) -> int:
        """`input_tokens`, under the name many services use."""
        return self.input_tokens

    @property
    def completion_tokens(self) -> int:
        """`output_tokens`, under the name many services use."""
        return self.output_tokens

    def plus(self, other: "Usage") -> "Usage":
        """The sum of both; the raw reports of single calls are not carried along."""
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            total_tokens=self.total_tokens + other.total_tokens,
            cache_read_tokens=self.cache_read_tokens + other.cache_read_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
        )


class ErrorPayload(Frozen):
    """An error as data: what is stored, sent to the model and shown. Never a traceback."""

    type: str
    code: ErrorCode
    message: str
    retryable: bool = False
    details: dict[str, Any] = {}
    redacted: bool = False

    @classmethod
    def of(cls, error: AgentCoreError) -> Self:
        """The error as data. Every kind of provider error is a `ProviderError` to the outside."""
        return cls(
            type="ProviderError" if isinstance(error, ProviderError) else type(error).__name__,
            code=error.code,
            message=error.message,
            retryable=error.retryable,
            details=error.details,
        )
