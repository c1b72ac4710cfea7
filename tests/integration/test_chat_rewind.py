"""Escape twice on an idle line goes back to before a message that is chosen."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from agent_core.providers.scripted import Hangs, calls
from captures import Shown
from chats import CTRL_C, ENTER, ESCAPE, READY, UP, OpenChat, open_chat
from isolation import Home
from model_server import Reply

pytestmark = pytest.mark.timeout(120)

EMPTY = Shown(rf"> *\n.*{READY}")
LIST = "Go back to before which message?"


def _writes(number: int) -> list[Reply]:
    return [
        calls("code.write_file", path=f"{number}.txt", content=f"{number}\n"),
        f"Wrote {number}.",
    ]


def _write_three(chat: OpenChat) -> None:
    """Have three files written, each for a message of its own."""
    chat.type(f"/mode accept-edits{ENTER}", shows=Shown(rf"without asking\s+> *\n.*{READY}"))
    chat.pause()
    for number, name in enumerate(("one", "two", "three"), 1):
        chat.type(f"write {name}{ENTER}", shows=Shown(rf"Wrote {number}\.\s+> *\n.*{READY}"))
        chat.pause()


def _press_twice(chat: OpenChat) -> None:
    """Press Escape twice where nothing shows it; a letter that followed at once would be Alt's."""
    chat.type(ESCAPE + ESCAPE)
    for _ in range(5):
        chat.pause()


def _clear(chat: OpenChat) -> None:
    chat.type(CTRL_C, shows=EMPTY)
    chat.pause()


def test_escape_twice_goes_back_to_before_the_chosen_message_unless_others_changed_a_file(
    home: Home, project: Path
) -> None:
    replies: list[Any] = [*_writes(1), *_writes(2), *_writes(3)]
    with open_chat(home, project, replies=replies) as chat:
        _write_three(chat)
        chat.type(ESCAPE)
        chat.pause()
        chat.pause()
        chat.type(
            ESCAPE, shows=Shown(rf"{re.escape(LIST)}\s+.*write one\s+.*write two\s+>.*write three")
        )
        chat.pause()
        chat.type(UP, shows=Shown(r"> +\S.*write two"))
        chat.pause()
        chat.type(ENTER, shows=Shown(rf"> write two *\n.*{READY}"))
        assert sorted(each.name for each in project.iterdir()) == ["1.txt"]
        assert "  deleted: 3.txt" in chat.screen
        assert "  deleted: 2.txt" in chat.screen
        taken = "taken back: write two, and 1 later message (/redo brings them back one by"
        assert taken in chat.screen
        chat.pause()
        chat.type(f"/redo{ENTER}", shows=Shown(rf"restored: 2.txt\s[^>]+> *\n.*{READY}"))
        chat.pause()
        chat.type(f"/redo{ENTER}", shows=Shown(rf"restored: 3.txt\s[^>]+> *\n.*{READY}"))
        chat.pause()
        assert sorted(each.name for each in project.iterdir()) == ["1.txt", "2.txt", "3.txt"]

        # What others have changed meanwhile stops it where /undo would stop.
        (project / "2.txt").write_text("mine\n")
        chat.type(f"/rewind{ENTER}", shows=LIST)
        chat.pause()
        chat.type(UP + UP, shows=Shown(r"> +\S.*write one"))
        chat.pause()
        chat.type(ENTER, shows=Shown(rf"taken back: write three[^>]*> write three *\n.*{READY}"))
        assert "2.txt" in chat.screen
        assert "error: " in chat.screen
        assert (project / "2.txt").read_text() == "mine\n"
        assert not (project / "3.txt").exists()
        chat.pause()
        chat.type(f"/rewind --force{ENTER}", shows=LIST)
        chat.pause()
        chat.type(UP, shows=Shown(r"> +\S.*write one"))
        chat.pause()
        chat.type(ENTER, shows=Shown(rf"> write one *\n.*{READY}"))
        assert list(project.iterdir()) == []
        chat.pause()
        _clear(chat)


@pytest.mark.sweep
def test_the_conversation_continues_from_there(home: Home, project: Path) -> None:
    with open_chat(home, project) as chat:
        for message in ("first", "second", "third"):
            chat.send(message)
            chat.pause()
        chat.type(ESCAPE + ESCAPE, shows=LIST)
        chat.pause()
        chat.type("sec", shows=Shown(rf"{re.escape(LIST)}\s+>.*second\s+find: sec"))
        chat.pause()
        chat.type(ENTER, shows=Shown(rf"> second *\n.*{READY}"))
        chat.pause()
        assert chat.send(" try") == "second try"
        said = json.dumps(chat.server.requests[-1].body["messages"])
        assert "first" in said
        assert "third" not in said


@pytest.mark.sweep
def test_escape_leaves_the_list_and_everything_as_it_was(home: Home, project: Path) -> None:
    with open_chat(home, project) as chat:
        _press_twice(chat)  # there is no message yet
        chat.send("first")
        chat.pause()
        chat.type(ESCAPE + ESCAPE, shows=LIST)
        chat.pause()
        chat.type(ESCAPE, shows=EMPTY)
        chat.pause()
        assert chat.send("second") == "second"
        assert "first" in json.dumps(chat.server.requests[-1].body["messages"])


@pytest.mark.sweep
def test_twice_over_a_draft_or_a_run_goes_back_nowhere(home: Home, project: Path) -> None:
    with open_chat(home, project, replies=["Answer 1.", Hangs()]) as chat:
        chat.send("first")
        chat.pause()
        chat.type("draft", shows=Shown("> draft"))
        chat.pause()
        _press_twice(chat)
        chat.type("ed", shows=Shown(r"> drafted"))
        chat.pause()
        chat.type(ENTER, shows="waiting for the model")
        chat.pause()
        chat.type(ESCAPE + ESCAPE, shows=Shown(rf"cancelled[^>]*> *\n.*{READY}"))
        chat.pause()
        assert LIST not in chat.screen
