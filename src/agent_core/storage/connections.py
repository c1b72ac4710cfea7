"""Opens the database: its permissions, its settings, and patience with other processes."""

import errno
import os
import sqlite3
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from agent_core.disk.folders import make_private
from agent_core.errors import ErrorCode, StorageError
from agent_core.storage import migrations
from agent_core.storage.faults import is_busy, is_read_only

Result = TypeVar("Result")

BUSY_TIMEOUT = 2.0
"""Seconds SQLite itself waits for a lock before it reports that the database is busy."""

PATIENCE = 60.0
"""Seconds a write waits for other processes before it fails."""

_creating = threading.Lock()


def create_database_file(path: Path) -> None:
    """Create an empty file that only this user can read, unless the path exists.

    An existing file is never opened here. POSIX drops all of a process's locks on a file when the
    process closes any descriptor of it: SQLite would go on without its own, and the next process
    to close the database would delete the log that this one writes.

    Raises:
        OSError: the file cannot be created, or the path is a folder.
    """
    target = os.path.realpath(path)  # a link may name a file that is still to be created
    with _creating:  # no other thread can use the file before it is closed
        try:
            os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path) from None


def open_writer(path: Path, patience: float = PATIENCE) -> sqlite3.Connection:
    """Create the file if needed, bring its schema up to date, and return the writing connection.

    A database from a newer version of the program is refused before anything is written to it.

    Raises:
        StorageError: `migration_failed`, or the folder or file cannot be made.
        sqlite3.Error: the file cannot be used.
    """
    try:
        make_private(path.parent)
        create_database_file(path)
    except OSError as error:
        raise StorageError(
            ErrorCode.STORAGE_ERROR,
            f"the session database {path} cannot be opened for writing: {error.strerror}",
            details={"path": str(path)},
        ) from error
    _refuse_newer(path, patience)
    connection = _connect(path, busy_timeout=0)
    try:
        patiently(lambda: _prepare(connection, path), patience)
    except BaseException:
        connection.close()
        raise
    return connection


def reopen_writer(path: Path, patience: float = PATIENCE) -> sqlite3.Connection:
    """Another writing connection to a file that is open and up to date.

    Raises:
        sqlite3.Error: the file cannot be used.
    """
    connection = _connect(path, busy_timeout=0)
    try:
        patiently(lambda: _set_up(connection), patience)
    except BaseException:
        connection.close()
        raise
    return connection


def open_reader(path: Path) -> sqlite3.Connection:
    """A connection that never writes and, thanks to the log, never waits for the writer."""
    connection = _connect(path)
    connection.execute("PRAGMA query_only = ON")
    return connection


def open_in_memory() -> sqlite3.Connection:
    """A connection to an empty database of its own that no file holds."""
    connection = _connect(":memory:")
    connection.execute("PRAGMA foreign_keys = ON")
    migrations.migrate(connection, Path(":memory:"))
    return connection


def patiently(step: Callable[[], Result], patience: float = PATIENCE) -> Result:
    """Do `step`, again and again while another process is in the way.

    Raises:
        sqlite3.Error: what it failed with, or still failed with after `patience` seconds.
    """
    deadline = time.monotonic() + patience
    pause = 0.002
    while True:
        try:
            return step()
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() + pause > deadline:
                raise
        time.sleep(pause)
        pause = min(pause * 2, 0.1)


def _refuse_newer(path: Path, patience: float) -> None:
    if path.stat().st_size == 0:
        return
    for mode in ("ro", "rw"):
        connection = sqlite3.connect(
            f"{path.as_uri()}?mode={mode}",
            uri=True,
            timeout=min(patience, BUSY_TIMEOUT),
            isolation_level=None,
        )
        try:
            patiently(partial(migrations.version_of, connection, path), patience)
            return
        except sqlite3.OperationalError as error:
            # A process died in the middle of a change; only a writer may take that change back.
            if mode == "rw" or not is_read_only(error):
                raise
        finally:
            connection.close()


def _connect(path: Path | str, busy_timeout: float = BUSY_TIMEOUT) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path,
        timeout=busy_timeout,
        isolation_level=None,  # transactions are ours to begin
        check_same_thread=False,  # one thread at a time, but not the one that opened it
        cached_statements=256,
    )
    connection.row_factory = sqlite3.Row
    return connection


def _set_up(connection: sqlite3.Connection) -> None:
    # Of a new file only. A turn touches a dozen pages, and all of each goes into the log.
    connection.execute("PRAGMA page_size = 2048")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA foreign_keys = ON")
    # A reader that held the log back must not leave a giant behind.
    connection.execute("PRAGMA journal_size_limit = 67108864")
    connection.execute("PRAGMA wal_autocheckpoint = 0")  # the writer's own thread does that


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    _set_up(connection)
    if migrations.version_of(connection, path) == migrations.MIGRATIONS[-1].version:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        migrations.migrate(connection, path)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
