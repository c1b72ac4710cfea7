"""Conversations in a real terminal: what is typed, what stands on the screen, what is sent."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agent_core.providers.scripted import Hangs, Pauses, calls
from captures import Key, Recording, record
from isolation import Home
from model_server import ModelServer

pytestmark = pytest.mark.timeout(90)

READY = "sandbox off"
ENTER, ESCAPE, CTRL_C, CTRL_D, UP = "\r", "\x1b", "\x03", "\x04", "\x1b[A"


def configure(home: Home, server: ModelServer) -> None:
    home.write_config(
        f'[model]\nprovider = "openai"\nname = "m"\nbase_url = "{server.base_url("openai")}"\n'
        "context_window = 32000\n[memory]\nenabled = false\n"
    )


def converse(
    home: Home,
    project: Path,
    server: ModelServer,
    keys: Sequence[Key],
    *options: str,
    command: Sequence[str] = ("chat",),
    env: dict[str, str] | None = None,
    **more: Any,
) -> Recording:
    """The screen of one conversation."""
    configure(home, server)
    return record(
        [sys.executable, "-m", "agent_core.cli", *command, *options],
        env=home.env(**(env or {})),
        cwd=project,
        keys=keys,
        seconds=75,
        **more,
    )


def texts(server: ModelServer, number: int = -1) -> str:
    """The last message of a request."""
    return str(server.requests[number].body["messages"][-1]["content"])


@pytest.mark.parametrize("command", [("chat",), ()], ids=["chat", "alone"])
def test_messages_are_answered_in_one_session(
    home: Home, project: Path, command: Sequence[str]
) -> None:
    with ModelServer.in_thread(["The first answer.", "The second answer."]) as server:
        keys = [
            Key(READY, f"hello{ENTER}"),
            Key("first answer.", f"and now?{ENTER}"),
            Key("second answer.", CTRL_D),
        ]
        scene = converse(home, project, server, keys, command=command)
    assert scene.code == 0
    assert "> hello" in scene.text
    assert "to go on: soong-agent chat --session-id sess_" in scene.text
    said = [each["content"] for each in server.requests[1].body["messages"][-3:]]
    assert said == ["hello", "The first answer.", "and now?"]


def test_a_file_and_the_output_of_a_command_are_sent(home: Home, project: Path) -> None:
    (project / "my notes.txt").write_text("remember the milk", encoding="utf-8")
    with ModelServer.in_thread(["Read it."]) as server:
        keys = [
            Key(READY, f"!echo from the shell; exit 3{ENTER}"),
            Key("with your next message", f'read @"my notes.txt" please{ENTER}'),
            Key("Read it.", CTRL_D),
        ]
        scene = converse(home, project, server, keys)
    assert "exit code 3" in scene.text
    sent = texts(server)
    named = "a command of the user, echo from the shell; exit 3, which ended with exit code 3"
    assert f'<content from="{named}" boundary="' in sent
    assert "\nfrom the shell\n</content" in sent
    assert 'read @"my notes.txt" please' in sent
    assert '<content from="the file my notes.txt" boundary="' in sent
    assert "\nremember the milk\n</content" in sent


def test_ctrl_c_on_an_empty_line_says_how_to_leave_and_leaves(home: Home, project: Path) -> None:
    with ModelServer.in_thread([]) as server:
        keys = [Key(READY, CTRL_C), Key("once more leaves", CTRL_C)]
        scene = converse(home, project, server, keys)
    assert scene.code == 0


def test_without_a_terminal_run_is_named(home: Home, project: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "agent_core.cli", "chat"],
        input="hello\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=home.env(),
        cwd=project,
    )
    assert done.returncode == 2
    assert "soong-agent run" in done.stderr


def test_plain_lines_where_nothing_can_be_drawn(home: Home, project: Path) -> None:
    with ModelServer.in_thread(["The answer."]) as server:
        keys = [Key("> ", f"hello{ENTER}"), Key("The answer.", CTRL_D)]
        scene = converse(home, project, server, keys, "--plain")
    assert scene.code == 0
    assert b"\x1b" not in scene.raw
    assert texts(server) == "hello"


def test_what_waits_is_shown_taken_back_and_sent(home: Home, project: Path) -> None:
    with ModelServer.in_thread([Hangs(), "Answered."]) as server:
        keys = [
            Key(READY, f"first{ENTER}"),
            Key("> first", f"second{ENTER}"),
            Key("queued: second", f"third{ENTER}"),
            Key("queued: third", UP),
            Key("> third", f" and more{CTRL_C}"),
            Key("cancelled", ENTER),
            Key("Answered.", CTRL_D),
        ]
        scene = converse(home, project, server, keys)
    assert scene.code == 0
    assert texts(server) == "second\nthird and more"


def test_a_question_keeps_what_is_being_typed(home: Home, project: Path) -> None:
    script = [calls("code.write_file", path="b.txt", content="new\n"), "Written."]
    with ModelServer.in_thread([Pauses(seconds=1.0), *script, "Done."]) as server:
        keys = [
            Key(READY, f"write{ENTER}"),
            Key("> write", "half a"),
            Key("y once", "y"),
            Key("Written.", f" message{ENTER}"),
            Key("Done.", CTRL_D),
        ]
        converse(home, project, server, keys)
    assert (project / "b.txt").read_text() == "new\n"
    assert texts(server) == "half a message"


def test_plan_mode_refuses_what_would_change_something(home: Home, project: Path) -> None:
    script = [calls("code.write_file", path="b.txt", content="new\n"), "A plan."]
    with ModelServer.in_thread(script) as server:
        keys = [
            Key(READY, "/mode plan" + ENTER),
            Key("the answer is a plan", f"write{ENTER}"),
            Key("A plan.", CTRL_D),
        ]
        converse(home, project, server, keys)
    assert not (project / "b.txt").exists()


def test_undo_brings_the_message_back_to_the_line(home: Home, project: Path) -> None:
    script = [calls("code.write_file", path="b.txt", content="new\n"), "Written.", "Again."]
    with ModelServer.in_thread(script) as server:
        keys = [
            Key(READY, f"/mode accept-edits{ENTER}"),
            Key("without a question", f"write{ENTER}"),
            Key("Written.", f"/undo{ENTER}"),
            Key("deleted: b.txt", f" it{ENTER}"),
            Key("Again.", CTRL_D),
        ]
        converse(home, project, server, keys)
    assert not (project / "b.txt").exists()
    assert texts(server) == "write it"


def test_the_window_is_drawn(home: Home, project: Path) -> None:
    with ModelServer.in_thread(["Hello."]) as server:
        keys = [
            Key(READY, f"hi{ENTER}"),
            Key("Hello.", f"/context{ENTER}"),
            Key("the cached prefix", f"/contxt{ENTER}"),
            Key("contxt (did", CTRL_D),
        ]
        scene = converse(home, project, server, keys, columns=40)
    assert "reserve" in scene.text
    assert len(server.requests) == 1
