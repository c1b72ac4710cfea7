"""Questions about calls: each asked once, and answered once."""

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from agent_core.storage.liveness import Liveness
from agent_core.storage.rows import (
    OPEN_RUN,
    clamp,
    dumps,
    find,
    insert,
    iso,
    loads,
    read,
    read_each,
    session_not_found,
    update,
)
from agent_core.storage.sql import Connection
from agent_core.types import Decision, SessionRecord

if TYPE_CHECKING:
    from agent_core.types import ApprovalRecord

_OF_CALL = "root_run_id = ? AND run_id = ? AND tool_call_id = ?"

_UNUSED = """state IN ('open', 'answered') AND NOT EXISTS
    (SELECT 1 FROM events WHERE events.session_id = approvals.session_id
     AND events.tool_call_id = approvals.tool_call_id AND events.run_id = approvals.run_id
     AND event_type IN ('tool_started', 'tool_completed', 'tool_failed', 'tool_denied'))"""
"""Condition that a question's call has not begun and has no result."""


def ask(connection: Connection, asked: "ApprovalRecord") -> "ApprovalRecord":
    """Store a question, and return it.

    An existing question about the same action of the call is returned instead, with its answer if
    it has one; a run that waits for this question now keeps waiting for that one. A question about
    the call with a different action is superseded.

    Raises:
        StorageError: `session_not_found`.
    """
    from agent_core.types import ApprovalRecord, ApprovalState  # noqa: PLC0415 - few runs need it

    before = of_call(connection, asked.root_run_id, asked.run_id, asked.tool_call_id)
    if before is not None and before.access_hash == asked.access_hash:
        if asked.keeps_run > before.keeps_run:  # it was asked ahead of its turn
            update(connection, ApprovalRecord, before.request_id, {"keeps_run": True})
        return before
    if before is not None:
        changes = {"state": ApprovalState.SUPERSEDED}
        update(connection, ApprovalRecord, before.request_id, changes)
    if find(connection, SessionRecord, asked.session_id) is None:
        raise session_not_found(asked.session_id)
    insert(connection, asked)
    return asked


def find_approval(connection: Connection, request_id: str) -> "ApprovalRecord | None":
    """Return the question, or None."""
    from agent_core.types import ApprovalRecord  # noqa: PLC0415 - few runs need it

    return find(connection, ApprovalRecord, request_id)


def of_call(
    connection: Connection, root_run_id: str, run_id: str, tool_call_id: str
) -> "ApprovalRecord | None":
    """Return the open or answered question about a call, if there is one."""
    from agent_core.types import ApprovalRecord  # noqa: PLC0415 - few runs need it

    row = connection.execute(
        f"""SELECT * FROM approvals WHERE {_OF_CALL} AND state IN ('open', 'answered')
        ORDER BY rowid DESC LIMIT 1""",  # noqa: S608 - a constant
        (root_run_id, run_id, tool_call_id),
    ).fetchone()
    return read(ApprovalRecord, row) if row else None


def answer(
    connection: Connection,
    liveness: Liveness,
    request_id: str,
    decision: Decision,
    *,
    reason: str | None,
    by: str,
    decider: str,
    arguments: Mapping[str, Any] | None = None,
) -> "tuple[ApprovalRecord | None, bool]":
    """Answer an open question; the first answer counts.

    `arguments` replace the arguments of the allowed call.

    Returns:
        The question as it is now (None if there is none), and whether this was its answer.
    """
    from agent_core.types import ApprovalRecord  # noqa: PLC0415 - few runs need it

    now = liveness.now(connection)
    changed = None if arguments is None else dumps(dict(arguments))
    was_open = connection.execute(
        f"""UPDATE approvals SET state = 'answered', decision = ?, reason = ?, decided_by = ?,
        decider = ?, decided_at = ?, changed_arguments_json = ?
        WHERE request_id = ? AND state = 'open' AND decided_at IS NULL
        AND EXISTS (SELECT 1 FROM runs WHERE run_id = approvals.root_run_id AND {OPEN_RUN})""",  # noqa: S608
        (decision.value, reason, by, decider, iso(now), changed, request_id),
    ).rowcount
    return find(connection, ApprovalRecord, request_id), was_open == 1


def withdraw(connection: Connection, liveness: Liveness, request_id: str) -> None:
    """Withdraw an open question; does nothing if it was answered."""
    now = liveness.now(connection)
    connection.execute(
        """UPDATE approvals SET state = 'withdrawn', decided_at = ?
        WHERE request_id = ? AND state = 'open'""",
        (iso(now), request_id),
    )


def withdraw_all(
    connection: Connection, root_run_id: str | None, now: datetime, *, run_id: str | None = None
) -> None:
    """Withdraw all open questions of a user's run and its children, or of one of them."""
    connection.execute(
        """UPDATE approvals SET state = 'withdrawn', decided_at = ?
        WHERE root_run_id = coalesce(?, root_run_id) AND run_id = coalesce(?, run_id)
        AND state = 'open'""",
        (iso(now), root_run_id, run_id),
    )


def is_answered(connection: Connection, root_run_id: str) -> bool:
    """Return whether a run can continue: a call at which it or a child waits has an answer."""
    sql = f"""SELECT 1 FROM approvals
        WHERE root_run_id = ? AND keeps_run AND decision IS NOT NULL AND {_UNUSED}"""  # noqa: S608
    return connection.execute(sql, (root_run_id,)).fetchone() is not None


def kept_runs(connection: Connection, root_run_id: str) -> set[str]:
    """Return the ids of the run and its children that wait though their process is dead."""
    sql = f"SELECT run_id FROM approvals WHERE root_run_id = ? AND keeps_run AND {_UNUSED}"  # noqa: S608
    found = {run_id for (run_id,) in connection.execute(sql, (root_run_id,))}
    return found | {root_run_id} if found else found


def list_approvals(
    connection: Connection,
    *,
    session_id: str | None = None,
    prefix: str = "",
    is_open: bool = True,
    metadata: Mapping[str, Any] | None = None,
    limit: int = 100,
) -> "list[ApprovalRecord]":
    """Return the newest `limit` questions whose id begins with `prefix`, oldest first.

    `is_open=False` also lists closed questions. `metadata` are pairs that the user's run has in its
    own metadata.
    """
    from agent_core.types import ApprovalRecord  # noqa: PLC0415 - few runs need it

    conditions, values = ["request_id >= ?", "request_id < ?"], [prefix, f"{prefix}\x7f"]
    if session_id is not None:
        conditions.append("session_id = ?")
        values.append(session_id)
    if is_open:
        conditions.append("state = 'open'")
    if metadata:
        runs = _runs_with(connection, conditions, values, metadata)
        conditions.append("root_run_id IN (SELECT value FROM json_each(?))")
        values.append(dumps(runs))
    rows = connection.execute(
        f"""SELECT * FROM approvals WHERE {" AND ".join(conditions)}
        ORDER BY rowid DESC LIMIT ?""",  # noqa: S608 - constants
        (*values, clamp(limit, 0)),
    )
    return read_each(ApprovalRecord, rows)[::-1]


def _runs_with(
    connection: Connection, conditions: list[str], values: list[str], wanted: Mapping[str, Any]
) -> list[str]:
    """Return the users' runs that asked these questions and whose metadata has these pairs."""
    found = connection.execute(
        f"""SELECT run_id, options_json FROM runs WHERE run_id IN
        (SELECT root_run_id FROM approvals WHERE {" AND ".join(conditions)})""",  # noqa: S608
        tuple(values),
    )
    missing = object()
    runs: list[str] = []
    for run_id, options in found:
        given: dict[str, Any] = loads(options).get("metadata", {}) if options else {}
        if all(_is_same(given.get(name, missing), value) for name, value in wanted.items()):
            runs.append(run_id)
    return runs


def _is_same(one: object, other: object) -> bool:
    """Return whether two JSON values are the same; True is no number."""
    if isinstance(one, dict) and isinstance(other, dict):
        mine, theirs = cast("dict[str, object]", one), cast("dict[str, object]", other)
        return mine.keys() == theirs.keys() and all(_is_same(mine[k], theirs[k]) for k in mine)
    if isinstance(one, list) and isinstance(other, list):
        items, others = cast("list[object]", one), cast("list[object]", other)
        return len(items) == len(others) and all(map(_is_same, items, others))
    return isinstance(one, bool) is isinstance(other, bool) and one == other
