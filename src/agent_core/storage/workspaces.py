"""Snapshots that nodes name, and the state of undo and redo.

The snapshots themselves are files.
"""

import hashlib
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from agent_core.errors import ErrorCode, StorageError
from agent_core.storage.claims import find_session, move_active_node
from agent_core.storage.liveness import Liveness, is_free
from agent_core.storage.rows import UNUSED, dumps, iso, loads, read_each, start_of, storable
from agent_core.storage.sql import Connection
from agent_core.types import SessionRecord, utc_now
from agent_core.types.lanes import SNAPSHOT

if TYPE_CHECKING:
    from agent_core.types import NodeMove, RecordedChanges, SnapshotNote, WorkspaceState


class MovedMeanwhileError(StorageError):
    """A move was decided on a state of its session that is no longer the stored one."""


NAME_SNAPSHOT = """INSERT INTO node_snapshots
    (node_id, session_id, run_id, folder, snapshot_id, previous_id, is_begin)
    VALUES (?, ?, ?, ?, ?, ?, ?)"""

KNOW_SNAPSHOT = """INSERT INTO workspaces
    (session_id, folder, snapshot_id, open_run_id, undone_json)
    VALUES (?, ?, ?, ?, '[]') ON CONFLICT (session_id) DO UPDATE SET
    folder = excluded.folder, snapshot_id = excluded.snapshot_id,
    open_run_id = excluded.open_run_id"""

_ABOVE = """WITH RECURSIVE above (node_id, parent_id, depth) AS (
    SELECT node_id, parent_id, 0 FROM nodes WHERE node_id = ?
    UNION ALL
    SELECT nodes.node_id, nodes.parent_id, depth + 1
    FROM above JOIN nodes ON nodes.node_id = above.parent_id
)
SELECT snapshot_id FROM above JOIN node_snapshots USING (node_id)
    WHERE folder = ? ORDER BY depth, node_snapshots.rowid DESC LIMIT 1"""


_MESSAGE_ABOVE = """WITH RECURSIVE above (parent_id, is_message) AS (
    SELECT parent_id, role = 'user' AND node_type = 'message' FROM nodes WHERE node_id = ?
    UNION ALL
    SELECT nodes.parent_id, nodes.role = 'user' AND nodes.node_type = 'message'
    FROM above JOIN nodes ON nodes.node_id = above.parent_id WHERE NOT above.is_message
)
SELECT 1 FROM above WHERE is_message"""


def follows_message(connection: Connection, node_id: str) -> bool:
    """Return whether a node, or one before it on its path, is a message of the user."""
    return connection.execute(_MESSAGE_ABOVE, (node_id,)).fetchone() is not None


def name_snapshot(connection: Connection, note: "SnapshotNote") -> None:
    """Record a snapshot as the state of the files at a node, and at later nodes until the next one.

    Changes left by a dead run count as its own: its last snapshot is the next one.

    Raises:
        StorageError: `session_not_found`; `session_active`: another owner has the session now.
    """
    if note.run_id is not None and note.epoch is not None:
        start_of(connection, note.session_id, note.run_id, epoch=note.epoch)
    else:
        find_session(connection, note.session_id)
    folder = storable(note.folder)
    known = connection.execute(
        """SELECT snapshot_id FROM workspaces WHERE session_id = ? AND folder = ?
        AND (open_run_id IS NULL OR open_run_id IS ?)""",
        (note.session_id, folder, note.run_id),
    ).fetchone()
    previous = (known and known[0]) or note.snapshot_id
    names = (note.snapshot_id, previous, note.is_begin)
    row = (note.node_id, note.session_id, note.run_id, folder, *names)
    connection.execute(NAME_SNAPSHOT, row)
    open_run = None if note.is_last else note.run_id
    connection.execute(KNOW_SNAPSHOT, (note.session_id, folder, note.snapshot_id, open_run))


def end_changes(connection: Connection, session_id: str, run_id: str) -> None:
    """Record that a run has ended, without changes since its last snapshot."""
    connection.execute(
        "UPDATE workspaces SET open_run_id = NULL WHERE session_id = ? AND open_run_id = ?",
        (session_id, run_id),
    )


def workspace_state(connection: Connection, session_id: str, folder: str) -> "WorkspaceState":
    """Return the node where the session continues, and its record of this project's files."""
    from agent_core.types import NodeMove, UndoneMessage, WorkspaceState  # noqa: PLC0415 - few runs need it

    active_node_id, runs, row = _stored_state(connection, session_id, folder)
    snapshot_id, open_run_id, undone, pending = row
    return WorkspaceState(
        active_node_id=active_node_id,
        revision=_revision(active_node_id, runs, row),
        snapshot_id=snapshot_id,
        open_run_id=open_run_id,
        undone=[UndoneMessage.model_validate(each) for each in loads(undone)],
        runs=runs,
        pending=NodeMove.model_validate(loads(pending)) if pending else None,
    )


def _stored_state(
    connection: Connection, session_id: str, folder: str
) -> tuple[str | None, int, tuple[Any, ...]]:
    """Return the active node, the number of runs started by users, and the workspace's row."""
    active_node_id, runs = connection.execute(
        """SELECT (SELECT active_node_id FROM sessions WHERE session_id = :session), count(*)
        FROM runs WHERE session_id = :session AND parent_run_id IS NULL""",
        {"session": session_id},
    ).fetchone()
    row = connection.execute(
        """SELECT snapshot_id, open_run_id, undone_json, pending_json FROM workspaces
        WHERE session_id = ? AND folder = ?""",
        (session_id, storable(folder)),
    ).fetchone()
    return active_node_id, runs, row or (None, None, "[]", None)


def _revision(active_node_id: str | None, runs: int, row: tuple[Any, ...]) -> str:
    snapshot_id, _, undone, _ = row
    said = dumps([active_node_id, runs, snapshot_id, loads(undone)])
    return hashlib.sha256(said.encode()).hexdigest()[:32]


def _require_unmoved(connection: Connection, session_id: str, move: "NodeMove") -> None:
    """Refuse a move that was decided on another state of its session.

    Raises:
        MovedMeanwhileError: a run, or another move, was faster.
    """
    active_node_id, runs, row = _stored_state(connection, session_id, move.folder)
    revision = _revision(active_node_id, runs, row)
    if move.revision not in {None, revision} or move.runs not in {None, runs}:
        message = f"session {session_id} was moved or used by another process at the same time"
        raise MovedMeanwhileError(ErrorCode.SESSION_ACTIVE, message, retryable=True)


def snapshot_at(
    connection: Connection, session_id: str, node_id: str | None, folder: str
) -> str | None:
    """Return the snapshot that a node of the session names; None if there is none.

    It is the nearest one at the node, or before it on its path. Before the session's first change
    the files were as in its first snapshot.
    """
    key = storable(folder)
    row = connection.execute(_ABOVE, (node_id, key)).fetchone()
    if row is None:
        row = connection.execute(
            """SELECT snapshot_id FROM node_snapshots WHERE session_id = ? AND folder = ?
            ORDER BY rowid LIMIT 1""",
            (session_id, key),
        ).fetchone()
    return row and row[0]


def changes_of(connection: Connection, run_id: str, folder: str) -> "RecordedChanges | None":
    """Return a run's changes of the files; None if it has recorded nothing."""
    from agent_core.types import RecordedChanges  # noqa: PLC0415 - few runs need it

    rows = connection.execute(
        """SELECT snapshot_id, previous_id, is_begin FROM node_snapshots
        WHERE run_id = ? AND folder = ? ORDER BY rowid""",
        (run_id, storable(folder)),
    ).fetchall()
    spans: list[tuple[str, str]] = []
    for snapshot_id, _, is_begin in rows:
        if is_begin or not spans:
            spans.append((snapshot_id, snapshot_id))
        else:
            spans[-1] = (spans[-1][0], snapshot_id)
    return RecordedChanges(known=rows[0][1], spans=spans) if rows else None


def overlapping_changes(connection: Connection, run_id: str, folder: str) -> list[tuple[str, str]]:
    """Return the first and last snapshot of each overlapping run of other sessions."""
    # A run that overlaps has made a snapshot since this one began: no earlier history is read.
    rows = connection.execute(
        """WITH mine AS (
            SELECT session_id, min(rowid) AS first, max(rowid) AS last FROM node_snapshots
            WHERE run_id = :run AND folder = :folder GROUP BY session_id
        ), later AS (
            SELECT DISTINCT other.run_id, other.session_id FROM mine, node_snapshots AS other
            WHERE other.folder = :folder AND other.rowid > mine.first
            AND other.run_id IS NOT NULL AND other.session_id != mine.session_id
        ), spans AS (
            SELECT run_id, min(rowid) AS first, max(rowid) AS last
            FROM later JOIN node_snapshots USING (run_id, session_id)
            WHERE folder = :folder GROUP BY run_id, session_id
        )
        SELECT begins.snapshot_id, ends.snapshot_id FROM mine, spans AS other
        JOIN node_snapshots AS begins ON begins.rowid = other.first
        JOIN node_snapshots AS ends ON ends.rowid = other.last
        WHERE other.first < mine.last AND mine.first < other.last""",
        {"run": run_id, "folder": storable(folder)},
    )
    return [(begin, end) for begin, end in rows]


def begin_move(
    connection: Connection, liveness: Liveness, session_id: str, move: "NodeMove"
) -> None:
    """Record that the files are about to be restored: after a kill, the next process finishes it.

    The snapshot of their state before is kept, whatever happens to the move.

    Raises:
        StorageError: as for `move_node`.
    """
    session = find_session(connection, session_id)
    _require_unmoved(connection, session_id, move)
    move_active_node(connection, liveness, session, session.active_node_id)
    _keep_state_before(connection, session_id, move)
    text = dumps(move.model_dump(mode="json"))
    connection.execute(
        """INSERT INTO workspaces (session_id, folder, undone_json, pending_json)
        VALUES (?, ?, '[]', ?)
        ON CONFLICT (session_id) DO UPDATE SET
            folder = excluded.folder, pending_json = excluded.pending_json""",
        (session_id, storable(move.folder), text),
    )


def drop_move(connection: Connection, session_id: str) -> None:
    """Record that a move was not made."""
    connection.execute(
        "UPDATE workspaces SET pending_json = NULL WHERE session_id = ?", (session_id,)
    )


def move_node(
    connection: Connection, liveness: Liveness, session_id: str, move: "NodeMove"
) -> SessionRecord:
    """Continue the session from the node of the move, with its record of the files there.

    Raises:
        MovedMeanwhileError: the session's state is no longer the one the move was decided on.
        StorageError: `session_not_found`; `node_not_found` if the session has no such node;
            `session_active` while a user's run of it is open and its owner lives. A summary in the
            making does not prevent it.
    """
    session = find_session(connection, session_id)
    _require_unmoved(connection, session_id, move)
    moved = move_active_node(connection, liveness, session, move.node_id)
    folder = storable(move.folder)
    _keep_state_before(connection, session_id, move)
    undone = dumps([each.model_dump(mode="json") for each in move.undone])
    connection.execute(
        """INSERT INTO workspaces (session_id, folder, snapshot_id, undone_json)
        VALUES (?, ?, ?, ?) ON CONFLICT (session_id) DO UPDATE SET
            folder = excluded.folder, snapshot_id = excluded.snapshot_id,
            undone_json = excluded.undone_json, pending_json = NULL,
            open_run_id = CASE WHEN ? THEN NULL ELSE workspaces.open_run_id END""",
        (session_id, folder, move.known, undone, move.files is not None),
    )
    return moved


def _keep_state_before(connection: Connection, session_id: str, move: "NodeMove") -> None:
    """Keep the snapshot that was taken before a move, under its own name."""
    if move.files is not None:
        before, folder = move.files.before, storable(move.folder)
        connection.execute(
            "DELETE FROM node_snapshots WHERE node_id = ? AND session_id = ?", (before, session_id)
        )
        row = (before, session_id, None, folder, before, before, False)
        connection.execute(NAME_SNAPSHOT, row)


def pending_moves(connection: Connection, folder: str) -> list[str]:
    """Return the sessions of a project whose files were being restored."""
    rows = connection.execute(
        "SELECT session_id FROM workspaces WHERE pending_json IS NOT NULL AND folder = ?",
        (storable(folder),),
    )
    return [session_id for (session_id,) in rows]


def snapshots_in_use(connection: Connection) -> set[str]:
    """Return every snapshot that a session needs."""
    named = connection.execute("SELECT snapshot_id, previous_id FROM node_snapshots").fetchall()
    states = connection.execute(
        """SELECT snapshot_id, undone_json, pending_json FROM workspaces
        WHERE snapshot_id IS NOT NULL OR pending_json IS NOT NULL"""
    )
    return _snapshots_in(named, states)


def snapshots_of(connection: Connection, session_id: str) -> set[str]:
    """Return every snapshot that this session needs."""
    named = connection.execute(
        "SELECT snapshot_id, previous_id FROM node_snapshots WHERE session_id = ?", (session_id,)
    ).fetchall()
    states = connection.execute(
        "SELECT snapshot_id, undone_json, pending_json FROM workspaces WHERE session_id = ?",
        (session_id,),
    )
    return _snapshots_in(named, states)


def snapshots_by_session(connection: Connection) -> dict[str, set[str]]:
    """Return the snapshots that each session needs."""
    found: dict[str, set[str]] = {}
    named = connection.execute("SELECT session_id, snapshot_id, previous_id FROM node_snapshots")
    for session_id, *snapshots in named:
        found.setdefault(session_id, set()).update(_snapshots_in([snapshots], ()))
    states = connection.execute(
        """SELECT session_id, snapshot_id, undone_json, pending_json FROM workspaces
        WHERE snapshot_id IS NOT NULL OR pending_json IS NOT NULL"""
    )
    for session_id, *state in states:
        found.setdefault(session_id, set()).update(_snapshots_in((), [state]))
    return found


def _snapshots_in(named: Iterable[Sequence[Any]], states: Iterable[Sequence[Any]]) -> set[str]:
    """Return the snapshots in rows of `node_snapshots` and `workspaces`."""
    found = {each for row in named for each in row}
    for snapshot_id, undone, pending in states:
        found.add(snapshot_id)
        if loads(undone) or pending:
            found |= _snapshots_of_moves(undone, pending)
    return {each for each in found if each is not None}


def _snapshots_of_moves(undone: str, pending: str | None) -> set[str | None]:
    """Return the snapshots of messages that can be redone, and of a move that is under way."""
    from agent_core.types import NodeMove, UndoneMessage  # noqa: PLC0415 - few sessions have any

    entries = [UndoneMessage.model_validate(each) for each in loads(undone)]
    found = {each for entry in entries for each in (entry.before, entry.after, entry.known)}
    files = NodeMove.model_validate(loads(pending)).files if pending else None
    return found | {files.target, files.before, files.git} if files else found


def drop_snapshots(connection: Connection, before: datetime) -> bool:
    """Forget the snapshots of sessions unused since then; return whether there were any.

    Undone messages of these sessions can still be seen, but their files cannot be restored.
    Sessions whose files exist only in snapshots keep them.
    """
    unused = connection.execute(
        f"""SELECT session_id FROM sessions
        WHERE {UNUSED} AND coalesce(place, '') <> :elsewhere AND session_id IN (
            SELECT session_id FROM node_snapshots
            UNION SELECT session_id FROM workspaces WHERE snapshot_id IS NOT NULL)""",  # noqa: S608
        {"before": iso(before), "now": iso(utc_now()), "elsewhere": SNAPSHOT},
    ).fetchall()
    connection.executemany("DELETE FROM node_snapshots WHERE session_id = ?", unused)
    connection.executemany(
        """UPDATE workspaces SET snapshot_id = NULL, open_run_id = NULL, pending_json = NULL
        WHERE session_id = ?""",
        unused,
    )
    return bool(unused)


def working_sessions(connection: Connection, liveness: Liveness) -> Sequence[SessionRecord]:
    """Return the sessions in which a run of a living process is queued or under way."""
    is_dead, now = liveness.is_dead, liveness.now(connection)
    rows = connection.execute(
        """SELECT * FROM sessions WHERE owner IS NOT NULL AND session_id IN
        (SELECT session_id FROM runs
         WHERE status IN ('queued', 'pending', 'running') AND parent_run_id IS NULL)"""
    ).fetchall()
    return [each for each in read_each(SessionRecord, rows) if not is_free(each, is_dead, now)]
