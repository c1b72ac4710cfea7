"""What a runtime answers when it is asked about its sessions, its runs and its files."""

from typing import Literal

from pydantic import Field

from agent_core.types.budget import BudgetUse
from agent_core.types.content import (
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
        memory: the scope of the memory of the run that was answered last.
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
