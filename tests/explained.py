"""What the statements of some work read, by the plans in the log of PostgreSQL."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg

from postgres import Server

_SETTINGS = {
    "session_preload_libraries": "auto_explain",
    "auto_explain.log_min_duration": "0",
    "auto_explain.log_analyze": "on",
    "auto_explain.log_buffers": "on",
    "auto_explain.log_timing": "off",
    "auto_explain.log_nested_statements": "on",
    "auto_explain.log_format": "json",
}
_PLAN = re.compile(rb"^(\w+): LOG:  duration: \S+ ms  plan:\n((?:\t.*\n)+)", re.MULTILINE)


@dataclass(frozen=True)
class Scan:
    """A part of a plan that reads a table: `rows` with those that a filter has removed."""

    table: str
    kind: str
    rows: float
    statement: str


@dataclass(frozen=True)
class Explained:
    """The statements that were executed, those of functions and triggers included."""

    plans: list[dict[str, Any]]

    @property
    def blocks(self) -> int:
        """The blocks of tables and indexes that were read."""
        # A statement has those of its functions and triggers, too.
        outermost = (each["Plan"] for each in self.plans)
        return sum(each["Shared Hit Blocks"] + each["Shared Read Blocks"] for each in outermost)

    def scans(self) -> Iterator[Scan]:
        """All reads of tables."""
        for each in self.plans:
            yield from _scans(each["Plan"], each["Query Text"])


class PlanLog:
    """The plans of all connections to a database that are opened from now on."""

    def __init__(self, server: Server, database: str) -> None:
        self._log = server.folder / "log"
        self._database = database.encode()
        with psycopg.connect(server.url(database), autocommit=True) as connection:
            for name, value in _SETTINGS.items():
                sql = f"ALTER DATABASE {database} SET {name} = '{value}'"
                connection.execute(sql.encode())
        self._read = self._log.stat().st_size

    def take(self) -> Explained:
        """The plans since the last call."""
        with self._log.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        self._read += len(text)
        found = _PLAN.findall(text)
        return Explained([json.loads(plan) for name, plan in found if name == self._database])


def _scans(plan: dict[str, Any], statement: str) -> Iterator[Scan]:
    loops = plan["Actual Loops"]
    if "Relation Name" in plan and plan["Node Type"] != "ModifyTable":
        removed = sum(value for name, value in plan.items() if name.startswith("Rows Removed by"))
        rows = (plan["Actual Rows"] + removed) * loops
        yield Scan(plan["Relation Name"], plan["Node Type"], rows, statement)
    for part in plan.get("Plans", ()):
        yield from _scans(part, statement)
