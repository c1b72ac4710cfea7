"""Reads rows of which some are damaged: gives what can be read, and names what cannot.

For readers that show and export. No session continues from what is read here, and nothing is
changed.
"""

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from agent_core.errors import StorageError
from agent_core.storage.rows import CONTENT, columns_of, dumps, loads, read, table_of
from agent_core.storage.sql import Connection, FoundRow
from agent_core.text import shortened

if TYPE_CHECKING:
    from agent_core.types import DamagedRow

Record = TypeVar("Record", bound=BaseModel)
Result = TypeVar("Result")

_UNKNOWN_TIME = "1970-01-01T00:00:00+00:00"
_LONGEST_RAW = 2_000
_MOST_REPAIRS = 12


class Salvage:
    """Reads rows, and collects what is damaged.

    Attributes:
        damaged: the rows that cannot be read whole, in the order in which they were found.
    """

    def __init__(self) -> None:
        self.damaged: list[DamagedRow] = []

    def note(self, table: str, row_id: str, problem: str) -> None:
        """Note that a row, or a part of it, is missing."""
        from agent_core.types import DamagedRow  # noqa: PLC0415 - few sessions need it

        found = DamagedRow(table=table, row_id=row_id, problem=problem)
        if found not in self.damaged:
            self.damaged.append(found)

    def read(self, kind: type[Record], row: FoundRow) -> Record | None:
        """Convert a row to a record without its damaged parts; None: nothing of it can be used."""
        try:
            return read(kind, row)
        except StorageError:
            table, id_column = table_of(kind)
            with suppress(LookupError, ValueError):
                row_id = str(row[id_column])
                record, problem = _without_damage(kind, row)
                self.note(table, row_id, problem)
                return record
            self.note(table, "?", "its id cannot be read")
            return None

    def read_all(self, kind: type[Record], rows: Iterable[FoundRow]) -> list[Record]:
        """Convert rows to records; leaves out rows of which nothing can be used."""
        found = (self.read(kind, row) for row in rows)
        return [record for record in found if record is not None]

    def find_all(
        self, connection: Connection, kind: type[Record], keys: Iterable[str | None]
    ) -> list[Record]:
        """Return the records with these ids, oldest first."""
        table, id_column = table_of(kind)
        wanted = sorted({key for key in keys if key})
        every = f"""SELECT * FROM {table} WHERE {id_column} IN (SELECT value FROM json_each(?))
            ORDER BY rowid"""  # noqa: S608 - our own names
        one = f"SELECT * FROM {table} WHERE {id_column} = ?"  # noqa: S608
        rows = self.rows(
            connection, table, every, (dumps(wanted),), (one, lambda: [(w,) for w in wanted])
        )
        found = self.read_all(kind, rows)
        known = {str(getattr(record, id_column)) for record in found}
        known |= {row.row_id for row in self.damaged if row.table == table}
        for key in wanted:
            if key not in known:
                self.note(table, key, "the row is missing")
        return found

    def rows(
        self,
        connection: Connection,
        table: str,
        sql: str,
        parameters: Sequence[Any],
        one_by_one: tuple[str, Callable[[], Iterable[Sequence[Any]]]],
    ) -> list[FoundRow]:
        """Return the rows of a query; of a torn file, those that can be read one by one.

        Args:
            connection: of the database.
            table: of the rows.
            sql: the query.
            parameters: its parameters.
            one_by_one: a query for one row, and what yields its parameters for each.
        """
        try:
            return connection.execute(sql, parameters).fetchall()
        except sqlite3.Error as error:
            if not is_damage(error):
                raise
        found: list[FoundRow] = []
        statement, asked = one_by_one
        for each in asked():
            try:
                found += connection.execute(statement, each).fetchall()
            except sqlite3.Error as error:
                if not is_damage(error):
                    raise
                self.note(table, str(each[-1]), f"its place in the file is damaged: {error}")
        return found

    def attempt(
        self, table: str, row_id: str, read_it: Callable[[], Result], default: Result
    ) -> Result:
        """Return what `read_it` returns; the default, if a row that it reads is damaged."""
        try:
            return read_it()
        except (ValueError, ValidationError, RecursionError) as error:
            self.note(table, row_id, str(error).partition("\n")[0])
        except StorageError as error:
            if error.retryable:
                raise
            self.note(table, row_id, error.message)
        except sqlite3.Error as error:
            if not is_damage(error):
                raise
            self.note(table, row_id, str(error))
        return default


def is_damage(error: sqlite3.Error) -> bool:
    """Return whether a part of the file, or a text in it, is not as it was written."""
    code = getattr(error, "sqlite_errorcode", None)
    is_corrupt = code is not None and code & 0xFF == sqlite3.SQLITE_CORRUPT
    return is_corrupt or (code is None and "decode" in str(error).casefold())


def _without_damage(kind: type[Record], row: FoundRow) -> tuple[Record | None, str]:
    """Return a record of the readable parts, and what is wrong with the rest."""
    values: dict[str, Any] = {}
    raw: dict[str, str] = {}
    problems: list[str] = []
    known = set(columns_of(kind))
    for column, value in zip(row.keys(), row, strict=True):
        if column not in known:
            continue
        name = column.removesuffix("_json")
        if value is not None and column != name:
            raw[name] = str(value)
            try:
                values[name] = loads(value)
            except (ValueError, TypeError, RecursionError):
                problems.append(f"{name} is not JSON")
        else:
            values[name] = value
    for _ in range(_MOST_REPAIRS):
        try:
            record = kind.model_validate(values)
        except (ValidationError, RecursionError) as error:
            if not isinstance(error, ValidationError):
                return None, "it is nested too deeply"
            wrong = dict.fromkeys(str(each["loc"][0]) for each in error.errors() if each["loc"])
            for name in wrong:
                if (problem := f"{name} is not valid") and not _names(problems, name):
                    problems.append(problem)
                if not _replace(kind, name, values, raw):
                    return None, "; ".join(problems)
        else:
            return record, "; ".join(problems)
    return None, "; ".join(problems)


def _names(problems: Iterable[str], name: str) -> bool:
    return any(each.startswith(f"{name} ") for each in problems)


def _replace(
    kind: type[BaseModel], name: str, values: dict[str, Any], raw: Mapping[str, str]
) -> bool:
    """Replace a damaged field by something harmless; return whether that is possible."""
    field = kind.model_fields.get(name)
    if field is None:
        return False
    if name == "content":
        values[name] = [*_readable_blocks(values.get(name), raw.get(name, ""))]
    elif not field.is_required():
        values.pop(name, None)
    elif name in {"created_at", "updated_at"}:
        values[name] = _UNKNOWN_TIME
    else:
        return False
    return True


def _readable_blocks(content: object, raw: str) -> Iterator[Any]:
    """Yield the parts of a message that can be read, with a text in place of each other part."""
    if not isinstance(content, list):
        stored = shortened(raw, _LONGEST_RAW) if raw else "nothing"
        yield {"type": "text", "text": f"[damaged; what is stored: {stored}]"}
        return
    blocks: list[Any] = content  # pyright: ignore[reportUnknownVariableType]
    for block in blocks:
        try:
            CONTENT.validate_python([block])
        except (ValidationError, RecursionError):
            given: Any = block.get("type") if isinstance(block, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
            what = f"of the type {given}" if isinstance(given, str) else "without a type"
            yield {"type": "text", "text": f"[a part {what[:80]} cannot be read]"}
        else:
            yield block
