"""A row that cannot be read costs the sweeps that row: they name it and go on with the others."""

import sqlite3
from collections.abc import AsyncGenerator, Callable
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from agent_core.storage.postgres import PostgresSessionStore
from agent_core.storage.sqlite import SqliteSessionStore
from agent_core.storage.store import SessionStore
from agent_core.types import Dispatch, NewRun, RunPrompt, TextBlock, new_id
from agent_core.types.lanes import Lane
from judging import judged, owners_are_dead
from rows import a_worker, an_opening

Edit = Callable[[str], None]
LANE = Lane(queue="default", place="host:here")
DAMAGE = {
    "a lease": "UPDATE sessions SET lease_expires_at = 'soon' WHERE session_id = '{}'",
    "a time": "UPDATE sessions SET created_at = 'once' WHERE session_id = '{}'",
    "JSON": "UPDATE runs SET usage_json = '[' WHERE session_id = '{}'",
    "a status": "UPDATE sessions SET status = 'open' WHERE session_id = '{}'",
    "an owner": "UPDATE sessions SET owner = '/../' || owner WHERE session_id = '{}'; "
    "UPDATE runs SET options_json = '3' WHERE session_id = '{}'",
}


def at_url(url: str) -> Edit:
    def edit(sql: str) -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(sql.encode())

    return edit


@pytest.fixture(params=["sqlite", "postgres"])
async def stored(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncGenerator[tuple[SessionStore, Edit]]:
    """A store, and what edits its rows from outside."""
    if request.param == "postgres":
        url = request.getfixturevalue("database_url")
        async with PostgresSessionStore.open(url) as store:
            yield store, at_url(url)
        return
    path = tmp_path / "sessions.sqlite"

    def edit(sql: str) -> None:
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript(sql)

    async with SqliteSessionStore.open(path) as store:
        yield store, edit


@pytest.mark.long
@pytest.mark.parametrize("damage", DAMAGE)
async def test_a_session_that_cannot_be_read_keeps_no_other_one_open(
    stored: tuple[SessionStore, Edit], damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    store, edit = stored
    first, second, third = (new_id("s") for _ in range(3))
    for session_id in (first, second, third):
        await store.open_run(an_opening(session_id, f"run_{session_id}"))
    edit(DAMAGE[damage].format(second, second))

    lost = await judged(store, owners_are_dead).close_lost_runs()

    assert {run.session_id for run in lost} == {first, third}
    assert second in caplog.text
    caplog.clear()
    assert await judged(store, owners_are_dead).close_lost_runs() == []
    assert caplog.text == "", "it was said"
    await store.working_sessions()


def queued(session_id: str, **dispatch: object) -> NewRun:
    return an_opening(
        session_id,
        f"run_{session_id}",
        owner="me",
        prompt=RunPrompt(content=[TextBlock(text="go")]),
        dispatch=Dispatch(queue="default", home="host:here", **dispatch),  # type: ignore[arg-type]
    )


OF_JOBS = {
    "a lease": "UPDATE sessions SET owner = 'other', lease_expires_at = 'soon' "
    "WHERE session_id = '{}'",
    "a time without its zone": "UPDATE sessions SET owner = 'other', "
    "lease_expires_at = '2020-01-01T00:00:00' WHERE session_id = '{}'",
    "a process": """UPDATE procrastinate_jobs SET args = args || '{{"process": "mine",
        "owner": "me", "lease_s": "long"}}' WHERE lock = '{}'""",
    "a run": "UPDATE runs SET created_at = 'once', usage_json = '[' WHERE session_id = '{}'; "
    """UPDATE procrastinate_jobs SET args = args || '{{"process": 1, "owner": "me",
        "lease_s": 1}}' WHERE lock = '{}'""",
}


@pytest.mark.long
@pytest.mark.parametrize("damage", OF_JOBS)
async def test_a_job_that_cannot_be_judged_keeps_no_other_one_from_its_worker(
    database_url: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    first, second, third = (new_id("s") for _ in range(3))
    async with PostgresSessionStore.open(database_url) as store:
        queue = store.queue(30)
        for session_id in (first, second, third):
            await store.queue_run(queued(session_id))
            assert await queue.fetch_next(LANE.__eq__) is not None
        at_url(database_url)("UPDATE procrastinate_workers SET last_heartbeat = '2020-01-01'")
        at_url(database_url)(OF_JOBS[damage].format(second, second))

        assert await queue.sweep() == 2

        back = [await queue.fetch_next(LANE.__eq__) for _ in range(2)]
        assert {job and job.run_id for job in back} == {f"run_{first}", f"run_{third}"}
        assert "is left as it is" in caplog.text


async def test_what_cannot_be_read_hides_no_queue_and_no_worker(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    edit, worker_id = at_url(database_url), new_id("own")
    async with PostgresSessionStore.open(database_url) as store:
        table = store.workers(None)
        for session_id, place in (("s1", "host:a"), ("s2", "host:b"), ("s3", "host:c")):
            await store.queue_run(queued(session_id, place=place))
        edit("UPDATE runs SET created_at = 'once' WHERE run_id = 'run_s1'")
        edit("DELETE FROM sessions WHERE session_id = 's2'")
        edit("UPDATE procrastinate_jobs SET queue_name = 'a/torn' || 'lane' WHERE lock = 's3'")
        depths = {each.place: each for each in await table.depths()}
        assert set(depths) == {"host:a", "host:b"}
        assert depths["host:a"].oldest_s == 0
        assert "'a/tornlane'" in caplog.text
        assert "the first run of default/host:a//1 waits" in caplog.text
        assert [each.run_id for each in await table.queued(10)] == ["run_s3"]
        assert "run run_s1" in caplog.text

        for number in range(3):
            await table.beat(a_worker(f"{worker_id}-{number}", places=["host:a"]), 30)
        ids = f"WHERE worker_id = '{worker_id}-"
        edit(f"UPDATE workers SET heartbeat_at = '-infinity', lease_s = 'inf' {ids}0'")  # noqa: S608
        edit(f"UPDATE workers SET started_at = 'infinity', lease_s = 1e300 {ids}1'")  # noqa: S608
        await table.beat(a_worker(f"{worker_id}-2", places=["host:a"]), 30)
        assert await table.has_worker(Lane(queue="default", place="host:a"))
        assert [each.worker_id for each in await table.listed()] == [f"{worker_id}-2"]
        assert f"worker {worker_id}-0" in caplog.text
        assert await store.queue(30).sweep() == 0
