"""Reads a database file without changing or creating any file, in a folder that may be read-only.

SQLite creates files beside a database even for a connection that only reads. How to prevent that
depends on what is beside the database:

- no log: the file is complete. It is opened as immutable.
- a log and its index: a process uses the database, or died. SQLite reads both, and creates nothing.
- a log alone, as in a copy: the index is built in memory.

In the first and the last case, nothing keeps other processes from writing. A read is therefore
repeated if the files have changed meanwhile.
"""

import asyncio
import os
import sqlite3
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

from msgspec import Struct

from agent_core.errors import ErrorCode, StorageError
from agent_core.opening import open_database_paths
from agent_core.storage import migrations
from agent_core.storage.connections import (
    FileConnection,
    connect,
    connect_in_memory,
    let_search,
    size_of_files,
)
from agent_core.storage.faults import is_busy
from agent_core.storage.lost_runs import lost_sessions
from agent_core.storage.owners import Owner
from agent_core.storage.sql import Connection as SqlConnection, Job, NoWriter, Result
from agent_core.storage.sqlite import InlineConnection, ReaderThreads, SqliteSessionStore

_MOST_COPIED = 2**30
"""Bytes of the largest database that is copied to close the runs of dead processes in the copy."""

_ATTEMPTS = 50
_PAUSE_S = 0.02

_UNCHANGING = "&immutable=1"
_SHARED = "&readonly_shm=1"
_ALONE = "&vfs=unix-none"

_Status = tuple[int, int, int] | None


class _Files(Struct, frozen=True):
    """The state of a database's files; None for a missing or empty file."""

    database: _Status
    log: _Status
    journal: _Status
    has_index: bool

    @classmethod
    def of(cls, path: Path) -> "_Files":
        """Look at the files."""
        return cls(
            database=_status(path),
            log=_status(Path(f"{path}-wal")),
            journal=_status(Path(f"{path}-journal")),
            has_index=os.path.lexists(f"{path}-shm"),
        )

    @property
    def way(self) -> str:
        """The parameter of SQLite's URI that selects how the files are read."""
        if self.log is None:
            return _UNCHANGING
        return _SHARED if self.has_index else _ALONE


def _status(path: Path) -> _Status:
    """Return the inode, size and time of a file; None if it is missing or empty.

    Raises:
        StorageError: its folder cannot be entered.
    """
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        message = f"the session database {path} cannot be read: {error.strerror}"
        message += "; make its folder readable"
        details = {"path": str(path)}
        raise StorageError(ErrorCode.STORAGE_ERROR, message, details=details) from error
    return (found.st_ino, found.st_size, found.st_mtime_ns) if found.st_size else None


class _Opened(Struct, frozen=True):
    """A connection, and the files as they were before it was opened."""

    connection: FileConnection
    files: _Files
    is_locked: bool  # SQLite's locks keep the rows from changing during a read


class UnlockedFile:
    """Runs queries on a file that may not be changed, for one thread at a time.

    Args:
        path: the file, absolute.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._opened: _Opened | None = None

    def read(self, query: Callable[[FileConnection], Result]) -> Result:
        """Run a query on one state of the file; it may be run again.

        Raises:
            sqlite3.Error: the file cannot be read.
            StorageError: the file changed during every attempt.
        """
        for _ in range(_ATTEMPTS):
            files = _Files.of(self._path)
            try:
                result = self._read(files, query)
            except sqlite3.DatabaseError:
                if self._is_unchanged(files):
                    raise
            else:
                if self._is_unchanged(files):
                    return result
            time.sleep(_PAUSE_S)
        message = f"{self._path} keeps changing while it is read; try again when it is less busy"
        raise StorageError(ErrorCode.STORAGE_ERROR, message, retryable=True)

    def close(self) -> None:
        """Close the file."""
        if self._opened is not None:
            self._opened.connection.close()
            self._opened = None

    def _read(self, files: _Files, query: Callable[[FileConnection], Result]) -> Result:
        connection = self._connection(files)
        with connection.using:
            connection.execute("BEGIN")
            try:
                return query(connection)
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    def _connection(self, files: _Files) -> FileConnection:
        """Return a connection for these files: the last one, or a new one if they have changed."""
        opened = self._opened
        is_shared = opened is not None and opened.is_locked and files.way == _SHARED
        if opened is not None and opened.files != files and not is_shared:
            self.close()
        if self._opened is None:
            self._opened = _open(self._path, files)
            self._opened.connection.rest()
        return self._opened.connection

    def _is_unchanged(self, files: _Files) -> bool:
        is_locked = self._opened is not None and self._opened.is_locked
        return is_locked or files == _Files.of(self._path)


class UnlockedReaders(ReaderThreads):
    """Runs queries in threads, on a file that may not be changed."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._files: list[UnlockedFile] = []

    async def close(self) -> None:
        """Wait for running queries, then close the file."""
        await super().close()
        for file in self._files:
            file.close()

    def _on_snapshot(self, query: Job[Result]) -> Result:
        file: UnlockedFile | None = getattr(self._local, "file", None)
        if file is None:
            file = self._local.file = UnlockedFile(self._path)
            self._files.append(file)
        return file.read(query)


def _open(path: Path, files: _Files) -> _Opened:
    """Open a connection for these files.

    Raises:
        sqlite3.Error: they cannot be read.
        StorageError: a process died while it changed the database, and only a writer can undo that.
    """
    if files.journal is not None and files.log is None:
        message = f"a process died while it changed {path}; the next run repairs that"
        raise StorageError(ErrorCode.STORAGE_ERROR, message, details={"path": str(path)})
    if files.way != _ALONE:
        try:
            return _Opened(_connect(path, files.way), files, files.way == _SHARED)
        except sqlite3.OperationalError as error:
            # Without locks of its own, closing the file would release the locks of this process.
            is_used_here = os.path.realpath(path) in open_database_paths()
            if files.way != _SHARED or is_busy(error) or is_used_here:
                raise
    return _Opened(_connect(path, _ALONE), files, is_locked=False)


def open_unchanging(path: Path) -> FileConnection:
    """Open a database that no process can write, and create nothing beside it.

    Raises:
        sqlite3.Error: it cannot be read.
        StorageError: a process died while it changed the database.
    """
    path = path.absolute()
    return _open(path, _Files.of(path)).connection


def _connect(path: Path, way: str) -> FileConnection:
    connection = connect(path, mode="ro", more=way, cached_statements=256)
    connection.row_factory = sqlite3.Row
    let_search(connection)
    try:
        if way == _ALONE:
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA query_only = ON")
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


@asynccontextmanager
async def open_unlocked(path: Path, judge: Owner) -> AsyncGenerator[SqliteSessionStore]:
    """Open a database read-only; if there is none, the store is empty.

    If its schema is older, or a process died during a run, its rows are copied into memory, and
    upgraded and closed there as the next run would do it.

    Args:
        path: the file.
        judge: judges the owners of sessions.

    Raises:
        StorageError: `migration_failed`: it is from a newer version of the program, or another
            program's; `storage_error`: it cannot be read.
    """
    path = Path(await asyncio.to_thread(os.path.realpath, path))
    if await asyncio.to_thread(_status, path) is None:
        yield SqliteSessionStore.in_memory()
        return
    readers = UnlockedReaders(path)
    store = SqliteSessionStore.of(NoWriter(), readers, path).judged_by(judge)
    try:
        version = await readers.read(lambda c: migrations.version_of(_sqlite(c), path))
        if not version:
            yield SqliteSessionStore.in_memory()
        elif version == migrations.MIGRATIONS[-1].version and not await _has_lost_runs(store, path):
            yield store
        else:
            async with _up_to_date(readers, path, judge) as copied:
                yield copied
    finally:
        await readers.close()


async def _has_lost_runs(store: SqliteSessionStore, path: Path) -> bool:
    """Return whether a process died during a run, in a file that is not too large to copy."""
    if (await asyncio.to_thread(size_of_files, path)) > _MOST_COPIED:
        return False
    lost = await store.reader.read(lambda c: lost_sessions(c, store.liveness))
    for session_id in lost:
        if await store.active_run_ids(session_id):
            return True
    return False


@asynccontextmanager
async def _up_to_date(
    readers: UnlockedReaders, path: Path, judge: Owner
) -> AsyncGenerator[SqliteSessionStore]:
    """Yield a store of the rows in memory, upgraded, and without runs of dead processes."""
    rows = InlineConnection(await readers.read(_copy))
    try:
        await rows.submit(lambda c: migrations.migrate_at_once(_sqlite(c), path))
        await SqliteSessionStore.of(rows, rows, path).judged_by(judge).close_lost_runs()
        yield SqliteSessionStore.of(NoWriter(), rows, path)
    finally:
        await rows.close()


def _copy(connection: SqlConnection) -> sqlite3.Connection:
    copy = connect_in_memory()
    _sqlite(connection).backup(copy)
    return copy


def _sqlite(connection: SqlConnection) -> sqlite3.Connection:
    """Narrow the type of a connection: a file has only SQLite's."""
    return cast("sqlite3.Connection", connection)
