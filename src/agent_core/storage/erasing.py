"""Rewrites a database file, so that nothing of deleted rows is left in it or in its log.

`secure_delete` is not enough: SQLite moves rows between pages, and leaves copies of them in the
unused parts of pages. Only a database that is written anew has none, and it has no free pages
either. Old pages stay in the log until it is emptied, which readers of an old state prevent.
"""

import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event

from agent_core.errors import ErrorCode, StorageError
from agent_core.storage.connections import FileConnection, patiently, reopen_writer
from agent_core.storage.faults import explain, is_busy

READERS_S = 10.0
"""Seconds to wait for readers of an old state."""

_SPARE_TIME_S = 5.0
_STEPS = 5000
_PAUSE_S = 2.0
_MOST_ATTEMPTS = 30


def erase_deleted(
    path: Path, *, patience: float, stop: Event, is_awaited: Callable[[], bool] | None = None
) -> None:
    """Remove everything that deleted rows have left in the files of a database; blocks.

    Args:
        path: the database.
        patience: seconds to wait for other writers.
        stop: when it is set, the work ends, and the database is as before.
        is_awaited: tells if a write of this process waits for the end; then the work is put off,
            but not for ever.

    Raises:
        StorageError: the database cannot be rewritten now.
    """
    try:
        connection = reopen_writer(path, patience)
        try:
            _empty_log(connection, path)  # a reader that prevents it would let the log grow
            _rewrite(connection, patience, stop, is_awaited)
            _empty_log(connection, path)
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise explain(error, path) from error


def _rewrite(
    connection: FileConnection,
    patience: float,
    stop: Event,
    is_awaited: Callable[[], bool] | None,
) -> None:
    """Write the database anew; start again, after a pause, when a write had to wait.

    Raises:
        sqlite3.Error: it cannot be written, or was stopped.
    """
    for attempt in range(_MOST_ATTEMPTS):
        gives_way = is_awaited is not None and attempt < _MOST_ATTEMPTS - 1

        def is_over(gives_way: bool = gives_way) -> bool:
            return stop.is_set() or (gives_way and is_awaited is not None and is_awaited())

        connection.set_progress_handler(is_over, _STEPS)
        try:
            patiently(lambda: connection.execute("VACUUM"), patience)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT or stop.wait(_PAUSE_S):
                raise
        else:
            break
        finally:
            connection.set_progress_handler(None, 0)


def give_back_space(path: Path, *, stop: Event, is_awaited: Callable[[], bool]) -> None:
    """Rewrite a database without its free pages, unless that takes too long; blocks.

    Args:
        path: the database.
        stop: when it is set, the work ends, and the database is as before.
        is_awaited: tells if a write of this process waits for the end; then the work ends, too.
    """
    ends = time.monotonic() + _SPARE_TIME_S
    with suppress(sqlite3.Error):  # the next start tries it again
        connection = reopen_writer(path, 0.0)
        try:
            connection.set_progress_handler(
                lambda: stop.is_set() or is_awaited() or time.monotonic() > ends, _STEPS
            )
            connection.execute("VACUUM")
            connection.set_progress_handler(None, 0)
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        finally:
            connection.close()


def _empty_log(connection: FileConnection, path: Path) -> None:
    """Move the log into the database, and make its file empty.

    Raises:
        StorageError: a reader of an old state has not ended in time.
        sqlite3.Error: the file or its disk fails.
    """
    ends = time.monotonic() + READERS_S
    with suppress(sqlite3.OperationalError):  # most of the work, for which no writer waits
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    connection.execute("PRAGMA busy_timeout = 250")  # a writer waits no longer than this for it
    while True:
        try:
            (is_blocked, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            is_blocked = True
        if not is_blocked:
            break
        if time.monotonic() >= ends:
            message = f"another program reads an old state of {path}, or writes to it without pause"
            raise StorageError(ErrorCode.STORAGE_ERROR, message, retryable=True)
        time.sleep(0.02)
    connection.execute("PRAGMA busy_timeout = 0")
