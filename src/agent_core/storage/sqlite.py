"""The session store on SQLite: one file, one writer, readers that never wait for it.

A store in memory is the same code on a database that no file and no thread belong to. Committing
costs more than the rows themselves, so the jobs that have queued up while the last transaction was
under way share the next one.
"""

import asyncio
import json
import os
import sqlite3
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Self, TypeVar

from agent_core.errors import ErrorCode, StorageError
from agent_core.storage import approvals, budgets, claims, grants, queries, workspaces
from agent_core.storage.connections import (
    PATIENCE,
    open_in_memory,
    open_reader,
    open_writer,
    patiently,
    reopen_writer,
)
from agent_core.storage.faults import explain, is_busy, is_environmental
from agent_core.storage.queries import PATH, clamp
from agent_core.storage.rows import (
    ACTIVE_RUN,
    Record,
    append_job,
    find,
    insert,
    iso,
    merge_metadata,
    node_not_found,
    note_job,
    read_all,
    storable,
    update,
)
from agent_core.types import (
    LEASE,
    AgentRecord,
    AgentStatus,
    Amounts,
    ApprovalRecord,
    ArtifactRecord,
    Batch,
    BudgetGrant,
    BudgetHold,
    BudgetUse,
    Claim,
    CostSummary,
    CostUnit,
    Decision,
    EventType,
    Node,
    NodeMove,
    OpenedRun,
    OwnerIsDead,
    PendingEvent,
    PermissionGrant,
    Position,
    ReplayResult,
    RunChanges,
    RunOpening,
    RunRecord,
    RuntimeEvent,
    SessionFork,
    SessionNote,
    SessionRecord,
    SessionSummary,
    SnapshotNote,
    TextBlock,
    WorkspaceState,
    utc_now,
)

Result = TypeVar("Result")
Job = Callable[[sqlite3.Connection], Result]

_GROUP = 256
_CHECKPOINT_EVERY = 64
"""Writes between two checkpoints: of the size of a turn, they fill a log of a few megabytes."""

_LONG_LOG = 8 * 2**20
"""Bytes of a log that is moved into the database before the first write of a process."""

_LARGE = 65_536
"""Characters from which on a write is large."""

_READERS = 3
_MEMORY = Path(":memory:")


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A job for the thread; `checkpoint`: the log is moved into the database after it."""

    job: Job[Any]
    future: asyncio.Future[Any]
    checkpoint: bool


_Outcome = tuple[asyncio.Future[Any], Any, Exception | None]
"""A future with the value or the error it gets."""


class Writer:
    """Owns the writing connection until it is closed.

    A small job is done at once, in the caller's thread: an append to SQLite's log waits for no
    disk, and costs less than handing it over. What may wait is done by a thread: large jobs, those
    that find the database busy, the ones behind them, checkpoints, and the first write after a
    checkpoint, which syncs the log. The caller's thread has the connection only while nothing is
    handed over.

    A job must depend on nothing but its connection and its own inputs: when another job of its
    group fails, or the database is busy, it is done again.
    """

    def __init__(
        self, connection: sqlite3.Connection, path: Path, *, patience: float = PATIENCE
    ) -> None:
        self._connection: sqlite3.Connection | None = connection
        self._path = path
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[_Waiting | None] = SimpleQueue()
        self._handed_over = 0
        self._since_checkpoint = 0
        self._closed = False
        # A daemon, so that a program that dies without closing is not kept alive by it.
        self._thread = threading.Thread(target=self._work, name="session-writer", daemon=True)
        self._thread.start()

    def submit(self, job: Job[Result], *, is_small: bool = False) -> asyncio.Future[Result]:
        """Do a job now or later: in the order of the calls, wholly or not at all."""
        future: asyncio.Future[Result] = self._loop.create_future()
        if self._closed:
            future.set_exception(_closed_error(self._path))
            return future
        is_first = self._since_checkpoint == 0
        self._since_checkpoint = (self._since_checkpoint + 1) % _CHECKPOINT_EVERY
        is_last = self._since_checkpoint == 0
        if is_small and not (is_first or is_last or self._handed_over):
            try:
                future.set_result(self._store([job], patience=0.0)[0])
            except Exception as error:  # noqa: BLE001 - it belongs to the caller that awaits the job
                if not (isinstance(error, sqlite3.Error) and is_busy(error)):
                    future.set_exception(explain(error, self._path))
            if future.done():
                return future
        self._handed_over += 1
        self._queue.put(_Waiting(job, future, is_last))
        return future

    async def close(self) -> None:
        """Finish what is queued, then close the connection."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
        await asyncio.to_thread(self._thread.join)

    def _work(self) -> None:
        with suppress(OSError):  # what many short processes have left is moved by the next one
            if Path(f"{self._path}-wal").stat().st_size > _LONG_LOG:
                self._move_log()
        is_open = True
        while is_open:
            queued = [self._queue.get()]
            while len(queued) < _GROUP and not self._queue.empty():
                queued.append(self._queue.get())
            is_open = None not in queued
            if group := [waiting for waiting in queued if waiting is not None]:
                outcomes = self._run(group)
                is_checkpoint = any(waiting.checkpoint for waiting in group)
                with suppress(RuntimeError):  # the loop is gone, and the waiting callers with it
                    done = 0 if is_checkpoint else len(group)
                    self._loop.call_soon_threadsafe(self._settle, outcomes, done)
                    if is_checkpoint:
                        self._move_log()
                        self._loop.call_soon_threadsafe(self._settle, (), len(group))
        if self._connection is not None:
            self._connection.close()

    def _settle(self, outcomes: Sequence[_Outcome], done: int) -> None:
        """Give the results out; `done` jobs do not need the connection any more."""
        self._handed_over -= done
        for future, value, error in outcomes:
            if future.done():
                continue
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(value)

    def _move_log(self) -> None:
        """Move the log into the database, so that the next write can begin it anew."""
        with suppress(sqlite3.Error):  # the next checkpoint may succeed
            self._ready_connection(self._patience).execute("PRAGMA wal_checkpoint").fetchall()

    def _run(self, group: Sequence[_Waiting]) -> list[_Outcome]:
        try:
            values = self._store([waiting.job for waiting in group], patience=self._patience)
        except Exception as error:  # noqa: BLE001 - it belongs to the caller that awaits the job
            if len(group) == 1 or is_environmental(error):
                failure = explain(error, self._path)
                return [(waiting.future, None, failure) for waiting in group]
            return [outcome for waiting in group for outcome in self._run([waiting])]
        futures = [waiting.future for waiting in group]
        return [(future, value, None) for future, value in zip(futures, values, strict=True)]

    def _ready_connection(self, patience: float) -> sqlite3.Connection:
        """The connection, without a transaction: one that a failure left open is taken back.

        A connection that cannot even do that is replaced.
        """
        if self._connection is not None and self._connection.in_transaction:
            try:
                self._connection.execute("ROLLBACK")
            except sqlite3.Error:
                broken, self._connection = self._connection, None
                with suppress(sqlite3.Error):
                    broken.close()
        if self._connection is None:
            self._connection = reopen_writer(self._path, patience)
        return self._connection

    def _store(self, jobs: Sequence[Job[Result]], *, patience: float) -> list[Result]:
        connection = self._ready_connection(patience)
        patiently(partial(connection.execute, "BEGIN IMMEDIATE"), patience)
        try:
            values: list[Result] = []
            for job in jobs:
                values.append(job(connection))  # noqa: PERF401 - a frame less
            patiently(partial(connection.execute, "COMMIT"), patience)
        except BaseException:
            # A full disk may have rolled back already; what is left open now, the next job ends.
            with suppress(sqlite3.Error):
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            raise
        return values


class ReaderThreads:
    """Runs queries, each on one snapshot of the database."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._local = threading.local()
        self._opened: list[sqlite3.Connection] = []
        self._threads = ThreadPoolExecutor(_READERS, thread_name_prefix="session-reader")
        self._closed = False

    async def read(self, query: Job[Result]) -> Result:
        """Run `query` in a thread.

        Raises:
            StorageError: the database cannot be read, or is closed.
        """
        if self._closed:
            raise _closed_error(self._path)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._run, query)

    async def close(self) -> None:
        """Wait for running queries, then close every connection."""
        self._closed = True
        await asyncio.to_thread(self._threads.shutdown)
        for connection in self._opened:
            connection.close()
        self._opened.clear()

    def _run(self, query: Job[Result]) -> Result:
        try:
            return patiently(lambda: self._on_snapshot(query))
        except (sqlite3.Error, UnicodeEncodeError, OverflowError) as error:
            raise explain(error, self._path) from error

    def _on_snapshot(self, query: Job[Result]) -> Result:
        connection = self._connection()
        connection.execute("BEGIN")
        try:
            return query(connection)
        finally:
            if connection.in_transaction:  # some errors have ended it already
                connection.execute("ROLLBACK")

    def _connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = open_reader(self._path)
            self._opened.append(connection)
        return connection


class InlineConnection:
    """Runs jobs at once, on a database in memory: nothing in it waits for a disk.

    Several threads, each with an event loop of its own, may share it: a job is over in no time.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def submit(
        self,
        job: Job[Result],
        *,
        is_small: bool = True,  # noqa: ARG002 - the writer's
    ) -> asyncio.Future[Result]:
        """Run a job, wholly or not at all; the future is done when this returns."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        try:
            future.set_result(self._run(job))
        except Exception as error:  # noqa: BLE001 - it belongs to the caller that awaits the future
            future.set_exception(explain(error, _MEMORY))
        return future

    async def read(self, query: Job[Result]) -> Result:
        """Run a query.

        Raises:
            StorageError: the database cannot be read.
        """
        return await self.submit(query)

    async def close(self) -> None:
        """Close the connection; the rows are gone."""
        self._connection.close()

    def _run(self, job: Job[Result]) -> Result:
        with self._lock:
            self._connection.execute("BEGIN")
            try:
                result = job(self._connection)
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")
            return result


def _closed_error(path: Path) -> StorageError:
    return StorageError(ErrorCode.STORAGE_ERROR, f"the session database {path} is closed")


class SqliteSessionStore:
    """Sessions and their history in a database that several processes may share.

    The methods are described in `agent_core.events.SessionStore`.
    """

    def __init__(
        self,
        writer: Writer | InlineConnection,
        readers: ReaderThreads | InlineConnection,
        path: Path,
        clock: Callable[[], datetime],
    ) -> None:
        self._path = path
        self._writer = writer
        self._readers = readers
        self._clock = clock
        self._epochs: dict[str, int] = {}  # of the sessions that were claimed through this store

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        path: Path,
        *,
        patience: float = PATIENCE,
        clock: Callable[[], datetime] = utc_now,
    ) -> AsyncGenerator[Self]:
        """Open the database, creating or migrating it, until the end of the block.

        Args:
            path: the file; it and the folders it needs are made for this user only.
            patience: seconds a write waits for other processes.
            clock: what leases are judged by: the clock of the machine that holds the database.

        Raises:
            StorageError: `migration_failed` for a newer database, which is left untouched;
                `storage_error` if the file cannot be used.
        """
        path = path.absolute()  # noqa: ASYNC240 - reads no file
        try:
            connection = await asyncio.to_thread(open_writer, path, patience)
        except sqlite3.Error as error:
            raise explain(error, path) from error
        writer = Writer(connection, path, patience=patience)
        readers = ReaderThreads(path)
        try:
            yield cls(writer, readers, path, clock)
        finally:
            # The last connection to close folds the log into the file: that must be the writer.
            try:
                await readers.close()
            finally:
                await writer.close()

    @classmethod
    def in_memory(cls, *, clock: Callable[[], datetime] = utc_now) -> Self:
        """An empty store that ends with this object: for tests and runs that leave nothing."""
        connection = open_in_memory()
        inline = InlineConnection(connection)
        store = cls(inline, inline, Path(":memory:"), clock)
        weakref.finalize(store, connection.close)
        return store

    # writes

    def append(self, batch: Batch) -> asyncio.Future[Position]:
        try:
            job, size = append_job(batch, self._epochs.get(batch.session_id))
        except Exception as error:  # noqa: BLE001 - it belongs to the caller that awaits the write
            refused: asyncio.Future[Position] = asyncio.get_running_loop().create_future()
            refused.set_exception(explain(error, self._path))
            return refused
        return self._writer.submit(job, is_small=size < _LARGE)

    async def open_run(self, opening: RunOpening, *, is_dead: OwnerIsDead) -> OpenedRun:
        blocks = opening.prompt.content if opening.prompt else ()
        is_small = all(isinstance(b, TextBlock) and len(b.text) < _LARGE for b in blocks)

        def submit(same_folder: str | None) -> asyncio.Future[OpenedRun]:
            return self._writer.submit(
                lambda c: claims.open_run(c, opening, is_dead, self._clock(), same_folder),
                is_small=is_small,
            )

        try:
            opened = await submit(None)
        except StorageError as error:
            if error.code is not ErrorCode.SESSION_ELSEWHERE:
                raise
            opened = await submit(await asyncio.to_thread(claims.require_same_folder, error))
        self._epochs[opening.session_id] = opened.session.epoch
        return opened

    async def resume_run(
        self, run_id: str, claim: Claim, *, cwd: str, is_dead: OwnerIsDead
    ) -> OpenedRun:
        def submit(*cwds: str) -> asyncio.Future[OpenedRun]:
            return self._writer.submit(
                lambda c: claims.resume_run(c, run_id, claim, is_dead, self._clock(), cwds=cwds)
            )

        try:
            opened = await submit(storable(cwd))
        except StorageError as error:
            if error.code is not ErrorCode.SESSION_ELSEWHERE:
                raise
            there = str(error.details["cwd"])
            if await asyncio.to_thread(os.path.realpath, there) != cwd:
                raise
            opened = await submit(storable(there))
        self._epochs[opened.session.session_id] = opened.session.epoch
        return opened

    async def close_waiting(self, run_id: str) -> None:
        await self._writer.submit(lambda c: claims.close_waiting(c, run_id, self._clock()))

    async def ask(self, asked: ApprovalRecord) -> ApprovalRecord:
        return await self._writer.submit(lambda c: approvals.ask(c, asked), is_small=True)

    async def answer(
        self, request_id: str, decision: Decision, *, reason: str | None, by: str, decider: str
    ) -> tuple[ApprovalRecord | None, bool]:
        return await self._writer.submit(
            lambda c: approvals.answer(
                c,
                request_id,
                decision,
                reason=reason,
                by=by,
                decider=decider,
                now=self._clock(),
            ),
            is_small=True,
        )

    async def withdraw(self, request_id: str) -> None:
        await self._writer.submit(lambda c: approvals.withdraw(c, request_id, self._clock()))

    async def add_agent(self, agent: AgentRecord) -> None:
        def add(connection: sqlite3.Connection) -> None:
            claims.find_session(connection, agent.session_id)
            insert(connection, agent)

        await self._writer.submit(add)

    async def update_agent(
        self,
        agent_id: str,
        *,
        status: AgentStatus | None = None,
        result: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        def change(connection: sqlite3.Connection) -> None:
            agent = find(connection, AgentRecord, agent_id)
            if agent is None:
                return
            changes = {
                "status": status or agent.status,
                "result": agent.result if result is None else result,
                "metadata": merge_metadata(agent.metadata, metadata or {}),
                "updated_at": utc_now(),
            }
            update(connection, AgentRecord, agent_id, changes)

        await self._writer.submit(change)

    async def add_run(
        self, run: RunRecord, *, events: Sequence[PendingEvent] = (), claim: Claim | None = None
    ) -> Position:
        position, epoch = await self._writer.submit(
            lambda c: claims.add_run(c, run, events, claim, self._clock())
        )
        if claim is not None:
            self._epochs[run.session_id] = epoch
        return position

    async def close_lost_runs(self, is_dead: OwnerIsDead) -> list[RunRecord]:
        return await self._writer.submit(
            lambda c: claims.close_lost_runs(c, is_dead, self._clock())
        )

    async def heartbeat(self, owner: str, lease: timedelta = LEASE) -> list[str]:
        return await self._writer.submit(lambda c: claims.heartbeat(c, owner, lease, self._clock()))

    async def request_cancel(self, run_id: str) -> bool:
        return await self._writer.submit(lambda c: claims.request_cancel(c, run_id, self._clock()))

    async def release(self, session_id: str, owner: str) -> None:
        await self._writer.submit(partial(claims.release, owner=owner, session_id=session_id))

    async def release_all(self, owner: str) -> None:
        await self._writer.submit(partial(claims.release, owner=owner))

    async def add_to_memory_backlog(
        self, session_ids: Collection[str] = (), *, since: datetime | None = None
    ) -> None:
        sql = """INSERT OR IGNORE INTO memory_backlog (session_id)
            SELECT session_id FROM sessions WHERE session_id = ? OR updated_at >= ?"""
        chosen = [(session_id, None) for session_id in session_ids]
        chosen += [] if since is None else [(None, iso(since))]
        await self._writer.submit(lambda c: c.executemany(sql, chosen))

    async def remove_from_memory_backlog(self, session_id: str) -> None:
        sql = "DELETE FROM memory_backlog WHERE session_id = ?"
        await self._writer.submit(lambda c: c.execute(sql, (session_id,)))

    async def note(self, note: SessionNote) -> bool:
        return await self._writer.submit(note_job(note), is_small=True)

    async def reserve_budget(self, hold: BudgetHold, *, at_once: bool = False) -> BudgetGrant:
        return await self._writer.submit(
            lambda c: budgets.reserve(c, hold, at_once=at_once), is_small=True
        )

    async def settle_budget(self, hold_id: str, spent: Amounts | None) -> None:
        await self._writer.submit(lambda c: budgets.settle(c, hold_id, spent), is_small=True)

    async def set_active_node(
        self, session_id: str, node_id: str, *, is_dead: OwnerIsDead
    ) -> SessionRecord:
        return await self._writer.submit(
            lambda c: claims.set_active_node(c, session_id, node_id, is_dead, self._clock())
        )

    async def rename_session(self, session_id: str, title: str) -> None:
        def rename(connection: sqlite3.Connection) -> None:
            claims.find_session(connection, session_id)
            update(connection, SessionRecord, session_id, {"title": title})

        await self._writer.submit(rename)

    async def add_titles(self, titles: Mapping[str, str]) -> None:
        from agent_core.storage.summaries import add_titles  # noqa: PLC0415 - runs need none

        await self._writer.submit(lambda c: add_titles(c, titles))

    async def delete_session(self, session_id: str, *, is_dead: OwnerIsDead) -> None:
        await self._writer.submit(
            lambda c: claims.delete_session(c, session_id, is_dead, self._clock())
        )
        self._epochs.pop(session_id, None)

    async def add_artifact(self, artifact: ArtifactRecord) -> None:
        def add(connection: sqlite3.Connection) -> None:
            claims.find_session(connection, artifact.session_id)
            insert(connection, artifact)

        await self._writer.submit(add)

    async def delete_artifact_row(self, artifact_id: str) -> None:
        sql = "DELETE FROM artifacts WHERE artifact_id = ?"
        await self._writer.submit(lambda c: c.execute(sql, (artifact_id,)).close())

    async def add_grant(self, grant: PermissionGrant) -> None:
        await self._writer.submit(lambda c: grants.add(c, grant), is_small=True)

    async def forget_grants(self, grant_or_session_id: str) -> int:
        return await self._writer.submit(lambda c: grants.forget(c, grant_or_session_id))

    async def name_snapshot(self, note: SnapshotNote) -> None:
        await self._writer.submit(lambda c: workspaces.name_snapshot(c, note), is_small=True)

    async def end_changes(self, session_id: str, run_id: str) -> None:
        await self._writer.submit(
            lambda c: workspaces.end_changes(c, run_id, session_id), is_small=True
        )

    async def begin_move(self, session_id: str, move: NodeMove, *, is_dead: OwnerIsDead) -> None:
        await self._writer.submit(
            lambda c: workspaces.begin_move(c, session_id, move, is_dead, self._clock())
        )

    async def drop_move(self, session_id: str) -> None:
        await self._writer.submit(lambda c: workspaces.drop_move(c, session_id))

    async def move_node(
        self, session_id: str, move: NodeMove, *, is_dead: OwnerIsDead
    ) -> SessionRecord:
        return await self._writer.submit(
            lambda c: workspaces.move_node(c, session_id, move, is_dead, self._clock())
        )

    async def fork_session(self, fork: SessionFork) -> SessionRecord:
        from agent_core.storage.forks import fork_session  # noqa: PLC0415 - few sessions have any

        return await self._writer.submit(lambda c: fork_session(c, fork))

    async def drop_snapshots(self, before: datetime) -> bool:
        return await self._writer.submit(lambda c: workspaces.drop_snapshots(c, before))

    # reads

    async def find_grant(self, session_id: str, key: str) -> PermissionGrant | None:
        found = await self._readers.read(lambda c: grants.listed(c, session_id, key))
        return found[0] if found else None

    async def grants(self, session_id: str | None = None) -> list[PermissionGrant]:
        return await self._readers.read(lambda c: grants.listed(c, session_id))

    async def workspace_state(self, session_id: str, folder: str) -> WorkspaceState:
        return await self._readers.read(lambda c: workspaces.workspace_state(c, session_id, folder))

    async def snapshot_at(self, session_id: str, node_id: str | None, folder: str) -> str | None:
        return await self._readers.read(
            lambda c: workspaces.snapshot_at(c, session_id, node_id, folder)
        )

    async def changes_of(self, run_id: str, folder: str) -> RunChanges | None:
        return await self._readers.read(lambda c: workspaces.changes_of(c, run_id, folder))

    async def overlapping_changes(self, run_id: str, folder: str) -> list[tuple[str, str]]:
        return await self._readers.read(lambda c: workspaces.overlapping_changes(c, run_id, folder))

    async def pending_moves(self, folder: str) -> list[str]:
        return await self._readers.read(lambda c: workspaces.pending_moves(c, folder))

    async def snapshots_in_use(self) -> set[str]:
        return await self._readers.read(workspaces.snapshots_in_use)

    async def working_sessions(self, is_dead: OwnerIsDead) -> Sequence[SessionRecord]:
        return await self._readers.read(
            lambda c: workspaces.working_sessions(c, is_dead, self._clock())
        )

    async def session(self, session_id: str) -> SessionRecord | None:
        return await self._find(SessionRecord, session_id)

    async def sessions(self, *, limit: int = 50, offset: int = 0) -> list[SessionRecord]:
        sql = "SELECT * FROM sessions ORDER BY updated_at DESC, rowid DESC LIMIT ? OFFSET ?"
        page = clamp(limit, 0), clamp(offset, 0)
        return await self._find_all(SessionRecord, sql, *page)

    async def session_summaries(
        self,
        *,
        limit: int,
        offset: int = 0,
        project: str | None = None,
        query: str | None = None,
        forked_from: str | None = None,
    ) -> list[tuple[SessionSummary, Mapping[str, Any]]]:
        from agent_core.storage.summaries import summaries  # noqa: PLC0415 - runs need none

        page = clamp(limit, 0), clamp(offset, 0)
        folder = None if project is None else storable(project)
        return await self._readers.read(lambda c: summaries(c, *page, folder, query, forked_from))

    async def costs(
        self,
        by: CostUnit,
        *,
        since: datetime | None = None,
        project: str | None = None,
        limit: int = 1_000_000,
    ) -> list[CostSummary]:
        from agent_core.storage.costs import costs  # noqa: PLC0415 - runs need none

        begin = None if since is None else iso(since)
        folder = None if project is None else storable(project)
        most = clamp(limit, 0)
        return await self._readers.read(
            lambda c: costs(c, by, since=begin, project=folder, limit=most)
        )

    async def last_session(self, project: str | None = None) -> str | None:
        sql = """SELECT session_id FROM sessions WHERE ?1 IS NULL OR cwd = ?1
            ORDER BY updated_at DESC, rowid DESC LIMIT 1"""
        folder = None if project is None else storable(project)
        found = await self._readers.read(lambda c: c.execute(sql, (folder,)).fetchone())
        return found[0] if found else None

    async def memory_backlog(self, limit: int) -> list[str]:
        sql = """SELECT session_id FROM memory_backlog JOIN sessions USING (session_id)
            WHERE owner IS NULL ORDER BY updated_at DESC LIMIT ?"""
        rows = await self._readers.read(lambda c: c.execute(sql, (limit,)).fetchall())
        return [session_id for (session_id,) in rows]

    async def runs_without_memory(self, run_ids: Collection[str]) -> set[str]:
        sql = """SELECT run_id FROM runs WHERE run_id IN (SELECT value FROM json_each(?))
            AND json_extract(options_json, '$.memory') = 0"""
        asked = (json.dumps(list(run_ids)),)
        rows = await self._readers.read(lambda c: c.execute(sql, asked).fetchall())
        return {run_id for (run_id,) in rows}

    async def untitled(self, limit: int) -> dict[str, str]:
        from agent_core.storage.summaries import untitled  # noqa: PLC0415 - runs need none

        return await self._readers.read(lambda c: untitled(c, limit))

    async def nodes_like(
        self,
        patterns: Sequence[str],
        *,
        before: int | None = None,
        limit: int,
        project: str | None = None,
    ) -> list[tuple[int, Node]]:
        from agent_core.storage.summaries import nodes_like  # noqa: PLC0415 - runs need none

        likes = list(map(storable, patterns))
        folder = None if project is None else storable(project)
        return await self._readers.read(lambda c: nodes_like(c, likes, before, limit, folder))

    async def ids_beginning(
        self, kind: str, prefix: str, *, session_id: str | None = None, limit: int = 10
    ) -> list[str]:
        from agent_core.storage.summaries import ids_beginning  # noqa: PLC0415 - runs need none

        start = storable(prefix)
        return await self._readers.read(lambda c: ids_beginning(c, kind, start, session_id, limit))

    async def agent(self, agent_id: str) -> AgentRecord | None:
        return await self._find(AgentRecord, agent_id)

    async def agents(self, session_id: str) -> list[AgentRecord]:
        sql = "SELECT * FROM agents WHERE session_id = ? ORDER BY rowid"
        return await self._find_all(AgentRecord, sql, session_id)

    async def run(self, run_id: str) -> RunRecord | None:
        return await self._find(RunRecord, run_id)

    async def runs(self, session_id: str) -> list[RunRecord]:
        sql = "SELECT * FROM runs WHERE session_id = ? ORDER BY rowid"
        return await self._find_all(RunRecord, sql, session_id)

    async def active_run_ids(self, session_id: str) -> list[str]:
        sql = f"SELECT run_id FROM runs WHERE session_id = ? AND {ACTIVE_RUN} ORDER BY rowid"  # noqa: S608
        rows = await self._readers.read(lambda c: c.execute(sql, (session_id,)).fetchall())
        return [run_id for (run_id,) in rows]

    async def node(self, node_id: str) -> Node | None:
        return await self._find(Node, node_id)

    async def path(self, node_id: str, *, after: str | None = None) -> list[Node]:
        nodes = await self._find_all(Node, PATH, node_id, after)
        if not nodes and node_id != after:
            raise node_not_found(node_id)
        return nodes

    async def page(
        self,
        session_id: str,
        *,
        from_seq: int | None = None,
        to_seq: int | None = None,
        limit: int = 1000,
    ) -> ReplayResult:
        return await self._readers.read(
            lambda c: queries.page(c, session_id, from_seq, to_seq, limit)
        )

    async def run_history(self, run_id: str) -> ReplayResult:
        return await self._readers.read(lambda c: queries.run_history(c, run_id))

    async def events_after(
        self, run_id: str, run_seq: int, *, limit: int = 1000
    ) -> list[RuntimeEvent]:
        sql = "SELECT * FROM events WHERE run_id = ? AND run_seq > ? ORDER BY run_seq LIMIT ?"
        span = clamp(run_seq, 0), clamp(limit, 1)
        return await self._find_all(RuntimeEvent, sql, run_id, *span)

    async def last_events(
        self, session_id: str, agent_id: str, event_type: EventType, *, limit: int
    ) -> list[RuntimeEvent]:
        sql = """SELECT * FROM events WHERE session_id = ? AND agent_id = ? AND event_type = ?
            ORDER BY seq DESC LIMIT ?"""
        asked = session_id, agent_id, event_type.value, clamp(limit, 0)
        return await self._find_all(RuntimeEvent, sql, *asked)

    async def open_calls(
        self, session_id: str, tool_call_ids: Collection[str], *, agent_id: str | None = None
    ) -> set[str]:
        ids = tuple(tool_call_ids)
        return await self._readers.read(lambda c: queries.open_calls(c, session_id, ids, agent_id))

    async def budget_uses(self, scope_ids: Collection[str]) -> list[BudgetUse]:
        return await self._readers.read(lambda c: budgets.uses(c, scope_ids))

    async def waiting_children(self, run_id: str) -> list[RunRecord]:
        return await self._readers.read(lambda c: claims.waiting_children(c, run_id))

    async def approval(self, request_id: str) -> ApprovalRecord | None:
        return await self._find(ApprovalRecord, request_id)

    async def approval_of(
        self, root_run_id: str, run_id: str, tool_call_id: str
    ) -> ApprovalRecord | None:
        return await self._readers.read(
            lambda c: approvals.of_call(c, root_run_id, run_id, tool_call_id)
        )

    async def approvals(
        self,
        *,
        session_id: str | None = None,
        prefix: str = "",
        is_open: bool = True,
        limit: int = 100,
    ) -> list[ApprovalRecord]:
        return await self._readers.read(
            lambda c: approvals.listed(
                c, session_id=session_id, prefix=prefix, is_open=is_open, limit=clamp(limit, 0)
            )
        )

    async def is_answered(self, root_run_id: str) -> bool:
        return await self._readers.read(lambda c: approvals.is_answered(c, root_run_id))

    async def artifact(self, artifact_id: str) -> ArtifactRecord | None:
        return await self._find(ArtifactRecord, artifact_id)

    async def artifacts(
        self,
        *,
        session_id: str | None = None,
        kinds: Collection[str] | None = None,
        older_than: datetime | None = None,
    ) -> list[ArtifactRecord]:
        return await self._readers.read(
            lambda c: queries.artifacts(c, session_id, kinds, older_than)
        )

    async def _find(self, kind: type[Record], key: str) -> Record | None:
        return await self._readers.read(lambda c: find(c, kind, key))

    async def _find_all(
        self, kind: type[Record], sql: str, *values: str | int | None
    ) -> list[Record]:
        return await self._readers.read(lambda c: read_all(kind, c.execute(sql, values)))
