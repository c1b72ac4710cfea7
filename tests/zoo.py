"""Stored sessions of every kind, for tests that move them about, and a look at all their rows."""

import base64
import hashlib
import io
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

from agent_core import AgentRuntime, UserMessage
from agent_core.cli.command import execute
from agent_core.providers.scripted import Calls, Fails, Says, ScriptedCall, calls
from agent_core.types import ImageBlock, RunStatus, TextBlock, Usage
from casts import Cast
from isolation import Home
from runtimes import CONFIG, Asked, runtime

_PICTURE = base64.b64encode(
    base64.b64decode(
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    )
).decode()
SETTINGS = f"""{CONFIG}
[workspace]
snapshots = "turn"
[memory]
enabled = false
[budget]
usd = 100.0
[task]
wal_dir = "${{SOONG_AGENT_HOME}}/tasks"
[tools]
stdout_limit_bytes = 1000
[permissions]
remember_scope = "session_stored"
[[agents.worker_pools]]
pool_id = "builders"
[[agents.worker_pools.workers]]
agent_definition_id = "default_worker_agent"
"""
PARKING = SETTINGS.replace("[permissions]\n", '[permissions]\nunattended = "park"\n')
STRANGE = "a NUL \0, half a pair \ud83d, \\u0000 as text, an end \udc00"

_PARTS: dict[str, Any] = {
    "tell": [
        Calls(
            text=STRANGE,
            calls=[
                ScriptedCall(
                    name="code.write_file", arguments={"path": "a.txt", "content": "one\n"}
                ),
                ScriptedCall(name="code.run_command", arguments={"argv": ["seq", "1", "5000"]}),
            ],
        ),
        Says(text="told", usage=Usage(total_tokens=9, input_tokens=5, output_tokens=4, cost=0.25)),
    ],
    "ask a child": [calls("agent.create_sub_agent", task="a child's work"), "asked"],
    "a child's work": [
        calls("code.write_file", path="b.txt", content="two\n", overwrite=True),
        "worked",
    ],
    "fork it": [calls("agent.fork_agent", task="in a fork"), "forked"],
    "in a fork": ["it was a fork"],
    "break": [calls("code.write_file", path="c.txt", content="3\n"), Fails(message="down")],
    "see": ["seen"],
    "go on": [calls("code.read_file", path="a.txt"), "gone on"],
    "lead": [
        calls(
            "agent.task_create",
            task_id="t1",
            wal_name="work",
            title="A thing",
            steps=[{"step_id": "s0", "title": "The thing"}],
        ),
        "led",
    ],
    "wait": [calls("code.write_file", path="d.txt", content="four\n"), "waited"],
}


SOONG = str(Path(sys.executable).with_name("soong-agent"))


def store(home: Home, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Carry out `soong-agent store` in this process."""
    out, err = io.StringIO(), io.StringIO()
    with (
        patch.dict(os.environ, {"SOONG_AGENT_HOME": str(home.path), **more}),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        code = execute(["store", *words])
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


def opened(home: Home, project: Path, *, config: str = SETTINGS, asks: bool = True) -> AgentRuntime:
    """A runtime in which every message begins the part that it names."""
    answers = Asked("allow_for_session") if asks else None
    return runtime(home, project, Cast(_PARTS), config=config, permission_callback=answers)


async def fill(home: Home, project: Path) -> None:
    """Store sessions with something of everything that a session may have."""
    async with opened(home, project) as made:

        async def say(content: Any, session_id: str, **more: Any) -> RunStatus:
            return await (await made.start(content, session_id=session_id, **more)).wait()

        for each in (f"tell {STRANGE}", "ask a child", "fork it"):
            assert await say(each, "story") is RunStatus.COMPLETED
        assert await say("break", "story") is RunStatus.FAILED
        picture = ImageBlock(mime_type="image/png", data=_PICTURE)
        see = UserMessage(content=[TextBlock(text="see"), picture])
        await say(see, "story")
        await made.undo("story")
        await made.undo("story")
        await made.redo("story")
        await made.rename_session("story", "A \0 title")
        await made.fork("story")
        await say("lead", "team", mode="orchestrator")
    async with opened(home, project, config=PARKING, asks=False) as made:
        handle = await made.start("wait", session_id="parked")
        assert await handle.wait() is RunStatus.WAITING
        await handle.send("And then?")
    with closing(sqlite3.connect(home.path / "sessions.sqlite")) as connection, connection:
        connection.execute("INSERT INTO memory_backlog VALUES ('story')")
        connection.execute(
            """INSERT INTO budget_holds SELECT 'hold_1', session_id, run_id, agent_id, '[]', '{}'
            FROM runs WHERE session_id = 'story' LIMIT 1"""
        )


def rows_of(database: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Every row that belongs to a session, in the order of the tables' keys."""
    found: dict[str, list[tuple[Any, ...]]] = {}
    with closing(sqlite3.connect(database)) as connection:
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        for (name,) in names.fetchall():
            if name not in {"schema_migrations", "repeats"}:
                rows = connection.execute(f"SELECT * FROM {name}")  # noqa: S608
                found[name] = sorted(rows, key=repr)
    return found


def order_of(database: Path) -> list[tuple[Any, ...]]:
    """The rows of each session whose order counts, as they stand."""
    with closing(sqlite3.connect(database)) as connection:
        return [
            (table, session_id, key)
            for table, column in (
                ("agents", "agent_id"),
                ("runs", "run_id"),
                ("nodes", "node_id"),
                ("artifacts", "artifact_id"),
                ("node_snapshots", "node_id"),
            )
            for session_id, key in connection.execute(
                f"SELECT session_id, {column} FROM {table} ORDER BY session_id, rowid"  # noqa: S608
            )
        ]


def contents_of(home: Path) -> dict[str, str]:
    """The artifacts and Task logs of a home: the SHA-256 of each file, by its path."""
    return {
        str(path.relative_to(home)): hashlib.sha256(path.read_bytes()).hexdigest()
        for folder in ("sessions", "tasks")
        for path in sorted((home / folder).rglob("*"))
        if path.is_file() and ".owners" not in path.parts
    }


def snapshots_of(home: Path, database: Path) -> Iterator[str]:
    """The names of the snapshots that a database has in a home."""
    key = hashlib.sha256(str(database).encode()).hexdigest()[:12]
    named = home / "snapshots" / key / "named"
    return iter(sorted(path.name for path in named.iterdir()) if named.is_dir() else ())


def another_home(home: Home, folder: Path) -> Home:
    """A new home with the settings of another one."""
    folder.mkdir(parents=True)
    shutil.copy(home.path / "config.toml", folder)
    return Home(folder)
