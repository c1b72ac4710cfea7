"""Converts records to rows and back: JSON and times are stored as text.

Text from models may hold lone surrogates, which no UTF-8 encoder accepts, integers beyond 64 bits
or a hundred levels of nesting. The fast encoder refuses those; the slower one writes them in a form
that reads back unchanged.
"""

import json
import logging
import re
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache, partial
from itertools import chain
from operator import itemgetter
from pathlib import PurePath
from typing import Any, NamedTuple, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, from_json

from agent_core.errors import ErrorCode, StorageError
from agent_core.storage.sql import Connection, Cursor, FoundRow
from agent_core.text import quoted, shown_id
from agent_core.text.json_text import strict_json
from agent_core.types import (
    Batch,
    ContentBlock,
    Node,
    PendingEvent,
    Position,
    RunChange,
    RunRecord,
    RunStatus,
    SessionNote,
    SessionRecord,
    StoredOptions,
    Usage,
    utc_now,
)

logger = logging.getLogger(__name__)

Record = TypeVar("Record", bound=BaseModel)
Row = tuple[Any, ...]

_TABLES: Mapping[str, tuple[str, str]] = {
    "SessionRecord": ("sessions", "session_id"),
    "AgentRecord": ("agents", "agent_id"),
    "RunRecord": ("runs", "run_id"),
    "Node": ("nodes", "node_id"),
    "RuntimeEvent": ("events", "event_id"),
    "ArtifactRecord": ("artifacts", "artifact_id"),
    "ApprovalRecord": ("approvals", "request_id"),
    "WaitingMessage": ("waiting_messages", "message_id"),
}
"""Table and id column by the name of a record."""
_ORDERING = {"use_number"}
"""Columns by which rows are sorted; no record has them."""
NEXT_USE = "(SELECT max(use_number) + 1 FROM sessions)"
"""The number of the next use of any session; clocks have no part in it."""
_PLAIN = {str, int}
_JSON_FIELDS = {
    "metadata",
    "result",
    "usage",
    "error",
    "prompt",
    "options",
    "agent_path",
    "request",
    "arguments",
    "changed_arguments",
}
CONTENT: TypeAdapter[list[ContentBlock]] = TypeAdapter(
    list[ContentBlock], config=ConfigDict(defer_build=True)
)
_SAFE_ID = re.compile(r"[A-Za-z0-9_.:\-]{1,128}").fullmatch
_CHANGED_COLUMNS = [
    name for name in RunChange.__struct_fields__ if name not in {"metadata", "has_prompt_node"}
]
_UNENCODABLE = (TypeError, ValueError, PydanticSerializationError)


MAX_SEQ = 2**62


def clamp(number: int, least: int) -> int:
    """Limit a number to the range that SQLite can compare."""
    return min(max(number, least), MAX_SEQ)


def iso(moment: datetime) -> str:
    """Return ISO-8601 in UTC, always with microseconds: text order is time order."""
    utc = moment if moment.tzinfo is UTC else moment.astimezone(UTC)
    if utc.microsecond:  # the fast way leaves zeros out
        return orjson.dumps(utc).decode()[1:-1]
    return utc.isoformat(timespec="microseconds")


def dumps(value: Any) -> str:
    """Return the JSON text of a payload or metadata.

    Raises:
        StorageError: the value holds something that has no JSON form.
    """
    if not value and isinstance(value, dict):
        return "{}"
    try:
        return orjson.dumps(value, default=_as_json).decode()
    except _UNENCODABLE:
        return _dump_slowly(value)


def loads(text: str) -> Any:
    """Parse text written by `dumps`."""
    try:
        return from_json(text)
    except ValueError:
        return json.loads(text)


def storable(text: str) -> str:
    """Return text for a column of its own: lone surrogates and NULs are escaped."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def read(kind: type[Record], row: FoundRow) -> Record:
    """Convert a row to a record: `x_json` columns become the field `x`.

    Raises:
        StorageError: the row cannot be read as a record.
    """
    try:
        values: dict[str, Any] = {}
        for column, value in zip(row.keys(), row, strict=True):  # a frame less than in one piece
            if column in _ORDERING:
                continue
            if value is not None and column.endswith("_json"):
                value = loads(value)
            values[column.removesuffix("_json")] = value
        return kind.model_validate(values)
    except (ValidationError, ValueError, RecursionError) as error:
        raise StorageError(
            ErrorCode.STORAGE_ERROR,
            f"a row of the session database does not read as {kind.__name__} ({row[0]}):"
            " the file was damaged or edited; restore it from a backup",
        ) from error


def read_all(kind: type[Record], rows: Iterable[FoundRow]) -> list[Record]:
    """Convert rows to records."""
    return list(map(partial(read, kind), rows))


def read_each(kind: type[Record], rows: Iterable[FoundRow]) -> list[Record]:
    """Convert the readable rows to records; the log names the rest."""
    records: list[Record] = []
    for row in rows:
        with skip_unreadable("it"):
            records.append(read(kind, row))
    return records


@contextmanager
def skip_unreadable(what: str) -> Generator[None]:
    """Log an error of one row, so that a scan of all rows continues.

    Raises:
        StorageError: the database fails, not the row, so another attempt may succeed.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, StorageError) and error.retryable:
            raise
        warn_once(f"{what} is left as it is: {error}")


@lru_cache(maxsize=1024)
def warn_once(text: str) -> None:
    """Log a repeated warning only once in a process."""
    logger.warning("%s", text)


def find(connection: Connection, kind: type[Record], key: str | None) -> Record | None:
    """Return the record with this id, or None."""
    table, id_column = _TABLES[kind.__name__]
    sql = f"SELECT * FROM {table} WHERE {id_column} = ?"  # noqa: S608 - our own names
    row = connection.execute(sql, (key,)).fetchone()
    return None if row is None else read(kind, row)


def first(kind: type[Record], rows: Cursor) -> Record | None:
    """Convert the first row to a record, if there is one."""
    row = rows.fetchone()
    return None if row is None else read(kind, row)


def find_all(
    connection: Connection, kind: type[Record], keys: Iterable[str | None]
) -> list[Record]:
    """Return the records with these ids, oldest first."""
    table, id_column = _TABLES[kind.__name__]
    rows = connection.execute(
        f"""SELECT * FROM {table} WHERE {id_column} IN (SELECT value FROM json_each(?))
        ORDER BY rowid""",  # noqa: S608 - our own names
        (dumps(sorted({key for key in keys if key})),),
    )
    return read_all(kind, rows)


def table_of(kind: type[BaseModel]) -> tuple[str, str]:
    """Return the table of a record, and the column with its id."""
    return _TABLES[kind.__name__]


def columns_of(kind: type[BaseModel]) -> list[str]:
    """Return the columns that `read` converts to a record."""
    texts = {*_JSON_FIELDS, "content", "payload"}
    return [f"{name}_json" if name in texts else name for name in kind.model_fields]


def insert(connection: Connection, record: BaseModel) -> None:
    """Add a session, agent, run or artifact."""
    row = _as_columns(record.__dict__, skip_none=True)
    connection.execute(_insert_sql(type(record), tuple(row)), tuple(row.values()))


@lru_cache
def _insert_sql(kind: type[BaseModel], columns: tuple[str, ...]) -> str:
    table, _ = _TABLES[kind.__name__]
    marks = ", ".join("?" * len(columns))
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})"  # noqa: S608 - our own names


def update(
    connection: Connection, kind: type[BaseModel], key: str, changes: Mapping[str, Any]
) -> None:
    """Set fields of a record to new values; an unknown id changes nothing."""
    row = _as_columns(changes)
    connection.execute(_update_sql(kind, tuple(row)), (*row.values(), key))


@lru_cache
def _update_sql(kind: type[BaseModel], columns: tuple[str, ...]) -> str:
    table, id_column = _TABLES[kind.__name__]
    values = f"{' = ?, '.join(columns)} = ?"
    if kind is SessionRecord and "updated_at" in columns:
        values += f", use_number = {NEXT_USE}"
    return f"UPDATE {table} SET {values} WHERE {id_column} = ?"  # noqa: S608 - our own names


NODE_COLUMNS = (
    *("node_id", "session_id", "parent_id", "agent_id", "run_id", "role", "node_type"),
    *("content_json", "metadata_json", "token_count", "created_at"),
)
EVENT_COLUMNS = (
    *("event_id", "level", "event_type", "node_id", "tool_call_id", "payload_json", "created_at"),
)
_content, _metadata, _payload = itemgetter(7), itemgetter(8), itemgetter(5)
"""Select the long texts in the results of `node_row` and `event_row`."""


def node_row(node: Node) -> Row:
    """Return a node's values for `NODE_COLUMNS`."""
    try:
        content = orjson.dumps(node.content, default=_as_json).decode()
    except _UNENCODABLE:
        content = _dump_content(node.content)
    return (
        node.node_id,
        node.session_id,
        node.parent_id,
        node.agent_id,
        node.run_id,
        str(node.role),
        str(node.node_type),
        content,
        dumps(node.metadata),
        node.token_count,
        iso(node.created_at),
    )


def _dump_content(content: Sequence[ContentBlock]) -> str:
    try:
        return CONTENT.dump_json(list(content)).decode()
    except _UNENCODABLE:
        return _dump_slowly(content)


def event_row(event: PendingEvent) -> Row:
    """Return an event's values for `EVENT_COLUMNS`; a missing id is empty.

    Raises:
        StorageError: the event could not be read back.
    """
    draft = event.draft
    for one in (draft.node_id, draft.tool_call_id):
        if one is not None and not _SAFE_ID(one):
            raise unreadable(f"an id like {quoted(one, 40)}")
    return (
        event.event_id,
        str(draft.level),
        str(draft.event_type),
        draft.node_id or "",
        draft.tool_call_id or "",
        event.payload_json or dumps(draft.payload),
        iso(event.created_at),
    )


def merge_metadata(metadata: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata with changes applied; None removes a key."""
    return {key: value for key, value in {**metadata, **changes}.items() if value is not None}


def unreadable(what: str) -> StorageError:
    """Return the error for a value that would make history unreadable if it were stored."""
    return StorageError(ErrorCode.STORAGE_ERROR, f"history does not take this: {what}")


def unstorable(error: Exception) -> Exception:
    """Return the error for a record that could not be converted to a row."""
    if isinstance(error, UnicodeEncodeError | OverflowError):
        return unreadable(str(error))
    return error


def _as_columns(values: Mapping[str, Any], *, skip_none: bool = False) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name, value in values.items():
        if value is None:
            if not skip_none:
                row[f"{name}_json" if name in _JSON_FIELDS else name] = None
        elif name in _JSON_FIELDS:
            row[f"{name}_json"] = dumps(_as_json(value) if isinstance(value, BaseModel) else value)
        elif (kind := value.__class__) in _PLAIN:
            row[name] = value
        elif kind is datetime:
            row[name] = iso(value)
        else:
            row[name] = str(value) if isinstance(value, str) else value
    return row


def _dump_slowly(value: Any) -> str:
    try:
        # A lone surrogate stays an escape, all other text is found by a search as it is.
        text = strict_json(value, default=_as_json, ensure_ascii=False)
        text = text.encode("utf-8", "backslashreplace").decode()
        loads(text)  # what cannot be read back must not be stored
    except (TypeError, ValueError, RecursionError) as error:
        raise unreadable(str(error)) from error
    return text


def _as_json(value: Any) -> Any:
    match value:
        case StoredOptions():
            return value.model_dump(mode="json", exclude_defaults=True)
        case Usage(cache_write_1h_tokens=0):  # as earlier versions read it
            fields = value.__dict__.copy()
            del fields["cache_write_1h_tokens"]
            return fields
        case BaseModel():
            return value.__dict__  # every field: other attributes are refused
        case set() | frozenset():
            return sorted(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        case datetime():
            return iso(value)
        case PurePath():
            return storable(str(value))
        case _:
            raise TypeError(f"{type(value).__name__} is not a JSON value")


OPEN_RUN = "status IN ('queued', 'pending', 'running', 'waiting')"

ACTIVE_RUN = f"{OPEN_RUN} AND status != 'waiting'"
"""Condition for runs that need an owner: a run that waits for an answer does not."""

OWNED_RUN = f"{ACTIVE_RUN} AND (lane IS NULL OR status != 'queued')"
"""The same without runs queued for workers, which need no owner either."""

_CAN_BE_RIGHT = "{}updated_at BETWEEN '2020' AND :now"
"""Condition for times that are not in the future, nor before the program was written."""

_NEXT_USE_AT = f"""(SELECT later.updated_at FROM sessions AS later
    WHERE later.use_number > sessions.use_number AND {_CAN_BE_RIGHT.format("later.")}
    ORDER BY later.use_number LIMIT 1)"""  # noqa: S608 - constants

USED_AT = f"""CASE WHEN {_CAN_BE_RIGHT.format("")} THEN updated_at
    ELSE coalesce({_NEXT_USE_AT}, :now) END"""
"""The time when a session was last used.

A time from a wrong clock is replaced by the time of the next use of any session, or by now.
"""

UNUSED = f"""((updated_at >= '2020' AND updated_at < :before)
    OR (NOT {_CAN_BE_RIGHT.format("")} AND {_NEXT_USE_AT} < :before))"""
"""Condition for sessions that were last used before then, with `USED_AT`."""

OWNER_LOST = "owner_lost"

TOO_MANY_TAKEOVERS = "too_many_takeovers"

_START = """SELECT
    (SELECT max(seq) FROM events WHERE session_id = :session),
    (SELECT max(run_seq) FROM events WHERE run_id = :run),
    (SELECT max(node_seq) FROM nodes WHERE session_id = :session),
    (SELECT status FROM runs WHERE run_id = :run AND session_id = :session),
    owner, epoch FROM sessions WHERE session_id = :session"""

_NOTED = """SELECT active_node_id, metadata_json,
    (SELECT max(seq) FROM events WHERE session_id = :session),
    (SELECT max(node_seq) FROM nodes WHERE session_id = :session)
    FROM sessions WHERE session_id = :session"""

INSERT_NODE = """INSERT INTO nodes (node_seq, node_id, session_id, parent_id, agent_id, run_id,
    role, node_type, content_json, metadata_json, token_count, created_at)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""

_INSERT_EVENT = """INSERT INTO events (seq, run_seq, session_id, agent_id, run_id, event_id, level,
    event_type, node_id, tool_call_id, payload_json, created_at)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, nullif(?, ''), nullif(?, ''), ?, ?)"""

_MOST_AT_ONCE = 32
"""Events that one statement stores: a quarter cheaper than one statement each."""

_AGENT_STATUS = """UPDATE agents SET status = ?, updated_at = ?
    WHERE agent_id = ? AND status <> ?"""
_ACTIVE_NODE = "UPDATE sessions SET active_node_id = ? WHERE session_id = ?"
SESSION_USED = """UPDATE sessions SET active_node_id = coalesce(?, active_node_id), updated_at = ?
    WHERE session_id = ?"""
SESSION_RELEASED = SESSION_USED.replace(
    "updated_at = ?",
    f"""updated_at = ?, (owner, lease_expires_at) = (SELECT owner, lease_expires_at
    WHERE owner <> ? OR EXISTS (SELECT 1 FROM runs
        WHERE runs.session_id = sessions.session_id AND runs.{OWNED_RUN}))""",  # noqa: S608
)
"""The same, without an owner if it was this one and no run needs it any more."""
USED_LAST = f"""UPDATE sessions SET use_number = {NEXT_USE}
    WHERE session_id = ? AND use_number < (SELECT max(use_number) FROM sessions)"""  # noqa: S608

_METADATA = "SELECT metadata_json FROM sessions WHERE session_id = ?"
_DELIVERED = "DELETE FROM waiting_messages WHERE message_id = ?"

FIRST = Position(1, 1, 1)
"""Position at which the history of a session begins."""


class BatchRows(NamedTuple):
    """A batch as rows: nodes and events without numbers, and changes of other rows.

    `size` is the number of characters in the long texts.
    """

    nodes: Sequence[Row]
    events: Sequence[Row]
    changes: Sequence[tuple[str, Row]]
    size: int


def rows_of(batch: Batch) -> BatchRows:
    """Convert a batch to rows.

    Raises:
        StorageError: the batch holds something that cannot be stored.
    """
    nodes = list(map(node_row, batch.nodes))
    events = list(map(event_row, batch.events))
    changes: list[tuple[str, Row]] = []
    now = iso(utc_now())
    if batch.run is not None:
        values: dict[str, Any] = {"updated_at": now}
        for name in _CHANGED_COLUMNS:
            if (value := getattr(batch.run, name)) is not None:
                values[name] = value
        if batch.run.has_prompt_node:
            values["prompt"] = None
        row = _as_columns(values)
        changes.append((_update_sql(RunRecord, tuple(row)), (*row.values(), batch.run_id)))
    if batch.agent_status is not None:
        status = str(batch.agent_status)
        changes.append((_AGENT_STATUS, (status, now, batch.agent_id, status)))
    for message_id in batch.delivered:
        changes.append((_DELIVERED, (message_id,)))  # noqa: PERF401 - a frame less
    active, session_id = batch.active_node_id, batch.session_id
    if batch.release is not None:
        changes.append((USED_LAST, (session_id,)))
        changes.append((SESSION_RELEASED, (active, now, batch.release, session_id)))
    elif batch.run is not None and batch.run.status not in {None, RunStatus.RUNNING}:
        # Not with every batch: its indexes would double the cost of a small one.
        changes.append((USED_LAST, (session_id,)))
        changes.append((SESSION_USED, (active, now, session_id)))
    elif active is not None:
        changes.append((_ACTIVE_NODE, (active, session_id)))
    texts = chain(map(_content, nodes), map(_metadata, nodes), map(_payload, events))
    return BatchRows(nodes, events, changes, size=sum(map(len, texts)))


def append(connection: Connection, batch: Batch, rows: BatchRows, epoch: int | None) -> Position:
    """Store a batch, if the session's epoch is still this one.

    Raises:
        StorageError: as for `start_of`.
    """
    start = start_of(connection, batch.session_id, batch.run_id, owner=batch.owner, epoch=epoch)
    for i, row in enumerate(rows.nodes):
        connection.execute(INSERT_NODE, (start.node_seq + i, *row))
    of = (batch.session_id, batch.agent_id, batch.run_id)
    for i in range(0, len(rows.events), _MOST_AT_ONCE):
        some = rows.events[i : i + _MOST_AT_ONCE]
        values: list[Any] = []
        for j, row in enumerate(some, start=i):
            values += (start.seq + j, start.run_seq + j, *of, *row)
        connection.execute(_insert_events_sql(len(some)), values)
    change_rows(connection, batch, rows.changes)
    return start


@lru_cache
def _insert_events_sql(count: int) -> str:
    """Return the statement that stores this many events of one run."""
    head, _, row = _INSERT_EVENT.partition("VALUES")
    return f"{head}VALUES {', '.join([row] * count)}"


def change_rows(
    connection: Connection, batch: Batch, changes: Sequence[tuple[str, Sequence[Any]]]
) -> None:
    """Apply a batch's changes to existing rows."""
    for sql, values in changes:
        connection.execute(sql, values)
    if batch.session_metadata:
        (text,) = connection.execute(_METADATA, (batch.session_id,)).fetchone()
        facts = merge_metadata(loads(text), batch.session_metadata)
        update(connection, SessionRecord, batch.session_id, {"metadata": facts})
    if batch.run and batch.run.metadata:
        metadata = merge_metadata(_run_metadata(connection, batch.run_id), batch.run.metadata)
        update(connection, RunRecord, batch.run_id, {"metadata": metadata})


def add_note(connection: Connection, note: SessionNote) -> bool:
    """Add records outside of any run, in one transaction.

    Returns:
        False, with nothing stored, if the note's node does not follow the active node: the session
        has moved on meanwhile.

    Raises:
        StorageError: `session_not_found`.
    """
    events = [event_row(event) for event in note.events]
    session = connection.execute(_NOTED, {"session": note.session_id}).fetchone()
    if session is None:
        raise session_not_found(note.session_id)
    active, metadata, last_seq, last_node_seq = session
    if note.node is not None:
        if active != note.node.parent_id:
            return False
        connection.execute(INSERT_NODE, ((last_node_seq or 0) + 1, *node_row(note.node)))
        active = note.node.node_id
    of = (note.session_id, None, None)
    _insert_event_rows(connection, of, Position((last_seq or 0) + 1, 0, 0), events)
    connection.execute(
        "UPDATE sessions SET active_node_id = ?, metadata_json = ? WHERE session_id = ?",
        (active, dumps(merge_metadata(loads(metadata), note.metadata)), note.session_id),
    )
    return True


def start_of(
    connection: Connection,
    session_id: str,
    run_id: str,
    *,
    owner: str | None = None,
    epoch: int | None = None,
) -> Position:
    """Return the numbers for the next rows of this run.

    Raises:
        StorageError: `run_not_found`; `session_active` if the run was closed as lost, `owner` no
            longer holds the session, or it was claimed again since `epoch`.
    """
    found = connection.execute(_START, {"session": session_id, "run": run_id}).fetchone()
    if found is None or found[3] is None:
        raise run_not_found(run_id)
    last_seq, last_run_seq, last_node_seq, status, holder, current = found
    is_lost = status == "failed" and _run_metadata(connection, run_id).get("reason") == OWNER_LOST
    is_stale = (owner is not None and owner != holder) or epoch not in {None, current}
    if is_lost or is_stale:
        raise run_taken_over(run_id)
    return Position((last_seq or 0) + 1, (last_run_seq or 0) + 1, (last_node_seq or 0) + 1)


def insert_events(
    connection: Connection,
    run: RunRecord,
    events: Sequence[PendingEvent],
    start: Position | None = None,
) -> Position:
    """Store events of a run; return their position, which is looked up unless given."""
    start = start or start_of(connection, run.session_id, run.run_id)
    if events:
        of = (run.session_id, run.agent_id, run.run_id)
        _insert_event_rows(connection, of, start, [event_row(event) for event in events])
    return start


def insert_session_events(
    connection: Connection, session_id: str, events: Sequence[PendingEvent]
) -> None:
    """Store events of a session, outside of any run."""
    (last_seq,) = connection.execute(
        "SELECT max(seq) FROM events WHERE session_id = ?", (session_id,)
    ).fetchone()
    start = Position((last_seq or 0) + 1, 0, 0)
    rows = [event_row(event) for event in events]
    _insert_event_rows(connection, (session_id, None, None), start, rows)


def session_not_found(session_id: str) -> StorageError:
    """Return the error for an unknown session."""
    message = f"there is no session {shown_id(session_id)}; `sessions list` shows them all"
    message += " (in code: list_sessions())"
    return StorageError(ErrorCode.SESSION_NOT_FOUND, message)


def run_not_found(run_id: str) -> StorageError:
    """Return the error for an unknown run."""
    return StorageError(
        ErrorCode.RUN_NOT_FOUND, f"there is no run {shown_id(run_id)}; was it deleted?"
    )


def run_taken_over(run_id: str) -> StorageError:
    """Return the error for a write of an owner that has lost its session."""
    return StorageError(
        ErrorCode.SESSION_ACTIVE,
        f"run {run_id} was taken over by another process, which saw no heartbeat of this one"
        " for longer than its lease; resume the session to continue",
    )


def node_not_found(node_id: str, session_id: str | None = None) -> StorageError:
    """Return the error for an unknown node."""
    where = f" in session {session_id}" if session_id else ""
    return StorageError(ErrorCode.NODE_NOT_FOUND, f"there is no node {shown_id(node_id)}{where}")


def _insert_event_rows(
    connection: Connection,
    of: tuple[str, str | None, str | None],
    start: Position,
    rows: Sequence[Row],
) -> None:
    """Store events of a (session, agent, run), or of the session alone."""
    seq, run_seq = start.seq, start.run_seq if of[2] is not None else None
    numbered: list[Row] = []
    for row in rows:
        numbered.append((seq, run_seq, *of, *row))
        seq += 1
        run_seq = run_seq and run_seq + 1
    connection.executemany(_INSERT_EVENT, numbered)


def _run_metadata(connection: Connection, run_id: str) -> dict[str, Any]:
    (text,) = connection.execute(
        "SELECT metadata_json FROM runs WHERE run_id = ?", (run_id,)
    ).fetchone()
    return loads(text)
