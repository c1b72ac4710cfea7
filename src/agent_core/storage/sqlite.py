"""The session store on SQLite: one file, one writer, readers that never wait for it.

A store in memory uses the same code on a database without a file or threads. Committing costs more
than the rows themselves, so jobs that queue up during a transaction share the next one.
"""

import asyncio
import sqlite3
import threading
import weakref
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from enum import Enum, auto
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Self

from msgspec import Struct

from agent_core.aio.loops import ThreadPool, reset_after_fork
from agent_core.errors import ErrorCode, StorageError
from agent_core.storage.connections import (
    PATIENCE,
    FileConnection,
    is_written,
    open_in_memory,
    open_reader,
    open_writer,
    patiently,
    reopen_writer,
    size_of_files,
)
from agent_core.storage.faults import explain, is_busy, is_environmental
from agent_core.storage.liveness import Liveness
from agent_core.storage.sql import (
    Connection as SqlConnection,
    Job,
    JobReader,
    JobWriter,
    Named,
    Result,
)
from agent_core.storage.store import SessionStore, do_nothing
from agent_core.types import utc_now

_GROUP = 256
_CHECKPOINT_EVERY = 64
"""Writes between two checkpoints: writes of a turn's size then fill a log of a few megabytes."""

_LONG_LOG = 8 * 2**20
"""Size in bytes from which a log is moved into the database before a process' first write."""

_LITTLE_SPACE = 256 * 1024
"""Free bytes of a file that are left in it."""
_MUCH_KEPT = 100 * 10**6
"""Size in bytes of the rows from which on a start does not rewrite a file."""

_READERS = 3
_LOOKS_EVERY_S = 0.05
"""Seconds between two looks at what a question to the database waits for."""

_MEMORY = Path(":memory:")


class _Waiting(Struct, frozen=True):
    """A job for the thread."""

    job: Job[Any]
    future: asyncio.Future[Any]


class _Order(Enum):
    """Another request to the thread, between jobs."""

    CHECKPOINT = auto()
    """To move the log into the database."""
    END = auto()


_Outcome = tuple[asyncio.Future[Any], Any, Exception | None]
"""A future with the value or the error for it."""


class Writer:
    """Owns the writing connection until it is closed.

    A small job runs at once, in the caller's thread: an append to SQLite's log does not wait for
    the disk, and costs less than handing the job over. What may wait runs in a thread: large jobs,
    jobs that find the database busy, checkpoints, the jobs behind them, and the first write after a
    checkpoint, which syncs the log. The caller's thread uses the connection only while nothing is
    handed over. Callers may be in several event loops, each in a thread of its own.

    A job must depend only on its connection and its own inputs: when another job of its group
    fails, or the database is busy, it is run again.
    """

    def __init__(
        self, connection: FileConnection, path: Path, *, patience: float = PATIENCE
    ) -> None:
        connection.rest()
        self._connection: FileConnection | None = connection
        self._path = path
        self._patience = patience
        self._queue: SimpleQueue[_Waiting | _Order] = SimpleQueue()
        self._counting = threading.Lock()  # held while a caller's thread uses the connection
        self._handed_over = 0
        self._since_checkpoint = 0
        self._moves_log = False
        self._closed = False
        self._hurry = threading.Event()
        reset_after_fork(self)
        # A daemon, so that it does not keep a program alive that ends without closing.
        self._thread = threading.Thread(target=self._work, name="session-writer", daemon=True)
        self._thread.start()

    def submit(
        self,
        job: Job[Result],
        about: str | None = None,  # noqa: ARG002 - there is one writer for all sessions
        /,
        *,
        by: Named = "session_id",  # noqa: ARG002
        is_small: bool = False,
    ) -> asyncio.Future[Result]:
        """Run a job now or later: in the order of the calls, completely or not at all."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        if self._closed:
            future.set_exception(_closed_error(self._path))
            return future
        with self._counting:
            is_first = self._since_checkpoint == 0
            self._since_checkpoint = (self._since_checkpoint + 1) % _CHECKPOINT_EVERY
            if is_small and not (is_first or self._handed_over):
                try:
                    future.set_result(self._store([job], patience=0.0)[0])
                except Exception as error:  # noqa: BLE001 - the caller that awaits it gets it
                    if not (isinstance(error, sqlite3.Error) and is_busy(error)):
                        future.set_exception(explain(error, self._path))
            if not future.done():
                self._handed_over += 1
                self._queue.put(_Waiting(job, future))
            if self._since_checkpoint == 0:
                self._handed_over += 1
                self._queue.put(_Order.CHECKPOINT)
        return future

    @property
    def is_awaited(self) -> bool:
        """True if a job has been handed over and is not done."""
        return self._handed_over > 0

    @property
    def is_busy(self) -> bool:
        """True if jobs wait for what this process does in the database: none for another one."""
        return self._moves_log or is_written(self._path)

    def reset(self) -> None:
        """Refuse jobs after a fork: the thread and the connection belong to the parent process."""
        self._closed = True
        self._counting = threading.Lock()

    def hurry(self) -> None:
        """Stop waiting for other processes: the process is about to end."""
        self._hurry.set()

    async def close(self) -> None:
        """Finish the queued jobs, then close the connection."""
        if not self._closed:
            self._closed = True
            self._queue.put(_Order.END)
        await asyncio.to_thread(self._thread.join)

    def _work(self) -> None:
        with suppress(OSError):  # what many short processes have left is moved by the next one
            if Path(f"{self._path}-wal").stat().st_size > _LONG_LOG:
                self._move_log()
        last: _Waiting | _Order | None = None
        while last is not _Order.END:
            group: list[_Waiting] = []
            last = self._queue.get()
            while isinstance(last, _Waiting):
                group.append(last)
                last = None if len(group) == _GROUP or self._queue.empty() else self._queue.get()
            if group:
                outcomes = self._run(group)
                self._count_done(len(group))
                _give_out(outcomes)
            if last is _Order.CHECKPOINT:
                self._move_log()
                self._count_done(1)
        if self._connection is not None:
            self._connection.close()

    def _count_done(self, done: int) -> None:
        """Note that this many jobs no longer need the connection."""
        with self._counting:
            self._handed_over -= done

    def _move_log(self) -> None:
        """Move the log into the database, so that the next write can restart it."""
        with suppress(sqlite3.Error):  # the next checkpoint may succeed
            connection = self._ready_connection(self._patience)
            with connection.using:
                self._moves_log = True
                try:
                    connection.execute("PRAGMA wal_checkpoint").fetchall()
                finally:
                    self._moves_log = False

    def _run(self, group: Sequence[_Waiting]) -> list[_Outcome]:
        try:
            values = self._store([waiting.job for waiting in group], patience=self._patience)
        except Exception as error:  # noqa: BLE001 - the caller that awaits the job gets it
            if len(group) == 1 or is_environmental(error):
                failure = explain(error, self._path)
                return [(waiting.future, None, failure) for waiting in group]
            return [outcome for waiting in group for outcome in self._run([waiting])]
        futures = [waiting.future for waiting in group]
        return [(future, value, None) for future, value in zip(futures, values, strict=True)]

    def _ready_connection(self, patience: float) -> FileConnection:
        """Return the connection without a transaction: one left open by a failure is rolled back.

        If even that fails, the connection is replaced.
        """
        if self._connection is not None and self._connection.in_transaction:
            try:
                with self._connection.using:
                    self._connection.execute("ROLLBACK")
            except sqlite3.Error:
                broken, self._connection = self._connection, None
                with suppress(sqlite3.Error):
                    broken.close()
        if self._connection is None:
            self._connection = reopen_writer(self._path, patience, stop=self._hurry)
            self._connection.rest()
        return self._connection

    def _store(self, jobs: Sequence[Job[Result]], *, patience: float) -> list[Result]:
        connection = self._connection
        if connection is None or connection.in_transaction:
            connection = self._ready_connection(patience)
        execute = connection.execute
        if patience > 0:
            execute = partial(_execute_patiently, connection, patience, self._hurry)
        with connection.using:
            execute("BEGIN IMMEDIATE")
            try:
                values: list[Result] = []
                for job in jobs:
                    values.append(job(connection))  # noqa: PERF401 - a frame less
                execute("COMMIT")
            except BaseException:
                # A full disk may have rolled back already; the next job ends what is still open.
                with suppress(sqlite3.Error):
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                raise
        return values


def _execute_patiently(
    connection: sqlite3.Connection, patience: float, stop: threading.Event, statement: str
) -> sqlite3.Cursor:
    """Execute a statement, as soon as other processes let it."""
    return patiently(partial(connection.execute, statement), patience, stop=stop)


def _give_out(outcomes: Sequence[_Outcome]) -> None:
    """Give each result to its caller, in the caller's event loop."""
    by_loop: defaultdict[asyncio.AbstractEventLoop, list[_Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_loop[outcome[0].get_loop()].append(outcome)
    for loop, some in by_loop.items():
        with suppress(RuntimeError):  # the loop is gone, and the waiting callers with it
            loop.call_soon_threadsafe(_settle, some)


def _settle(outcomes: Sequence[_Outcome]) -> None:
    for future, value, error in outcomes:
        if future.done():
            continue
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)


class ReaderThreads:
    """Runs queries, each on one snapshot of the database."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._local = threading.local()
        self._opened: list[FileConnection] = []
        self._threads = ThreadPool(_READERS, thread_name_prefix="session-reader")
        self._keeper: ThreadPool | None = None
        self._closed = False
        self._hurry = threading.Event()
        reset_after_fork(self)

    def reset(self) -> None:
        """Refuse queries after a fork: the threads and connections belong to the parent process."""
        self._closed = True
        self._threads = ThreadPool(1)
        self._keeper = None
        self._opened = []

    async def read(
        self,
        query: Job[Result],
        *,
        is_single: bool = False,  # noqa: ARG002 - a transaction costs no round trip
    ) -> Result:
        """Run `query` in a thread.

        Raises:
            StorageError: the database cannot be read, or is closed.
        """
        if self._closed:
            raise _closed_error(self._path)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._run, query)

    async def keep(self, query: Job[Result]) -> Result:
        """Run a short `query` in a thread of its own: the others may have long ones.

        Raises:
            StorageError: the database cannot be read, or is closed.
        """
        if self._closed:
            raise _closed_error(self._path)
        if self._keeper is None:
            self._keeper = ThreadPool(1, thread_name_prefix="session-keeper")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._keeper, self._run, query)

    def hurry(self) -> None:
        """Stop waiting for other processes: the process is about to end."""
        self._hurry.set()

    async def close(self) -> None:
        """Wait for running queries, then close every connection."""
        self._closed = True
        await asyncio.to_thread(self._threads.shutdown)
        if self._keeper is not None:
            await asyncio.to_thread(self._keeper.shutdown)
        for connection in self._opened:
            connection.close()
        self._opened.clear()

    def _run(self, query: Job[Result]) -> Result:
        try:
            return patiently(lambda: self._on_snapshot(query), beside=self._path, stop=self._hurry)
        except (sqlite3.Error, UnicodeEncodeError, OverflowError) as error:
            raise explain(error, self._path) from error

    def _on_snapshot(self, query: Job[Result]) -> Result:
        connection = self._connection()
        with connection.using:
            connection.execute("BEGIN")
            try:
                return query(connection)
            finally:
                if connection.in_transaction:  # some errors have ended it already
                    connection.execute("ROLLBACK")

    def _connection(self) -> FileConnection:
        connection: FileConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = open_reader(self._path)
            connection.rest()
            self._opened.append(connection)
        return connection


class InlineConnection:
    """Runs jobs at once, on a database in memory: nothing in it waits for a disk.

    Several threads, each with its own event loop, may share it: a job takes almost no time.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def submit(
        self,
        job: Job[Result],
        about: str | None = None,  # noqa: ARG002 - the writer's
        /,
        *,
        by: Named = "session_id",  # noqa: ARG002
        is_small: bool = True,  # noqa: ARG002
    ) -> asyncio.Future[Result]:
        """Run a job, completely or not at all; the future is done when this returns."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        try:
            future.set_result(self._run(job))
        except Exception as error:  # noqa: BLE001 - the caller that awaits the future gets it
            future.set_exception(explain(error, _MEMORY))
        return future

    async def read(
        self,
        query: Job[Result],
        *,
        is_single: bool = False,  # noqa: ARG002 - a transaction costs no round trip
    ) -> Result:
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


def _look_at(taken: asyncio.Future[None]) -> None:
    """Take the error of a job for which nobody waits any more."""
    if not taken.cancelled():
        taken.exception()


def _kept_and_free(connection: SqlConnection) -> tuple[int, int]:
    """Return the bytes of a file's used pages, and of its free pages."""
    size, free, pages = (
        connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("page_size", "freelist_count", "page_count")
    )
    return (pages - free) * size, free * size


def _has_much_space(connection: SqlConnection) -> bool:
    """Return whether a good part of the file is free, and the rest is soon rewritten."""
    kept, free = _kept_and_free(connection)
    return free > max(_LITTLE_SPACE, kept // 4) and kept < _MUCH_KEPT


def _closed_error(path: Path) -> StorageError:
    return StorageError(ErrorCode.STORAGE_ERROR, f"the session database {path} is closed")


class SqliteSessionStore(SessionStore):
    """Sessions and their history in a file that several processes may share, or in memory."""

    _path: Path | None = None
    _patience = PATIENCE

    def hurry(self) -> None:
        """See `SessionStore`."""
        super().hurry()
        for each in (self.writer, self.reader):
            if isinstance(each, Writer | ReaderThreads):
                each.hurry()

    async def respond(self, *, to_writes: bool) -> None:
        """See `SessionStore`; while this process reads or writes for long, it responds."""
        keep = self.reader.keep if isinstance(self.reader, ReaderThreads) else self.reader.read
        await keep(do_nothing)
        if to_writes and not self.is_read_only:
            await self._reach_writer()

    async def _reach_writer(self) -> None:
        """Return once a write could begin, but for others of this process.

        Raises:
            StorageError: it cannot be written.
        """
        taken = self.writer.submit(do_nothing)
        taken.add_done_callback(_look_at)
        while not taken.done():
            await asyncio.wait([taken], timeout=_LOOKS_EVERY_S)
            if isinstance(self.writer, Writer) and self.writer.is_busy:
                return
        taken.result()

    def _is_awaited(self) -> bool:
        """Return whether a write of this process waits."""
        return isinstance(self.writer, Writer) and self.writer.is_awaited

    async def file_bytes(self) -> tuple[int, int] | None:
        """Return the size of the database's files, and how much is free in them."""
        if self._path is None:
            return None
        _, free = await self.reader.read(_kept_and_free)
        return await asyncio.to_thread(size_of_files, self._path), free

    async def erase_deleted(self, *, gives_way: bool = False) -> None:
        """Rewrite the file, so that nothing of deleted rows is left in it or in its log.

        Other writes wait meanwhile: one to three seconds for 100 MB. With `gives_way`, the work is
        put off, for a minute at most, as long as a write of this process would have to wait.

        Raises:
            StorageError: it cannot be done now: a reader has not ended, or the disk is full.
        """
        if self._path is None:
            return
        from agent_core.storage.erasing import erase_deleted  # noqa: PLC0415 - rarely needed

        stop = threading.Event()
        try:
            await asyncio.to_thread(
                erase_deleted,
                self._path,
                patience=self._patience,
                stop=stop,
                is_awaited=self._is_awaited if gives_way else None,
            )
        finally:
            stop.set()  # a cancelled caller does not wait

    async def give_back_space(self) -> None:
        """Give back the free space of the file, if that takes a moment only."""
        if self._path is None:
            return
        try:
            if not await self.reader.read(_has_much_space):
                return
        except StorageError:
            return  # its next user reports it
        from agent_core.storage.erasing import give_back_space  # noqa: PLC0415 - rarely needed

        stop = threading.Event()
        try:
            await asyncio.to_thread(
                give_back_space, self._path, stop=stop, is_awaited=self._is_awaited
            )
        finally:
            stop.set()

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
            path: the file; it and its missing folders are created for this user only.
            patience: seconds that a write waits for other processes.
            clock: judges leases: the clock of the machine that holds the database.

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
            store = cls(writer, readers, Liveness(lambda _: clock()))
            store._path, store._patience = path, patience
            yield store
        finally:
            # The last connection to close merges the log into the file: this must be the writer.
            try:
                await readers.close()
            finally:
                await writer.close()

    @classmethod
    def of(cls, writer: JobWriter, reader: JobReader, path: Path) -> Self:
        """Return the store of a file, or of its rows, with this writer and reader."""
        store = cls(writer, reader, Liveness(lambda _: utc_now()))
        store._path = path
        return store

    @classmethod
    def in_memory(cls, *, clock: Callable[[], datetime] = utc_now) -> Self:
        """Return an empty store that ends with this object, for tests and temporary runs."""
        connection = open_in_memory()
        inline = InlineConnection(connection)
        weakref.finalize(inline, connection.close)
        return cls(inline, inline, Liveness(lambda _: clock()))
