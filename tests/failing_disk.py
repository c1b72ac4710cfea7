"""A session database on a disk that fails when a test says so.

SQLite itself is real; only the commit fails, the way it does: the transaction is taken back, and
the error carries SQLite's own code.
"""

import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

MESSAGES = {
    sqlite3.SQLITE_FULL: "database or disk is full",
    sqlite3.SQLITE_IOERR: "disk I/O error",
    sqlite3.SQLITE_READONLY: "attempt to write a readonly database",
}


class Disk:
    """Fails chosen commits; the first one after `arm` is number 1."""

    def __init__(self) -> None:
        self.commits = 0
        self.failed = 0
        self.code = sqlite3.SQLITE_FULL
        self.leaves_transaction_open = False
        self._is_bad: Callable[[int], bool] = lambda _: False

    def arm(self, *numbers: int, since: int | None = None) -> None:
        """Fail the commits of these numbers, and all from `since` on."""
        wanted = set(numbers)
        self.commits = self.failed = 0
        self._is_bad = lambda n: n in wanted or (since is not None and n >= since)

    def disarm(self) -> None:
        """There is room again."""
        self._is_bad = lambda _: False

    def fails_now(self) -> bool:
        """Whether this commit is one that fails."""
        self.commits += 1
        is_bad = self._is_bad(self.commits)
        self.failed += is_bad
        return is_bad

    def error(self) -> sqlite3.OperationalError:
        """What SQLite raises."""
        error = sqlite3.OperationalError(MESSAGES[self.code])
        error.sqlite_errorcode = self.code
        error.sqlite_errorname = "SQLITE_TEST"
        return error


def put_under(monkeypatch: pytest.MonkeyPatch, disk: Disk) -> None:
    """Let every connection that is opened from now on stand on this disk."""

    class OnDisk(sqlite3.Connection):
        is_stuck = False

        def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
            if sql == "COMMIT" and disk.fails_now():
                if disk.leaves_transaction_open:
                    self.is_stuck = True
                else:
                    super().execute("ROLLBACK")
                raise disk.error()
            if sql == "ROLLBACK" and self.is_stuck:
                raise disk.error()
            return super().execute(sql, parameters)

    connect = sqlite3.connect

    def on_disk(
        *arguments: Any,
        factory: type[sqlite3.Connection] = sqlite3.Connection,
        **settings: Any,
    ) -> sqlite3.Connection:
        both = type("OnDisk", (OnDisk, factory), {})  # what production adds stays
        return connect(*arguments, **settings, factory=both)

    monkeypatch.setattr(sqlite3, "connect", on_disk)
