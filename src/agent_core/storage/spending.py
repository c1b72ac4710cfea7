"""The table `spending`: the usage of runs and of background work as numbers that SQL adds up.

`runs.usage_json` and the session's metadata say what was used, and triggers copy the figures from
there into this table within the same transaction, in every process. A run has a row once it counts:
a child from its start, a user's run from its first turn (a run of no turns has summarised the
history, and its cost counts with the summary's own run). Background work has a row per purpose.

`source` is the run or the purpose; `begun_at` is when the run began, in microseconds since 1970,
and NULL for background work; `turns` is 0 for children. The last changed row has the highest rowid.
"""

import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from agent_core.storage.sql import Connection

COUNTS = (
    "input_tokens",
    "output_tokens",
    "total_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    "cache_write_1h_tokens",
    "reasoning_tokens",
)
"""The columns with numbers of tokens, which are named as in `Usage`."""

COLUMNS = (
    *("session_id", "source", "tenant", "model", "begun_at", "turns"),
    *COUNTS,
    *("cost", "is_estimated"),
)

logger = logging.getLogger(__name__)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

MOST_TOKENS, MOST_DOLLARS = 10**12, 10**12
"""The largest figures that a run can count, so that no sum overflows."""

AT_ONCE = 2000
"""Runs or sessions that one transaction of a fill adds."""

_MANY_RUNS, _RUNS_A_SECOND = 50_000, 10_000
"""Runs from which on a fill is announced in the log, and how many it reads in a second."""

TABLE = f"""CREATE TABLE spending (
    session_id TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE,
    source TEXT NOT NULL,
    tenant TEXT,
    model TEXT,
    begun_at INTEGER,
    turns INTEGER NOT NULL,
    {", ".join(f"{name} INTEGER NOT NULL" for name in COUNTS)},
    cost DOUBLE PRECISION,
    is_estimated INTEGER NOT NULL,
    PRIMARY KEY (session_id, source)
)"""
TIME_INDEX = "CREATE INDEX spending_by_time ON spending (begun_at)"

COUNTING = "(r.parent_run_id IS NOT NULL OR r.turn_count > 0)"
"""Condition for runs that count."""
UNPRICED = "cost IS NULL AND (total_tokens > 0 OR is_estimated)"
"""Condition for spending whose price is not known."""

MISSING = """NOT EXISTS (SELECT 1 FROM spending AS p
    WHERE p.session_id = r.session_id AND p.source = r.run_id)"""
"""Condition for runs without a row: an interrupted fill skips those that it had added."""

TURNS = "CASE WHEN r.parent_run_id IS NULL THEN r.turn_count ELSE 0 END"


def _count(name: str) -> str:
    found = f"coalesce(CAST(json_extract(usage, '$.{name}') AS INTEGER), 0)"
    return f"max(-{MOST_TOKENS}, min({MOST_TOKENS}, {found}))"


_FIGURES = f"""{", ".join(map(_count, COUNTS))},
    max(-{MOST_DOLLARS}.0, min({MOST_DOLLARS}.0, CAST(json_extract(usage, '$.cost') AS REAL))),
    coalesce(CAST(json_extract(usage, '$.is_estimated') AS INTEGER), 0) > 0"""


def microseconds(moment: datetime) -> int:
    """Return a time in the unit of `begun_at`."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _valid(column: str) -> str:
    return f"CASE WHEN json_valid({column}) THEN {column} ELSE '{{}}' END"


# Times are stored with six digits after the point.
_BEGUN = """CAST(strftime('%s', r.created_at) AS INTEGER) * 1000000
        + CAST(substr(r.created_at, 21, 6) AS INTEGER)"""

_ADD_RUNS = f"""REPLACE INTO spending ({", ".join(COLUMNS)})
    SELECT r.session_id, r.run_id, s.tenant, json_extract({_valid("r.metadata_json")}, '$.model'),
        {_BEGUN}, {TURNS}, {_FIGURES}
    FROM (SELECT *, {_valid("usage_json")} AS usage FROM runs) AS r
        JOIN sessions s USING (session_id)
    WHERE {COUNTING}"""  # noqa: S608 - our own names
_ADD_BACKGROUND = f"""REPLACE INTO spending ({", ".join(COLUMNS)})
    SELECT session_id, purpose, tenant, NULL, NULL, 0, {_FIGURES}
    FROM (SELECT s.*, each.key AS purpose,
            CASE WHEN each.type = 'object' THEN each.value ELSE '{{}}' END AS usage
        FROM sessions s, json_each({_valid("s.metadata_json")}, '$.background_usage') AS each
        WHERE each.key <> 'compact')
    WHERE"""  # noqa: S608 - our own names

_HAS_BACKGROUND = "metadata_json LIKE '%\"background_usage\"%'"

SCHEMA = (
    TABLE,
    TIME_INDEX,
    f"""CREATE TRIGGER add_spending_of_run AFTER INSERT ON runs
        WHEN {COUNTING.replace("r.", "new.")} BEGIN
        {_ADD_RUNS} AND r.run_id = new.run_id;
    END""",
    f"""CREATE TRIGGER change_spending_of_run
        AFTER UPDATE OF turn_count, usage_json, metadata_json ON runs
        WHEN {COUNTING.replace("r.", "new.")} BEGIN
        {_ADD_RUNS} AND r.run_id = new.run_id;
    END""",
    f"""CREATE TRIGGER add_spending_of_session AFTER INSERT ON sessions
        WHEN new.{_HAS_BACKGROUND} BEGIN
        {_ADD_BACKGROUND} session_id = new.session_id;
    END""",
    f"""CREATE TRIGGER change_spending_of_session AFTER UPDATE OF metadata_json ON sessions
        WHEN new.metadata_json IS NOT old.metadata_json
            AND (new.{_HAS_BACKGROUND} OR old.{_HAS_BACKGROUND}) BEGIN
        DELETE FROM spending WHERE session_id = new.session_id AND begun_at IS NULL;
        {_ADD_BACKGROUND} session_id = new.session_id;
    END""",  # noqa: S608 - our own names
)
"""The table, and the triggers that keep it up to date, in SQLite."""

FILL: tuple[tuple[str, str, str], ...] = (
    (
        "runs",
        "run_id",
        f"""{_ADD_RUNS} AND r.run_id > :after AND r.run_id <= :last AND {MISSING}""",
    ),
    ("sessions", "session_id", f"{_ADD_BACKGROUND} session_id > :after AND session_id <= :last"),
)
"""Table, id, and the statement that adds the spending of its rows between two ids, in SQLite."""


def announce_fill(database: str, runs: int) -> None:
    """Log that a fill takes a while, if there are many runs."""
    if runs >= _MANY_RUNS:
        logger.warning(
            "%s: adding up the spending of %s earlier runs, once; this may take %s s or more, and"
            " other programs can use the database meanwhile",
            database,
            f"{runs:,}",
            f"{-(-runs // _RUNS_A_SECOND):,}",
        )


def fill(connection: Connection, steps: tuple[tuple[str, str, str], ...] = FILL) -> Iterator[None]:
    """Add the spending in earlier rows; each step of the iteration needs its own transaction.

    It is safe to repeat: an existing row is kept, or written again with the same figures.
    """
    for table, key, statement in steps:
        after = ""
        while True:
            (last,) = connection.execute(
                f"""SELECT max({key}) FROM (SELECT {key} FROM {table} WHERE {key} > :after
                ORDER BY {key} LIMIT {AT_ONCE}) AS next""",  # noqa: S608 - our own names
                {"after": after},
            ).fetchone()
            if last is None:
                break
            connection.execute(statement, {"after": after, "last": last})
            after = last
            yield
