"""The memory store in a Postgres database, which many machines may share."""

import asyncio
import re
from collections.abc import Collection, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, Self

from agcore.memory.error import InvalidMemoryError, MemoryStorageError
from agcore.memory.items import LOOP_OWNER, ItemTable
from agcore.memory.types import EvictionConfig
from agent_core.aio.loops import running_loop
from agent_core.errors import AgentCoreError, ConfigError, StorageError

_TABLE_NAME = re.compile(r"[a-z_][a-z0-9_]{0,50}")
_VERSION = "agcore memory 1"
_LOCK = "SELECT pg_advisory_xact_lock(hashtext('agcore memory'), hashtext(?))"
# `to_regclass` would miss a table that another process made since this transaction began.
_FIND = """SELECT coalesce(obj_description(oid, 'pg_class'), '') FROM pg_class
    WHERE relname = $1 AND pg_table_is_visible(oid)"""
_CREATE = (
    """CREATE TABLE IF NOT EXISTS {item} (
        id TEXT COLLATE "C" PRIMARY KEY,
        content TEXT NOT NULL,
        metadata TEXT NOT NULL,
        created_at BIGINT NOT NULL,  -- microseconds since 1970, UTC
        used BIGINT NOT NULL,        -- the smallest is the next to go
        recalls BIGINT NOT NULL DEFAULT 0,
        words TEXT[],                -- of a knowledge page, in its index
        parts TEXT[]                 -- the number of words of each part, and the words
    )""",
    "CREATE INDEX IF NOT EXISTS {item}_created_at ON {item} (created_at)",
    "CREATE INDEX IF NOT EXISTS {item}_used ON {item} (used)",
    "CREATE INDEX IF NOT EXISTS {item}_recalls ON {item} (recalls, used)",
    "CREATE INDEX IF NOT EXISTS {item}_words ON {item} USING gin (words)",
    """CREATE INDEX IF NOT EXISTS {item}_unindexed ON {item} (id)
        WHERE parts IS NULL AND id >= '_knowledge:' AND id < '_knowledge;'""",
    f"COMMENT ON TABLE {{item}} IS '{_VERSION}'",
)
_UNINDEXED = """
SELECT id, content FROM {item}
WHERE parts IS NULL AND id >= '_knowledge:' AND id < '_knowledge;' LIMIT ?
"""
_ADD = """
UPDATE {item} SET words = CAST(? AS TEXT[]), parts = CAST(? AS TEXT[])
WHERE id = ? AND content = ? AND parts IS NULL
"""
_BEST = """
SELECT * FROM (
    SELECT id, content, metadata, created_at, (
        SELECT max(CAST(2 * hits AS FLOAT8) / (? + size)) FROM (
            SELECT CAST(split_part(part, ' ', 1) AS INTEGER) AS size, (
                SELECT count(*) FROM unnest(CAST(? AS TEXT[])) AS word
                WHERE strpos(part, ' ' || word || ' ') > 0
            ) AS hits FROM unnest(parts) AS part
        ) AS scored
    ) AS best FROM {item} WHERE words && CAST(? AS TEXT[]) AND created_at >= ?
) AS found WHERE best >= ? ORDER BY best DESC, created_at, id LIMIT ?
"""
_WITH_ALL = """
SELECT id, content, metadata, created_at FROM {item}
WHERE words @> CAST(? AS TEXT[]) AND created_at >= ? ORDER BY created_at, id
"""


class PostgresStore(ItemTable, indexes_pages=True):
    """A memory store in a table of a Postgres database, which processes on many machines share.

    Open it with `open`, close it with `close`; see `MemoryStore`.
    """

    _changed_with_content = ", words = NULL, parts = NULL"
    _lock = _LOCK

    @classmethod
    async def open(
        cls, url: str, eviction: EvictionConfig | None = None, *, table: str = "agcore_memory"
    ) -> Self:
        """Connect to the database, and create the table if it is missing.

        Args:
            url: address, as libpq reads it: `postgresql://user:password@host/database`. A pooler
                such as PgBouncer may stand before the server.
            eviction: when items are removed.
            table: its name, in the first schema of the user's `search_path`.

        Raises:
            MemoryError: `Storage`; the database cannot be used, or the table is no memory store.
                `Invalid`; the name of the table is not lower-case letters, digits and `_`.
            AgentCoreError: `validation_error`; no event loop of asyncio is running here.
        """
        running_loop(LOOP_OWNER)
        if not _TABLE_NAME.fullmatch(table):
            message = f"the table {table[:80]!r} needs a name of lower-case letters, digits and _"
            raise InvalidMemoryError(message)
        with _needing_psycopg():
            from agent_core.storage.postgres.connections import Threads  # noqa: PLC0415
        try:
            await asyncio.to_thread(_create_table, url, table)
        except (StorageError, ConfigError) as error:
            raise _unusable(table, error) from error
        threads = Threads(url, marks_commits=False)
        return cls(table, eviction, writer=threads, reader=threads, table=table)

    def _prepare_index(self, connection: Any) -> bool:  # noqa: ARG002 - the table has it
        return True

    def _unindexed(self, connection: Any, limit: int) -> list[tuple[str, str]]:
        found = self._execute(connection, _UNINDEXED, [limit])
        return [(row[0], row[1]) for row in found]

    def _add_page(
        self, connection: Any, item_id: str, content: str, parts: Sequence[Collection[str]]
    ) -> None:
        words = sorted({word for part in parts for word in part})
        lines = [f"{len(part)} {' '.join(sorted(part))} " for part in parts]
        self._execute(connection, _ADD, [words, lines, item_id, content])

    def _best(
        self, connection: Any, words: Collection[str], *, since: int, min_score: float, limit: int
    ) -> Iterable[Sequence[Any]]:
        values = [len(words), sorted(words), sorted(words), since, float(min_score), limit]
        return self._execute(connection, _BEST, values)

    def _with_all(
        self, connection: Any, words: Collection[str], *, since: int
    ) -> Iterable[Sequence[Any]]:
        return self._execute(connection, _WITH_ALL, [sorted(words), since])

    def _failed(self, error: AgentCoreError) -> MemoryStorageError:
        return _unusable(self._table, error)


def _create_table(url: str, table: str) -> None:
    """Create the table, unless it is there or another process is faster.

    Raises:
        StorageError: the database cannot be used.
        MemoryError: `Storage`; there is another table of this name.
    """
    import psycopg  # noqa: PLC0415 - slow to import

    from agent_core.storage.postgres.faults import explain  # noqa: PLC0415
    from agent_core.storage.postgres.settings import connect  # noqa: PLC0415

    try:
        with connect(url) as connection, connection.transaction():
            (version,) = connection.execute(_FIND, [table]).fetchone() or (None,)
            if version is None:
                connection.execute(_LOCK.replace("?", "$1"), [table])
                for statement in _CREATE:  # another process may have been faster
                    connection.execute(statement.format(item=table).encode())
            elif version != _VERSION:
                message = f"the table {table} is no memory store of this version of agcore"
                raise MemoryStorageError(f"{message}; name another table")
    except psycopg.Error as error:
        raise explain(error) from error


def _unusable(table: str, error: AgentCoreError) -> MemoryStorageError:
    reason = error.message.replace("the Postgres database of the sessions", "the database")
    if error.details.get("postgres") == "InsufficientPrivilege":
        reason = "its user may not create or use the table; give the user the right, or have the"
        reason += " owner of the database open the store once and grant the table"
    return MemoryStorageError(f"the memory store {table} in Postgres cannot be used: {reason}")


@contextmanager
def _needing_psycopg() -> Generator[None]:
    try:
        yield
    except ImportError as error:
        from agent_core.installation import extra_command  # noqa: PLC0415 - rarely missing

        message = (
            f"a memory store in Postgres needs the extra postgres: {extra_command('postgres')}"
        )
        raise MemoryStorageError(f"{message} ({error})") from None
