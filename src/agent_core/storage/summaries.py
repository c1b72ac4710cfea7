"""Lists of sessions, and ids by prefix, for people to choose from."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from agent_core.storage.rows import CONTENT, MAX_SEQ, OPEN_RUN, loads, read
from agent_core.storage.salvage import Salvage
from agent_core.storage.spending import COUNTS, UNPRICED
from agent_core.storage.sql import Connection, Cursor, FoundRow
from agent_core.text.folding import fold, pattern_in_json
from agent_core.types import Node, RunStatus, SessionRecord, SessionSummary, Usage, words_of

_LEAST = len("sess_") + 8
_LAST = "\U0010ffff"
"""Sorts after every character of an id."""

_LISTED = """SELECT session_id, title, cwd FROM sessions WHERE {where}
    ORDER BY use_number DESC LIMIT :limit OFFSET :offset"""

_SPENT = f"""SELECT coalesce(sum(turns), 0),
    {", ".join(f"coalesce(sum({name}), 0)" for name in COUNTS)}, sum(CAST(cost AS NUMERIC)),
    count(*) FILTER (WHERE {UNPRICED}), count(*) FILTER (WHERE is_estimated)
FROM spending WHERE session_id = :id AND begun_at IS NOT NULL"""  # noqa: S608 - our own names

LAST_STATUS = """SELECT status FROM runs WHERE session_id = :id AND parent_run_id IS NULL
    ORDER BY rowid DESC LIMIT 1"""
"""The status of a session's last run."""

_WAITS = f"""SELECT EXISTS (SELECT 1 FROM runs WHERE session_id = :id AND {OPEN_RUN}
    AND status = 'waiting')
    OR EXISTS (SELECT 1 FROM approvals WHERE session_id = :id AND state = 'open')"""  # noqa: S608
"""Whether a run has an open question, or one that was answered and is not taken up yet."""

_NEIGHBOURS = """SELECT (SELECT max(session_id) FROM sessions WHERE session_id < :id),
    (SELECT min(session_id) FROM sessions WHERE session_id > :id)"""

_OF_SESSION = (
    "SELECT * FROM sessions WHERE session_id = :id",
    _SPENT,
    LAST_STATUS,
    _WAITS,
    _NEIGHBOURS,
)
"""What is asked about each session of a list."""
_AT_ONCE = 100

_FIRST_MESSAGE = """SELECT content_json, metadata_json FROM nodes
    WHERE session_id = ? AND role = 'user' AND node_type = 'message' ORDER BY node_seq LIMIT 1"""

_IDS = {
    "session": ("sessions", "session_id"),
    "run": ("runs", "run_id"),
    "node": ("nodes", "node_id"),
}


def summaries(
    connection: Connection,
    limit: int,
    offset: int,
    project: str | None,
    query: str | None,
    forked_from: str | None,
) -> list[tuple[SessionSummary, Mapping[str, Any]]]:
    """Return sessions with metadata, the last used first: see `SessionStore.session_summaries`."""
    words = fold(query or "").split()
    # Words are compared as Python folds them, so all sessions are read for them.
    most, first = (MAX_SEQ, 0) if words else (limit, offset)
    values = {"project": project, "origin": forked_from}
    asked = {
        "cwd = :project": project is not None,
        "parent_session_id = :origin": forked_from is not None,
    }
    where = " AND ".join(name for name, is_asked in asked.items() if is_asked) or "TRUE"
    rows = connection.execute(
        _LISTED.format(where=where), {**values, "limit": most, "offset": first}
    )
    if words:
        fitting = (row for row in rows if fits(words, row))
        rows = islice(islice(fitting, offset, None), limit)
    ids = [session_id for session_id, *_ in rows]
    found: list[tuple[SessionSummary, Mapping[str, Any]]] = []
    for begin in range(0, len(ids), _AT_ONCE):
        # All are sent before an answer is waited for.
        answers = [_ask(connection, session_id) for session_id in ids[begin : begin + _AT_ONCE]]
        found += map(_summary, answers)
    return found


def fits(words: Sequence[str], texts: Iterable[str | None]) -> bool:
    """Return whether these texts have all folded words."""
    text = fold("\n".join(text for text in texts if text))
    return all(word in text for word in words)


def summary_of(connection: Connection, session_id: str) -> tuple[SessionSummary, Mapping[str, Any]]:
    """Return a session, which exists, with its metadata."""
    return _summary(_ask(connection, session_id))


def _ask(connection: Connection, session_id: str) -> list[Cursor]:
    return [connection.execute(sql, {"id": session_id}) for sql in _OF_SESSION]


def _summary(answers: Sequence[Cursor]) -> tuple[SessionSummary, Mapping[str, Any]]:
    row, spent, last, waits, neighbours = (answer.fetchone() for answer in answers)
    salvage = Salvage()
    session = salvage.read(SessionRecord, row) or read(SessionRecord, row)
    turns, *counts, cost, unpriced, estimated = spent
    summary = SessionSummary(
        session_id=session.session_id,
        short_id=_short(session.session_id, neighbours),
        title=session.title or None,
        cwd=session.cwd,
        status=_status(session.session_id, last, salvage),
        turns=turns,
        usage=Usage(
            **dict(zip(COUNTS, counts, strict=True)),
            cost=None if cost is None or unpriced else round(float(cost), 9),
            is_estimated=estimated > 0,
        ),
        is_waiting=bool(waits[0]),
        parent_session_id=session.parent_session_id,
        created_at=session.created_at,
        updated_at=session.updated_at,
        damaged=salvage.damaged[0] if salvage.damaged else None,
    )
    return summary, session.metadata


def _status(session_id: str, last: FoundRow | None, salvage: Salvage) -> RunStatus | None:
    try:
        return None if last is None else RunStatus(last[0])
    except ValueError:
        salvage.note("runs", f"of {session_id}", "status is not valid")
        return None


def _short(session_id: str, neighbours: Iterable[str | None]) -> str:
    """Return the shortest prefix of the id that no other id has."""
    length = _LEAST
    for other in neighbours:
        while other and session_id[:length] == other[:length] and length < len(session_id):
            length += 1
    return session_id[:length]


def untitled(connection: Connection, limit: int) -> dict[str, str]:
    """Return the first words of sessions without a title, for those that have any."""
    ids = connection.execute("SELECT session_id FROM sessions WHERE title IS NULL")
    found: dict[str, str] = {}
    for (session_id,) in ids:
        if (words := _began_with(connection, session_id)) is not None:
            found[session_id] = words
        if len(found) == limit:
            break
    return found


def _began_with(connection: Connection, session_id: str) -> str | None:
    message = connection.execute(_FIRST_MESSAGE, (session_id,)).fetchone()
    try:
        if message is None:
            return None
        content, metadata = map(loads, message)
        return words_of(CONTENT.validate_python(content), metadata)
    except (ValueError, RecursionError):  # damaged: opening the session reports it
        return ""


def nodes_with(
    connection: Connection,
    words: Sequence[str],
    before: int | None,
    limit: int,
    project: str | None,
) -> list[tuple[int, Node | None]]:
    """Return messages and summaries that may have all words: see `SessionStore.nodes_with`."""
    condition, values = words_condition(words, before, project)
    rows = connection.execute(
        f"""SELECT rowid, node_id FROM nodes
        WHERE rowid < ? AND node_type IN ('message', 'compaction')
        AND {condition} ORDER BY rowid DESC LIMIT ?""",  # noqa: S608 - our own words
        (*values, limit),
    )
    return numbered_nodes(connection, rows)


def words_condition(
    words: Sequence[str], before: int | None, project: str | None
) -> tuple[str, list[Any]]:
    """Return the condition for nodes with these words, and the values of `rowid < ?` and of it."""
    condition = " AND ".join(["folded(content_json) LIKE ? ESCAPE '^'"] * len(words))
    values: list[Any] = [MAX_SEQ if before is None else before, *map(pattern_in_json, words)]
    if project is not None:
        condition += " AND session_id IN (SELECT session_id FROM sessions WHERE cwd = ?)"
        values.append(project)
    return condition, values


def numbered_nodes(connection: Connection, rows: Iterable[Any]) -> list[tuple[int, Node | None]]:
    """Return the nodes with these numbers and ids; None for a node that is gone or unreadable."""
    salvage = Salvage()
    sql = "SELECT * FROM nodes WHERE node_id = ?"
    found = [(number, connection.execute(sql, (node_id,)).fetchone()) for number, node_id in rows]
    return [(number, row and salvage.read(Node, row)) for number, row in found]


def add_titles(connection: Connection, titles: Mapping[str, str]) -> None:
    """Set the titles of sessions that have none."""
    sql = "UPDATE sessions SET title = ? WHERE session_id = ? AND title IS NULL"
    connection.executemany(sql, [(title, session_id) for session_id, title in titles.items()])


def ids_beginning(
    connection: Connection, kind: str, prefix: str, session_id: str | None, limit: int
) -> list[str]:
    """Return ids with this prefix, an exact match first."""
    table, column = _IDS[kind]
    of_session = "" if session_id is None else "AND session_id = :session"
    rows = connection.execute(
        f"""SELECT {column} FROM {table} WHERE {column} >= :first AND {column} < :end {of_session}
        ORDER BY {column} LIMIT :limit""",  # noqa: S608 - our own names
        {"first": prefix, "end": prefix + _LAST, "session": session_id, "limit": limit},
    )
    return [found for (found,) in rows]
