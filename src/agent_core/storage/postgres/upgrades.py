"""Applies the upgrades of Procrastinate's tables, which it ships as scripts and does not record.

The name of the last applied script is in a comment on its table of jobs.
"""

from pathlib import Path
from typing import LiteralString

from procrastinate.schema import SchemaManager
from psycopg import Connection
from psycopg.sql import SQL, Literal

from agent_core.opening import read_text
from agent_core.storage.postgres.statements import PostgresRow

_FIRST = "03.04.00_50"
"""The last script contained in the tables that our first migration creates."""

_NAME = len(_FIRST)
_RECORDED: LiteralString = """SELECT to_regclass('procrastinate_jobs') IS NOT NULL,
    obj_description(to_regclass('procrastinate_jobs'), 'pg_class')"""


def pending_upgrades(connection: Connection[PostgresRow]) -> list[Path]:
    """Return the scripts that are newer than the tables, oldest first; none without tables."""
    row = connection.execute(_RECORDED).fetchone()
    if row is None or not row[0]:
        return []
    recorded = row[1] or _FIRST
    return [each for each in _scripts() if each.name[:_NAME] > recorded]


def upgrade_queue(connection: Connection[PostgresRow]) -> int:
    """Apply the scripts that are newer than the tables, and return their number.

    Raises:
        psycopg.Error: one of them failed; the scripts before it are applied.
    """
    count = 0
    while True:
        with connection.transaction():
            if not pending_upgrades(connection):
                return count
            connection.execute("SELECT pg_advisory_xact_lock(hashtext('soong-agent schema'))")
            for script in pending_upgrades(connection)[:1]:
                connection.execute(read_text(script).encode(), prepare=False)
                connection.execute(newest_comment(script).encode(), prepare=False)
                count += 1


def newest_comment(script: Path | None = None) -> str:
    """Return the statement that records a script as the last one; by default the newest script."""
    name = (script or _scripts()[-1]).name[:_NAME]
    return SQL("COMMENT ON TABLE procrastinate_jobs IS {}").format(Literal(name)).as_string()


def _scripts() -> list[Path]:
    return sorted(Path(SchemaManager.get_migrations_path()).glob("*.sql"))
