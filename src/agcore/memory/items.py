"""The table of items that every memory store of the toolkit keeps, whichever database has it.

Its statements use only SQL that SQLite and Postgres both read.
"""

from abc import ABC, abstractmethod
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Self, TypeVar

from agcore.memory.error import InvalidMemoryError, MemoryStorageError
from agcore.memory.types import (
    EVERYTHING,
    EvictionConfig,
    EvictionPolicy,
    MemoryFilter,
    MemoryItem,
)
from agent_core.aio.loops import running_loop
from agent_core.api.arguments import checks_arguments
from agent_core.errors import AgentCoreError, ConfigError, StorageError
from agent_core.providers.jsontext import dump_text, parse
from agent_core.storage.sql import Connection, Cursor, Job
from agent_core.storage.sqlite import InlineConnection, ReaderThreads, Writer
from agent_core.text import quoted
from agent_core.tools.values import storable_text
from agent_core.types import utc_now

if TYPE_CHECKING:
    from agent_core.storage.postgres.connections import Threads

T = TypeVar("T")

LOOP_OWNER = "a memory store"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LAST_CHARACTER = chr(0x10FFFF)
_FOREVER = 2**62

_SAVE = """
INSERT INTO {item} AS item (id, content, metadata, created_at, used)
VALUES (?, ?, ?, ?, (SELECT coalesce(max(used), 0) FROM {item}) + 1)
ON CONFLICT (id) DO UPDATE SET content = excluded.content, metadata = excluded.metadata,
    created_at = excluded.created_at, used = excluded.used{more}
"""
_SAVE_NEW = f"{_SAVE} WHERE item.created_at < ?"
_IS_SAVED = "SELECT 1 FROM {item} WHERE (id, content, metadata, created_at) = (?, ?, ?, ?)"
_LAST = """
SELECT id, content, metadata, created_at FROM {item}
WHERE id >= ? AND id < ? AND created_at >= ? ORDER BY id DESC LIMIT 1
"""
_LAST_USE = "SELECT coalesce(max(used), 0) FROM {item}"
_TOUCH = """
UPDATE {item} SET used = (SELECT max(used) FROM {item}) + 1, recalls = recalls + 1 WHERE id = ?
"""
_FORGET = "DELETE FROM {item} WHERE id = ?"
_FORGET_OLD = "DELETE FROM {item} WHERE created_at < ?"
_COUNT = "SELECT count(*) FROM {item}"
_FORGET_MANY = """
DELETE FROM {item} WHERE id IN (SELECT id FROM {item} WHERE used <= ? ORDER BY {order} LIMIT ?)
"""
_GET = "SELECT id, content, metadata, created_at FROM {item} WHERE id = ? AND created_at >= ?"
_LIST = """
SELECT id, content, metadata, created_at FROM {item}
WHERE id >= ? AND id < ? AND created_at >= ? ORDER BY created_at, id LIMIT ?
"""


class _TakenError(Exception):
    """An id of new items is in use."""


@checks_arguments()
class ItemTable(ABC):
    """A memory store in a table, independent of what runs its jobs.

    A subclass says with `indexes_pages` that its rows are what it was given: a subclass of a
    program may store something else, so its pages are not indexed.

    Args:
        name: of the store, for messages.
        eviction: when items are removed.
        writer: runs the jobs that write.
        reader: runs the queries.
        table: the name of the table.
    """

    indexes_pages = False
    _unindexed = _best = _with_all = ""
    """Queries for pages that are not in the index, that fit best, that have every one of some
    words: rows of an item, the second one's with the score."""
    _changed_with_content = ""
    """Further assignments when an item is replaced."""
    _lock: str | None = None
    """Lets no other process write until the end of the transaction, if a transaction does not."""

    def __init_subclass__(cls, *, indexes_pages: bool = False) -> None:
        cls.indexes_pages = indexes_pages

    def __init__(
        self,
        name: object,
        eviction: EvictionConfig | None = None,
        *,
        writer: "Writer | InlineConnection | Threads | None" = None,
        reader: "ReaderThreads | InlineConnection | Threads | None" = None,
        table: str = "item",
    ) -> None:
        if writer is None or reader is None:
            kind = type(self).__name__
            raise MemoryStorageError(f"a {kind} is opened with `await {kind}.open(…)`")
        self._name = name
        self._eviction = eviction or EvictionConfig()
        self._writer = writer
        self._reader = reader
        self._table = table
        self._has_page_index: bool | None = None

    async def close(self) -> None:
        """Finish running jobs and close the store. May be called again."""
        running_loop(LOOP_OWNER)
        await self._reader.close()
        await self._writer.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def save(self, item: MemoryItem) -> None:
        """See `MemoryStore.save`; also removes items that are too old or too many."""
        row = _row(item)

        def write(connection: Connection) -> None:
            with self._evicting(connection):
                self._execute(connection, _SAVE, row)

        await self._write(write)

    async def save_new(self, items: Sequence[MemoryItem]) -> bool:
        """See `MemoryStore.save_new`."""
        rows = sorted(_row(item) for item in items)  # writers that lock rows in order never cross
        oldest = self._oldest()
        is_repeated = False

        def write(connection: Connection) -> None:
            nonlocal is_repeated  # its commit may have been lost on the way, and is found again
            was_repeated, is_repeated = is_repeated, True
            with self._evicting(connection):
                for row in rows:
                    if was_repeated and self._execute(connection, _IS_SAVED, row).fetchone():
                        continue
                    if not self._execute(connection, _SAVE_NEW, (*row, oldest)).rowcount:
                        raise _TakenError

        try:
            await self._write(write)
        except _TakenError:
            return False
        return True

    async def last(self, prefix: str, before: str | None = None) -> MemoryItem | None:
        """See `MemoryStore.last`."""
        end = prefix + _LAST_CHARACTER if before is None else _check_id(before)
        rows = await self._rows(_LAST, [_check_text(prefix), end, self._oldest()])
        return _item(rows[0]) if rows else None

    async def get(self, item_id: str) -> MemoryItem | None:
        """See `MemoryStore.get`."""
        rows = await self._rows(_GET, [_check_id(item_id), self._oldest()])
        if not rows:
            return None
        await self.count_use([item_id])
        return _item(rows[0])

    async def count_use(self, item_ids: Iterable[str]) -> None:
        """Note that items were returned, if the order of eviction depends on that."""
        ids = sorted(item_ids)
        if not ids or self._eviction.policy is EvictionPolicy.OLDEST:
            return

        def write(connection: Connection) -> None:
            for each in ids:
                self._execute(connection, _TOUCH, [each])

        await self._write(write)

    async def delete(self, item_id: str) -> None:
        """See `MemoryStore.delete`."""
        key = [_check_id(item_id)]
        await self._write(lambda connection: self._execute(connection, _FORGET, key))

    async def list(self, wanted: MemoryFilter = EVERYTHING) -> list[MemoryItem]:
        """See `MemoryStore.list`."""
        prefix = _check_text(wanted.prefix or "")
        since = self._oldest()
        if wanted.since is not None:
            since = max(since, _microseconds(wanted.since))
        limit = _FOREVER if wanted.limit is None else wanted.limit
        key = [prefix, prefix + _LAST_CHARACTER, since, limit]
        return [*await self._find(_LIST, key, _item)]

    async def has_page_index(self) -> bool:
        """Return whether words of pages can be indexed; creates the index if it is missing."""
        if self._has_page_index is None:
            self._has_page_index = await self._write(self._prepare_index)
        return self._has_page_index

    async def save_page(self, item: MemoryItem, parts: Sequence[Collection[str]]) -> None:
        """Keep a knowledge page, and index the words of its parts."""
        row = _row(item)

        def write(connection: Connection) -> None:
            with self._evicting(connection):
                self._execute(connection, _SAVE, row)
                self._add_page(connection, item.id, row[1], parts)

        await self._aside(lambda: self._write(write))

    async def unindexed_pages(self, limit: int) -> Sequence[tuple[str, str]]:
        """Return the id and the content of some knowledge pages that are not in the index."""
        return await self._find(self._unindexed, [limit], lambda row: (row[0], row[1]))

    async def index_pages(
        self, pages: Sequence[tuple[str, str, Sequence[Collection[str]]]]
    ) -> None:
        """Index pages (id, content, words of each part) that have not changed meanwhile."""

        def write(connection: Connection) -> None:
            for page in sorted(pages, key=itemgetter(0)):
                self._add_page(connection, *page)

        await self._aside(lambda: self._write(write))

    async def best_pages(
        self, words: Collection[str], *, min_score: float, limit: int
    ) -> Sequence[tuple[MemoryItem, float]]:
        """Return the indexed pages that match best, with their scores, the oldest of equals first.

        A page's score is the Dice overlap between these words and its best part.
        """
        values = self._wanted(words) | {"least": float(min_score), "limit": limit}
        return await self._find(self._best, values, lambda row: (_item(row), row[4]))

    async def pages_with_all(self, words: Collection[str]) -> Sequence[MemoryItem]:
        """Return the indexed pages that have every one of these words, oldest first."""
        return await self._find(self._with_all, self._wanted(words), _item)

    def _wanted(self, words: Collection[str]) -> dict[str, Any]:
        listed = dump_text(sorted(words))
        return {"words": listed, "count": len(words), "since": self._oldest()}

    async def _find(
        self, sql: str, values: Sequence[Any] | Mapping[str, Any], read: Callable[[Any], T]
    ) -> Sequence[T]:
        """Return what is read from each row that a query finds, which may be many."""

        def query(connection: Connection) -> Sequence[T]:
            return [read(row) for row in self._execute(connection, sql, values)]

        return await self._aside(lambda: self._read(query, is_single=True))

    async def _aside(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run work that may take long; most stores' jobs run in threads anyway."""
        return await work()

    @contextmanager
    def _evicting(self, connection: Connection) -> Generator[None]:
        """Remove items that are too old or too many after the saving in this context.

        Saved items go last: they had no time to be used.
        """
        capacity, last_use = self._eviction.capacity, _FOREVER
        if capacity is not None:
            if self._lock is not None:
                self._execute(connection, self._lock, [self._table])
            (last_use,) = self._execute(connection, _LAST_USE).fetchone()
        yield
        if self._eviction.ttl is not None:
            self._execute(connection, _FORGET_OLD, [self._oldest()])
        if capacity is None:
            return
        is_by_recall = self._eviction.policy is EvictionPolicy.RECALL_BASED
        forget = _FORGET_MANY.replace("{order}", "recalls, used" if is_by_recall else "used")
        for newest in (last_use, _FOREVER):
            (count,) = self._execute(connection, _COUNT).fetchone()
            if count > capacity:
                self._execute(connection, forget, [newest, count - capacity])

    @abstractmethod
    def _prepare_index(self, connection: Any) -> bool:
        """Make the index of pages if it is missing; return False if this database has none."""

    @abstractmethod
    def _add_page(
        self, connection: Any, item_id: str, content: str, parts: Sequence[Collection[str]]
    ) -> None:
        """Index a page, unless it has other content by now or is indexed already."""

    def _execute(
        self,
        connection: Connection,
        sql: str,
        parameters: Sequence[Any] | Mapping[str, Any] = (),
    ) -> Cursor:
        sql = sql.replace("{item}", self._table).replace("{more}", self._changed_with_content)
        return connection.execute(sql, parameters)

    def _oldest(self) -> int:
        ttl = self._eviction.ttl
        return _microseconds(utc_now() - ttl) if ttl is not None else -_FOREVER

    async def _rows(self, sql: str, key: Sequence[Any]) -> Sequence[Any]:
        return await self._read(
            lambda connection: self._execute(connection, sql, key).fetchall(), is_single=True
        )

    async def _write(self, job: Job[T]) -> T:
        running_loop(LOOP_OWNER)
        try:
            return await self._writer.submit(job)
        except (StorageError, ConfigError) as error:
            raise self._failed(error) from error

    async def _read(self, query: Job[T], *, is_single: bool = False) -> T:
        running_loop(LOOP_OWNER)
        try:
            return await self._reader.read(query, is_single=is_single)
        except (StorageError, ConfigError) as error:
            raise self._failed(error) from error

    def _failed(self, error: AgentCoreError) -> MemoryStorageError:
        reason = error.__cause__ or "it is closed, or was opened before this process was forked"
        return MemoryStorageError(f"the memory store {self._name} cannot be used: {reason}")


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
        raise InvalidMemoryError(f"the id {quoted(text)} has characters that cannot be stored")
    return text


def _microseconds(when: datetime) -> int:
    return (when - _EPOCH) // _MICROSECOND


def _item(row: Any) -> MemoryItem:
    item_id, content, metadata, created_at, *_ = row
    return MemoryItem(
        id=item_id,
        content=content,
        metadata=parse(metadata),
        created_at=_EPOCH + created_at * _MICROSECOND,
    )
