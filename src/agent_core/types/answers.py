"""Results of questions to a runtime about its sessions, its runs and its files."""

from typing import Any, Generic, Literal, TypeVar

from pydantic import Field

from agent_core.types.budget import BudgetUse
from agent_core.types.content import (
    EndReason,
    ErrorPayload,
    Frozen,
    Node,
    Role,
    RunStatus,
    SafeId,
    Usage,
    UtcDatetime,
)
from agent_core.types.events import RuntimeEvent
from agent_core.types.model import ModelRequest
from agent_core.types.records import AgentRecord, ArtifactRecord, RunRecord, SessionRecord

Item = TypeVar("Item")


class Page(Frozen, Generic[Item]):
    """A part of a list, the newest items first.

    `next_cursor` is where the next page begins; None at the end of the list.
    """

    items: list[Item] = []
    next_cursor: str | None = None


class Setting(Frozen):
    """One key of the configuration.

    Attributes:
        key: with dots, as error messages have it.
        value: effective value; None: not set.
        origin: a line of the file, an option, a variable, or `default`.
        is_set: for the name of a variable: whether it is set.
    """

    key: str
    value: Any = None
    origin: str
    is_set: bool | None = None


class DamagedRow(Frozen):
    """A row of the database that cannot be read, or not all of it.

    Attributes:
        table: its table.
        row_id: its id.
        problem: why; parts that can be read are where they belong.
    """

    table: str
    row_id: str
    problem: str

    def __str__(self) -> str:
        """Name the row and the problem."""
        return f"{self.table} {self.row_id}: {self.problem}"


class SessionSummary(Frozen):
    """A session in a list.

    Attributes:
        short_id: the shortest unique prefix of the id, of at least 13 characters.
        title: the name that the user has given it, or the first words of its first message.
        cwd: the project it works in.
        status: status of its last run, without children's; None before the first run.
        turns: model turns of its runs, without children's.
        usage: usage of all its runs and its background work.
        is_waiting: a run of it waits for an answer.
        parent_session_id: the session it was forked from.
        damaged: its row, if a part of it cannot be read.
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
    damaged: DamagedRow | None = None


CostUnit = Literal["all", "session", "project", "model", "day"]
"""The unit by which costs are added up."""


class CostSummary(Frozen):
    """The total cost of the runs of one day, model, project or session.

    Attributes:
        key: the day, as 2026-11-23 in local time; the model, as `provider:name`; the folder of the
            project; the id of the session; or `all`. For background work the day and the model are
            not known: there the key is `background`. A run of an earlier version has the model
            `unknown`.
        title: title of the session.
        sessions: number of sessions.
        runs: number of runs, without children's.
        usage: usage of all their calls; its `cost` is None if the price of one of them is not
            known.
        known_cost: cost in US dollars of the calls whose price is known.
        unpriced: number of runs, children and kinds of background work with a call of unknown
            price.
    """

    key: str
    title: str | None = None
    sessions: int
    runs: int
    usage: Usage
    known_cost: float
    unpriced: int


class SessionMatch(Frozen):
    """A message, a turn's calls or a result that contains the words of a search.

    Attributes:
        title, cwd: title and folder of the session.
        tools: names of the tools whose calls or results it holds.
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


class ReplayResult(Frozen):
    """A stretch of history. Nodes and events stay separate, each ordered by its own sequence.

    `next_seq` is the first event sequence not included; pass it as `from_seq` to continue, and stop
    when it is None. `damaged` names the rows that are not here, or not whole.
    """

    session: SessionRecord
    agents: list[AgentRecord] = []
    runs: list[RunRecord] = []
    budgets: list[BudgetUse] = []
    nodes: list[Node] = []
    events: list[RuntimeEvent] = []
    artifacts: list[ArtifactRecord] = []
    next_seq: int | None = None
    damaged: list[DamagedRow] = []


class SessionPage(Frozen):
    """The newest part of a session's history: of all its agents, each kind oldest first.

    Attributes:
        nodes: of the session's tree; `session.active_node_id` is where it continues.
        runs, artifacts: of all agents, too.
        usage: usage of the whole session, with its children and background work.
        cost: the same in US dollars; None if a part of it is unknown.
        next_cursor: where older nodes, runs and artifacts begin; None if there are none.
        damaged: rows that are not here, or not whole.
    """

    session: SessionRecord
    nodes: list[Node] = []
    runs: list[RunRecord] = []
    artifacts: list[ArtifactRecord] = []
    usage: Usage = Field(default_factory=Usage)
    cost: float | None = None
    next_cursor: str | None = None
    damaged: list[DamagedRow] = []


class RunReport(Frozen):
    """A run as it is stored now.

    Attributes:
        text: the answer, or what arrived of the last reply if the run did not complete; None
            until the run has ended.
        usage: usage of its model calls, as far as stored.
        cost: the same in US dollars; None if it is unknown.
        metadata: what its caller has stored with it, and what the runtime knows about it.
        pending_requests: ids of the questions that it, or a child, waits for.
    """

    run_id: SafeId
    session_id: SafeId
    status: RunStatus
    end_reason: EndReason | None = None
    text: str | None = None
    error: ErrorPayload | None = None
    usage: Usage = Field(default_factory=Usage)
    cost: float | None = None
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])
    pending_requests: list[str] = []


class InspectResult(Frozen):
    """The details of one run."""

    session_id: SafeId
    agent: AgentRecord
    run: RunRecord
    nodes: list[Node] = []
    events: list[RuntimeEvent] = []
    artifacts: list[ArtifactRecord] = []
    requests: list[ModelRequest] = []


class CleanupFailure(Frozen):
    """Something that could not be deleted."""

    id: str
    error: ErrorPayload


class CleanupResult(Frozen):
    """The candidates that a clean-up found, and the ones it removed unless it was a dry run.

    `freed_bytes` is the size of the removed files; in a dry run, the size of the candidates.
    """

    dry_run: bool
    candidates: list[str] = []
    deleted: list[str] = []
    failed: list[CleanupFailure] = []
    freed_bytes: int = 0


class MemoryWish(Frozen):
    """The outcome of a user's request to remember or forget something.

    Attributes:
        session_id: the session in which it was said.
        remembered: the summaries of the memories that were written or changed.
        forgotten: the summaries of the deleted memories.
        error: why it could not be carried out, which is tried again later; empty otherwise.
        is_left: it was said in plan mode, and is left to the next run in another mode.
    """

    session_id: str
    remembered: list[str] = []
    forgotten: list[str] = []
    error: str = ""
    is_left: bool = False


class BytesUsed(Frozen):
    """The bytes of stored sessions: the text in rows, artifacts, and snapshots of files.

    Snapshots share equal content: only content that no other session needs is counted.
    """

    row_bytes: int = 0
    artifact_bytes: int = 0
    snapshot_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """The sum."""
        return self.row_bytes + self.artifact_bytes + self.snapshot_bytes


class SessionBytes(BytesUsed):
    """The bytes of one session, which deleting it would free."""

    session_id: SafeId
    title: str | None = None
    cwd: str = ""


class ProjectBytes(BytesUsed):
    """The bytes of all sessions that work in one folder."""

    project: str
    sessions: int = 0


class StoredBytes(Frozen):
    """The sessions and projects that take space, the largest first.

    `database_bytes` is the size of the database's file and log, of which `free_bytes` are unused;
    None with a server.
    """

    sessions: list[SessionBytes] = []
    projects: list[ProjectBytes] = []
    database_bytes: int | None = None
    free_bytes: int | None = None


class DeleteSessionResult(Frozen):
    """The result of deleting a session; `failed` lists what could not be removed yet."""

    session_id: SafeId
    deleted: bool
    failed: list[CleanupFailure] = []


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
    """One part of a session's next request; tokens are estimates."""

    name: SegmentName
    tokens: int


class PrefixChange(Frozen):
    """A request that did not begin like the one before it, so that a cache had to be filled again.

    Attributes:
        part: the first part that had changed: `static_system`, `tools`, `dynamic_system` or
            `history`.
        turn: turn of the run, from 1.
    """

    part: str
    run_id: SafeId
    turn: int
    created_at: UtcDatetime


class ContextReport(Frozen):
    """The contents of a session's context window.

    Attributes:
        model: the model used last; the configured one before the first request.
        window: size of the model's window in tokens.
        reserve: tokens kept free for the answer.
        segments: parts of a request, in order.
        free: tokens left for messages.
        last_change: among the last requests, the latest one that changed the cached prefix.
        last_input_tokens: tokens of the last request, as the service counted them; 0 if there is
            none.
        last_cached_tokens: the part of them that was in the service's cache.
        memory: memory scope of the last run that was answered.
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
    memory: str = "shared"

    @property
    def used(self) -> int:
        """Tokens of all segments."""
        return sum(segment.tokens for segment in self.segments)
