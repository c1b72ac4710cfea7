"""The SQL of `storage`, as PostgreSQL reads it, and its results as the jobs read them."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from operator import itemgetter
from typing import Any

from psycopg import Connection, Cursor, Pipeline
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.types.string import StrDumper
from pydantic import BaseModel

from agent_core.storage.rows import columns_of
from agent_core.storage.sql import Connection as SqlConnection
from agent_core.types import (
    AgentRecord,
    ApprovalRecord,
    ArtifactRecord,
    Node,
    RunRecord,
    RuntimeEvent,
    SessionRecord,
)

_RECORDS: Mapping[str, type[BaseModel]] = {
    "sessions": SessionRecord,
    "agents": AgentRecord,
    "runs": RunRecord,
    "nodes": Node,
    "events": RuntimeEvent,
    "artifacts": ArtifactRecord,
    "approvals": ApprovalRecord,
}

_REWRITTEN: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\bIS NOT (?=\?)"), "IS DISTINCT FROM "),
    (re.compile(r"\bIS (?=\?)"), "IS NOT DISTINCT FROM "),
    (re.compile(r"\bIN \(SELECT value FROM json_each\((\?\d*)\)\)"), r"= ANY (json_strings(\1))"),
    (re.compile(r"\bLIKE\b"), "ILIKE"),
)
_ALL_COLUMNS = re.compile(
    rf"\bSELECT (?:\* FROM (?P<of>{'|'.join(_RECORDS)})\b|(?P<table>\w+)\.\* FROM)"
)
_MARK = re.compile(r"\?(\d*)|(?<!:):([a-z_]+)")

_Parameters = Sequence[Any] | Mapping[str, Any]


class Row:
    """A row of a result, by number or by the name of a column."""

    __slots__ = ("_names", "_values")

    def __init__(self, names: list[str], values: Sequence[Any]) -> None:
        self._names = names
        self._values = values

    def keys(self) -> list[str]:
        """The names of the columns, in order."""
        return self._names

    def __getitem__(self, key: int | str) -> Any:
        return self._values[self._names.index(key) if isinstance(key, str) else key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def make_rows(cursor: Cursor[Any]) -> Callable[[Sequence[Any]], Row]:
    """The row factory of the connections."""
    names = [column.name for column in cursor.description or ()]
    return lambda values: Row(names, values)


class TextDumper(StrDumper):
    """Writes text as such, a NUL, which PostgreSQL's text cannot hold, as its escape."""

    def dump(self, obj: str) -> Any:
        return super().dump(obj.replace("\0", "\\x00") if "\0" in obj else obj)


class NumberLoader(Loader):
    """Reads what a sum of integers is here: an integer, or a float with a fraction."""

    def load(self, data: Buffer) -> int | float:
        text = bytes(data).decode()
        return int(text) if text.lstrip("-").isdecimal() else float(text)


class PipelineCursor:
    """What a statement has found; it may be on its way still."""

    __slots__ = ("_cursor", "_number", "_statements")

    def __init__(self, cursor: Cursor[Row], statements: "Statements", number: int) -> None:
        self._cursor = cursor
        self._statements = statements
        self._number = number

    @property
    def rowcount(self) -> int:
        return self._arrived().rowcount

    def fetchone(self) -> Row | None:
        return self._arrived().fetchone()

    def fetchall(self) -> list[Row]:
        return self._arrived().fetchall()

    def __iter__(self) -> Iterator[Row]:
        return iter(self.fetchall())

    def _arrived(self) -> Cursor[Row]:
        self._statements.wait_for(self._number)
        return self._cursor


class Statements:
    """A connection as the jobs see it: in SQLite's words, inside of a transaction.

    Statements are sent as they come, and waited for where a job reads what they have found. The
    server knows then that it waits for this process, and ends the transaction of one that is
    paused: without the sync it would count as busy, and keep its locks for as long. Without a
    pipeline, a statement is a transaction of its own.
    """

    def __init__(self, connection: Connection[Row], pipeline: Pipeline | None = None) -> None:
        self._connection = connection
        self._pipeline = pipeline
        self._sent = 0
        self._arrived = 0

    def execute(self, sql: str, parameters: _Parameters = (), /) -> PipelineCursor:
        """Send a statement."""
        text, order = _translated(sql)
        return self.send(text, order(parameters))

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> None:
        """Send a statement for every row of parameters."""
        for values in parameters:
            self.execute(sql, values)

    def send(self, text: str, parameters: Sequence[Any] = ()) -> PipelineCursor:
        """Send a statement in PostgreSQL's words."""
        cursor = self._connection.execute(text.encode(), parameters)
        self._sent += 1
        return PipelineCursor(cursor, self, self._sent)

    def wait_for(self, number: int) -> None:
        """Wait until this many statements have been carried out."""
        if self._pipeline is not None and number > self._arrived:
            self._pipeline.sync()
            self._arrived = self._sent


def read_clock(connection: SqlConnection) -> datetime:
    """What the clock of the server says: those of two machines may be an hour apart."""
    (now,) = connection.execute("SELECT clock_timestamp()").fetchone()
    return now.astimezone(UTC)


@lru_cache(maxsize=512)
def _translated(sql: str) -> tuple[str, Callable[[_Parameters], Sequence[Any]]]:
    """The statement in PostgreSQL's words, and what puts its parameters in order."""
    for pattern, text in _REWRITTEN:
        sql = pattern.sub(text, sql)
    sql = _ALL_COLUMNS.sub(_list_columns, sql)
    names: list[str] = []
    count = 0

    def number(mark: re.Match[str]) -> str:
        nonlocal count
        given, name = mark.groups()
        if name:
            if name not in names:
                names.append(name)
            return f"${names.index(name) + 1}"
        count += 1
        return f"${given or count}"

    text = _MARK.sub(number, sql)
    if not names:
        return text, tuple
    chosen = itemgetter(*names)
    return text, chosen if len(names) > 1 else lambda parameters: (chosen(parameters),)


def _list_columns(found: re.Match[str]) -> str:
    table = found["of"] or found["table"]
    columns = ", ".join(f"{table}.{column}" for column in columns_of(_RECORDS[table]))
    return f"SELECT {columns} FROM" + (f" {table}" if found["of"] else "")
