"""Spending of all sessions, added up by the database."""

from collections.abc import Mapping

from agent_core.storage.rows import dumps
from agent_core.storage.spending import COUNTS, UNPRICED
from agent_core.storage.sql import Connection, FoundRow
from agent_core.types import CostSummary, CostUnit, Usage

# A run of an earlier version has not stored its model.
_MODEL = "CASE WHEN begun_at IS NULL THEN 'background' ELSE coalesce(model, 'unknown') END"
_KEYS: Mapping[CostUnit, str] = {
    "all": "'all'",
    "day": "date(begun_at / 1000000, 'unixepoch', 'localtime')",
    "model": _MODEL,
    "project": "s.cwd",
    "session": "session_id",
}
"""SQL keys by which spending is added up; background work has no day."""

_ORDERS: Mapping[CostUnit, str] = {
    "all": "1",
    "day": "1 DESC NULLS LAST",
    "model": "max(spending.rowid) DESC",
    "project": "max(s.use_number) DESC",
    "session": "max(s.use_number) DESC",
}

# Costs are added as decimal numbers, where the database has them: in any order the sum is the same.
_FIGURES = f"""count(*) FILTER (WHERE turns > 0), coalesce(sum(CAST(cost AS NUMERIC)), 0),
    count(*) FILTER (WHERE {UNPRICED}), count(*) FILTER (WHERE is_estimated),
    {", ".join(f"sum({name})" for name in COUNTS)}"""

_SPENT = f"""SELECT {{key}} AS key, {_FIGURES}
FROM {{source}} WHERE {{chosen}} GROUP BY 1 ORDER BY {{order}} LIMIT :limit"""  # noqa: S608 - our own names

_USED = """EXISTS (SELECT 1 FROM spending WHERE spending.session_id = s.session_id AND {chosen})"""
_SOURCES: Mapping[CostUnit, str] = {
    "project": "spending JOIN sessions AS s USING (session_id)",
    "session": f"""(
        SELECT session_id, use_number FROM sessions AS s WHERE {_USED}
        ORDER BY use_number DESC LIMIT :limit
    ) AS s JOIN spending USING (session_id)""",  # noqa: S608 - our own names
}
"""The rows that are added up, if they need more than `spending` has."""

_SESSIONS = """SELECT key, count(*) FROM (
        SELECT DISTINCT {key} AS key, session_id FROM spending WHERE {chosen}
    ) AS used GROUP BY key"""
_SESSIONS_OF_PROJECTS = f"SELECT cwd, count(*) FROM sessions AS s WHERE {_USED} GROUP BY cwd"  # noqa: S608
_TITLES = """SELECT session_id, title FROM sessions
    WHERE session_id IN (SELECT value FROM json_each(?))"""


def costs(
    connection: Connection,
    by: CostUnit,
    *,
    since: int | None,
    project: str | None,
    limit: int,
) -> list[CostSummary]:
    """Return the spending: see `SessionStore.costs`.

    Args:
        connection: of the database.
        by: the unit.
        since: only runs begun then or later, in microseconds since 1970.
        project: only sessions that work in this folder.
        limit: largest number of rows.
    """
    conditions = {
        "begun_at >= :since": since is not None,
        "spending.session_id IN (SELECT session_id FROM sessions WHERE cwd = :project)": (
            project is not None
        ),
    }
    chosen = " AND ".join(sql for sql, holds in conditions.items() if holds) or "TRUE"
    source = _SOURCES.get(by, "spending").format(chosen=chosen)
    key, order = _KEYS[by], _ORDERS[by]
    values = {"since": since, "project": project, "limit": limit}
    found = connection.execute(
        _SPENT.format(key=key, source=source, chosen=chosen, order=order), values
    ).fetchall()
    if by == "session":
        titles = dict(connection.execute(_TITLES, (dumps([key for key, *_ in found]),)).fetchall())
        return [_summary(row, 1, titles[row[0]]) for row in found]
    counting = _SESSIONS_OF_PROJECTS if by == "project" else _SESSIONS
    counted = connection.execute(counting.format(key=key, chosen=chosen), values).fetchall()
    sessions = dict(counted)
    return [_summary(row, sessions[row[0]]) for row in found]


def _summary(row: FoundRow, sessions: int, title: str | None = None) -> CostSummary:
    key, runs, known, unpriced, estimated, *counts = row
    return CostSummary(
        key="background" if key is None else str(key),
        title=title or None,
        sessions=sessions,
        runs=runs,
        usage=Usage(
            **dict(zip(COUNTS, counts, strict=True)),
            cost=None if unpriced else round(float(known), 9),
            is_estimated=estimated > 0,
        ),
        known_cost=round(float(known), 9),
        unpriced=unpriced,
    )
