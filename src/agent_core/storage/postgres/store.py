"""The session store on PostgreSQL, which many machines may share."""

import asyncio
import copy
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from datetime import datetime, timedelta
from typing import Self, cast

import psycopg
from msgspec import Struct
from msgspec.structs import replace

from agent_core.errors import ErrorCode, StorageError
from agent_core.storage import claims, lost_runs
from agent_core.storage.liveness import Liveness
from agent_core.storage.migrations import MIGRATIONS
from agent_core.storage.postgres.appends import Append
from agent_core.storage.postgres.connections import PATIENCE, Threads
from agent_core.storage.postgres.faults import DATABASE, explain, read_only_error
from agent_core.storage.postgres.queue import RunQueue, add_job, remove_job
from agent_core.storage.postgres.schema import IDENTITY, migrate, version_of
from agent_core.storage.postgres.search import find_nodes
from agent_core.storage.postgres.settings import IDLE_S, connect
from agent_core.storage.postgres.statements import read_clock
from agent_core.storage.postgres.workers import WorkerTable
from agent_core.storage.rows import BatchRows, iso, storable
from agent_core.storage.sql import Connection, Job, NoWriter, Result
from agent_core.storage.store import SessionStore
from agent_core.types import LEASE, Batch, Heartbeat, NewRun, Node, Position, RunRecord

_FREE = """AND session_id IN
    (SELECT session_id FROM sessions WHERE owner = :owner FOR NO KEY UPDATE SKIP LOCKED)"""
_IS_READ_ONLY = "SELECT current_setting('transaction_read_only')"
_PARTS = 15
"""A heartbeat waits for locked sessions for one fifteenth of a lease."""
_EXTEND = "UPDATE sessions SET lease_expires_at = ? WHERE owner = ? AND session_id = ?"


class TenantReader(Struct, frozen=True):
    """Runs queries that see only the rows of one tenant."""

    threads: Threads
    tenant: str

    async def read(self, query: Job[Result], *, is_single: bool = False) -> Result:
        """Run a query in a thread.

        Raises:
            StorageError: the database cannot be read, or is closed.
        """
        return await self.threads.read(query, is_single=is_single, tenant=self.tenant)


class PostgresSessionStore(SessionStore):
    """Sessions and their history in a database that many machines may share."""

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        url: str,
        *,
        tenant: str | None = None,
        patience: float = PATIENCE,
        lease_s: float = LEASE.total_seconds(),
        clock: Callable[[], datetime] | None = None,
        read_only: bool = False,
    ) -> AsyncGenerator[Self]:
        """Open the database, creating or migrating its tables, until the end of the block.

        Args:
            url: address, as libpq reads it: `postgresql://user:password@host/database`.
            tenant: the only tenant whose sessions can be seen and changed; None for all.
            patience: seconds that a job waits for an unreachable server, or for other processes.
            lease_s: seconds that this process' leases last: a process paused in a transaction loses
                it, and its locks, within a third of this. A heartbeat without an answer for as long
                is sent again on another connection.
            clock: replaces the server's clock for judging leases, in tests.
            read_only: change nothing, and refuse writes.

        Raises:
            StorageError: `migration_failed` for a newer database, which is left untouched;
                `storage_error` if the database cannot be used.
        """
        try:
            await asyncio.to_thread(_require_current if read_only else _prepare, url)
        except psycopg.Error as error:
            raise explain(error) from None
        idle_s = min(IDLE_S, lease_s / 3)
        threads = Threads(url, tenant=tenant, patience=patience, idle_s=idle_s)
        try:
            store = cls(threads, Liveness(read_clock if clock is None else lambda _: clock()))
            if read_only:
                store.writer = NoWriter()
            yield store
        finally:
            await threads.close()

    def __init__(self, threads: Threads, liveness: Liveness) -> None:
        super().__init__(threads, threads, liveness)
        self._threads = threads
        self._extending: dict[str, asyncio.Task[bool]] = {}

    def of_tenant(self, tenant: str) -> Self:
        """See `SessionStore`."""
        bound = copy.copy(self)
        bound.writer, bound.reader = NoWriter(), TenantReader(self._threads, tenant)
        return bound

    async def heartbeat(self, owner: str, lease: timedelta = LEASE) -> Heartbeat:
        """See `SessionStore`."""
        beat = await self._threads.keep(
            lambda c: claims.heartbeat(c, self.liveness, owner, lease, free=_FREE)
        )
        if not beat.late:
            return beat
        started = {
            session_id: asyncio.create_task(self._extend(session_id, owner, lease))
            for session_id in beat.late - self._extending.keys()
        }
        self._extending |= started
        if started:  # this process may have locked the session, to store something
            await asyncio.wait(started.values(), timeout=lease.total_seconds() / _PARTS)
        extended = {each for each, task in started.items() if task.done() and task.result()}
        return replace(beat, late=beat.late - extended)

    async def _extend(self, session_id: str, owner: str, lease: timedelta) -> bool:
        """Extend the lease of a locked session in its turn; return whether it was extended."""

        def extend(connection: Connection) -> bool:
            values = (iso(self.liveness.now(connection) + lease), owner, session_id)
            return connection.execute(_EXTEND, values).rowcount > 0

        try:
            return await self.writer.submit(extend, session_id)
        except StorageError:  # the next heartbeat finds it late again, or with another owner
            return False
        finally:
            del self._extending[session_id]

    async def _lost_sessions(self) -> list[str]:
        return await self.reader.read(lambda c: lost_runs.lost_sessions(c, self.liveness))

    def _batch_job(self, batch: Batch, rows: BatchRows, epoch: int | None) -> Job[Position]:
        return cast("Job[Position]", Append(batch, rows, epoch))  # the writer sends it

    async def identity(self) -> str:
        """Return an identity of this database that does not depend on its address."""
        return await self.reader.read(lambda c: c.execute(IDENTITY).fetchone()[0])

    async def nodes_with(
        self,
        words: Sequence[str],
        *,
        before: int | None = None,
        limit: int,
        project: str | None = None,
    ) -> list[tuple[int, Node | None]]:
        """See `SessionStore`."""
        folder = None if project is None else storable(project)
        is_bound = self._threads.tenant is not None
        return await self.reader.read(
            lambda c: find_nodes(c, words, before, limit, folder, is_bound=is_bound)
        )

    async def respond(self, *, to_writes: bool) -> None:
        """See `SessionStore`."""

        def look(connection: Connection) -> None:
            row = connection.execute(_IS_READ_ONLY).fetchone()
            if to_writes and not self.is_read_only and row[0] == "on":
                raise read_only_error()

        await self._threads.keep(look)  # other threads may wait for long statements

    def hurry(self) -> None:
        """See `SessionStore`."""
        super().hurry()
        self._threads.hurry()

    def queue(self, lease_s: float) -> RunQueue:
        """Return the queue of runs; a process that is silent for `lease_s` is given up."""
        threads = self._threads
        return RunQueue(
            threads,
            keep=threads.keep,
            lease_s=lease_s,
            hurry=threads.hurry,
            is_surely_dead=self.liveness.is_surely_dead,
        )

    def workers(self, tenant: str | None) -> WorkerTable:
        """Return the table of workers; with a tenant, only that tenant's."""
        threads = self._threads
        return WorkerTable(threads, keep=threads.keep, is_dead=self.liveness.is_dead, tenant=tenant)

    def _add_job(self, connection: Connection, run: RunRecord, opening: NewRun | None) -> None:
        if opening is None or opening.dispatch is not None:
            add_job(connection, run, opening)

    def _remove_snapshots(self, connection: Connection, session_id: str) -> None:
        # With the session: another one with its id would begin with its files.
        connection.execute("DELETE FROM shared_snapshots WHERE session_id = ?", (session_id,))

    def _remove_job(self, connection: Connection, run_id: str) -> None:
        remove_job(connection, run_id)


def _prepare(url: str) -> None:
    with closing(connect(url)) as connection:
        migrate(connection)


def _require_current(url: str) -> None:
    """Refuse a database whose tables are not of this version.

    Raises:
        StorageError: `migration_failed`.
    """
    with closing(connect(url)) as connection, connection.transaction():
        version = version_of(connection)
    if version != (newest := MIGRATIONS[-1].version):
        message = (
            f"{DATABASE} has no tables yet: the next run creates them, or soong-agent store migrate"
        )
        if version:
            message = (
                f"{DATABASE} has schema {version}, and only {newest} can be read: the next run"
            )
            message += " upgrades it, or soong-agent store migrate"
        raise StorageError(ErrorCode.MIGRATION_FAILED, message, details={"schema": version})
