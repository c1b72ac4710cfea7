"""Copies of sessions from or to a Postgres database."""

import re
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import datetime
from itertools import count
from typing import Any, Self

import psycopg
from psycopg import Connection
from psycopg.sql import SQL, Identifier

from agent_core.errors import ErrorCode, StorageError
from agent_core.storage.postgres.connections import connect
from agent_core.storage.postgres.faults import DATABASE, explain
from agent_core.storage.postgres.schema import IDENTITY, migrate, version_of
from agent_core.storage.postgres.statements import Row
from agent_core.storage.postgres.upgrades import upgrade_queue

_COLUMNS = """SELECT attname FROM pg_attribute
    WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped ORDER BY attnum"""
_MARK = re.compile(r"\?")


class PostgresEnd:
    """Sessions in a Postgres database, of all tenants."""

    def __init__(self, connection: Connection[Row], *, is_target: bool) -> None:
        self._connection = connection
        self._begin = "BEGIN" if is_target else "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
        self._columns: dict[str, list[str]] = {}

    @classmethod
    @contextmanager
    def open(cls, url: str, *, is_target: bool) -> Generator[Self]:
        """Connect until the end of the block; only a target is created or migrated.

        Raises:
            StorageError: `migration_failed`, or the database cannot be used.
        """
        with _explained():
            connection = connect(url)
        with closing(connection), _explained():
            # Between two statements there may be a file of any size.
            connection.execute("SET idle_in_transaction_session_timeout = 0")
            if is_target:
                migrate(connection)
            elif not version_of(connection):
                raise StorageError(ErrorCode.STORAGE_ERROR, f"{DATABASE} holds no sessions")
            yield cls(connection, is_target=is_target)

    def upgrade_queue(self) -> int:
        """See `upgrades.upgrade_queue`."""
        with _explained():
            return upgrade_queue(self._connection)

    def identity(self) -> str:
        """See `PostgresSessionStore.identity`."""
        ((identity,),) = self._connection.execute(IDENTITY)
        return identity

    def columns(self, table: str) -> Collection[str]:
        """See `CopyEnd.columns`."""
        if table not in self._columns:
            rows = self._connection.execute(_COLUMNS, (table,))
            self._columns[table] = [name for (name,) in rows]
        return self._columns[table]

    def select(self, sql: str, *values: str) -> list[Sequence[Any]]:
        """See `CopyEnd.select`."""
        return [tuple(row) for row in self._connection.execute(_numbered(sql), values)]

    def now(self) -> datetime:
        """See `CopyEnd.now`."""
        ((now,),) = self.select("SELECT clock_timestamp()")
        return now

    def stream(self, sql: str, *values: str) -> Iterator[Sequence[Any]]:
        """See `CopyEnd.stream`."""
        with self._connection.cursor() as cursor:
            for row in cursor.stream(_numbered(sql), values):
                yield tuple(row)

    def insert(self, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """See `CopyEnd.insert`."""
        names = SQL(", ").join(map(Identifier, columns))
        statement = SQL("COPY {} ({}) FROM STDIN").format(Identifier(table), names)
        with self._connection.cursor() as cursor, cursor.copy(statement) as copy:
            for row in rows:
                copy.write_row(row)

    @contextmanager
    def transaction(self) -> Generator[None]:
        """See `CopyEnd.transaction`."""
        with _explained():
            self._connection.execute(self._begin.encode())
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if not self._connection.closed:
                    self._connection.execute("ROLLBACK")
                raise


def _numbered(sql: str) -> bytes:
    numbers = count(1)
    return _MARK.sub(lambda _: f"${next(numbers)}", sql).encode()


@contextmanager
def _explained() -> Generator[None]:
    try:
        yield
    except psycopg.Error as error:
        raise explain(error) from None
