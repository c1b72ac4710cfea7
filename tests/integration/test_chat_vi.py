"""Vi keys edit the line, and Escape keeps its other uses."""

from pathlib import Path

import pytest

from agent_core.providers.scripted import Hangs, calls
from captures import Shown
from chats import BACKSPACE, CTRL_C, ENTER, ESCAPE, READY, OpenChat, open_chat
from isolation import Home

pytestmark = pytest.mark.timeout(120)

VI = '[terminal]\nkeys = "vi"\n'
EMPTY = Shown(rf"> *\n.*{READY}")
LIST = "Go back to before which message?"


def _at(chat: OpenChat, keys: str, line: str) -> None:
    """Type keys, and wait until the line is drawn so, its prompt included."""
    chat.type(keys, shows=Shown(rf"(?m)^{line} *\n.*{READY}"))
    for _ in range(3):  # a letter that followed at once would be Alt's
        chat.pause()


def test_a_line_is_edited_and_sent_in_either_mode(home: Home, project: Path) -> None:
    with open_chat(home, project, config=VI) as chat:
        _at(chat, "hello wrld", "> hello wrld")
        _at(chat, ESCAPE, ": hello wrld")
        _at(chat, "bcwworld", "> hello world")
        _at(chat, ESCAPE, ": hello world")
        chat.type(BACKSPACE + "0x")
        assert chat.send("") == "ello world"
        chat.pause()
        _at(chat, "again", "> again")
        assert chat.send("!") == "again!"
        chat.pause()
        chat.type(f"/mode plan{ENTER}", shows=Shown(rf"mode plan: .*\s+> *\n.*{READY}"))
        chat.pause()
        _at(chat, "x", "> x")
        _at(chat, ESCAPE, ": x")
        _at(chat, "kkk", ": ello world")
        _at(chat, CTRL_C, ">")


@pytest.mark.sweep
def test_escape_leaves_insert_mode_before_it_cancels_the_run(home: Home, project: Path) -> None:
    with open_chat(home, project, config=VI, replies=[Hangs(), Hangs()]) as chat:
        chat.type(f"first{ENTER}", shows="waiting for the model")
        chat.pause()
        _at(chat, "draft", "> draft")
        _at(chat, ESCAPE, ": draft")
        assert "waiting for the model" in chat.screen
        _at(chat, "d" + ESCAPE, ": draft")  # gives up what was begun
        assert "waiting for the model" in chat.screen
        chat.type(ESCAPE, shows=Shown(rf"cancelled\s+: draft *\n.*{READY}"))
        chat.pause()
        _at(chat, CTRL_C, ">")
        chat.type(f"second{ENTER}", shows="waiting for the model")
        chat.pause()
        chat.type(ESCAPE, shows=Shown(rf"> second\s+cancelled\s+> *\n.*{READY}"))
        chat.pause()


@pytest.mark.sweep
def test_escape_twice_on_an_empty_line_goes_back(home: Home, project: Path) -> None:
    with open_chat(home, project, config=VI) as chat:
        chat.send("first")
        chat.pause()
        _at(chat, "x", "> x")
        _at(chat, ESCAPE, ": x")
        _at(chat, "dd", ":")
        chat.type(ESCAPE + ESCAPE, shows=LIST)
        chat.pause()
        chat.type("fir", shows=Shown("find: fir"))
        chat.pause()
        chat.type(ENTER, shows=Shown(rf"> first *\n.*{READY}"))
        chat.pause()
        chat.type(f"/redo{ENTER}", shows=Shown(rf"are back\s+> *\n.*{READY}"))
        chat.pause()


@pytest.mark.sweep
def test_escape_at_a_question_cancels_the_run(home: Home, project: Path) -> None:
    writes = calls("code.write_file", path="b.txt", content="new\n")
    with open_chat(home, project, config=VI, replies=[writes]) as chat:
        chat.type(f"write{ENTER}", shows="? help > ")
        chat.pause()
        chat.type(ESCAPE, shows=Shown(rf"cancelled\s+> *\n.*{READY}"))
        chat.pause()
    assert not (project / "b.txt").exists()


@pytest.mark.sweep
def test_a_search_goes_back_in_the_history(home: Home, project: Path) -> None:
    with open_chat(home, project, config=VI) as chat:
        for message in ("repair the Cart", "something else"):
            chat.send(message)
            chat.pause()
        _at(chat, "x", "> x")
        _at(chat, ESCAPE, ": x")
        chat.type("/Cart", shows=Shown(r"repair the Cart *\n.*search"))
        chat.pause()
        _at(chat, ENTER, ": repair the Cart")
        assert chat.send("") == "repair the Cart"
