"""A process says in time that it lives, whatever it waits for besides."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from agent_core import AgentRuntime
from agent_core.aio import stop_task
from agent_core.config.stores import RunWorkerConfig
from agent_core.errors import StorageError
from agent_core.providers.scripted import Hangs
from agent_core.runtime import leases as leases_module
from agent_core.runtime.fence import SessionLease
from agent_core.runtime.leases import RemoteControls, SessionLeases
from agent_core.storage.liveness import OwnerIsDead
from agent_core.storage.owners import Owner, now
from agent_core.storage.postgres import PostgresSessionStore
from agent_core.storage.sqlite import SqliteSessionStore
from agent_core.types import Heartbeat, RunChange, RunStatus, utc_now
from isolation import Home, fresh_folder
from judging import judged
from model_server import ModelServer
from rows import a_batch, an_opening
from worker_processes import workers, write_config

LEASE_S = 2.0
SOME_LEASES_S = 2.5 * LEASE_S

pytestmark = pytest.mark.timeout(90)


def by_lease(_: str, is_lease_over: bool) -> bool:
    return is_lease_over


@asynccontextmanager
async def locked(url: str, statement: str, *values: Any) -> AsyncGenerator[None]:
    """Hold a lock in a transaction, as a process that is paused in it does."""
    async with await psycopg.AsyncConnection.connect(url) as other:
        await other.execute(statement.encode(), values)
        yield
        await other.rollback()


async def leave_a_session(store: PostgresSessionStore, session_id: str) -> None:
    """A session whose owner is dead, and whose run has no end."""
    opening = an_opening(session_id, f"run_{session_id}", owner="own_gone.elsewhere")
    await store.open_run(opening)
    await store.heartbeat("own_gone.elsewhere", timedelta(seconds=0.01))


@pytest.mark.sweep
async def test_a_run_that_waits_in_its_process_stays_queued_while_that_sweeps_a_locked_session(
    home: Home, project: Path, database_url: str
) -> None:
    elsewhere = Home(fresh_folder("home", "elsewhere"))
    with ModelServer.in_thread([Hangs(), "the answer"]) as server:
        for each in (home, elsewhere):
            write_config(each, server, lease_s=LEASE_S)
        async with (
            PostgresSessionStore.open(database_url) as store,
            AgentRuntime(project, home_dir=elsewhere.path, database_url=database_url) as before,
            AgentRuntime(project, home_dir=home.path, database_url=database_url) as runtime,
        ):
            first = await before.start("one", "s1", here=True)
            await leave_a_session(store, "left")
            lock = "SELECT FROM sessions WHERE session_id = 'left' FOR UPDATE"
            async with locked(database_url, lock):
                starting = asyncio.create_task(runtime.start("two", "s1", here=True))
                end = time.monotonic() + SOME_LEASES_S
                while time.monotonic() < end:
                    await store.queue(LEASE_S).sweep()
                    await asyncio.sleep(0.2)
                runs = {run.run_id: run for run in await store.runs("s1")}
                (waiting,) = (run for run_id, run in runs.items() if run_id != first.run_id)
                assert waiting.status is RunStatus.QUEUED
            await first.cancel()
            assert await (await starting).wait() is RunStatus.COMPLETED


async def test_runs_that_are_started_at_once_live_as_long_as_their_process(
    home: Home, project: Path, database_url: str
) -> None:
    elsewhere, sessions = Home(fresh_folder("home", "elsewhere")), ("s1", "s2", "s3")
    with ModelServer.in_thread([Hangs(), Hangs(), Hangs()] + ["the answer"] * 3) as server:
        for each in (home, elsewhere):
            write_config(each, server, lease_s=LEASE_S)
        async with (
            PostgresSessionStore.open(database_url) as store,
            AgentRuntime(project, home_dir=elsewhere.path, database_url=database_url) as before,
            AgentRuntime(project, home_dir=home.path, database_url=database_url) as runtime,
        ):
            first = [await before.start("one", each, here=True) for each in sessions]
            starting = [
                asyncio.create_task(runtime.start("two", each, here=True)) for each in sessions
            ]
            end = time.monotonic() + 2 * LEASE_S
            while time.monotonic() < end:
                assert await store.queue(LEASE_S).sweep() == 0
                await asyncio.sleep(0.2)
            for handle in first:
                await handle.cancel()
            for handle in await asyncio.gather(*starting):
                assert await handle.wait() is RunStatus.COMPLETED


@pytest.mark.sweep
async def test_a_worker_lives_while_it_sweeps_a_locked_session(
    home: Home, database_url: str
) -> None:
    async with PostgresSessionStore.open(database_url) as store:
        await leave_a_session(store, "left")
        with ModelServer.in_thread([]) as server, workers(home, database_url) as crew:
            write_config(home, server, lease_s=LEASE_S)
            lock = "SELECT FROM sessions WHERE session_id = 'left' FOR UPDATE"
            async with locked(database_url, lock):
                await asyncio.to_thread(crew.start)
                await stays_alive(store)
            while (await store.runs("left"))[0].status is not RunStatus.FAILED:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


@pytest.mark.sweep
async def test_a_worker_lives_while_another_one_counts_the_runs_of_tenants(
    home: Home, database_url: str
) -> None:
    async with PostgresSessionStore.open(database_url) as store:
        with ModelServer.in_thread([]) as server, workers(home, database_url) as crew:
            write_config(home, server, "tenant_concurrency = 1", lease_s=LEASE_S)
            lock = "SELECT pg_advisory_xact_lock(hashtext('soong-agent tenants'))"
            async with locked(database_url, lock):
                await asyncio.to_thread(crew.start)
                await stays_alive(store)


async def stays_alive(store: PostgresSessionStore) -> None:
    """The only worker stays alive for some leases."""
    table, end = store.workers(None), time.monotonic() + SOME_LEASES_S
    while time.monotonic() < end:
        (worker,) = await table.listed()
        assert worker.is_alive
        await asyncio.sleep(0.2)


async def test_sessions_are_extended_beside_one_that_another_transaction_has_locked(
    database_url: str,
) -> None:
    lease = timedelta(seconds=20)
    async with PostgresSessionStore.open(database_url) as store:
        for session_id in ("s1", "s2"):
            short = timedelta(seconds=1)
            opening = an_opening(session_id, f"run_{session_id}", owner="me", lease=short)
            await store.open_run(opening)
        lock = "SELECT FROM sessions WHERE session_id = 's1' FOR UPDATE"
        async with locked(database_url, lock):
            beat = await store.heartbeat("me", lease)
            assert beat.late == {"s1"}
            assert await seconds_left(store, "s2") > 10
            assert await seconds_left(store, "s1") < 2
        while await seconds_left(store, "s1") < 10:  # noqa: ASYNC110 - a row
            await asyncio.sleep(0.02)
        assert (await store.heartbeat("me", lease)).late == set()


async def test_a_process_that_was_given_up_says_that_it_lives_while_its_sessions_are_locked(
    database_url: str,
) -> None:
    sessions = [f"s{number}" for number in range(8)]
    async with PostgresSessionStore.open(database_url) as store:
        queue = store.queue(LEASE_S)
        first = await queue.register()
        for each in sessions:
            await store.open_run(an_opening(each, f"run_{each}", owner="me"))
        async with locked(database_url, "SELECT FROM sessions FOR UPDATE"):
            writing = [asyncio.create_task(store.rename_session(each, "it")) for each in sessions]
            async with await psycopg.AsyncConnection.connect(database_url) as other:
                await other.execute("DELETE FROM procrastinate_workers")
            async with asyncio.timeout(60):
                await queue.heartbeat()
            assert await queue.register() != first
        await asyncio.gather(*writing)


IDLE = RemoteControls(lambda _: None, lambda _: None, lambda _: None)
"""Controls of a process of which no other one asks anything."""


def leases_of(
    store: PostgresSessionStore, owner: Owner, shared: RunWorkerConfig, deadlines: list[float]
) -> SessionLeases:
    """Leases of a process that loses none; `deadlines` gets until when its programs may go on."""
    return SessionLeases(
        store,
        owner,
        is_busy=lambda _: True,
        controls=IDLE,
        on_lost=lambda run_id, _: pytest.fail(f"{run_id} is lost"),
        on_extended=deadlines.append,
        shared=shared,
    )


async def claimed(
    store: PostgresSessionStore, leases: SessionLeases, session_id: str, is_dead: OwnerIsDead
) -> SessionLease:
    """A run of a session that is claimed, and what keeps it from acting without that."""
    claim, run_id = leases.claim(), f"new_run_{session_id}"
    opening = an_opening(session_id, run_id, owner=claim.owner, lease=claim.lease)
    opened = await judged(store, is_dead).open_run(opening)
    lease = leases.lease_for(run_id, session_id, opened.session.epoch, opened.asked_at)
    assert lease is not None
    return lease


async def test_a_run_whose_session_is_locked_waits_before_it_acts(
    home: Home, database_url: str
) -> None:
    shared = RunWorkerConfig(heartbeat_s=0.1, lease_s=1)
    async with PostgresSessionStore.open(database_url) as store:
        with Owner.open(home.path, heeds_leases=True) as owner:
            leases = leases_of(store, owner, shared, [])
            hold = await claimed(store, leases, "s1", by_lease)
            async with locked(database_url, "SELECT FROM sessions FOR UPDATE"):
                await hold.require()  # its claim is fresh
                await asyncio.sleep(1)
                acting = asyncio.create_task(hold.require())
                await asyncio.sleep(1)
                assert not acting.done()
            await acting
            assert await seconds_left(store, "s1") > 0


async def test_programs_go_on_while_another_run_begins_during_a_heartbeat(
    home: Home, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadlines, holds = list[float](), list[SessionLease]()
    async with PostgresSessionStore.open(database_url) as store:
        with Owner.open(home.path, heeds_leases=True) as owner:
            leases = leases_of(store, owner, RunWorkerConfig(heartbeat_s=0.1), deadlines)
            beat = store.heartbeat

            async def slow_beat(owner_id: str, lease: timedelta) -> Heartbeat:
                answer = await beat(owner_id, lease)
                holds.append(await claimed(store, leases, f"s{len(holds)}", by_lease))
                return answer

            monkeypatch.setattr(store, "heartbeat", slow_beat)
            beating = asyncio.create_task(leases.keep_alive())
            while len(holds) < 3:  # noqa: ASYNC110 - heartbeats
                await asyncio.sleep(0.02)
            await stop_task(beating)
            assert len(deadlines) >= 5, "every claim and every heartbeat says so"
            assert min(deadlines) > now()


async def test_programs_go_on_in_a_process_that_has_no_run(home: Home, database_url: str) -> None:
    deadlines = list[float]()
    async with PostgresSessionStore.open(database_url) as store:
        with Owner.open(home.path, heeds_leases=True) as owner:
            leases = leases_of(store, owner, RunWorkerConfig(heartbeat_s=0.1), deadlines)
            beating = asyncio.create_task(leases.keep_alive())
            while len(deadlines) < 3:  # noqa: ASYNC110 - heartbeats
                await asyncio.sleep(0.02)
            await stop_task(beating)
    assert deadlines == sorted({*deadlines})


async def test_no_run_takes_its_lease_for_longer_than_it_is_though_its_claim_took_long(
    home: Home, database_url: str
) -> None:
    shared = RunWorkerConfig(heartbeat_s=0.1, lease_s=15)

    def slowly(_: str, is_lease_over: bool) -> bool:
        time.sleep(1.5)
        return is_lease_over

    async with PostgresSessionStore.open(database_url) as store:
        await leave_a_session(store, "left")
        await asyncio.sleep(0.1)  # its lease is over
        with Owner.open(home.path, heeds_leases=True) as owner:
            leases = leases_of(store, owner, shared, [])
            claiming = asyncio.create_task(claimed(store, leases, "left", slowly))
            beating = asyncio.create_task(leases.keep_alive())
            await asyncio.sleep(0.7)
            await stop_task(beating)
            hold = await claiming
            left_s = await seconds_left(store, "left")  # first: asking may take a while
            assert hold.extended_at + shared.lease_s - now() <= left_s + 0.1


async def seconds_left(store: PostgresSessionStore, session_id: str) -> float:
    session = await store.session(session_id)
    assert session is not None
    assert session.lease_expires_at is not None
    return (session.lease_expires_at - utc_now()).total_seconds()


@pytest.mark.long
async def test_a_process_that_is_paused_in_a_transaction_loses_it_before_its_lease_is_over(
    database_url: str,
) -> None:
    async with (
        PostgresSessionStore.open(database_url, lease_s=3) as store,
        PostgresSessionStore.open(database_url) as other,
    ):
        opening = an_opening("s1", "run_1", owner="me")
        await store.open_run(opening)
        pauses = [4.0, 0.0]

        def pause(_: str, is_lease_over: bool) -> bool:
            time.sleep(pauses.pop(0))
            return is_lease_over

        paused = asyncio.create_task(
            judged(store, pause).open_run(an_opening("s1", "run_2", owner="you"))
        )
        await asyncio.sleep(0.5)
        began = time.monotonic()
        await other.rename_session("s1", "in time")
        assert time.monotonic() - began < 3
        with pytest.raises(StorageError, match="s1"):
            await paused


async def test_a_session_whose_last_work_ends_before_its_run_has_left_is_given_back(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancelled run takes its summary with it: both end at the same moment."""
    monkeypatch.setattr(leases_module, "HEARTBEAT", timedelta(seconds=0.05))
    busy = {"s1"}
    async with SqliteSessionStore.open(home.path / "sessions.sqlite") as store:
        with Owner.open(home.path) as owner:
            leases = SessionLeases(store, owner, is_busy=busy.__contains__, controls=IDLE)
            await store.open_run(an_opening(owner=owner.owner_id))
            await store.append(a_batch(run=RunChange(status=RunStatus.CANCELLED)))
            await leases.release("s1")
            busy.clear()
            beating = asyncio.create_task(leases.keep_alive())
            while (session := await store.session("s1")) is None or session.owner:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            await stop_task(beating)
