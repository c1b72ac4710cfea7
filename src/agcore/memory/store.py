"""Memory stores: the protocol, and two implementations on SQLite, in memory and in a file.

The engine supplies threads, waiting for other processes, and explanations of SQLite's errors.
"""

import asyncio
import sqlite3
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar, cast
from weakref import finalize

from agcore.memory.error import InvalidMemoryError, MemoryStorageError
from agcore.memory.page_index import (
    UNINDEXED,
    add_page,
    best_pages,
    list_unindexed,
    pages_with_all,
    prepare_index,
)
from agcore.memory.types import (
    EVERYTHING,
    EvictionConfig,
    EvictionPolicy,
    MemoryFilter,
    MemoryItem,
)
from agent_core.aio.loops import running_loop
from agent_core.disk.folders import make_private
from agent_core.errors import StorageError
from agent_core.providers.jsontext import dump_text, parse
from agent_core.storage.connections import (
    FileConnection,
    connect,
    create_database_file,
    patiently,
)
from agent_core.storage.sql import Job
from agent_core.storage.sqlite import InlineConnection, ReaderThreads, Writer
from agent_core.tools.values import storable_text
from agent_core.types import utc_now

T = TypeVar("T")

_OWNER = "a memory store"

_APPLICATION = 0x61676D65
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LAST_CHARACTER = chr(0x10FFFF)

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
_STEPS = (_ITEMS, UNINDEXED)
"""Statements that migrate each version of a file to the next one."""
_VERSION = len(_STEPS)
_NEXT_USE = "(SELECT coalesce(max(used), 0) + 1 FROM item)"
_SAVE = f"""
INSERT INTO item (id, content, metadata, created_at, used) VALUES (?, ?, ?, ?, {_NEXT_USE})
ON CONFLICT (id) DO UPDATE SET content = excluded.content, metadata = excluded.metadata,
    created_at = excluded.created_at, used = excluded.used
"""  # noqa: S608 - constants only
_IS_TAKEN = "SELECT 1 FROM item WHERE id = ? AND created_at >= ?"
_LAST = """
SELECT id, content, metadata, created_at FROM item
WHERE id >= ? AND id < ? AND created_at >= ? ORDER BY id DESC LIMIT 1
"""
_TOUCH = f"UPDATE item SET used = {_NEXT_USE} WHERE id = ?"  # noqa: S608 - constants only
_FORGET_OLD = "DELETE FROM item WHERE created_at < ?"
_FORGET_MANY = """
DELETE FROM item WHERE id IN (
    SELECT id FROM item ORDER BY used LIMIT max(0, (SELECT count(*) FROM item) - ?)
)
"""
_GET = "SELECT id, content, metadata, created_at FROM item WHERE id = ? AND created_at >= ?"
_LIST = """
SELECT id, content, metadata, created_at FROM item
WHERE id >= ? AND id < ? AND created_at >= ? ORDER BY created_at, id LIMIT ?
"""


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


class _ItemTable:
    """A memory store in an SQLite database, independent of the thread that runs its jobs."""

    def __init__(
        self,
        name: object,
        eviction: EvictionConfig | None,
        *,
        writer: Writer | InlineConnection,
        reader: ReaderThreads | InlineConnection,
    ) -> None:
        self._name = name
        self._eviction = eviction or EvictionConfig()
        self._writer = writer
        self._reader = reader
        self._has_page_index: bool | None = None

    async def save(self, item: MemoryItem) -> None:
        """See `MemoryStore.save`; also removes items that are too old or too many."""
        row = _row(item)

        def write(connection: sqlite3.Connection) -> None:
            connection.execute(_SAVE, row)
            self._evict(connection)

        await self._write(write)

    async def save_new(self, items: Sequence[MemoryItem]) -> bool:
        """See `MemoryStore.save_new`."""
        rows = [_row(item) for item in items]
        oldest = self._oldest()

        def write(connection: sqlite3.Connection) -> bool:
            for row in rows:
                if connection.execute(_IS_TAKEN, [row[0], oldest]).fetchone():
                    return False
            connection.executemany(_SAVE, rows)
            self._evict(connection)
            return True

        return await self._write(write)

    async def last(self, prefix: str, before: str | None = None) -> MemoryItem | None:
        """See `MemoryStore.last`."""
        end = prefix + _LAST_CHARACTER if before is None else _check_id(before)
        key = [_check_text(prefix), end, self._oldest()]
        rows = await self._read(lambda connection: connection.execute(_LAST, key).fetchall())
        return _item(rows[0]) if rows else None

    async def get(self, item_id: str) -> MemoryItem | None:
        """See `MemoryStore.get`."""
        key = [_check_id(item_id), self._oldest()]
        row = await self._read(lambda connection: connection.execute(_GET, key).fetchone())
        if row is None:
            return None
        if self._eviction.policy is EvictionPolicy.LEAST_RECENTLY_USED:
            await self._write(lambda connection: connection.execute(_TOUCH, [item_id]))
        return _item(row)

    async def delete(self, item_id: str) -> None:
        """See `MemoryStore.delete`."""
        key = [_check_id(item_id)]
        await self._write(
            lambda connection: connection.execute("DELETE FROM item WHERE id = ?", key)
        )

    async def list(self, wanted: MemoryFilter = EVERYTHING) -> list[MemoryItem]:
        """See `MemoryStore.list`."""
        prefix = _check_text(wanted.prefix or "")
        since = self._oldest()
        if wanted.since is not None:
            since = max(since, _microseconds(wanted.since))
        limit = -1 if wanted.limit is None else wanted.limit
        key = [prefix, prefix + _LAST_CHARACTER, since, limit]
        return await self._aside(
            lambda: self._read(
                lambda connection: [_item(row) for row in connection.execute(_LIST, key)]
            )
        )

    async def has_page_index(self) -> bool:
        """Return whether words of pages can be indexed; creates the index if it is missing."""
        if self._has_page_index is None:
            self._has_page_index = await self._write(prepare_index)
        return self._has_page_index

    async def save_page(self, item: MemoryItem, parts: Sequence[Collection[str]]) -> None:
        """Keep a knowledge page, and index the words of its parts."""
        row = _row(item)

        def write(connection: sqlite3.Connection) -> None:
            connection.execute(_SAVE, row)
            add_page(connection, item.id, row[1], parts)
            self._evict(connection)

        await self._aside(lambda: self._write(write))

    async def unindexed_pages(self, limit: int) -> Sequence[tuple[str, str]]:
        """Some knowledge pages that are not in the index: id and content."""
        return await self._aside(
            lambda: self._read(lambda connection: list_unindexed(connection, limit))
        )

    async def index_pages(
        self, pages: Sequence[tuple[str, str, Sequence[Collection[str]]]]
    ) -> None:
        """Index pages (id, content, words of each part) that have not changed meanwhile."""

        def write(connection: sqlite3.Connection) -> None:
            for page in pages:
                add_page(connection, *page)

        await self._aside(lambda: self._write(write))

    async def best_pages(
        self, words: Collection[str], *, min_score: float, limit: int
    ) -> Sequence[tuple[MemoryItem, float]]:
        """Return the indexed pages that match best, with their scores; see `page_index`."""
        since = self._oldest()

        def read(connection: sqlite3.Connection) -> Sequence[tuple[MemoryItem, float]]:
            found = best_pages(connection, words, since=since, min_score=min_score, limit=limit)
            get = partial(connection.execute, _GET)
            return [(_item(get([one, since]).fetchone()), score) for one, score in found]

        return await self._aside(lambda: self._read(read))

    async def pages_with_all(self, words: Collection[str]) -> Sequence[MemoryItem]:
        """Return the indexed pages that have every one of these words, oldest first."""
        since = self._oldest()

        def read(connection: sqlite3.Connection) -> Sequence[MemoryItem]:
            found = pages_with_all(connection, words, since=since)
            return [_item(connection.execute(_GET, [one, since]).fetchone()) for one in found]

        return await self._aside(lambda: self._read(read))

    async def _aside(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run work that may take long; a file's jobs run in threads anyway."""
        return await work()

    def _evict(self, connection: sqlite3.Connection) -> None:
        if self._eviction.ttl is not None:
            connection.execute(_FORGET_OLD, [self._oldest()])
        if self._eviction.capacity is not None:
            connection.execute(_FORGET_MANY, [self._eviction.capacity])

    def _oldest(self) -> int:
        ttl = self._eviction.ttl
        return _microseconds(utc_now() - ttl) if ttl is not None else -(2**62)

    async def _write(self, job: Callable[[sqlite3.Connection], T]) -> T:
        running_loop(_OWNER)
        try:
            return await self._writer.submit(cast("Job[T]", job))  # its connection is SQLite's
        except StorageError as error:
            raise self._failed(error) from error

    async def _read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        running_loop(_OWNER)
        try:
            return await self._reader.read(cast("Job[T]", query))
        except StorageError as error:
            raise self._failed(error) from error

    def _failed(self, error: StorageError) -> MemoryStorageError:
        reason = error.__cause__ or "it is closed, or was opened before this process was forked"
        return MemoryStorageError(f"the memory store {self._name} cannot be used: {reason}")


class InMemoryStore(_ItemTable):
    """A memory store that lives as long as the process; see `MemoryStore`."""

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

        running_loop(_OWNER)
        return await asyncio.to_thread(lambda: asyncio.run(run()))


class SqliteStore(_ItemTable):
    """A memory store in a file that survives restarts, and that several processes may share.

    Open it with `open`, close it with `close`; see `MemoryStore`.
    """

    @classmethod
    async def open(cls, path: str | Path, eviction: EvictionConfig | None = None) -> Self:
        """Open the file, and create it if it is missing, readable by this user only.

        Raises:
            MemoryError: `Storage`; it cannot be created or read, or is not a memory store.
            AgentCoreError: `validation_error`; no event loop of asyncio is running here.
        """
        running_loop(_OWNER)
        try:
            file, connection = await asyncio.to_thread(_open, Path(path))
        except (OSError, sqlite3.Error) as error:
            raise MemoryStorageError(
                f"the memory store {path} cannot be opened: {error}"
            ) from error
        writer, reader = Writer(connection, file), ReaderThreads(file)
        return cls(file, eviction, writer=writer, reader=reader)

    async def close(self) -> None:
        """Finish running jobs and close the file. May be called again."""
        running_loop(_OWNER)
        await self._reader.close()
        await self._writer.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


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
            message = f"{path} is a database, but no memory store; choose another file"
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


def _row(item: MemoryItem) -> tuple[str, str, str, int]:
    return (
        _check_id(item.id),
        storable_text(item.content),
        dump_text(item.metadata),
        _microseconds(item.created_at),
    )


def _check_id(text: str) -> str:
    if not text.strip():
        raise InvalidMemoryError("the id of an item is empty; give it one")
    return _check_text(text)


def _check_text(text: str) -> str:
    if storable_text(text) != text:
        raise InvalidMemoryError(f"the id {text[:80]!r} has characters that cannot be stored")
    return text


def _microseconds(when: datetime) -> int:
    return (when - _EPOCH) // _MICROSECOND


def _item(row: Any) -> MemoryItem:
    item_id, content, metadata, created_at = row
    return MemoryItem(
        id=item_id,
        content=content,
        metadata=parse(metadata),
        created_at=_EPOCH + created_at * _MICROSECOND,
    )
