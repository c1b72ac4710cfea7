"""Runs that wait for whichever process is free, and how one goes on when its process has died.

Every function is one job of the writing connection. `now` is the store's own clock.
"""

from datetime import datetime
from typing import Any

from msgspec.structs import replace

from agent_core.storage import approvals
from agent_core.storage.budgets import settle_time
from agent_core.storage.claims import (
    CANCELLED_UNBEGUN,
    claim_session,
    close_lost,
    close_run,
    find_agent,
    find_session,
    is_free,
    open_run,
    open_runs,
    refuse_unless_free,
    session_active,
    too_many_takeovers,
)
from agent_core.storage.rows import find, insert_events, start_of, update
from agent_core.storage.sql import Connection
from agent_core.types import (
    Claim,
    EventDraft,
    EventType,
    OpenedRun,
    OwnerIsDead,
    PendingEvent,
    RunOpening,
    RunRecord,
    RunStatus,
    new_id,
    utc_now,
)


def queue_run(
    connection: Connection,
    opening: RunOpening,
    is_dead: OwnerIsDead,
    now: datetime,
    same_folder: str | None = None,
) -> OpenedRun:
    """Add a run that waits for its turn; the session stays whose it is.

    Raises:
        StorageError: `session_elsewhere`; `session_active`, a session under way is to be moved;
            `validation_error`, it is another tenant's.
    """
    in_front = _in_front(connection, opening.session_id, is_dead, now)
    facts: dict[str, Any] = {"runs_in_front": in_front}
    dispatch = opening.dispatch
    if dispatch is not None and dispatch.process is None:
        facts["queue"] = dispatch.queue
    queued = PendingEvent(new_id("evt"), utc_now(), EventDraft(EventType.RUN_QUEUED, facts))
    opening = replace(opening, status=RunStatus.QUEUED, events=[queued, *opening.events])
    return open_run(connection, opening, is_dead, now, same_folder)


def _in_front(connection: Connection, session_id: str, is_dead: OwnerIsDead, now: datetime) -> int:
    """How many runs of a session go before a new one."""
    runs = [run for run in open_runs(connection, session_id) if run.parent_run_id is None]
    mine = [run for run in runs if run.has_begun and not run.is_for_workers]
    if mine and is_free(find_session(connection, session_id), is_dead, now):
        runs = [run for run in runs if run not in mine]  # their process has died
    return sum(run.status is not RunStatus.WAITING for run in runs)


def take_run(
    connection: Connection,
    run_id: str,
    claim: Claim,
    is_dead: OwnerIsDead,
    now: datetime,
    *,
    max_takeovers: int | None,
) -> OpenedRun | None:
    """Claim the session of a run whose turn it is; what a dead owner had begun goes on.

    Returns:
        None: there is nothing to do: it has ended, waits for an answer that there is not, or has
        been taken over too often, and is closed for that.

    Raises:
        StorageError: `session_active`: a living owner has the session, or another run goes first.
    """
    run = find(connection, RunRecord, run_id)
    if run is None or run.parent_run_id is not None or run.status.is_terminal:
        return None
    session = find_session(connection, run.session_id)
    is_answered = approvals.is_answered(connection, run_id)
    if run.status is RunStatus.WAITING and not (is_answered or run.cancel_requested_at):
        return None
    if session.owner != claim.owner:
        refuse_unless_free(session, is_dead, now)
    elif run.has_begun:
        raise session_active(session)
    others = [other for other in open_runs(connection, session.session_id) if other != run]
    if any(other.is_for_workers and other.has_begun for other in others):
        raise session_active(session)
    lost: list[RunRecord] = []
    was_owned = session.owner not in {None, claim.owner}
    if was_owned or run.has_begun:
        lost = close_lost(connection, session, taken=run)
    if not run.has_begun:  # a process that dies before it writes anything has begun all the same
        update(connection, RunRecord, run_id, {"status": RunStatus.PENDING})
    elif not _go_on(connection, run, was_owned=was_owned, max_takeovers=max_takeovers):
        return None
    claim_session(connection, session.session_id, claim.owner, now + claim.lease)
    waiting = [other for other in others if other.status is RunStatus.WAITING]
    return OpenedRun(
        session=find_session(connection, session.session_id),
        agent=find_agent(connection, run.agent_id),
        run=run,
        resumed=True,
        position=start_of(connection, run.session_id, run_id),
        lost=lost,
        waiting=next((one for one in waiting if one.parent_run_id is None), None),
        is_answered=is_answered,
    )


def _go_on(
    connection: Connection, run: RunRecord, *, was_owned: bool, max_takeovers: int | None
) -> bool:
    """Record that a run goes on; False: too many have died over it, and it is closed for that."""
    takeovers = run.takeovers + was_owned
    if max_takeovers is not None and takeovers > max_takeovers:
        close_run(connection, run, too_many_takeovers(run.takeovers))
        return False
    settle_time(connection, run.run_id, goes_on=True)
    payload = {"takeovers": takeovers, "reason": "owner_lost" if was_owned else "handed_over"}
    event = EventDraft(EventType.RUN_TAKEN_OVER, payload)
    insert_events(connection, run, [PendingEvent(new_id("evt"), utc_now(), event)])
    update(connection, RunRecord, run.run_id, {"takeovers": takeovers})
    return True


def hand_over(connection: Connection, run_id: str, owner: str) -> bool:
    """Give a run that is not carried out any more to whichever process takes it next.

    Returns:
        False: this owner does not have its session, or it has ended.
    """
    run = find(connection, RunRecord, run_id)
    if run is None or run.status.is_terminal or run.parent_run_id is not None:
        return False
    session = find_session(connection, run.session_id)
    if session.owner != owner:
        return False
    close_lost(connection, session, taken=run)
    return True


def drop_queued(connection: Connection, run_id: str) -> bool:
    """Cancel a run that has not begun, and is not about to; returns whether it was so."""
    run = find(connection, RunRecord, run_id)
    if run is None or run.status is not RunStatus.QUEUED or run.lane is None:
        return False
    dequeued = PendingEvent(new_id("evt"), utc_now(), EventDraft(EventType.RUN_DEQUEUED, {}))
    insert_events(connection, run, [dequeued])
    close_run(connection, run, CANCELLED_UNBEGUN)
    return True


def held_sessions(connection: Connection, owner: str) -> dict[str, int]:
    """The sessions this owner has, with their epochs."""
    rows = connection.execute("SELECT session_id, epoch FROM sessions WHERE owner = ?", (owner,))
    return dict(rows.fetchall())
