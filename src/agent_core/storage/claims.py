"""Who has a session: opening runs, leases, giving back, and what a dead owner left open."""

import sqlite3
from collections.abc import Sequence
from datetime import datetime

from agent_core.storage import rules
from agent_core.storage.rows import agent_row, dumps, iso, read, read_all, run_row, session_row
from agent_core.storage.timeline import (
    OPEN_RUN,
    insert_events,
    insert_session_event,
    start_of,
)
from agent_core.types import (
    AgentRecord,
    Claim,
    Node,
    OpenedRun,
    OwnerIsDead,
    PendingEvent,
    Position,
    RunOpening,
    RunRecord,
    SessionRecord,
    utc_now,
)


def open_run(
    connection: sqlite3.Connection, opening: RunOpening, is_dead: OwnerIsDead
) -> OpenedRun:
    """Create or resume the session, claim it, and add the run."""
    session = find_session(connection, opening.session_id)
    resumed = session is not None
    lost: list[RunRecord] = []
    queued: list[RunRecord] = []
    if session is None:
        session = rules.new_session(opening)
        insert_session(connection, session)
    else:
        cwd = rules.move_to(session, opening)
        if session.owner != opening.owner:
            rules.refuse_unless_free(session, is_dead)
            lost = _close_lost(connection, session)
            queued = _open_runs(connection, opening.session_id)
        if cwd is not None:
            _move(connection, session, cwd)
    agent = _root_agent(connection, opening)
    run = rules.new_run(opening, agent.agent_id)
    position = insert_run(connection, run, opening.events)
    connection.execute(
        """UPDATE sessions SET owner = ?, lease_expires_at = ?, updated_at = ?,
        root_agent_id = coalesce(root_agent_id, ?) WHERE session_id = ?""",
        (
            opening.owner,
            iso(opening.lease_expires_at),
            iso(run.created_at),
            agent.agent_id,
            opening.session_id,
        ),
    )
    return OpenedRun(
        session=known_session(connection, opening.session_id),
        agent=agent,
        run=run,
        resumed=resumed,
        position=position,
        lost=lost,
        queued=queued,
    )


def close_lost_runs(connection: sqlite3.Connection, is_dead: OwnerIsDead) -> list[RunRecord]:
    """Close open runs without a living owner, and free the sessions of dead ones."""
    owned = connection.execute("SELECT * FROM sessions WHERE owner IS NOT NULL").fetchall()
    orphaned = connection.execute(
        f"""SELECT * FROM sessions WHERE owner IS NULL AND session_id IN
        (SELECT session_id FROM runs WHERE {OPEN_RUN})"""  # noqa: S608 - a constant
    ).fetchall()
    lost: list[RunRecord] = []
    for session in read_all(SessionRecord, [*owned, *orphaned]):
        if session.owner is None or is_dead(session.owner, session.lease_expires_at):
            lost += _close_lost(connection, session)
    return lost


def heartbeat(connection: sqlite3.Connection, owner: str, until: datetime) -> None:
    """Extend the lease of every session this owner holds."""
    connection.execute(
        "UPDATE sessions SET lease_expires_at = ? WHERE owner = ?", (iso(until), owner)
    )


def release(connection: sqlite3.Connection, owner: str, session_id: str | None = None) -> None:
    """Give back one session, or all."""
    connection.execute(
        """UPDATE sessions SET owner = NULL, lease_expires_at = NULL
        WHERE owner = ?1 AND session_id = coalesce(?2, session_id)""",
        (owner, session_id),
    )


def find_session(connection: sqlite3.Connection, session_id: str) -> SessionRecord | None:
    """The session, or None."""
    row = connection.execute(
        "SELECT * FROM sessions WHERE session_id = ?", (session_id,)
    ).fetchone()
    return read(SessionRecord, row) if row else None


def known_session(connection: sqlite3.Connection, session_id: str) -> SessionRecord:
    """The session.

    Raises:
        StorageError: `session_not_found`.
    """
    session = find_session(connection, session_id)
    if session is None:
        raise rules.session_not_found(session_id)
    return session


def has_open_runs(
    connection: sqlite3.Connection, session_id: str, *, only_root_runs: bool = False
) -> bool:
    """Whether a run of the session is queued, pending or running."""
    row = connection.execute(
        f"""SELECT 1 FROM runs WHERE session_id = ? AND {OPEN_RUN}
        AND (NOT ? OR parent_run_id IS NULL) LIMIT 1""",  # noqa: S608 - a constant
        (session_id, only_root_runs),
    ).fetchone()
    return row is not None


def insert_session(connection: sqlite3.Connection, session: SessionRecord) -> None:
    """Add a session's row."""
    connection.execute(
        "INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", session_row(session)
    )


def insert_agent(connection: sqlite3.Connection, agent: AgentRecord) -> None:
    """Add an agent's row.

    Raises:
        StorageError: `session_not_found`.
    """
    known_session(connection, agent.session_id)
    connection.execute(
        "INSERT INTO agents VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", agent_row(agent)
    )


def insert_run(
    connection: sqlite3.Connection,
    run: RunRecord,
    events: Sequence[PendingEvent],
    claim: Claim | None = None,
) -> Position:
    """Add a run's row and its first events.

    Raises:
        StorageError: `session_not_found`; `session_active`.
    """
    session = known_session(connection, run.session_id)
    if claim is not None:
        rules.refuse_unless_owned(session, claim)
        connection.execute(
            "UPDATE sessions SET owner = ?, lease_expires_at = ? WHERE session_id = ?",
            (claim.owner, iso(claim.lease_expires_at), run.session_id),
        )
    connection.execute(
        "INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", run_row(run)
    )
    start = start_of(connection, run.session_id, run.run_id)
    insert_events(
        connection, (run.session_id, run.agent_id, run.run_id), start=start, events=events
    )
    return start


def _root_agent(connection: sqlite3.Connection, opening: RunOpening) -> AgentRecord:
    row = connection.execute(
        """SELECT * FROM agents
        WHERE session_id = ? AND agent_type = ? AND parent_agent_id IS NULL""",
        (opening.session_id, opening.agent_type.value),
    ).fetchone()
    if row is not None:
        return read(AgentRecord, row)
    agent = rules.new_root_agent(opening)
    insert_agent(connection, agent)
    return agent


def _open_runs(connection: sqlite3.Connection, session_id: str) -> list[RunRecord]:
    rows = connection.execute(
        f"SELECT * FROM runs WHERE session_id = ? AND {OPEN_RUN} ORDER BY rowid",  # noqa: S608
        (session_id,),
    ).fetchall()
    return read_all(RunRecord, rows)


def _move(connection: sqlite3.Connection, session: SessionRecord, cwd: str) -> None:
    insert_session_event(connection, session.session_id, rules.moved_event(session, cwd))
    connection.execute(
        "UPDATE sessions SET cwd = ? WHERE session_id = ?", (cwd, session.session_id)
    )


def _close_lost(connection: sqlite3.Connection, session: SessionRecord) -> list[RunRecord]:
    """Close the runs that were begun; those that wait for their turn are the next owner's."""
    still_open = _open_runs(connection, session.session_id)
    lost = [rules.as_lost(run) for run in still_open if not rules.waits_for_an_owner(run)]
    for run in lost:
        _store_lost(connection, run)
    active = _last_complete(connection, session)
    connection.execute(
        """UPDATE sessions SET owner = NULL, lease_expires_at = NULL, active_node_id = ?
        WHERE session_id = ?""",
        (active, session.session_id),
    )
    return lost


def _store_lost(connection: sqlite3.Connection, run: RunRecord) -> None:
    start = start_of(connection, run.session_id, run.run_id)
    insert_events(
        connection,
        (run.session_id, run.agent_id, run.run_id),
        start=start,
        events=[rules.lost_event(run)],
    )
    connection.execute(
        """UPDATE runs SET status = ?, end_reason = ?, error_json = ?, metadata_json = ?,
        updated_at = ? WHERE run_id = ?""",
        (
            run.status.value,
            run.end_reason,
            dumps(run.error),
            dumps(run.metadata),
            iso(run.updated_at),
            run.run_id,
        ),
    )
    connection.execute(
        "UPDATE agents SET status = 'failed', updated_at = ? WHERE agent_id = ?",
        (iso(utc_now()), run.agent_id),
    )


def _last_complete(connection: sqlite3.Connection, session: SessionRecord) -> str | None:
    """Where the session can go on: its active node, or the last complete one before it."""
    node_id = session.active_node_id
    row = connection.execute("SELECT * FROM nodes WHERE node_id = ?", (node_id,)).fetchone()
    if row is None:
        row = connection.execute(
            """SELECT * FROM nodes WHERE session_id = ? AND agent_id = ?
            ORDER BY node_seq DESC LIMIT 1""",
            (session.session_id, session.root_agent_id),
        ).fetchone()
    while row is not None:
        node = read(Node, row)
        if not node.is_partial:
            return node.node_id
        row = connection.execute(
            "SELECT * FROM nodes WHERE node_id = ?", (node.parent_id,)
        ).fetchone()
    return None


def set_active_node(
    connection: sqlite3.Connection, session_id: str, node_id: str, is_dead: OwnerIsDead
) -> SessionRecord:
    """Continue the session from this node."""
    refuse_while_active(connection, session_id, is_dead, only_root_runs=True)
    found = connection.execute(
        "SELECT 1 FROM nodes WHERE node_id = ? AND session_id = ?", (node_id, session_id)
    ).fetchone()
    if found is None:
        raise rules.node_not_found(node_id, session_id)
    connection.execute(
        "UPDATE sessions SET active_node_id = ?, updated_at = ? WHERE session_id = ?",
        (node_id, iso(utc_now()), session_id),
    )
    return known_session(connection, session_id)


def delete_session(connection: sqlite3.Connection, session_id: str, is_dead: OwnerIsDead) -> None:
    """Remove the session; its rows in every other table follow."""
    refuse_while_active(connection, session_id, is_dead)
    connection.execute("DELETE FROM sessions WHERE session_id = ?", (session_id,))


def refuse_while_active(
    connection: sqlite3.Connection,
    session_id: str,
    is_dead: OwnerIsDead,
    *,
    only_root_runs: bool = False,
) -> None:
    """Refuse while a run of the session is open and its owner lives.

    A run that another one started ends before it, except for summaries in the background:
    `only_root_runs` does not count those.
    """
    session = known_session(connection, session_id)
    if has_open_runs(connection, session_id, only_root_runs=only_root_runs):
        rules.refuse_unless_free(session, is_dead)
