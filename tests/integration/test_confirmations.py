"""Questions before something is destroyed take no key that was pressed before they were shown."""

import asyncio
import os
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from captures import Session, open_terminal
from isolation import Home
from session_stories import a_story
from sweeps import kept

pytestmark = pytest.mark.timeout(90)

QUESTION = "[y/N]"


@contextmanager
def typed_ahead(home: Home, project: Path, *argv: str) -> Generator[Session]:
    """A command in a terminal where a yes was typed before it began."""
    command = [sys.executable, "-m", "agent_core.cli", *argv]
    ours, child = open_terminal(command, env=home.env(), cwd=project, typed="y\n")
    session = Session(ours, child, columns=120, rows=40, ends_at=time.monotonic() + 60)
    try:
        yield session
    finally:
        child.kill()
        child.wait()
        os.close(ours)


@pytest.mark.parametrize("answer", kept(["n", "y"], "y"))
def test_deleting_sessions_takes_no_key_that_came_before(
    home: Home, project: Path, answer: str
) -> None:
    asyncio.run(a_story(home, project))
    with typed_ahead(home, project, "sessions", "delete", "sess_18ab") as session:
        session.wait_for(QUESTION)
        session.type(f"{answer}\n")
        session.wait_for("deleted")
        session.wait_for_end()
        shown = session.recording().text
    assert ("nothing was deleted" in shown) is (answer == "n")


@pytest.mark.parametrize("answer", ["n", "y"])
def test_forgetting_takes_no_key_that_came_before(home: Home, project: Path, answer: str) -> None:
    memory = "---\nid: mem_tea\nsummary: tea\ncreated_at: 2026-01-02\n---\nAll about tea.\n"
    home.write("memory/user/tea.md", memory)
    with typed_ahead(home, project, "memory", "forget", "mem_tea") as session:
        session.wait_for(QUESTION)
        session.type(f"{answer}\n")
        session.wait_for("kept" if answer == "n" else "forgotten")
        session.wait_for_end()
    assert (home.path / "memory/user/tea.md").exists() is (answer == "n")
