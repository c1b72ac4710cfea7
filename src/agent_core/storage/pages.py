"""Lists page by page, newest first, without gaps or doubles while rows are added.

Each row has a number that only newer rows exceed. A page has the rows below a number.
"""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from agent_core.storage.queries import show_session
from agent_core.storage.rows import MAX_SEQ, OPEN_RUN, read_each
from agent_core.storage.salvage import Salvage
from agent_core.storage.sql import Connection
from agent_core.storage.summaries import LAST_STATUS, fits, summary_of
from agent_core.text.folding import fold
from agent_core.types import (
    ApprovalRecord,
    ArtifactRecord,
    DamagedRow,
    Node,
    RunRecord,
    RunStatus,
    SessionRecord,
    SessionSummary,
)

_SESSIONS = """SELECT use_number, session_id, title, cwd FROM sessions
    WHERE {where} ORDER BY use_number DESC {limit}"""

_STATUS = LAST_STATUS.replace(":id", "sessions.session_id")

_AMONG_OPEN = f"""session_id IN (SELECT session_id FROM runs WHERE {OPEN_RUN}
    AND parent_run_id IS NULL AND status = :status)"""  # noqa: S608 - constants
"""Reads only the open runs, which an index holds."""

_NUMBERED: Mapping[str, tuple[type, str, str]] = {
    "nodes": (Node, "node_id", "node_seq"),
    "runs": (RunRecord, "run_id", "rowid"),
    "artifacts": (ArtifactRecord, "artifact_id", "rowid"),
}
"""The parts of a session's history: type, id and number of their rows."""


class HistoryRows(NamedTuple):
    """A page of a session's history, each part oldest first.

    Attributes:
        summary: the session as in lists, with its metadata.
        below: number of the first row of each part, below which older rows begin; 0: there are
            none.
    """

    session: SessionRecord
    summary: tuple[SessionSummary, Mapping[str, Any]]
    nodes: Sequence[Node]
    runs: Sequence[RunRecord]
    artifacts: Sequence[ArtifactRecord]
    below: Mapping[str, int]
    damaged: Sequence[DamagedRow]


def page_sessions(
    connection: Connection,
    *,
    before: int | None,
    limit: int,
    project: str | None,
    query: str | None,
    status: RunStatus | None,
) -> list[tuple[int, SessionSummary, Mapping[str, Any]]]:
    """Return sessions with their numbers and metadata, the last used first.

    Args:
        connection: of the database.
        before: only sessions with a smaller number.
        limit: largest number of sessions.
        project: only sessions that work in this folder.
        query: words that must occur in title, folder or id, in any order and case.
        status: only sessions whose last run has this status.
    """
    words = fold(query or "").split()
    conditions = ["TRUE" if before is None else "use_number < :before"]
    if project is not None:
        conditions.append("cwd = :project")
    if status is not None:
        conditions.append(f"({_STATUS}) = :status")
        if not status.is_terminal:
            conditions.append(_AMONG_OPEN)
    rows = connection.execute(
        # Words are compared as Python folds them, so rows are read until enough have them.
        _SESSIONS.format(
            # As a number, so that PostgreSQL plans for the few rows that are wanted.
            where=" AND ".join(conditions),
            limit="" if words else f"LIMIT {limit:d}",
        ),
        {
            "before": before,
            "project": project,
            "status": None if status is None else status.value,
        },
    )
    fitting = (row for row in rows if fits(words, islice(row, 1, None)))
    found = [(number, session_id) for number, session_id, *_ in islice(fitting, limit)]
    return [(number, *summary_of(connection, session_id)) for number, session_id in found]


def page_approvals(
    connection: Connection,
    *,
    before: int | None,
    limit: int,
    session_id: str | None,
    is_open: bool,
) -> tuple[list[ApprovalRecord], int | None]:
    """Return questions, the newest first, and the number of the last one if others follow.

    Args:
        connection: of the database.
        before: only questions with a smaller number.
        limit: largest number of questions.
        session_id: only questions of this session.
        is_open: only questions that wait for an answer.
    """
    conditions = ["rowid < :before"]
    if session_id is not None:
        conditions.append("session_id = :session")
    if is_open:
        conditions.append("state = 'open'")
    where = " AND ".join(conditions)
    values = {
        "before": MAX_SEQ if before is None else before,
        "session": session_id,
        "limit": limit + 1,
    }
    numbers = [
        number
        for (number,) in connection.execute(
            f"SELECT rowid FROM approvals WHERE {where} ORDER BY rowid DESC LIMIT :limit",  # noqa: S608 - constants
            values,
        )
    ]
    rows = connection.execute(
        f"SELECT * FROM approvals WHERE {where} ORDER BY rowid DESC LIMIT :limit",  # noqa: S608 - constants
        {**values, "limit": limit},
    )
    return read_each(ApprovalRecord, rows), numbers[limit - 1] if len(numbers) > limit else None


def page_history(
    connection: Connection, session_id: str, *, before: Mapping[str, int], limit: int
) -> HistoryRows:
    """Return the newest nodes, runs and artifacts of a session, children's too.

    Args:
        connection: of the database.
        session_id: the session.
        before: by part, only rows with a smaller number.
        limit: largest number of rows of each part.

    Raises:
        StorageError: `session_not_found`.
    """
    salvage = Salvage()
    session = show_session(connection, session_id, salvage)
    parts: dict[str, list[Any]] = {}
    below: dict[str, int] = {}
    for name, (kind, id_column, number) in _NUMBERED.items():
        ids = connection.execute(
            f"""SELECT {number}, {id_column} FROM {name} WHERE session_id = ? AND {number} < ?
            ORDER BY {number} DESC LIMIT ?""",  # noqa: S608 - our own names
            (session_id, before.get(name, MAX_SEQ), limit + 1),
        ).fetchall()
        below[name] = ids[limit - 1][0] if len(ids) > limit else 0
        parts[name] = salvage.find_all(connection, kind, [key for _, key in ids[:limit]])
    return HistoryRows(
        session=session,
        summary=summary_of(connection, session_id),
        nodes=sorted(parts["nodes"], key=lambda node: node.node_seq),
        runs=parts["runs"],
        artifacts=parts["artifacts"],
        below=below,
        damaged=salvage.damaged,
    )
