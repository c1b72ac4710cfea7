"""Opens the next run of a session that no other process has used since this one released it.

Every process that uses a session claims it, which begins a new epoch, or moves its active node. So
one statement finds out that nothing has changed, and only what may be noted about a session
meanwhile is read again: its title and its metadata.
"""

from datetime import datetime
from typing import Any

from agent_core.storage.claims import open_run, run_of
from agent_core.storage.liveness import Liveness
from agent_core.storage.rows import NEXT_USE, OPEN_RUN, insert, insert_events, iso, loads, storable
from agent_core.storage.sql import Connection
from agent_core.types import ClaimedRun, NewRun, SessionRecord

_CLAIM = f"""UPDATE sessions SET owner = :owner, lease_expires_at = :end, epoch = epoch + 1,
    updated_at = :now, use_number = {NEXT_USE}
    WHERE session_id = :session AND owner IS NULL AND epoch = :epoch AND active_node_id = :node
    AND NOT EXISTS (SELECT 1 FROM runs WHERE session_id = :session AND {OPEN_RUN})
    AND NOT EXISTS (SELECT 1 FROM budget_holds WHERE run_id = :session)"""  # noqa: S608 - constants

_NOTED = "SELECT title, metadata_json FROM sessions WHERE session_id = ?"


def open_next_run(
    connection: Connection,
    liveness: Liveness,
    opening: NewRun,
    same_folder: str | None,
    known: ClaimedRun,
) -> ClaimedRun:
    """Claim a session again and add a run to it: see `SessionStore.open_run`.

    If the session may have changed, or the run needs more than that, it is opened as a session is
    that this process does not know.

    Args:
        connection: in a transaction.
        liveness: has the clock.
        opening: the run.
        same_folder: as for `claims.open_run`.
        known: the last claim of this process, with the session as that run has left it.
    """
    before, agent = known.session, known.agent
    is_same = before.cwd == storable(opening.cwd) and agent.agent_type is opening.agent_type
    needs_more = before.place or opening.dispatch or opening.history
    now = liveness.now(connection)
    session = _claim(connection, before, opening, now) if is_same and not needs_more else None
    if session is None:
        return open_run(connection, liveness, opening, same_folder, now=now)
    run = run_of(opening, session, agent.agent_id, now)
    insert(connection, run)
    if opening.events:
        insert_events(connection, run, opening.events)
    return ClaimedRun(
        session=session,
        agent=agent,
        run=run,
        resumed=True,
        is_unchanged=True,
    )


def _claim(
    connection: Connection, session: SessionRecord, opening: NewRun, now: datetime
) -> SessionRecord | None:
    """Claim a session; return it as it is stored now, or None if it is not as it was.

    Facts about it may have been noted since: they neither claim it nor move its active node.
    """
    until = now + opening.lease
    values = {
        "owner": opening.owner,
        "end": iso(until),
        "now": iso(now),
        "session": session.session_id,
        "epoch": session.epoch,
        "node": session.active_node_id,
    }
    claim = connection.execute(_CLAIM, values)
    noted = connection.execute(_NOTED, (session.session_id,)).fetchone()  # both are sent together
    if claim.rowcount != 1 or noted is None:
        return None
    title, metadata = noted
    changes: dict[str, Any] = {
        "owner": opening.owner,
        "lease_expires_at": until,
        "epoch": session.epoch + 1,
        "updated_at": now,
        "title": title,
    }
    try:
        changes["metadata"] = loads(metadata)
    except ValueError:
        return None  # reading all of the row says what is damaged
    return session.model_copy(update=changes)
