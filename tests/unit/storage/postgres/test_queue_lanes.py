"""Which of the waiting runs a worker gets: of the lanes that it serves, and of tenants in turn."""

import asyncio

from agent_core.storage.postgres import PostgresSessionStore
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
