"""The session store on PostgreSQL, which many machines may share."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Self

import psycopg

from agent_core.errors import ErrorCode, StorageError
from agent_core.storage import claims, takeovers
from agent_core.storage.postgres.appends import Append
from agent_core.storage.postgres.connections import IDLE_S, PATIENCE, Threads, connect
from agent_core.storage.postgres.faults import explain
from agent_core.storage.postgres.queue import RunQueue, add_job, remove_job
from agent_core.storage.postgres.schema import IDENTITY, migrate
from agent_core.storage.postgres.statements import read_clock
from agent_core.storage.postgres.workers import WorkerTable, by_lease
from agent_core.storage.rows import BatchRows, iso
from agent_core.storage.sql import Connection
from agent_core.storage.store import SqlSessionStore
from agent_core.types import LEASE, Batch, OwnerIsDead, Position, RunOpening, RunRecord

_EXTEND_FREE = """UPDATE sessions SET lease_expires_at = ? WHERE session_id IN
    (SELECT session_id FROM sessions WHERE owner = ? FOR NO KEY UPDATE SKIP LOCKED)"""
_NOT_EXTENDED = "SELECT session_id FROM sessions WHERE owner = ? AND lease_expires_at < ?"
_EXTEND_ONE = "UPDATE sessions SET lease_expires_at = ? WHERE owner = ? AND session_id = ?"


class PostgresSessionStore(SqlSessionStore):
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
    ) -> AsyncGenerator[Self]:
        """Open the database, creating or migrating its tables, until the end of the block.

        Args:
            url: where it is, as libpq reads it: `postgresql://user:password@host/database`.
            tenant: whose sessions there are to see and to change; None: all tenants'.
            patience: seconds a job waits for a server that is away, or for other processes.
            lease_s: how long the leases of this process last: one that is paused in a transaction
                loses that, and its locks, within a third of it.
            clock: what leases are judged by, in place of the server's clock; a test moves it.

        Raises:
            StorageError: `migration_failed` for a newer database, which is left untouched;
                `storage_error` if the database cannot be used.
        """
        try:
            await asyncio.to_thread(_prepare, url)
        except psycopg.Error as error:
            raise explain(error) from None
        idle_s = min(IDLE_S, lease_s / 3)
        threads = Threads(url, tenant=tenant, patience=patience, idle_s=idle_s)
        try:
            yield cls(threads, read_clock if clock is None else lambda _: clock())
        finally:
            await threads.close()

    def __init__(self, threads: Threads, clock: Callable[[Connection], datetime]) -> None:
        super().__init__(threads, threads, clock)
        self._threads = threads

    async def heartbeat(self, owner: str, lease: timedelta = LEASE) -> list[str]:
        """See `SessionStore`: a session that another transaction has locked holds up no other.

        Raises:
            StorageError: the lease of such a session could not be extended yet.
        """

        def extend(connection: Connection, sql: str, *values: str) -> str:
            until = iso(self._clock(connection) + lease)
            connection.execute(sql, (until, owner, *values))
            return until

        def extend_free(connection: Connection) -> tuple[list[str], list[str]]:
            until = extend(connection, _EXTEND_FREE)
            locked = connection.execute(_NOT_EXTENDED, (owner, until)).fetchall()
            return claims.runs_to_cancel(connection, owner), [each for (each,) in locked]

        cancelled, locked = await self._threads.keep(extend_free)
        if locked:
            waiting = [
                self._writer.submit(lambda c, one=each: extend(c, _EXTEND_ONE, one), each)
                for each in locked
            ]
            late = asyncio.gather(*waiting, return_exceptions=True)
            try:
                async with asyncio.timeout(lease.total_seconds() / 6):
                    outcomes = await asyncio.shield(late)
            except TimeoutError:
                which = ", ".join(locked)
                message = f"another transaction has locked the sessions {which}; it is to end first"
                raise StorageError(ErrorCode.STORAGE_ERROR, message, retryable=True) from None
            for outcome in outcomes:
                if isinstance(outcome, BaseException):
                    raise outcome
        return cancelled

    async def held_sessions(self, owner: str) -> dict[str, int]:
        """See `SessionStore`."""
        return await self._threads.keep(lambda c: takeovers.held_sessions(c, owner))

    async def _lost_sessions(self, is_dead: OwnerIsDead) -> list[str]:
        return await self._reader.read(lambda c: claims.lost_sessions(c, is_dead, self._clock(c)))

    def _append(self, batch: Batch, rows: BatchRows, epoch: int | None) -> asyncio.Future[Position]:
        return self._threads.append(Append(batch, rows, epoch), batch.session_id)

    async def identity(self) -> str:
        """What tells this database from every other, by whatever address it is reached."""
        return await self._reader.read(lambda c: c.execute(IDENTITY).fetchone()[0])

    def queue(self, lease_s: float) -> RunQueue:
        """The runs that wait for a process; one that is silent for so long is given up."""
        threads = self._threads
        return RunQueue(threads, keep=threads.keep, lease_s=lease_s, hurry=threads.hurry)

    def workers(self, tenant: str | None, is_dead: OwnerIsDead = by_lease) -> WorkerTable:
        """The workers of the database; of those of one tenant alone, only that one's."""
        threads = self._threads
        return WorkerTable(threads, threads, keep=threads.keep, is_dead=is_dead, tenant=tenant)

    def _add_job(self, connection: Connection, run: RunRecord, opening: RunOpening | None) -> None:
        if opening is None or opening.dispatch is not None:
            add_job(connection, run, opening)

    def _remove_job(self, connection: Connection, run_id: str) -> None:
        remove_job(connection, run_id)


def _prepare(url: str) -> None:
    with connect(url) as connection:
        migrate(connection)
