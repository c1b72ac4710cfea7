"""Whatever opens the session database once more, or is led to its files, keeps SQLite's locks.

Without the locks of a process the next one to exit takes itself for the last user of the database
and deletes the log that the others write.
"""

import asyncio
import os
import re
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent_core import AgentCoreError, AgentRuntime
from agent_core.cli import main
from agent_core.providers.scripted import ScriptedProvider, calls
from agent_core.types import ReplayResult
from captures import Session, open_terminal
from casts import results
from isolation import Home, program_file
from model_server import ModelServer
from posix_locks import locks_of, needs_locks
from runtimes import CONFIG, Asked, ask, runtime
from sweeps import kept, sampled

pytestmark = [needs_locks, pytest.mark.timeout(180)]

ENTER, CTRL_C = "\r", "\x03"
AT_REST = r"\x1b\[J>"
ENDS = ("", "-wal", "-shm")
RECORDED = f'{CONFIG}\n[workspace]\nsnapshots = "turn"\n[memory]\nenabled = false\n'


def configure(home: Home, server: ModelServer) -> None:
    home.write_config(
        f'[model]\nprovider = "openai"\nname = "m"\nbase_url = "{server.base_url("openai")}"\n'
        "context_window = 32000\n[memory]\nenabled = false\n"
    )


def database_of(home: Home) -> Path:
    return home.path / "sessions.sqlite"


def locks_here(home: Home) -> set[str]:
    return locks_of(database_of(home), pid=os.getpid())


def command(home: Home, *words: str) -> list[str]:
    return [sys.executable, "-m", "agent_core.cli", *words]


def messages_of(home: Home) -> list[str]:
    """All that was said, as another program reads it."""
    with closing(sqlite3.connect(database_of(home))) as rows:
        assert rows.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return [text for (text,) in rows.execute("SELECT content_json FROM nodes")]


# a chat


CHAT_COMMANDS = {
    "/cost": "in all",
    "/sessions list": "completed",
    "/permissions": "there is no stored answer",
    "/tree": "continues here",
    "/context": "free",
    "/tasks": "no Task",
    "/memory": "",
    "/agents": "default_worker_agent",
    "/export --jsonl made.jsonl": "wrote ",
    "/fork --into {copy}": "session",
    "/undo": "brings it back",
    "/redo": "changes are back",
    "/compact": "",
    "/new": "",
    "/resume last": "",
}


@pytest.mark.long
def test_no_command_of_a_chat_loses_the_locks(home: Home, project: Path, tmp_path: Path) -> None:
    with ModelServer.in_thread(lambda _: "The answer.") as server:
        configure(home, server)
        terminal, process = open_terminal(
            command(home, "chat", "--session-id", "s1"), env=home.env(), cwd=project, columns=200
        )
        ends_at = time.monotonic() + 150
        chat = Session(terminal, process, columns=200, rows=40, ends_at=ends_at)
        try:
            chat.wait_for("sandbox off")
            chat.type(f"hello{ENTER}")
            chat.wait_for("The answer.")
            before = locks_of(database_of(home), pid=process.pid)
            assert before
            for each, shown in CHAT_COMMANDS.items():
                chat.type(f"{each.format(copy=tmp_path / 'copy')}{ENTER}")
                chat.wait_for(re.compile(rf"> {each[:5]}.*\n[\s\S]*{shown}[\s\S]*{AT_REST}"))
                if each == "/undo":
                    chat.wait_for("> hello")
                    chat.type(CTRL_C)
                assert before <= locks_of(database_of(home), pid=process.pid), each
            # A process that exits would take itself for the last one if the locks were gone.
            subprocess.run(  # noqa: S603 - our own command
                command(home, "sessions", "list"), env=home.env(), check=True
            )
            chat.type(f"and now?{ENTER}")
            chat.wait_for(re.compile(r"> and now\?[\s\S]*The answer\."))
        finally:
            process.kill()
            process.wait()
            os.close(terminal)
    assert any("and now?" in text for text in messages_of(home))


# a program


@contextmanager
def open_elsewhere(home: Home, project: Path) -> Generator[None]:
    """A runtime in a thread of its own, which has answered a message."""
    ready, leave = threading.Event(), threading.Event()

    async def stay() -> None:
        async with runtime(home, project, ["The answer."]) as made:
            await ask(made, "hello")
            ready.set()
            await asyncio.to_thread(leave.wait)

    thread = threading.Thread(target=asyncio.run, args=(stay(),))
    thread.start()
    try:
        assert ready.wait(30)
        yield
    finally:
        leave.set()
        thread.join()


COMMANDS = [
    ("doctor",),
    ("sessions", "list"),
    ("sessions", "show", "s1"),
    ("sessions", "tree", "s1"),
    ("sessions", "search", "answer"),
    ("sessions", "export", "s1", "--html", "-"),
    ("cost",),
    ("permissions", "list"),
    ("approvals", "list"),
    ("memory", "list"),
    ("tasks", "list"),
    ("undo", "s1"),
    ("config",),
    ("store", "copy", "{copy}"),
]


def test_no_command_in_the_same_process_loses_the_locks(
    home: Home, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    with open_elsewhere(home, project):
        before = locks_here(home)
        assert before
        for words in sampled(COMMANDS, keep=5):
            main([word.format(copy=tmp_path / "copy.sqlite") for word in words])
            assert locks_here(home) == before, words


Use = Callable[[AgentRuntime, Home, Path], Awaitable[object]]


async def open_another(made: AgentRuntime, home: Home, project: Path) -> None:
    async with AgentRuntime(project, home_dir=home.path) as other:
        await other.list_sessions()


async def follow(made: AgentRuntime, home: Home, project: Path) -> None:
    run_id = (await made.replay_session("s1")).runs[0].run_id
    async with AgentRuntime(project, home_dir=home.path) as other:
        handle = await other.attach(run_id)
        assert [event async for event in handle.events()]


async def open_elsewhere_too(made: AgentRuntime, home: Home, project: Path) -> None:
    (project / "inner").mkdir()
    async with AgentRuntime(project / "inner", home_dir=home.path) as other:
        await other.costs()


async def fork(made: AgentRuntime, home: Home, project: Path) -> None:
    await made.fork("s1", into=project.with_name(f"{project.name}-copy"))


async def keep_an_artifact(made: AgentRuntime, home: Home, project: Path) -> None:
    await made.cleanup_artifacts(include_all=True, dry_run=False)


USES: dict[str, Use] = {
    "another": open_another,
    "another folder": open_elsewhere_too,
    "attach": follow,
    "replay": lambda made, home, project: made.replay_session("s1"),
    "costs": lambda made, home, project: made.costs(),
    "undo": lambda made, home, project: made.undo("s1"),
    "report": lambda made, home, project: made.context_report("s1"),
    "fork": fork,
    "clean up": keep_an_artifact,
    "delete": lambda made, home, project: made.delete_session("s1"),
}


@pytest.mark.parametrize("use", sampled(USES.values(), keep=3), ids=sampled(USES, keep=3))
async def test_no_call_of_a_program_loses_the_locks(use: Use, home: Home, project: Path) -> None:
    async with runtime(home, project, ["The answer."], config=RECORDED) as made:
        await ask(made, "hello")
        before = locks_here(home)
        assert before
        await use(made, home, project)
        assert before <= locks_here(home)


# what leads to the files of the database


@pytest.fixture(params=kept(ENDS, ""), ids=kept(["database", "log", "index"], "database"))
def end(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def _names(home: Home, project: Path, end: str) -> dict[str, str]:
    """Names of a file of the database: its own, a link, and a second name in the project."""
    file = database_of(home).with_name(f"sessions.sqlite{end}")
    (project / "link.txt").symlink_to(file)
    (project / "second.txt").hardlink_to(file)
    return {"own": str(file), "link": "link.txt", "second": "second.txt"}


async def test_no_tool_reads_a_file_of_the_database(home: Home, project: Path, end: str) -> None:
    asked = Asked("allow_once")
    provider = ScriptedProvider(["The answer."])
    async with runtime(home, project, provider, config=RECORDED, permission_callback=asked) as made:
        await ask(made, "hello")
        names = _names(home, project, end)
        before = locks_here(home)
        script: list[Any] = []
        for name in names.values():
            script += [
                calls("code.read_file", path=name),
                calls("code.search", pattern="hello", path=name),
                calls("code.edit_file", path=name, edits=[{"old": "a", "new": "b"}]),
                calls("code.write_file", path=name, content="new", overwrite=True),
                calls("code.write_file", path="beside.txt", content="new", overwrite=True),
                calls("code.run_command", argv=["cp", name, "copied.txt"]),
            ]
        provider.add(*script, "Done.")
        handle = await ask(made, "read them")
        replay = await made.replay_session("s1")
        assert locks_here(home) == before
    assert handle.result_text == "Done."
    for answer in _results(replay, "code.read_file"):
        assert "database that this process has open" in answer
    assert b"SQLite format 3" in database_of(home).read_bytes()


def _results(replay: ReplayResult, name: str) -> list[str]:
    return [found.error.message if found.error else "" for found in results(replay, name)]


async def test_no_text_that_is_loaded_is_a_file_of_the_database(
    home: Home, project: Path, end: str
) -> None:
    async with runtime(home, project, ["The answer.", "Again.", "Done."]) as made:
        await ask(made, "hello")
        file = database_of(home).with_name(f"sessions.sqlite{end}")
        skill = project / ".soong-agent" / "skills" / "theirs"
        skill.mkdir(parents=True)
        for name in (project / "AGENTS.md", project / "CLAUDE.md", skill / "SKILL.md"):
            name.hardlink_to(file)
        (project / ".gitignore").symlink_to(file)
        (project / ".git").mkdir()
        (project / ".git" / "config").hardlink_to(file)
        before = locks_here(home)
        await ask(made, "and now?", "s2")
        async with AgentRuntime(project, home_dir=home.path) as other:
            await other.list_sessions()
        assert locks_here(home) == before


@pytest.mark.parametrize(
    "force", sampled([[], ["--force"]], keep=2), ids=sampled(["new", "forced"], keep=2)
)
def test_no_export_replaces_a_file_of_the_database(
    home: Home, project: Path, end: str, force: list[str], monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(project)
    with open_elsewhere(home, project):
        file = database_of(home).with_name(f"sessions.sqlite{end}")
        before, inode = locks_here(home), file.stat().st_ino
        assert main(["sessions", "export", "s1", "--html", str(file), *force]) == 2
        assert main(["run", "--events", str(file), "hello"]) == 2
        assert locks_here(home) == before
        assert file.stat().st_ino == inode
    assert "cannot be written" in capsys.readouterr().err
    assert messages_of(home)


async def test_a_picture_of_the_database_is_refused(home: Home, project: Path) -> None:
    from agent_core.cli.images import read_image  # noqa: PLC0415 - what `run --image` does

    async with runtime(home, project, ["The answer."]) as made:
        await ask(made, "hello")
        before = locks_here(home)
        with pytest.raises(AgentCoreError, match="database that this process has open"):
            read_image(str(database_of(home)))
        assert locks_here(home) == before


# forked processes

FORKED = """
import os, sys, warnings
from pathlib import Path
from agent_core import AgentRuntime
from agent_core.providers.scripted import ScriptedProvider
from posix_locks import locks_of

warnings.simplefilter("ignore", DeprecationWarning)  # of fork beside threads
home, project, way = Path(sys.argv[1]), sys.argv[2], sys.argv[3]

def opened():
    return AgentRuntime(project, home_dir=home, model=ScriptedProvider(lambda _: "The answer."))

def has_locks():
    return len(locks_of(home / "sessions.sqlite", pid=os.getpid())) >= 2

made = opened()
made.__enter__()
made.run_sync("hello", "parent")
arrived, leaves = os.pipe(), os.pipe()
if os.fork() == 0:
    os.close(leaves[1])
    own = made if way == "the same runtime" else opened()
    with own:
        own.run_sync("hello", "before")
        assert has_locks()
        os.write(arrived[1], b"x")
        os.read(leaves[0], 1)  # until the parent process has ended
        own.run_sync("hello", "after")
        assert has_locks()
    os._exit(0)
assert os.read(arrived[0], 1) == b"x"
assert has_locks()
made.__exit__()
"""


@pytest.mark.parametrize("way", kept(["the same runtime", "another runtime"], "the same runtime"))
def test_a_forked_process_has_locks_of_its_own(home: Home, project: Path, way: str) -> None:
    """It inherits SQLite's count of the locks, and none of them."""
    words = [sys.executable, program_file(FORKED), str(home.path), str(project), way]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(  # noqa: S603 - our own text; it ends when the child has closed the pipe
        words, env=env, check=False, timeout=60, capture_output=True, text=True
    )
    assert (done.stderr, done.returncode) == ("", 0)
    with closing(sqlite3.connect(database_of(home))) as rows:
        stored = {name for (name,) in rows.execute("SELECT session_id FROM sessions")}
    assert stored == {"parent", "before", "after"}
