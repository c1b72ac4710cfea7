"""What one write to history holds, and the port it goes through."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from agent_core.types import (
    AgentStatus,
    EndReason,
    ErrorPayload,
    EventDraft,
    Node,
    RunStatus,
    Usage,
)


@dataclass(frozen=True, slots=True)
class PendingEvent:
    """An event on its way into the store, where it gets its sequence numbers."""

    event_id: str
    created_at: datetime
    draft: EventDraft


@dataclass(frozen=True, slots=True, kw_only=True)
class RunChange:
    """New values for a run's row; None leaves a value as it is, `metadata` is merged."""

    status: RunStatus | None = None
    start_node_id: str | None = None
    end_node_id: str | None = None
    end_reason: EndReason | None = None
    turn_count: int | None = None
    usage: Usage | None = None
    error: ErrorPayload | None = None
    metadata: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Rows that belong together: all of them are stored, or none is.

    Attributes:
        nodes: in order of writing, `node_seq` still 0.
        events: in order; they belong to the session, agent and run named here.
        run: what changes in the run's row.
        agent_status: what changes in the agent's row.
        active_node_id: where the session's next message continues.
        release: the owner that gives the session back to other processes.
    """

    session_id: str
    agent_id: str
    run_id: str
    nodes: Sequence[Node] = ()
    events: Sequence[PendingEvent] = ()
    run: RunChange | None = None
    agent_status: AgentStatus | None = None
    active_node_id: str | None = None
    release: str | None = None


@dataclass(frozen=True, slots=True)
class Position:
    """The sequence numbers of a batch's first rows; the others follow without a gap."""

    seq: int
    run_seq: int
    node_seq: int


class HistoryStore(Protocol):
    """What the journal needs from storage: one atomic, ordered write."""

    def append(self, batch: Batch) -> asyncio.Future[Position]:
        """Queue a write and return at once; batches are stored in the order of the calls.

        The future fails with `StorageError` if nothing was stored. Nobody may cancel it.
        """
        ...
