"""The indexes of search: who builds them and when, and that search does without them."""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from agent_core.errors import StorageError
from agent_core.runtime.copying import StoreAddress, migrate_store
from agent_core.storage.postgres import PostgresSessionStore, search
from agent_core.storage.postgres.health import examine
from agent_core.types import Dispatch, TextBlock
from explained import PlanLog
from isolation import run_folder
from postgres import Server, migrated_template
from rows import a_batch, a_node, an_opening


@pytest.fixture
def database_url(shared_postgres: Server) -> Iterator[str]:
    """A database whose tables the test may change."""
    template = migrated_template(shared_postgres, run_folder())
    name = shared_postgres.create_database(template)
    yield shared_postgres.url(name)
    shared_postgres.drop_database(name)


TENANTS = ("acme", "bolt")
TEXTS = ("the Kumquat is ripe", "ümläut-kumquat, 100%", "nothing of the kind")


async def fill(url: str) -> None:
    """A session of each tenant, with these texts."""
    async with PostgresSessionStore.open(url) as store:
        for tenant in TENANTS:
            dispatch = Dispatch(queue="q", home="host:a", tenant=tenant)
            await store.queue_run(an_opening(tenant, f"run_{tenant}", dispatch=dispatch))
            nodes = [
                a_node(
                    f"{tenant}{number}",
                    session_id=tenant,
                    run_id=f"run_{tenant}",
                    content=[TextBlock(text=text)],
                )
                for number, text in enumerate(TEXTS)
            ]
            await store.append(a_batch(*nodes, session_id=tenant, run_id=f"run_{tenant}"))


async def found(url: str, tenant: str | None, *words: str) -> list[str]:
    async with PostgresSessionStore.open(url, tenant=tenant) as store:
        return [node.node_id for _, node in await store.nodes_with(words, limit=9) if node]


async def require_search(url: str) -> None:
    """Search finds the same, whatever it has to search with."""
    assert await found(url, None, "kumquat") == ["bolt1", "bolt0", "acme1", "acme0"]
    for tenant in TENANTS:
        assert await found(url, tenant, "kumquat") == [f"{tenant}1", f"{tenant}0"]
        assert await found(url, tenant, "ümläut", "100%") == [f"{tenant}1"]
        assert await found(url, tenant, "un") == []
        assert await found(url, tenant, "of") == [f"{tenant}2"]


def execute(url: str, *statements: str) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements[:-1]:
            connection.execute(statement.encode())
        cursor = connection.execute(statements[-1].encode())
        return cursor.fetchall() if cursor.description else []


def build(url: str) -> None:
    """As `soong-agent store migrate` does."""
    migrate_store(StoreAddress("env:IT", url=url))


WITHOUT = ("DROP INDEX nodes_words, nodes_of_tenant", "UPDATE nodes SET tenant = NULL")
"""As a database is that had nodes before they had a tenant."""


@pytest.mark.long
async def test_a_new_database_has_the_indexes(database_url: str) -> None:
    assert examine(database_url).search == "there"
    await fill(database_url)
    await require_search(database_url)


async def test_a_small_database_gets_them_when_it_is_opened(database_url: str) -> None:
    await fill(database_url)
    execute(database_url, *WITHOUT)
    await require_search(database_url)
    assert examine(database_url).search == "there"


async def test_processes_that_open_it_at_once_build_them_once(database_url: str) -> None:
    execute(database_url, *WITHOUT, "DROP EXTENSION pg_trgm, btree_gin")
    results = await asyncio.gather(*(found(database_url, None, "anything") for _ in range(6)))
    assert results == [[]] * 6
    assert examine(database_url).search == "there"


@pytest.mark.long
async def test_a_filled_one_is_searched_without_and_gets_them_from_store_migrate(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_IS_SMALL", "SELECT FALSE")
    await fill(database_url)
    execute(database_url, *WITHOUT)
    await require_search(database_url)
    assert examine(database_url).search == "missing"
    build(database_url)
    assert examine(database_url).search == "there"
    of_tenants = execute(database_url, "SELECT node_id FROM nodes WHERE tenant <> session_id")
    assert of_tenants == execute(database_url, "SELECT node_id FROM nodes WHERE tenant IS NULL")
    await require_search(database_url)


async def test_a_killed_migration_is_continued_by_the_next(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_IS_SMALL", "SELECT FALSE")
    await fill(database_url)
    execute(database_url, *WITHOUT)
    with psycopg.connect(database_url) as writer, ThreadPoolExecutor() as threads:
        writer.execute("LOCK TABLE nodes IN ROW EXCLUSIVE MODE")  # an index waits for it
        building = threads.submit(build, database_url)
        sql = (
            "SELECT pid FROM pg_stat_progress_create_index WHERE phase LIKE 'waiting for writers%'"
        )
        ((pid,),) = until(lambda: execute(database_url, sql))
        build(database_url)  # another process does not wait for it
        execute(database_url, f"SELECT pg_terminate_backend({pid}, 10000)")
        assert isinstance(building.exception(), StorageError)
    invalid = "SELECT count(*) FROM pg_index WHERE NOT indisvalid"
    assert execute(database_url, invalid) == [(1,)]
    await require_search(database_url)
    build(database_url)
    assert examine(database_url).search == "there"
    assert execute(database_url, invalid) == [(0,)]


def until(look: Callable[[], list[Any]]) -> list[Any]:
    while not (seen := look()):
        time.sleep(0.01)
    return seen


async def test_search_does_without_the_extensions_and_says_so(database_url: str) -> None:
    guest = f"guest_{database_url.rpartition('/')[2]}"
    await fill(database_url)
    execute(
        database_url,
        "DROP EXTENSION pg_trgm CASCADE",
        "DROP EXTENSION btree_gin CASCADE",
        f"CREATE ROLE {guest} LOGIN PASSWORD 'secret'",
        f"GRANT ALL ON ALL TABLES IN SCHEMA public, public_of_tenant TO {guest}",
        f"GRANT USAGE ON SCHEMA public_of_tenant TO {guest}",
    )
    url = f"postgresql://{guest}:secret@{database_url.rpartition('@')[2]}"
    try:
        await require_search(url)
        assert examine(url).search == "impossible"
        build(url)  # it may not, and says nothing
        assert examine(database_url).search == "missing"
        build(database_url)
        assert examine(url).search == "there"
    finally:
        execute(database_url, f"DROP OWNED BY {guest}", f"DROP ROLE {guest}")


UTF8 = "en_US.UTF-8" if sys.platform == "darwin" else "C.UTF-8"
STORY = "Мой Дом, a1é, 图书馆, 1→→→2, cd-图书馆xyz"


@pytest.mark.long
@pytest.mark.parametrize(
    ("letters", "by_index", "without"),
    [
        (UTF8, ["дом", "图书馆", "a1é", "d-图书馆"], ["до", "书馆", "й д", "→→→"]),
        ("C", ["馆xyz"], ["дом", "图书馆", "a1é", "до", "→→→"]),
    ],
)
async def test_a_word_of_any_script_is_found_by_the_index_if_it_knows_its_letters(
    shared_postgres: Server, letters: str, by_index: list[str], without: list[str]
) -> None:
    name = shared_postgres.create_database("template0", letters=letters)
    url = shared_postgres.url(name)
    columns = "session_id, agent_id, role, node_type, content_json, metadata_json, token_count"
    try:
        await fill(url)
        execute(
            url,
            f"""INSERT INTO nodes ({columns}, created_at, node_id, node_seq)
                SELECT {columns}, created_at, 'other' || number, 100 + number
                FROM nodes, generate_series(1, 1000) AS number WHERE node_id = 'acme0'""",  # noqa: S608
            f"""UPDATE nodes SET content_json = '[{{"type": "text", "text": "{STORY}"}}]'
                WHERE node_id = 'bolt2'""",  # noqa: S608
            "VACUUM ANALYZE nodes",
        )
        plans = PlanLog(shared_postgres, name)
        execute(url, f"ALTER DATABASE {name} SET auto_explain.log_nested_statements = off")
        for word in (*by_index, *without):
            assert await found(url, None, word) == ["bolt2"], word
            read = json.dumps([each["Plan"] for each in plans.take().plans])
            assert ('"nodes_words"' in read) is (word in by_index), word
        execute(url, "CREATE SCHEMA hidden", "ALTER EXTENSION pg_trgm SET SCHEMA hidden")
        assert await found(url, None, "дом") == ["bolt2"]
    finally:
        shared_postgres.drop_database(name)
