"""Questions about calls that are kept until they are answered."""

from enum import StrEnum
from typing import Any

from agent_core.types.content import Frozen, SafeId, UtcDatetime
from agent_core.types.questions import PermissionRequest
from agent_core.types.tools import Decision


class ApprovalState(StrEnum):
    """The state of a question.

    `superseded`: the call's effect has changed, and a new question was asked. `withdrawn`: the run
    has ended or was cancelled without an answer.
    """

    OPEN = "open"
    ANSWERED = "answered"
    SUPERSEDED = "superseded"
    WITHDRAWN = "withdrawn"


class ApprovalRecord(Frozen):
    """One question about one call, and the answer to it.

    Attributes:
        request: the question as it is shown, without secrets.
        arguments: the complete arguments of the call, without secrets; None for a record of an
            older version.
        changed_arguments: the arguments with which the call was allowed instead.
        run_id: the run that makes the call.
        root_run_id: the user's run it belongs to: this run, or its parent.
        agent_path: the ids of its agents, from the root down to the one that makes the call.
        access_hash: hash of everything the call would do and touch; an answer applies only to this.
        keeps_run: the run waits for the answer even if its process dies.
        decided_by: where the answer was given: `callback`, `terminal`, `cli`, `editor`, `sdk`;
            `session`: by an answer for the session that covers it; `nobody`: there was no answer,
            and the call was denied.
        decider: the user and the process that gave it.
    """

    request_id: SafeId
    session_id: SafeId
    run_id: SafeId
    root_run_id: SafeId
    agent_id: SafeId
    agent_path: list[SafeId]
    tool_call_id: SafeId
    tool_name: str
    access_hash: str
    keeps_run: bool = False
    request: PermissionRequest
    arguments: dict[str, Any] | None = None
    changed_arguments: dict[str, Any] | None = None
    state: ApprovalState = ApprovalState.OPEN
    decision: Decision | None = None
    reason: str | None = None
    decided_by: str | None = None
    decider: str | None = None
    asked_at: UtcDatetime
    decided_at: UtcDatetime | None = None
