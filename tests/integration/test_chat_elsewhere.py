"""A session that another program continues while a chat has it open."""

import subprocess
import sys
from pathlib import Path

import pytest

from agent_core.providers.scripted import calls
from captures import Shown
from chats import CTRL_C, ENTER, READY, open_chat
from isolation import Home

pytestmark = pytest.mark.timeout(90)

EMPTY = Shown(rf"> *\n.*{READY}")
"""The line is empty."""


def run_elsewhere(home: Home, project: Path, message: str) -> None:
    words = ["run", "--continue", "--mode", "accept-edits", message]
    argv = [sys.executable, "-m", "agent_core.cli", *words]
    subprocess.run(  # noqa: S603 - the program under test
        argv, env=home.env(), cwd=project, check=True, stdin=subprocess.DEVNULL
    )


def test_an_undo_reverts_nothing_that_was_not_shown(home: Home, project: Path) -> None:
    written = calls("code.write_file", path="b.txt", content="new\n")
    with open_chat(home, project, replies=["Answer 1.", written, "Written elsewhere."]) as chat:
        chat.send("hello")
        run_elsewhere(home, project, "write b")
        chat.type(f"/undo{ENTER}", shows="nothing was moved")
        assert "> write b" in chat.screen
        assert "Written elsewhere." in chat.screen
        assert "> hello" not in chat.screen.partition("another program")[2]
        assert (project / "b.txt").exists()
        chat.type(f"/undo{ENTER}", shows="taken back: write b")
        assert not (project / "b.txt").exists()
        chat.type(CTRL_C, shows=EMPTY)


@pytest.mark.sweep
def test_a_message_is_sent_below_what_was_added_elsewhere(home: Home, project: Path) -> None:
    with open_chat(home, project) as chat:
        chat.send("hello")
        run_elsewhere(home, project, "and then")
        chat.send("go on")
        added = chat.screen.partition("another program has continued this session:")[2]
        assert added.index("> and then") < added.index("Answer 2.") < added.index("> go on")
        chat.send("once more")
        assert chat.screen.count("another program") == 1
        chat.type(f"/undo{ENTER}", shows="taken back: once more")
        chat.type(CTRL_C, shows=EMPTY)
