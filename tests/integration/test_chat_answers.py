"""What the commands of a conversation print: once, in few lines, for people."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from agent_core.providers.scripted import calls
from captures import Key
from chats import AT_REST, BACKSPACE, CTRL_C, CTRL_D, ENTER, READY, configure, converse
from isolation import Home
from model_server import ModelServer
from sweeps import kept

pytestmark = pytest.mark.timeout(120)

PLAIN_REST = r"[\s\S]*\n> $"
WRITE = calls("code.write_file", path="n.txt", content="x\n")
LIST = calls("code.list_dir", path=".")


def test_an_undo_in_plain_lines_names_its_message_once(home: Home, project: Path) -> None:
    with ModelServer.in_thread([WRITE, "A last answer."]) as server:
        keys = [
            Key("> ", f"write the note{ENTER}"),
            Key(re.compile(rf"answer\.{PLAIN_REST}"), f"/undo{ENTER}"),
            Key(re.compile(rf"taken back{PLAIN_REST}"), CTRL_D),
        ]
        scene = converse(home, project, server, keys, "--plain", "--mode", "accept-edits")
    _, _, after = scene.text.partition("/undo")
    assert after.count("write the note") == 1
    assert "not sent" not in after


def test_what_was_typed_during_a_run_is_shown_behind_the_next_prompt_and_can_be_erased(
    home: Home, project: Path
) -> None:
    """Else the next line would be sent behind a text that nothing shows, or takes back."""
    replies = ["A first answer.", "A second answer.", "A last answer."]
    with ModelServer.in_thread(replies) as server:
        keys = [
            Key("> ", f"hello{ENTER}abc"),
            Key(re.compile(r"first answer\.[\s\S]*\n> abc$"), BACKSPACE * 2),
            Key(re.compile(r"\x08 \x08\x08 \x08$"), f"def{ENTER}x"),
            Key(re.compile(r"second answer\.[\s\S]*\n> x$"), CTRL_C),
            Key(re.compile(r"\^C\r?\n> $"), f"anew{ENTER}"),
            Key(re.compile(rf"last answer\.{PLAIN_REST}"), CTRL_D),
        ]
        assert converse(home, project, server, keys, "--plain").code == 0
    asked = [message["content"] for message in server.requests[-1].body["messages"]]
    assert "adef" in asked
    assert asked[-1] == "anew"


@pytest.mark.sweep
def test_a_command_of_the_user_says_once_who_reads_its_output(home: Home, project: Path) -> None:
    (project / "notes.txt").write_text("x", encoding="utf-8")
    with ModelServer.in_thread([]) as server:
        keys = [
            Key(READY, f"!ls{ENTER}"),
            Key(re.compile(rf"next message[\s\S]*{READY}"), f"!ls -a{ENTER}"),
            Key(re.compile(rf"\.\.[\s\S]*notes.txt[\s\S]*{READY}"), f"/status{ENTER}"),
            Key(re.compile(rf"instructions no AGENTS.md has been read[\s\S]*{READY}"), CTRL_D),
        ]
        scene = converse(home, project, server, keys)
    assert scene.text.count("with your next message") == 1
    assert "session" in scene.text


def test_the_last_call_is_shown_as_its_line_and_its_result_as_text(
    home: Home, project: Path
) -> None:
    (project / "notes.txt").write_text("x", encoding="utf-8")
    with ModelServer.in_thread([LIST, WRITE, "A last answer."]) as server:
        keys = [
            Key(READY, f"write{ENTER}"),
            Key(AT_REST, f"/last{ENTER}"),
            Key(re.compile(rf"bytes_written: 2[\s\S]*{READY}"), CTRL_D),
        ]
        scene = converse(home, project, server, keys, "--mode", "accept-edits")
    _, _, after = scene.text.partition("> /last")
    assert re.search(r"● code.write_file create n.txt \(2 bytes\) .* ms\n", after)
    assert "path: n.txt\n" in after
    assert "{" not in after


@pytest.mark.parametrize("columns", kept([30, 80], 30))
def test_a_session_of_another_folder_is_named_with_two_commands(
    home: Home, project: Path, tmp_path: Path, columns: int
) -> None:
    with ModelServer.in_thread(["A last answer."]) as server:
        configure(home, server)
        subprocess.run(
            [sys.executable, "-m", "agent_core.cli", "run", "--session-id", "s9", "go"],
            env=home.env(),
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
        )
        keys = [Key("openai:m", f"/resume s9{ENTER}"), Key(re.compile(r"answer\.[\s\S]*m"), CTRL_D)]
        scene = converse(home, project, server, keys, columns=columns)
    joined = re.sub(r"\s+", "", scene.text)
    there = f"tocontinueitthere:soong-agentchat--session-ids9--path{tmp_path}"
    assert f"{there}tomoveithere:soong-agentchat--session-ids9--move-session" in joined


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["chat", "--move-session"], "--move-session needs --session-id"),
        (["permissions", "add"], "soong-agent permissions add <decision> [options] [-- command…]"),
        (["sessions", "rename"], "soong-agent sessions rename [--path <dir-or-file>] id title"),
    ],
)
def test_an_incomplete_command_says_what_it_needs(
    home: Home, project: Path, words: list[str], said: str
) -> None:
    with ModelServer.in_thread([]) as server:
        scene = converse(home, project, server, [], command=words, columns=120)
    assert scene.code == 2
    assert said in scene.text
    assert len(scene.lines) == 2
