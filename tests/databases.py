"""Databases that tests borrow, emptied in between: that costs a tenth of a clone that is dropped.

A database is lent again only if nothing but rows has changed since it was cloned; the statistics
of the server tell. Each loan has a name of its own, so that a program that an earlier test has
left behind finds no database instead of the next test's.
"""

import secrets
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg

from postgres import Server

_TABLES = """
SELECT format('%I.%I', schemaname, tablename) FROM pg_tables
WHERE schemaname NOT IN ('pg_catalog', 'information_schema')
"""
_SEQUENCES = """
SELECT format('SELECT setval(%L, %s, %L)', format('%I.%I', schemaname, sequencename),
    coalesce(last_value, start_value), last_value IS NOT NULL) FROM pg_sequences
"""
_CONNECTED = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = %s"

_ONLY_ROWS_CHANGED = """
SELECT current_setting('server_version_num')::int >= 150000  -- older ones count too late
    AND NOT EXISTS (SELECT FROM pg_stat_sys_tables JOIN pg_class ON pg_class.oid = relid
        WHERE NOT relisshared AND n_tup_ins + n_tup_upd + n_tup_del > 0)
    AND NOT EXISTS (SELECT FROM pg_stat_user_tables
        WHERE relid = ANY(%s::regclass[]) AND n_tup_ins + n_tup_upd + n_tup_del > 0)
    AND (SELECT sum(n_tup_ins) FROM pg_stat_user_tables) < 10000  -- few pages have to be read
    AND EXISTS (SELECT FROM pg_database WHERE datname = current_database()
        AND datacl IS NULL AND datconnlimit = -1)
    AND NOT EXISTS (SELECT FROM pg_db_role_setting JOIN pg_database ON pg_database.oid = setdatabase
        WHERE datname = current_database())
"""


class Databases:
    """The databases of one process, clones of `template`."""

    def __init__(self, server: Server, template: str, admin: psycopg.Connection[Any]) -> None:
        self._server = server
        self._template = template
        self._admin = admin
        self._free: list[str] = []
        self._filled: list[str] = []
        self._reset = ""

    @classmethod
    @contextmanager
    def opened(cls, server: Server, template: str) -> Generator["Databases"]:
        """Lend databases until the end of the context."""
        with psycopg.connect(server.url(), autocommit=True) as admin:
            yield cls(server, template, admin)

    @contextmanager
    def lend(self) -> Generator[str]:
        """Give the name of a database in which nothing has been stored yet."""
        name = self._free.pop() if self._free else self._clone()
        try:
            yield name
        finally:
            self._take_back(name)

    def _clone(self) -> str:
        name = self._server.create_database(self._template)
        if not self._reset:
            with psycopg.connect(self._server.url(name)) as connection:
                self._learn(connection)
        return name

    def _learn(self, clone: psycopg.Connection[Any]) -> None:
        """Read what a fresh database holds."""
        tables = [row[0] for row in clone.execute(_TABLES)]
        sequences = [row[0] for row in clone.execute(_SEQUENCES)]
        is_filled, empty = "SELECT EXISTS (SELECT FROM {})", "DELETE FROM {}"
        self._filled = [
            table
            for table in tables
            if clone.execute(is_filled.format(table).encode()).fetchone() == (True,)
        ]
        deletions = [empty.format(table) for table in tables if table not in self._filled]
        without_triggers = "SET LOCAL session_replication_role = replica"
        self._reset = "; ".join([without_triggers, *deletions, *sequences])

    def _take_back(self, name: str) -> None:
        with suppress(psycopg.Error):
            while self._admin.execute(_CONNECTED, (name,)).fetchone() != (0,):
                time.sleep(0.002)
            renamed = f"t_{secrets.token_hex(6)}"
            self._admin.execute(f'ALTER DATABASE "{name}" RENAME TO "{renamed}"'.encode())
            name = renamed
            with psycopg.connect(self._server.url(name)) as connection:
                found = connection.execute(_ONLY_ROWS_CHANGED, (self._filled,)).fetchone()
                if found == (True,):
                    connection.execute(self._reset.encode())
                    connection.commit()
                    self._free.append(name)
                    return
        self._server.drop_database(name)
