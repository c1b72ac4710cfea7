"""Messages that wait can be seen, taken back and withdrawn, and outlive a kill."""

import os
import re
import signal
from pathlib import Path

import pytest

from agent_core.providers.scripted import Hangs
from captures import Key, Shown
from chats import CTRL_C, CTRL_D, ENTER, ESCAPE, READY, UP, OpenChat, converse, open_chat
from isolation import Home
from model_server import ModelServer

pytestmark = pytest.mark.timeout(120)

EMPTY = Shown(rf"> *\n.*{READY}")


def _wait(chat: OpenChat) -> None:
    """Begin a run that hangs, one message that it shall read, and two for after it."""
    chat.type(f"first{ENTER}", shows="waiting for the model")
    chat.pause()
    for typed, shown in (
        ("read me", "waiting: read me"),
        ("/queue second", "queued: second"),
        ("/queue third", "queued: third"),
    ):
        chat.type(typed + ENTER, shows=shown)
        chat.pause()


def _leave(chat: OpenChat, then: Shown = EMPTY) -> None:
    """Cancel what runs, and clear the line."""
    chat.type(ESCAPE, shows=Shown(r"cancelled[^\0]*> "))
    chat.pause()
    chat.type(CTRL_C, shows=then)
    chat.pause()


def test_a_message_that_waits_is_chosen_from_a_list_and_edited(home: Home, project: Path) -> None:
    with open_chat(home, project, replies=[Hangs(), "Answer 2."]) as chat:
        _wait(chat)
        chat.type(
            f"/queue{ENTER}",
            shows=Shown(r"waiting  read me\s+  queued   second\s+>  queued   third"),
        )
        chat.pause()
        chat.type(UP, shows=Shown(r">  queued   second"))
        chat.pause()
        chat.type(ENTER, shows=Shown(rf"> second *\n.*{READY}"))
        assert "queued: second" not in chat.screen
        assert "queued: third" in chat.screen
        chat.pause()
        chat.type(ESCAPE, shows=Shown(r"> read me\s+third\s+second"))
        chat.pause()
        chat.type(CTRL_C, shows=EMPTY)
        chat.pause()


@pytest.mark.sweep
def test_escape_leaves_the_list_and_all_that_waits(home: Home, project: Path) -> None:
    with open_chat(home, project, replies=[Hangs(), "Answer 2."]) as chat:
        _wait(chat)
        chat.type(f"/queue{ENTER}", shows="Enter takes one back")
        chat.pause()
        chat.type(ESCAPE, shows=EMPTY)
        assert "waiting for the model" in chat.screen
        assert "queued: third" in chat.screen
        chat.pause()
        _leave(chat)


@pytest.mark.sweep
def test_all_that_waits_is_withdrawn_and_found_with_up(home: Home, project: Path) -> None:
    with open_chat(home, project, replies=[Hangs(), "Answer 2.", "Answer 3."]) as chat:
        _wait(chat)
        chat.type(
            f"/queue clear{ENTER}",
            shows=Shown(r"withdrawn: third\s+withdrawn: second\s+withdrawn: read me"),
        )
        chat.pause()
        assert "queued:" not in chat.screen
        assert "waiting:" not in chat.screen
        chat.type(ESCAPE, shows=Shown(rf"cancelled\s+> *\n.*{READY}"))
        chat.pause()
        chat.type(UP, shows=Shown(rf"> read me *\n.*{READY}"))
        chat.pause()
        assert chat.send(" again") == "read me again"


@pytest.mark.sweep
def test_nothing_waits_while_nothing_runs(home: Home, project: Path) -> None:
    with open_chat(home, project) as chat:
        for command in ("/queue", "/queue clear"):
            chat.type(
                command + ENTER, shows=Shown(rf"{command}\s+no message waits[^>]*> *\n.*{READY}")
            )
            chat.pause()
        assert chat.send("/queue hello") == "hello"


@pytest.mark.sweep
def test_up_takes_back_one_after_another(home: Home, project: Path) -> None:
    with open_chat(home, project, replies=[Hangs(), "Answer 2."]) as chat:
        _wait(chat)
        for text in ("third", "second", "read me"):
            chat.type(UP, shows=Shown(rf"> {text} *\n.*{READY}"))
            chat.pause()
            chat.type("\x15", shows=EMPTY)
            chat.pause()
        _leave(chat, Shown("cancelled"))


def test_after_a_kill_what_was_withdrawn_is_gone_and_the_rest_is_kept(
    home: Home, project: Path
) -> None:
    pid = project / "pid"

    def kill() -> None:
        os.kill(int(pid.read_text(encoding="utf-8")), signal.SIGKILL)

    with ModelServer.in_thread([Hangs(), "Two.", "Four."]) as server:
        keys = [
            Key(READY, f"!echo $PPID > pid{ENTER}"),
            Key("with your next message", f"first{ENTER}"),
            Key("waiting for the model", f"/queue second{ENTER}"),
            Key("queued: second", f"/queue third{ENTER}"),
            Key("queued: third", f"/queue{ENTER}"),
            Key("Enter takes one back", ENTER),
            Key(Shown(rf"> third *\n.*{READY}"), kill),
        ]
        assert converse(home, project, server, keys).code == -signal.SIGKILL
        keys = [
            Key("sent before your next message: second", f"fourth{ENTER}"),
            Key(re.compile(rf"Four\.[\s\S]*{READY}"), UP * 3),
            Key(Shown(rf"> /queue third *\n.*{READY}"), CTRL_C),
            Key(EMPTY, CTRL_D),
        ]
        converse(home, project, server, keys, "--continue")
        said = [each["content"] for each in server.requests[-1].body["messages"]]
    assert [text for text in said if text in {"second", "third", "fourth"}] == ["second", "fourth"]


@pytest.mark.sweep
def test_without_drawing_the_list_has_numbers(home: Home, project: Path) -> None:
    with open_chat(home, project, "--plain", replies=[Hangs()]) as chat:
        chat.type(f"first{ENTER}", shows=Shown("> first"))
        while not chat.server.requests:
            chat.pause()
        for typed, shown in (
            ("/queue second", r"/queue second\s+queued: this is sent when the run has ended"),
            ("/queue third", r"/queue third\s+queued: this is sent when the run has ended"),
            ("/queue", r"2  queued   second\s+1  queued   third[^\0]+Enter leaves> "),
            ("2", "not sent: second"),
            ("/queue clear", "withdrawn: third"),
        ):
            chat.type(typed + ENTER, shows=Shown(shown))
            chat.pause()
        chat.type(CTRL_C, shows=Shown("cancelled"))
