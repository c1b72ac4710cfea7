"""Runs queued for any free process, and their continuation after their process has died.

Every function with a `Liveness` is one operation of the store.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from agent_core.storage import approvals
from agent_core.storage.budgets import settle_time
from agent_core.storage.claims import (
    claim_session,
    find_agent,
    find_session,
    open_run,
    refuse_unless_free,
    release,
    select_root_agent,
    session_active,
)
from agent_core.storage.liveness import Liveness, OwnerIsDead, is_free
from agent_core.storage.lost_runs import (
    CANCELLED_IDLE,
    CANCELLED_UNBEGUN,
    LEFT,
    close_run,
    free_session,
    open_runs,
    select_open_runs,
    too_many_takeovers,
)
from agent_core.storage.rows import OPEN_RUN, find, first, insert_events, read_all, update
from agent_core.storage.sql import Connection
from agent_core.types import (
    AgentRecord,
    Claim,
    ClaimedRun,
    EventDraft,
    EventType,
    NewRun,
    PendingEvent,
    RunRecord,
    RunStatus,
    SessionRecord,
)

_SESSION_ID = "(SELECT session_id FROM runs WHERE run_id = ?)"
_SESSION = f"SELECT * FROM sessions WHERE session_id = {_SESSION_ID}"  # noqa: S608 - a constant
_AGENT = "SELECT * FROM agents WHERE agent_id = (SELECT agent_id FROM runs WHERE run_id = ?)"
_OPEN_RUNS = f"""SELECT * FROM runs WHERE session_id = {_SESSION_ID} AND {OPEN_RUN}
    ORDER BY rowid"""  # noqa: S608 - a constant


def queue_run(
    connection: Connection,
    liveness: Liveness,
    opening: NewRun,
    same_folder: str | None = None,
) -> ClaimedRun:
    """Add a queued run; the session keeps its owner: see `SessionStore.queue_run`.

    All reads are sent together, before any result is waited for.
    """
    session_id = opening.session_id
    sessions = connection.execute("SELECT * FROM sessions WHERE session_id = ?", (session_id,))
    agents = select_root_agent(connection, opening)
    open_ones = select_open_runs(connection, session_id)
    now, found = liveness.now(connection), first(SessionRecord, sessions)
    in_front = _in_front(read_all(RunRecord, open_ones), found, liveness.is_dead, now)
    facts: dict[str, Any] = {"runs_in_front": in_front}
    dispatch = opening.dispatch
    if dispatch is not None and dispatch.process is None:
        facts["queue"] = dispatch.queue
    queued = PendingEvent(EventDraft(EventType.RUN_QUEUED, facts))
    opening = replace(opening, status=RunStatus.QUEUED, events=[queued, *opening.events])
    looked = (found, agents)
    return open_run(connection, liveness, opening, same_folder, now=now, looked=looked)


def _in_front(
    runs: Sequence[RunRecord], session: SessionRecord | None, is_dead: OwnerIsDead, now: datetime
) -> int:
    """Return the number of a session's open runs that go before a new one."""
    runs = [run for run in runs if run.parent_run_id is None]
    mine = [run for run in runs if run.has_begun and not run.is_for_workers]
    if mine and session is not None and is_free(session, is_dead, now):
        runs = [run for run in runs if run not in mine]  # their process has died
    return sum(run.status is not RunStatus.WAITING for run in runs)


def take_run(
    connection: Connection,
    liveness: Liveness,
    run_id: str,
    claim: Claim,
    *,
    max_takeovers: int | None,
    is_next: bool = False,
) -> ClaimedRun | None:
    """Claim the session of a run that is next: see `SessionStore.take_run`.

    All reads are sent together, before any result is waited for.
    """
    sessions = connection.execute(_SESSION, (run_id,))
    agents = connection.execute(_AGENT, (run_id,))
    open_ones = connection.execute(_OPEN_RUNS, (run_id,))
    now, runs = liveness.now(connection), read_all(RunRecord, open_ones)
    run = next((one for one in runs if one.run_id == run_id), None)
    if run is None or run.parent_run_id is not None:
        return None
    is_waiting = run.status is RunStatus.WAITING
    is_answered = is_waiting and approvals.is_answered(connection, run_id)
    if is_waiting and not (is_answered or run.cancel_requested_at):
        return None
    session = first(SessionRecord, sessions) or find_session(connection, run.session_id)
    agent = first(AgentRecord, agents) or find_agent(connection, run.agent_id)
    if session.owner != claim.owner:
        refuse_unless_free(session, liveness.is_dead if is_next else liveness.is_surely_dead, now)
    elif run.has_begun:
        raise session_active(session)
    others = [other for other in runs if other is not run]
    if any(other.is_for_workers and other.has_begun for other in others):
        raise session_active(session)
    lost: list[RunRecord] = []
    was_owned = session.owner not in {None, claim.owner}
    if was_owned or run.has_begun:
        freed = free_session(connection, session, taken=run)
        session, lost = freed.session, freed.lost
    if not run.has_begun:  # a run counts as begun even if its process dies before writing
        update(connection, RunRecord, run_id, {"status": RunStatus.PENDING})
    elif not _continue(connection, run, was_owned=was_owned, max_takeovers=max_takeovers):
        return None
    lease_end = now + claim.lease
    claim_session(connection, session.session_id, claim.owner, lease_end)
    claimed = {
        "owner": claim.owner,
        "lease_expires_at": lease_end,
        "epoch": session.epoch + (session.owner != claim.owner),
    }
    waiting = [other for other in others if other.status is RunStatus.WAITING]
    return ClaimedRun(
        session=session.model_copy(update=claimed),
        agent=agent,
        run=run,
        resumed=True,
        lost=lost,
        waiting=next((one for one in waiting if one.parent_run_id is None), None),
        is_answered=is_answered,
    )


def _continue(
    connection: Connection, run: RunRecord, *, was_owned: bool, max_takeovers: int | None
) -> bool:
    """Record that a run continues; False if it was closed after too many takeovers."""
    takeovers = run.takeovers + was_owned
    if max_takeovers is not None and takeovers > max_takeovers:
        end = too_many_takeovers(run.takeovers, died=takeovers, most=max_takeovers)
        close_run(connection, run, end)
        return False
    settle_time(connection, run.run_id, is_continued=True)
    payload = {"takeovers": takeovers, "reason": "owner_lost" if was_owned else "handed_over"}
    event = EventDraft(EventType.RUN_TAKEN_OVER, payload)
    insert_events(connection, run, [PendingEvent(event)])
    update(connection, RunRecord, run.run_id, {"takeovers": takeovers})
    return True


def cancel_idle(connection: Connection, liveness: Liveness, run_id: str) -> bool:
    """Cancel a user's run that no process executes: see `SessionStore.cancel_idle`.

    A process that takes the run at this moment locks its session, too: it has either taken the
    run, or finds it ended.
    """
    run = find(connection, RunRecord, run_id)
    if run is None or run.status.is_terminal or run.parent_run_id is not None:
        return False
    now, session = liveness.now(connection), find_session(connection, run.session_id)
    if run.lane is None and run.status is RunStatus.QUEUED:
        return False  # its process has it, or the session's next owner gets it
    if run.status is RunStatus.QUEUED:
        return drop_queued(connection, run_id, None)
    if not is_free(session, liveness.is_surely_dead, now):
        return False
    _end_idle(connection, session, run)
    return True


def _end_idle(connection: Connection, session: SessionRecord, run: RunRecord) -> None:
    """Cancel a run whose session no process has, with its children."""
    free_session(connection, session, taken=run)
    ended = {run.run_id}
    children: list[RunRecord] = []
    for other in open_runs(connection, session.session_id):  # in the order of their starts
        if other.parent_run_id in ended:
            ended.add(other.run_id)
            children.append(other)
    for child in reversed(children):
        close_run(connection, child, LEFT)
    close_run(connection, run, CANCELLED_IDLE)


def hand_over(connection: Connection, run_id: str, owner: str) -> bool:
    """Release the session of a run that this owner has stopped working on, for the next owner.

    A run that is to be cancelled ends here: there may be no next owner.

    Returns:
        False if the session is not this owner's, or the run has ended.
    """
    run = find(connection, RunRecord, run_id)
    if run is None or run.status.is_terminal or run.parent_run_id is not None:
        return False
    session = find_session(connection, run.session_id)
    if session.owner != owner:
        return False
    if run.cancel_requested_at is not None:
        _end_idle(connection, session, run)
        return False
    free_session(connection, session, taken=run)
    return True


def drop_queued(connection: Connection, run_id: str, taken_by: str | None) -> bool:
    """Cancel a run that is still queued; return whether it was.

    With `taken_by`, also cancel a run this owner claimed but has not started, and release its
    session.
    """
    run = find(connection, RunRecord, run_id)
    if run is None or run.lane is None:
        return False
    is_taken = taken_by is not None and run.status is RunStatus.PENDING
    if is_taken and find_session(connection, run.session_id).owner != taken_by:
        return False
    if not is_taken and run.status is not RunStatus.QUEUED:
        return False
    dequeued = PendingEvent(EventDraft(EventType.RUN_DEQUEUED, {}))
    insert_events(connection, run, [dequeued])
    close_run(connection, run, CANCELLED_UNBEGUN)
    if is_taken and taken_by is not None:
        release(connection, run.session_id, taken_by)
    return True
