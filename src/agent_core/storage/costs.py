"""Spending of all sessions, added up by the database.

Sessions and projects are chosen before their spending is read; days and models are found in it.
"""

from collections.abc import Mapping
from typing import Any

from agent_core.storage.rows import dumps
from agent_core.storage.spending import COUNTS, UNPRICED
from agent_core.storage.sql import Connection, FoundRow
from agent_core.types import CostSummary, CostUnit, Usage

# Costs are added as decimal numbers, where the database has them: in any order the sum is the same.
_FIGURES = f"""count(*) FILTER (WHERE turns > 0), coalesce(sum(CAST(cost AS NUMERIC)), 0),
    count(*) FILTER (WHERE {UNPRICED}), count(*) FILTER (WHERE is_estimated),
    {", ".join(f"sum({name})" for name in COUNTS)}"""

# A run of an earlier version has not stored its model.
_MODEL = "CASE WHEN begun_at IS NULL THEN 'background' ELSE coalesce(model, 'unknown') END"
_DAY = "date(begun_at / 1000000, 'unixepoch', 'localtime')"
_KEYS: Mapping[CostUnit, tuple[str, str, str]] = {
    "all": ("'all'", "1", "1"),
    "day": (_DAY, "1 DESC NULLS LAST", _DAY),
    "model": (_MODEL, "max(rowid) DESC", "max(rowid)"),
}
"""Key of each unit, the order of its sums, and their places; background work has no day."""

_SPENT = f"""SELECT {{key}} AS key, {_FIGURES}, {{place}} FROM spending WHERE {{chosen}}
    GROUP BY 1 HAVING {{below}} ORDER BY {{order}} LIMIT :limit"""  # noqa: S608 - our own names
_SESSIONS = """SELECT key, count(*) FROM (
        SELECT DISTINCT {key} AS key, session_id FROM spending WHERE {chosen}
    ) AS used GROUP BY key"""

_USED = "EXISTS (SELECT 1 FROM spending WHERE spending.session_id = s.session_id AND {since})"
_CHOSEN: Mapping[CostUnit, tuple[str, str, str]] = {
    "project": (
        "s.cwd",
        f"""SELECT cwd, count(*), NULL, max(use_number) FROM sessions AS s
        WHERE {_USED} AND {{project}} GROUP BY cwd
        HAVING {{below}} ORDER BY max(use_number) DESC LIMIT :limit""",  # noqa: S608 - our own names
        "max(use_number)",
    ),
    "session": (
        "spending.session_id",
        f"""SELECT session_id, 1, title, use_number FROM sessions AS s
        WHERE {_USED} AND {{project}} AND {{below}}
        ORDER BY use_number DESC LIMIT :limit""",  # noqa: S608 - our own names
        "use_number",
    ),
}
"""Key of each unit whose rows are chosen first, and how: key, number of sessions, title, place."""

CostPlace = str | int | None
"""The place of a sum in its list, which only newer ones exceed."""

_SPENT_BY_CHOSEN = f"""SELECT {{key}} AS key, {_FIGURES}
    FROM spending JOIN sessions AS s USING (session_id)
    WHERE {{key}} IN (SELECT value FROM json_each(:keys)) AND {{since}}
    GROUP BY 1"""  # noqa: S608 - our own names


def place_costs(
    connection: Connection,
    by: CostUnit,
    *,
    since: int | None,
    project: str | None,
    limit: int,
    before: CostPlace = None,
) -> list[tuple[CostPlace, CostSummary]]:
    """Return sums of the spending, each with its place: see `SessionStore.costs`.

    Args:
        connection: of the database.
        by: the unit.
        since: only runs begun then or later, in microseconds since 1970.
        project: only sessions that work in this folder.
        limit: largest number of rows.
        before: only sums with a smaller place.
    """

    def rows(sql: str, **names: str) -> list[Any]:
        return connection.execute(sql.format(**names), values).fetchall()

    def below(place: str) -> str:
        return "TRUE" if before is None else f"({place} < :before OR {place} IS NULL)"

    values = {"since": since, "project": project, "limit": limit, "keys": "[]", "before": before}
    in_time = "TRUE" if since is None else "begun_at >= :since"
    if by in _CHOSEN:
        key, choice, place = _CHOSEN[by]
        in_project = "TRUE" if project is None else "s.cwd = :project"
        chosen = rows(choice, since=in_time, project=in_project, below=below(place))
        values["keys"] = dumps([key for key, *_ in chosen])
        spent = {row[0]: row for row in rows(_SPENT_BY_CHOSEN, key=key, since=in_time)}
        return [(place, _summary(spent[key], count, title)) for key, count, title, place in chosen]
    key, order, place = _KEYS[by]
    its_sessions = "session_id IN (SELECT session_id FROM sessions WHERE cwd = :project)"
    conditions = in_time if project is None else f"{in_time} AND {its_sessions}"
    found = rows(_SPENT, key=key, chosen=conditions, order=order, place=place, below=below(place))
    sessions = dict(rows(_SESSIONS, key=key, chosen=conditions))
    return [(row[-1], _summary(row[:-1], sessions[row[0]])) for row in found]


def costs(
    connection: Connection,
    by: CostUnit,
    *,
    since: int | None,
    project: str | None,
    limit: int,
) -> list[CostSummary]:
    """Return the spending: see `SessionStore.costs`."""
    placed = place_costs(connection, by, since=since, project=project, limit=limit)
    return [summary for _, summary in placed]


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
