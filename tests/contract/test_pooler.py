"""The store behind a real PgBouncer, whose server connections clients share by transaction."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack
from io import BytesIO
from pathlib import Path
from typing import Any

import psycopg
import pytest

from agent_core import AgentRuntime, EventType, RunStatus, Worker
from agent_core.blobs.base import BlobId
from agent_core.cli.databases import examine_server
from agent_core.config.load import read_setup
from agent_core.errors import StorageError
from agent_core.providers.scripted import ScriptedProvider
from agent_core.storage.postgres import PostgresSessionStore
from agent_core.storage.postgres.blobs import PostgresBlobs
from agent_core.storage.postgres.health import examine
from agent_core.types import Dispatch, ModelRequest, NewRun
from isolation import Home
from pooler import UNAVAILABLE, find_pgbouncer, pooled
from postgres import Server
from rows import a_batch, a_node, a_turn_hold, an_event, an_opening
from tcp_proxy import Proxy

pytestmark = pytest.mark.skipif(find_pgbouncer() is None, reason=UNAVAILABLE)

LEFT_BEHIND = """SET soong.tenant = 'others'; SET search_path = hostile; SET lock_timeout = '1ms';
    SET DateStyle = 'SQL, DMY'; SET TimeZone = 'Asia/Tokyo'; SET IntervalStyle = 'sql_standard';
    SET bytea_output = 'escape'; SET standard_conforming_strings = off;
    SET default_transaction_isolation = 'serializable'; SET synchronous_commit = off"""
"""What a client may leave on a connection that others get after it."""


@pytest.fixture(scope="module")
def port(shared_postgres: Server) -> Generator[int]:
    with pooled(shared_postgres) as opened:
        yield opened


@pytest.fixture
def url(shared_postgres: Server, database_url: str, port: int) -> str:
    return shared_postgres.url(database_url.rpartition("/")[2], port=port)


def execute(url: str, sql: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True, prepare_threshold=None) as connection:
        cursor = connection.execute(sql.encode())
        return cursor.fetchall() if cursor.description else []


async def test_tenants_that_share_one_connection_see_only_their_own(
    url: str, database_url: str
) -> None:
    async with AsyncExitStack() as stack:
        mine, others, everybodys = [
            await stack.enter_async_context(PostgresSessionStore.open(url, tenant=tenant))
            for tenant in ("mine", "others", None)
        ]
        execute(url, LEFT_BEHIND)
        await mine.open_run(an_opening("mine", "run_mine", agent_id="agent_mine"))
        await others.open_run(an_opening())
        await asyncio.gather(
            *(others.append(a_batch(a_node(f"n{number}"), an_event())) for number in range(10)),
            *(mine.rename_session("mine", f"title {number}") for number in range(10)),
            *(others.reserve_budget(a_turn_hold(f"hold_{number}")) for number in range(10)),
        )
        for _ in range(5):
            seen = await asyncio.gather(*(each.sessions() for each in (mine, others, everybodys)))
            assert [{one.session_id for one in each} for each in seen] == [
                {"mine"},
                {"s1"},
                {"mine", "s1"},
            ]
            assert await mine.session("s1") is None
            assert await mine.run("run_1") is None
            assert [each.run_id for each in await others.runs("s1")] == ["run_1"]
        assert {(each.session_id, each.tenant) for each in await everybodys.sessions()} == {
            ("mine", "mine"),
            ("s1", "others"),
        }
        assert await everybodys.costs("day") is not None


async def test_nothing_of_a_client_stays_on_the_connection_it_had(url: str) -> None:
    async with PostgresSessionStore.open(url, tenant="mine") as store:
        queue = store.queue(30)
        await store.queue_run(queued("s2"))
        assert await queue.fetch_next(lambda lane: True)
        await store.open_run(an_opening())
        await store.append(a_batch(a_node("n1")))
    blobs = PostgresBlobs(url)
    blobs.snapshots_in_use()
    blobs.close()
    its_own = {("application_name",), ("client_encoding",), ("TimeZone",), ("DateStyle",)}
    settings = execute(url, "SELECT name FROM pg_settings WHERE source = 'session'")
    assert set(settings) <= its_own, "a pooler sets these to what each client has"
    left = """SELECT coalesce(current_setting('soong.tenant', TRUE), ''),
        (SELECT count(*) FROM pg_prepared_statements),
        (SELECT count(*) FROM pg_listening_channels()),
        (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid())"""
    assert execute(url, left) == [("", 0, 0, 0)]


def queued(session_id: str) -> NewRun:
    dispatch = Dispatch(queue="default", home="host:a", tenant="mine")
    return an_opening(session_id, f"run_{session_id}", dispatch=dispatch)


async def test_the_server_process_of_a_lost_connection_is_left_to_the_pooler(
    shared_postgres: Server, database_url: str, port: int
) -> None:
    with Proxy.in_thread(port) as proxy:
        url = shared_postgres.url(database_url.rpartition("/")[2], port=proxy.port)
        async with PostgresSessionStore.open(url, tenant="mine", patience=20) as store:
            await store.open_run(an_opening())
            for number in range(3):
                proxy.cut()
                await store.append(a_batch(an_event()))
                proxy.cut()
                await store.rename_session("s1", f"title {number}")
            links = store._threads._links
            assert [link.connection.process for link in links] == [None] * len(links)
            assert len(await store.events_after("run_1", 0)) == 3


def test_blobs_need_only_one_connection(url: str) -> None:
    blobs = PostgresBlobs(url)
    content = b"content"
    blob = BlobId(hashlib.sha256(content).hexdigest(), len(content))
    blobs.keep(blob, BytesIO(content), session_id="s1", used_by="art_1")
    assert b"".join(blobs.pieces(blob.digest)) == content
    blobs.release("s1")
    assert execute(url, "SELECT count(*) FROM blob_pieces") == [(0,)]
    blobs.close()


async def answer(request: ModelRequest) -> AsyncGenerator[str]:
    if "go on" in str(request.messages[-1]):
        await asyncio.Event().wait()
    yield "hello"


@pytest.mark.timeout(120)
async def test_runs_are_queued_taken_watched_answered_and_cancelled(
    home: Home, project: Path, url: str
) -> None:
    home.write_config("[memory]\nenabled = false\n")
    options: dict[str, Any] = {"home_dir": home.path, "database_url": url, "tenant": "mine"}
    provider = ScriptedProvider(answer)
    worker = Worker(model=provider, **options)
    async with (
        asyncio.TaskGroup() as group,
        AgentRuntime(project, model=provider, **options) as runtime,
    ):
        group.create_task(worker.run())
        handle = await runtime.start("go", "s1")
        events = [event async for event in (await runtime.attach(handle.run_id)).events()]
        assert events[-1].event_type is EventType.RUN_COMPLETED
        assert (await handle.result()).text == "hello"
        handle = await runtime.start("go on", "s1")
        async for event in handle.events():
            if event.event_type is EventType.MODEL_STARTED:
                await (await runtime.attach(handle.run_id)).cancel()
        assert await handle.wait() is RunStatus.CANCELLED
        assert [each.session_id for each in await runtime.list_sessions()] == ["s1"]
        worker.drain()


def test_the_check_says_what_a_pooler_does_not_carry(home: Home, project: Path, url: str) -> None:
    assert examine(url).is_pooled
    setup = read_setup(project, home_dir=home.path, model="ollama:m")
    (notices,) = [each for each in examine_server(url, setup) if each.name == "notices"]
    assert notices.state == "remark"
    assert "the server's own address" in str(notices.cure)


async def test_a_pooler_that_shares_within_transactions_is_refused(
    shared_postgres: Server, database_url: str
) -> None:
    with pooled(shared_postgres, mode="statement") as port:
        url = shared_postgres.url(database_url.rpartition("/")[2], port=port)
        with pytest.raises(StorageError, match="pool_mode = transaction"):
            async with PostgresSessionStore.open(url):
                pass
        with pytest.raises(StorageError, match="pool_mode = transaction"):
            examine(url)
