"""Write the statements that make a session database of the newest version.

`make reference` runs it, and the suite fails if the file differs from what it would write.
"""

import sqlite3
from contextlib import closing
from pathlib import Path

from agent_core.storage.migrations import LEDGER, MIGRATIONS, schema_of

FILE = Path(__file__).parents[1] / "src" / "agent_core" / "storage" / "schema.sql"


def schema() -> str:
    """Return what all migrations, one after the other, make of an empty database."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(LEDGER)
        for migration in MIGRATIONS:
            for statement in migration.statements:
                connection.execute(statement)
        return schema_of(connection)


if __name__ == "__main__":
    FILE.write_text(schema(), encoding="utf-8")
