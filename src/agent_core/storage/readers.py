"""Reading beside the writer: a few threads with connections of their own."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from agent_core.errors import ErrorCode, StorageError
from agent_core.storage.connections import open_reader, patiently
from agent_core.storage.faults import explained

Result = TypeVar("Result")

_THREADS = 3


class Readers:
    """Runs queries, each on one snapshot of the database."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mine = threading.local()
        self._opened: list[sqlite3.Connection] = []
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="session-reader")
        self._closed = False

    async def read(self, query: Callable[[sqlite3.Connection], Result]) -> Result:
        """Run `query` in a thread.

        Raises:
            StorageError: the database cannot be read, or is closed.
        """
        if self._closed:
            raise StorageError(
                ErrorCode.STORAGE_ERROR, f"the session database {self._path} is closed"
            )
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._run, query)

    async def close(self) -> None:
        """Wait for running queries, then close every connection."""
        self._closed = True
        await asyncio.to_thread(self._threads.shutdown)
        for connection in self._opened:
            connection.close()
        self._opened.clear()

    def _run(self, query: Callable[[sqlite3.Connection], Result]) -> Result:
        try:
            return patiently(lambda: self._on_snapshot(query))
        except (sqlite3.Error, UnicodeEncodeError, OverflowError) as error:
            raise explained(error, self._path) from error

    def _on_snapshot(self, query: Callable[[sqlite3.Connection], Result]) -> Result:
        connection = self._connection()
        connection.execute("BEGIN")
        try:
            return query(connection)
        finally:
            if connection.in_transaction:  # some errors have ended it already
                connection.execute("ROLLBACK")

    def _connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._mine, "connection", None)
        if connection is None:
            connection = self._mine.connection = open_reader(self._path)
            self._opened.append(connection)
        return connection
