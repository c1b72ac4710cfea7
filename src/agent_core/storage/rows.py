"""Between records and rows: JSON and times as text, and back.

Text from models may hold lone surrogates, which no UTF-8 encoder takes, integers beyond 64 bits
or a hundred levels of nesting. The fast encoder refuses those; the patient one writes them in a
form that reads back unchanged.
"""

import json
import re
import sqlite3
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, from_json

from agent_core.errors import ErrorCode, StorageError
from agent_core.storage import rules
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
        return orjson.dumps(value, default=_plain).decode()
    except _UNENCODABLE:
        return _dump_patiently(value)


def dump_content(blocks: Sequence[ContentBlock]) -> str:
    """JSON text of a message's content."""
    try:
        return _CONTENT.dump_json(blocks).decode()
    except _UNENCODABLE:
        return _dump_patiently(blocks)


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


def session_row(session: SessionRecord) -> Row:
    """Columns of `sessions`, in order."""
    return (
        session.session_id,
        session.cwd,
        session.root_agent_id,
        session.active_node_id,
        session.parent_session_id,
        session.status.value,
        session.owner,
        iso(session.lease_expires_at) if session.lease_expires_at else None,
        dumps(session.metadata),
        iso(session.created_at),
        iso(session.updated_at),
    )


def agent_row(agent: AgentRecord) -> Row:
    """Columns of `agents`, in order."""
    return (
        agent.agent_id,
        agent.session_id,
        agent.parent_agent_id,
        agent.agent_type.value,
        agent.agent_definition_id,
        agent.created_by_run_id,
        agent.fork_from_node_id,
        agent.status.value,
        dumps(agent.result) if agent.result is not None else None,
        dumps(agent.metadata),
        iso(agent.created_at),
        iso(agent.updated_at),
    )


def run_row(run: RunRecord) -> Row:
    """Columns of `runs`, in order."""
    return (
        run.run_id,
        run.session_id,
        run.agent_id,
        run.parent_run_id,
        run.mode.value,
        run.status.value,
        run.start_node_id,
        run.end_node_id,
        run.end_reason.value if run.end_reason else None,
        run.turn_count,
        dumps(run.usage),
        dumps(run.error) if run.error else None,
        dumps(run.metadata),
        iso(run.created_at),
        iso(run.updated_at),
        dumps(run.prompt) if run.prompt else None,
    )


def artifact_row(artifact: ArtifactRecord) -> Row:
    """Columns of `artifacts`, in order."""
    return (
        artifact.artifact_id,
        artifact.session_id,
        artifact.agent_id,
        artifact.run_id,
        artifact.node_id,
        artifact.tool_call_id,
        artifact.kind,
        artifact.path,
        artifact.filename,
        artifact.mime_type,
        artifact.size_bytes,
        artifact.summary,
        dumps(artifact.metadata),
        iso(artifact.created_at),
    )


def node_row(node: Node) -> Row:
    """Columns of `nodes` without `node_seq`, in order."""
    return (
        node.node_id,
        node.session_id,
        node.parent_id,
        node.agent_id,
        node.run_id,
        node.role.value,
        node.node_type.value,
        dump_content(node.content),
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
            raise rules.unreadable(f"an id like {one[:40]!r}")
    return (
        event.event_id,
        draft.level.value,
        draft.event_type.value,
        draft.node_id,
        draft.tool_call_id,
        dumps(draft.payload),
        iso(event.created_at),
    )


def _dump_patiently(value: Any) -> str:
    try:
        text = json.dumps(value, default=_plain)
        loads(text)  # what cannot be read back must not be stored
    except (TypeError, ValueError, RecursionError) as error:
        raise rules.unreadable(str(error)) from error
    return text


def _plain(value: Any) -> Any:
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
