"""What becomes of runs when the database was away for longer than a lease."""

import asyncio
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest

from agent_core import AgentRuntime
from agent_core.providers.scripted import Hangs
from agent_core.storage.postgres import PostgresSessionStore
from agent_core.types import Dispatch, RunPrompt, RunStatus, TextBlock
from isolation import Home, fresh_folder
from model_server import ModelServer
from postgres import Server
from rows import an_opening
from tcp_proxy import Proxy
from worker_processes import WorkerProcess, workers, write_config

LEASE_S = 1.5
IS_OVER = "SELECT CAST(lease_expires_at AS TIMESTAMPTZ) < clock_timestamp() FROM sessions"
IS_OWNED = "SELECT owner IS NOT NULL FROM sessions"
LAST_BEAT = "SELECT max(heartbeat_at) FROM workers"
"""When the only worker has said last that it lives."""

pytestmark = pytest.mark.timeout(120)


async def selected(connection: psycopg.AsyncConnection, query: LiteralString) -> Any:
    """The only value of the only row."""
    row = await (await connection.execute(query)).fetchone()
    assert row is not None
    return row[0]


async def after_beats(connection: psycopg.AsyncConnection, number: int) -> None:
    """Wait until the only worker has said so many times more that it lives."""
    seen = {await selected(connection, LAST_BEAT)}
    while len(seen) <= number:
        await asyncio.sleep(0.02)
        seen.add(await selected(connection, LAST_BEAT))


@pytest.mark.long
async def test_a_new_worker_leaves_runs_to_those_that_were_cut_off(
    home: Home, project: Path, database_url: str, shared_postgres: Server
) -> None:
    database, elsewhere = database_url.rpartition("/")[2], Home(fresh_folder("home", "elsewhere"))
    with (
        ModelServer.in_thread([Hangs(), "from over there"]) as server,
        Proxy.in_thread(shared_postgres.port) as proxy,
        workers(home, shared_postgres.url(database, port=proxy.port)) as crew,
        workers(elsewhere, database_url) as others,
    ):
        for each in (home, elsewhere):
            write_config(each, server, lease_s=LEASE_S)
        await asyncio.to_thread(crew.start)
        async with (
            AgentRuntime(
                project_dir=project, home_dir=elsewhere.path, database_url=database_url
            ) as runtime,
            await psycopg.AsyncConnection.connect(database_url, autocommit=True) as watching,
        ):
            handle = await runtime.start("go")
            while not server.requests:  # noqa: ASYNC110 - the server is in a thread
                await asyncio.sleep(0.02)
            new: WorkerProcess | None = None
            for _ in range(2):
                proxy.stall()
                while not await selected(watching, IS_OVER):  # noqa: ASYNC110 - a row
                    await asyncio.sleep(0.05)
                if new is None:
                    new = await asyncio.to_thread(others.start)
                    proxy.flow()
                    await after_beats(watching, 20)
                    assert "continues" not in new.text
                    assert await selected(watching, IS_OWNED)
            await (await runtime.attach(handle.run_id)).wait()
            assert new is not None
            assert "continues" in new.text, "this time it has stayed away"


@pytest.mark.sweep
async def test_a_process_that_could_not_say_that_it_lives_gets_the_time_for_it(
    home: Home, database_url: str, shared_postgres: Server
) -> None:
    database = database_url.rpartition("/")[2]
    with ModelServer.in_thread([]) as server, Proxy.in_thread(shared_postgres.port) as proxy:
        write_config(home, server, lease_s=LEASE_S)
        with workers(home, shared_postgres.url(database, port=proxy.port)) as crew:
            async with (
                PostgresSessionStore.open(database_url) as store,
                await psycopg.AsyncConnection.connect(database_url, autocommit=True) as watching,
            ):
                process = await store.queue(LEASE_S).register()
                await asyncio.to_thread(crew.start)
                proxy.stall()
                opening = an_opening(
                    owner="a-process.elsewhere",
                    prompt=RunPrompt(content=[TextBlock(text="go")]),
                    dispatch=Dispatch(queue="default", home="host:there", process=process),
                )
                await store.queue_run(opening)
                await asyncio.sleep(2 * LEASE_S)
                proxy.flow()
                await after_beats(watching, 3)
                run = await store.run(opening.run_id)
                assert run is not None
                assert run.status is RunStatus.QUEUED
                while run is not None and run.status is RunStatus.QUEUED:
                    await asyncio.sleep(0.1)  # it does not say so at all: it is dead
                    run = await store.run(opening.run_id)
                assert run is not None
                assert run.status is RunStatus.FAILED
