"""Translates the SQL of `storage` for PostgreSQL, and its results for the jobs."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from operator import itemgetter
from typing import Any, cast

from psycopg import Connection, Cursor, Pipeline
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.types.string import StrDumper
from pydantic import BaseModel

from agent_core.storage.rows import NEXT_USE, columns_of
from agent_core.storage.sql import Connection as SqlConnection
from agent_core.types import (
    AgentRecord,
    ApprovalRecord,
    ArtifactRecord,
    Node,
    RunRecord,
    RuntimeEvent,
    SessionRecord,
    WaitingMessage,
)

_RECORDS: Mapping[str, type[BaseModel]] = {
    "sessions": SessionRecord,
    "agents": AgentRecord,
    "runs": RunRecord,
    "nodes": Node,
    "events": RuntimeEvent,
    "artifacts": ArtifactRecord,
    "approvals": ApprovalRecord,
    "waiting_messages": WaitingMessage,
}

_REWRITTEN: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\bIS NOT (?=[?:])"), "IS DISTINCT FROM "),
    (re.compile(r"\bIS (?=[?:])"), "IS NOT DISTINCT FROM "),
    (re.compile(r"\bIN \(SELECT value FROM json_each\((\?|:\w+)\)\)"), r"= ANY (json_strings(\1))"),
    (re.compile(re.escape(NEXT_USE)), "next_use()"),
    (re.compile(r"\blength\(CAST\((\w+) AS BLOB\)\)"), r"octet_length(\1)"),
)
_ALL_COLUMNS = re.compile(
    rf"\bSELECT (?:\* FROM (?P<of>{'|'.join(_RECORDS)})\b|(?P<table>\w+)\.\* FROM)"
)
_MARK = re.compile(r"\?|(?<!:):([a-z_]+)")

_Parameters = Sequence[Any] | Mapping[str, Any]


class PostgresRow:
    """A row of a result, indexed by number or by column name."""

    __slots__ = ("_names", "_values")

    def __init__(self, names: list[str], values: Sequence[Any]) -> None:
        self._names = names
        self._values = values

    def keys(self) -> list[str]:
        """Return the names of the columns, in order."""
        return self._names

    def __getitem__(self, key: int | str) -> Any:
        return self._values[self._names.index(key) if isinstance(key, str) else key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def make_rows(cursor: Cursor[Any]) -> Callable[[Sequence[Any]], PostgresRow]:
    """Return a function that makes rows of a cursor's results: the connections' row factory."""
    result = cursor.pgresult  # a tenth of the cost of `cursor.description`
    found = [result.fname(column) for column in range(result.nfields)] if result else []
    names = [(name or b"").decode() for name in found]
    return lambda values: PostgresRow(names, values)


class TextDumper(StrDumper):
    """Writes text unchanged, except a NUL, which PostgreSQL cannot store, as its escape."""

    def dump(self, obj: str) -> Any:
        return super().dump(obj.replace("\0", "\\x00") if "\0" in obj else obj)


class NumberLoader(Loader):
    """Reads numerics, which sums of integers are here, as an integer or a float with a fraction."""

    def load(self, data: Buffer) -> int | float:
        text = bytes(data).decode()
        return int(text) if text.lstrip("-").isdecimal() else float(text)


class TimeLoader(Loader):
    """Reads times, which are ISO here.

    psycopg asks the connection for the format, which learns it too late if a transaction sets it.
    """

    def load(self, data: Buffer) -> datetime:
        return datetime.fromisoformat(bytes(data).decode())


class PipelineCursor:
    """The result of a statement, which may not have arrived yet."""

    __slots__ = ("_cursor", "_number", "_statements")

    def __init__(self, cursor: Cursor[PostgresRow], statements: "Statements", number: int) -> None:
        self._cursor = cursor
        self._statements = statements
        self._number = number

    @property
    def rowcount(self) -> int:
        return self._arrived().rowcount

    def fetchone(self) -> PostgresRow | None:
        return self._arrived().fetchone()

    def fetchall(self) -> list[PostgresRow]:
        return self._arrived().fetchall()

    def __iter__(self) -> Iterator[PostgresRow]:
        return iter(self.fetchall())

    def _arrived(self) -> Cursor[PostgresRow]:
        self._statements.wait_for(self._number)
        return self._cursor


class Statements:
    """A connection as the jobs use it: with SQLite's SQL, inside a transaction.

    Statements are sent as they come, and a job waits only when it reads a result. The server then
    knows that it waits for this process, and ends the transaction of a paused one: without the sync
    it would count as busy and keep its locks. Without a pipeline, each statement is its own
    transaction.

    Args:
        connection: connection of a thread.
        pipeline: pipeline whose transaction has begun.
        mark: name of the connection and number of the transaction, written with its first
            statement; it later shows whether the transaction was committed.
    """

    def __init__(
        self,
        connection: Connection[PostgresRow],
        pipeline: Pipeline | None = None,
        mark: tuple[str, int] | None = None,
    ) -> None:
        self._connection = connection
        self._pipeline = pipeline
        self._mark = mark
        self._mark_if: str | None = None
        self._locked: PipelineCursor | None = None
        self._now: datetime | None = None
        self._sent = 0
        self._arrived = 0

    def lock(self, text: str, about: str) -> None:
        """Lock a session as the first statement, which also returns the server's time."""
        self._locked = self.send(text, (about,))

    def mark_only(self, found: str) -> None:
        """Write the mark with each statement whose CTE of this name finds something.

        A transaction that finds and changes nothing then does not wait for the disk.
        """
        self._mark_if = found

    def clock(self) -> datetime:
        """Return the server's time when this was first called, or when the session was locked."""
        if self._now is None:
            (row,) = (self._locked or self.send("SELECT clock_timestamp()")).fetchall()
            at: datetime = row[-1]
            self._now = at.astimezone(UTC)
        return self._now

    def execute(self, sql: str, parameters: _Parameters = (), /) -> PipelineCursor:
        """Send a statement."""
        text, order = _translated(sql)
        return self.send(text, order(parameters))

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> None:
        """Send a statement for every row of parameters."""
        for values in parameters:
            self.execute(sql, values)

    def send(self, text: str, parameters: Sequence[Any] = ()) -> PipelineCursor:
        """Send a statement written for PostgreSQL."""
        if self._mark is not None:
            text = _beside_mark(text, len(parameters), self._mark_if)
            parameters = (*parameters, *self._mark)
            self._mark = self._mark if self._mark_if else None
        cursor = self._connection.execute(text.encode(), parameters)
        self._sent += 1
        return PipelineCursor(cursor, self, self._sent)

    def wait_for(self, number: int) -> None:
        """Wait until this many statements have been executed."""
        if self._pipeline is not None and number > self._arrived:
            self._pipeline.sync()
            self._arrived = self._sent


def read_clock(connection: SqlConnection) -> datetime:
    """Return the server's time: the clocks of two machines may differ by an hour."""
    return cast("Statements", connection).clock()


@lru_cache(maxsize=512)
def _beside_mark(text: str, count: int, found: str | None) -> str:
    """Add the transaction's mark to a statement with this many parameters.

    The division fails once the transaction counts as lost: its row has a negative number then.
    """
    head = re.match(r"\s*WITH( RECURSIVE)?\b", text)
    begin, rest = ("WITH", f" {text}") if head is None else (head[0], f", {text[head.end() :]}")
    only_if = f"FROM {found}" if found else ""
    return f"""{begin} marked AS (
        INSERT INTO last_commits (connection, number)
        SELECT CAST(${count + 1} AS TEXT), CAST(${count + 2} AS BIGINT) {only_if}
        ON CONFLICT (connection) DO UPDATE SET at = excluded.at,
            number = excluded.number / CAST(last_commits.number >= 0 AS INTEGER)
    ){rest}"""


@lru_cache(maxsize=512)
def _translated(sql: str) -> tuple[str, Callable[[_Parameters], Sequence[Any]]]:
    """Translate a statement for PostgreSQL; return it, and a function ordering its parameters."""
    for pattern, text in _REWRITTEN:
        sql = pattern.sub(text, sql)
    sql = _ALL_COLUMNS.sub(_list_columns, sql)
    names: list[str] = []
    count = 0

    def number(mark: re.Match[str]) -> str:
        nonlocal count
        if name := mark[1]:
            if name not in names:
                names.append(name)
            return f"${names.index(name) + 1}"
        count += 1
        return f"${count}"

    text = _MARK.sub(number, sql)
    if not names:
        return text, tuple
    chosen = itemgetter(*names)
    return text, chosen if len(names) > 1 else lambda parameters: (chosen(parameters),)


def _list_columns(found: re.Match[str]) -> str:
    table = found["of"] or found["table"]
    columns = list_columns(_RECORDS[table], table)
    return f"SELECT {columns} FROM" + (f" {table}" if found["of"] else "")


def list_columns(kind: type[BaseModel], table: str | None = None) -> str:
    """Return the columns of a record, for a SELECT."""
    table = table or next(name for name, one in _RECORDS.items() if one is kind)
    return ", ".join(f"{table}.{column}" for column in columns_of(kind))
