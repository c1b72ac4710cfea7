"""Commands that only show: they write nothing, and work on a home that cannot be written."""

import asyncio
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import rights
from agent_core import AgentRuntime, ErrorCode, RunStatus, StorageError
from agent_core.cli.command import execute
from agent_core.providers.scripted import ScriptedProvider, calls
from agent_core.storage import connections, migrations
from agent_core.storage.migrations import MIGRATIONS, Migration
from agent_core.storage.owners import Owner
from agent_core.storage.reading import open_unlocked
from agent_core.storage.sqlite import SqliteSessionStore
from isolation import Home
from mounts import read_only_mount
from posix_locks import locks_of, needs_locks
from rights import as_anyone
from rows import a_batch, a_node, an_opening
from runtimes import CONFIG, Asked, ask, runtime
from session_stories import SOONG
from sweeps import kept, sampled

SHOWN = (
    ("cost", "--json"),
    ("sessions", "list", "--json"),
    ("sessions", "show", "s1"),
    ("sessions", "tree", "s1"),
    ("sessions", "search", "hello"),
    ("sessions", "du", "--json"),
    ("sessions", "export", "s1", "--jsonl"),
    ("sessions", "delete", "--older-than", "1d", "--dry-run"),
    ("tasks", "list"),
    ("approvals", "list", "--all"),
    ("permissions", "list"),
    ("permissions", "explain", "--", "ls"),
    ("memory", "list"),
    ("agents", "list"),
    ("skills", "list"),
    ("config", "show"),
    ("mcp", "list"),
)
SETTINGS = f'{CONFIG}\n[workspace]\nsnapshots = "turn"\n[memory]\nenabled = false\n'


def command(home: Path, project: Path, *words: str, on: tuple[str, ...] = ()) -> Any:
    return subprocess.run(  # noqa: S603
        [*on, SOONG, *words],
        cwd=project,
        env={**os.environ, "SOONG_AGENT_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def state_of(folder: Path) -> dict[str, tuple[Any, ...]]:
    found: dict[str, tuple[Any, ...]] = {}
    for path in sorted([folder, *folder.rglob("*")]):
        at = path.lstat()
        content = b"" if path.is_dir() else path.read_bytes()
        found[str(path.relative_to(folder))] = (at.st_ino, at.st_mode, at.st_mtime_ns, content)
    return found


async def a_home(home: Home, project: Path) -> None:
    script = [calls("code.write_file", path="a.txt", content="a"), "hello there"]
    answers = Asked("allow_once")
    async with runtime(home, project, script, config=SETTINGS, permission_callback=answers) as made:
        await ask(made)


DRIVER = """
import contextlib, io, json, sys
from agent_core.cli.command import execute
for words in json.loads(sys.argv[1]):
    shown = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    with contextlib.redirect_stdout(shown):
        code = execute(words)
    print(json.dumps([code, shown.buffer.getvalue().decode()]))
"""


@pytest.mark.long
def test_showing_changes_nothing_and_needs_no_right_to_write(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(a_home(home, project))
    before, mount = state_of(home.path), read_only_mount(home.path)
    monkeypatch.chdir(project)
    there: list[list[Any]] = []
    with closing(
        sqlite3.connect(f"file:{home.path}/sessions.sqlite?immutable=1", uri=True)
    ) as rows:
        named = rows.execute("SELECT previous_id, snapshot_id FROM node_snapshots ORDER BY rowid")
        (begun, _), *_, (_, ended) = named.fetchall()
    shown = (*sampled(SHOWN, keep=4), ("workspace", "diff", begun, ended))
    for words in shown:
        there.append([execute(list(words)), capsys.readouterr().out])
        assert state_of(home.path) == before, words
    assert {code for code, _ in there} == {0}
    execute(["doctor"])
    assert state_of(home.path) == before
    mounted = subprocess.run(  # noqa: S603
        [*mount, sys.executable, "-c", DRIVER, json.dumps(shown)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert mounted.returncode == 0, mounted.stderr
    assert "a.txt" in there[-1][1]
    for words, expected, line in zip(shown, there, mounted.stdout.splitlines(), strict=True):
        assert json.loads(line) == expected, words


def test_showing_creates_no_home(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = home.path / "missing"
    monkeypatch.chdir(project)
    monkeypatch.setenv("SOONG_AGENT_HOME", str(missing))
    for words in SHOWN:
        if "s1" not in words:
            assert execute(list(words)) in {0, 1}, words
            assert not missing.exists(), words


@pytest.mark.sweep
async def test_what_is_still_in_the_log_is_shown_without_touching_it(
    home: Home, project: Path, tmp_path: Path
) -> None:
    await a_home(home, project)
    home.write("config.toml", SETTINGS)
    async with runtime(home, project, ["and again"], config=SETTINGS) as made:
        await ask(made, session_id="second")
        assert (home.path / "sessions.sqlite-wal").stat().st_size
        copies = {"whole": ("", "-wal", "-shm"), "without an index": ("", "-wal")}
        for name, ends in copies.items():
            copy = tmp_path / name
            copy.mkdir()
            shutil.copy(home.path / "config.toml", copy)
            for end in ends:
                shutil.copy(home.path / f"sessions.sqlite{end}", copy)
        places = {"in use": home.path, **{name: tmp_path / name for name in copies}}
        for name, place in places.items():
            mount = read_only_mount(place)
            before = state_of(place) if place != home.path else None
            for on in ((), mount):
                listed = await asyncio.to_thread(
                    command, place, project, "sessions", "list", "--json", on=on
                )
                found = [json.loads(line)["session_id"] for line in listed.stdout.splitlines()]
                assert found == ["second", "s1"], (name, listed.stderr)
            assert before in (None, state_of(place)), name
        await ask_nothing(made)


async def ask_nothing(made: AgentRuntime) -> None:
    """Use the runtime once more: a reader elsewhere has taken nothing from it."""
    await made.rename_session("second", "another title")


async def test_an_older_schema_is_read_as_the_next_run_would_make_it(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = home.path / "sessions.sqlite"
    for released in (1, 8, 12):
        path.unlink(missing_ok=True)
        with monkeypatch.context() as old:
            old.setattr(migrations, "MIGRATIONS", MIGRATIONS[:released])
            with closing(connections.open_writer(path)) as writer:
                for number, name in enumerate(("one", "two")):
                    writer.execute(
                        """INSERT INTO sessions
                        (session_id, cwd, status, metadata_json, created_at, updated_at)
                        VALUES (?, '/project', 'active', '{}', ?, ?)""",
                        (name, *[f"2026-01-0{number + 1}T00:00:00.000000+00:00"] * 2),
                    )
        before = state_of(home.path)
        async with AgentRuntime(
            project, home_dir=home.path, model="ollama:x", read_only=True
        ) as reading:
            listed = await reading.list_sessions()
            assert [each.session_id for each in listed] == ["two", "one"]
            assert await reading.costs() == []
        assert state_of(home.path) == before


async def test_the_run_of_a_dead_process_is_shown_as_the_next_run_closes_it(
    home: Home, project: Path
) -> None:
    home.write_config(SETTINGS)
    async with SqliteSessionStore.open(home.path / "sessions.sqlite") as store:
        opening = an_opening(cwd=str(project), owner="own_dead.elsewhere")
        await store.open_run(opening)
        await store.append(a_batch(a_node("n1"), owner="own_dead.elsewhere"))
    with closing(sqlite3.connect(home.path / "sessions.sqlite")) as database, database:
        database.execute(
            "UPDATE sessions SET lease_expires_at = '2020-01-01T00:00:00.000000+00:00'"
        )
    before = state_of(home.path)
    async with AgentRuntime(project, home_dir=home.path, model="ollama:x", read_only=True) as made:
        (run,) = await made.session_runs("s1")
        assert run.status is RunStatus.FAILED
        assert run.metadata["reason"] == "owner_lost"
    assert state_of(home.path) == before


async def test_a_read_only_runtime_refuses_to_start_and_to_change(
    home: Home, project: Path
) -> None:
    await a_home(home, project)
    before = state_of(home.path), state_of(project)
    async with AgentRuntime(project, home_dir=home.path, model="ollama:x", read_only=True) as made:
        node = (await made.replay_session("s1")).nodes[0].node_id
        for change in (
            lambda: made.start("go", session_id="s1"),
            lambda: made.rename_session("s1", "x"),
            lambda: made.undo("s1"),
            lambda: made.switch_node("s1", node, restore_files=True),
            lambda: made.delete_session("s1"),
            lambda: made.fork("s1", into=project.with_name("fork")),
            lambda: made.compact_session("s1"),
            lambda: made.delete_artifact("art_1"),
            lambda: made.cleanup_artifacts(dry_run=False),
            lambda: made.cleanup_project_tasks(project, dry_run=False),
        ):
            with pytest.raises(StorageError, match="read_only"):
                await change()
            assert (state_of(home.path), state_of(project)) == before
        assert [each.session_id for each in await made.list_sessions()] == ["s1"]
    assert (state_of(home.path), state_of(project)) == before


async def test_a_server_is_read_without_a_lock_or_an_upgrade(
    home: Home, project: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(*, read_only: bool) -> AgentRuntime:
        made = AgentRuntime(
            project, home_dir=home.path, database_url=database_url, read_only=read_only
        )
        made.register_provider("custom", lambda _: ScriptedProvider(["yes"]))
        return made

    home.write_config(SETTINGS)
    async with opened(read_only=False) as made:
        await made.run("hello", "s1", here=True)
    before = state_of(home.path)
    async with opened(read_only=True) as reading:
        assert [each.session_id for each in await reading.session_summaries(5)] == ["s1"]
        assert await reading.queue() == []
        with pytest.raises(StorageError, match="read_only"):
            await reading.rename_session("s1", "x")
    assert state_of(home.path) == before
    newer = Migration(MIGRATIONS[-1].version + 1, "new", ("CREATE TABLE later (later_id TEXT)",))
    monkeypatch.setattr("agent_core.storage.postgres.store.MIGRATIONS", (*MIGRATIONS, newer))
    with pytest.raises(StorageError, match="soong-agent store migrate") as refused:
        await opened(read_only=True).list_sessions()
    assert refused.value.code is ErrorCode.MIGRATION_FAILED


@needs_locks
@pytest.mark.parametrize("is_log_empty", [False, True])
async def test_reading_takes_no_lock_from_a_runtime_of_the_same_process(
    home: Home, project: Path, is_log_empty: bool
) -> None:
    path = home.path / "sessions.sqlite"
    async with runtime(home, project, ["yes", "again"], config=SETTINGS) as made:
        await ask(made)
        if is_log_empty:
            with closing(connections.reopen_writer(path)) as writer:
                writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        assert bool(Path(f"{path}-wal").stat().st_size) is not is_log_empty
        before = locks_of(path, pid=os.getpid())
        assert before
        async with AgentRuntime(
            project, home_dir=home.path, model="ollama:x", read_only=True
        ) as reading:
            assert [each.session_id for each in await reading.list_sessions()] == ["s1"]
            await ask(made, session_id="s2")
            listed = await reading.list_sessions()
            assert [each.session_id for each in listed] == ["s2", "s1"]
        assert before <= locks_of(path, pid=os.getpid())
    assert not Path(f"{path}-wal").exists()


async def test_a_home_that_cannot_be_read_is_no_home_without_sessions(
    home: Home, project: Path
) -> None:
    await a_home(home, project)
    store = home.path / "store"
    store.mkdir()
    (home.path / "sessions.sqlite").rename(store / "sessions.sqlite")
    store.chmod(0)
    try:
        with as_anyone(), pytest.raises(StorageError, match="Permission denied"):
            async with open_unlocked(store / "sessions.sqlite", Owner.in_memory()) as found:
                await found.sessions()
    finally:
        store.chmod(0o700)
    async with open_unlocked(store / "sessions.sqlite", Owner.in_memory()) as found:
        assert len(await found.sessions()) == 1


@pytest.mark.parametrize("ending", kept(["", "-wal"], ""))
def test_the_file_of_a_database_that_may_not_be_read_is_named(
    home: Home, project: Path, ending: str
) -> None:
    asyncio.run(a_home(home, project))
    closed = home.path / f"sessions.sqlite{ending}"
    with closed.open("ab") as file:
        file.write(b"x")
    closed.chmod(0)
    for words in (["sessions"], ["run", "--model", "openai:x@http://127.0.0.1:9/v1", "hi"]):
        done = subprocess.run(  # noqa: S603 - our own command
            [sys.executable, rights.__file__, "agent_core.cli", *words],
            cwd=project,
            env=home.env(OPENAI_API_KEY="none"),
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        assert done.returncode == 1
        assert f"you may not read {closed}; make it readable for you" in done.stderr
