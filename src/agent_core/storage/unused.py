"""Finds the sessions that have not been used for some time, and the bytes that sessions take."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from agent_core.storage.rows import OPEN_RUN, UNUSED, USED_AT, dumps, iso
from agent_core.storage.sql import Connection
from agent_core.types import utc_now

_TEXTS: Mapping[str, Sequence[str]] = {
    "sessions": ("title", "metadata_json"),
    "agents": ("result_json", "metadata_json"),
    "runs": ("usage_json", "error_json", "metadata_json", "prompt_json", "options_json"),
    "nodes": ("content_json", "metadata_json"),
    "events": ("payload_json",),
    "approvals": ("request_json", "arguments_json", "changed_arguments_json"),
}
"""The columns with the text of sessions; the rest of their rows is ids, numbers and times."""


def unused_sessions(
    connection: Connection,
    before: datetime,
    *,
    project: str | None,
    keep_last: int,
) -> list[str]:
    """Return the sessions that were last used before then and have no open run, oldest first.

    Args:
        connection: of the database.
        before: the time.
        project: only sessions that work in this folder.
        keep_last: this many of the last used ones, open or not, are left out.
    """
    values = {"cwd": project, "before": iso(before), "now": iso(utc_now()), "kept": keep_last}
    there = "TRUE" if project is None else "cwd = :cwd"
    rows = connection.execute(
        f"""SELECT session_id FROM sessions WHERE {UNUSED} AND {there}
        AND NOT EXISTS (SELECT 1 FROM runs
            WHERE runs.session_id = sessions.session_id AND {OPEN_RUN})
        AND session_id NOT IN (SELECT session_id FROM sessions WHERE {there}
            ORDER BY {USED_AT} DESC, use_number DESC LIMIT :kept)
        ORDER BY {USED_AT}, use_number""",  # noqa: S608 - constants
        values,
    )
    return [session_id for (session_id,) in rows]


def last_use(connection: Connection) -> datetime | None:
    """Return the time stored with the last use of any session."""
    sql = "SELECT updated_at FROM sessions ORDER BY use_number DESC LIMIT 1"
    row = connection.execute(sql).fetchone()
    return None if row is None else datetime.fromisoformat(str(row[0]))


def stored_sessions(connection: Connection) -> list[tuple[str, str, str | None]]:
    """Return the id, the folder and the title of every session."""
    rows = connection.execute("SELECT session_id, cwd, title FROM sessions ORDER BY session_id")
    return [(session_id, cwd, title) for session_id, cwd, title in rows]


def session_bytes(
    connection: Connection, session_ids: Sequence[str] | None = None
) -> dict[str, tuple[int, int]]:
    """Return the bytes of the text of sessions in rows, and of their artifacts.

    Args:
        connection: of the database.
        session_ids: the sessions; None for all.
    """
    only, values = "TRUE", ()
    if session_ids is not None:
        only = "session_id IN (SELECT value FROM json_each(?))"
        values = (dumps(list(session_ids)),)
    own = _length(_TEXTS["sessions"])
    others = [
        _sum(table, _length(columns)) for table, columns in _TEXTS.items() if table != "sessions"
    ]
    rows = connection.execute(
        f"""SELECT session_id, {" + ".join([own, *others])}, {_sum("artifacts", "size_bytes")}
        FROM sessions WHERE {only}""",  # noqa: S608 - our own names
        values,
    )
    return {session_id: (int(texts), int(files)) for session_id, texts, files in rows}


def _length(columns: Sequence[str]) -> str:
    """Return an expression for the bytes of the texts in a row."""
    return " + ".join(f"coalesce(length(CAST({name} AS BLOB)), 0)" for name in columns)


def _sum(table: str, each: str) -> str:
    """Return an expression for the sum over a session's rows."""
    rows = f"FROM {table} WHERE {table}.session_id = sessions.session_id"
    return f"coalesce((SELECT sum({each}) {rows}), 0)"
