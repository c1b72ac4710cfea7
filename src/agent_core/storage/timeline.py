"""Adds nodes and events with their sequence numbers to history, and changes rows with them.

Everything that can be prepared is prepared before the transaction, which is shared with others.
"""

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from agent_core.errors import ErrorCode, StorageError
from agent_core.storage.rows import (
    Row,
    dumps,
    event_row,
    loads,
    merge_metadata,
    node_row,
    update,
    update_sql,
)
from agent_core.types import (
    AgentRecord,
    Batch,
    PendingEvent,
    Position,
    RunChange,
    RunRecord,
    SessionNote,
    SessionRecord,
    utc_now,
)

OPEN_RUN = "status IN ('queued', 'pending', 'running', 'waiting')"

OWNER_LOST = "owner_lost"

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

_INSERT_NODE = """INSERT INTO nodes (node_seq, node_id, session_id, parent_id, agent_id, run_id,
    role, node_type, content_json, metadata_json, token_count, created_at)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""

_INSERT_EVENT = """INSERT INTO events (seq, run_seq, session_id, agent_id, run_id, event_id, level,
    event_type, node_id, tool_call_id, payload_json, created_at)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""

_RELEASE = f"""UPDATE sessions SET owner = NULL, lease_expires_at = NULL
    WHERE session_id = ? AND owner = ? AND NOT EXISTS
    (SELECT 1 FROM runs WHERE runs.session_id = sessions.session_id
     AND runs.{OPEN_RUN})"""  # noqa: S608 - a constant


def append_job(batch: Batch, epoch: int | None) -> Callable[[sqlite3.Connection], Position]:
    """The job that stores a batch, if the session's epoch is still this one.

    Raises:
        StorageError: the batch holds something that cannot be stored.
    """
    nodes = [node_row(node) for node in batch.nodes]
    events = [event_row(event) for event in batch.events]
    changes = _changes_of(batch)
    epoch = epoch if batch.epoch is None else batch.epoch

    def append(connection: sqlite3.Connection) -> Position:
        start = start_of(connection, batch.session_id, batch.run_id, owner=batch.owner, epoch=epoch)
        if nodes:
            connection.executemany(
                _INSERT_NODE, [(start.node_seq + i, *row) for i, row in enumerate(nodes)]
            )
        of = (batch.session_id, batch.agent_id, batch.run_id)
        _insert_event_rows(connection, of, start, events)
        for sql, values in changes:
            connection.execute(sql, values)
        if batch.run and batch.run.metadata:
            metadata = merge_metadata(_run_metadata(connection, batch.run_id), batch.run.metadata)
            update(connection, RunRecord, batch.run_id, {"metadata": metadata})
        return start

    return append


def note_job(note: SessionNote) -> Callable[[sqlite3.Connection], bool]:
    """The job that stores what happened outside of any run.

    Raises:
        StorageError: the note holds something that cannot be stored.
    """
    node = node_row(note.node) if note.node else None
    events = [event_row(event) for event in note.events]

    def store(connection: sqlite3.Connection) -> bool:
        session = connection.execute(_NOTED, {"session": note.session_id}).fetchone()
        if session is None:
            raise session_not_found(note.session_id)
        active, metadata, last_seq, last_node_seq = session
        if note.node is not None and node is not None:
            if active != note.node.parent_id:
                return False
            connection.execute(_INSERT_NODE, ((last_node_seq or 0) + 1, *node))
            active = note.node.node_id
        of = (note.session_id, None, None)
        _insert_event_rows(connection, of, Position((last_seq or 0) + 1, 0, 0), events)
        connection.execute(
            "UPDATE sessions SET active_node_id = ?, metadata_json = ? WHERE session_id = ?",
            (active, dumps(merge_metadata(loads(metadata), note.metadata)), note.session_id),
        )
        return True

    return store


def start_of(
    connection: sqlite3.Connection,
    session_id: str,
    run_id: str,
    *,
    owner: str | None = None,
    epoch: int | None = None,
) -> Position:
    """The numbers the next rows of this run get.

    Raises:
        StorageError: `run_not_found`; `session_active` if the run was closed as lost, `owner`
            does not hold the session any more, or it was claimed anew since `epoch`.
    """
    found = connection.execute(_START, {"session": session_id, "run": run_id}).fetchone()
    if found is None or found[3] is None:
        raise run_not_found(run_id)
    last_seq, last_run_seq, last_node_seq, status, holder, current = found
    is_lost = status == "failed" and _run_metadata(connection, run_id).get("reason") == OWNER_LOST
    is_stale = (owner is not None and owner != holder) or epoch not in {None, current}
    if is_lost or is_stale:
        raise StorageError(
            ErrorCode.SESSION_ACTIVE,
            f"run {run_id} was taken over by another process, which had not heard from this one"
            " for longer than its lease; resume the session to go on",
        )
    return Position((last_seq or 0) + 1, (last_run_seq or 0) + 1, (last_node_seq or 0) + 1)


def insert_events(
    connection: sqlite3.Connection, run: RunRecord, events: Sequence[PendingEvent]
) -> Position:
    """Store events of a run; returns where they stand."""
    start = start_of(connection, run.session_id, run.run_id)
    of = (run.session_id, run.agent_id, run.run_id)
    _insert_event_rows(connection, of, start, [event_row(event) for event in events])
    return start


def insert_session_event(
    connection: sqlite3.Connection, session_id: str, event: PendingEvent
) -> None:
    """Store an event of a session, outside of any run."""
    (last_seq,) = connection.execute(
        "SELECT max(seq) FROM events WHERE session_id = ?", (session_id,)
    ).fetchone()
    start = Position((last_seq or 0) + 1, 0, 0)
    _insert_event_rows(connection, (session_id, None, None), start, [event_row(event)])


def session_not_found(session_id: str) -> StorageError:
    """The error for an unknown session."""
    return StorageError(ErrorCode.SESSION_NOT_FOUND, f"there is no session {session_id}")


def run_not_found(run_id: str) -> StorageError:
    """The error for an unknown run."""
    return StorageError(ErrorCode.RUN_NOT_FOUND, f"there is no run {run_id}; was it deleted?")


def node_not_found(node_id: str, session_id: str | None = None) -> StorageError:
    """The error for an unknown node."""
    where = f" in session {session_id}" if session_id else ""
    return StorageError(ErrorCode.NODE_NOT_FOUND, f"there is no node {node_id}{where}")


def _insert_event_rows(
    connection: sqlite3.Connection,
    of: tuple[str, str | None, str | None],
    start: Position,
    rows: Sequence[Row],
) -> None:
    """Store events of a (session, agent, run), or of the session alone."""
    if rows:
        is_run = of[2] is not None
        connection.executemany(
            _INSERT_EVENT,
            [
                (start.seq + i, start.run_seq + i if is_run else None, *of, *row)
                for i, row in enumerate(rows)
            ],
        )


def _changes_of(batch: Batch) -> list[tuple[str, Row]]:
    changes: list[tuple[str, Row]] = []
    now = utc_now()
    if batch.run is not None:
        values = {
            field.name: value
            for field in fields(RunChange)
            if (value := getattr(batch.run, field.name)) is not None
            and field.name not in {"metadata", "has_prompt_node"}
        }
        if batch.run.has_prompt_node:
            values["prompt"] = None
        changes.append(update_sql(RunRecord, batch.run_id, {**values, "updated_at": now}))
    if batch.agent_status is not None:
        agent = {"status": batch.agent_status, "updated_at": now}
        changes.append(update_sql(AgentRecord, batch.agent_id, agent))
    session: dict[str, Any] = {}
    if batch.active_node_id is not None:
        session["active_node_id"] = batch.active_node_id
    if batch.run is not None and batch.run.status is not None:
        # Not with every batch: the index on it would double the cost of a small one.
        session["updated_at"] = now
    if session:
        changes.append(update_sql(SessionRecord, batch.session_id, session))
    if batch.release is not None:
        changes.append((_RELEASE, (batch.session_id, batch.release)))
    return changes


def _run_metadata(connection: sqlite3.Connection, run_id: str) -> dict[str, Any]:
    (text,) = connection.execute(
        "SELECT metadata_json FROM runs WHERE run_id = ?", (run_id,)
    ).fetchone()
    return loads(text)
