"""Between records and rows: JSON and times as text, and back.

Text from models may hold lone surrogates, which no UTF-8 encoder takes, integers beyond 64 bits
or a hundred levels of nesting. The fast encoder refuses those; the slower one writes them in a
form that reads back unchanged.
"""

import json
import re
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from pathlib import PurePath
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, from_json

from agent_core.errors import ErrorCode, StorageError
from agent_core.types import (
    AgentRecord,
    ArtifactRecord,
    ContentBlock,
    Node,
    PendingEvent,
    RunRecord,
    SessionRecord,
)

Record = TypeVar("Record", bound=BaseModel)
Row = tuple[Any, ...]

_TABLES: Mapping[type[BaseModel], tuple[str, str]] = {
    SessionRecord: ("sessions", "session_id"),
    AgentRecord: ("agents", "agent_id"),
    RunRecord: ("runs", "run_id"),
    Node: ("nodes", "node_id"),
    ArtifactRecord: ("artifacts", "artifact_id"),
}
_JSON_FIELDS = {"metadata", "result", "usage", "error", "prompt"}
_CONTENT: TypeAdapter[Sequence[ContentBlock]] = TypeAdapter(
    Sequence[ContentBlock], config=ConfigDict(defer_build=True)
)
_SAFE_ID = re.compile(r"[A-Za-z0-9_.:\-]{1,128}").fullmatch
_UNENCODABLE = (TypeError, ValueError, PydanticSerializationError)


def iso(moment: datetime) -> str:
    """ISO-8601 in UTC, always with microseconds: text order is time order."""
    utc = moment if moment.tzinfo is UTC else moment.astimezone(UTC)
    return utc.isoformat(timespec="microseconds")


def dumps(value: Any) -> str:
    """JSON text of what a payload or metadata may hold.

    Raises:
        StorageError: it holds something that is no JSON value.
    """
    if not value and isinstance(value, dict):
        return "{}"
    try:
        return orjson.dumps(value, default=_as_json).decode()
    except _UNENCODABLE:
        return _dump_slowly(value)


def loads(text: str) -> Any:
    """What `dumps` wrote."""
    try:
        return from_json(text)
    except ValueError:
        return json.loads(text)


def storable(text: str) -> str:
    """Text for a column of its own: a lone surrogate is written out as its escape."""
    return text.encode("utf-8", "backslashreplace").decode()


def read(kind: type[Record], row: sqlite3.Row) -> Record:
    """Make a record of a row: `x_json` columns become the field `x`.

    Raises:
        StorageError: the row does not hold what this program writes.
    """
    try:
        values = {
            column.removesuffix("_json"): (
                loads(value) if value is not None and column.endswith("_json") else value
            )
            for column, value in zip(row.keys(), row, strict=True)
        }
        return kind.model_validate(values)
    except (ValidationError, ValueError, RecursionError) as error:
        raise StorageError(
            ErrorCode.STORAGE_ERROR,
            f"a row of the session database does not read as {kind.__name__} ({row[0]}):"
            " the file was damaged or edited; restore it from a backup",
        ) from error


def read_all(kind: type[Record], rows: Iterable[sqlite3.Row]) -> list[Record]:
    """Make records of rows."""
    return [read(kind, row) for row in rows]


def find(connection: sqlite3.Connection, kind: type[Record], key: str | None) -> Record | None:
    """The record with this id, or None."""
    table, id_column = _TABLES[kind]
    row = connection.execute(
        f"SELECT * FROM {table} WHERE {id_column} = ?",  # noqa: S608 - our own names
        (key,),
    ).fetchone()
    return read(kind, row) if row else None


def find_all(
    connection: sqlite3.Connection, kind: type[Record], keys: Iterable[str | None]
) -> list[Record]:
    """The records with these ids, oldest first."""
    table, id_column = _TABLES[kind]
    rows = connection.execute(
        f"""SELECT * FROM {table} WHERE {id_column} IN (SELECT value FROM json_each(?))
        ORDER BY rowid""",  # noqa: S608 - our own names
        (dumps(sorted({key for key in keys if key})),),
    )
    return read_all(kind, rows)


def insert(connection: sqlite3.Connection, record: BaseModel) -> None:
    """Add a session, agent, run or artifact."""
    table, _ = _TABLES[type(record)]
    columns = {name: getattr(record, name) for name in type(record).model_fields}
    row = _as_columns(columns)
    connection.execute(
        f"INSERT INTO {table} ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})",  # noqa: S608
        tuple(row.values()),
    )


def update(
    connection: sqlite3.Connection, kind: type[BaseModel], key: str, changes: Mapping[str, Any]
) -> None:
    """Give fields of a record new values; an unknown id changes nothing."""
    connection.execute(*update_sql(kind, key, changes))


def update_sql(kind: type[BaseModel], key: str, changes: Mapping[str, Any]) -> tuple[str, Row]:
    """The statement that gives fields of a record new values, and its parameters.

    Raises:
        StorageError: a value is no JSON value.
    """
    table, id_column = _TABLES[kind]
    row = _as_columns(changes)
    assignments = ", ".join(f"{column} = ?" for column in row)
    sql = f"UPDATE {table} SET {assignments} WHERE {id_column} = ?"  # noqa: S608 - our own names
    return sql, (*row.values(), key)


def node_row(node: Node) -> Row:
    """Columns of `nodes` without `node_seq`, in order."""
    try:
        content = _CONTENT.dump_json(node.content).decode()
    except _UNENCODABLE:
        content = _dump_slowly(node.content)
    return (
        node.node_id,
        node.session_id,
        node.parent_id,
        node.agent_id,
        node.run_id,
        node.role.value,
        node.node_type.value,
        content,
        dumps(node.metadata),
        node.token_count,
        iso(node.created_at),
    )


def event_row(event: PendingEvent) -> Row:
    """Columns of `events` that the event brings itself, in order.

    Raises:
        StorageError: it could not be read back.
    """
    draft = event.draft
    for one in (draft.node_id, draft.tool_call_id):
        if one is not None and not _SAFE_ID(one):
            raise unreadable(f"an id like {one[:40]!r}")
    return (
        event.event_id,
        draft.level.value,
        draft.event_type.value,
        draft.node_id,
        draft.tool_call_id,
        dumps(draft.payload),
        iso(event.created_at),
    )


def merge_metadata(metadata: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata with changes laid over it; None removes a key."""
    return {key: value for key, value in {**metadata, **changes}.items() if value is not None}


def unreadable(what: str) -> StorageError:
    """The error for something that would make history unreadable if it were stored."""
    return StorageError(ErrorCode.STORAGE_ERROR, f"history does not take this: {what}")


def _as_columns(values: Mapping[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name, value in values.items():
        if name in _JSON_FIELDS:
            row[f"{name}_json"] = None if value is None else dumps(value)
        elif isinstance(value, datetime):
            row[name] = iso(value)
        else:
            row[name] = value.value if isinstance(value, Enum) else value
    return row


def _dump_slowly(value: Any) -> str:
    try:
        text = json.dumps(value, default=_as_json)
        loads(text)  # what cannot be read back must not be stored
    except (TypeError, ValueError, RecursionError) as error:
        raise unreadable(str(error)) from error
    return text


def _as_json(value: Any) -> Any:
    match value:
        case BaseModel():
            return dict(value)
        case set() | frozenset():
            return sorted(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        case datetime():
            return iso(value)
        case PurePath():
            return storable(str(value))
        case _:
            raise TypeError(f"{type(value).__name__} is not a JSON value")
