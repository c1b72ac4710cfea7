"""Copies of sessions from or to a Postgres database."""

import re
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from datetime import datetime
from itertools import count
from typing import Any, Self

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.sql import SQL, Identifier

from agent_core.errors import ErrorCode, StorageError
from agent_core.storage.postgres.faults import DATABASE, explain
from agent_core.storage.postgres.schema import IDENTITY, migrate, version_of
from agent_core.storage.postgres.search import add_to_any
from agent_core.storage.postgres.settings import READING, Answering, connect
from agent_core.storage.postgres.upgrades import upgrade_queue

_COLUMNS = """SELECT attname FROM pg_attribute
    WHERE attrelid = to_regclass(?) AND attnum > 0 AND NOT attisdropped ORDER BY attnum"""
_MARK = re.compile(r"\?")


class PostgresEnd:
    """Sessions in a Postgres database, of all tenants."""

    def __init__(self, connection: Answering, *, is_target: bool) -> None:
        self._connection = connection
        self._begin = None if is_target else READING
        self._columns: dict[str, list[str]] = {}

    @classmethod
    @contextmanager
    def open(cls, url: str, *, is_target: bool) -> Generator[Self]:
        """Connect until the end of the block; only a target is created or migrated.

        Raises:
            StorageError: `migration_failed`, or the database cannot be used.
        """
        with _explained():
            connection = connect(url, idle_s=0)  # between two statements there may be a large file
        with closing(connection), _explained():
            if is_target:
                migrate(connection)
            else:
                with connection.transaction():
                    version = version_of(connection)
                if not version:
                    raise StorageError(ErrorCode.STORAGE_ERROR, f"{DATABASE} holds no sessions")
            yield cls(connection, is_target=is_target)

    def upgrade_queue(self) -> int:
        """See `upgrades.upgrade_queue`."""
        with _explained():
            return upgrade_queue(self._connection)

    def index_search(self) -> None:
        """See `search.add_to_any`."""
        with _explained():
            add_to_any(self._connection)

    def identity(self) -> str:
        """See `PostgresSessionStore.identity`."""
        ((identity,),) = self.select(IDENTITY)
        return identity

    def columns(self, table: str) -> Collection[str]:
        """See `CopyEnd.columns`."""
        if table not in self._columns:
            self._columns[table] = [name for (name,) in self.select(_COLUMNS, table)]
        return self._columns[table]

    def select(self, sql: str, *values: str) -> list[Sequence[Any]]:
        """See `CopyEnd.select`."""
        connection = self._connection
        is_idle = connection.info.transaction_status == TransactionStatus.IDLE
        with connection.transaction() if is_idle else nullcontext():
            return [tuple(row) for row in connection.execute(_numbered(sql), values)]

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
            self._connection.begin(self._begin)
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
