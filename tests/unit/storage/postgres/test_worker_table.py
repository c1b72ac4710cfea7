"""The table of workers, on a real server."""

import asyncio
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from agent_core.storage.postgres import PostgresSessionStore
from agent_core.types import Dispatch, utc_now
from agent_core.types.lanes import PROTOCOL, Lane
from rows import a_worker as worker, an_opening


async def age(database_url: str, seconds: float) -> None:
    """Let the last heartbeats be so much older."""
    async with await psycopg.AsyncConnection.connect(database_url) as connection:
        older = "UPDATE workers SET heartbeat_at = heartbeat_at - make_interval(secs => %s)"
        await connection.execute(older, (seconds,))


async def test_a_worker_is_listed_as_it_was_at_its_last_heartbeat(database_url: str) -> None:
    async with PostgresSessionStore.open(database_url) as store:
        table = store.workers(None)
        await table.beat(worker(), 15)
        await table.beat(worker(running=3, is_draining=True), 15)
        (listed,) = await table.listed()
        fixed = {"started_at", "heartbeat_at"}
        now = worker(running=3, is_draining=True)
        assert listed.model_dump(exclude=fixed) == now.model_dump(exclude=fixed)
        assert listed.started_at < listed.heartbeat_at
        assert abs(listed.heartbeat_at - utc_now()) < timedelta(minutes=1)
        await table.remove("own_1")
        assert await table.listed() == []


async def test_a_worker_that_has_ended_is_gone_though_a_heartbeat_was_under_way(
    database_url: str,
) -> None:
    async with PostgresSessionStore.open(database_url) as store:
        await store.open_run(an_opening())
        table = store.workers(None)
        beating = asyncio.create_task(table.beat(worker(), 15))  # opens a connection
        await asyncio.sleep(0)
        await table.remove("own_1")
        await beating
        assert await table.listed() == []


async def test_one_that_is_late_is_dead_and_goes_from_the_list_later(database_url: str) -> None:
    async with PostgresSessionStore.open(database_url) as store:
        table = store.workers(None)
        await table.beat(worker(), 15)
        await age(database_url, 16)
        (late,) = await table.listed()
        assert not late.is_alive
        assert not await table.has_worker(Lane(queue="default", place="host:a"))
        await table.beat(worker(), 15)
        (back,) = await table.listed()
        assert back.is_alive
        await age(database_url, 15 * 20 + 1)
        await table.beat(worker("own_2"), 15)
        assert [each.worker_id for each in await table.listed()] == ["own_2"]


@pytest.mark.parametrize(
    ("facts", "is_served"),
    [
        ({}, True),
        ({"tenant": "t"}, True),
        ({"tenant": "other"}, False),
        ({"places": ["host:b"]}, False),
        ({"queues": ["slow"]}, False),
        ({"protocol": PROTOCOL + 1}, False),
        ({"is_draining": True}, False),
    ],
    ids=["all", "its-tenant", "another-tenant", "place", "queue", "protocol", "draining"],
)
async def test_a_lane_is_served_by_whoever_takes_its_runs(
    facts: dict[str, Any], *, is_served: bool, database_url: str
) -> None:
    lane = Lane(queue="default", place="host:a", tenant="t")
    async with PostgresSessionStore.open(database_url) as store:
        table = store.workers(None)
        assert not await table.has_worker(lane)
        await table.beat(worker(**facts), 15)
        assert await table.has_worker(lane) is is_served


async def test_a_worker_of_a_tenant_serves_no_lane_without_one(database_url: str) -> None:
    async with PostgresSessionStore.open(database_url) as store:
        table = store.workers(None)
        await table.beat(worker(tenant="t"), 15)
        assert not await table.has_worker(Lane(queue="default", place="host:a"))


async def test_a_tenant_sees_the_workers_that_serve_it(database_url: str) -> None:
    async with PostgresSessionStore.open(database_url) as store:
        table = store.workers(None)
        for name, tenant in (("own_1", None), ("own_2", "t"), ("own_3", "other")):
            await table.beat(worker(name, tenant=tenant), 15)
        assert len(await table.listed()) == 3
    async with PostgresSessionStore.open(database_url, tenant="t") as store:
        table = store.workers("t")
        assert [each.worker_id for each in await table.listed()] == ["own_1", "own_2"]


async def test_a_tenant_sees_how_much_of_its_own_waits(database_url: str) -> None:
    async with PostgresSessionStore.open(database_url) as store:
        for name in ("t", "other", None):
            dispatch = Dispatch(queue="default", home="host:a", tenant=name)
            opening = an_opening(f"s_{name}", f"run_{name}", dispatch=dispatch)
            await store.queue_run(opening)
        assert {each.tenant for each in await store.workers(None).depths()} == {"t", "other", None}
    async with PostgresSessionStore.open(database_url, tenant="t") as store:
        (depth,) = await store.workers("t").depths()
        assert (depth.tenant, depth.depth) == ("t", 1)
