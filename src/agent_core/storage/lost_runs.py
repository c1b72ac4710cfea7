"""Runs without a living process: they are closed, or kept for the next owner of their session.

A session is freed in the transaction that claims it, deletes it, or finds its owner dead.
"""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from agent_core.errors import ErrorCode
from agent_core.storage import approvals
from agent_core.storage.budgets import settle_holds, settle_lost
from agent_core.storage.liveness import Liveness, is_free
from agent_core.storage.rows import (
    OPEN_RUN,
    OWNED_RUN,
    OWNER_LOST,
    TOO_MANY_TAKEOVERS,
    find,
    insert_events,
    loads,
    read_all,
    read_each,
    update,
)
from agent_core.storage.sql import Connection, Cursor
from agent_core.text import plural
from agent_core.types import (
    AgentRecord,
    AgentStatus,
    EndReason,
    ErrorPayload,
    EventDraft,
    EventLevel,
    EventType,
    PendingEvent,
    RunRecord,
    RunStatus,
    SessionRecord,
    is_cut_off,
    utc_now,
)


def waiting_children(connection: Connection, run_id: str) -> list[RunRecord]:
    """Return the children of a run that wait for an answer."""
    rows = connection.execute(
        f"""SELECT * FROM runs WHERE {OPEN_RUN} AND status = 'waiting' AND parent_run_id = ?
        AND session_id = (SELECT session_id FROM runs WHERE run_id = ?)""",  # noqa: S608
        (run_id, run_id),
    )
    return read_all(RunRecord, rows)


def close_waiting(connection: Connection, liveness: Liveness, run_id: str) -> None:
    """Cancel the waiting children of a user's run that has ended, and close its questions."""
    now = liveness.now(connection)
    for child in waiting_children(connection, run_id):
        close_run(connection, child, LEFT)
    approvals.withdraw_all(connection, run_id, now)


def lost_sessions(connection: Connection, liveness: Liveness) -> list[str]:
    """Return the sessions with a dead owner, or with open runs but without an owner."""
    now = liveness.now(connection)
    owned = connection.execute("SELECT * FROM sessions WHERE owner IS NOT NULL")
    orphaned = connection.execute(
        f"""SELECT * FROM sessions WHERE owner IS NULL AND session_id IN
        (SELECT session_id FROM runs WHERE {OWNED_RUN})"""  # noqa: S608 - a constant
    )
    sessions = read_each(SessionRecord, [*owned, *orphaned])
    return [each.session_id for each in sessions if is_free(each, liveness.is_surely_dead, now)]


def close_lost_session(
    connection: Connection, liveness: Liveness, session_id: str
) -> list[RunRecord]:
    """Close the open runs of a session that has no living owner, and free it."""
    now = liveness.now(connection)
    session = find(connection, SessionRecord, session_id)
    if session is None or not is_free(session, liveness.is_surely_dead, now):
        return []
    return free_session(connection, session).lost


def open_runs(connection: Connection, session_id: str) -> list[RunRecord]:
    return read_all(RunRecord, select_open_runs(connection, session_id))


def select_open_runs(connection: Connection, session_id: str) -> Cursor:
    """Query the runs of a session that have not ended, in order."""
    return connection.execute(
        f"SELECT * FROM runs WHERE session_id = ? AND {OPEN_RUN} ORDER BY rowid",  # noqa: S608
        (session_id,),
    )


class FreedSession(Struct, frozen=True):
    """A session without an owner, and what its last one has left.

    Attributes:
        session: as it is stored now.
        lost: the runs that were closed.
        queued: the user's runs that wait for their turn, except those for workers.
        waiting: the user's run that waits for an answer.
    """

    session: SessionRecord
    lost: list[RunRecord]
    queued: list[RunRecord]
    waiting: RunRecord | None


def free_session(
    connection: Connection, session: SessionRecord, *, taken: RunRecord | None = None
) -> FreedSession:
    """Make a session ready for its next owner.

    Runs that were begun are closed. The next owner gets the queued runs and the run that waits for
    an answer; see `_settle_open`. Runs of workers belong to them: a session in which a worker was
    executing a run is not changed, unless that run is `taken`.
    """
    taken_id = None if taken is None else taken.run_id
    lost: list[RunRecord] = []
    runs = open_runs(connection, session.session_id)
    if not any(run.has_begun and run.is_for_workers and run.run_id != taken_id for run in runs):
        if runs:
            lost = _settle_open(connection, runs, taken_id)
            runs = open_runs(connection, session.session_id)
        settle_holds(connection, session.session_id)  # for work outside of its runs
        session = _disown(connection, session)
    queued = [
        run
        for run in runs
        if run.status is RunStatus.QUEUED and run.lane is None and run.parent_run_id is None
    ]
    return FreedSession(session, lost, queued, waiting_run(runs))


def _settle_open(
    connection: Connection, runs: Sequence[RunRecord], taken_id: str | None
) -> list[RunRecord]:
    """Close the runs that were begun, and return them.

    Queued runs, a run that waits for an answer, and the taken run are left to the next
    owner. A run that has asked a lasting question becomes such a waiting run, together with its
    children that have.
    """
    lost: list[RunRecord] = []
    kept: set[str] = set()
    for run in runs:
        if run.parent_run_id is None and run.status is not RunStatus.QUEUED:
            asked = approvals.kept_runs(connection, run.run_id)
            is_kept = run.status is RunStatus.WAITING or run.run_id == taken_id
            kept |= asked or ({run.run_id} if is_kept else set())
    for run in reversed(runs):  # a child that waits keeps those that wait for it
        if run.run_id in kept and run.parent_run_id is not None:
            kept.add(run.parent_run_id)
    for run in runs:
        if run.run_id == taken_id:
            settle_holds(connection, run.run_id)
            if figures := _count_again(connection, run):
                update(connection, RunRecord, run.run_id, figures)
            continue
        is_queued = run.status is RunStatus.QUEUED and run.parent_run_id is None
        if run.run_id in kept and run.parent_run_id in {None, *kept}:
            if run.status is not RunStatus.WAITING:
                _keep(connection, run)
        elif not is_queued or (run.prompt is None and run.lane is None):
            lost.append(close_run(connection, run, LOST))
    return lost


def _disown(connection: Connection, session: SessionRecord) -> SessionRecord:
    """Take a session from its owner, and let it continue at its last complete node."""
    node_id = _last_complete(connection, session)
    if session.owner is None and node_id == session.active_node_id:
        return session  # its last owner has released it
    changes = {
        "owner": None,
        "lease_expires_at": None,
        "epoch": session.epoch + (session.owner is not None),
        "active_node_id": node_id,
    }
    update(connection, SessionRecord, session.session_id, changes)
    return session.model_copy(update=changes)


def waiting_run(runs: Sequence[RunRecord]) -> RunRecord | None:
    """Return the user's run that waits for an answer, if there is one; the last, if several."""
    for run in reversed(runs):
        if run.parent_run_id is None and run.status is RunStatus.WAITING:
            return run
    return None


class _Closing(Struct, frozen=True):
    """The end of a run that no process executes."""

    status: RunStatus
    event: EventType
    end_reason: EndReason
    agent_status: AgentStatus
    reason: str
    error: ErrorPayload | None = None


LOST = _Closing(
    RunStatus.FAILED,
    EventType.RUN_FAILED,
    EndReason.FAILED,
    AgentStatus.FAILED,
    OWNER_LOST,
    ErrorPayload.of_checked(
        type="StorageError",
        code=ErrorCode.INTERNAL_ERROR,
        message="the process that ran this ended before the run did; nothing is repeated on its"
        " own, send a message to continue",
        retryable=True,
        details={"reason": OWNER_LOST},
        redacted=False,
    ),
)


CANCELLED_UNBEGUN = _Closing(
    RunStatus.CANCELLED,
    EventType.RUN_CANCELLED,
    EndReason.ABORTED_STREAMING,
    AgentStatus.CANCELLED,
    "cancelled_in_queue",
)


CANCELLED_IDLE = replace(
    CANCELLED_UNBEGUN, end_reason=EndReason.ABORTED_TOOLS, reason="cancelled_without_process"
)


def too_many_takeovers(takeovers: int, *, died: int, most: int) -> _Closing:
    """Return the end of a run whose processes died more often than it may be taken over.

    Args:
        takeovers: how often it was taken over.
        died: how many processes died during it.
        most: the setting `max_takeovers`.
    """
    error = ErrorPayload(
        type="StorageError",
        code=ErrorCode.INTERNAL_ERROR,
        message=f"{plural(died, 'process', 'processes')} died during this run, and it is"
        f" taken over at most {plural(most, 'time')} ([worker] max_takeovers); read their"
        " logs, then send a message to continue",
        details={"reason": TOO_MANY_TAKEOVERS, "takeovers": takeovers},
    )
    return replace(LOST, reason=TOO_MANY_TAKEOVERS, error=error)


LEFT = _Closing(
    RunStatus.CANCELLED,
    EventType.RUN_CANCELLED,
    EndReason.ABORTED_TOOLS,
    AgentStatus.CANCELLED,
    "parent_ended",
)


def close_run(connection: Connection, run: RunRecord, closing: _Closing) -> RunRecord:
    payload: dict[str, Any] = {
        "status": closing.status.value,
        "end_reason": closing.end_reason.value,
        "reason": closing.reason,
    }
    figures = _count_again(connection, run, has_ended=True)
    if figures:
        usage = figures["usage"].model_dump(exclude={"raw_usage"})
        payload |= {"turns": figures["turn_count"], "usage": usage}
    if closing.error is not None:
        payload["error"] = closing.error.model_dump(mode="json")
    level = EventLevel.ERROR if closing.error else EventLevel.INFO
    draft = EventDraft(closing.event, payload, level)
    insert_events(connection, run, [PendingEvent(draft)])
    now = utc_now()
    changes = {
        "status": closing.status,
        "end_reason": closing.end_reason,
        "error": closing.error,
        "metadata": {**run.metadata, "reason": closing.reason},
        "updated_at": now,
        **figures,
    }
    update(connection, RunRecord, run.run_id, changes)
    settle_lost(connection, run.run_id)
    root_id = None if run.parent_run_id is not None else run.run_id
    approvals.withdraw_all(connection, root_id, now, run_id=run.run_id)
    agent = {"status": closing.agent_status, "updated_at": now}
    update(connection, AgentRecord, run.agent_id, agent)
    return run.model_copy(update=changes)


def _count_again(
    connection: Connection, run: RunRecord, *, has_ended: bool = False
) -> dict[str, Any]:
    """Return the turns and usage of a run whose process has not stored them; {} if it has.

    An unfinished turn counts only if the run `has_ended` with it.
    """
    if run.status not in {RunStatus.PENDING, RunStatus.RUNNING}:
        return {}
    from agent_core.storage.figures import read_figures  # noqa: PLC0415 - few processes die

    figures = read_figures(connection, run.run_id)
    turns = figures.replies + (has_ended and figures.is_in_turn)
    return {"turn_count": turns, "usage": figures.usage}


def _keep(connection: Connection, run: RunRecord) -> None:
    """Make a run that was asking when its process died wait for the answer."""
    settle_holds(connection, run.run_id)
    row = connection.execute(
        """SELECT node_id FROM nodes WHERE session_id = ? AND agent_id = ?
        ORDER BY node_seq DESC LIMIT 1""",
        (run.session_id, run.agent_id),
    ).fetchone()
    changes = {
        "status": RunStatus.WAITING,
        "end_node_id": row[0] if row else None,
        "updated_at": utc_now(),
        **_count_again(connection, run),
    }
    update(connection, RunRecord, run.run_id, changes)


def _last_complete(connection: Connection, session: SessionRecord) -> str | None:
    """Return the node where the session can continue: active, or the last complete one before.

    A session whose first message was undone is at its beginning.
    """
    if session.active_node_id is None and _is_undone(connection, session.session_id):
        return None
    columns = "SELECT node_id, parent_id, metadata_json FROM nodes"
    found = connection.execute(f"{columns} WHERE node_id = ?", (session.active_node_id,)).fetchone()
    if found is None:
        found = connection.execute(
            f"{columns} WHERE session_id = ? AND agent_id = ? ORDER BY node_seq DESC LIMIT 1",
            (session.session_id, session.root_agent_id),
        ).fetchone()
    while found is not None and is_cut_off(loads(found[2])):
        found = connection.execute(f"{columns} WHERE node_id = ?", (found[1],)).fetchone()
    return None if found is None else found[0]


def _is_undone(connection: Connection, session_id: str) -> bool:
    row = connection.execute(
        "SELECT 1 FROM workspaces WHERE session_id = ? AND undone_json != '[]'", (session_id,)
    ).fetchone()
    return row is not None
