"""Examines a Postgres database without changing it."""

from contextlib import closing
from datetime import UTC, datetime

import psycopg
from msgspec import Struct

from agent_core.storage.migrations import MIGRATIONS
from agent_core.storage.postgres.faults import explain
from agent_core.storage.postgres.schema import is_complete, version_of
from agent_core.storage.postgres.search import SearchIndex, search_index
from agent_core.storage.postgres.settings import connect
from agent_core.storage.postgres.upgrades import pending_upgrades

OLDEST_SERVER = 14

_ABOUT = """SELECT pg_database_size(current_database()),
    has_schema_privilege(current_schema(), 'CREATE')
        AND has_database_privilege(current_database(), 'CREATE'),
    pg_is_in_recovery() OR current_setting('default_transaction_read_only') = 'on',
    clock_timestamp()"""
_LOCKED_TABLES = """SELECT coalesce(string_agg(relname, ', ' ORDER BY relname), '')
    FROM pg_class WHERE relnamespace = CAST(current_schema() AS regnamespace) AND relkind = 'r'
    AND NOT (has_table_privilege(oid, 'SELECT') AND has_table_privilege(oid, 'INSERT')
        AND has_table_privilege(oid, 'UPDATE') AND has_table_privilege(oid, 'DELETE'))"""


class ServerHealth(Struct, frozen=True, kw_only=True):
    """The state of a Postgres database of sessions.

    Attributes:
        database: name of the database.
        server: major version of the server.
        version: version of the schema; 0 if there are no tables yet, or they may not be read.
        newest: newest schema version known to this program.
        size_bytes: size of the database.
        can_create: whether tables, and the schema of tenants' views, can be created, as migrations
            do.
        is_read_only: whether it is a standby server, or set to be only read.
        encoding: encoding of its text.
        closed_tables: names of tables that may not be read or written.
        upgrades: number of Procrastinate's upgrades that its tables lack.
        is_complete: whether the tables that belong to no version are there.
        is_pooled: whether the address leads to a pooler, which shares the server's connections.
        search: whether search has its indexes.
        clock_s: seconds by which the server's clock is ahead of this machine's.
    """

    database: str
    server: int
    version: int
    newest: int
    size_bytes: int
    can_create: bool
    is_read_only: bool
    encoding: str
    closed_tables: str
    upgrades: int
    is_complete: bool
    is_pooled: bool
    search: SearchIndex
    clock_s: float


def examine(url: str) -> ServerHealth:
    """Examine a database; blocks.

    Raises:
        StorageError: it cannot be reached or used, or is of a newer version.
    """
    try:
        with closing(connect(url)) as connection, connection.transaction():
            before = datetime.now(UTC)
            row = connection.execute(_ABOUT).fetchone()
            passed = datetime.now(UTC) - before
            assert row is not None  # noqa: S101 - it selects no table
            size, can_create, is_read_only, now = row
            closed = connection.execute(_LOCKED_TABLES).fetchone()
            closed_tables = closed[0] if closed else ""
            return ServerHealth(
                database=connection.info.dbname,
                server=connection.info.server_version // 10_000,
                version=0 if closed_tables else version_of(connection),
                newest=MIGRATIONS[-1].version,
                size_bytes=size,
                can_create=can_create,
                is_read_only=is_read_only,
                encoding=connection.info.parameter_status("server_encoding") or "unknown",
                closed_tables=closed_tables,
                upgrades=len(pending_upgrades(connection)),
                is_complete=is_complete(connection),
                is_pooled=connection.is_pooled,
                search=search_index(connection),
                clock_s=(now - before - passed / 2).total_seconds(),
            )
    except psycopg.Error as error:
        raise explain(error) from None
