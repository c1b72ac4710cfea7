"""Sessions that were not used for some time are deleted: by a call, a command, and by a start."""

import asyncio
import json
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest

from agent_core import (
    AgentCoreError,
    AgentRuntime,
    PermissionDecision,
    PermissionRequest,
    Worker,
)
from agent_core.providers.scripted import ScriptedProvider, calls
from agent_core.storage.rows import iso
from agent_core.storage.store import SessionStore
from isolation import Home
from judging import machine_is_ahead
from runtimes import CONFIG, Asked, ask, runtime
from session_stories import soong

KEPT = f"{CONFIG}\n[memory]\nenabled = false\n"


def age(home: Home, **days: float) -> None:
    """Set how many days ago sessions were last used."""
    database = sqlite3.connect(home.path / "sessions.sqlite")
    for session_id, number in days.items():
        moment = (datetime.now(UTC) - timedelta(days=number)).isoformat(timespec="microseconds")
        database.execute(
            "UPDATE sessions SET updated_at = ? WHERE session_id = ?", (moment, session_id)
        )
    database.commit()
    database.close()


async def talk(home: Home, project: Path, *ids: str, config: str = KEPT) -> None:
    async with runtime(home, project, ["yes"] * len(ids), config=config) as made:
        for session_id in ids:
            await ask(made, session_id=session_id)


async def ids_of(made: AgentRuntime) -> set[str]:
    return {each.session_id for each in await made.list_sessions()}


async def test_unused_sessions_are_found_and_deleted(home: Home, project: Path) -> None:
    other = project.with_name(f"{project.name}-other")
    other.mkdir()
    await talk(home, project, "a", "b", "c", "new")
    await talk(home, other, "elsewhere")
    age(home, a=100, b=95, c=91, elsewhere=120)
    async with runtime(home, project, config=KEPT) as made:
        found = await made.delete_sessions(older_than=timedelta(days=90))
        assert found.dry_run
        assert found.candidates == ["elsewhere", "a", "b", "c"]
        assert found.freed_bytes > 0
        assert len(await ids_of(made)) == 5
        kept = await made.delete_sessions(
            older_than=timedelta(days=90), project=project, keep_last=3, dry_run=False
        )
        assert kept.deleted == ["a"]  # new, c and b are the last used ones of this project
        assert kept.freed_bytes > 0
        moment = datetime.now(UTC) - timedelta(days=90)
        assert (await made.delete_sessions(older_than=moment, keep_last=2)).candidates == [
            "elsewhere",
            "b",
        ]
        gone = await made.delete_sessions(older_than=moment, dry_run=False)
        assert gone.deleted == gone.candidates == ["elsewhere", "b", "c"]
        assert not gone.failed
        assert await ids_of(made) == {"new"}
        named = await made.delete_sessions(session_ids=["new", "none"], dry_run=False)
        assert named.deleted == ["new"]
        assert [each.id for each in named.failed] == ["none"]


async def test_sessions_at_work_are_left(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await talk(home, project, "busy", "idle", "used")
    is_asked, may_answer = asyncio.Event(), asyncio.Event()

    class Waiting(Asked):
        async def __call__(self, request: PermissionRequest) -> PermissionDecision:
            is_asked.set()
            await may_answer.wait()
            return await super().__call__(request)

    script = [calls("code.write_file", path="a.txt", content="a"), "done"]
    working = runtime(home, project, script, config=KEPT, permission_callback=Waiting("deny"))
    async with working, runtime(home, project, config=KEPT) as made:
        handle = await working.start("write", session_id="busy")
        await is_asked.wait()
        age(home, busy=50, idle=50)
        month = timedelta(days=30)
        assert (await made.delete_sessions(older_than=month)).candidates == ["idle"]

        async def found_before(*_: object, **__: object) -> list[str]:
            return ["busy", "idle", "used"]

        monkeypatch.setattr(SessionStore, "unused_sessions", found_before)
        result = await made.delete_sessions(older_than=month, dry_run=False)
        assert result.candidates == result.deleted == ["idle"]
        assert not result.failed
        may_answer.set()
        await handle.wait()
        assert await ids_of(made) == {"busy", "used"}


@pytest.mark.parametrize(
    "wanted",
    [
        {},
        {"older_than": datetime(2026, 1, 1)},  # noqa: DTZ001 - it is refused
        {"older_than": timedelta(days=-1)},
        {"older_than": timedelta(days=1), "keep_last": -1},
        {"older_than": timedelta(days=1), "session_ids": ["a"]},
    ],
)
async def test_what_names_no_age_is_refused(
    home: Home, project: Path, wanted: dict[str, object]
) -> None:
    async with runtime(home, project, config=KEPT) as made:
        with pytest.raises(AgentCoreError) as caught:
            await made.delete_sessions(**wanted)  # type: ignore[arg-type]
        assert caught.value.code == "validation_error"


async def test_a_start_deletes_once_a_day_what_the_settings_no_longer_keep(
    home: Home, project: Path
) -> None:
    config = f"{KEPT}\n[store]\nkeep_days = 30\n"
    await talk(home, project, "old", "older", "new")
    age(home, old=40)
    await talk(home, project, config=config)
    async with runtime(home, project, config=KEPT) as made:
        assert await ids_of(made) == {"older", "new"}
    age(home, older=40)
    await talk(home, project, config=config)
    async with runtime(home, project, config=KEPT) as made:
        assert await ids_of(made) == {"older", "new"}  # not twice a day


async def test_a_clock_that_may_be_wrong_deletes_nothing_until_a_later_start(
    home: Home, project: Path
) -> None:
    config = f"{KEPT}\n[store]\nkeep_days = 30\n"
    await talk(home, project, "one", "two")
    age(home, one=40, two=40)
    await talk(home, project, config=config)
    async with runtime(home, project, config=KEPT) as made:
        assert await ids_of(made) == {"one", "two"}
    await talk(home, project, config=config)
    async with runtime(home, project, config=KEPT) as made:
        assert await ids_of(made) == set()


async def test_a_tenant_deletes_its_own_sessions_in_postgres(
    home: Home, project: Path, database_url: str
) -> None:
    def opened(tenant: str) -> AgentRuntime:
        home.write_config(KEPT)
        made = AgentRuntime(project, home_dir=home.path, database_url=database_url, tenant=tenant)
        made.register_provider("custom", lambda _: ScriptedProvider(["yes", "yes"]))
        return made

    for tenant in ("red", "blue"):
        async with opened(tenant) as made:
            for name in ("one", "two"):
                await made.run("go", f"{tenant}-{name}", here=True)
    with psycopg.connect(database_url) as connection:
        connection.execute(
            "UPDATE sessions SET updated_at = '2026-01-01T00:00:00.000000+00:00'"
            " WHERE session_id LIKE '%one'"
        )
    async with opened("red") as made:
        taken = await made.stored_bytes()
        assert {each.session_id for each in taken.sessions} == {"red-one", "red-two"}
        assert all(each.row_bytes for each in taken.sessions)
        found = await made.delete_sessions(older_than=timedelta(days=30))
        assert found.candidates == ["red-one"]
        gone = await made.delete_sessions(older_than=timedelta(days=30), dry_run=False)
        assert gone.deleted == ["red-one"]
        assert gone.freed_bytes == found.freed_bytes > 0
    # Killed before its rows were deleted: another tenant, which misses them, leaves the note alone.
    async with opened("red") as made:
        services = await made._home.services()
        notes = services.sessions.deletions._notes
        session = await services.store.session("red-two")
        assert notes is not None
        assert session is not None
        notes.take(json.dumps(["red-two", iso(session.created_at), []]).encode()).close()
        (note,) = home.path.glob("unfinished/deleted-*/*")
    async with opened("blue") as made:
        await ids_of(made)
    assert note.exists()
    async with opened("red") as made:
        assert "red-two" in await ids_of(made)
    assert not note.exists()
    with psycopg.connect(database_url) as connection:
        rows = connection.execute("SELECT session_id FROM sessions ORDER BY 1").fetchall()
        assert [row[0] for row in rows] == ["blue-one", "blue-two", "red-two"]


def test_the_command_lists_asks_and_deletes(home: Home, project: Path) -> None:
    asyncio.run(talk(home, project, "old", "new"))
    age(home, old=100)

    dry = soong(home, project, "delete", "--older-than", "90d", "--dry-run")
    assert (dry.returncode, dry.stdout) == (0, "old\n")
    assert "1 session with" in dry.stderr
    refused = soong(home, project, "delete", "--older-than", "90d", "--project", str(project))
    assert refused.returncode == 2
    assert "--yes" in refused.stderr
    for wrong in (["--dry-run"], ["old", "--older-than", "90d"], ["--older-than", "90"]):
        assert soong(home, project, "delete", *wrong).returncode == 2
    kept = soong(home, project, "delete", "--older-than", "90d", "--path", "/nowhere", "--yes")
    assert (kept.returncode, "no session is that old" in kept.stderr) == (0, True)
    gone = soong(home, project, "delete", "--older-than", "90d", "--yes")
    assert gone.returncode == 0
    assert "deleted old" in gone.stderr
    assert json.loads(soong(home, project, "list", "--json").stdout)["session_id"] == "new"


@pytest.mark.sweep
async def test_the_space_of_sessions_and_projects_is_measured(home: Home, project: Path) -> None:
    config = f'{KEPT}\n[workspace]\nsnapshots = "turn"\n'
    (project / "shared.txt").write_text("both have this " * 2000)
    big = "".join(map(chr, range(0x4E00, 0x8E00)))
    writes = [calls("code.write_file", path=f"{name}.txt", content=big) for name in ("a", "b")]
    script = [writes[0], "one", calls("code.run_command", argv=["seq", "60000"]), "two"]
    answers = Asked("allow_once")
    made = runtime(home, project, script, config=config, permission_callback=answers)
    async with made:
        await ask(made, session_id="one")
        await ask(made, session_id="two")
        found = await made.stored_bytes()
        assert {each.session_id for each in found.sessions} == {"one", "two"}
        one, two = sorted(found.sessions, key=lambda each: each.session_id)
        assert one.row_bytes > len(big.encode())  # bytes, not characters
        assert two.artifact_bytes > 200_000
        (whole,) = found.projects
        assert whole.project == str(project)
        assert whole.sessions == 2
        assert whole.row_bytes == one.row_bytes + two.row_bytes
        assert whole.snapshot_bytes > one.snapshot_bytes + two.snapshot_bytes > 0
        assert found.database_bytes
        assert found.database_bytes > whole.row_bytes
        assert (await made.stored_bytes(project.parent)).sessions == []
    shown = await asyncio.to_thread(soong, home, project, "du", "--json")
    measured = json.loads(shown.stdout)
    assert {each["session_id"] for each in measured["sessions"]} == {"one", "two"}
    assert measured["projects"][0]["project"] == str(project)
    assert measured["projects"][0]["total_bytes"] == measured["total"]["total_bytes"]
    listed = await asyncio.to_thread(soong, home, project, "du", "--here", "--limit", "1")
    assert "1 more: --limit 0 shows all" in listed.stdout
    assert "the database takes" in listed.stdout


@pytest.mark.sweep
async def test_a_worker_deletes_at_its_start_what_the_settings_no_longer_keep(
    home: Home, project: Path, database_url: str
) -> None:
    home.write_config(f"{KEPT}\n[store]\nkeep_days = 30\n")
    made = AgentRuntime(project, home_dir=home.path, database_url=database_url)
    made.register_provider("custom", lambda _: ScriptedProvider(["yes", "yes"]))
    async with made:
        for name in ("old", "new"):
            await made.run("go", name, here=True)
    with psycopg.connect(database_url) as connection:
        connection.execute(
            "UPDATE sessions SET updated_at = '2026-01-01T00:00:00.000000+00:00'"
            " WHERE session_id = 'old'"
        )
    for mark in (home.path / "sessions").glob(".kept-*"):
        mark.unlink()  # of the first start, which was today
    worker = Worker(home_dir=home.path, database_url=database_url)
    working = asyncio.create_task(worker.run())
    with psycopg.connect(database_url, autocommit=True) as connection:
        while connection.execute("SELECT count(*) FROM sessions").fetchone() != (1,):
            assert not working.done()
            await asyncio.sleep(0.02)
    worker.drain()
    assert await working
    with psycopg.connect(database_url) as connection:
        assert connection.execute("SELECT session_id FROM sessions").fetchall() == [("new",)]


@pytest.mark.sweep
async def test_the_last_session_is_the_one_used_last_whatever_its_clock_said(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await talk(home, project, "first")
    with monkeypatch.context() as wrong:
        machine_is_ahead(wrong, timedelta(days=5000))
        await talk(home, project, "ahead")
    async with runtime(home, project, ["yes"], config=KEPT) as made:
        assert await made.last_session() == "ahead"
        await ask(made, session_id="first")
        assert await made.last_session(project) == "first"
        kept = await made.delete_sessions(older_than=timedelta(0), keep_last=1)
        assert kept.candidates == ["ahead"]
    listed = await asyncio.to_thread(soong, home, project, "list", "--json")
    found = [json.loads(line)["session_id"] for line in listed.stdout.splitlines()]
    assert found == ["first", "ahead"]
