"""The port of the session store: all operations that the runtime needs.

One contract suite tests every store against these docstrings. Every write is one transaction: all
of it is stored, or nothing. A coroutine that is cancelled while it waits may still have written.

Leases are judged by the store's own clock. Each time a session gets another owner, its epoch
increases, and work begun under an earlier epoch can no longer be added to.
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
    """The part of storage that the journal needs: one atomic, ordered write."""

    def append(self, batch: Batch) -> asyncio.Future[Position]:
        """Queue a write and return at once; batches are stored in the order of the calls.

        The future fails with `StorageError` if nothing was stored: `session_active` if an owner
        other than the batch's holds the session or has closed the run. It must not be cancelled.
        """
        ...


class SessionWrites(HistoryStore, Protocol):
    """All operations that change rows."""

    async def open_run(self, opening: RunOpening, *, is_dead: OwnerIsDead) -> OpenedRun:
        """Create or resume the session, claim it, and add the run.

        A session without an owner, or with a dead owner, is taken over: runs that had begun are
        closed as lost, as by `close_lost_runs`; queued runs and a run that waits for an answer are
        returned.

        Raises:
            StorageError: `session_elsewhere`: the session works in another folder and the opening
                does not move it; `session_active`: a living owner other than the opening's has it.
        """
        ...

    async def queue_run(self, opening: RunOpening, *, is_dead: OwnerIsDead) -> OpenedRun:
        """Create or resume the session, and add a run that waits for a process that may take it.

        The opening has a `dispatch`; the session keeps its owner.

        Raises:
            StorageError: `session_elsewhere`; `validation_error`: the session is another tenant's;
                `session_active`: it should be moved and has a run that has not ended.
        """
        ...

    async def take_run(
        self, run_id: str, claim: Claim, *, is_dead: OwnerIsDead, max_takeovers: int | None
    ) -> OpenedRun | None:
        """Claim the session of a queued run, or of a run that a dead owner has begun.

        A begun run continues: its children are closed as lost, its event `run_taken_over` is
        stored, and `takeovers` counts its dead owners. One too many closes it as `failed` with
        `metadata.reason = "too_many_takeovers"`. A run that was handed over is not counted.

        Returns:
            The run as it was; None if it has ended by now or waits for an answer, so that there is
            nothing to do.

        Raises:
            StorageError: `session_active`: a living owner has the session, or another run of it was
                begun and goes first.
        """
        ...

    async def hand_over(self, run_id: str, owner: str) -> bool:
        """Release the session of a run that this owner has stopped working on, for the next owner.

        Returns:
            False if the session is not this owner's, or the run has ended.
        """
        ...

    async def drop_queued(self, run_id: str, *, taken_by: str | None = None) -> bool:
        """Cancel a queued run that was added with a `dispatch`; return whether it still waited.

        With `taken_by`, also cancel a run that this owner took with `take_run` and did not begin.
        """
        ...

    async def queue_again(self, run_id: str) -> bool:
        """Have a worker look at a run for workers that waits for an answer.

        Returns:
            Whether the run is such a run.
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
        """Change the given values; `metadata` is merged, `result` replaced; ignores unknown ids."""
        ...

    async def add_run(
        self, run: RunRecord, *, events: Sequence[PendingEvent] = (), claim: Claim | None = None
    ) -> Position:
        """Add a child's run and its first events; return their position.

        A run that may outlive its parent brings a claim, whose owner gets the session too.

        Raises:
            StorageError: `session_not_found`; `session_active` if another owner has the session.
        """
        ...

    async def close_lost_runs(self, is_dead: OwnerIsDead) -> list[RunRecord]:
        """Close every run that a dead owner has begun or that has no owner, and free the sessions.

        A lost run is `failed` with `metadata.reason = "owner_lost"` and gets its `run_failed`
        event; nothing can be appended to it any more. A user's run that is queued with its prompt,
        or waits for an answer, stays as it is for the session's next owner. A run that has asked a
        question that `keeps_run` waits from now on. A session whose active node is partial or
        missing continues from the last complete node before it.

        Returns:
            The closed runs, as they are now.
        """
        ...

    async def heartbeat(self, owner: str, lease: timedelta = LEASE) -> Heartbeat:
        """Extend the lease of every session this owner holds, from now by the store's clock.

        It waits only a small part of the lease for other transactions: the lease of a session that
        is locked is extended as soon as the other transaction has ended.
        """
        ...

    async def request_cancel(self, run_id: str) -> bool:
        """Ask the owner of an open run, in any process, to cancel it at its next heartbeat.

        Returns:
            Whether the run is open; a run that has ended is not changed.

        Raises:
            StorageError: `run_not_found`.
        """
        ...

    async def release(self, session_id: str, owner: str) -> None:
        """Release the session, if this owner holds it; runs still open are lost."""
        ...

    async def release_all(self, owner: str) -> None:
        """Release every session this owner holds; runs still open are lost."""
        ...

    async def add_to_memory_backlog(
        self, session_ids: Collection[str] = (), *, since: datetime | None = None
    ) -> None:
        """Remember that these sessions, and later used ones, must be searched for memories."""
        ...

    async def remove_from_memory_backlog(self, session_id: str) -> None:
        """Remember that this session has been searched for memories."""
        ...

    async def note(self, note: SessionNote) -> bool:
        """Add records outside of any run, in one transaction.

        Returns:
            False, with nothing stored, if the note's node does not follow the active node: the
            session has moved on meanwhile.

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
        """Set titles, by session id, for the sessions among them that have none."""
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
        """Remove an artifact's row; does nothing for an unknown id."""
        ...


class SessionReads(Protocol):
    """All operations that only read. They see every write acknowledged before the call."""

    async def session(self, session_id: str) -> SessionRecord | None:
        """Return the session, or None."""
        ...

    async def sessions(self, *, limit: int = 50, offset: int = 0) -> list[SessionRecord]:
        """Return sessions, the most recently used first."""
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
        """Return sessions as shown in lists, each with its metadata, the most recently used first.

        The usage covers their runs; usage of background work is in the metadata.

        Args:
            limit: largest number of sessions.
            offset: number of sessions to skip.
            project: only sessions that work in this folder.
            query: words that must occur in title, folder or id, in any order and case.
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
        """Return the spending, by day with the latest first, else the most recently used first.

        Args:
            by: the unit by which it is added up.
            since: only runs started then or later; background work is left out, because its time is
                not known.
            project: only sessions that work in this folder.
            limit: largest number of rows.
        """
        ...

    async def last_session(self, project: str | None = None) -> str | None:
        """Return the session that was used last, in this folder or in all.

        Sessions without a completed reply and without a waiting message are skipped.
        """
        ...

    async def memory_backlog(self, limit: int) -> list[str]:
        """Return sessions that must still be searched for memories and that no runtime has."""
        ...

    async def memory_terms(self, run_ids: Collection[str]) -> dict[str, MemoryTerms]:
        """Return the memory terms of these runs, by run id; unknown runs are left out."""
        ...

    async def untitled(self, limit: int) -> dict[str, str]:
        """Return the first words of sessions without a title, by session id."""
        ...

    async def nodes_like(
        self,
        patterns: Sequence[str],
        *,
        before: int | None = None,
        limit: int,
        project: str | None = None,
    ) -> list[tuple[int, Node]]:
        """Return messages and summaries whose stored content is `LIKE` all patterns, newest first.

        `^` makes the next character of a pattern an ordinary one. Case is ignored. Reads the
        content of all sessions until `limit` are found.

        Returns:
            Each with its number, which is the next call's `before`.
        """
        ...

    async def ids_beginning(
        self, kind: str, prefix: str, *, session_id: str | None = None, limit: int = 10
    ) -> list[str]:
        """Return ids of sessions, runs or nodes with a prefix, in order, an exact match first.

        Args:
            kind: `session`, `run` or `node`.
            prefix: beginning of the ids.
            session_id: only runs or nodes of this session.
            limit: largest number of ids.
        """
        ...

    async def agent(self, agent_id: str) -> AgentRecord | None:
        """Return the agent, or None."""
        ...

    async def agents(self, session_id: str) -> list[AgentRecord]:
        """Return every agent of the session, oldest first."""
        ...

    async def run(self, run_id: str) -> RunRecord | None:
        """Return the run, or None."""
        ...

    async def runs(self, session_id: str) -> list[RunRecord]:
        """Return every run of the session, including children's, oldest first."""
        ...

    async def active_run_ids(self, session_id: str) -> list[str]:
        """Return the session's runs that need an owner, oldest first.

        They are pending or running, or queued without a lane; a run that waits for an answer, or is
        queued for workers, needs none.
        """
        ...

    async def node(self, node_id: str) -> Node | None:
        """Return the node, or None."""
        ...

    async def path(self, node_id: str, *, after: str | None = None) -> list[Node]:
        """Return the nodes from the root to this node. The cost depends only on the path's length.

        With `after`, only the nodes behind that node, if it is on the path.

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
        """Return a stretch of the session's timeline: events with `from_seq <= seq <= to_seq`.

        It has events of root agents only, at most `limit`, with the nodes, runs, agents and
        artifacts they refer to and every root agent. `next_seq` is where to continue, None at the
        end.

        Raises:
            StorageError: `session_not_found`.
        """
        ...

    async def run_history(self, run_id: str) -> "ReplayResult":
        """Return everything of one run, also of a child's: its events, nodes, agent and artifacts.

        Raises:
            StorageError: `run_not_found`.
        """
        ...

    async def run_nodes(self, run_id: str) -> list[Node]:
        """Return the nodes that a run has added, in order; none for an unknown run."""
        ...

    async def events_after(
        self, run_id: str, run_seq: int, *, limit: int = 1000
    ) -> list[RuntimeEvent]:
        """Return the run's stored events with a higher `run_seq`, in order, at most `limit`."""
        ...

    async def last_events(
        self, session_id: str, agent_id: str, event_type: EventType, *, limit: int
    ) -> list[RuntimeEvent]:
        """Return stored events of one type of one agent, the last one first, at most `limit`."""
        ...

    async def open_calls(
        self, session_id: str, tool_call_ids: Collection[str], *, agent_id: str | None = None
    ) -> set[str]:
        """Return the calls among these that were started and never ended: their effect is unknown.

        A call id that was used twice is judged by its last start. `agent_id` narrows the search to
        one agent's calls, because models repeat ids.
        """
        ...

    async def artifact(self, artifact_id: str) -> ArtifactRecord | None:
        """Return the artifact's row, or None."""
        ...

    async def artifacts(
        self,
        *,
        session_id: str | None = None,
        kinds: Collection[str] | None = None,
        older_than: datetime | None = None,
    ) -> list[ArtifactRecord]:
        """Return artifact rows that match every given condition, oldest first."""
        ...


class BudgetStore(Protocol):
    """Spending limits and spending of runs, sessions and children."""

    async def reserve_budget(self, hold: BudgetHold, *, at_once: bool = False) -> BudgetGrant:
        """Reserve the worst case of an operation against every scope that pays for it.

        As much output as fits is granted; if less than `hold.least` fits, nothing is reserved. The
        holds of a run that is closed as lost are settled in full with it.

        Args:
            hold: the planned operation.
            at_once: the operation takes no time, and is settled with the same write.
        """
        ...

    async def settle_budget(self, hold_id: str, spent: Amounts | None) -> None:
        """Replace a hold by the amounts spent, or by all of it for None. Unknown ids do nothing."""
        ...

    async def budget_uses(self, scope_ids: Collection[str]) -> list[BudgetUse]:
        """Return the limits and spending of the sessions and runs that have a budget."""
        ...


class GrantStore(Protocol):
    """Permissions that the user has granted for sessions."""

    async def find_grant(self, session_id: str, key: str) -> "PermissionGrant | None":
        """Return the session's grant for calls with this key, if any."""
        ...

    async def add_grant(self, grant: "PermissionGrant") -> None:
        """Remember a grant; an existing one for the same session and key is not changed.

        Raises:
            StorageError: `session_not_found`.
        """
        ...

    async def grants(self, session_id: str | None = None) -> "list[PermissionGrant]":
        """Return the grants of a session, or of all, oldest first."""
        ...

    async def forget_grants(self, grant_or_session_id: str) -> int:
        """Remove one grant, or all of a session; return their number."""
        ...


class WorkspaceStore(Protocol):
    """Snapshots of a project's files named by nodes, and the state of undo and redo.

    A project is identified by its folder.
    """

    async def name_snapshot(self, note: "SnapshotNote") -> None:
        """Let a node name a snapshot, as its own state and that of the nodes behind it.

        Raises:
            StorageError: `session_not_found`.
        """
        ...

    async def end_changes(self, session_id: str, run_id: str) -> None:
        """Record that a run has ended, without changes since its last snapshot."""
        ...

    async def workspace_state(self, session_id: str, folder: str) -> "WorkspaceState":
        """Return the node where the session continues, and its record of this project's files."""
        ...

    async def snapshot_at(self, session_id: str, node_id: str | None, folder: str) -> str | None:
        """Return the snapshot that a node of the session names; None if there is none."""
        ...

    async def changes_of(self, run_id: str, folder: str) -> "RunChanges | None":
        """Return a run's changes of the files; None if it has recorded nothing."""
        ...

    async def overlapping_changes(self, run_id: str, folder: str) -> list[tuple[str, str]]:
        """Return the first and last snapshot of each overlapping run of other sessions."""
        ...

    async def begin_move(self, session_id: str, move: "NodeMove", *, is_dead: OwnerIsDead) -> None:
        """Record that files are about to be restored.

        Raises:
            StorageError: as for `move_node`.
        """
        ...

    async def drop_move(self, session_id: str) -> None:
        """Record that a move was not made."""
        ...

    async def move_node(
        self, session_id: str, move: "NodeMove", *, is_dead: OwnerIsDead
    ) -> SessionRecord:
        """Continue the session from the node of the move.

        Raises:
            MovedMeanwhileError: the session's state is no longer the one the move was decided on.
            StorageError: `session_not_found`; `node_not_found` if the session has no such node;
                `session_active` while a user's run of it is open and its owner lives. A summary
                in the making does not prevent it.
        """
        ...

    async def fork_session(self, fork: "SessionFork") -> SessionRecord:
        """Add a session with a copy of the path to a node, and of the record of its files.

        Raises:
            StorageError: `session_not_found`, `node_not_found`.
        """
        ...

    async def pending_moves(self, folder: str) -> list[str]:
        """Return the sessions of a project whose files were being restored."""
        ...

    async def snapshots_in_use(self) -> set[str]:
        """Return every snapshot that a session needs."""
        ...

    async def drop_snapshots(self, before: datetime) -> bool:
        """Forget the snapshots of sessions unused since then; return whether there were any.

        Undone messages of these sessions can still be seen, but their files cannot be restored.
        """
        ...

    async def working_sessions(self, is_dead: OwnerIsDead) -> Sequence[SessionRecord]:
        """Return the sessions in which a run of a living process is queued or under way."""
        ...


class QuestionStore(Protocol):
    """Questions about calls, kept until they are answered; the first answer counts."""

    async def ask(self, asked: "ApprovalRecord") -> "ApprovalRecord":
        """Store a question, and return it.

        An existing question about the same action of the call is returned instead, with its answer
        if it has one. A question about the call with a different action is superseded.

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
        """Answer an open question; the first answer counts.

        `arguments` replace the arguments of the allowed call.

        Returns:
            The question as it is now (None if there is none), and whether this was its answer.
        """
        ...

    async def withdraw(self, request_id: str) -> None:
        """Withdraw an open question; does nothing if it was answered."""
        ...

    async def approval(self, request_id: str) -> "ApprovalRecord | None":
        """Return the question, or None."""
        ...

    async def approval_of(
        self, root_run_id: str, run_id: str, tool_call_id: str
    ) -> "ApprovalRecord | None":
        """Return the open or answered question about a call, if there is one."""
        ...

    async def approvals(
        self,
        *,
        session_id: str | None = None,
        prefix: str = "",
        is_open: bool = True,
        limit: int = 100,
    ) -> "list[ApprovalRecord]":
        """Return the newest `limit` questions whose id begins with `prefix`, oldest first.

        `is_open=False` also lists closed questions.
        """
        ...


class ApprovalStore(QuestionStore, Protocol):
    """Questions about calls, and the runs that wait for their answers."""

    async def is_answered(self, root_run_id: str) -> bool:
        """Return whether a call of the run or its children has an answer but has not begun."""
        ...

    async def resume_run(
        self, run_id: str, claim: Claim, *, cwd: str, is_dead: OwnerIsDead
    ) -> OpenedRun:
        """Claim the session of a user's run that waits for an answer, so that it can continue.

        The run is `waiting` until its journal begins: if the owner dies before, it still waits.

        Raises:
            StorageError: `run_not_found`; `session_active`: another living owner has the session,
                or the run does not wait; `session_elsewhere`: it does not work in `cwd`.
        """
        ...

    async def waiting_children(self, run_id: str) -> list[RunRecord]:
        """Return the children of a run that wait for an answer."""
        ...

    async def close_waiting(self, run_id: str) -> None:
        """Cancel the waiting children of a run that has ended, and close its questions."""
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
    """Sessions, their history, budgets and questions, and the state of their files."""
