"""The queue of runs in a real database: whose turn it is, and what becomes of dead processes."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

from agent_core.errors import StorageError
from agent_core.storage.postgres.queue import Job, RunQueue
from agent_core.storage.postgres.store import PostgresSessionStore
from agent_core.types import (
    Claim,
    Decision,
    Dispatch,
    NewRun,
    RunChange,
    RunPrompt,
    RunStatus,
    TextBlock,
)
from agent_core.types.lanes import Lane
from judging import judged, owners_are_dead
from rows import a_batch, a_question, a_worker, an_opening

LANE = Lane(queue="default", place="host:here")
LEASE_S = 30.0


def opening(run_id: str, session_id: str = "s1", **dispatch: Any) -> NewRun:
    return an_opening(
        session_id,
        run_id,
        owner="me",
        prompt=RunPrompt(content=[TextBlock(text="go")]),
        dispatch=Dispatch(queue="default", home="host:here", **dispatch),
    )


@asynccontextmanager
async def opened(url: str) -> AsyncGenerator[tuple[PostgresSessionStore, RunQueue]]:
    async with PostgresSessionStore.open(url) as store:
        yield store, store.queue(LEASE_S)


async def queue_run(store: PostgresSessionStore, run_id: str, *of: str, **dispatch: Any) -> None:
    await store.queue_run(opening(run_id, *of, **dispatch))


def jobs_in(url: str) -> list[tuple[str, str]]:
    """The runs that are in the queue, and how far they are."""
    sql = "SELECT args ->> 'run_id' AS run, status::text FROM procrastinate_jobs ORDER BY run"
    with psycopg.connect(url) as connection:
        return [(run_id, status) for run_id, status in connection.execute(sql)]


async def fetched(queue: RunQueue) -> Job:
    job = await queue.fetch_next(LANE.__eq__)
    assert job is not None
    return job


async def test_the_job_of_a_run_goes_with_its_end_and_no_other_does(database_url: str) -> None:
    status = RunStatus.COMPLETED
    async with opened(database_url) as (store, queue):
        await queue_run(store, "run_1")
        await queue_run(store, "run_2")
        await queue_run(store, "run_3", "s3")
        one, other = await fetched(queue), await fetched(queue)
        assert [one.run_id, other.run_id] == ["run_1", "run_3"]
        assert await store.take_run("run_1", Claim("me"), max_takeovers=3)

        with pytest.raises(StorageError):  # of an owner that has lost the session
            await store.append(a_batch(run=RunChange(status=status), release="it", owner="it"))
        assert jobs_in(database_url) == [("run_1", "doing"), ("run_2", "todo"), ("run_3", "doing")]
        await store.append(a_batch(run=RunChange(status=status), release="me", owner="me"))

        assert jobs_in(database_url) == [("run_2", "todo"), ("run_3", "doing")]
        assert (await fetched(queue)).run_id == "run_2"
        await queue.finish(one)  # it is gone


WAITS = a_batch(run=RunChange(status=RunStatus.WAITING), release="me", owner="me")


async def answer(store: PostgresSessionStore) -> None:
    _, is_first = await store.answer(
        "req_1", Decision.ALLOW_ONCE, reason=None, by="human", decider="ana"
    )
    assert is_first


async def test_a_run_that_was_answered_before_it_was_stored_as_waiting_outlives_its_process(
    database_url: str,
) -> None:
    async with opened(database_url) as (store, queue):
        await queue_run(store, "run_1")
        await fetched(queue)
        assert await store.take_run("run_1", Claim("me"), max_takeovers=3)
        await store.ask(a_question(keeps_run=True))
        await answer(store)
        await store.append(WAITS)  # and here its process dies
    with psycopg.connect(database_url) as connection:
        aged = "UPDATE procrastinate_workers SET last_heartbeat = now() - interval '1 hour'"
        connection.execute(aged)
    async with opened(database_url) as (store, queue):
        assert await judged(store, owners_are_dead).queue(LEASE_S).sweep() == 1
        assert (await fetched(queue)).run_id == "run_1"
        taken = await store.take_run("run_1", Claim("it"), max_takeovers=3)
        assert taken is not None
        assert (taken.session.owner, taken.is_answered) == ("it", True)


async def test_a_run_that_is_answered_before_its_job_is_finished_has_one_job(
    database_url: str,
) -> None:
    async with opened(database_url) as (store, queue):
        await queue_run(store, "run_1")
        job = await fetched(queue)
        assert await store.take_run("run_1", Claim("me"), max_takeovers=3)
        await store.ask(a_question(keeps_run=True))
        await store.append(WAITS)
        await answer(store)
        assert sorted(jobs_in(database_url)) == [("run_1", "doing"), ("run_1", "todo")]
        await queue.give_back(job)
        assert jobs_in(database_url) == [("run_1", "todo")]
        again = await fetched(queue)
        assert again.job_id == job.job_id
        await queue.give_back(replace(job, job_id=job.job_id + 1))  # it is not of this process
        assert jobs_in(database_url) == [("run_1", "doing")]
        await queue.give_back(again)
        await queue.give_back(again)  # it has been given back
        assert jobs_in(database_url) == [("run_1", "todo")]


async def test_an_answer_queues_a_run_that_waits_in_its_own_transaction(database_url: str) -> None:
    """A program that dies after an answer, such as a command, leaves no run that nobody has."""
    async with opened(database_url) as (store, queue):
        await queue_run(store, "run_1")
        job = await fetched(queue)
        assert await store.take_run("run_1", Claim("me"), max_takeovers=3)
        await store.ask(a_question(keeps_run=True))
        await store.append(WAITS)
        assert jobs_in(database_url) == [("run_1", "doing")]
        await queue.finish(job)
        assert jobs_in(database_url) == []
        await answer(store)
        assert jobs_in(database_url) == [("run_1", "todo")]


async def test_runs_of_a_session_come_one_after_the_other_and_sessions_side_by_side(
    database_url: str,
) -> None:
    async with opened(database_url) as (store, queue), opened(database_url) as (_, other):
        await queue_run(store, "run_1")
        await queue_run(store, "run_2")
        await queue_run(store, "run_3", "s2")
        one, three = await fetched(queue), await fetched(other)
        assert (one.run_id, three.run_id) == ("run_1", "run_3")
        assert await queue.fetch_next(LANE.__eq__) is None
        await queue.give_back(one)
        assert (await fetched(other)).run_id == "run_1", "it keeps its place"
        await other.finish(one)
        assert (await fetched(queue)).run_id == "run_2"


async def test_a_run_is_taken_from_its_own_lane_only(database_url: str) -> None:
    async with opened(database_url) as (store, queue):
        await queue_run(store, "run_1", place="host:there", tenant="acme")
        others = [
            LANE,
            Lane(queue="default", place="host:there"),
            Lane(queue="slow", place="host:there", tenant="acme"),
            Lane(queue="default", place="host:there", tenant="acme", protocol=2),
        ]
        assert await queue.fetch_next(others.__contains__) is None
        assert await queue.fetch_next(Lane.parse("default/host:there/acme/1").__eq__)


async def test_a_run_that_is_refused_leaves_no_job(database_url: str) -> None:
    async with opened(database_url) as (store, queue):
        await queue_run(store, "run_1")
        with pytest.raises(StorageError):
            await queue_run(store, "run_2", tenant="other")
        await queue.finish(await fetched(queue))
        assert await queue.fetch_next(LANE.__eq__) is None


async def test_a_process_finishes_no_job_that_another_one_has_by_now(database_url: str) -> None:
    async with opened(database_url) as (store, paused), opened(database_url) as (_, queue):
        await queue_run(store, "run_1")
        await queue_run(store, "run_2")
        old = await fetched(paused)
        await store.take_run("run_1", Claim("me"), max_takeovers=3)
        assert await queue.sweep() == 0
        assert await judged(store, owners_are_dead).queue(LEASE_S).sweep() == 1
        new = await fetched(queue)
        assert new.job_id == old.job_id
        await paused.finish(old)
        await paused.give_back(old)
        assert await paused.fetch_next(LANE.__eq__) is None
        await queue.finish(new)
        assert (await fetched(paused)).run_id == "run_2"


async def test_a_job_whose_process_is_silent_goes_back_though_no_session_was_claimed(
    database_url: str,
) -> None:
    async with opened(database_url) as (store, dead), opened(database_url) as (_, queue):
        await queue_run(store, "run_1")
        await fetched(dead)
        assert await queue.sweep() == 0
        with psycopg.connect(database_url, autocommit=True) as connection:
            connection.execute(
                "UPDATE procrastinate_workers SET last_heartbeat = now() - interval '1 hour'"
            )
        assert await queue.sweep() == 1
        assert (await fetched(queue)).run_id == "run_1"
        await dead.heartbeat()  # its row was removed: it begins anew
        await queue_run(store, "run_2", "s2")
        assert (await fetched(dead)).run_id == "run_2"


async def test_a_process_that_had_no_runs_for_a_while_counts_as_alive_when_it_queues_one(
    database_url: str,
) -> None:
    async with opened(database_url) as (store, queue):
        mine = store.queue(lease_s=0)  # what it has last said is always too long ago
        await mine.register()
        with psycopg.connect(database_url, autocommit=True) as connection:
            connection.execute(
                "UPDATE procrastinate_workers SET last_heartbeat = now() - interval '1 hour'"
            )
        await queue_run(store, "run_1")
        await queue_run(store, "run_2", process=await mine.register())
        assert await queue.sweep() == 0
        run = await store.run("run_2")
        assert run is not None
        assert run.status is RunStatus.QUEUED


@pytest.mark.parametrize(("lease_s", "silent_s", "is_left"), [(60, 45, False), (10, 20, True)])
async def test_a_process_that_is_silent_is_judged_by_its_own_lease(
    database_url: str, lease_s: float, silent_s: float, is_left: bool
) -> None:
    silent = "UPDATE procrastinate_workers SET last_heartbeat = now() - make_interval(secs => %s)"
    async with opened(database_url) as (store, queue), opened(database_url) as (_, own):
        alone = opening("run_1", process=await own.register())
        lease = timedelta(seconds=lease_s)
        await store.queue_run(replace(alone, lease=lease))
        with psycopg.connect(database_url, autocommit=True) as connection:
            connection.execute(silent, (silent_s,))
        assert await queue.sweep() == is_left


async def test_a_worker_that_has_claimed_nothing_yet_may_have_the_longest_lease(
    database_url: str,
) -> None:
    async with opened(database_url) as (store, queue), opened(database_url) as (_, other):
        await store.workers(None).beat(a_worker(), 1000)
        await queue_run(store, "run_1")
        await fetched(other)
        with psycopg.connect(database_url, autocommit=True) as connection:
            older = "UPDATE {} = now() - interval '{} seconds'"
            seen, beat = "procrastinate_workers SET last_heartbeat", "workers SET heartbeat_at"
            connection.execute(older.format(seen, 900).encode())
            assert await queue.sweep() == 0
            connection.execute(older.format(beat, 1001).encode())
            assert await queue.sweep() == 1, "it is dead as well"


async def test_a_run_that_only_its_own_process_may_take_ends_with_it(database_url: str) -> None:
    async with opened(database_url) as (store, queue), opened(database_url) as (_, own):
        number = await own.register()
        await queue_run(store, "run_1", process=number)
        await queue_run(store, "run_2")
        assert await queue.fetch_next(LANE.__eq__) is None, "the one before it goes first"
        assert await queue.fetch_own("run_2") is None
        assert await queue.sweep() == 0
        assert await judged(store, owners_are_dead).queue(LEASE_S).sweep() == 1
        run = await store.run("run_1")
        assert run is not None
        assert run.status is RunStatus.FAILED
        assert run.metadata["reason"] == "owner_lost"
        assert (await fetched(queue)).run_id == "run_2"


async def test_a_run_of_its_own_process_that_has_begun_is_closed_with_its_session(
    database_url: str,
) -> None:
    async with opened(database_url) as (store, queue), opened(database_url) as (_, own):
        await queue_run(store, "run_1", process=await own.register())
        await queue_run(store, "run_2")
        assert await own.fetch_own("run_1") is not None
        await store.take_run("run_1", Claim("me"), max_takeovers=3)
        await store.append(a_batch(run=RunChange(status=RunStatus.RUNNING), owner="me"))
        await judged(store, owners_are_dead).queue(LEASE_S).sweep()
        (lost,) = await judged(store, owners_are_dead).close_lost_runs()
        assert lost.run_id == "run_1"
        assert await judged(store, owners_are_dead).queue(LEASE_S).sweep() == 1
        assert (await fetched(queue)).run_id == "run_2"


async def test_a_run_that_was_cancelled_before_its_turn_leaves_the_queue(database_url: str) -> None:
    async with opened(database_url) as (store, queue):
        await queue_run(store, "run_1")
        assert await store.drop_queued("run_1")
        await queue.remove("run_1")
        assert await queue.fetch_next(LANE.__eq__) is None
