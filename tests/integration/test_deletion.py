"""Nothing of a deleted session is left in any file of the home, and its space is given back."""

import asyncio
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from agent_core import AgentCoreError, AgentRuntime, PermissionDecision, PermissionRequest
from agent_core.providers.scripted import calls
from agent_core.snapshots.packs import Packs
from agent_core.storage import erasing
from agent_core.storage.sqlite import SqliteSessionStore
from isolation import Home, program_file
from runtimes import CONFIG, Asked, ask, runtime

MARK = "zanzibar"
ON = f'{CONFIG}\n[workspace]\nsnapshots = "turn"\n\n[memory]\nenabled = false\n'


def marked(folder: Path, mark: str = MARK) -> dict[str, int]:
    """The files that have the mark in their content or their name, with the numbers of marks."""
    found: dict[str, int] = {}
    for path in folder.rglob("*"):
        number = mark in path.name
        if path.is_file() and not path.is_symlink():
            number += path.read_bytes().count(mark.encode())
        if number:
            found[str(path.relative_to(folder))] = int(number)
    for place in folder.rglob("packs"):  # their objects are compressed
        with Packs(place) as packs:
            for pack in packs:
                contents = [pack.read(digest, at) or b"" for digest, at in pack.items()]
                if any(mark.encode() in each for each in contents):
                    found[str(pack.path.relative_to(folder))] = 1
    return found


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def writes(path: str, content: str) -> object:
    return calls("code.write_file", path=path, content=content, overwrite=True)


def opened(home: Home, project: Path, *script: object, config: str = ON) -> AgentRuntime:
    answers = Asked("allow_once")
    return runtime(home, project, script, config=config, permission_callback=answers)


@pytest.mark.long
async def test_nothing_of_a_deleted_session_is_left_while_others_have_the_home_open(
    home: Home, project: Path
) -> None:
    output = f"for i in $(seq 30000); do echo {MARK} $i; done"
    script = [
        writes("kept.txt", "kept " * 9000),
        "kept",
        writes(f"{MARK}.txt", f"{MARK} " * 200),
        calls("code.run_command", argv=["sh", "-c", output]),
        f"the answer is {MARK}",
        "still there",
    ]
    made = opened(home, project, *script)
    async with made, opened(home, project) as other:
        await ask(made, session_id="kept")
        await ask(made, f"{MARK} is the word", session_id="gone")
        assert len(await other.list_sessions()) == 2  # it has the file open
        (project / f"{MARK}.txt").unlink()
        found = marked(home.path)
        assert any("artifacts" in each for each in found)
        assert any("snapshots" in each for each in found)
        result = await made.delete_session("gone")
        assert not result.failed
        assert not marked(home.path)
        handle = await ask(made, session_id="kept")
        assert handle.result_text == "still there"
        await other.undo("kept")


async def test_texts_that_sqlite_has_moved_between_pages_are_not_left(home: Home) -> None:
    """It leaves copies in the unused parts of pages, whatever `secure_delete` says."""
    path = home.path / "sessions.sqlite"
    noise = random.Random(4)  # noqa: S311 - no secret
    async with SqliteSessionStore.open(path):
        pass
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA secure_delete = OFF")
    database.execute("PRAGMA foreign_keys = ON")
    names = [f"{MARK}-{n}" if n % 3 else f"other-{n}" for n in range(30)]
    now = "2026-01-01T00:00:00.000000+00:00"
    database.executemany(
        """INSERT INTO sessions (session_id, cwd, status, metadata_json, created_at, updated_at)
        VALUES (?, '/', 'active', '{}', ?, ?)""",
        [(name, now, now) for name in names],
    )
    database.execute("BEGIN")
    for number in range(3000):
        name = noise.choice(names)
        database.execute(
            """INSERT INTO events (event_id, seq, session_id, level, event_type, payload_json,
            created_at) VALUES (?, ?, ?, 'info', 'x', ?, ?)""",
            (f"{noise.random()}", number, name, f"{name} " * noise.choice([1, 9, 90]), now),
        )
    database.execute("COMMIT")
    database.close()
    full = size_of(home.path)
    async with SqliteSessionStore.open(path) as store:
        for name in names:
            if name.startswith(MARK):
                await store.delete_session(name)
        await store.erase_deleted()
        assert not marked(home.path)
        assert size_of(home.path) < full / 2
        assert len(await store.sessions(limit=100, offset=0)) == 10


async def test_a_write_goes_before_the_rewriting_that_a_start_has_begun(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasing, "_PAUSE_S", 0.01)
    monkeypatch.setattr(erasing, "_STEPS", 1)
    path = home.path / "sessions.sqlite"
    async with SqliteSessionStore.open(path) as store:
        asked: list[bool] = []

        def is_awaited() -> bool:
            asked.append(len(asked) < 3)
            return asked[-1]

        monkeypatch.setattr(store, "_is_awaited", is_awaited)
        await store.erase_deleted(gives_way=True)
        assert asked[:4] == [True, True, True, False]
        stop = threading.Event()
        stop.set()
        with pytest.raises(AgentCoreError):
            erasing.erase_deleted(path, patience=1, stop=stop)


async def test_a_reader_that_does_not_end_is_named_and_the_next_start_erases(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasing, "READERS_S", 0.3)
    async with opened(home, project, f"yes, {MARK}") as made:
        await ask(made, MARK)
        reader = sqlite3.connect(home.path / "sessions.sqlite", isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM nodes").fetchone()
        result = await made.delete_session("s1")
        (failure,) = result.failed
        assert "reads an old state" in failure.error.message
        assert "the next start" in failure.error.message
        assert marked(home.path)
        reader.close()
    async with opened(home, project):
        pass
    assert not marked(home.path)
    assert not (home.path / "unfinished").exists() or not list((home.path / "unfinished").iterdir())


async def test_a_recording_under_way_is_waited_for(home: Home, project: Path) -> None:
    """As is a sweep, which needs the same lock."""
    made = opened(home, project, writes("a.txt", MARK), "done")
    async with made:
        await ask(made)
        (project / "a.txt").unlink()
        (lock,) = (home.path / "snapshots").glob("*/lock")
        script = (
            "import fcntl, sys, time\n"
            "lock = open(sys.argv[1]); fcntl.flock(lock, fcntl.LOCK_SH)\n"
            "print(flush=True); sys.stdin.read()"
        )
        command = [sys.executable, program_file(script), str(lock)]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe) as holder:  # noqa: ASYNC220, S603
            assert holder.stdin is not None
            assert holder.stdout is not None
            holder.stdout.readline()
            deleting = asyncio.create_task(made.delete_session("s1"))
            done, _ = await asyncio.wait([deleting], timeout=0.5)
            assert not done
            holder.stdin.close()
            assert not (await deleting).failed
        assert not list((home.path / "snapshots").rglob("*.pack"))
        assert not marked(home.path)


async def test_a_run_under_way_keeps_what_it_recorded_as_the_deleted_session_did(
    home: Home, project: Path
) -> None:
    """No node may name its snapshot yet."""
    made: AgentRuntime

    class Deleting(Asked):
        async def __call__(self, request: PermissionRequest) -> PermissionDecision:
            if request.session_id == "two":
                assert not (await made.delete_session("one")).failed
            return await super().__call__(request)

    script = [writes("a.txt", "a"), "one", writes("b.txt", "b"), "two"]
    answers = Deleting("allow_once")
    made = runtime(home, project, script, config=ON, permission_callback=answers)
    async with made:
        await ask(made, session_id="one")
        await ask(made, session_id="two")
        assert {path.name for path in project.iterdir()} == {"a.txt", "b.txt"}
        assert (await made.undo("two")).deleted == ["b.txt"]
        assert {path.name for path in project.iterdir()} == {"a.txt"}


KILLED = """
import asyncio, os, signal, sys
from agent_core import AgentRuntime
from agent_core.runtime.moves import NodeMoves

async def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

async def main(home, project):
    async with AgentRuntime(project, home_dir=home) as made:
        NodeMoves.erase = die
        await made.delete_session("gone")

asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_deletion_that_was_killed_is_finished_by_the_next_start(
    home: Home, project: Path
) -> None:
    script = [writes("a.txt", MARK), f"done {MARK}", "here"]
    async with opened(home, project, *script) as made:
        await ask(made, session_id="gone")
        await ask(made, session_id="kept")
    (project / "a.txt").unlink()
    command = [sys.executable, program_file(KILLED), str(home.path), str(project)]
    ended = subprocess.run(command, capture_output=True, check=False)  # noqa: ASYNC221, S603
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert marked(home.path)
    async with opened(home, project) as made:
        assert [each.session_id for each in await made.list_sessions()] == ["kept"]
    assert not marked(home.path)
    assert not list((home.path / "snapshots").rglob("*.pack"))
    assert not list(home.path.glob("unfinished/deleted-*"))


@pytest.mark.sweep
async def test_free_space_that_an_earlier_version_left_is_given_back_by_a_start(
    home: Home, project: Path
) -> None:
    async with opened(home, project, "x" * 2_000_000, "y") as made:
        await ask(made, session_id="gone")
        await ask(made, session_id="kept")
    database = sqlite3.connect(home.path / "sessions.sqlite")
    database.execute("PRAGMA foreign_keys = ON")
    database.execute("DELETE FROM sessions WHERE session_id = 'gone'")
    database.commit()
    database.close()
    assert size_of(home.path) > 2_000_000
    for _ in range(10):  # one that has not the time for it leaves it to the next
        async with opened(home, project) as made:
            assert [each.session_id for each in await made.list_sessions()] == ["kept"]
            for _ in range(50):
                if size_of(home.path) < 1_000_000:
                    return
                await asyncio.sleep(0.1)
    pytest.fail(f"{size_of(home.path)} bytes are left")


async def test_a_session_under_an_earlier_id_asks_again_in_a_process_that_remembers_answers(
    home: Home, project: Path
) -> None:
    write = calls("code.write_file", path="a.txt", content="a", overwrite=True)
    answers = Asked("allow_for_session", "deny")
    config = f"{CONFIG}\n[memory]\nenabled = false\n"
    script = [write, "done", write, "done", write, "refused"]
    made = runtime(home, project, script, config=config, permission_callback=answers)
    async with made:
        await ask(made, session_id="s1")
        await ask(made, session_id="s1")
        assert len(answers.requests) == 1
        async with runtime(home, project, config=config) as another:
            await another.delete_session("s1")
        await ask(made, session_id="s1")
        assert len(answers.requests) == 2
