"""A text that returned to the line gives way to a command, and is not lost."""

import os
import re
import signal
from pathlib import Path

import pytest

from agent_core.providers.scripted import Hangs
from captures import Key, Shown
from chats import (
    BACKSPACE,
    CTRL_C,
    CTRL_D,
    ENTER,
    ESCAPE,
    READY,
    UP,
    OpenChat,
    converse,
    open_chat,
    sent,
)
from isolation import Home
from model_server import ModelServer
from sweeps import kept

pytestmark = pytest.mark.timeout(120)

EMPTY = Shown(rf"> *\n.*{READY}")
"""The line is empty."""


def _undone(message: str) -> Shown:
    return Shown(rf"taken back: {message}[^\n]*\s+> {message} *\n.*{READY}")


def _type_and_send(chat: OpenChat, message: str) -> None:
    chat.send(message)
    chat.pause()


@pytest.mark.sweep
def test_one_undo_after_another_is_a_command_each_time(home: Home, project: Path) -> None:
    with open_chat(home, project) as chat:
        for message in ("first", "second", "third"):
            _type_and_send(chat, message)
        for message in ("third", "second", "first"):
            chat.type(f"/undo{ENTER}", shows=_undone(message))
            chat.pause()
        chat.type(f"/redo{ENTER}", shows=Shown(rf"are back\s+> *\n.*{READY}"))
        chat.pause()
        chat.type(
            f"/redo{ENTER}", shows=Shown(rf"are back\s+> /redo\s+.* are back\s+> *\n.*{READY}")
        )
        chat.pause()
        assert chat.send("fourth") == "fourth"
        said = [each["content"] for each in chat.server.requests[-1].body["messages"]]
    assert [text for text in said if text in {"first", "second", "third", "fourth"}] == [
        "first",
        "second",
        "fourth",
    ]


def test_the_text_is_back_when_the_command_is_done_or_erased(home: Home, project: Path) -> None:
    with open_chat(home, project) as chat:
        _type_and_send(chat, "hello")
        chat.type(f"/undo{ENTER}", shows=_undone("hello"))
        chat.pause()
        chat.type("/mo", shows=Shown(r"> /mo *\n +/mo"))
        chat.type(BACKSPACE * 3, shows=Shown(rf"> hello *\n.*{READY}"))
        chat.pause()
        chat.type(f"/mode plan{ENTER}", shows=Shown(r"mode plan: [\s\S]*> hello"))
        chat.pause()
        chat.type(f"!echo so''on{ENTER}", shows=Shown(r"soon[\s\S]*> hello"))
        chat.pause()
        assert chat.send(" again").endswith("hello again")


@pytest.mark.sweep
def test_letters_still_follow_it_and_a_slash_behind_them_is_a_letter(
    home: Home, project: Path
) -> None:
    with open_chat(home, project) as chat:
        _type_and_send(chat, "see")
        chat.type(f"/undo{ENTER}", shows=_undone("see"))
        chat.pause()
        assert chat.send(" /undo") == "see /undo"


@pytest.mark.sweep
@pytest.mark.parametrize(
    "ends", kept([ESCAPE, CTRL_C], ESCAPE), ids=kept(["escape", "ctrl-c"], "escape")
)
def test_a_text_that_returns_while_a_command_is_typed_waits_for_it(
    home: Home, project: Path, ends: str
) -> None:
    with open_chat(home, project, replies=[Hangs(), "Answer 2."]) as chat:
        chat.type(f"first{ENTER}", shows="waiting for the model")
        chat.pause()
        chat.type(f"unread{ENTER}", shows="waiting: unread")
        chat.pause()
        chat.type("/mode plan x", shows="/mode plan x")
        chat.type(ends, shows=Shown(r"cancelled[\s\S]*> /mode plan x"))
        chat.pause()
        chat.type(BACKSPACE * 2 + ENTER, shows=Shown(r"mode plan: [\s\S]*> unread"))
        chat.pause()
        assert chat.send("") == "unread"


@pytest.mark.sweep
def test_a_text_that_made_room_for_good_comes_back_with_up(home: Home, project: Path) -> None:
    with open_chat(home, project) as chat:
        _type_and_send(chat, "first")
        _type_and_send(chat, "second")
        for message in ("second", "first"):
            chat.type(f"/undo{ENTER}", shows=_undone(message))
            chat.pause()
        chat.type(CTRL_C, shows=EMPTY)
        chat.pause()
        chat.type(UP, shows=Shown(rf"> first *\n.*{READY}"))
        chat.type(UP, shows=Shown(rf"> /undo *\n.*{READY}"))
        chat.type(UP, shows=Shown(rf"> second *\n.*{READY}"))
        chat.pause()
        assert chat.send("") == "second"


@pytest.mark.sweep
def test_a_message_that_made_room_for_another_stays_stored(home: Home, project: Path) -> None:
    commands = home.path / "commands"
    commands.mkdir()
    (commands / "greet.md").write_text("Say hello.")
    with open_chat(home, project, replies=[Hangs(), "Answer 2.", "Answer 3."]) as chat:
        chat.type(f"first{ENTER}", shows="waiting for the model")
        chat.pause()
        chat.type(f"unread{ENTER}", shows="waiting: unread")
        chat.pause()
        chat.type(ESCAPE, shows=Shown(r"cancelled[\s\S]*> unread"))
        chat.pause()
        chat.type(f"/greet{ENTER}", shows=Shown(r"Answer 2\.[\s\S]*> unread"))
        chat.pause()
        chat.type(CTRL_C, shows=EMPTY)
        chat.pause()
    with open_chat(home, project, "--continue") as chat:
        chat.type("", shows=Shown(r"is on the line again[\s\S]*> unread"))
        chat.pause()
        chat.type(CTRL_C, shows=EMPTY)
        chat.pause()


@pytest.mark.sweep
def test_a_text_that_made_room_outlives_the_end_of_the_process(home: Home, project: Path) -> None:
    pid = project / "pid"
    with ModelServer.in_thread(["Answered.", "Again."]) as server:
        keys = [
            Key(READY, f"!echo $PPID > pid{ENTER}"),
            Key("with your next message", f"hello{ENTER}"),
            Key(re.compile(rf"Answered\.[\s\S]*{READY}"), f"/undo{ENTER}"),
            Key(_undone("hello"), "/mode plan x"),
            Key(
                Shown(r"> /mode plan x"),
                lambda: os.kill(int(pid.read_text(encoding="utf-8")), signal.SIGTERM),
            ),
        ]
        assert converse(home, project, server, keys).code == 143
        keys = [
            Key(READY, UP),
            Key(Shown(rf"> /mode plan x *\n.*{READY}"), UP),
            Key(Shown(rf"> hello *\n.*{READY}"), ENTER),
            Key(re.compile(rf"Again\.[\s\S]*{READY}"), CTRL_D),
        ]
        converse(home, project, server, keys)
        assert sent(server) == "hello"
