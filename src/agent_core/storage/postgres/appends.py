"""The write that every step of a run waits for: one call of a database function."""

from typing import Any

import orjson
import psycopg

from agent_core.storage.postgres.queue import REMOVE_ENDED
from agent_core.storage.postgres.settings import Answering
from agent_core.storage.postgres.statements import Statements
from agent_core.storage.rows import (
    EVENT_COLUMNS,
    NEXT_USE,
    NODE_COLUMNS,
    SESSION_RELEASED,
    SESSION_USED,
    USED_LAST,
    BatchRows,
    change_rows,
    run_not_found,
    run_taken_over,
)
from agent_core.types import Batch, Position

_APPEND = "SELECT * FROM append_batch($1, $2, $3, $4, $5, $6, $7, $8)"
_FIND_EVENT = "SELECT seq, run_seq FROM events WHERE run_id = $1 AND event_id = $2"
_FIND_NODE = "SELECT node_seq FROM nodes WHERE node_id = $1"
_USED = {
    sql: sql.replace("updated_at = ?", f"updated_at = ?, use_number = {NEXT_USE}")
    for sql in (SESSION_USED, SESSION_RELEASED)
}
"""One statement must not change a row twice."""
_REFUSALS = {"SA001": run_not_found, "SA002": run_taken_over}


class Append:
    """A batch to be stored; after a broken connection it can find out whether it was."""

    def __init__(self, batch: Batch, rows: BatchRows, epoch: int | None) -> None:
        self._batch = batch
        self._rows = rows
        changes_rows = batch.run or batch.agent_status or batch.release or batch.delivered
        self._is_alone = not (changes_rows or batch.session_metadata)
        self._values = (
            batch.session_id,
            batch.agent_id,
            batch.run_id,
            batch.owner,
            epoch,
            _as_json(NODE_COLUMNS, rows.nodes),
            _as_json(EVENT_COLUMNS, rows.events),
            batch.active_node_id,
        )

    def __call__(self, connection: Answering) -> Position:
        """Store the batch completely or not at all, in one round trip.

        Raises:
            StorageError: `run_not_found`; `session_active`: another owner has the session by now.
            psycopg.Error: the batch was not stored, or the connection broke.
        """
        try:
            if self._is_alone and connection.is_plain:
                row = connection.execute(_APPEND, self._values, prepare=True).fetchone()
            else:
                with connection.together() as pipeline:
                    # Without a BEGIN all of this is one transaction, which ends with the pipeline;
                    # a job that reads in between would end it earlier.
                    run, facts = self._batch.run, self._batch.session_metadata
                    is_read = bool(facts or (run and run.metadata))
                    if is_begun := is_read or connection.is_pooled:
                        connection.begin()
                    else:
                        connection.apply_settings()
                    appended = connection.execute(_APPEND, self._values)
                    change_rows(Statements(connection, pipeline), self._batch, self._changes())
                    if is_begun:
                        connection.execute("COMMIT")
                row = appended.fetchone()
        except psycopg.Error as error:
            if refusal := _REFUSALS.get(error.sqlstate or ""):
                raise refusal(self._batch.run_id) from None
            raise
        return Position(*row) if row else Position(0, 0, 0)

    def _changes(self) -> list[tuple[str, list[Any]]]:
        """Return the statements that change other rows, each changing many rows.

        The end of a run releases its session and removes its job from the queue. The job of a
        waiting run stays for now: its question may be answered already.
        """
        rows = [row for row in self._rows.changes if row[0] is not USED_LAST]
        changes = [(_USED.get(sql, sql), values) for sql, values in rows]
        statements: list[tuple[str, list[Any]]] = []
        if self._batch.release is not None:
            sql, [*values] = changes.pop()
            status = self._batch.run and self._batch.run.status
            if status is not None and status.is_terminal:
                sql = f"WITH released AS ({sql}), {REMOVE_ENDED}"
                values += [self._batch.session_id, self._batch.run_id]
            statements.append((sql, values))
        if changes:
            *others, (last, _) = changes
            beside = ", ".join(f"change_{n} AS ({sql})" for n, (sql, _) in enumerate(others))
            sql = f"WITH {beside} {last}" if beside else last
            statements.insert(0, (sql, [value for _, values in changes for value in values]))
        return statements

    def find(self, connection: Answering) -> Position | None:
        """Return the position of the batch, if it was stored before a connection broke.

        A batch without nodes and events may be stored again.
        """
        with connection.transaction():
            return self._find(connection)

    def _find(self, connection: Answering) -> Position | None:
        seq, run_seq, node_seq = 0, 0, 0
        if self._rows.events:
            of = (self._batch.run_id, self._rows.events[0][0])
            row = connection.execute(_FIND_EVENT, of).fetchone()
            if row is None:
                return None
            seq, run_seq = row
        if self._rows.nodes:
            row = connection.execute(_FIND_NODE, (self._rows.nodes[0][0],)).fetchone()
            if row is None:
                return None
            (node_seq,) = row
        return Position(seq, run_seq, node_seq) if seq or node_seq else None


def _as_json(columns: tuple[str, ...], rows: Any) -> str | None:
    if not rows:
        return None
    return orjson.dumps([dict(zip(columns, row, strict=True)) for row in rows]).decode()
