"""Which of the waiting runs a worker gets: of the lanes that it serves, and of tenants in turn."""

import asyncio

import pytest

from agent_core.storage.postgres import PostgresSessionStore
from agent_core.storage.postgres.queue import RunQueue
from agent_core.storage.postgres.settings import connect
from agent_core.types import Dispatch, NewRun
from agent_core.types.lanes import Lane
from rows import an_opening


def opening(number: int, tenant: str | None = None, *, queue: str = "default") -> NewRun:
    dispatch = Dispatch(queue=queue, home="host:a", tenant=tenant)
    return an_opening(f"s{number}", f"run_{number}", dispatch=dispatch)


async def test_a_worker_gets_runs_of_all_lanes_that_it_serves_the_oldest_first(
    database_url: str,
) -> None:
    async with PostgresSessionStore.open(database_url) as store:
        kinds = [("a", "slow"), (None, "default"), ("b", "default"), ("a", "default")]
        for number, (tenant, queue) in enumerate(kinds):
            await store.queue_run(opening(number, tenant, queue=queue))
        queue = store.queue(30)
        seen: list[Lane] = []

        def serves(lane: Lane) -> bool:
            seen.append(lane)
            return lane.queue == "default"

        taken = [await queue.fetch_next(serves) for _ in range(4)]
        assert [job and job.run_id for job in taken] == ["run_1", "run_2", "run_3", None]
        assert {(lane.queue, lane.place, lane.tenant) for lane in seen} == {
            (queue, "host:a", tenant) for tenant, queue in kinds
        }


async def test_workers_that_fetch_at_once_take_no_more_of_a_tenant_than_it_may_have(
    database_url: str,
) -> None:
    async with PostgresSessionStore.open(database_url) as store:
        for number in range(6):
            await store.queue_run(opening(number, "a"))
        await store.queue_run(opening(6))
        await store.queue_run(opening(7))
        queues = [store.queue(30) for _ in range(8)]
        fetching = [each.fetch_next(lambda _: True, tenant_concurrency=2) for each in queues]
        taken = {job.run_id for job in await asyncio.gather(*fetching) if job}
        assert taken == {"run_0", "run_1", "run_6", "run_7"}, "no limit without a tenant"


async def test_tenants_take_turns_whichever_process_takes_the_runs(database_url: str) -> None:
    async with PostgresSessionStore.open(database_url) as store:
        one, other = store.queue(30), store.queue(30)
        for number in range(10):
            await store.queue_run(opening(number, "a"))
        assert await fetch(one) == "run_0"
        await store.queue_run(opening(10, "b"))
        await store.queue_run(opening(11))
        await store.queue_run(opening(12, "b", queue="slow"))
        taken = [await fetch(each) for each in (other, one, other, one, other, one)]
        assert taken == ["run_10", "run_11", "run_1", "run_12", "run_2", "run_3"]
        await store.queue_run(opening(13, "c"))
        await store.queue_run(opening(14, "b"))
        assert [await fetch(one) for _ in range(3)] == ["run_13", "run_14", "run_4"]


async def fetch(queue: RunQueue) -> str | None:
    job = await queue.fetch_next(lambda _: True)
    return job and job.run_id


async def test_processes_that_fetch_at_once_take_runs_of_different_tenants(
    database_url: str,
) -> None:
    async with PostgresSessionStore.open(database_url) as store:
        queues = [store.queue(30) for _ in range(4)]
        for number in range(20):
            await store.queue_run(opening(number, "a"))
        assert await fetch(queues[0]) == "run_0"
        for number, tenant in enumerate("bcd", start=20):
            await store.queue_run(opening(number, tenant))
        taken = await asyncio.gather(*map(fetch, queues))
        assert {"run_20", "run_21", "run_22"} < set(taken)
        assert "run_1" in taken


@pytest.mark.parametrize("statistics", ["none", "old"])
async def test_a_turn_does_not_read_the_backlog_of_others(
    database_url: str, statistics: str
) -> None:
    under_way = """INSERT INTO procrastinate_jobs (queue_name, task_name, lock, args, status)
        SELECT 'q/host:a/a/1', 'run', 'old' || number, '{}', 'doing'
        FROM generate_series(1, 5) AS number"""
    jobs = """INSERT INTO procrastinate_jobs (queue_name, task_name, lock, args)
        SELECT $1, 'run', $1 || number, '{}' FROM generate_series(1, CAST($2 AS INTEGER)) AS number
        """
    take = """EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)
        SELECT * FROM take_job(ARRAY['q/host:a/a/1', 'q/host:a/b/1'], $1)"""
    with connect(database_url) as connection:
        row = connection.execute("SELECT * FROM procrastinate_register_worker_v1()").fetchone()
        assert row is not None
        if statistics == "old":  # from a time in which no job waited
            connection.execute(under_way)
            connection.execute("ANALYZE procrastinate_jobs")
            connection.execute("DELETE FROM procrastinate_jobs")
        connection.execute(jobs, ("q/host:a/a/1", 20_000))
        connection.execute(jobs, ("q/host:a/b/1", 3))
        connection.execute("INSERT INTO tenant_turns (tenant) VALUES ('b'), ('a')")
        read: list[int] = []
        for _ in range(6):
            plan = connection.execute(take, (row[0],)).fetchone()
            assert plan is not None
            top = plan[0][0]["Plan"]
            assert top["Actual Rows"] == 1
            read.append(top["Shared Hit Blocks"] + top["Shared Read Blocks"])
    assert min(read) < 150, read
