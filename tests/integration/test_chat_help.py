"""The help of a conversation fits on one screen, and leads to everything else."""

import re
from pathlib import Path

import pytest

from agent_core.cli.chat.commands import COMMANDS
from agent_core.cli.chat.help import GROUPS
from captures import Key, Shown
from chats import CTRL_D, ENTER, READY, converse, open_chat
from isolation import Home
from model_server import ModelServer

pytestmark = pytest.mark.timeout(120)

NAMES = [name for names, _ in GROUPS for name in names]
LAST = "/help keys lists the keys"


def test_every_command_is_in_one_group() -> None:
    assert sorted(NAMES) == sorted(COMMANDS)


def test_the_help_fits_on_a_screen_of_80_columns_and_24_rows(home: Home, project: Path) -> None:
    for number in range(20):
        home.write(f"commands/own-{number:02}.md", "Do it.")
    with open_chat(home, project, columns=80, rows=24) as chat:
        chat.type(f"/help{ENTER}", shows=re.compile(rf"{LAST}[\s\S]*{READY}"))
        screen = chat.screen
    assert "> /help\n" in screen, "its beginning has not scrolled off"
    for name in NAMES:
        assert re.search(rf"(^|\s)/{name}\s", screen, re.MULTILINE), name
    assert "/own-00, /own-01" in screen
    assert "and 8 more" in screen


def test_a_command_the_keys_mistakes_and_the_window_are_explained(
    home: Home, project: Path
) -> None:
    with ModelServer.in_thread(["Hello."]) as server:
        keys = [
            Key(READY, f"/help keys{ENTER}"),
            Key(Shown(r"of an MCP server\s+>"), f"/help fork{ENTER}"),
            Key(Shown(r"in a copy of\s+the project\s+>"), f"/help forks{ENTER}"),
            Key(Shown(r"did\s+you\s+mean /fork\?\)\s+>"), f"hi{ENTER}"),
            Key("Hello.", f"/context{ENTER}"),
            Key("the cached prefix", f"/contxt{ENTER}"),
            Key("contxt (did", CTRL_D),
        ]
        scene = converse(home, project, server, keys, columns=40)
    assert "reserve" in scene.text
    assert len(server.requests) == 1
    assert "/fork [--into DIR] [--at NODE]" in scene.lines
    assert all(len(line) <= 40 for line in scene.lines)
