"""Memory stores: the protocol, and two implementations on SQLite, in memory and in a file.

The engine supplies threads, waiting for other processes, and explanations of SQLite's errors.
"""

import asyncio
import sqlite3
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Protocol, Self, TypeVar
from weakref import finalize

from agcore.memory.error import MemoryStorageError
from agcore.memory.items import LOOP_OWNER
from agcore.memory.page_index import UNINDEXED, SqliteItems
from agcore.memory.types import (
    EVERYTHING,
    EvictionConfig,
    MemoryFilter,
    MemoryItem,
    check_place,
)
from agent_core.aio.loops import running_loop
from agent_core.api.arguments import checks_arguments
from agent_core.disk.folders import make_private
from agent_core.storage.connections import (
    FileConnection,
    connect,
    create_database_file,
    patiently,
)
from agent_core.storage.sqlite import InlineConnection, ReaderThreads, Writer

T = TypeVar("T")

_APPLICATION = 0x61676D65

_ITEMS = (
    f"PRAGMA application_id = {_APPLICATION}",
    """CREATE TABLE item (
        id TEXT PRIMARY KEY,
        content TEXT NOT NULL,
        metadata TEXT NOT NULL,
        created_at INTEGER NOT NULL,  -- microseconds since 1970, UTC
        used INTEGER NOT NULL         -- the smallest is the next to go
    ) WITHOUT ROWID""",
    "CREATE INDEX item_created_at ON item (created_at)",
    "CREATE INDEX item_used ON item (used)",
)
_RECALLS = (
    "ALTER TABLE item ADD COLUMN recalls INTEGER NOT NULL DEFAULT 0",
    "CREATE INDEX item_recalls ON item (recalls, used)",
)
_STEPS = (_ITEMS, UNINDEXED, _RECALLS)
"""Statements that migrate each version of a file to the next one."""
_VERSION = len(_STEPS)


class MemoryStore(Protocol):
    """Keeps items by id. One store may hold every kind of memory; id prefixes keep them apart."""

    @abstractmethod
    async def save(self, item: MemoryItem) -> None:
        """Keep an item, instead of the one of the same id if there is one.

        Raises:
            MemoryError: it could not be stored.
        """
        ...

    async def save_new(self, items: Sequence[MemoryItem]) -> bool:
        """Keep these items if none of their ids is taken: all of them, or none.

        Returns whether they are kept. Nothing is ever replaced, whichever task or process saves
        at the same time; the ids of items that are too old are free. A subclass without its own
        looks each id up first, which is enough for one writer.

        Raises:
            MemoryError: they could not be stored.
        """
        for item in items:
            if await self.get(item.id) is not None:
                return False
        for item in items:
            await self.save(item)
        return True

    async def last(self, prefix: str, before: str | None = None) -> MemoryItem | None:
        """Return the item with the greatest id that begins with `prefix` and is below `before`.

        Costs the same however many items there are, and does not count as a use; a subclass without
        its own lists the items.
        """
        items = await self.list(MemoryFilter(prefix=prefix))
        earlier = (item for item in items if before is None or item.id < before)
        return max(earlier, key=lambda item: item.id, default=None)

    @abstractmethod
    async def get(self, item_id: str) -> MemoryItem | None:
        """Return the item of that id, unless it is too old."""
        ...

    @abstractmethod
    async def delete(self, item_id: str) -> None:
        """Forget an item; nothing happens if there is none."""
        ...

    @abstractmethod
    async def list(self, wanted: MemoryFilter = EVERYTHING) -> list[MemoryItem]:
        """Return the matching items, oldest first; items of the same age are sorted by id."""
        ...


class InMemoryStore(SqliteItems, indexes_pages=True):
    """A memory store that lasts as long as the process; see `MemoryStore`."""

    def __init__(self, eviction: EvictionConfig | None = None) -> None:
        connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        finalize(self, connection.close)
        _bring_up_to_date(connection, 0)
        inline = InlineConnection(connection)
        super().__init__("in memory", eviction, writer=inline, reader=inline)

    async def _aside(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run work in a thread with an event loop of its own, because jobs block their thread."""

        async def run() -> T:
            return await work()

        running_loop(LOOP_OWNER)
        return await asyncio.to_thread(lambda: asyncio.run(run()))


@checks_arguments()
class SqliteStore(SqliteItems, indexes_pages=True):
    """A memory store in a file that survives restarts, and that several processes may share.

    Open it with `open`, close it with `close`; see `MemoryStore`.
    """

    @classmethod
    async def open(cls, path: str | Path, eviction: EvictionConfig | None = None) -> Self:
        """Open the file, and create it if it is missing, readable by this user only.

        Raises:
            MemoryError: `Storage`; it cannot be created or read, or is not a memory store.
            AgentCoreError: `validation_error`; the path is no path or empty, or no event loop of
                asyncio is running here.
        """
        check_place("path", path)
        running_loop(LOOP_OWNER)
        try:
            file, connection = await asyncio.to_thread(_open, Path(path))
        except (OSError, sqlite3.Error) as error:
            raise MemoryStorageError(
                f"the memory store {path} cannot be opened: {error}"
            ) from error
        writer, reader = Writer(connection, file), ReaderThreads(file)
        return cls(file, eviction, writer=writer, reader=reader)


def _open(path: Path) -> tuple[Path, FileConnection]:
    path = path.absolute()
    make_private(path.parent)
    create_database_file(path)
    connection = connect(path)
    try:
        patiently(lambda: _prepare(connection, path), beside=path)
        connection.settle()
    except BaseException:
        connection.close()
        raise
    return path, connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("BEGIN IMMEDIATE")
    with connection:  # commits, or rolls back
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if tables and application != _APPLICATION:
            message = f"{path} is a database, but not a memory store; choose another file"
            raise MemoryStorageError(message)
        if version > _VERSION:
            message = f"{path} was made by a newer version of agcore; use that one"
            raise MemoryStorageError(message)
        _bring_up_to_date(connection, version if tables else 0)


def _bring_up_to_date(connection: sqlite3.Connection, version: int) -> None:
    for step in _STEPS[version:]:
        for statement in step:
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {_VERSION}")
