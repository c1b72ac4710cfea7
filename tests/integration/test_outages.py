"""What becomes of runs when the database was away for longer than a lease."""

import asyncio
from pathlib import Path

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

pytestmark = pytest.mark.timeout(120)


def beats(url: str) -> float:
    """When the only worker has said last that it lives, on the server's clock."""
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT extract(epoch FROM max(heartbeat_at)) FROM workers")
        return float(row.fetchone()[0])  # type: ignore[index] - an aggregate has a row


async def next_beat(url: str, after: float) -> float:
    while (found := await asyncio.to_thread(beats, url)) <= after:  # noqa: ASYNC110 - a row
        await asyncio.sleep(0.02)
    return found


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
        async with AgentRuntime(
            project_dir=project, home_dir=elsewhere.path, database_url=database_url
        ) as runtime:
            handle = await runtime.start("go")
            while not server.requests:  # noqa: ASYNC110 - the server is in a thread
                await asyncio.sleep(0.02)
            new: WorkerProcess | None = None
            for _ in range(2):
                proxy.stall()
                while shared_postgres.sql(IS_OVER, database) != "t\n":  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                if new is None:
                    new = await asyncio.to_thread(others.start)
                    proxy.flow()
                    last = beats(database_url)
                    for _ in range(20):
                        last = await next_beat(database_url, last)
                    assert "continues" not in new.text
                    assert (
                        shared_postgres.sql("SELECT owner IS NULL FROM sessions", database) == "f\n"
                    )
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
            async with PostgresSessionStore.open(database_url) as store:
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
                last = await asyncio.to_thread(beats, database_url)
                proxy.flow()
                for _ in range(3):
                    last = await next_beat(database_url, last)
                run = await store.run(opening.run_id)
                assert run is not None
                assert run.status is RunStatus.QUEUED
                while run is not None and run.status is RunStatus.QUEUED:
                    await asyncio.sleep(0.1)  # it does not say so at all: it is dead
                    run = await store.run(opening.run_id)
                assert run is not None
                assert run.status is RunStatus.FAILED
