"""One process opens the session database twice while others come and go: nothing is lost.

A process that closes any descriptor of the database itself loses SQLite's locks on it, and the next
process to exit deletes the log that it writes.
"""

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from agent_core import AgentRuntime
from editors import Editor
from faults.depth import Depth, Tally
from isolation import Home
from model_server import ModelServer, Received
from posix_locks import locks_of, needs_locks
from runtimes import ask

pytestmark = [needs_locks, pytest.mark.timeout(600)]

EIGHT = range(8)


@pytest.mark.long
@pytest.mark.faults("database opened twice in a process")
async def test_two_runtimes_beside_eight_runs_lose_no_session(
    home: Home, project: Path, tally: Tally, size: Depth
) -> None:
    with scripted_model(home):
        for number in range(size.some(12, 1)):
            with tally.case(f"round {number}"):
                await two_runtimes_beside_eight_runs(home, project, f"r{number}")
    tally.verdict()


async def two_runtimes_beside_eight_runs(home: Home, project: Path, name: str) -> None:
    async with (
        AgentRuntime(project, home_dir=home.path) as first,
        AgentRuntime(project, home_dir=home.path) as second,
    ):
        before = locks_of(database_of(home), pid=os.getpid())
        assert before
        await asyncio.gather(
            *(run_elsewhere(home, project, f"{name}-run-{number}") for number in EIGHT),
            ask(first, f"{name}-first", f"{name}-first"),
            ask(second, f"{name}-second", f"{name}-second"),
        )
        async with AgentRuntime(project, home_dir=home.path) as third:
            stored = {session.session_id for session in await third.list_sessions(limit=1000)}
        await run_elsewhere(home, project, f"{name}-later")
        await ask(first, f"{name}-last", f"{name}-last")
        assert before <= locks_of(database_of(home), pid=os.getpid())
    at_once = {f"{name}-first", f"{name}-second", *(f"{name}-run-{number}" for number in EIGHT)}
    assert at_once <= stored
    expect_answers(home, at_once | {f"{name}-later", f"{name}-last"})


@pytest.mark.long
@pytest.mark.faults("database opened twice in a process")
def test_an_editor_with_two_folders_beside_a_terminal_loses_nothing(
    home: Home, project: Path, tally: Tally, size: Depth
) -> None:
    left, right = project / "left", project / "right"
    left.mkdir()
    right.mkdir()
    with scripted_model(home), Editor(home) as editor:
        first = editor.open(left)
        editor.prompt(first, "one")
        before = locks_of(database_of(home), pid=editor.process.pid)
        assert before
        second = editor.open(right)
        for number in range(size.some(40, 3)):
            with tally.case(f"round {number}"):
                asyncio.run(run_elsewhere(home, left, f"run-{number}"))
                editor.prompt(second, f"two-{number}")
                editor.prompt(first, f"three-{number}")
                assert before <= locks_of(database_of(home), pid=editor.process.pid)
                expect_answers(home, {f"{word}-{number}" for word in ("run", "two", "three")})
    tally.verdict()


def database_of(home: Home) -> Path:
    return home.path / "sessions.sqlite"


@contextmanager
def scripted_model(home: Home) -> Generator[None]:
    """Configure the home for a model that repeats each message in its answer."""

    def answer(asked: Received) -> str:
        return f"answer to {asked.body['messages'][-1]['content']}"

    with ModelServer.in_thread(answer) as server:
        home.write_config(
            f'[model]\nprovider = "openai"\nname = "m"\nbase_url = "{server.base_url("openai")}"\n'
            "context_window = 32000\n[memory]\nenabled = false\n"
        )
        yield


async def run_elsewhere(home: Home, project: Path, name: str) -> None:
    """Carry out a run with this message, in the session of the same name, in another process."""
    words = (sys.executable, "-m", "agent_core.cli", "run", "--session-id", name, name)
    process = await asyncio.create_subprocess_exec(
        *words, cwd=project, env=home.env(), stdout=subprocess.DEVNULL
    )
    assert await process.wait() == 0


def expect_answers(home: Home, messages: set[str]) -> None:
    """Check in the database that each of these messages has its answer."""
    with closing(sqlite3.connect(database_of(home))) as rows:
        assert rows.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        said = " ".join(text for (text,) in rows.execute("SELECT content_json FROM nodes"))
    assert not [name for name in messages if f'"answer to {name}"' not in said]
