"""Runtime events: the timeline of a session, for people and for replay."""

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from pydantic import Field

from agent_core.types.content import Frozen, SafeId, UtcDatetime

if TYPE_CHECKING:
    from agent_core.types.event_details import EventDetails


class EventLevel(StrEnum):
    """The importance of an event. A default stream leaves `debug` out."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class EventType(StrEnum):
    """Every kind of event."""

    RUN_QUEUED = "run_queued"
    RUN_DEQUEUED = "run_dequeued"
    RUN_TAKEN_OVER = "run_taken_over"
    RUN_WITHOUT_WORKER = "run_without_worker"
    RUN_COMPLETED = "run_completed"
    RUN_FAILED = "run_failed"
    RUN_CANCELLED = "run_cancelled"
    CANCEL_TIMEOUT = "cancel_timeout"
    LOOP_STARTED = "loop_started"
    LOOP_COMPLETED = "loop_completed"
    LOOP_ABORTED = "loop_aborted"
    LOOP_FAILED = "loop_failed"
    CONTEXT_BUILT = "context_built"
    MESSAGE_CREATED = "message_created"
    MESSAGE_DELTA = "message_delta"
    MESSAGE_COMPLETED = "message_completed"
    MESSAGE_WAITING = "message_waiting"
    MESSAGE_REFUSED = "message_refused"
    MESSAGE_TAKEN_BACK = "message_taken_back"
    MODEL_STARTED = "model_started"
    MODEL_TEXT_DELTA = "model_text_delta"
    MODEL_REASONING_DELTA = "model_reasoning_delta"
    MODEL_COMPLETED = "model_completed"
    MODEL_FAILED = "model_failed"
    MODEL_RETRY = "model_retry"
    TOOL_STARTED = "tool_started"
    TOOL_PROGRESS = "tool_progress"
    TOOL_OUTPUT = "tool_output"
    TOOL_COMPLETED = "tool_completed"
    TOOL_FAILED = "tool_failed"
    TOOL_DENIED = "tool_denied"
    TOOL_TIMEOUT = "tool_timeout"
    PERMISSION_REQUESTED = "permission_requested"
    PERMISSION_DECIDED = "permission_decided"
    PERMISSION_FAILED = "permission_failed"
    HOOK_STARTED = "hook_started"
    HOOK_COMPLETED = "hook_completed"
    HOOK_FAILED = "hook_failed"
    HOOK_DENIED = "hook_denied"
    STOP_HOOK_PREVENTED = "stop_hook_prevented"
    GUARD_REPLACED = "guard_replaced"
    AGENT_CHANGED = "agent_changed"
    CHILD_AGENT_CREATED = "child_agent_created"
    CHILD_AGENT_COMPLETED = "child_agent_completed"
    CHILD_AGENT_FAILED = "child_agent_failed"
    CHILD_AGENT_CANCEL_REQUESTED = "child_agent_cancel_requested"
    CHILD_AGENT_CANCELLED = "child_agent_cancelled"
    CHILD_AGENT_CANCEL_TIMEOUT = "child_agent_cancel_timeout"
    WORKER_DISPATCHED = "worker_dispatched"
    WORKER_DISPATCH_FAILED = "worker_dispatch_failed"
    CHILD_RESULT_SCHEMA_VALIDATION_FAILED = "child_result_schema_validation_failed"
    COMPACT_STARTED = "compact_started"
    COMPACT_COMPLETED = "compact_completed"
    COMPACT_FAILED = "compact_failed"
    MEMORY_EXTRACTION_STARTED = "memory_extraction_started"
    MEMORY_EXTRACTION_COMPLETED = "memory_extraction_completed"
    MEMORY_EXTRACTION_FAILED = "memory_extraction_failed"
    TASK_CREATED = "task_created"
    TASK_RUNNING = "task_running"
    TASK_UPDATED = "task_updated"
    TASK_REOPENED = "task_reopened"
    TASK_FAILED = "task_failed"
    TASK_COMPLETED = "task_completed"
    TASK_CANCELLED = "task_cancelled"
    TASK_STEP_READY = "task_step_ready"
    TASK_STEP_CLAIMED = "task_step_claimed"
    TASK_STEP_STARTED = "task_step_started"
    TASK_STEP_CLAIM_SKIPPED = "task_step_claim_skipped"
    TASK_STEP_UPDATED = "task_step_updated"
    TASK_STEP_BLOCKED = "task_step_blocked"
    TASK_STEP_COMPLETED = "task_step_completed"
    TASK_STEP_FAILED = "task_step_failed"
    TASK_STEP_CANCELLED = "task_step_cancelled"
    TASK_STEP_REOPENED = "task_step_reopened"
    TASK_STEP_LEASE_EXPIRED = "task_step_lease_expired"
    TASK_WAL_REPLAYED = "task_wal_replayed"
    TASK_WAL_FAILED = "task_wal_failed"
    MCP_SERVER_FAILED = "mcp_server_failed"
    PROVIDER_TOOL_DENIED = "provider_tool_denied"
    SESSION_MOVED = "session_moved"
    ERROR = "error"


LIVE_EVENTS = frozenset(
    {EventType.MODEL_TEXT_DELTA, EventType.MODEL_REASONING_DELTA, EventType.MESSAGE_DELTA}
)
"""Events that are shown as they happen and never stored; only the finished message is stored."""

CLOSING_EVENTS = frozenset({EventType.RUN_COMPLETED, EventType.RUN_FAILED, EventType.RUN_CANCELLED})
"""Events that end a run: exactly one of them ends the stream of every run."""


class EventDraft(Struct, frozen=True):
    """An event that has no place in the timeline yet."""

    event_type: EventType
    payload: Mapping[str, Any]
    level: EventLevel = EventLevel.INFO
    node_id: str | None = None
    tool_call_id: str | None = None


class RuntimeEvent(Frozen):
    """One event.

    `seq` is the session's order, `run_seq` the run's, both from 1 and set by the transaction that
    stored the event; live deltas are not stored and have neither.
    """

    event_id: SafeId
    seq: int | None = None
    run_seq: int | None = None
    session_id: SafeId
    agent_id: SafeId | None = None
    run_id: SafeId | None = None
    level: EventLevel = EventLevel.INFO
    event_type: EventType
    node_id: SafeId | None = None
    tool_call_id: SafeId | None = None
    payload: dict[str, Any] = Field(default_factory=dict[str, Any])
    created_at: UtcDatetime

    @property
    def details(self) -> "EventDetails":
        """The payload as a record of `agent_core.types.event_details`, decoded on each use.

        Reading it never fails: a missing or malformed field has its default.
        """
        from agent_core.types.event_details import read_details  # noqa: PLC0415 - for readers only

        return read_details(self.event_type, self.payload)
