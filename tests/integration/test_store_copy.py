"""Whole sessions from one database to another: every row and file, and then the work goes on."""

import asyncio
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from agent_core import AgentRuntime
from agent_core.config.load import read_setup
from agent_core.providers.scripted import ScriptedProvider
from agent_core.runtime.copying import SessionCopies, StoreAddress
from agent_core.storage.migrations import LEDGER, MIGRATIONS
from agent_core.storage.workspaces import drop_snapshots
from agent_core.types import RunStatus, utc_now
from isolation import Home
from mounts import read_only_mount
from sweeps import kept, sampled
from zoo import (
    PARKING,
    SOONG,
    another_home,
    contents_of,
    fill,
    opened,
    order_of,
    rows_of,
    snapshots_of,
    store,
)


def said(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line["session_id"]: line for line in lines}


@pytest.fixture
async def zoo(home: Home, project: Path) -> Path:
    """The database of sessions of every kind."""
    await fill(home, project)
    return home.path / "sessions.sqlite"


def rows_in(home: Home, database: Path) -> dict[str, Any]:
    """All rows; only the folder of artifacts and the numbers of uses may differ."""
    rows: dict[str, Any] = rows_of(database)
    with closing(sqlite3.connect(database)) as connection:
        used = connection.execute("SELECT session_id FROM sessions ORDER BY use_number")
        names = [name for (name,) in used]
    rows["sessions"] = sorted(
        (row[:-1] for row in rows["sessions"]), key=lambda r: names.index(r[0])
    )
    return rows | {"artifacts": repr(rows["artifacts"]).replace(str(home.path), "<home>")}


@pytest.mark.sweep
@pytest.mark.timeout(120)  # whole processes, on a machine that may be busy
async def test_a_copy_in_another_home_has_every_row_and_every_file(
    home: Home, project: Path, zoo: Path, tmp_path: Path
) -> None:
    other = another_home(home, tmp_path / "other")
    copy = other.path / "sessions.sqlite"
    before, files = rows_of(zoo), contents_of(home.path)
    assert all(before.values()), [name for name, rows in before.items() if not rows]
    done = store(home, "copy", "--from", f"sqlite:{zoo}", "--to", f"sqlite:{copy}")
    assert done.returncode == 0, done.stderr
    assert "remark" not in done.stderr
    assert len(done.stdout.split()) == len(before["sessions"]) == 4
    assert rows_in(other, copy) == rows_in(home, zoo)
    assert order_of(copy) == order_of(zoo)
    assert rows_of(zoo) == before
    assert contents_of(other.path) == files
    assert any(name.startswith("tasks/team/") for name in files)
    named = {name for row in before["node_snapshots"] for name in (row[4], row[5])}
    assert named <= set(snapshots_of(other.path, copy)) <= set(snapshots_of(home.path, zoo))
    assert copy.stat().st_mode & 0o777 == 0o600

    async with opened(other, project, config=PARKING) as made:
        assert await (await made.start("go on", session_id="story")).wait() is RunStatus.COMPLETED
        (question,) = await made.approvals()
        answered = await made.answer(question.request_id, "allow_once")
        assert await answered.wait() is RunStatus.COMPLETED
        assert (project / "d.txt").read_text() == "four\n"
        taken_back = await made.undo("story")
        assert not taken_back.refused
        lead = await made.start("lead", session_id="team", mode="orchestrator")
        assert await lead.wait() is RunStatus.COMPLETED
        services = await made._home.services()
        for artifact in await services.store.artifacts():
            assert await services.artifacts.read(artifact.artifact_id)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("name", "is_named"), sampled([("sessions", False), ("monday", True)], keep=1)
)
async def test_the_folder_of_the_contents_is_named_if_it_is_not_the_copys(
    home: Home, zoo: Path, tmp_path: Path, name: str, is_named: bool
) -> None:
    done = await asyncio.to_thread(
        subprocess.run,
        [SOONG, "store", "copy", "--from", f"sqlite:{zoo}", "--to", f"sqlite:backup/{name}.sqlite"],
        env={**os.environ, "SOONG_AGENT_HOME": str(home.path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    said_so = f"their artifacts and snapshots are in {home.path}"
    assert (said_so in done.stderr) == is_named, done.stderr
    folder = home.path if is_named else tmp_path / "backup"
    assert [*snapshots_of(folder, tmp_path / "backup" / f"{name}.sqlite")]


@pytest.mark.sweep
async def test_a_backup_that_cannot_be_written_is_copied(
    home: Home, project: Path, zoo: Path, tmp_path: Path
) -> None:
    other, mount = another_home(home, tmp_path / "other"), read_only_mount(home.path)
    copy = other.path / "sessions.sqlite"
    done = await asyncio.to_thread(
        subprocess.run,
        [*mount, SOONG, "store", "copy", "--from", f"sqlite:{zoo}", "--to", f"sqlite:{copy}"],
        env={**os.environ, "SOONG_AGENT_HOME": str(other.path)},
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert rows_in(other, copy) == rows_in(home, zoo)
    named = {name for row in rows_of(zoo)["node_snapshots"] for name in (row[4], row[5])}
    assert named <= set(snapshots_of(other.path, copy))


@pytest.mark.timeout(120)  # whole processes, on a machine that may be busy
async def test_a_copy_to_postgres_and_back_has_every_row_and_every_file(
    home: Home,
    project: Path,
    zoo: Path,
    tmp_path: Path,
    empty_database_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = another_home(home, tmp_path / "other")
    back, url = other.path / "sessions.sqlite", empty_database_url
    files = contents_of(home.path)
    done = store(home, "copy", "--from", f"sqlite:{zoo}", "--to", "env:THERE", THERE=url)
    assert done.returncode == 0, done.stderr
    done = store(home, "copy", "--from", "env:THERE", "--to", f"sqlite:{back}", THERE=url)
    assert done.returncode == 0, done.stderr
    assert rows_in(other, back) == rows_in(home, zoo)
    assert order_of(back) == order_of(zoo)
    assert contents_of(other.path) == files

    # There, the sessions go on: in this process, with their questions, files and contents.
    database = f'{PARKING}\n[store]\nurl_env = "THERE"\n'
    monkeypatch.setenv("THERE", url)
    for artifacts in (home.path / "sessions").glob("*/artifacts"):
        shutil.rmtree(artifacts)
    async with opened(home, project, config=database) as made:
        services = await made._home.services()
        for artifact in await services.store.artifacts():
            content = await services.artifacts.read(artifact.artifact_id)
            assert len(content) == artifact.size_bytes
        run = await made.start("go on", session_id="story", here=True)
        assert await run.wait() is RunStatus.COMPLETED
        events = (await made.replay_run(run.run_id)).events
        assert [event.run_seq for event in events] == list(range(1, len(events) + 1))
        before = max(row[1] for row in rows_of(zoo)["events"] if row[3] == "story")
        assert events[0].seq == before + 1
        (question,) = await made.approvals()
        answered = await made.answer(question.request_id, "allow_once")
        assert await answered.wait() is RunStatus.COMPLETED
        assert not (await made.undo("parked")).remarks
        assert not (project / "d.txt").exists()


def many(database: Path, session_id: str, events: int, size: int) -> None:
    """Give a session events of a size."""
    with closing(sqlite3.connect(database)) as connection, connection:
        (last,) = connection.execute(
            "SELECT coalesce(max(seq), 0) FROM events WHERE session_id = ?", (session_id,)
        ).fetchone()
        for number in range(last + 1, last + 1 + events):
            payload = json.dumps({"text": f"{number} " * (size // 8)})
            row = (f"evt_{session_id}_{number}", number, session_id, payload)
            connection.execute(
                """INSERT INTO events (event_id, seq, session_id, level, event_type, payload_json,
                created_at) VALUES (?, ?, ?, 'info', 'model_started', ?, '2026-01-01')""",
                row,
            )


def a_session(database: Path, session_id: str, **columns: Any) -> None:
    """A session without anything in it, in a database of any schema."""
    row = {
        "session_id": session_id,
        "cwd": "/project",
        "status": "active",
        "metadata_json": "{}",
        "created_at": "2026-01-01T00:00:00.000000+00:00",
        "updated_at": "2026-01-01T00:00:00.000000+00:00",
        **columns,
    }
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute(
            f"INSERT INTO sessions ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})",  # noqa: S608
            tuple(row.values()),
        )


def a_run(database: Path, session_id: str, status: str) -> None:
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute(
            """INSERT INTO runs (run_id, session_id, agent_id, mode, status, turn_count,
            usage_json, metadata_json, created_at, updated_at)
            VALUES (?, ?, 'agent_1', 'normal', ?, 0, '{}', '{}', '2026', '2026')""",
            (f"run_{session_id}", session_id, status),
        )


@pytest.mark.parametrize("kind", kept(["file", "server"], "file"))
def test_what_cannot_be_copied_is_named_and_the_rest_is_copied(
    home: Home, tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    database = home.path / "sessions.sqlite"
    assert store(home, "migrate").returncode == 0
    for name in ("done", "there", "busy", "queued", "lost", "waits", "moves"):
        a_session(database, name)
    for name, status in (
        ("done", "completed"),
        ("busy", "running"),
        ("queued", "queued"),
        ("lost", "running"),
        ("waits", "waiting"),
    ):
        a_run(database, name, status)
    with closing(sqlite3.connect(database)) as connection, connection:
        for name, lease in (("busy", "9999"), ("lost", "2001")):
            connection.execute(
                "UPDATE sessions SET owner = ?, lease_expires_at = ? WHERE session_id = ?",
                (f"own_{name}.elsewhere", f"{lease}-01-01T00:00:00.000000+00:00", name),
            )
        connection.execute(
            """INSERT INTO workspaces (session_id, folder, undone_json, pending_json)
            VALUES ('moves', '/project', '[]', '{}')"""
        )
    url = request.getfixturevalue("empty_database_url") if kind == "server" else "not used"
    there = "env:THERE" if kind == "server" else f"sqlite:{tmp_path}/there.sqlite"
    ends = ("copy", "--from", f"sqlite:{database}", "--to", there)
    first = store(home, *ends, "ther", THERE=url)
    assert (first.returncode, first.stdout) == (0, "there\n")
    done = store(home, *ends, "--json", THERE=url)
    assert done.returncode == 1
    copied = {name for name, line in said(done).items() if line["is_copied"]}
    assert copied == {"done", "lost", "waits"}
    refused = {name: line["error"] for name, line in said(done).items() if line["error"]}
    assert {name: error["code"] for name, error in refused.items()} == {
        "there": "validation_error",
        "busy": "session_active",
        "queued": "session_active",
        "moves": "session_active",
    }
    assert all(name in error["message"] for name, error in refused.items())

    named = store(home, *ends, "nothing", "done", "lo", THERE=url)
    assert named.returncode == 1
    assert "nothing" in named.stderr
    assert named.stderr.count("already") == 2
    back = tmp_path / "back.sqlite"
    assert store(home, "copy", "--from", there, "--to", f"sqlite:{back}", THERE=url).returncode == 0
    owners = {row[0]: row[6] for row in rows_of(back)["sessions"]}
    assert owners == {"done": None, "lost": "own_lost.elsewhere", "there": None, "waits": None}


@pytest.mark.long
@pytest.mark.timeout(120)  # whole processes, on a machine that may be busy
@pytest.mark.parametrize("kind", kept(["file", "server"], "file"))
def test_a_copy_that_is_killed_leaves_no_half_session_and_is_gone_on_with(
    home: Home, tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    database = home.path / "sessions.sqlite"
    assert store(home, "migrate").returncode == 0
    for name in ("a", "b", "c"):
        a_session(database, name)
        a_run(database, name, "completed")
        many(database, name, 1500, 2000)
    url = request.getfixturevalue("empty_database_url") if kind == "server" else "not used"
    there = "env:THERE" if kind == "server" else f"sqlite:{tmp_path}/there.sqlite"
    ends = ("copy", "--from", f"sqlite:{database}", "--to", there)
    environ = {**os.environ, "SOONG_AGENT_HOME": str(home.path), "THERE": url}
    with subprocess.Popen(  # noqa: S603
        [SOONG, "store", *ends], env=environ, stdout=subprocess.PIPE, text=True
    ) as copying:
        assert copying.stdout is not None
        assert copying.stdout.readline() == "a\n"
        copying.kill()
    back = tmp_path / "back.sqlite"
    assert store(home, "copy", "--from", there, "--to", f"sqlite:{back}", THERE=url).returncode == 0
    whole = rows_of(database)
    for name, rows in rows_of(back).items():
        sessions = {row[0] for row in rows_of(back)["sessions"]}
        column = 3 if name == "events" else 0 if name == "sessions" else 1
        assert rows == [row for row in whole[name] if row[column] in sessions], name
    again = store(home, *ends, "--json", THERE=url)
    assert again.returncode == 1
    assert "a" in {name for name, line in said(again).items() if line["error"]}
    assert {line["session_id"] for line in said(again).values()} == {"a", "b", "c"}
    assert store(home, "copy", "--from", there, "--to", f"sqlite:{back}", THERE=url).returncode == 1
    assert rows_of(back) == whole


def most_memory(home: Home, *words: str, **more: str) -> int:
    """The most memory that a copy takes, in MiB."""
    environ = {**os.environ, "SOONG_AGENT_HOME": str(home.path), **more}
    with subprocess.Popen([SOONG, "store", *words], env=environ) as copying:  # noqa: S603
        _, status, used = os.wait4(copying.pid, 0)
        copying.returncode = os.waitstatus_to_exitcode(status)
    assert copying.returncode == 0
    return used.ru_maxrss // (2**20 if sys.platform == "darwin" else 2**10)


@pytest.mark.sweep
@pytest.mark.timeout(120)  # whole processes, on a machine that may be busy
def test_the_size_of_a_session_is_no_matter_of_memory(
    home: Home, tmp_path: Path, empty_database_url: str
) -> None:
    database = home.path / "sessions.sqlite"
    assert store(home, "migrate").returncode == 0
    for name, events in (("small", 1), ("large", 40)):
        a_session(database, name)
        many(database, name, events, 2**20)
    ends = ("copy", "--from", f"sqlite:{database}", "--to", "env:THERE")
    back = ("copy", "--from", "env:THERE", "--to", f"sqlite:{tmp_path}/back.sqlite")
    for each in (ends, back):
        small = most_memory(home, *each, "small", THERE=empty_database_url)
        large = most_memory(home, *each, "large", THERE=empty_database_url)
        assert large < small + 28
    assert rows_of(tmp_path / "back.sqlite") == rows_of(database)


@pytest.mark.timeout(120)  # whole processes, on a machine that may be busy
@pytest.mark.parametrize("kind", kept(["file", "server"], "file"))
async def test_a_session_whose_contents_are_not_at_the_source_is_refused(
    home: Home, zoo: Path, tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue("empty_database_url") if kind == "server" else "not used"
    other = another_home(home, tmp_path / "other")
    there = "env:THERE" if kind == "server" else f"sqlite:{other.path}/sessions.sqlite"
    ends = ("copy", "--from", f"sqlite:{zoo}", "--to", there)
    wrong = (*ends, "--from-home", str(tmp_path / "wrong"))
    done = store(home, *wrong, "--json", THERE=url)
    assert done.returncode == 1
    copied = {name for name, line in said(done).items() if line["is_copied"]}
    assert copied == {"parked"}  # it has none
    errors = {name: line["error"]["message"] for name, line in said(done).items() if line["error"]}
    assert len(errors) == 3
    for word in ("story", "artifacts", "snapshots of files", "--from-home", "--incomplete"):
        assert word in errors["story"]
    assert "the logs of its Tasks" in errors["team"]
    assert not contents_of(other.path)
    if kind == "server":
        with psycopg.connect(url) as connection:
            for table in ("blobs", "shared_snapshots"):
                count = connection.execute(f"SELECT count(*) FROM {table}".encode())  # noqa: S608
                assert count.fetchone() == (0,)
    done = store(home, *wrong, "story", "--incomplete", THERE=url)
    assert done.returncode == 0
    assert "story is copied without" in done.stderr
    assert "1 copied, 1 of them incomplete" in done.stderr
    done = store(home, *ends, THERE=url)
    assert (done.returncode, len(done.stdout.split())) == (1, 2)
    assert "incomplete" not in done.stderr


async def test_contents_that_are_lost_or_damaged_are_those_of_their_sessions_alone(
    home: Home, project: Path, zoo: Path, tmp_path: Path
) -> None:
    async with opened(home, project) as made:
        await (await made.start("tell a tale", session_id="whole")).wait()
    with closing(sqlite3.connect(zoo)) as connection, connection:
        ((lost,),) = connection.execute(
            "SELECT artifact_id FROM artifacts WHERE session_id = 'story' LIMIT 1"
        )
        connection.execute(
            """INSERT INTO workspaces (session_id, folder, snapshot_id, undone_json)
            VALUES ('parked', '/project', ?, '[]')""",
            (f"snap_{'0' * 32}",),
        )
    shutil.rmtree(home.path / "sessions" / "story" / "artifacts" / lost)
    copy = f"sqlite:{another_home(home, tmp_path / 'other').path}/sessions.sqlite"
    done = store(home, "copy", "--from", f"sqlite:{zoo}", "--to", copy, "--json")
    assert done.returncode == 1
    errors = {name: line["error"] for name, line in said(done).items() if line["error"]}
    assert set(errors) == {"story", "parked"}
    assert "1 of 1 artifacts are missing" in errors["story"]["message"]
    assert "1 of 1 snapshots of files are missing" in errors["parked"]["message"]
    assert not (tmp_path / "other" / "sessions" / "story").exists()


@pytest.mark.sweep
async def test_snapshots_that_were_swept_are_not_missing(
    home: Home, zoo: Path, tmp_path: Path
) -> None:
    with closing(sqlite3.connect(zoo)) as connection, connection:
        (undone,) = connection.execute(
            "SELECT count(*) FROM workspaces WHERE undone_json <> '[]'"
        ).fetchone()
        assert undone
        connection.row_factory = sqlite3.Row
        assert drop_snapshots(connection, utc_now() + timedelta(days=1))
    shutil.rmtree(home.path / "snapshots")
    copy = f"sqlite:{another_home(home, tmp_path / 'other').path}/sessions.sqlite"
    done = store(home, "copy", "--from", f"sqlite:{zoo}", "--to", copy, "story")
    assert (done.returncode, done.stdout) == (0, "story\n"), done.stderr


@pytest.mark.parametrize("version", sampled(range(1, len(MIGRATIONS)), keep=2))
def test_an_older_source_is_read_and_not_migrated(home: Home, tmp_path: Path, version: int) -> None:
    older, copy = tmp_path / "older.sqlite", tmp_path / "copy.sqlite"
    with closing(sqlite3.connect(older)) as connection, connection:
        connection.execute(LEDGER)
        for migration in MIGRATIONS[:version]:
            for statement in migration.statements:
                connection.execute(statement)
            row = (migration.version, migration.name, "then")
            connection.execute("INSERT INTO schema_migrations VALUES (?, ?, ?)", row)
    a_session(older, "s1", **({"title": "A title"} if version >= 9 else {}))
    a_run(older, "s1", "completed")
    many(older, "s1", 3, 10)
    before = older.read_bytes()
    with SessionCopies.open(
        StoreAddress.parse(f"sqlite:{older}", {}),
        StoreAddress.parse(f"sqlite:{copy}", {}),
        setup=read_setup(tmp_path, home_dir=home.path, model="ollama:x"),
    ) as copies:
        (copied,) = copies.copy()
    assert copied.error is None
    assert older.read_bytes() == before
    there, here = rows_of(copy), rows_of(older)
    assert there["events"] == here["events"]
    (session,), (was,) = there["sessions"], here["sessions"]
    assert session[: len(was)] == was


async def test_a_copy_of_an_older_source_goes_on(home: Home, project: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.sqlite"
    async with opened(home, project) as made:
        await (await made.start("see", session_id="s1")).wait()
    older = tmp_path / "older.sqlite"
    shutil.copy(home.path / "sessions.sqlite", older)
    with closing(sqlite3.connect(older)) as connection, connection:
        connection.execute("DROP TABLE memory_backlog")
        connection.execute("DROP INDEX runs_open")
        connection.execute("ALTER TABLE runs DROP COLUMN lane")
        connection.execute("ALTER TABLE sessions DROP COLUMN place")
        connection.execute("DELETE FROM schema_migrations WHERE version > 9")
    done = store(home, "copy", "--from", f"sqlite:{older}", "--to", f"sqlite:{copy}")
    assert done.returncode == 0, done.stderr
    made = AgentRuntime(project, home_dir=home.path, session_db_path=copy)
    provider = ScriptedProvider(["again"])
    made.register_provider("custom", lambda _: provider)
    async with made:
        assert await (await made.start("see", session_id="s1")).wait() is RunStatus.COMPLETED


async def test_a_tenant_gets_its_sessions_and_no_others(
    home: Home, tmp_path: Path, empty_database_url: str
) -> None:
    database, back = home.path / "sessions.sqlite", tmp_path / "back.sqlite"
    assert store(home, "migrate").returncode == 0
    for name, tenant in (("ours", "acme"), ("theirs", "other"), ("free", None)):
        a_session(database, name, tenant=tenant)
    to = ("copy", "--from", f"sqlite:{database}", "--to", "env:THERE", "--tenant", "acme")
    done = store(home, *to, THERE=empty_database_url)
    assert sorted(done.stdout.split()) == ["free", "ours"]
    named = store(home, *to, "theirs", THERE=empty_database_url)
    assert named.returncode == 1
    assert "there is no session theirs" in named.stderr
    made = AgentRuntime(
        tmp_path,
        home_dir=home.path,
        model="ollama:x",
        database_url=empty_database_url,
        tenant="acme",
    )
    async with made:
        assert {each.session_id for each in await made.list_sessions()} == {"free", "ours"}
    other = ("copy", "--from", "env:THERE", "--to", f"sqlite:{back}", "--tenant", "other")
    assert store(home, *other, THERE=empty_database_url).stdout == ""
    for tenant in ("", "a/b"):
        wrong = store(home, *other[:-1], tenant, THERE=empty_database_url)
        assert wrong.returncode == 2
        assert "tenant" in wrong.stderr


@pytest.mark.long
@pytest.mark.timeout(120)  # whole processes, on a machine that may be busy
@pytest.mark.parametrize("kind", kept(["file", "server"], "file"))
async def test_an_artifact_that_is_damaged_behind_its_beginning_counts_as_missing(
    home: Home, zoo: Path, tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    source, url = f"sqlite:{zoo}", "not used"
    if kind == "server":
        source, url = "env:THERE", request.getfixturevalue("empty_database_url")
        done = store(home, "copy", "--from", f"sqlite:{zoo}", "--to", source, "story", THERE=url)
        assert done.returncode == 0
        with psycopg.connect(url) as connection:
            connection.execute(
                "UPDATE blob_pieces SET content = set_byte(content, length(content) - 1, 0)"
                " WHERE blob IN (SELECT replace(path, 'blob:', '') FROM artifacts)"
            )
    else:
        with sqlite3.connect(zoo) as connection:
            found = connection.execute("SELECT path FROM artifacts WHERE session_id = 'story'")
            for (path,) in found:
                os.truncate(path, Path(path).stat().st_size - 1)
    other = another_home(home, tmp_path / "other")
    ends = ("copy", "--from", source, "--to", f"sqlite:{other.path}/sessions.sqlite", "story")
    done = store(home, *ends, THERE=url)
    assert done.returncode == 1
    assert "artifacts are missing or damaged" in done.stderr
    done = store(home, *ends, "--incomplete", THERE=url)
    assert done.returncode == 0
    assert "story is copied without" in done.stderr
