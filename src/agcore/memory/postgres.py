"""The memory store in a Postgres database, which many machines may share."""

import asyncio
import re
from collections.abc import Collection, Sequence
from typing import Any, Self

from agcore.memory.error import InvalidMemoryError, MemoryStorageError
from agcore.memory.items import LOOP_OWNER, ItemTable
from agcore.memory.types import EvictionConfig, check_place
from agent_core.aio.loops import running_loop
from agent_core.api.arguments import checks_arguments
from agent_core.errors import AgentCoreError, ConfigError, StorageError
from agent_core.storage.sql import needing_postgres
from agent_core.text import quoted

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
        number BIGINT GENERATED ALWAYS AS IDENTITY UNIQUE,
        is_indexed BOOLEAN           -- whether a page's words are up to date
    )""",
    "CREATE INDEX IF NOT EXISTS {item}_created_at ON {item} (created_at)",
    "CREATE INDEX IF NOT EXISTS {item}_used ON {item} (used)",
    "CREATE INDEX IF NOT EXISTS {item}_recalls ON {item} (recalls, used)",
    """CREATE INDEX IF NOT EXISTS {item}_unindexed ON {item} (id)
        WHERE is_indexed IS NULL AND id >= '_knowledge:' AND id < '_knowledge;'""",
    """CREATE TABLE IF NOT EXISTS {item}_word (
        word TEXT COLLATE "C",
        number BIGINT REFERENCES {item} (number) ON DELETE CASCADE,
        part INTEGER,
        size INTEGER NOT NULL,       -- the number of words of the part
        PRIMARY KEY (word, number, part) INCLUDE (size)
    )""",
    "CREATE INDEX IF NOT EXISTS {item}_word_number ON {item}_word (number)",
    f"COMMENT ON TABLE {{item}} IS '{_VERSION}'",
)
_UNINDEXED = """
SELECT id, content FROM {item}
WHERE is_indexed IS NULL AND id >= '_knowledge:' AND id < '_knowledge;' LIMIT ?
"""
_CLAIM = """
UPDATE {item} SET is_indexed = TRUE WHERE id = ? AND content = ? AND is_indexed IS NULL
RETURNING number
"""
_REMOVE_WORDS = "DELETE FROM {item}_word WHERE number = ?"
_ADD_WORDS = """
INSERT INTO {item}_word (word, number, part, size)
SELECT word, CAST(? AS BIGINT), part, size
FROM unnest(CAST(? AS TEXT[]), CAST(? AS INTEGER[]), CAST(? AS INTEGER[])) AS w (word, part, size)
"""
_WORDS = "ARRAY(SELECT json_array_elements_text(CAST(:words AS JSON)))"
_BEST = """
WITH found AS MATERIALIZED (
    SELECT number, max(score) AS best FROM (
        SELECT number, CAST(2 * count(*) AS FLOAT8) / (CAST(:count AS INTEGER) + size) AS score
        FROM {item}_word WHERE word = ANY ({words}) GROUP BY number, part, size
    ) AS parts GROUP BY number HAVING max(score) >= :least
)
SELECT id, content, metadata, created_at, best FROM found JOIN {item} USING (number)
WHERE is_indexed AND created_at >= :since ORDER BY best DESC, created_at, id LIMIT :limit
""".replace("{words}", _WORDS)
_WITH_ALL = """
WITH found AS MATERIALIZED (
    SELECT number FROM {item}_word WHERE word = ANY ({words})
    GROUP BY number HAVING count(DISTINCT word) = :count
)
SELECT id, content, metadata, created_at FROM found JOIN {item} USING (number)
WHERE is_indexed AND created_at >= :since ORDER BY created_at, id
""".replace("{words}", _WORDS)


@checks_arguments()
class PostgresStore(ItemTable, indexes_pages=True):
    """A memory store in a table of a Postgres database, which processes on many machines share.

    Open it with `open`, close it with `close`; see `MemoryStore`.
    """

    _changed_with_content = ", is_indexed = NULL"
    _lock = _LOCK
    _unindexed, _best, _with_all = _UNINDEXED, _BEST, _WITH_ALL

    @classmethod
    async def open(
        cls, url: str, eviction: EvictionConfig | None = None, *, table: str = "agcore_memory"
    ) -> Self:
        """Connect to the database, and create the table if it is missing.

        Args:
            url: address, as libpq reads it: `postgresql://user:password@host/database`. The server
                may be behind a pooler such as PgBouncer.
            eviction: when items are removed.
            table: its name, in the first schema of the user's `search_path`.

        Raises:
            MemoryError: `Storage`; the database cannot be used, or the table is not a memory store.
                `Invalid`; the name of the table is not lower-case letters, digits and `_`.
            AgentCoreError: `validation_error`; an argument has a wrong type, the address is empty,
                or no event loop of asyncio is running here.
        """
        check_place("url", url)
        running_loop(LOOP_OWNER)
        if not _TABLE_NAME.fullmatch(table):
            message = f"the table {quoted(table)} needs a name of lower-case letters, digits and _"
            raise InvalidMemoryError(message)
        try:
            with needing_postgres():
                from agent_core.storage.postgres.connections import Threads  # noqa: PLC0415
            await asyncio.to_thread(_create_table, url, table)
        except (StorageError, ConfigError) as error:
            raise _unusable(table, error) from error
        threads = Threads(url, marks_commits=False)
        return cls(table, eviction, writer=threads, reader=threads, table=table)

    def _prepare_index(self, connection: Any) -> bool:  # noqa: ARG002 - the table has it
        return True

    def _add_page(
        self, connection: Any, item_id: str, content: str, parts: Sequence[Collection[str]]
    ) -> None:
        row = self._execute(connection, _CLAIM, [item_id, content]).fetchone()
        if row is None:
            return
        found = [(w, place, len(part)) for place, part in enumerate(parts) for w in sorted(part)]
        words, places, sizes = map(list, zip(*found, strict=True)) if found else ([], [], [])
        self._execute(connection, _REMOVE_WORDS, [row[0]])
        self._execute(connection, _ADD_WORDS, [row[0], words, places, sizes])

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
                message = f"the table {table} is not a memory store of this version of agcore"
                raise MemoryStorageError(f"{message}; name another table")
    except psycopg.Error as error:
        raise explain(error) from error


def _unusable(table: str, error: AgentCoreError) -> MemoryStorageError:
    reason = error.message.replace("the Postgres database of the sessions", "the database")
    if error.details.get("postgres") == "InsufficientPrivilege":
        reason = "its user may not create or use the tables; give the user the right, or have the"
        reason += " owner of the database open the store once and grant them"
    return MemoryStorageError(f"the memory store {table} in Postgres cannot be used: {reason}")
