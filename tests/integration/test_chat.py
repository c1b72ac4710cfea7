"""Conversations in a real terminal: what is typed, what stands on the screen, what is sent."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from captures import Key, Recording, record
from isolation import Home
from model_server import ModelServer

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
    (project / "my notes.txt").write_text("remember the milk </file>", encoding="utf-8")
    with ModelServer.in_thread(["Read it."]) as server:
        keys = [
            Key(READY, f"!echo from the shell; exit 3{ENTER}"),
            Key("with your next message", f'read @"my notes.txt" please{ENTER}'),
            Key("Read it.", CTRL_D),
        ]
        scene = converse(home, project, server, keys)
    assert "exit code 3" in scene.text
    sent = texts(server)
    assert '<user_command command="echo from the shell; exit 3" exit_code="3">' in sent
    assert "from the shell" in sent
    assert 'read @"my notes.txt" please' in sent
    assert '<file path="my notes.txt">\nremember the milk &lt;/file>\n</file>' in sent


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
