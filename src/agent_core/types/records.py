"""Agents, and the rows of the session database."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from pydantic import Field

from agent_core.types.content import (
    AgentStatus,
    AgentType,
    ContentBlock,
    EndReason,
    ErrorPayload,
    Frozen,
    RunMode,
    RunStatus,
    SafeId,
    SessionStatus,
    Usage,
    UtcDatetime,
)
from agent_core.types.lanes import HERE, SNAPSHOT
from agent_core.types.options import PermissionMode, StoredOptions


class AgentSource(StrEnum):
    """The origin of a definition."""

    BUILTIN = "builtin"
    USER = "user"
    CODE = "code"


class AgentRole(StrEnum):
    """The role of an agent in a run; decides which tools it can have at all."""

    MAIN = "main"
    ORCHESTRATOR = "orchestrator"
    SUB = "sub"
    FORK = "fork"
    WORKER = "worker"
    COMPACT = "compact"


class AgentDefinition(Frozen):
    """A kind of agent: `body` holds its instructions; catalogs show only `description`."""

    agent_definition_id: SafeId
    name: str
    description: str
    body: str = ""
    model_profile: str | dict[str, Any] | None = None
    suggested_tools: list[str] = []
    tags: list[str] = []
    overrides: str | None = None
    source: AgentSource = AgentSource.CODE
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            agent_definition_id: str,
            name: str,
            description: str,
            body: str = ...,
            model_profile: str | dict[str, Any] | None = ...,
            suggested_tools: list[str] = ...,
            tags: list[str] = ...,
            overrides: str | None = ...,
            source: AgentSource | Literal["builtin", "user", "code"] = ...,
            metadata: dict[str, Any] = ...,
        ) -> None: ...


SESSION_INSTRUCTIONS = "instructions"
"""Metadata key of a session for instructions that all its runs have."""

BEGAN_GIVEN = "began_given"
"""Metadata key of a session that began with a conversation which a program gave."""


class SessionRecord(Frozen):
    """One session; `owner` is the runtime that runs it now, if any.

    `epoch` counts the owners: an append of an earlier one is refused. `title` is None until there
    is a message to derive it from. If workers execute runs, `tenant` is the session's tenant, and
    `place` the place of its files.
    """

    session_id: SafeId
    cwd: str
    root_agent_id: SafeId | None = None
    active_node_id: SafeId | None = None
    parent_session_id: SafeId | None = None
    status: SessionStatus = SessionStatus.ACTIVE
    owner: str | None = None
    lease_expires_at: UtcDatetime | None = None
    epoch: int = 0
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])
    created_at: UtcDatetime
    updated_at: UtcDatetime
    title: str | None = None
    tenant: str | None = None
    place: str | None = None

    @property
    def files_folder(self) -> str:
        """The name of its files' folder in snapshots: its folder, or else a substitute."""
        return snapshot_folder(self.session_id) if self.place == SNAPSHOT else self.cwd


def snapshot_folder(session_id: str) -> str:
    """Return the substitute for the folder of a session whose files every machine can have."""
    return f"{SNAPSHOT}:{session_id}"


class AgentRecord(Frozen):
    """One agent of a session."""

    agent_id: SafeId
    session_id: SafeId
    parent_agent_id: SafeId | None = None
    agent_type: AgentType
    agent_definition_id: str | None = None
    created_by_run_id: SafeId | None = None
    fork_from_node_id: SafeId | None = None
    status: AgentStatus = AgentStatus.IDLE
    result: dict[str, Any] | None = None
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])
    created_at: UtcDatetime
    updated_at: UtcDatetime


class RunPrompt(Frozen):
    """The message a run was started with."""

    content: list[ContentBlock]
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])


class WaitingMessage(Frozen):
    """A message that was sent to a run and that its model has not seen.

    Attributes:
        prompt: the message, without secrets.
        is_taken: the process that executes the run is delivering it.
        created_at: when it was sent.
    """

    message_id: SafeId
    session_id: SafeId
    run_id: SafeId
    prompt: RunPrompt
    is_taken: bool = False
    created_at: UtcDatetime


MEMORY_USAGE = "memory_usage"
"""Metadata key of a run for the tokens that the choice of memories has taken in it."""

LAST_TURN = "cancel_after_turn"
"""Metadata key of a run that is cancelled after the turn in which this was asked for."""

MODEL_KEY = "model"
"""Metadata key of a run for the model it uses first, as `provider:name`."""


class RunRecord(Frozen):
    """One run of one agent.

    `prompt` is the user's message until it is in the history as the run's first node. `options` are
    set by its caller, if any. `cancel_requested_at` is the time at which a process asked to cancel
    the run: its owner does so at its next heartbeat. `lane` is the queue from which a worker takes
    the run; `takeovers` counts the dead workers from which others have taken it over.
    """

    run_id: SafeId
    session_id: SafeId
    agent_id: SafeId
    parent_run_id: SafeId | None = None
    mode: RunMode = RunMode.NORMAL
    status: RunStatus
    start_node_id: SafeId | None = None
    end_node_id: SafeId | None = None
    end_reason: EndReason | None = None
    turn_count: int = 0
    usage: Usage = Field(default_factory=Usage)
    error: ErrorPayload | None = None
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])
    created_at: UtcDatetime
    updated_at: UtcDatetime
    prompt: RunPrompt | None = None
    cancel_requested_at: UtcDatetime | None = None
    options: StoredOptions | None = None
    lane: str | None = None
    takeovers: int = 0

    @property
    def is_for_workers(self) -> bool:
        """Return whether workers execute it, one after another if they die."""
        return self.lane is not None and not self.lane.startswith(HERE)

    @property
    def has_begun(self) -> bool:
        """Return whether a process executes it, or died while executing it."""
        return self.status in {RunStatus.PENDING, RunStatus.RUNNING}


ArtifactSource = bytes | Path | BinaryIO
"""Source of an artifact: bytes, a file that is moved, an open file read from its start."""


class ArtifactRecord(Frozen):
    """A file kept beside the database because it is too large, or too raw, for a message."""

    artifact_id: SafeId
    session_id: SafeId
    agent_id: SafeId | None = None
    run_id: SafeId | None = None
    node_id: SafeId | None = None
    tool_call_id: SafeId | None = None
    kind: str
    path: str
    filename: str
    mime_type: str | None = None
    size_bytes: int
    summary: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])
    created_at: UtcDatetime


class RunIdentity(Frozen):
    """Identity of a run: ids, role, modes and the beginning of a child's task; never changes.

    Attributes:
        questions_wait: its questions wait for an answer, whatever the settings of its process say.
    """

    session_id: SafeId
    agent_id: SafeId
    run_id: SafeId
    role: AgentRole = AgentRole.MAIN
    agent_definition_id: SafeId | None = None
    mode: RunMode = RunMode.NORMAL
    permission_mode: PermissionMode = "ask"
    parent_agent_id: SafeId | None = None
    parent_run_id: SafeId | None = None
    root_run_id: SafeId | None = None
    task: str | None = None
    questions_wait: bool = False

    @property
    def root_id(self) -> str:
        """Id of the user's run that this run is, or belongs to."""
        return self.root_run_id or self.parent_run_id or self.run_id


class CancelResult(Frozen):
    """Result of a cancellation; `timed_out` means that cleaning up continues in the background."""

    run_id: SafeId
    status: RunStatus
    timed_out: bool = False
