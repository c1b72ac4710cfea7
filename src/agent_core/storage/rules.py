"""What opening, losing and refusing mean, whatever the rows are kept in."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent_core.errors import ErrorCode, StorageError
from agent_core.types import (
    AgentRecord,
    Claim,
    EndReason,
    ErrorPayload,
    EventDraft,
    EventLevel,
    EventType,
    OwnerIsDead,
    PendingEvent,
    RunOpening,
    RunRecord,
    RunStatus,
    SessionRecord,
    new_id,
    utc_now,
)

OWNER_LOST = "owner_lost"


def new_session(opening: RunOpening) -> SessionRecord:
    """The session an opening creates, claimed."""
    now = utc_now()
    return SessionRecord(
        session_id=opening.session_id,
        cwd=_as_text(opening.cwd),
        owner=opening.owner,
        lease_expires_at=opening.lease_expires_at,
        metadata=opening.session_metadata,
        created_at=now,
        updated_at=now,
    )


def new_root_agent(opening: RunOpening) -> AgentRecord:
    """The root agent an opening creates."""
    now = utc_now()
    return AgentRecord(
        agent_id=opening.agent_id,
        session_id=opening.session_id,
        agent_type=opening.agent_type,
        agent_definition_id=opening.agent_definition_id,
        created_by_run_id=opening.run_id,
        created_at=now,
        updated_at=now,
    )


def new_run(opening: RunOpening, agent_id: str) -> RunRecord:
    """The run an opening adds."""
    now = utc_now()
    return RunRecord(
        run_id=opening.run_id,
        session_id=opening.session_id,
        agent_id=agent_id,
        mode=opening.mode,
        status=opening.status,
        metadata=opening.run_metadata,
        created_at=now,
        updated_at=now,
        prompt=opening.prompt,
    )


def waits_for_an_owner(run: RunRecord) -> bool:
    """Whether a run that a dead owner left open has not begun, and can be run by another."""
    is_queued = run.status is RunStatus.QUEUED and run.parent_run_id is None
    return is_queued and run.prompt is not None


def move_to(session: SessionRecord, opening: RunOpening) -> str | None:
    """The folder that the session moves to with this opening; None if it works there already.

    Raises:
        StorageError: `session_elsewhere`: it works in another folder, and was not told to move.
    """
    here = _as_text(opening.cwd)
    if session.cwd == here or os.path.realpath(session.cwd) == here:
        return None
    if opening.move_session:
        return here
    if Path(session.cwd).is_dir():
        where, cure = session.cwd, f"continue it there (--path {session.cwd}), or move it here"
    else:
        where, cure = f"{session.cwd}, a folder that does not exist any more", "move it here"
    raise StorageError(
        ErrorCode.SESSION_ELSEWHERE,
        f"session {session.session_id} works in {where}, and this is {here}; {cure} with"
        " --move-session (move_session=True)",
        details={"session_id": session.session_id, "cwd": session.cwd, "opened_from": here},
    )


def moved_event(session: SessionRecord, cwd: str) -> PendingEvent:
    """What the timeline says about a session that has moved."""
    draft = EventDraft(EventType.SESSION_MOVED, {"from": session.cwd, "to": cwd})
    return PendingEvent(new_id("evt"), utc_now(), draft)


def as_lost(run: RunRecord) -> RunRecord:
    """The run, closed because whoever ran it is gone."""
    error = ErrorPayload(
        type="StorageError",
        code=ErrorCode.INTERNAL_ERROR,
        message="the process that ran this ended before the run did; nothing is repeated on its"
        " own, send a message to go on",
        retryable=True,
        details={"reason": OWNER_LOST},
    )
    return run.model_copy(
        update={
            "status": RunStatus.FAILED,
            "end_reason": EndReason.FAILED,
            "error": error,
            "metadata": {**run.metadata, "reason": OWNER_LOST},
            "updated_at": utc_now(),
        }
    )


def lost_event(run: RunRecord) -> PendingEvent:
    """What the timeline says about a lost run."""
    payload = {
        "status": run.status.value,
        "end_reason": EndReason.FAILED.value,
        "reason": OWNER_LOST,
        "error": run.error.model_dump(mode="json") if run.error else None,
    }
    draft = EventDraft(EventType.RUN_FAILED, payload, EventLevel.ERROR)
    return PendingEvent(new_id("evt"), utc_now(), draft)


def refuse_lost(run_id: str, metadata: Mapping[str, Any]) -> None:
    """Refuse to add to a run that was closed as lost.

    Raises:
        StorageError: `session_active`.
    """
    if metadata.get("reason") == OWNER_LOST:
        raise run_taken_over(run_id)


def run_taken_over(run_id: str) -> StorageError:
    """The error for a run that another process has closed, or will run."""
    return StorageError(
        ErrorCode.SESSION_ACTIVE,
        f"run {run_id} was taken over by another process, which had not heard from this one for"
        " longer than its lease; resume the session to go on",
    )


def refuse_unless_free(session: SessionRecord, is_dead: OwnerIsDead) -> None:
    """Refuse to touch a session that a living owner has.

    Raises:
        StorageError: `session_active`.
    """
    if session.owner is None or is_dead(session.owner, session.lease_expires_at):
        return
    raise StorageError(
        ErrorCode.SESSION_ACTIVE,
        f"session {session.session_id} has a run under way (owner {session.owner}); wait until"
        " it ends, cancel it there, or use another session",
        retryable=True,
        details={"session_id": session.session_id, "owner": session.owner},
    )


def refuse_unless_owned(session: SessionRecord, claim: Claim) -> None:
    """Refuse to claim a session that another owner has.

    Raises:
        StorageError: `session_active`.
    """
    if session.owner != claim.owner:
        refuse_unless_free(session, lambda owner, lease: False)  # noqa: ARG005


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


def merged(metadata: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata with changes laid over it; None removes a key."""
    return {key: value for key, value in {**metadata, **changes}.items() if value is not None}


def _as_text(path: str) -> str:
    return path.encode("utf-8", "backslashreplace").decode()


def broken_tree(node_id: str) -> StorageError:
    """The error for a node that is there already, or whose parent is not."""
    return StorageError(
        ErrorCode.STORAGE_ERROR,
        f"node {node_id} does not fit into the session: it is stored already, or its parent is not",
    )


def unreadable(what: str) -> StorageError:
    """The error for something that would make history unreadable if it were stored."""
    return StorageError(ErrorCode.STORAGE_ERROR, f"history does not take this: {what}")
