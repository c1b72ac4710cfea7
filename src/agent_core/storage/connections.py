"""Opens databases: their permissions and settings, and retries while other processes hold locks.

Every connection to a file is opened by `connect`, which registers the file: `agent_core.opening`
opens no file of a database that this process has open.

SQLite counts the locks of a process in memory. A forked process inherits the counts but not the
locks, so it would write without any. A fork therefore waits until no thread uses a connection, and
`connect` closes in the new process the connections it inherited.
"""

import errno
import fcntl
import logging
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar
from weakref import WeakSet

from agent_core.disk.folders import make_private
from agent_core.errors import ErrorCode, StorageError
from agent_core.opening import HeldDatabase, open_descriptor
from agent_core.storage import migrations
from agent_core.storage.faults import is_busy, is_read_only, not_lockable
from agent_core.storage.spending import announce_fill
from agent_core.text.folding import fold_json

Result = TypeVar("Result")

logger = logging.getLogger(__name__)

BUSY_TIMEOUT = 2.0
"""Seconds that SQLite itself waits for a lock before it reports that the database is busy."""

PATIENCE = 60.0
"""Seconds that a write waits for other processes before it fails."""

_TRIES_LOCKS_AFTER_S = 0.5
"""Seconds of waiting for a lock before testing whether files can be locked at all."""

_LARGE = 100 * 10**6
"""Size in bytes from which on the rewriting of a database is announced in the log."""

_MOST_REWRITTEN = 500 * 10**6
"""Size in bytes of the largest database that is rewritten, which takes up to 20 seconds."""

_SPARE = 20 * 10**6
"""Bytes that a disk must have free beside three times the size of the database."""

_FORK_WAIT_S = 5.0
"""Seconds that a fork waits for the threads that use a connection."""

_creating = threading.Lock()
"""Held while a file or a connection is created, and during a fork."""


class FileConnection(sqlite3.Connection):
    """A connection whose files nothing else in this process opens until it is closed.

    Attributes:
        using: held by the thread that uses the connection. A new one is in use until `rest`.
        path: the file.
    """

    path: Path | None = None
    _held: HeldDatabase | None = None
    _rests = False

    def __init__(self, *args: Any, **options: Any) -> None:
        self.using = threading.Lock()
        self.using.acquire()
        _open_connections.add(self)
        try:
            super().__init__(*args, **options)
        except BaseException:
            _open_connections.discard(self)
            raise

    def hold(self, held: HeldDatabase) -> None:
        """Release the files when this connection has been closed or collected."""
        self._held = held
        weakref.finalize(self, held.release).atexit = False

    def settle(self) -> None:
        """Note that the files beside the database are open, and stay the same until the end."""
        if self._held is not None:
            self._held.settle()

    def rest(self) -> None:
        """Note that from now on only threads that hold `using` use the connection."""
        self._rests = True
        self.using.release()

    def close(self) -> None:
        """Close the connection, then release its files. No thread may be using it."""
        if self._rests:
            self.using.acquire()
        try:
            super().close()
            if self._held is not None:
                self._held.release()
        finally:
            self.rest()


class _Forks:
    """Pauses the connections of this process around a fork, and closes them in the new process."""

    def __init__(self) -> None:
        self._paused: list[FileConnection] = []
        self._are_all_paused = True
        self._inherited: list[FileConnection] = []
        self._can_be_closed = True

    def pause(self) -> None:
        """Wait for a limited time until no thread uses a connection, and keep it so."""
        ends_at = time.monotonic() + _FORK_WAIT_S
        _creating.acquire()
        self._are_all_paused = True
        for each in tuple(_open_connections):
            if each.using.acquire(timeout=max(0, ends_at - time.monotonic())):
                self._paused.append(each)
            else:
                self._are_all_paused = False

    def resume(self) -> None:
        """Let the threads of this process use their connections again."""
        for each in self._paused:
            each.using.release()
        self._paused.clear()
        _creating.release()

    def inherit(self) -> None:
        """Note, in the new process, the connections that the old one had open."""
        self._inherited += self._paused
        self._can_be_closed &= self._are_all_paused
        self.resume()
        _open_connections.clear()
        _writers.clear()

    def close_inherited(self) -> None:
        """Close the inherited connections; the locks of the old process stay.

        Raises:
            StorageError: a connection was in use at the fork, so that it cannot be closed.
        """
        if not self._can_be_closed:
            message = (
                "this process was forked while its parent process was using a database, and"
                " cannot open one; start processes with the method 'spawn' or 'forkserver', or"
                " before the first run"
            )
            raise StorageError(ErrorCode.STORAGE_ERROR, message)
        while self._inherited:
            self._inherited.pop().close()


_open_connections: WeakSet[FileConnection] = WeakSet()
_writers: list[weakref.ref[FileConnection]] = []
"""The connections that write, whose transactions all hold the lock of their database."""

_forks = _Forks()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_forks.pause, after_in_parent=_forks.resume, after_in_child=_forks.inherit
    )


def create_database_file(path: Path) -> None:
    """Create an empty file that only this user can read, unless the path exists.

    An existing file is never opened here, since closing it would release the locks of SQLite.

    Raises:
        OSError: the file cannot be created, or the path is a folder.
    """
    target = os.path.realpath(path)  # a link may name a file that is still to be created
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with _creating:  # no other thread can use the file before it is closed
        try:
            os.close(open_descriptor(target, flags, 0o600))
        except FileExistsError:
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path) from None


def size_of_files(path: Path) -> int:
    """Return the bytes of a database and its log."""
    size = 0
    for each in (path, Path(f"{path}-wal")):
        with suppress(OSError):
            size += each.stat().st_size
    return size


def connect(
    path: Path,
    *,
    timeout: float = BUSY_TIMEOUT,
    mode: Literal["ro", "rw"] = "rw",
    more: str = "",
    cached_statements: int = 128,
) -> FileConnection:
    """Open a connection to an existing file, for one thread at a time; transactions are explicit.

    Args:
        path: the file, absolute.
        timeout: seconds that SQLite itself waits for a lock.
        mode: whether it may write.
        more: further parameters of SQLite's URI.
        cached_statements: how many prepared statements it keeps.

    Raises:
        sqlite3.Error: the file cannot be opened.
        StorageError: this process was forked while a thread of its parent used a database.
    """
    with ExitStack() as on_failure, _creating:
        _forks.close_inherited()
        held: HeldDatabase | None = None
        with suppress(OSError):  # SQLite reports it better
            held = HeldDatabase(path)
            on_failure.callback(held.release)
        connection = sqlite3.connect(
            f"{path.as_uri()}?mode={mode}{more}",
            uri=True,
            timeout=timeout,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=cached_statements,
            factory=FileConnection,
        )
        on_failure.pop_all()
    connection.path = path
    if held is not None:
        connection.hold(held)
    return connection


def open_writer(path: Path, patience: float = PATIENCE) -> FileConnection:
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
    with _refuse_newer(path, patience):  # the files beside the database are made only once
        connection = _connect_writer(path)
        try:
            patiently(lambda: _set_up(connection), patience, beside=path)
            _bring_up_to_date(connection, path, partial(patiently, patience=patience, beside=path))
            connection.settle()
        except BaseException:
            connection.close()
            raise
    return connection


def reopen_writer(
    path: Path, patience: float = PATIENCE, *, stop: threading.Event | None = None
) -> FileConnection:
    """Open another writing connection to a file that is open and up to date.

    Args:
        path: the file.
        patience: seconds that it waits for other processes.
        stop: gives up at once when it is set.

    Raises:
        sqlite3.Error: the file cannot be used.
    """
    connection = _connect_writer(path)
    try:
        patiently(lambda: _set_up(connection), patience, stop=stop)
        connection.settle()
    except BaseException:
        connection.close()
        raise
    return connection


def open_reader(path: Path) -> FileConnection:
    """Open a connection that never writes and, thanks to the log, never waits for the writer."""
    connection = _connect(path)
    connection.execute("PRAGMA query_only = ON")
    let_search(connection)
    return connection


_empty: dict[int, bytes] = {}
"""Databases with tables and without rows, by the version of the schema."""


def open_in_memory() -> sqlite3.Connection:
    """Open a connection to a database in memory that has the tables of this version and no rows."""
    connection = connect_in_memory()
    connection.execute("PRAGMA foreign_keys = ON")
    version = migrations.MIGRATIONS[-1].version
    if version in _empty:  # a copy takes a tenth of the time
        with closing(sqlite3.connect(":memory:")) as empty:
            empty.deserialize(_empty[version])
            empty.backup(connection)
    else:
        migrations.migrate_at_once(connection, Path(":memory:"))
        if hasattr(connection, "serialize"):  # some builds of Python are without it
            _empty[version] = connection.serialize()
    return connection


def let_search(connection: sqlite3.Connection) -> None:
    """Give the connection a function that folds JSON text as Python does."""
    connection.create_function("folded", 1, fold_json, deterministic=True)


def connect_in_memory() -> sqlite3.Connection:
    """Open a connection to an empty database in memory, without the schema."""
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.row_factory = sqlite3.Row
    let_search(connection)
    return connection


def patiently(
    step: Callable[[], Result],
    patience: float = PATIENCE,
    *,
    beside: Path | None = None,
    stop: threading.Event | None = None,
) -> Result:
    """Run `step`, and repeat it while another process holds the lock.

    Args:
        step: what is run.
        patience: seconds after which it is given up.
        beside: the database, if its folder may be on a file system without locks: SQLite reports
            that as the lock of another process, too.
        stop: gives up at once when it is set.

    Raises:
        sqlite3.Error: another failure, or the lock was still held after `patience` seconds.
        StorageError: files beside the database cannot be locked.
    """
    begun = time.monotonic()
    pause = 0.002
    while True:
        try:
            return step()
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() + pause > begun + patience:
                raise
            if stop is not None and stop.is_set():
                raise
        if beside is not None and time.monotonic() > begun + _TRIES_LOCKS_AFTER_S:
            try_to_lock(beside)
            beside = None
        if stop is None:
            time.sleep(pause)
        else:
            stop.wait(pause)
        pause = min(pause * 2, 0.1)


def try_to_lock(path: Path) -> None:
    """Lock a temporary file in the folder of a database, or where the folder will be.

    Raises:
        StorageError: it cannot be locked.
    """
    from tempfile import TemporaryFile  # noqa: PLC0415 - rarely needed

    folder = next(each for each in path.parents if each.is_dir())
    with ExitStack() as stack:
        try:
            file = stack.enter_context(TemporaryFile(dir=folder))
        except OSError:
            return  # the folder cannot be written, and the other process may be there
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise not_lockable(path, error) from error


def _refuse_newer(path: Path, patience: float) -> AbstractContextManager[object]:
    """Return the connection that has read the version, to be closed at the end of a block."""
    if path.stat().st_size == 0:
        return nullcontext()
    try:
        return _read_version(path, "ro", patience)
    except sqlite3.OperationalError as error:
        if not is_read_only(error):
            raise
        # A process died in the middle of a change; only a writer may roll it back.
        return _read_version(path, "rw", patience)


def _read_version(
    path: Path, mode: Literal["ro", "rw"], patience: float
) -> closing[FileConnection]:
    connection = connect(path, timeout=min(patience, BUSY_TIMEOUT), mode=mode)
    try:
        patiently(partial(migrations.version_of, connection, path), patience, beside=path)
    except BaseException:
        connection.close()
        raise
    return closing(connection)


def _connect(path: Path, timeout: float = BUSY_TIMEOUT) -> FileConnection:
    connection = connect(path, timeout=timeout, cached_statements=256)
    connection.row_factory = sqlite3.Row
    return connection


def _connect_writer(path: Path) -> FileConnection:
    """Open a connection that never waits for a lock inside a transaction; see `is_written`."""
    connection = _connect(path, timeout=0)
    _writers[:] = [each for each in _writers if each() is not None]
    _writers.append(weakref.ref(connection))
    return connection


def is_written(path: Path) -> bool:
    """Return whether this process holds the lock of those that write this database."""
    return any(_is_writing(each(), path) for each in tuple(_writers))


def _is_writing(connection: FileConnection | None, path: Path) -> bool:
    if connection is None or connection.path != path:
        return False
    with suppress(sqlite3.ProgrammingError):  # it is closed
        return connection.in_transaction
    return False


def _set_up(connection: sqlite3.Connection) -> None:
    # For a new file only. A turn touches a dozen pages, and each goes into the log as a whole.
    connection.execute("PRAGMA page_size = 2048")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA foreign_keys = ON")
    # After a reader that held the log back, the file must not stay huge.
    connection.execute("PRAGMA journal_size_limit = 67108864")
    connection.execute("PRAGMA wal_autocheckpoint = 0")  # the writer's own thread does this
    # Not every build of SQLite overwrites deleted content by default.
    connection.execute("PRAGMA secure_delete = ON")


def _bring_up_to_date(
    connection: sqlite3.Connection, path: Path, retried: Callable[[Callable[[], Any]], Any]
) -> None:
    """Migrate a database; `retried` runs what may have to wait for another process."""
    if retried(partial(_is_current, connection, path)):
        return
    size = size_of_files(path)
    with_optional = _has_room(path, size)
    if with_optional and size >= _LARGE:
        logger.warning("%s is rewritten for this version, once; this takes some seconds", path)
    is_told = False
    steps = migrations.migrate(connection, path, with_optional=with_optional)
    while True:
        retried(partial(connection.execute, "BEGIN IMMEDIATE"))
        try:
            if _is_current(connection, path):
                steps.close()  # another process was faster
            is_done = next(steps, True)
            connection.execute("COMMIT")
        except BaseException as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if not with_optional or not _is_of_database(error):
                raise
            # Whatever keeps an optional migration from a database must not keep its user out.
            logger.info("%s keeps its earlier form: %s", path, error)
            connection.execute("PRAGMA writable_schema = OFF")
            with suppress(sqlite3.Error):
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            with_optional = False
            steps = migrations.migrate(connection, path, with_optional=False)
            continue
        if is_done:
            return
        if not is_told:
            is_told = True
            (runs,) = connection.execute("SELECT count(*) FROM runs").fetchone()
            announce_fill(str(path), runs)
        # The log must not become as large as everything that is added.
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()


def _has_room(path: Path, size: int) -> bool:
    """Return whether a database can be rewritten in a few seconds, and its disk has room for it."""
    try:
        disk = os.statvfs(path)
    except OSError:
        return False
    return size <= _MOST_REWRITTEN and disk.f_bavail * disk.f_frsize >= 3 * size + _SPARE


def _is_of_database(error: BaseException) -> bool:
    """Return whether a migration failed because of its database or the disk, not of a lock."""
    cause = error.__cause__ if isinstance(error, StorageError) else error
    return isinstance(cause, sqlite3.Error) and not is_busy(cause)


def _is_current(connection: sqlite3.Connection, path: Path) -> bool:
    return migrations.version_of(connection, path) == migrations.MIGRATIONS[-1].version
