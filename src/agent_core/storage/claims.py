"""Ownership of sessions: opening runs in them, leases, and releasing them.

Every function with a `Liveness` is one operation of the store.
"""

import os
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from agent_core.errors import ErrorCode, StorageError
from agent_core.opening import is_folder
from agent_core.storage import approvals
from agent_core.storage.liveness import Liveness, OwnerIsDead, is_free
from agent_core.storage.lost_runs import free_session, open_runs, waiting_run
from agent_core.storage.rows import (
    FIRST,
    OPEN_RUN,
    UNUSED,
    find,
    first,
    insert,
    insert_events,
    insert_session_events,
    iso,
    node_not_found,
    run_not_found,
    session_not_found,
    start_of,
    storable,
    update,
)
from agent_core.storage.sql import Connection, Cursor
from agent_core.types import (
    LAST_TURN,
    LEASE,
    NO_USAGE,
    AgentRecord,
    AgentStatus,
    Claim,
    ClaimedRun,
    EventDraft,
    EventType,
    Heartbeat,
    NewRun,
    Node,
    PendingEvent,
    Position,
    RunRecord,
    RunStatus,
    SessionRecord,
    SessionStatus,
    utc_now,
)
from agent_core.types.lanes import SNAPSHOT

_RELEASE = "UPDATE sessions SET owner = NULL, lease_expires_at = NULL WHERE owner = ?"


def open_run(
    connection: Connection,
    liveness: Liveness,
    opening: NewRun,
    same_folder: str | None = None,
    *,
    now: datetime | None = None,
    looked: tuple[SessionRecord | None, Cursor] | None = None,
) -> ClaimedRun:
    """Create or resume the session, claim it, and add the run: see `SessionStore.open_run`.

    Args:
        connection: in a transaction.
        liveness: judges the session's owner.
        opening: the run.
        same_folder: another name of the opening's folder.
        now: the time, if it was read already.
        looked: the session and the agents that may lead the run, if they were read already.

    Raises:
        StorageError: `session_elsewhere`, with the session's folder in `details.cwd`;
            `session_active`; `validation_error`: it has a history, and another one is given.
    """
    is_dead, now = liveness.is_dead, now or liveness.now(connection)
    found, agents = looked or (find(connection, SessionRecord, opening.session_id), None)
    lost: list[RunRecord] = []
    queued: list[RunRecord] = []
    waiting: RunRecord | None = None
    if found is None:
        session = _add_session(connection, opening, now)
        agent = _add_root_agent(connection, opening)
        if opening.history:
            from agent_core.storage.given import begin_with  # noqa: PLC0415 - few sessions begin so

            session = begin_with(connection, session, opening.history)
    elif opening.history:
        from agent_core.storage.given import session_exists  # noqa: PLC0415

        raise session_exists(opening.session_id)
    else:
        session, cwd = found, _moved_to(found, opening, same_folder)
        if opening.dispatch is not None:
            _require_tenant(session, opening.dispatch.tenant)
            if cwd is not None:
                _refuse_while_active(connection, session.session_id, is_dead, now)
        elif session.owner != opening.owner:
            refuse_unless_free(session, is_dead, now)
            freed = free_session(connection, session)
            session, lost = freed.session, freed.lost
            queued, waiting = freed.queued, freed.waiting
        agents = agents or select_root_agent(connection, opening)
        session, agent = _resume_session(connection, session, opening, cwd, now, agents)
    run = run_of(opening, session, agent.agent_id, now)
    insert(connection, run)
    start = FIRST if found is None and not opening.history else None
    return ClaimedRun(
        session=session,
        agent=agent,
        run=run,
        resumed=found is not None,
        position=insert_events(connection, run, opening.events, start),
        lost=lost,
        queued=queued,
        waiting=waiting,
        is_answered=waiting is not None and approvals.is_answered(connection, waiting.run_id),
    )


def resume_run(
    connection: Connection, liveness: Liveness, run_id: str, claim: Claim, *, cwd: str
) -> ClaimedRun:
    """Claim the session of a user's run that waits for an answer: see `SessionStore.resume_run`."""
    now = liveness.now(connection)
    run = find(connection, RunRecord, run_id)
    if run is None or run.parent_run_id is not None:
        raise run_not_found(run_id)
    session = find_session(connection, run.session_id)
    if storable(session.cwd) != cwd:
        raise StorageError(
            ErrorCode.SESSION_ELSEWHERE,
            f"session {session.session_id} works in {session.cwd}; it continues there",
            details={"session_id": session.session_id, "cwd": session.cwd},
        )
    lost: list[RunRecord] = []
    queued: list[RunRecord] = []
    if session.owner != claim.owner:
        refuse_unless_free(session, liveness.is_dead, now)
        freed = free_session(connection, session)
        lost, queued = freed.lost, freed.queued
        if freed.waiting is not None and freed.waiting.run_id == run_id:
            run = freed.waiting
    if run.status is not RunStatus.WAITING:
        raise session_active(session)
    claim_session(connection, session.session_id, claim.owner, now + claim.lease)
    return ClaimedRun(
        session=find_session(connection, session.session_id),
        agent=find_agent(connection, run.agent_id),
        run=run,
        resumed=True,
        position=start_of(connection, run.session_id, run_id),
        lost=lost,
        queued=queued,
    )


def add_run(
    connection: Connection,
    liveness: Liveness,
    run: RunRecord,
    events: Sequence[PendingEvent],
    claim: Claim | None,
) -> tuple[Position, int]:
    """Add a child's run and its first events: see `SessionStore.add_run`.

    Returns:
        The position of the events, and the session's epoch.
    """
    now = liveness.now(connection)
    session = find_session(connection, run.session_id)
    if claim is not None:
        if session.owner not in {None, claim.owner}:
            raise session_active(session)
        claim_session(connection, run.session_id, claim.owner, now + claim.lease)
    insert(connection, run)
    position = insert_events(connection, run, events)
    return position, find_session(connection, run.session_id).epoch


def heartbeat(
    connection: Connection,
    liveness: Liveness,
    owner: str,
    lease: timedelta = LEASE,
    *,
    free: str = "",
) -> Heartbeat:
    """Extend the lease of every session this owner holds, from now by the store's clock.

    It waits only a small part of the lease for other transactions: the lease of a session that is
    locked is extended as soon as the other transaction has ended.

    The statements are sent together: the sessions are locked until they have ended. `free` is a
    further condition for the sessions.
    """
    until = iso(liveness.now(connection) + lease)
    connection.execute(
        f"UPDATE sessions SET lease_expires_at = :until WHERE owner = :owner {free}",  # noqa: S608
        {"until": until, "owner": owner},
    )
    found = connection.execute(
        "SELECT session_id, epoch, lease_expires_at < ? FROM sessions WHERE owner = ?",
        (until, owner),
    )
    mine = "session_id IN (SELECT session_id FROM sessions WHERE owner = ?)"
    rows = connection.execute(
        f"""SELECT run_id, 'cancelled' FROM runs
        WHERE {OPEN_RUN} AND cancel_requested_at IS NOT NULL AND {mine}
        UNION SELECT run_id, 'sent to' FROM waiting_messages WHERE NOT is_taken AND {mine}
        UNION SELECT run_id, 'last turn' FROM runs
        WHERE {OPEN_RUN} AND metadata_json LIKE '%"{LAST_TURN}"%' AND {mine}""",  # noqa: S608
        (owner, owner, owner),
    )
    sessions, requests = found.fetchall(), rows.fetchall()
    return Heartbeat(
        cancelled=[run_id for run_id, what in requests if what == "cancelled"],
        sent_to=[run_id for run_id, what in requests if what == "sent to"],
        in_last_turn=[run_id for run_id, what in requests if what == "last turn"],
        epochs={session_id: epoch for session_id, epoch, _ in sessions},
        late={session_id for session_id, _, is_late in sessions if is_late},
    )


def request_cancel(
    connection: Connection, liveness: Liveness, run_id: str, *, after_turn: bool = False
) -> bool:
    """Ask the owner of an open run, in any process, to cancel it at its next heartbeat.

    With `after_turn`, it is cancelled when the turn that is under way then has ended.

    Returns:
        Whether the run is open; a run that has ended is not changed.

    Raises:
        StorageError: `run_not_found`.
    """
    now = liveness.now(connection)
    run = find(connection, RunRecord, run_id)
    if run is None:
        raise run_not_found(run_id)
    if run.status.is_terminal:
        return False
    if after_turn:
        update(connection, RunRecord, run_id, {"metadata": {**run.metadata, LAST_TURN: True}})
    elif run.cancel_requested_at is None:
        update(connection, RunRecord, run_id, {"cancel_requested_at": now})
    return True


def release(connection: Connection, session_id: str, owner: str) -> None:
    """Release the session, if this owner holds it; runs still open are lost."""
    connection.execute(f"{_RELEASE} AND session_id = ?", (owner, session_id))


def release_all(connection: Connection, owner: str) -> None:
    """Release every session this owner holds; runs still open are lost."""
    connection.execute(_RELEASE, (owner,))


def find_session(connection: Connection, session_id: str) -> SessionRecord:
    """Return the session.

    Raises:
        StorageError: `session_not_found`.
    """
    session = find(connection, SessionRecord, session_id)
    if session is None:
        raise session_not_found(session_id)
    return session


def find_agent(connection: Connection, agent_id: str) -> AgentRecord:
    """Return the agent of a run, which was added with it.

    Raises:
        StorageError: there is none, because the file was edited.
    """
    agent = find(connection, AgentRecord, agent_id)
    if agent is None:
        raise StorageError(ErrorCode.STORAGE_ERROR, f"there is no agent {agent_id}")
    return agent


def move_active_node(
    connection: Connection, liveness: Liveness, session: SessionRecord, node_id: str | None
) -> SessionRecord:
    """Continue the session from this node; None is the beginning.

    Raises:
        StorageError: `node_not_found`; `session_active`.
    """
    is_dead, now = liveness.is_dead, liveness.now(connection)
    _refuse_while_active(connection, session.session_id, is_dead, now, only_root_runs=True)
    node = find(connection, Node, node_id)
    if node_id is not None and (node is None or node.session_id != session.session_id):
        raise node_not_found(node_id, session.session_id)
    changes = {"active_node_id": node_id, "updated_at": now}
    update(connection, SessionRecord, session.session_id, changes)
    return session.model_copy(update=changes)


def delete_session(
    connection: Connection,
    liveness: Liveness,
    session_id: str,
    unused_since: datetime | None = None,
) -> None:
    """Remove the session; its rows in every other table are removed with it.

    With `unused_since`, a session that was used since then, or has an open run, is refused.
    """
    _refuse_while_active(connection, session_id, liveness.is_dead, liveness.now(connection))
    if unused_since is not None:
        session = find_session(connection, session_id)
        is_unused = connection.execute(
            f"SELECT 1 FROM sessions WHERE session_id = :session AND {UNUSED}",  # noqa: S608
            {"session": session_id, "before": iso(unused_since), "now": iso(utc_now())},
        ).fetchone()
        if is_unused is None or open_runs(connection, session_id):
            raise session_active(session)
    connection.execute("DELETE FROM sessions WHERE session_id = ?", (session_id,))


def claim_session(connection: Connection, session_id: str, owner: str, lease_end: datetime) -> None:
    """Make this owner the session's owner; a claim that is not a renewal begins a new epoch."""
    connection.execute(
        """UPDATE sessions SET owner = :owner, lease_expires_at = :end,
        epoch = epoch + CASE WHEN owner IS NOT :owner THEN 1 ELSE 0 END
        WHERE session_id = :session""",
        {"owner": owner, "end": iso(lease_end), "session": session_id},
    )


def _add_session(connection: Connection, opening: NewRun, now: datetime) -> SessionRecord:
    dispatch = opening.dispatch
    session = SessionRecord.of_checked(
        session_id=opening.session_id,
        cwd=storable(opening.cwd),
        root_agent_id=opening.agent_id,
        active_node_id=None,
        parent_session_id=None,
        status=SessionStatus.ACTIVE,
        metadata=opening.session_metadata,
        owner=opening.owner if dispatch is None else None,
        lease_expires_at=now + opening.lease if dispatch is None else None,
        epoch=1,
        title=opening.title,
        tenant=None if dispatch is None else dispatch.tenant,
        place=None if dispatch is None else dispatch.place or dispatch.home,
        created_at=now,
        updated_at=now,
    )
    insert(connection, session)
    return session


def _resume_session(
    connection: Connection,
    session: SessionRecord,
    opening: NewRun,
    cwd: str | None,
    now: datetime,
    agents: Cursor,
) -> tuple[SessionRecord, AgentRecord]:
    """Claim an existing session, or only note its place; `cwd` is the folder it moves to."""
    if cwd is not None:
        draft = EventDraft(EventType.SESSION_MOVED, {"from": session.cwd, "to": cwd})
        moved = PendingEvent(draft)
        insert_session_events(connection, session.session_id, [moved])
    agent = first(AgentRecord, agents) or _add_root_agent(connection, opening)
    changes: dict[str, Any] = {
        "root_agent_id": session.root_agent_id or agent.agent_id,
        "cwd": cwd or session.cwd,
        "updated_at": now,
    }
    if (dispatch := opening.dispatch) is None:
        changes |= {
            "owner": opening.owner,
            "lease_expires_at": now + opening.lease,
            "epoch": session.epoch + (session.owner != opening.owner),
        }
    elif session.place is None or cwd is not None:
        changes["place"] = dispatch.place or dispatch.home
    update(connection, SessionRecord, session.session_id, changes)
    return session.model_copy(update=changes), agent


def run_of(opening: NewRun, session: SessionRecord, agent_id: str, now: datetime) -> RunRecord:
    """Return the record of a run that is opened."""
    dispatch = opening.dispatch
    return RunRecord.of_checked(
        run_id=opening.run_id,
        session_id=opening.session_id,
        agent_id=agent_id,
        parent_run_id=None,
        mode=opening.mode,
        status=opening.status,
        start_node_id=None,
        end_node_id=None,
        end_reason=None,
        turn_count=0,
        usage=NO_USAGE,
        error=None,
        metadata=opening.run_metadata,
        created_at=now,
        updated_at=now,
        prompt=opening.prompt,
        cancel_requested_at=None,
        options=opening.options,
        lane=None if dispatch is None else dispatch.lane(session, opening.run_id),
        takeovers=0,
    )


def select_root_agent(connection: Connection, opening: NewRun) -> Cursor:
    """Query the agent that leads such runs of the session."""
    return connection.execute(
        """SELECT * FROM agents
        WHERE session_id = ? AND agent_type = ? AND parent_agent_id IS NULL""",
        (opening.session_id, opening.agent_type.value),
    )


def _add_root_agent(connection: Connection, opening: NewRun) -> AgentRecord:
    now = utc_now()
    agent = AgentRecord.of_checked(
        agent_id=opening.agent_id,
        session_id=opening.session_id,
        parent_agent_id=None,
        agent_type=opening.agent_type,
        agent_definition_id=opening.agent_definition_id,
        created_by_run_id=opening.run_id,
        fork_from_node_id=None,
        status=AgentStatus.IDLE,
        result=None,
        metadata={},
        created_at=now,
        updated_at=now,
    )
    insert(connection, agent)
    return agent


def _moved_to(session: SessionRecord, opening: NewRun, same_folder: str | None) -> str | None:
    """Return the folder that the session moves to with this opening; None if it does not move.

    Raises:
        StorageError: `session_elsewhere`: it works elsewhere, and the opening does not move it.
    """
    here = storable(opening.cwd)
    if not opening.move_session and _is_dispatched(session, opening):
        return None
    if session.cwd in (here, same_folder):
        return None
    if opening.move_session:
        return here
    raise StorageError(
        ErrorCode.SESSION_ELSEWHERE,
        f"session {session.session_id} works in {session.cwd}, and this is {here}",
        details={"session_id": session.session_id, "cwd": session.cwd, "opened_from": here},
    )


def _is_dispatched(session: SessionRecord, opening: NewRun) -> bool:
    """Return whether the run is sent to the place of the session's files, wherever it is opened.

    Raises:
        StorageError: `session_elsewhere`: the requested place is not where the files are.
    """
    place, dispatch = session.place, opening.dispatch
    if place is None or opening.prompt is None or dispatch is None:
        return place == SNAPSHOT  # a summary needs no files
    asked = dispatch.home
    if dispatch.process is None:
        asked = dispatch.place or (SNAPSHOT if place == SNAPSHOT else asked)
    if asked == place:
        return place != dispatch.home
    files = "in its snapshots" if place == SNAPSHOT else f"on {place.replace(':', ' ', 1)}"
    raise StorageError(
        ErrorCode.SESSION_ELSEWHERE,
        f"session {session.session_id} has its files {files}, not at {asked}; leave the run to the"
        f" workers of that place with --detach --place {place}"
        f' (in code: place="{place}" without here=True), or begin another session',
        details={
            "session_id": session.session_id,
            "place": place,
            "cwd": session.cwd,
            "opened_from": storable(opening.cwd),
        },
    )


def require_same_folder(refused: StorageError) -> str:
    """Return the folder of a session refused as elsewhere, if it is another name of this folder.

    Reads the disk, which may be slow: not for the event loop.

    Raises:
        StorageError: `session_elsewhere`: it is another folder; says what to do.
    """
    if "place" in refused.details:
        raise refused
    cwd = str(refused.details["cwd"])
    if os.path.realpath(cwd) == refused.details["opened_from"]:
        return cwd
    here = refused.details["opened_from"]
    if is_folder(cwd):
        fault, cure = "works in another folder", "name it with --path, or move the session here"
    else:
        fault, cure = "works in a folder that no longer exists", "move it here"
    message = (
        f"session {refused.details['session_id']} {fault}: {cure} with --move-session"
        f"\nit works in {cwd}, and this is {here} (in code: move_session=True)"
    )
    raise StorageError(refused.code, message, details=refused.details)


def _require_tenant(session: SessionRecord, tenant: str | None) -> None:
    if tenant is not None and tenant != session.tenant:
        whose = "no tenant's" if session.tenant is None else f"tenant {session.tenant}'s"
        message = f"session {session.session_id} is {whose}, not {tenant}'s; use another id"
        details = {"session_id": session.session_id, "option": "tenant"}
        raise StorageError(ErrorCode.VALIDATION_ERROR, message, details=details)


def _refuse_while_active(
    connection: Connection,
    session_id: str,
    is_dead: OwnerIsDead,
    now: datetime,
    *,
    only_root_runs: bool = False,
) -> None:
    """Refuse while a run of the session is open and its owner lives.

    Runs started by another run end before it, except for summaries in the background:
    `only_root_runs` ignores those.
    """
    session = find_session(connection, session_id)
    row = connection.execute(
        f"""SELECT 1 FROM runs WHERE session_id = ? AND {OPEN_RUN}
        AND (NOT ? OR parent_run_id IS NULL) LIMIT 1""",  # noqa: S608 - a constant
        (session_id, only_root_runs),
    ).fetchone()
    if row is None:
        return
    refuse_unless_free(session, is_dead, now)
    runs = open_runs(connection, session_id)
    if any(run.lane and run.status is not RunStatus.WAITING for run in runs):
        raise session_active(session)
    if only_root_runs and (waiting := waiting_run(runs)) is not None:
        raise StorageError(
            ErrorCode.SESSION_ACTIVE,
            f"run {waiting.run_id} of session {session_id} waits for an answer; answer its"
            " question (soong-agent approvals list), cancel it, or send a message, which ends it"
            " (in code: runtime.approvals() lists the questions, runtime.answer(...) answers one)",
            details={"session_id": session_id, "run_id": waiting.run_id},
        )


def refuse_unless_free(session: SessionRecord, is_dead: OwnerIsDead, now: datetime) -> None:
    """Refuse to touch a session that a living owner has.

    Raises:
        StorageError: `session_active`.
    """
    if not is_free(session, is_dead, now):
        raise session_active(session)


def session_active(session: SessionRecord) -> StorageError:
    run = "that is active" if session.owner else "that waits for its turn"
    return StorageError(
        ErrorCode.SESSION_ACTIVE,
        f"session {session.session_id} has a run {run}; wait until it ends, cancel it there,"
        " or use another session",
        retryable=True,
        details={"session_id": session.session_id, "owner": session.owner},
    )
