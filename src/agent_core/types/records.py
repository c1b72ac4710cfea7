"""Agents, the rows of the session database, and the answers made of them."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from pydantic import Field

from agent_core.types.budget import BudgetUse
from agent_core.types.content import (
    AgentStatus,
    AgentType,
    ContentBlock,
    EndReason,
    ErrorPayload,
    Frozen,
    Node,
    Role,
    RunMode,
    RunStatus,
    SafeId,
    SessionStatus,
    Usage,
    UtcDatetime,
)
from agent_core.types.events import RuntimeEvent
from agent_core.types.lanes import HERE, SNAPSHOT
from agent_core.types.model import ModelRequest
from agent_core.types.options import PermissionMode, StoredOptions


class AgentSource(StrEnum):
    """Where a definition comes from."""

    BUILTIN = "builtin"
    USER = "user"
    CODE = "code"


class AgentRole(StrEnum):
    """What an agent is in a run; decides which tools it can have at all."""

    MAIN = "main"
    ORCHESTRATOR = "orchestrator"
    SUB = "sub"
    FORK = "fork"
    WORKER = "worker"
    COMPACT = "compact"


class AgentDefinition(Frozen):
    """A kind of agent: its instructions are `body`, catalogs show `description` only."""

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


class SessionRecord(Frozen):
    """One session; `owner` is the runtime that runs it now, if any.

    `epoch` counts the owners: an append of an earlier one is refused.
    `title` is None until there is a message to make it of.
    `tenant` is whose session it is, and `place` where its files are, when workers carry out runs.
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
        """The name by which snapshots of its files are known: its folder, where they are there."""
        return snapshot_folder(self.session_id) if self.place == SNAPSHOT else self.cwd


def snapshot_folder(session_id: str) -> str:
    """What stands for the folder of a session whose files every machine can have."""
    return f"{SNAPSHOT}:{session_id}"


class SessionSummary(Frozen):
    """A session in a list.

    Attributes:
        short_id: the shortest prefix of the id, of 13 characters or more, that no other has.
        title: what the user has named it, or the first words of its first message.
        cwd: the project it works in.
        status: of its last run, children's left out; None before the first.
        turns: the model turns of its runs, children's left out.
        usage: what all its runs and its work in the background have cost.
        is_waiting: a run of it waits for an answer.
        parent_session_id: the session it was forked from.
    """

    session_id: SafeId
    short_id: str
    title: str | None = None
    cwd: str
    status: RunStatus | None = None
    turns: int = 0
    usage: Usage = Field(default_factory=Usage)
    is_waiting: bool = False
    parent_session_id: SafeId | None = None
    created_at: UtcDatetime
    updated_at: UtcDatetime


CostUnit = Literal["all", "session", "project", "model", "day"]
"""What costs are added up by."""


class CostSummary(Frozen):
    """What the runs of one day, model, project or session have cost together.

    Attributes:
        key: the day, as 2026-11-23 in the local time; the model, as `provider:name`; the folder of
            the project; the id of the session; or `all`. Of what was done in the background day and
            model are not known: it is `background` there. A run of an earlier version has the model
            `unknown`.
        title: of the session.
        sessions: how many there are.
        runs: how many there are, children's left out.
        usage: of all their calls; its `cost` is None if the price of one of them is not known.
        known_cost: in US dollars, of the calls whose price is known.
        unpriced: runs, children and kinds of background work with a call of an unknown price.
    """

    key: str
    title: str | None = None
    sessions: int
    runs: int
    usage: Usage
    known_cost: float
    unpriced: int


class SessionMatch(Frozen):
    """A message, a turn's calls or a result in which a search has found its words.

    Attributes:
        title, cwd: of the session.
        tools: whose calls or results it holds.
        snippet: the text around the first word, on one line.
    """

    session_id: SafeId
    title: str | None = None
    cwd: str
    node_id: SafeId
    run_id: SafeId | None = None
    role: Role
    tools: list[str] = []
    snippet: str
    created_at: UtcDatetime


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


MODEL_KEY = "model"
"""In the metadata of a run: the model it asks first, as `provider:name`."""


class RunRecord(Frozen):
    """One run of one agent.

    `prompt` is the user's message until it stands in the history as the run's first node.
    `options` are those its caller gave, if any.
    `cancel_requested_at` is when a process asked for the run to be cancelled: its owner does so
    at its next heartbeat.
    `lane` is the queue from which a worker takes the run; `takeovers` counts the dead workers
    that others have taken it over from.
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
        """Whether a worker takes it, and another one when that has died."""
        return self.lane is not None and not self.lane.startswith(HERE)

    @property
    def has_begun(self) -> bool:
        """Whether a process carries it out, or has died over it."""
        return self.status in {RunStatus.PENDING, RunStatus.RUNNING}


ArtifactSource = bytes | Path | BinaryIO
"""What an artifact is made of: bytes, a file that is moved, an open file read from its start."""


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


class ReplayResult(Frozen):
    """A stretch of history. Nodes and events stay separate, each ordered by its own sequence.

    `next_seq` is the first event sequence not included; pass it as `from_seq` to go on, and
    stop when it is None.
    """

    session: SessionRecord
    agents: list[AgentRecord] = []
    runs: list[RunRecord] = []
    budgets: list[BudgetUse] = []
    nodes: list[Node] = []
    events: list[RuntimeEvent] = []
    artifacts: list[ArtifactRecord] = []
    next_seq: int | None = None


class InspectResult(Frozen):
    """One run, looked at from inside."""

    session_id: SafeId
    agent: AgentRecord
    run: RunRecord
    nodes: list[Node] = []
    events: list[RuntimeEvent] = []
    artifacts: list[ArtifactRecord] = []
    requests: list[ModelRequest] = []


class CancelResult(Frozen):
    """How a cancellation went; `timed_out` means that cleaning up goes on in the background."""

    run_id: SafeId
    status: RunStatus
    timed_out: bool = False


class CleanupFailure(Frozen):
    """Something that could not be deleted."""

    id: str
    error: ErrorPayload


class CleanupResult(Frozen):
    """What a clean-up found, and what it removed unless it was a dry run.

    `freed_bytes` is what the removed files took; in a dry run, what the candidates take.
    """

    dry_run: bool
    candidates: list[str] = []
    deleted: list[str] = []
    failed: list[CleanupFailure] = []
    freed_bytes: int = 0


class DeleteSessionResult(Frozen):
    """What became of a deleted session; `failed` lists files that could not be removed."""

    session_id: SafeId
    deleted: bool
    failed: list[CleanupFailure] = []


class RunIdentity(Frozen):
    """Who a run is: ids, role and modes, the same from its first event to its last."""

    session_id: SafeId
    agent_id: SafeId
    run_id: SafeId
    role: AgentRole = AgentRole.MAIN
    agent_definition_id: SafeId | None = None
    mode: RunMode = RunMode.NORMAL
    permission_mode: PermissionMode = "ask"
    parent_agent_id: SafeId | None = None
    parent_run_id: SafeId | None = None


SegmentName = Literal[
    "system",
    "instructions",
    "skills",
    "memory",
    "tools",
    "task board",
    "conversation",
    "tool results",
]


class ContextSegment(Frozen):
    """One part of what the next request of a session begins with; tokens are estimates."""

    name: SegmentName
    tokens: int


class PrefixChange(Frozen):
    """A request that did not begin with what the one before it was: a cache had to be filled anew.

    Attributes:
        part: the first that had changed: `static_system`, `tools`, `dynamic_system` or `history`.
        turn: of the run, from 1.
    """

    part: str
    run_id: SafeId
    turn: int
    created_at: UtcDatetime


class ContextReport(Frozen):
    """What fills the context window of a session.

    Attributes:
        model: that was asked last; the configured one before the first request.
        window: of the model, in tokens.
        reserve: what is kept free of it for the answer.
        segments: in the order in which they stand in a request.
        free: what is left for messages.
        last_change: among the last requests, the latest that moved the cached prefix.
        last_input_tokens: of the last request, as the service counted them; 0 if there is none.
        last_cached_tokens: those of them that it had in its cache.
    """

    session_id: str
    model: str
    window: int
    reserve: int
    segments: list[ContextSegment] = []
    free: int = 0
    last_change: PrefixChange | None = None
    last_input_tokens: int = 0
    last_cached_tokens: int = 0

    @property
    def used(self) -> int:
        """Tokens of all segments."""
        return sum(segment.tokens for segment in self.segments)
