"""A memory store in Postgres: shared by processes, behind a pooler, on lost connections."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Iterator
from datetime import timedelta
from subprocess import PIPE

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from agcore.agent import SessionMemory
from agcore.llm import ChatMessage
from agcore.memory import (
    ConversationMemory,
    ConversationMemoryConfig,
    EvictionConfig,
    KnowledgeStore,
    MemoryError,  # noqa: A004 - the toolkit's own
    MemoryItem,
    MemoryRetriever,
    PostgresStore,
)
from agent_core.types import utc_now
from isolation import program_file
from pooler import UNAVAILABLE, find_pgbouncer, pooled
from postgres import Server
from tcp_proxy import Proxy

WRITER = """
import asyncio, sys
from agcore.agent import SessionMemory
from agcore.memory import ConversationMemory, EvictionConfig, PostgresStore
from agcore.llm import ChatMessage

async def main():
    url, table, name = sys.argv[1:]
    async with await PostgresStore.open(url, EvictionConfig(capacity=500), table=table) as store:
        conversation = ConversationMemory(store, "s1")
        for number in range(10):
            texts = [f"{name} asks {number}", f"{name} answers {number}"]
            await conversation.add_messages(map(ChatMessage.user_text, texts))
        memory = SessionMemory(store, "s1")
        await memory.set(name, "was here")
        print(await memory.get("main"))

asyncio.run(main())
"""


FORKED = """
import asyncio, os, sys, warnings
from agcore.memory import MemoryItem, PostgresStore
warnings.simplefilter("ignore", DeprecationWarning)  # of fork beside threads

async def begin():
    store = await PostgresStore.open(sys.argv[1], table=sys.argv[2])
    await store.save(MemoryItem(id="a", content="x"))
    return store

async def use(store):
    try:
        print((await store.get("a")).content, flush=True)
    except Exception as error:
        print(error, flush=True)
    await store.close()

store = asyncio.run(begin())
if child := os.fork():
    os.waitpid(child, 0)
asyncio.run(use(store))
"""


@pytest.fixture
async def store(memory_database: str, memory_table: str) -> AsyncGenerator[PostgresStore]:
    async with await PostgresStore.open(memory_database, table=memory_table) as opened:
        yield opened


@pytest.fixture
def proxy(shared_postgres: Server) -> Iterator[Proxy]:
    with Proxy.in_thread(shared_postgres.port) as opened:
        yield opened


async def write_in_processes(url: str, table: str, *names: str) -> list[str]:
    """What each of the processes has read of the session memory."""
    argv = [sys.executable, program_file(WRITER), url, table]
    started = [
        await asyncio.create_subprocess_exec(*argv, name, stdout=PIPE, stderr=PIPE)
        for name in names
    ]
    read: list[str] = []
    for process in started:
        output, errors = await process.communicate()
        assert (process.returncode, errors) == (0, b"")
        read.append(output.decode().strip())
    return read


@pytest.mark.long
async def test_processes_create_one_table_and_share_its_conversations_and_session_memory(
    memory_database: str, memory_table: str
) -> None:
    names = ["ada", "ben", "cleo"]
    assert await write_in_processes(memory_database, memory_table, *names) == ["None"] * 3
    async with await PostgresStore.open(memory_database, table=memory_table) as store:
        memory = SessionMemory(store, "s1")
        assert await memory.entries() == dict.fromkeys(names, "was here")
        await memory.set("main", "sees them")
        assert await write_in_processes(memory_database, memory_table, "dan") == ["sees them"]
        assert await memory.get("dan") == "was here"
        conversation = ConversationMemory(store, "s1", ConversationMemoryConfig.full())
        texts = [message.text for message in await conversation.get_history()]
    assert sorted(texts) == sorted(
        f"{name} {verb} {number}"
        for name in (*names, "dan")
        for verb in ("asks", "answers")
        for number in range(10)
    )
    asked = texts[::2]
    assert texts[1::2] == [text.replace("asks", "answers") for text in asked]


@pytest.mark.skipif(find_pgbouncer() is None, reason=UNAVAILABLE)
async def test_a_pooler_with_one_connection_serves_several_stores(
    shared_postgres: Server, memory_database: str, memory_table: str
) -> None:
    limit = EvictionConfig(capacity=15)
    with pooled(shared_postgres) as port:
        url = shared_postgres.url(memory_database.rpartition("/")[2], port=port)
        async with (
            await PostgresStore.open(url, limit, table=memory_table) as one,
            await PostgresStore.open(url, limit, table=memory_table) as other,
        ):
            for store in (one, other):
                await KnowledgeStore(store).save_page("Boats", "How boats are copied.")
            found = await MemoryRetriever(KnowledgeStore(one)).search("a copied boat")
            assert [item.page.title for item in found.items] == ["Boats", "Boats"]
            saving = [
                store.save(MemoryItem(id=f"{number}", content="x"))
                for number in range(15)
                for store in (one, other)
            ]
            await asyncio.gather(*saving)
            assert len(await other.list()) == 15


async def test_items_that_are_too_old_are_deleted_from_the_table(
    memory_database: str, memory_table: str
) -> None:
    ttl = EvictionConfig(ttl=timedelta(minutes=1))
    async with await PostgresStore.open(memory_database, table=memory_table) as store:
        old = utc_now() - timedelta(minutes=2)
        await store.save(MemoryItem(id="old", content="x", created_at=old))
    async with await PostgresStore.open(memory_database, ttl, table=memory_table) as store:
        assert await store.list() == []
        await store.save(MemoryItem(id="new", content="x"))
    with psycopg.connect(memory_database) as connection:
        rows = connection.execute(SQL("SELECT id FROM {}").format(Identifier(memory_table)))
        assert rows.fetchall() == [("new",)]


async def test_messages_whose_commit_was_not_answered_are_kept_once(
    shared_postgres: Server, memory_database: str, memory_table: str, proxy: Proxy
) -> None:
    url = shared_postgres.url(memory_database.rpartition("/")[2], port=proxy.port)
    async with (
        await PostgresStore.open(memory_database, table=memory_table) as direct,
        await PostgresStore.open(url, table=memory_table) as store,
    ):
        conversation = ConversationMemory(store, "s1")
        proxy.unanswered = b"COMMIT"
        adding = asyncio.create_task(conversation.add_message(ChatMessage.user_text("once")))
        while not await direct.list():  # noqa: ASYNC110 - the database tells no one
            await asyncio.sleep(0.005)
        proxy.unanswered = None
        proxy.cut()
        await adding
        assert [message.text for message in await conversation.get_archive()] == ["once"]


async def test_a_connection_that_the_server_ends_is_replaced(
    store: PostgresStore, memory_database: str
) -> None:
    end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
    for number in range(3):
        with psycopg.connect(memory_database) as connection:
            connection.execute(f"{end} AND datname = current_database()".encode())
        await store.save(MemoryItem(id=f"{number}", content="x"))
        assert len(await store.list()) == number + 1


async def test_a_table_of_something_else_and_a_name_that_is_none_are_refused(
    memory_database: str, memory_table: str
) -> None:
    with psycopg.connect(memory_database) as connection:
        connection.execute(SQL("CREATE TABLE {} (id TEXT)").format(Identifier(memory_table)))
    with pytest.raises(MemoryError.Storage, match=f"{memory_table} is not a memory store"):
        await PostgresStore.open(memory_database, table=memory_table)
    for name in ("", "a b", 'a"; DROP TABLE x', "A", "1"):
        with pytest.raises(MemoryError.Invalid, match="lower-case letters"):
            await PostgresStore.open(memory_database, table=name)


async def test_a_database_that_cannot_be_used_is_explained_without_its_address(
    memory_database: str, store: PostgresStore
) -> None:
    begin = memory_database.rpartition("/")[0]
    bad = {
        f"{begin}/nothing": "does not exist",
        memory_database.replace("soong:", "soong:wrong"): "password",
        "postgresql://soong:secret@127.0.0.1:1/x": "nothing listens there",
        "postgresql://soong:secret@[x/y": "libpq cannot read the address",
    }
    for url, reason in bad.items():
        with pytest.raises(MemoryError.Storage, match=reason) as caught:
            await PostgresStore.open(url)
        assert "secret" not in str(caught.value)
        assert "sessions" not in str(caught.value)
    await store.close()
    await store.close()
    with pytest.raises(MemoryError.Storage, match="the database is closed"):
        await store.get("a")


async def test_a_search_reads_the_words_it_looks_for_and_no_others(
    store: PostgresStore, memory_database: str, memory_table: str
) -> None:
    knowledge = KnowledgeStore(store)
    for number in range(40):
        await knowledge.save_page(f"Page {number}", f"About number{number} of many. " * 5)
    found = await MemoryRetriever(knowledge).search("number17")
    assert [item.page.title for item in found.items] == ["Page 17"]
    with psycopg.connect(memory_database) as connection:
        connection.execute(b"SET enable_seqscan = off")  # of a small table, it would read all
        query = SQL("EXPLAIN SELECT number, part, size FROM {} WHERE word = 'number17'")
        words = Identifier(f"{memory_table}_word")
        plan = connection.execute(query.format(words)).fetchall()
        assert "Index Cond: (word = 'number17'" in str(plan)
        left = SQL("SELECT count(*) FROM {}").format(words)
        assert connection.execute(left).fetchone() != (0,)
        for page in await knowledge.pages():
            await knowledge.delete_page(page.page_id)
        assert connection.execute(left).fetchone() == (0,)


async def test_a_forked_process_is_refused_the_store_of_its_parent(
    memory_database: str, memory_table: str
) -> None:
    argv = [sys.executable, program_file(FORKED), memory_database, memory_table]
    process = await asyncio.create_subprocess_exec(*argv, stdout=PIPE, stderr=PIPE)
    output, errors = await process.communicate()
    assert (process.returncode, errors) == (0, b"")
    child, parent = output.decode().splitlines()
    assert "was opened before this process was forked" in child
    assert parent == "x"


async def test_a_user_who_may_not_create_the_table_is_told_what_to_do(
    memory_database: str, memory_table: str
) -> None:
    role = Identifier(f"role_{memory_table}")  # roles belong to the server, which others use
    address = f"postgresql://role_{memory_table}:x@{memory_database.rpartition('@')[2]}"
    with psycopg.connect(memory_database, autocommit=True) as connection:
        connection.execute(SQL("CREATE ROLE {} LOGIN PASSWORD 'x'").format(role))
        connection.execute(b"REVOKE CREATE ON SCHEMA public FROM PUBLIC")
        try:
            with pytest.raises(MemoryError.Storage, match="may not create or use the tables"):
                await PostgresStore.open(address, table=memory_table)
        finally:
            connection.execute(SQL("DROP ROLE {}").format(role))
