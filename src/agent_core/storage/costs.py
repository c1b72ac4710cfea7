"""Spending of all sessions, added up by the database."""

from collections.abc import Mapping

from agent_core.storage.spending import COUNTS, UNPRICED
from agent_core.storage.sql import Connection, FoundRow
from agent_core.types import CostSummary, CostUnit, Usage

# A run of an earlier version has not stored its model.
_MODEL = "CASE WHEN begun_at IS NULL THEN 'background' ELSE coalesce(model, 'unknown') END"
_DAY = "CASE WHEN begun_at IS NULL THEN 'background' ELSE date(begun_at, 'localtime') END"
_LAST_USED = "max(s.use_number) DESC, max(last_begun_at) DESC"

_UNITS: Mapping[CostUnit, tuple[str, str, str, str, str]] = {
    "all": ("'all'", "part", "NULL", "spent", "1"),
    "day": (_DAY, "part", "NULL", "spent", "part = 'background', part DESC"),
    "model": (_MODEL, "part", "NULL", "spent JOIN sessions s USING (session_id)", _LAST_USED),
    "project": ("''", "s.cwd", "NULL", "spent JOIN sessions s USING (session_id)", _LAST_USED),
    "session": (
        "''",
        "s.session_id",
        "max(s.title)",
        "spent JOIN sessions s USING (session_id)",
        _LAST_USED,
    ),
}
"""How spending is split within a session, and then: key, title, source and order of the result."""

_SUMS = ", ".join(f"CAST(sum({name}) AS BIGINT) AS {name}" for name in COUNTS)
_WHOLE_SUMS = ", ".join(f"sum({name})" for name in COUNTS)

# Each session is added up first, which counts the sessions without sorting all that was spent.
# Costs are added as decimal numbers, where the database has them: in any order the sum is the same.
_SPENT = f"""WITH spent AS (
    SELECT session_id, {{split}} AS part, max(begun_at) AS last_begun_at,
        count(*) FILTER (WHERE turns > 0) AS runs, sum(CAST(cost AS NUMERIC)) AS cost,
        count(*) FILTER (WHERE {UNPRICED}) AS unpriced,
        count(*) FILTER (WHERE is_estimated) AS estimated, {_SUMS}
    FROM spending WHERE {{chosen}} GROUP BY session_id, 2
)
SELECT {{key}} AS key, {{title}}, count(*), sum(runs), coalesce(sum(cost), 0), sum(unpriced),
    sum(estimated), {_WHOLE_SUMS}
FROM {{source}} GROUP BY {{key}} ORDER BY {{order}} LIMIT :limit"""  # noqa: S608 - our own names


def costs(
    connection: Connection,
    by: CostUnit,
    *,
    since: str | None,
    project: str | None,
    limit: int,
) -> list[CostSummary]:
    """Return the spending: see `SessionStore.costs`."""
    split, key, title, source, order = _UNITS[by]
    conditions: list[str] = []
    if since is not None:
        conditions.append("begun_at >= :since")
    if project is not None:
        conditions.append("session_id IN (SELECT session_id FROM sessions WHERE cwd = :project)")
    sql = _SPENT.format(
        split=split,
        chosen=" AND ".join(conditions) or "TRUE",
        key=key,
        title=title,
        source=source,
        order=order,
    )
    values = {"since": since, "project": project, "limit": limit}
    return [_summary(row) for row in connection.execute(sql, values).fetchall()]


def _summary(row: FoundRow) -> CostSummary:
    key, title, sessions, runs, known, unpriced, estimated, *counts = row
    return CostSummary(
        key=key,
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
