"""Adding to history: nodes and events with their sequence numbers, and what a run's row says.

Everything that can be prepared is prepared before the transaction, which is shared with others.
"""

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

from agent_core.storage import rules
from agent_core.storage.rows import Row, dumps, event_row, iso, loads, node_row
from agent_core.types import Batch, PendingEvent, Position, RunChange, SessionNote, utc_now

OPEN_RUN = "status IN ('queued', 'pending', 'running')"

_START = """SELECT
    (SELECT max(seq) FROM events WHERE session_id = :session),
    (SELECT max(run_seq) FROM events WHERE run_id = :run),
    (SELECT max(node_seq) FROM nodes WHERE session_id = :session),
    (SELECT status FROM runs WHERE run_id = :run AND session_id = :session),
    (SELECT owner FROM sessions WHERE session_id = :session)"""

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


def appending(batch: Batch) -> Callable[[sqlite3.Connection], Position]:
    """The job that stores a batch.

    Raises:
        StorageError: the batch holds something that cannot be stored.
    """
    nodes = [node_row(node) for node in batch.nodes]
    events = [event_row(event) for event in batch.events]
    changes = _changes_of(batch)

    def append(connection: sqlite3.Connection) -> Position:
        start = start_of(connection, batch.session_id, batch.run_id, owner=batch.owner)
        if nodes:
            connection.executemany(
                _INSERT_NODE, [(start.node_seq + i, *row) for i, row in enumerate(nodes)]
            )
        _insert_events(connection, (batch.session_id, batch.agent_id, batch.run_id), start, events)
        for sql, values in changes:
            connection.execute(sql, values)
        if batch.run and batch.run.metadata:
            _merge_run_metadata(connection, batch.run_id, batch.run.metadata)
        return start

    return append


def noting(note: SessionNote) -> Callable[[sqlite3.Connection], bool]:
    """The job that stores what happened outside of any run.

    Raises:
        StorageError: the note holds something that cannot be stored.
    """
    node = node_row(note.node) if note.node else None
    events = [event_row(event) for event in note.events]

    def store(connection: sqlite3.Connection) -> bool:
        session = connection.execute(_NOTED, {"session": note.session_id}).fetchone()
        if session is None:
            raise rules.session_not_found(note.session_id)
        active, metadata, last_seq, last_node_seq = session
        if note.node is not None and node is not None:
            if active != note.node.parent_id:
                return False
            connection.execute(_INSERT_NODE, ((last_node_seq or 0) + 1, *node))
            active = note.node.node_id
        of = (note.session_id, None, None)
        connection.executemany(
            _INSERT_EVENT,
            [((last_seq or 0) + 1 + i, None, *of, *row) for i, row in enumerate(events)],
        )
        connection.execute(
            "UPDATE sessions SET active_node_id = ?, metadata_json = ? WHERE session_id = ?",
            (active, dumps(rules.merged(loads(metadata), note.metadata)), note.session_id),
        )
        return True

    return store


def start_of(
    connection: sqlite3.Connection, session_id: str, run_id: str, *, owner: str | None = None
) -> Position:
    """The numbers the next rows of this run get.

    Raises:
        StorageError: `run_not_found`; `session_active` if the run was closed as lost, or `owner`
            does not hold the session any more, because another process believed it dead.
    """
    last_seq, last_run_seq, last_node_seq, status, holder = connection.execute(
        _START, {"session": session_id, "run": run_id}
    ).fetchone()
    if status is None:
        raise rules.run_not_found(run_id)
    if status == "failed":
        _refuse_lost(connection, run_id)
    if owner is not None and owner != holder:
        raise rules.run_taken_over(run_id)
    return Position((last_seq or 0) + 1, (last_run_seq or 0) + 1, (last_node_seq or 0) + 1)


def insert_events(
    connection: sqlite3.Connection,
    of: tuple[str, str, str],
    *,
    start: Position,
    events: Sequence[PendingEvent],
) -> None:
    """Store events of a (session, agent, run)."""
    _insert_events(connection, of, start, [event_row(event) for event in events])


def insert_session_event(
    connection: sqlite3.Connection, session_id: str, event: PendingEvent
) -> None:
    """Store an event of a session, outside of any run."""
    (last_seq,) = connection.execute(
        "SELECT max(seq) FROM events WHERE session_id = ?", (session_id,)
    ).fetchone()
    row = ((last_seq or 0) + 1, None, session_id, None, None, *event_row(event))
    connection.execute(_INSERT_EVENT, row)


def _insert_events(
    connection: sqlite3.Connection,
    of: tuple[str, str, str],
    start: Position,
    events: Sequence[Row],
) -> None:
    if events:
        connection.executemany(
            _INSERT_EVENT,
            [(start.seq + i, start.run_seq + i, *of, *row) for i, row in enumerate(events)],
        )


def _changes_of(batch: Batch) -> list[tuple[str, Row]]:
    changes: list[tuple[str, Row]] = []
    now = iso(utc_now())
    if batch.run is not None:
        columns = {**_run_columns(batch.run), "updated_at": now}
        if batch.run.has_prompt_node:
            columns["prompt_json"] = None
        assignments = ", ".join(f"{column} = ?" for column in columns)
        sql = f"UPDATE runs SET {assignments} WHERE run_id = ?"  # noqa: S608 - our own names
        changes.append((sql, (*columns.values(), batch.run_id)))
    if batch.agent_status is not None:
        sql = "UPDATE agents SET status = ?, updated_at = ? WHERE agent_id = ?"
        changes.append((sql, (batch.agent_status.value, now, batch.agent_id)))
    if batch.active_node_id is not None:
        sql = "UPDATE sessions SET active_node_id = ? WHERE session_id = ?"
        changes.append((sql, (batch.active_node_id, batch.session_id)))
    if batch.run is not None and batch.run.status is not None:
        # Not with every batch: the index on it would double the cost of a small one.
        sql = "UPDATE sessions SET updated_at = ? WHERE session_id = ?"
        changes.append((sql, (now, batch.session_id)))
    if batch.release is not None:
        sql = f"""UPDATE sessions SET owner = NULL, lease_expires_at = NULL
            WHERE session_id = ? AND owner = ? AND NOT EXISTS
            (SELECT 1 FROM runs WHERE runs.session_id = sessions.session_id
             AND runs.{OPEN_RUN})"""  # noqa: S608 - a constant
        changes.append((sql, (batch.session_id, batch.release)))
    return changes


def _run_columns(change: RunChange) -> dict[str, Any]:
    columns: dict[str, Any] = {
        "status": change.status.value if change.status else None,
        "start_node_id": change.start_node_id,
        "end_node_id": change.end_node_id,
        "end_reason": change.end_reason.value if change.end_reason else None,
        "turn_count": change.turn_count,
        "usage_json": dumps(change.usage) if change.usage else None,
        "error_json": dumps(change.error) if change.error else None,
    }
    return {column: value for column, value in columns.items() if value is not None}


def _merge_run_metadata(
    connection: sqlite3.Connection, run_id: str, changes: dict[str, Any]
) -> None:
    (text,) = connection.execute(
        "SELECT metadata_json FROM runs WHERE run_id = ?", (run_id,)
    ).fetchone()
    connection.execute(
        "UPDATE runs SET metadata_json = ? WHERE run_id = ?",
        (dumps(rules.merged(loads(text), changes)), run_id),
    )


def _refuse_lost(connection: sqlite3.Connection, run_id: str) -> None:
    (text,) = connection.execute(
        "SELECT metadata_json FROM runs WHERE run_id = ?", (run_id,)
    ).fetchone()
    rules.refuse_lost(run_id, loads(text))
