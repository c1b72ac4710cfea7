"""Turns that are taken while the process is cancelled, or is not told that it has taken one."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from agent_core import AgentRuntime, ErrorCode, EventType, RunStatus, StorageError
from agent_core.api.worker import Worker
from agent_core.storage.postgres import PostgresSessionStore
from isolation import Home
from model_server import ModelServer
from sweeps import sampled
from worker_processes import URL_VARIABLE, write_config

pytestmark = pytest.mark.timeout(60)

HELD_UP = {
    "its job is taken": ("LOCK TABLE procrastinate_jobs", "%take_job%"),
    "its session is claimed": ("SELECT 1 FROM sessions FOR UPDATE", "%held%"),
    "its first events are read": ("LOCK TABLE events", "%FROM events%"),
}
"""What is locked so that a step has to wait, and the statement of the step."""


async def until(look: Callable[[], Awaitable[bool]]) -> None:
    while not await look():  # noqa: ASYNC110 - the database says
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("step", sampled(HELD_UP, keep=1))
async def test_a_start_that_is_cancelled_leaves_its_session_free(
    home: Home, project: Path, database_url: str, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.setenv(URL_VARIABLE, database_url)
    lock, statement = HELD_UP[step]
    aside = await psycopg.AsyncConnection.connect(database_url, autocommit=True)
    locking = await psycopg.AsyncConnection.connect(database_url)

    async def count(sql: str, *values: str) -> int:
        row = await (await aside.execute(sql.encode(), values)).fetchone()
        return int(row[0]) if row else 0

    async def is_held_up() -> bool:
        waiting = """SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'
            AND datname = current_database() AND query LIKE %s"""
        return await count(waiting, statement) > 0

    async def has_jobs(least: int) -> bool:
        return await count("SELECT count(*) FROM procrastinate_jobs") >= least

    with ModelServer.in_thread(["the answer"]) as server:
        write_config(home, server)
        async with (
            aside,
            locking,
            AgentRuntime(project_dir=project, home_dir=home.path) as runtime,
        ):
            first = await runtime.start("one", "s1")
            starting = asyncio.create_task(runtime.start("two", "s1", here=True))
            await until(lambda: has_jobs(2))
            await locking.execute(lock.encode())
            on = locking if "jobs" in lock else aside
            await on.execute(
                "DELETE FROM procrastinate_jobs WHERE args ->> 'run_id' = %s", [first.run_id]
            )
            await until(is_held_up)
            starting.cancel()
            await locking.commit()
            with pytest.raises(asyncio.CancelledError):
                await starting
            (two,) = [r for r in await runtime.session_runs("s1") if r.run_id != first.run_id]
            assert two.status is RunStatus.CANCELLED
            events = [each.event_type for each in (await runtime.replay_run(two.run_id)).events]
            assert events.count(EventType.RUN_CANCELLED) == 1
            result = await runtime.run("three", "s1", here=True, queue_timeout_s=10)
            assert result.text == "the answer"
            assert len(server.requests) == 1


async def test_a_worker_that_was_not_told_that_it_has_claimed_a_run_carries_it_out(
    home: Home, project: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would hold the session as long as it lives, and refuse it to itself."""
    monkeypatch.setenv(URL_VARIABLE, database_url)
    take, unanswered = PostgresSessionStore.take_run, list[str]()

    async def answer_later(self: PostgresSessionStore, run_id: str, *of: Any, **how: Any) -> Any:
        taken = await take(self, run_id, *of, **how)
        if not unanswered:
            unanswered.append(run_id)
            raise StorageError(ErrorCode.STORAGE_ERROR, "the database is away", retryable=True)
        return taken

    monkeypatch.setattr(PostgresSessionStore, "take_run", answer_later)
    with ModelServer.in_thread(["the answer"]) as server:
        write_config(home, server)
        worker = Worker(home_dir=home.path)
        working = asyncio.create_task(worker.run())
        async with AgentRuntime(project_dir=project, home_dir=home.path) as runtime:
            handle = await runtime.start("go")
            async with asyncio.timeout(30):
                assert (await handle.result()).text == "the answer"
            events = [each.event_type for each in (await runtime.replay_run(handle.run_id)).events]
        worker.drain()
        assert await working
    assert unanswered == [handle.run_id]
    assert events.count(EventType.RUN_COMPLETED) == 1
