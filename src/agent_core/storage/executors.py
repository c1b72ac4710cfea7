"""Where jobs on the database run: a thread that writes, threads that read, or the event loop.

Handing work to a thread and committing cost far more than the rows themselves, so the jobs that
have queued up while the last transaction was under way share the next one.
"""

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

from agent_core.errors import ErrorCode, StorageError
from agent_core.storage.connections import PATIENCE, open_reader, patiently, reopen_writer
from agent_core.storage.faults import explain, is_environmental

Result = TypeVar("Result")
Job = Callable[[sqlite3.Connection], Result]

_GROUP = 256
_READERS = 3
_MEMORY = Path(":memory:")


_Waiting = tuple[Job[Any], asyncio.Future[Any]]
_Outcome = tuple[asyncio.Future[Any], Any, Exception | None]
"""A future with the value or the error it gets."""


class WriterThread:
    """Owns the writing connection until it is closed.

    A job must depend on nothing but its connection and its own inputs: when another job of its
    group fails, it is done again alone.
    """

    def __init__(
        self, connection: sqlite3.Connection, path: Path, *, patience: float = PATIENCE
    ) -> None:
        self._connection: sqlite3.Connection | None = connection
        self._path = path
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[_Waiting | None] = SimpleQueue()
        self._closed = False
        # A daemon, so that a program that dies without closing is not kept alive by it.
        self._thread = threading.Thread(target=self._work, name="session-writer", daemon=True)
        self._thread.start()

    def submit(self, job: Job[Result]) -> asyncio.Future[Result]:
        """Queue a job; jobs run in the order of the calls, each wholly or not at all."""
        future: asyncio.Future[Result] = self._loop.create_future()
        if self._closed:
            future.set_exception(_closed_error(self._path))
        else:
            self._queue.put((job, future))
        return future

    async def close(self) -> None:
        """Finish what is queued, then close the connection."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
        await asyncio.to_thread(self._thread.join)

    def _work(self) -> None:
        is_open = True
        while is_open:
            queued = [self._queue.get()]
            while len(queued) < _GROUP and not self._queue.empty():
                queued.append(self._queue.get())
            is_open = None not in queued
            if group := [waiting for waiting in queued if waiting is not None]:
                outcomes = self._run(group)
                with suppress(RuntimeError):  # the loop is gone, and the waiting callers with it
                    self._loop.call_soon_threadsafe(_settle, outcomes)
        if self._connection is not None:
            self._connection.close()

    def _run(self, group: Sequence[_Waiting]) -> list[_Outcome]:
        try:
            return self._store(group)
        except Exception as error:  # noqa: BLE001 - it belongs to the caller that awaits the job
            if len(group) == 1 or is_environmental(error):
                failure = explain(error, self._path)
                return [(future, None, failure) for _, future in group]
        return [outcome for waiting in group for outcome in self._run([waiting])]

    def _ready_connection(self) -> sqlite3.Connection:
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
            self._connection = reopen_writer(self._path, self._patience)
        return self._connection

    def _store(self, group: Sequence[_Waiting]) -> list[_Outcome]:
        connection = self._ready_connection()
        patiently(lambda: connection.execute("BEGIN IMMEDIATE"), self._patience)
        try:
            outcomes: list[_Outcome] = [(future, job(connection), None) for job, future in group]
            patiently(lambda: connection.execute("COMMIT"), self._patience)
        except BaseException:
            # A full disk may have rolled back already; what is left open now, the next job ends.
            with suppress(sqlite3.Error):
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            raise
        return outcomes


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

    def submit(self, job: Job[Result]) -> asyncio.Future[Result]:
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


def _settle(outcomes: Sequence[_Outcome]) -> None:
    for future, value, error in outcomes:
        if future.done():
            continue
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)


def _closed_error(path: Path) -> StorageError:
    return StorageError(ErrorCode.STORAGE_ERROR, f"the session database {path} is closed")
