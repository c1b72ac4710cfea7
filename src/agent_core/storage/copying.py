"""Copies sessions between databases: every row, in order, in one transaction per session."""

import os
import sqlite3
import stat
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self

from agent_core.errors import ErrorCode, StorageError
from agent_core.storage.connections import open_reader, open_writer, patiently
from agent_core.storage.faults import explain
from agent_core.storage.liveness import OwnerIsDead
from agent_core.storage.migrations import version_of
from agent_core.storage.reading import open_unchanging
from agent_core.storage.rows import ACTIVE_RUN, loads, session_not_found
from agent_core.types import UndoneMessage, utc_now
from agent_core.types.lanes import Lane

SESSION_TABLES = (
    "sessions",
    "agents",
    "runs",
    "nodes",
    "events",
    "artifacts",
    "budgets",
    "budget_agents",
    "budget_holds",
    "node_snapshots",
    "workspaces",
    "approvals",
    "grants",
    "memory_backlog",
    "waiting_messages",
)
"""Every table with rows of a session; referenced tables come before those that refer to them.

`spending` is missing: the target computes its rows from sessions and runs.
"""

_KEPT_BY_TARGET = {
    "rowid",
    "last_seq",
    "last_node_seq",
    "last_run_seq",
    "watched_until",
    "use_number",
}
"""Columns that each database sets for itself."""

_ADDED = {("sessions", "tenant"), ("sessions", "place"), ("runs", "lane")}
"""Columns that are set during the copy, even if the source has no such column yet."""

Changes = Mapping[str, Callable[[dict[str, Any]], None]]
"""Functions that change the rows of a table, given the columns that both databases have."""


_LONG_LOG = 8 * 2**20
"""Size in bytes above which a file's log is moved into it after a session."""


class CopyEnd(Protocol):
    """A database that sessions are copied from or to. Every method blocks.

    The source is not changed and may have an older schema; the target is up to date.
    """

    def columns(self, table: str) -> Collection[str]:
        """Return the columns of a table; empty if there is no such table."""
        ...

    def select(self, sql: str, *values: str) -> list[Sequence[Any]]:
        """Return the rows of a query with `?` for each value."""
        ...

    def now(self) -> datetime:
        """Return the time by which leases of this database are judged."""
        ...

    def stream(self, sql: str, *values: str) -> Iterator[Sequence[Any]]:
        """Stream the rows of a query that may not fit into memory, within a transaction."""
        ...

    def insert(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Add rows."""
        ...

    def transaction(self) -> AbstractContextManager[None]:
        """See one state of the database, and keep everything that is added, or nothing."""
        ...


def session_ids(source: CopyEnd, tenant: str | None) -> list[str]:
    """Return session ids, the last used one last; with a tenant, also sessions without one."""
    columns = source.columns("sessions")
    order = "ORDER BY use_number" if "use_number" in columns else "ORDER BY updated_at, rowid"
    if tenant is None or "tenant" not in columns:
        found = source.select(f"SELECT session_id FROM sessions {order}")  # noqa: S608
    else:
        sql = f"SELECT session_id FROM sessions WHERE tenant IS NULL OR tenant = ? {order}"  # noqa: S608
        found = source.select(sql, tenant)
    return [session_id for (session_id,) in found]


def require_idle(source: CopyEnd, session_id: str, is_dead: OwnerIsDead) -> bool:
    """Refuse a session in which a run is under way; a run that waits for an answer is allowed.

    Returns:
        Whether a process has died in it: the next process that opens it closes its runs.

    Raises:
        StorageError: `session_not_found`, `session_active`.
    """
    sql = "SELECT owner, lease_expires_at FROM sessions WHERE session_id = ?"
    found = source.select(sql, session_id)
    if not found:
        raise session_not_found(session_id)
    ((owner, lease),) = found
    lane = "lane" if "lane" in source.columns("runs") else "NULL"
    sql = f"SELECT run_id, {lane} FROM runs WHERE session_id = ? AND {ACTIVE_RUN} LIMIT 1"  # noqa: S608
    active = source.select(sql, session_id)
    if not active:
        return False
    ((run_id, lane),) = active
    is_lost = owner and is_dead(owner, not lease or datetime.fromisoformat(lease) <= source.now())
    if is_lost and not (lane and Lane.parse(lane)):  # such a run is taken over by a worker
        return True
    message = f"session {session_id} has an active run; copy it when the run has ended"
    details = {"session_id": session_id, "run_id": run_id}
    raise StorageError(ErrorCode.SESSION_ACTIVE, message, retryable=True, details=details)


def has_session(end: CopyEnd, session_id: str) -> bool:
    """Return whether a database has a session with this id."""
    return bool(end.select("SELECT 1 FROM sessions WHERE session_id = ?", session_id))


def snapshots_of(source: CopyEnd, session_id: str) -> set[str]:
    """Return the ids of the snapshots of files that a session names.

    Raises:
        StorageError: `session_active`: the files are being restored, or a process died doing it.
    """
    if not source.columns("workspaces"):
        return set()
    sql = "SELECT snapshot_id, previous_id FROM node_snapshots WHERE session_id = ?"
    found = {each for row in source.select(sql, session_id) for each in row}
    sql = "SELECT snapshot_id, undone_json, pending_json FROM workspaces WHERE session_id = ?"
    for snapshot_id, undone, pending in source.select(sql, session_id):
        if pending is not None:
            message = f"the files of session {session_id} are being restored; open it once, and"
            message += " copy it when that is done"
            raise StorageError(ErrorCode.SESSION_ACTIVE, message, retryable=True)
        if snapshot_id is None:  # its snapshots were swept: see `drop_snapshots`
            continue
        for each in map(UndoneMessage.model_validate, loads(undone)):
            found |= {each.before, each.after, each.known}
        found.add(snapshot_id)
    return {each for each in found if each}


def has_tasks(source: CopyEnd, session_id: str) -> bool:
    """Return whether a Task was ever created in a session."""
    sql = "SELECT 1 FROM events WHERE session_id = ? AND event_type = 'task_created' LIMIT 1"
    return bool(source.select(sql, session_id))


def copy_rows(source: CopyEnd, target: CopyEnd, session_id: str, changes: Changes) -> None:
    """Add the rows of a session, within transactions of both databases.

    Tables and columns that only one of the schemas has are left out, or get their defaults.
    """
    for table in SESSION_TABLES:
        if not (known := source.columns(table)):
            continue
        taken = [name for name in target.columns(table) if name not in _KEPT_BY_TARGET]
        columns = [name for name in taken if name in known or (table, name) in _ADDED]
        whose = "session_id = ?"
        if table == "budget_agents":
            whose = "scope_id IN (SELECT scope_id FROM budgets WHERE session_id = ?)"
        order = next((each for each in ("seq", "node_seq", "rowid") if each in known), "1")
        values = (name if name in known else f"NULL AS {name}" for name in columns)
        sql = f"SELECT {', '.join(values)} FROM {table} WHERE {whose} ORDER BY {order}"  # noqa: S608
        rows = source.stream(sql, session_id)
        target.insert(table, columns, _changed(rows, table, columns, changes))


def _changed(
    rows: Iterator[Sequence[Any]], table: str, columns: Sequence[str], changes: Changes
) -> Iterator[Sequence[Any]]:
    change = changes.get(table)
    if change is None:
        return rows

    def changed(values: Sequence[Any]) -> list[Any]:
        row = dict(zip(columns, values, strict=True))
        change(row)
        return [row[name] for name in columns]

    return map(changed, rows)


class SqliteEnd:
    """Sessions in a SQLite file."""

    def __init__(self, connection: sqlite3.Connection, path: Path, *, is_target: bool) -> None:
        self._connection = connection
        self._path = path
        self._begin = "BEGIN IMMEDIATE" if is_target else "BEGIN"
        self._columns: dict[str, list[str]] = {}

    @classmethod
    @contextmanager
    def open(cls, path: Path, *, is_target: bool) -> Generator[Self]:
        """Open the file until the end of the block; only a target is created or migrated.

        Raises:
            StorageError: `file_not_found`, `migration_failed`, or the file cannot be used.
        """
        with _explained(path):
            if is_target:
                connection = open_writer(path)
            elif _is_missing(path):
                message = f"there is no session database {path}"
                raise StorageError(ErrorCode.FILE_NOT_FOUND, message, details={"path": str(path)})
            elif os.access(path.parent, os.W_OK):
                connection = open_reader(path)
            else:  # a backup, or a mount that cannot be written
                connection = open_unchanging(path)
        with closing(connection), _explained(path):
            if not is_target and not patiently(partial(version_of, connection, path)):
                message = f"{path} holds no sessions: it is empty"
                raise StorageError(ErrorCode.STORAGE_ERROR, message, details={"path": str(path)})
            connection.row_factory = None
            yield cls(connection, path, is_target=is_target)

    def columns(self, table: str) -> Collection[str]:
        """See `CopyEnd.columns`."""
        if table not in self._columns:
            rows = self._connection.execute("SELECT name FROM pragma_table_info(?)", (table,))
            found = [name for (name,) in rows]
            self._columns[table] = [*found, "rowid"] if found and "seq" not in found else found
        return self._columns[table]

    def select(self, sql: str, *values: str) -> list[Sequence[Any]]:
        """See `CopyEnd.select`."""
        return self._connection.execute(sql, values).fetchall()

    def now(self) -> datetime:
        """See `CopyEnd.now`."""
        return utc_now()

    def stream(self, sql: str, *values: str) -> Iterator[Sequence[Any]]:
        """See `CopyEnd.stream`."""
        return self._connection.execute(sql, values)

    def insert(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """See `CopyEnd.insert`."""
        marks = ", ".join("?" * len(columns))
        sql = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})"  # noqa: S608
        self._connection.executemany(sql, rows)

    @contextmanager
    def transaction(self) -> Generator[None]:
        """See `CopyEnd.transaction`."""
        with _explained(self._path):
            patiently(partial(self._connection.execute, self._begin))
            try:
                yield
                patiently(partial(self._connection.execute, "COMMIT"))
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
            with suppress(OSError):
                if Path(f"{self._path}-wal").stat().st_size > _LONG_LOG:
                    self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _is_missing(path: Path) -> bool:
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:  # SQLite reports it
        return False


@contextmanager
def _explained(path: Path) -> Generator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise explain(error, path) from error
