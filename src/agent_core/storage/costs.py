"""Spending of all sessions, added up by the database."""

from collections.abc import Mapping

from agent_core.storage.sql import Connection, FoundRow
from agent_core.types import CostSummary, CostUnit, Usage

_COUNTS = (
    "input_tokens",
    "output_tokens",
    "total_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    "reasoning_tokens",
)
_SUMS = ", ".join(
    f"coalesce(sum(CAST(json_extract(usage, '$.{name}') AS BIGINT)), 0)" for name in _COUNTS
)
_KEYS: Mapping[CostUnit, tuple[str, str]] = {
    "all": ("'all'", "'all'"),
    "session": ("r.session_id", "s.session_id"),
    "project": ("s.cwd", "s.cwd"),
    "day": ("date(r.created_at, 'localtime')", "'background'"),
    # A run of an earlier version has not stored its model.
    "model": ("coalesce(json_extract(r.metadata_json, '$.model'), 'unknown')", "'background'"),
}
"""SQL keys by which runs and background work are grouped."""

# A run of no turns has summarised the history: its cost is counted with the summary's own run.
_SPENT = f"""WITH spent AS (
    SELECT {{run}} AS key, r.session_id, s.use_number, r.usage_json AS usage,
        r.parent_run_id IS NULL AS is_run
    FROM runs r JOIN sessions s USING (session_id)
    WHERE (r.parent_run_id IS NOT NULL OR r.turn_count > 0)
        AND (CAST(:since AS TEXT) IS NULL OR r.created_at >= :since)
        AND (CAST(:project AS TEXT) IS NULL OR s.cwd = :project)
    UNION ALL
    SELECT {{background}}, s.session_id, s.use_number, each.value, FALSE
    FROM sessions s, json_each(s.metadata_json, '$.background_usage') each
    WHERE each.key <> 'compact' AND CAST(:since AS TEXT) IS NULL
        AND (CAST(:project AS TEXT) IS NULL OR s.cwd = :project)
), priced AS (
    SELECT *, CAST(json_extract(usage, '$.cost') AS DOUBLE PRECISION) AS cost,
        CAST(json_extract(usage, '$.is_estimated') AS BIGINT) AS is_estimated,
        CAST(json_extract(usage, '$.total_tokens') AS BIGINT) > 0
            OR CAST(json_extract(usage, '$.is_estimated') AS BIGINT) > 0 AS is_paid
    FROM spent
)
SELECT key, (SELECT title FROM sessions WHERE session_id = key),
    count(DISTINCT session_id), count(*) FILTER (WHERE is_run),
    coalesce(sum(cost), 0), count(*) FILTER (WHERE cost IS NULL AND is_paid),
    max(coalesce(is_estimated, 0)),
    {_SUMS}
FROM priced GROUP BY key ORDER BY {{order}} LIMIT :limit"""  # noqa: S608 - our own names


def costs(
    connection: Connection,
    by: CostUnit,
    *,
    since: str | None,
    project: str | None,
    limit: int,
) -> list[CostSummary]:
    """Return the spending: see `SessionStore.costs`."""
    run, background = _KEYS[by]
    order = "key = 'background', key DESC" if by == "day" else "max(use_number) DESC"
    sql = _SPENT.format(run=run, background=background, order=order)
    return [
        _summary(row)
        for row in connection.execute(
            sql, {"since": since, "project": project, "limit": limit}
        ).fetchall()
    ]


def _summary(row: FoundRow) -> CostSummary:
    key, title, sessions, runs, known, unpriced, is_estimated, *counts = row
    return CostSummary(
        key=key,
        title=title or None,
        sessions=sessions,
        runs=runs,
        usage=Usage(
            **dict(zip(_COUNTS, counts, strict=True)),
            cost=None if unpriced else round(known, 9),
            is_estimated=bool(is_estimated),
        ),
        known_cost=round(known, 9),
        unpriced=unpriced,
    )
