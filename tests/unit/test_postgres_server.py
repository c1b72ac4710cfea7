"""The server of the tests holds what its users count on."""

import asyncio

import psycopg
import pytest

from agent_core.storage.postgres import PostgresSessionStore
from databases import Databases
from postgres import Server
from rows import an_opening
from tables import together

OID = "SELECT oid FROM pg_database WHERE datname = current_database()"


@pytest.mark.parametrize("number", [1, 2, 3])
def test_each_test_has_a_database_of_its_own(database_url: str, number: int) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute("CREATE TABLE mine (number int)")
        connection.execute("INSERT INTO mine VALUES (%s)", (number,))
        assert connection.execute("SELECT number FROM mine").fetchall() == [(number,)]


def test_a_database_is_lent_again_empty_and_under_another_name(
    databases: Databases, shared_postgres: Server
) -> None:
    with databases.lend() as first:
        left = psycopg.connect(shared_postgres.url(first), autocommit=True)
        own = left.execute(OID).fetchall()
        asyncio.run(store_a_run(shared_postgres.url(first)))
        assert left.execute("SELECT rowid FROM sessions").fetchall() == [(1,)]
    with pytest.raises(psycopg.OperationalError):
        left.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(shared_postgres.url(first))
    with (
        databases.lend() as again,
        psycopg.connect(shared_postgres.url(again), autocommit=True) as connection,
    ):
        assert connection.execute(OID).fetchall() == own
        assert connection.execute("SELECT rowid FROM sessions").fetchall() == []
        assert connection.execute("SELECT count(*) > 0 FROM schema_migrations").fetchone() == (
            True,
        )
        asyncio.run(store_a_run(shared_postgres.url(again)))
        assert connection.execute("SELECT rowid FROM sessions").fetchall() == [(1,)]


async def store_a_run(url: str) -> None:
    async with PostgresSessionStore.open(url) as store:
        await store.open_run(an_opening())


@together(
    "change",
    [
        "CREATE SCHEMA more",
        "DROP INDEX blob_uses_of_blob",
        "ALTER TABLE runs ALTER COLUMN turn_count SET DEFAULT 7",
        "DELETE FROM schema_migrations",
        "GRANT CONNECT ON DATABASE {} TO public",
        "ALTER DATABASE {} SET lock_timeout = '1s'",
        "ALTER DATABASE {} CONNECTION LIMIT 5",
        "SELECT lo_create(0)",
    ],
)
def test_a_database_in_which_more_than_rows_has_changed_is_dropped(
    databases: Databases, shared_postgres: Server, change: str
) -> None:
    with databases.lend() as name:
        own = shared_postgres.sql(OID, name)
        shared_postgres.sql(change.format(name), name)
    assert own not in shared_postgres.sql("SELECT oid FROM pg_database").splitlines(keepends=True)


def test_a_killed_server_comes_back_with_what_it_acknowledged(postgres_server: Server) -> None:
    with psycopg.connect(postgres_server.url()) as connection:
        connection.execute("CREATE TABLE kept (number int)")
        connection.commit()
        postgres_server.kill()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    assert not postgres_server.is_running()
    postgres_server.start()
    assert postgres_server.sql("SELECT count(*) FROM kept") == "0\n"
    postgres_server.restart()
    assert postgres_server.is_running()
