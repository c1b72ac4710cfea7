"""The whole port of the session store: what the runtime asks of it beside the journal's write.

One contract suite holds every store to what is written here. Every write is one transaction: all
of it is stored, or nothing. A coroutine that is cancelled while it waits may still have written.
Every method raises `StorageError` when the store cannot be read or written; the sections below
name only the other codes.

Leases are judged by the store's own clock. Each time a session gets another owner its epoch moves
on, and what was begun under an earlier epoch cannot be added to any more.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

from agent_core.types import (
    LEASE,
    AgentRecord,
    AgentStatus,
    Amounts,
    ArtifactRecord,
    Batch,
    BudgetGrant,
    BudgetHold,
    BudgetUse,
    Claim,
    Decision,
    EventType,
    Heartbeat,
    Node,
    OpenedRun,
    OwnerIsDead,
    PendingEvent,
    Position,
    RunOpening,
    RunRecord,
    RuntimeEvent,
    SessionNote,
    SessionRecord,
)
from agent_core.types.memory_scopes import MemoryTerms

if TYPE_CHECKING:
    from agent_core.types import (
        ApprovalRecord,
        CostSummary,
        CostUnit,
        NodeMove,
        PermissionGrant,
        ReplayResult,
        RunChanges,
        SessionFork,
        SessionSummary,
        SnapshotNote,
        WorkspaceState,
    )


class HistoryStore(Protocol):
    """What the journal needs from storage: one atomic, ordered write."""

    def append(self, batch: Batch) -> asyncio.Future[Position]:
        """Queue a write and return at once; batches are stored in the order of the calls.

        The future fails with `StorageError` if nothing was stored: `session_active` if another
        owner than the batch's holds the session, or has closed the run. It must not be cancelled.
        """
        ...


class SessionWrites(HistoryStore, Protocol):
    """Everything that changes rows."""

    async def open_run(self, opening: RunOpening, *, is_dead: OwnerIsDead) -> OpenedRun:
        """Create or resume the session, claim it, and add the run.

        A session without an owner, or whose owner is dead, is taken over: runs that were begun
        are closed as lost, as `close_lost_runs` does, and those that were queued, and one that
        waits for an answer, are handed over.

        Raises:
            StorageError: `session_elsewhere`, the session works in another folder and the opening
                does not move it; `session_active`, a living owner other than the opening's has it.
        """
        ...

    async def queue_run(self, opening: RunOpening, *, is_dead: OwnerIsDead) -> OpenedRun:
        """Create or resume the session, and add a run that waits for a process that may take it.

        The opening has a `dispatch`; the session stays whose it is.

        Raises:
            StorageError: `session_elsewhere`; `validation_error`, the session is another tenant's;
                `session_active`, it is to be moved and has a run that has not ended.
        """
        ...

    async def take_run(
        self, run_id: str, claim: Claim, *, is_dead: OwnerIsDead, max_takeovers: int | None
    ) -> OpenedRun | None:
        """Claim the session of a queued run, or of one that a dead owner has begun.

        That one goes on: its children are closed as lost, its event `run_taken_over` is stored, and
        `takeovers` counts the dead. One too many closes it, `failed` with `metadata.reason =
        "too_many_takeovers"`. A run that was handed over counts nothing.

        Returns:
            The run as it was; None if there is nothing to do: it has ended by now, or waits for an
            answer.

        Raises:
            StorageError: `session_active`, a living owner has the session, or another run of it was
                begun and goes first.
        """
        ...

    async def hand_over(self, run_id: str, owner: str) -> bool:
        """Give up the session of a run that this owner has ended its work on, for the next one.

        Returns:
            False: the session is not this owner's, or the run has ended.
        """
        ...

    async def drop_queued(self, run_id: str, *, taken_by: str | None = None) -> bool:
        """Cancel a queued run that a `dispatch` has put there; returns whether it still waited.

        `taken_by`: also one that this owner has taken by `take_run`, and does not begin.
        """
        ...

    async def queue_again(self, run_id: str) -> bool:
        """Have a worker look at a run of the workers that waits for an answer.

        Returns:
            Whether it is one.
        """
        ...

    async def add_agent(self, agent: AgentRecord) -> None:
        """Add a child agent.

        Raises:
            StorageError: `session_not_found`.
        """
        ...

    async def update_agent(
        self,
        agent_id: str,
        *,
        status: AgentStatus | None = None,
        result: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Change what is given; `metadata` is merged, `result` replaced. Unknown ids: nothing."""
        ...

    async def add_run(
        self, run: RunRecord, *, events: Sequence[PendingEvent] = (), claim: Claim | None = None
    ) -> Position:
        """Add a child's run, and events of it; returns where they stand.

        A run that may outlive its parent brings a claim: the session is its owner's as well.

        Raises:
            StorageError: `session_not_found`; `session_active` if the session is another's.
        """
        ...

    async def close_lost_runs(self, is_dead: OwnerIsDead) -> list[RunRecord]:
        """Close every run that a dead owner has begun, or that has none, and free the sessions.

        A lost run is `failed` with `metadata.reason = "owner_lost"` and gets its `run_failed`
        event; nothing can be appended to it any more. A user's run that is queued with its prompt
        stays so, for the next owner of the session, and so does one that waits for an answer. One
        that has asked a question that `keeps_run` waits from now on. A session whose active node
        is partial or missing continues from the last complete node before it.

        Returns:
            The closed runs, as they are now.
        """
        ...

    async def heartbeat(self, owner: str, lease: timedelta = LEASE) -> Heartbeat:
        """Extend the lease of every session this owner holds, from now by the store's clock.

        It waits only a small part of the lease for other transactions: the lease of a session that
        one has locked is extended as soon as that has ended.
        """
        ...

    async def request_cancel(self, run_id: str) -> bool:
        """Have an open run cancelled by its owner, in whatever process, at its next heartbeat.

        Returns:
            Whether the run is open; one that has ended stays as it is.

        Raises:
            StorageError: `run_not_found`.
        """
        ...

    async def release(self, session_id: str, owner: str) -> None:
        """Give the session back, if this owner holds it; runs still open are lost."""
        ...

    async def release_all(self, owner: str) -> None:
        """Give back every session this owner holds; runs still open are lost."""
        ...

    async def add_to_memory_backlog(
        self, session_ids: Collection[str] = (), *, since: datetime | None = None
    ) -> None:
        """Remember that these sessions, and those used since then, are still to be looked through
        for memories.
        """
        ...

    async def remove_from_memory_backlog(self, session_id: str) -> None:
        """This session has been looked through."""
        ...

    async def note(self, note: SessionNote) -> bool:
        """Add what happened outside of any run, in one transaction.

        Returns:
            False, and nothing is stored, if the note's node does not follow the active node: the
            session has gone on, or elsewhere, meanwhile.

        Raises:
            StorageError: `session_not_found`.
        """
        ...

    async def rename_session(self, session_id: str, title: str) -> None:
        """Give the session another title.

        Raises:
            StorageError: `session_not_found`.
        """
        ...

    async def add_titles(self, titles: Mapping[str, str]) -> None:
        """Give titles, by session id, to those of these sessions that have none."""
        ...

    async def delete_session(self, session_id: str, *, is_dead: OwnerIsDead) -> None:
        """Remove the session and all its rows; files are not touched.

        Raises:
            StorageError: `session_not_found`; `session_active` while a run of it is open and
                its owner lives.
        """
        ...

    async def add_artifact(self, artifact: ArtifactRecord) -> None:
        """Register a file that is complete on disk.

        Raises:
            StorageError: `session_not_found`.
        """
        ...

    async def delete_artifact_row(self, artifact_id: str) -> None:
        """Forget an artifact; unknown ids are forgotten already."""
        ...


class SessionReads(Protocol):
    """Everything that only looks. What was acknowledged before the call is seen by it."""

    async def session(self, session_id: str) -> SessionRecord | None:
        """The session, or None."""
        ...

    async def sessions(self, *, limit: int = 50, offset: int = 0) -> list[SessionRecord]:
        """Sessions, the most recently used first."""
        ...

    async def session_summaries(
        self,
        *,
        limit: int,
        offset: int = 0,
        project: str | None = None,
        query: str | None = None,
        forked_from: str | None = None,
    ) -> "list[tuple[SessionSummary, Mapping[str, Any]]]":
        """Sessions as lists show them, each with its metadata, the most recently used first.

        The usage is that of their runs; what was done in the background stands in the metadata.

        Args:
            limit: the most.
            offset: how many to leave out before.
            project: only sessions that work in this folder.
            query: words that title, folder and id have to have, in any order, small or capital.
            forked_from: only forks of this session.
        """
        ...

    async def costs(
        self,
        by: "CostUnit",
        *,
        since: datetime | None = None,
        project: str | None = None,
        limit: int = 1_000_000,
    ) -> "list[CostSummary]":
        """What was spent, by day with the latest first, else the most recently used first.

        Args:
            by: what it is added up by.
            since: only runs that were started then or later, and no work in the background, of
                which that is not known.
            project: only sessions that work in this folder.
            limit: the most.
        """
        ...

    async def last_session(self, project: str | None = None) -> str | None:
        """Return the session that was used last: of this folder, or of all.

        One in which no model has completed a reply, and no message waits, is passed over.
        """
        ...

    async def memory_backlog(self, limit: int) -> list[str]:
        """Sessions that are still to be looked through for memories, and that no runtime has."""
        ...

    async def memory_terms(self, run_ids: Collection[str]) -> dict[str, MemoryTerms]:
        """The terms of memory of these runs, by run; a run that is not stored is left out."""
        ...

    async def untitled(self, limit: int) -> dict[str, str]:
        """The words that sessions without a title began with, by their ids."""
        ...

    async def nodes_like(
        self,
        patterns: Sequence[str],
        *,
        before: int | None = None,
        limit: int,
        project: str | None = None,
    ) -> list[tuple[int, Node]]:
        """Messages and summaries whose stored content is `LIKE` all patterns, the newest first.

        `^` makes the next character of a pattern an ordinary one. Capital letters are as small
        ones. Reads what all sessions have said, until `limit` are found.

        Returns:
            Each with its number, which is the next call's `before`.
        """
        ...

    async def ids_beginning(
        self, kind: str, prefix: str, *, session_id: str | None = None, limit: int = 10
    ) -> list[str]:
        """Ids of sessions, runs or nodes that begin so, in order; the exact one is the first.

        Args:
            kind: `session`, `run` or `node`.
            prefix: their beginning.
            session_id: only what belongs to this session.
            limit: the most.
        """
        ...

    async def agent(self, agent_id: str) -> AgentRecord | None:
        """The agent, or None."""
        ...

    async def agents(self, session_id: str) -> list[AgentRecord]:
        """Every agent of the session, oldest first."""
        ...

    async def run(self, run_id: str) -> RunRecord | None:
        """The run, or None."""
        ...

    async def runs(self, session_id: str) -> list[RunRecord]:
        """Every run of the session, those of children included, oldest first."""
        ...

    async def active_run_ids(self, session_id: str) -> list[str]:
        """Runs of the session that are queued, pending or running, oldest first."""
        ...

    async def node(self, node_id: str) -> Node | None:
        """The node, or None."""
        ...

    async def path(self, node_id: str, *, after: str | None = None) -> list[Node]:
        """From the root to this node. Costs as much as the path is long, whatever lies beside it.

        With `after`, only what comes behind that node, if it is on the path.

        Raises:
            StorageError: `node_not_found`.
        """
        ...

    async def page(
        self,
        session_id: str,
        *,
        from_seq: int | None = None,
        to_seq: int | None = None,
        limit: int = 1000,
    ) -> "ReplayResult":
        """A stretch of the session's timeline: events with `from_seq <= seq <= to_seq`.

        Events of root agents only, at most `limit`, with the nodes, runs, agents and artifacts
        they touch and every root agent. `next_seq` is where to go on, None at the end.

        Raises:
            StorageError: `session_not_found`.
        """
        ...

    async def run_history(self, run_id: str) -> "ReplayResult":
        """All of one run, a child's too: its events, nodes, agent and artifacts.

        Raises:
            StorageError: `run_not_found`.
        """
        ...

    async def run_nodes(self, run_id: str) -> list[Node]:
        """The nodes that a run has added, in order; none of an unknown run."""
        ...

    async def events_after(
        self, run_id: str, run_seq: int, *, limit: int = 1000
    ) -> list[RuntimeEvent]:
        """Stored events of the run with a higher `run_seq`, in order, at most `limit`."""
        ...

    async def last_events(
        self, session_id: str, agent_id: str, event_type: EventType, *, limit: int
    ) -> list[RuntimeEvent]:
        """Stored events of one type of one agent, the last one first, at most `limit`."""
        ...

    async def open_calls(
        self, session_id: str, tool_call_ids: Collection[str], *, agent_id: str | None = None
    ) -> set[str]:
        """Which of these calls were started and never ended: their effect is unknown.

        A call id that came twice is judged by its last start. `agent_id` narrows the search to
        one agent's calls, because models repeat ids.
        """
        ...

    async def artifact(self, artifact_id: str) -> ArtifactRecord | None:
        """The artifact's row, or None."""
        ...

    async def artifacts(
        self,
        *,
        session_id: str | None = None,
        kinds: Collection[str] | None = None,
        older_than: datetime | None = None,
    ) -> list[ArtifactRecord]:
        """Artifact rows that fit every condition given, oldest first."""
        ...


class BudgetStore(Protocol):
    """What runs, sessions and children may spend, and have spent."""

    async def reserve_budget(self, hold: BudgetHold, *, at_once: bool = False) -> BudgetGrant:
        """Reserve the worst case of something against every scope that pays for it.

        As much output as fits is granted; if less than `hold.least` does, nothing is reserved.
        The holds of a run that is closed as lost are settled in full with it.

        Args:
            hold: what is about to be done.
            at_once: it is done in no time, and settled with the same write.
        """
        ...

    async def settle_budget(self, hold_id: str, spent: Amounts | None) -> None:
        """Replace a hold by what was spent; None: by all of it. Unknown ids: nothing."""
        ...

    async def budget_uses(self, scope_ids: Collection[str]) -> list[BudgetUse]:
        """What these sessions and runs may spend, and have spent; those without a budget are left
        out.
        """
        ...


class GrantStore(Protocol):
    """What the user has allowed for sessions."""

    async def find_grant(self, session_id: str, key: str) -> "PermissionGrant | None":
        """The grant of a session that covers calls with this key."""
        ...

    async def add_grant(self, grant: "PermissionGrant") -> None:
        """Remember a grant; one for the same session and key stays as it is.

        Raises:
            StorageError: `session_not_found`.
        """
        ...

    async def grants(self, session_id: str | None = None) -> "list[PermissionGrant]":
        """The grants of a session, or of all, oldest first."""
        ...

    async def forget_grants(self, grant_or_session_id: str) -> int:
        """Drop one grant, or all of a session, and return how many there were."""
        ...


class WorkspaceStore(Protocol):
    """Which node names which snapshot of a project's files, and where undo and redo stand.

    A project is named by its folder.
    """

    async def name_snapshot(self, note: "SnapshotNote") -> None:
        """Let a node name a snapshot: its own state, and that of the nodes behind it.

        Raises:
            StorageError: `session_not_found`.
        """
        ...

    async def end_changes(self, session_id: str, run_id: str) -> None:
        """Note that a run has ended, with nothing changed since its last snapshot."""
        ...

    async def workspace_state(self, session_id: str, folder: str) -> "WorkspaceState":
        """Return where the session continues, and what it knows of the files of this project."""
        ...

    async def snapshot_at(self, session_id: str, node_id: str | None, folder: str) -> str | None:
        """The snapshot that a node of the session names; None if there is none to name."""
        ...

    async def changes_of(self, run_id: str, folder: str) -> "RunChanges | None":
        """What a run has changed in the files; None if it has recorded nothing."""
        ...

    async def overlapping_changes(self, run_id: str, folder: str) -> list[tuple[str, str]]:
        """First and last snapshot of each other session's run that was at work meanwhile."""
        ...

    async def begin_move(self, session_id: str, move: "NodeMove", *, is_dead: OwnerIsDead) -> None:
        """Note that files are about to be restored.

        Raises:
            StorageError: as for `move_node`.
        """
        ...

    async def drop_move(self, session_id: str) -> None:
        """Note that a move was not made."""
        ...

    async def move_node(
        self, session_id: str, move: "NodeMove", *, is_dead: OwnerIsDead
    ) -> SessionRecord:
        """Continue the session as the move says.

        Raises:
            MovedMeanwhileError: it was decided on another state than the session has now.
            StorageError: `session_not_found`; `node_not_found` if the session has no such node;
                `session_active` while a user's run of it is open and its owner lives. A summary
                in the making is no obstacle.
        """
        ...

    async def fork_session(self, fork: "SessionFork") -> SessionRecord:
        """Add a session with a copy of the path to a node, and of what is known of its files.

        Raises:
            StorageError: `session_not_found`, `node_not_found`.
        """
        ...

    async def pending_moves(self, folder: str) -> list[str]:
        """The sessions of a project whose files were being restored."""
        ...

    async def snapshots_in_use(self) -> set[str]:
        """Every snapshot that a session needs."""
        ...

    async def drop_snapshots(self, before: datetime) -> bool:
        """Forget the snapshots of sessions that nothing was done in since; whether there were any.

        What these sessions have undone can still be seen, and their files not be restored.
        """
        ...

    async def working_sessions(self, is_dead: OwnerIsDead) -> Sequence[SessionRecord]:
        """The sessions in which a run of a living process is queued or under way."""
        ...


class QuestionStore(Protocol):
    """Questions about calls, kept until they are answered; the first answer counts."""

    async def ask(self, asked: "ApprovalRecord") -> "ApprovalRecord":
        """Store a question, and return it.

        The one that stands for the very same action of that call is returned instead, with its
        answer if it has one. One about the call that would do something else is superseded.

        Raises:
            StorageError: `session_not_found`.
        """
        ...

    async def answer(
        self,
        request_id: str,
        decision: Decision,
        *,
        reason: str | None,
        by: str,
        decider: str,
        arguments: Mapping[str, Any] | None = None,
    ) -> "tuple[ApprovalRecord | None, bool]":
        """Answer a question that is open; the first answer counts.

        `arguments` replace the arguments of the call that is allowed.

        Returns:
            The question as it is now, None if there is none, and whether this was its answer.
        """
        ...

    async def withdraw(self, request_id: str) -> None:
        """Close a question that was not answered; one that was stays as it is."""
        ...

    async def approval(self, request_id: str) -> "ApprovalRecord | None":
        """The question, or None."""
        ...

    async def approval_of(
        self, root_run_id: str, run_id: str, tool_call_id: str
    ) -> "ApprovalRecord | None":
        """The question about a call that is open or answered, if there is one."""
        ...


class ApprovalStore(QuestionStore, Protocol):
    """Questions about calls, and the runs that wait for their answers."""

    async def approvals(
        self,
        *,
        session_id: str | None = None,
        prefix: str = "",
        is_open: bool = True,
        limit: int = 100,
    ) -> "list[ApprovalRecord]":
        """Questions whose id begins with `prefix`, the oldest first; of too many the newest.

        `is_open=False` lists those that are closed as well.
        """
        ...

    async def is_answered(self, root_run_id: str) -> bool:
        """Whether an answer is there for a call of the run, or its children, that has not begun."""
        ...

    async def resume_run(
        self, run_id: str, claim: Claim, *, cwd: str, is_dead: OwnerIsDead
    ) -> OpenedRun:
        """Claim the session of a user's run that waits for an answer, so that it can go on.

        The run is `waiting` until its journal begins: an owner that dies before leaves it so.

        Raises:
            StorageError: `run_not_found`; `session_active`: another living owner has the session,
                or the run does not wait; `session_elsewhere`: it does not work in `cwd`.
        """
        ...

    async def waiting_children(self, run_id: str) -> list[RunRecord]:
        """The children of a run that wait for an answer."""
        ...

    async def close_waiting(self, run_id: str) -> None:
        """Cancel the children that a run, which has ended, leaves waiting, and its questions."""
        ...


class SessionStore(
    SessionWrites,
    SessionReads,
    BudgetStore,
    WorkspaceStore,
    ApprovalStore,
    GrantStore,
    Protocol,
):
    """Sessions, their history, budgets and questions, and what is known of their files."""
