"""Data for single writes to history, and the result of opening a session.

These types are passed between the journal and storage, which do not know each other.
"""

from collections.abc import Mapping, Sequence, Set
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from msgspec import Struct, field

from agent_core.types.content import (
    AgentStatus,
    AgentType,
    EndReason,
    ErrorPayload,
    Node,
    RunMode,
    RunStatus,
    Usage,
    new_id,
    utc_now,
)
from agent_core.types.events import EventDraft
from agent_core.types.lanes import Lane, lane_of_process
from agent_core.types.options import StoredOptions
from agent_core.types.records import AgentRecord, RunPrompt, RunRecord, SessionRecord

LEASE = timedelta(seconds=30)
"""Time for which a claim is valid without a heartbeat if the lock cannot be inspected."""


class Claim(Struct, frozen=True):
    """A runtime that holds a session, and the time for which other hosts consider it alive."""

    owner: str
    lease: timedelta = LEASE


class Heartbeat(Struct, frozen=True):
    """The result of extending an owner's leases.

    Attributes:
        cancelled: the open runs of its sessions for which `request_cancel` was called.
        epochs: epochs of its sessions.
        late: the sessions whose lease is not extended yet, because another transaction has locked
            them.
        sent_to: the runs of its sessions for which messages wait.
        in_last_turn: the open runs of its sessions that are cancelled after a turn.
    """

    cancelled: list[str]
    epochs: Mapping[str, int]
    late: Set[str]
    sent_to: Sequence[str] = ()
    in_last_turn: Sequence[str] = ()


class PendingEvent(Struct, frozen=True):
    """An event on its way into the store, where it gets its sequence numbers.

    `payload_json` is the draft's payload as JSON text, if it is known already.
    """

    draft: EventDraft
    payload_json: str | None = None
    event_id: str = field(default_factory=partial(new_id, "evt"))
    created_at: datetime = field(default_factory=utc_now)


class RunChange(Struct, frozen=True, kw_only=True):
    """New values for a run's row; None leaves a value unchanged, `metadata` is merged.

    `options` replaces all options. With `has_prompt_node` the run's message is in the history, so
    its copy in the row is removed.
    """

    status: RunStatus | None = None
    start_node_id: str | None = None
    end_node_id: str | None = None
    end_reason: EndReason | None = None
    turn_count: int | None = None
    usage: Usage | None = None
    error: ErrorPayload | None = None
    metadata: dict[str, Any] | None = None
    prompt: RunPrompt | None = None
    options: StoredOptions | None = None
    has_prompt_node: bool = False


class Batch(Struct, frozen=True, kw_only=True):
    """Rows that belong together: either all of them are stored, or none.

    Attributes:
        nodes: in order of writing, `node_seq` still 0; an event in the batch announces each of
            them, which is how a replay finds it.
        events: in order; they belong to the session, agent and run named here.
        run: changes of the run's row.
        agent_status: new status in the agent's row; while a run is under way, readers see another.
        active_node_id: the node from which the session's next message continues.
        owner: the runtime that holds the session, if only that runtime may store this.
        epoch: the session's epoch under which the run was opened; once another owner has claimed
            the session, nothing of the batch is stored. None for the epoch of the store's own last
            claim.
        release: the owner that releases the session for other processes, unless another run of the
            session is still open: then the last one to end releases it.
        delivered: the waiting messages that the batch delivers, or that were refused.
        session_metadata: values merged into the session's metadata.
    """

    session_id: str
    agent_id: str
    run_id: str
    nodes: Sequence[Node] = ()
    events: Sequence[PendingEvent] = ()
    run: RunChange | None = None
    agent_status: AgentStatus | None = None
    active_node_id: str | None = None
    owner: str | None = None
    epoch: int | None = None
    release: str | None = None
    delivered: Sequence[str] = ()
    session_metadata: Mapping[str, Any] = {}


class SessionNote(Struct, frozen=True, kw_only=True):
    """Records of a session outside of any run, such as background work.

    Attributes:
        events: events of the session alone, without a run or an agent.
        node: added at the end of the active path, where it becomes the active node; an event names
            it. Its parent must be the active node.
        metadata: merged into the session's metadata; None removes a key.
    """

    session_id: str
    events: Sequence[PendingEvent] = ()
    node: Node | None = None
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])


class Position(Struct, frozen=True):
    """The sequence numbers of a batch's first rows; the others follow without a gap."""

    seq: int
    run_seq: int
    node_seq: int


class NewRun(Struct, frozen=True, kw_only=True):
    """A run that a user has just requested, before anything of it is stored.

    Attributes:
        session_id: the session to resume, or the one to create.
        cwd: the folder the session works in; a resumed session must have worked there already.
        move_session: a session that works elsewhere is moved to `cwd`.
        prompt: the user's message; a run without one only summarises the history.
        options: options set by its caller, if any.
        title: title of the session, if this creates it.
        owner: the runtime that runs the session from now on.
        lease: time for which other hosts consider the owner alive.
        agent_type: `main` or `orchestrator`; a session has at most one root agent of each.
        agent_id: id of that agent, if the session has none yet.
        status: `queued` or `pending`.
        events: events to record with the run.
        history: the conversation before the run, if the session is new.
        dispatch: says who may take it, if it is put into the workers' queue.
    """

    session_id: str
    cwd: str
    move_session: bool = False
    owner: str
    lease: timedelta = LEASE
    agent_type: AgentType
    agent_id: str
    agent_definition_id: str | None = None
    run_id: str
    mode: RunMode = RunMode.NORMAL
    status: RunStatus = RunStatus.PENDING
    prompt: RunPrompt | None = None
    title: str | None = None
    options: StoredOptions | None = None
    run_metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    session_metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    events: Sequence[PendingEvent] = ()
    history: Sequence[Node] = ()
    dispatch: "Dispatch | None" = None


class Dispatch(Struct, frozen=True, kw_only=True):
    """Says who may take a run that is put into the workers' queue.

    Attributes:
        queue: the name of the workers' queue.
        home: place of the session's files, if it has no place yet.
        place: new place of its files, if the caller sets one.
        tenant: tenant of the session, if this creates it; None also for an existing one.
        process: the caller's process number in the queue, if no other process may take the run.
    """

    queue: str
    home: str
    place: str | None = None
    tenant: str | None = None
    process: int | None = None

    def lane(self, session: SessionRecord, run_id: str) -> str:
        """Return the lane of a run of this session."""
        if self.process is not None:
            return lane_of_process(run_id)
        place = session.place or self.home
        return str(Lane(queue=self.queue, place=place, tenant=session.tenant))


class ClaimedRun(Struct, frozen=True, kw_only=True):
    """The rows of a run that was opened.

    Attributes:
        resumed: the session existed before.
        is_unchanged: no other process has used it since the last run of this process.
        position: position of the opening's events; a continued run has none.
        lost: runs that a dead owner had begun; they are closed.
        queued: runs that a dead owner had not begun, in order; the new owner runs them before the
            opened one.
        waiting: a run that waits for an answer, if this owner has just taken the session over.
        is_answered: a question of that run has been answered.
        asked_at: time at which the claim to the session was sent, see `owners.now`: its lease is
            sure to last from then.
    """

    session: SessionRecord
    agent: AgentRecord
    run: RunRecord
    resumed: bool
    is_unchanged: bool = False
    position: Position = Position(0, 0, 0)
    lost: Sequence[RunRecord] = ()
    queued: Sequence[RunRecord] = ()
    waiting: RunRecord | None = None
    is_answered: bool = False
    asked_at: float = 0.0
