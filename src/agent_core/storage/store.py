"""The session store: operations of this package, each in a transaction of its own.

An operation is a function of a connection. `SessionStore` lists them: a method has the arguments
of its function without the connection, and runs it through the database's writer or readers.
`sqlite` and `postgres` have these, and the few operations that differ.

A write is stored completely or not at all. A coroutine that is cancelled while it waits may still
have written. A read sees every write acknowledged before it.

Leases are judged by the store's own clock. Each time a session gets another owner, its epoch
increases, and work begun under an earlier epoch can no longer be added to.
"""

import asyncio
import copy
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial, wraps
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from msgspec.structs import replace

from agent_core.errors import ConfigError, ErrorCode, StorageError
from agent_core.storage import (
    budgets,
    changes,
    claims,
    lost_runs,
    messages,
    owners,
    queries,
    repeats,
    takeovers,
    unchanged,
    workspaces,
)
from agent_core.storage.approvals import (
    answer,
    ask,
    find_approval,
    is_answered,
    list_approvals,
    of_call,
    withdraw,
)
from agent_core.storage.grants import add_grant, find_grant, forget_grants, list_grants
from agent_core.storage.liveness import Liveness
from agent_core.storage.queries import sessions_nearby
from agent_core.storage.rows import (
    BatchRows,
    add_note,
    append,
    clamp,
    find,
    rows_of,
    session_not_found,
    skip_unreadable,
    storable,
    unstorable,
)
from agent_core.storage.spending import microseconds
from agent_core.storage.sql import Connection, Job, JobReader, JobWriter, Named, NoWriter
from agent_core.types import (
    LEASE,
    Batch,
    Claim,
    ClaimedRun,
    Decision,
    Heartbeat,
    NewRun,
    Node,
    PendingEvent,
    Position,
    RunRecord,
    RunStatus,
    SessionRecord,
    TextBlock,
)

if TYPE_CHECKING:
    from agent_core.storage.owners import Owner
    from agent_core.types import (
        AgentRecord,
        ApprovalRecord,
        CostSummary,
        CostUnit,
        SessionFork,
        SessionSummary,
    )

P = ParamSpec("P")
Result = TypeVar("Result")

LARGE = 65_536
"""Number of characters from which a write is large."""


def _read(
    operation: Callable[Concatenate[Connection, P], Result], *, is_single: bool = False
) -> "Callable[Concatenate[SessionStore, P], CoroutineType[Any, Any, Result]]":
    """Make a reading operation a method of the store.

    Args:
        operation: the operation.
        is_single: it executes one statement.
    """

    @wraps(operation)
    async def method(store: "SessionStore", /, *args: P.args, **kwargs: P.kwargs) -> Result:
        return await store.reader.read(lambda c: operation(c, *args, **kwargs), is_single=is_single)

    return method


def _write(
    operation: Callable[Concatenate[Connection, P], Result],
    *,
    by: Named | None = "session_id",
    is_small: bool = False,
) -> "Callable[Concatenate[SessionStore, P], CoroutineType[Any, Any, Result]]":
    """Make a writing operation a method of the store.

    Args:
        operation: the operation.
        by: names the id whose session is locked: the first argument, or its attribute of that
            name; None if the operation concerns several sessions.
        is_small: running it costs less than handing it to a thread.
    """

    @wraps(operation)
    async def method(store: "SessionStore", /, *args: P.args, **kwargs: P.kwargs) -> Result:
        return await _submit(
            store, lambda c: operation(c, *args, **kwargs), args, by=by, is_small=is_small
        )

    return method


def _judged_write(
    operation: Callable[Concatenate[Connection, Liveness, P], Result],
    *,
    by: Named | None = "session_id",
) -> "Callable[Concatenate[SessionStore, P], CoroutineType[Any, Any, Result]]":
    """Make a writing operation that needs the clock, or judges owners, a method of the store."""

    @wraps(operation)
    async def method(store: "SessionStore", /, *args: P.args, **kwargs: P.kwargs) -> Result:
        liveness = store.liveness
        return await _submit(
            store, lambda c: operation(c, liveness, *args, **kwargs), args, by=by, is_small=False
        )

    return method


def _submit(
    store: "SessionStore",
    job: Callable[[Connection], Result],
    args: tuple[object, ...],
    *,
    by: Named | None,
    is_small: bool,
) -> asyncio.Future[Result]:
    if by is None:
        return store.writer.submit(job, is_small=is_small)
    about = args[0] if isinstance(args[0], str) else getattr(args[0], by)
    return store.writer.submit(job, about, by=by, is_small=is_small)


class SessionStore:
    """Sessions and their history in a database that several processes may share.

    Attributes:
        writer: runs writing operations.
        reader: runs reading operations.
        liveness: judges the owners of sessions.
        is_hurried: nothing waits for the database any more; see `hurry`.
    """

    is_hurried = False

    def __init__(self, writer: JobWriter, reader: JobReader, liveness: Liveness) -> None:
        self.writer = writer
        self.reader = reader
        self.liveness = liveness
        self._epochs: dict[str, int] = {}  # of the sessions claimed through this store

    @property
    def is_read_only(self) -> bool:
        """Return whether every write is refused."""
        return isinstance(self.writer, NoWriter)

    def require_writable(self) -> None:
        """Refuse a change that begins with files.

        Raises:
            StorageError: every write is refused.
        """
        if self.is_read_only:
            raise NoWriter.refusal()

    def of_tenant(self, tenant: str) -> Self:  # noqa: ARG002 - as a shared database needs it
        """Return a store that reads the sessions of one tenant, and refuses writes.

        Raises:
            ConfigError: the database has no tenants.
        """
        message = (
            "a tenant needs a Postgres database: set [store] url_env (in code: or database_url)"
        )
        raise ConfigError(ErrorCode.CONFIG_ERROR, message)

    def judged_by(self, judge: "Owner") -> Self:
        """Return the same store with another judge of owners."""
        judged = copy.copy(self)
        judged.liveness = Liveness(self.liveness.now, judge.is_dead, judge.is_surely_dead)
        return judged

    # sessions

    session = _read(queries.session, is_single=True)
    sessions = _read(queries.sessions, is_single=True)
    last_session = _read(queries.last_session)
    page = _read(queries.page)
    release = _write(claims.release)
    release_all = _write(claims.release_all, by=None)
    rename_session = _write(changes.rename_session)
    note = _write(add_note, is_small=True)
    memory_backlog = _read(queries.memory_backlog)
    add_to_memory_backlog = _write(changes.add_to_memory_backlog, by=None)
    remove_from_memory_backlog = _write(changes.remove_from_memory_backlog, by=None)

    # runs and agents

    run = _read(queries.run, is_single=True)
    runs = _read(queries.runs, is_single=True)
    active_run_ids = _read(queries.active_run_ids, is_single=True)
    run_history = _read(queries.run_history)
    waiting_children = _read(lost_runs.waiting_children, is_single=True)
    run_tree = _read(queries.run_tree, is_single=True)
    children = _read(queries.children, is_single=True)
    memory_terms = _read(queries.memory_terms)
    hand_over = _write(takeovers.hand_over, by="run_id")
    close_waiting = _judged_write(lost_runs.close_waiting, by="run_id")
    request_cancel = _judged_write(claims.request_cancel, by="run_id")
    agent = _read(queries.agent, is_single=True)
    agents = _read(queries.agents, is_single=True)
    add_agent = _write(changes.add_agent)
    add_session = _write(changes.add_session)
    update_agent = _write(changes.update_agent, by="agent_id")

    # nodes and events

    node = _read(queries.node, is_single=True)
    path = _read(queries.path, is_single=True)
    run_nodes = _read(queries.run_nodes, is_single=True)
    events_after = _read(queries.events_after, is_single=True)
    last_events = _read(queries.last_events, is_single=True)
    open_calls = _read(queries.open_calls)

    # questions and grants

    ask = _write(ask, is_small=True)
    withdraw = _judged_write(withdraw, by="request_id")
    approval = _read(find_approval, is_single=True)
    approval_of = _read(of_call)
    approvals = _read(list_approvals)
    is_answered = _read(is_answered, is_single=True)
    find_grant = _read(find_grant)
    grants = _read(list_grants)
    add_grant = _write(add_grant, is_small=True)
    forget_grants = _write(forget_grants, by=None)

    # messages to runs that work

    send_message = _write(messages.send_message)
    take_messages = _write(messages.take_messages, by="run_id")
    take_back_message = _write(messages.take_back_message)
    waiting_messages = _read(messages.waiting_messages, is_single=True)

    # requests that may be sent twice

    begin_request = _judged_write(repeats.begin_request, by=None)
    hold_requests = _judged_write(repeats.hold_requests, by=None)
    keep_answer = _judged_write(repeats.keep_answer, by=None)
    drop_request = _write(repeats.drop_request, by=None)

    # budgets

    reserve_budget = _write(budgets.reserve, is_small=True)
    settle_budget = _write(budgets.settle, by="hold_id", is_small=True)
    budget_uses = _read(budgets.uses)

    # files of projects, and artifacts

    workspace_state = _read(workspaces.workspace_state)
    follows_message = _read(workspaces.follows_message, is_single=True)
    snapshot_at = _read(workspaces.snapshot_at)
    changes_of = _read(workspaces.changes_of)
    overlapping_changes = _read(workspaces.overlapping_changes)
    pending_moves = _read(workspaces.pending_moves)
    snapshots_in_use = _read(workspaces.snapshots_in_use)
    snapshots_of = _read(workspaces.snapshots_of)
    snapshots_by_session = _read(workspaces.snapshots_by_session)
    name_snapshot = _write(workspaces.name_snapshot, is_small=True)
    end_changes = _write(workspaces.end_changes, is_small=True)
    drop_snapshots = _write(workspaces.drop_snapshots, by=None)
    begin_move = _judged_write(workspaces.begin_move)
    drop_move = _write(workspaces.drop_move)
    move_node = _judged_write(workspaces.move_node)
    artifact = _read(queries.artifact, is_single=True)
    artifacts = _read(queries.artifacts)
    find_artifacts = _read(queries.find_artifacts, is_single=True)
    add_artifact = _write(changes.add_artifact)
    delete_artifact_row = _write(changes.delete_artifact_row, by=None)

    # operations with more to them than a transaction

    def append(self, batch: Batch) -> asyncio.Future[Position]:
        """Queue a write and return at once; batches are stored in the order of the calls.

        The future fails with `StorageError` if nothing was stored: `session_active` if an owner
        other than the batch's holds the session or has closed the run. It must not be cancelled.
        """
        epoch = self._epochs.get(batch.session_id) if batch.epoch is None else batch.epoch
        try:
            rows = rows_of(batch)
        except Exception as error:  # noqa: BLE001 - the caller that awaits the write gets it
            refused: asyncio.Future[Position] = asyncio.get_running_loop().create_future()
            refused.set_exception(unstorable(error))
            return refused
        job = self._batch_job(batch, rows, epoch)
        return self.writer.submit(job, batch.session_id, is_small=rows.size < LARGE)

    def _batch_job(self, batch: Batch, rows: BatchRows, epoch: int | None) -> Job[Position]:
        """Return the job that stores a batch."""
        return partial(append, batch=batch, rows=rows, epoch=epoch)

    async def open_run(self, opening: NewRun, known: ClaimedRun | None = None) -> ClaimedRun:
        """Create or resume the session, claim it, and add the run.

        A session without an owner, or with a dead owner, is taken over: runs that had begun are
        closed as lost, as by `close_lost_runs`; queued runs and a run that waits for an answer are
        returned.

        Args:
            opening: the run.
            known: the last claim of this process to the session, with the session as that run has
                left it: if that is still so, nothing is read.

        Raises:
            StorageError: `session_elsewhere`: the session works in another folder and the opening
                does not move it; `session_active`: a living owner other than the opening's has it;
                `validation_error`: it exists, and the opening has a history.
        """
        blocks = opening.prompt.content if opening.prompt else ()
        is_small = not opening.history and all(
            isinstance(b, TextBlock) and len(b.text) < LARGE for b in blocks
        )
        asked_at, same_folder = owners.now(), None
        open_run = claims.open_run
        if known is not None:
            open_run = partial(unchanged.open_next_run, known=known)
        while True:
            job = partial(
                open_run, liveness=self.liveness, opening=opening, same_folder=same_folder
            )
            try:
                opened = await self.writer.submit(job, opening.session_id, is_small=is_small)
            except StorageError as error:
                same_folder = await _find_same_folder(error, same_folder)
            else:
                return self._claimed(opened, asked_at)

    async def queue_run(self, opening: NewRun) -> ClaimedRun:
        """Create or resume the session, and add a run that waits for a process that may take it.

        The opening has a `dispatch`; the session keeps its owner.

        Raises:
            StorageError: `session_elsewhere`; `validation_error`: the session is another tenant's;
                `session_active`: it should be moved and has a run that has not ended.
        """
        same_folder = None

        def queue(connection: Connection) -> ClaimedRun:
            opened = takeovers.queue_run(connection, self.liveness, opening, same_folder)
            self._add_job(connection, opened.run, opening)
            return opened

        while True:
            try:
                return await self.writer.submit(queue, opening.session_id)
            except StorageError as error:
                same_folder = await _find_same_folder(error, same_folder)

    async def resume_run(self, run_id: str, claim: Claim, *, cwd: str) -> ClaimedRun:
        """Claim the session of a user's run that waits for an answer, so that it can continue.

        The run is `waiting` until its journal begins: if the owner dies before, it still waits.

        Raises:
            StorageError: `run_not_found`; `session_active`: another living owner has the session,
                or the run does not wait; `session_elsewhere`: it does not work in `cwd`.
        """

        def submit(folder: str) -> asyncio.Future[ClaimedRun]:
            return self.writer.submit(
                lambda c: claims.resume_run(c, self.liveness, run_id, claim, cwd=folder),
                run_id,
                by="run_id",
            )

        asked_at = owners.now()
        try:
            opened = await submit(storable(cwd))
        except StorageError as error:
            if error.code is not ErrorCode.SESSION_ELSEWHERE:
                raise
            there = str(error.details["cwd"])
            if await asyncio.to_thread(os.path.realpath, there) != cwd:
                raise
            opened = await submit(storable(there))
        return self._claimed(opened, asked_at)

    async def take_run(
        self, run_id: str, claim: Claim, *, max_takeovers: int | None, is_next: bool = False
    ) -> ClaimedRun | None:
        """Claim the session of a queued run, or of a run that a dead owner has begun.

        A begun run continues: its children are closed as lost, its event `run_taken_over` is
        stored, and `takeovers` counts its dead owners. One too many closes it as `failed` with
        `metadata.reason = "too_many_takeovers"`. A run that was handed over is not counted.

        Args:
            run_id: the run.
            claim: the new owner.
            max_takeovers: how often it may be taken over; None for any number.
            is_next: the queue has given the session to this process: no other can be at work in it,
                and a lease that is over needs no further proof.

        Returns:
            The run as it was; None if it has ended by now or waits for an answer, so that there is
            nothing to do.

        Raises:
            StorageError: `session_active`: a living owner has the session, or another run of it was
                begun and goes first.
        """
        asked_at = owners.now()
        taken = await self.writer.submit(
            lambda c: takeovers.take_run(
                c, self.liveness, run_id, claim, max_takeovers=max_takeovers, is_next=is_next
            ),
            run_id,
            by="run_id",
        )
        return None if taken is None else self._claimed(taken, asked_at)

    def _claimed(self, opened: ClaimedRun, asked_at: float) -> ClaimedRun:
        """Remember the session's epoch, which later writes to it need."""
        self._epochs[opened.session.session_id] = opened.session.epoch
        return replace(opened, asked_at=asked_at)

    async def require_session(self, session_id: str) -> SessionRecord:
        """Return a session.

        Raises:
            StorageError: `session_not_found`.
        """
        found = await self.session(session_id)
        if found is None:
            raise session_not_found(session_id)
        return found

    async def add_run(
        self, run: RunRecord, *, events: Sequence[PendingEvent] = (), claim: Claim | None = None
    ) -> Position:
        """Add a child's run and its first events; return their position.

        A run that may outlive its parent brings a claim, whose owner gets the session too.

        Raises:
            StorageError: `session_not_found`; `session_active` if another owner has the session.
        """
        position, epoch = await self.writer.submit(
            lambda c: claims.add_run(c, self.liveness, run, events, claim), run.session_id
        )
        if claim is not None:
            self._epochs[run.session_id] = epoch
        return position

    async def heartbeat(self, owner: str, lease: timedelta = LEASE) -> Heartbeat:
        """Extend the lease of every session this owner holds, from now by the store's clock.

        It waits only a small part of the lease for other transactions: the lease of a session that
        is locked is extended as soon as the other transaction has ended.
        """
        return await self.writer.submit(lambda c: claims.heartbeat(c, self.liveness, owner, lease))

    async def close_lost_runs(self) -> list[RunRecord]:
        """Close every run that a dead owner has begun or that has no owner, and free the sessions.

        Runs of workers are left to `take_run`, which continues them.

        A lost run is `failed` with `metadata.reason = "owner_lost"` and gets its `run_failed`
        event; nothing can be appended to it any more. A user's run that is queued with its prompt,
        or waits for an answer, stays as it is for the session's next owner. A run that has asked a
        question that `keeps_run` waits from now on. A session whose active node is partial or
        missing continues from the last complete node before it.

        Returns:
            The closed runs, as they are now.
        """
        lost: list[RunRecord] = []
        for session_id in await self._lost_sessions():  # a transaction each: see `skip_unreadable`
            with skip_unreadable(f"session {session_id}"):
                lost += await self.writer.submit(
                    lambda c, one=session_id: lost_runs.close_lost_session(c, self.liveness, one),
                    session_id,
                )
        return lost

    async def _lost_sessions(self) -> list[str]:
        return await self.writer.submit(lambda c: lost_runs.lost_sessions(c, self.liveness))

    async def working_sessions(self) -> Sequence[SessionRecord]:
        """Return the sessions in which a run of a living process is queued or under way."""
        return await self.reader.read(lambda c: workspaces.working_sessions(c, self.liveness))

    async def drop_queued(self, run_id: str, *, taken_by: str | None = None) -> bool:
        """Cancel a queued run that was added with a `dispatch`; return whether it still waited.

        With `taken_by`, also cancel a run that this owner took with `take_run` and did not begin.
        """

        def drop(connection: Connection) -> bool:
            is_dropped = takeovers.drop_queued(connection, run_id, taken_by)
            if is_dropped:
                self._remove_job(connection, run_id)
            return is_dropped

        return await self.writer.submit(drop, run_id, by="run_id")

    async def cancel_idle(self, run_id: str) -> bool:
        """Cancel a user's run that no living process executes, with its children.

        It is queued for workers, waits for an answer, was handed over, or its process has died.

        Returns:
            Whether it was such a run; one that a living process has, or that has ended, is not
            changed.
        """

        def cancel(connection: Connection) -> bool:
            is_ended = takeovers.cancel_idle(connection, self.liveness, run_id)
            if is_ended:
                self._remove_job(connection, run_id)
            return is_ended

        return await self.writer.submit(cancel, run_id, by="run_id")

    async def queue_again(self, run_id: str) -> bool:
        """Have a worker look at a run for workers that waits for an answer.

        Returns:
            Whether the run is such a run.
        """
        return await self.writer.submit(
            lambda c: self._queue_waiting(c, run_id), run_id, by="run_id"
        )

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

        def decide(connection: Connection) -> "tuple[ApprovalRecord | None, bool]":
            found, is_first = answer(
                connection,
                self.liveness,
                request_id,
                decision,
                reason=reason,
                by=by,
                decider=decider,
                arguments=arguments,
            )
            if found is not None and is_first:
                self._queue_waiting(connection, found.root_run_id)
            return found, is_first

        return await self.writer.submit(decide, request_id, by="request_id", is_small=True)

    def _queue_waiting(self, connection: Connection, run_id: str) -> bool:
        run = find(connection, RunRecord, run_id)
        if run is None or run.status is not RunStatus.WAITING or not run.is_for_workers:
            return False
        self._add_job(connection, run, None)
        return True

    def _add_job(self, connection: Connection, run: RunRecord, opening: NewRun | None) -> None:
        """Put a run into the workers' queue, if there is one."""

    def _remove_snapshots(self, connection: Connection, session_id: str) -> None:
        """Remove the snapshots of a session that every machine can have, if there are any."""

    def _remove_job(self, connection: Connection, run_id: str) -> None:
        """Remove a run from the workers' queue, if there is one."""

    async def delete_session(
        self, session_id: str, *, unused_since: datetime | None = None
    ) -> None:
        """Remove the session and all its rows; files are not touched.

        Raises:
            StorageError: `session_not_found`; `session_active` while a run of it is open and
                its owner lives, or if it was used since `unused_since` or has any open run.
        """

        def delete(connection: Connection) -> None:
            claims.delete_session(connection, self.liveness, session_id, unused_since)
            self._remove_snapshots(connection, session_id)

        await self.writer.submit(delete, session_id)
        self._epochs.pop(session_id, None)

    async def unused_sessions(
        self, before: datetime, *, project: str | None = None, keep_last: int = 0
    ) -> list[str]:
        """Return the sessions that were last used before then and have no open run, oldest first.

        Args:
            before: the time.
            project: only sessions that work in this folder.
            keep_last: this many of the last used ones are left out.
        """
        from agent_core.storage.unused import unused_sessions  # noqa: PLC0415

        folder = None if project is None else storable(project)
        kept = clamp(keep_last, 0)
        return await self.reader.read(
            lambda c: unused_sessions(c, before, project=folder, keep_last=kept)
        )

    async def last_use(self) -> datetime | None:
        """Return the time stored with the last use of any session."""
        from agent_core.storage.unused import last_use  # noqa: PLC0415

        return await self.reader.read(last_use, is_single=True)

    async def stored_sessions(self) -> list[tuple[str, str, str | None]]:
        """Return the id, the folder and the title of every session."""
        from agent_core.storage.unused import stored_sessions  # noqa: PLC0415

        return await self.reader.read(stored_sessions, is_single=True)

    async def session_bytes(
        self, session_ids: Sequence[str] | None = None
    ) -> dict[str, tuple[int, int]]:
        """Return the bytes of sessions' text in rows, and of their artifacts; None is all."""
        from agent_core.storage.unused import session_bytes  # noqa: PLC0415

        return await self.reader.read(lambda c: session_bytes(c, session_ids))

    async def respond(self, *, to_writes: bool) -> None:
        """Return once the database has responded.

        Args:
            to_writes: also to a transaction, in which nothing is written.

        Raises:
            StorageError: it cannot be used.
        """
        await self.reader.read(do_nothing, is_single=True)
        if to_writes and not self.is_read_only:
            await self.writer.submit(do_nothing)

    def hurry(self) -> None:
        """Stop waiting for the database, or for other processes: this process is about to end."""
        self.is_hurried = True

    async def file_bytes(self) -> tuple[int, int] | None:
        """Return the size of the database's files, and how much is free in them.

        None if the database is a server's, or in memory.
        """
        return None

    async def erase_deleted(self, *, gives_way: bool = False) -> None:
        """Remove what deleted rows have left in the files of the database.

        The files of a server are the server's. With `gives_way`, writes of this process go first.

        Raises:
            StorageError: it cannot be done now, because the database is in use or its disk is full.
        """

    async def give_back_space(self) -> None:
        """Give back the free space of the database's file, if that takes a moment only."""

    # operations that runs do not need, whose modules are loaded on first use

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
        from agent_core.storage.summaries import summaries  # noqa: PLC0415

        page = clamp(limit, 0), clamp(offset, 0)
        folder = None if project is None else storable(project)
        return await self.reader.read(lambda c: summaries(c, *page, folder, query, forked_from))

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
        from agent_core.storage.costs import costs  # noqa: PLC0415

        begin = None if since is None else microseconds(since)
        folder = None if project is None else storable(project)
        most = clamp(limit, 0)
        return await self.reader.read(
            lambda c: costs(c, by, since=begin, project=folder, limit=most)
        )

    async def sessions_nearby(self, folder: str, *, limit: int) -> dict[str, int]:
        """Return the number of sessions, up to 1,000, of each folder above and below this one.

        The folders above come first, the nearest before the rest. Of the folders below, the first
        `limit` by path are found; the last used of them is first.

        Args:
            folder: an absolute path; its own sessions are not counted.
            limit: largest number of folders.
        """
        path = storable(folder)
        return await self.reader.read(lambda c: sessions_nearby(c, path, clamp(limit, 0)))

    async def untitled(self, limit: int) -> dict[str, str]:
        """Return the first words of sessions without a title, by session id."""
        from agent_core.storage.summaries import untitled  # noqa: PLC0415

        return await self.reader.read(lambda c: untitled(c, limit))

    async def add_titles(self, titles: Mapping[str, str]) -> None:
        """Set titles, by session id, for the sessions among them that have none."""
        from agent_core.storage.summaries import add_titles  # noqa: PLC0415

        await self.writer.submit(lambda c: add_titles(c, titles))

    async def nodes_with(
        self,
        words: Sequence[str],
        *,
        before: int | None = None,
        limit: int,
        project: str | None = None,
    ) -> list[tuple[int, Node | None]]:
        """Return messages and summaries whose content has all folded words, newest first.

        A few of them may lack a word: what is compared is the stored JSON. All content is read
        until `limit` are found, where no index helps.

        Returns:
            Each with its number, which is the next call's `before`; None is an unreadable one.
        """
        from agent_core.storage.summaries import nodes_with  # noqa: PLC0415

        folder = None if project is None else storable(project)
        return await self.reader.read(lambda c: nodes_with(c, words, before, limit, folder))

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
        from agent_core.storage.summaries import ids_beginning  # noqa: PLC0415

        start = storable(prefix)
        return await self.reader.read(lambda c: ids_beginning(c, kind, start, session_id, limit))

    async def fork_session(self, fork: "SessionFork") -> SessionRecord:
        """Add a session with a copy of the path to a node, and of the record of its files.

        Raises:
            StorageError: `session_not_found`, `node_not_found`.
        """
        from agent_core.storage.forks import fork_session  # noqa: PLC0415

        return await self.writer.submit(lambda c: fork_session(c, fork), fork.session_id)

    async def import_session(
        self, session: SessionRecord, agent: "AgentRecord", path: Sequence[Node]
    ) -> SessionRecord:
        """Add a session with its root agent and a conversation that was given.

        Raises:
            StorageError: `validation_error`: there is a session with this id.
        """
        from agent_core.storage.given import import_session  # noqa: PLC0415

        session_id = session.session_id
        return await self.writer.submit(
            lambda c: import_session(c, session, agent, path), session_id
        )


async def _find_same_folder(refused: StorageError, tried: str | None) -> str:
    """Return another name of the opening's folder, under which its session may be known.

    Raises:
        StorageError: the refusal has another reason, or that name was `tried`.
    """
    if refused.code is not ErrorCode.SESSION_ELSEWHERE or tried is not None:
        raise refused
    return await asyncio.to_thread(claims.require_same_folder, refused)


def do_nothing(connection: Connection) -> None:
    """Ask the database for nothing, to see whether it answers."""
    connection.execute("SELECT 1").fetchone()
