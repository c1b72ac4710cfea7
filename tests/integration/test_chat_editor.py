"""A draft goes to the user's own editor and comes back whole."""

import os
import re
import signal
import stat
from pathlib import Path

import pytest

from agent_core.providers.scripted import Pauses, calls
from captures import Key
from chats import (
    AT_REST,
    CTRL_C,
    CTRL_D,
    CTRL_X_CTRL_E,
    ENTER,
    READY,
    converse,
    open_chat,
    pasted,
    sent,
)
from isolation import Home
from model_server import ModelServer

pytestmark = pytest.mark.timeout(90)


@pytest.fixture(autouse=True)
def no_editor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave it to each test which editor there is."""
    monkeypatch.setenv("VISUAL", "")
    monkeypatch.setenv("EDITOR", "")


@pytest.fixture
def editor(tmp_path: Path) -> Path:
    """A script that is the editor; `write_editor` says what it does with the file `$1`."""
    return tmp_path / "my editor"


def write_editor(editor: Path, script: str) -> str:
    editor.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    editor.chmod(0o755)
    return str(editor)


def test_the_draft_is_edited_with_its_pastes_and_comes_back_whole(
    home: Home, project: Path, editor: Path, tmp_path: Path
) -> None:
    (project / "lamp.py").write_text("VOLTS = 230\n")
    command = write_editor(
        editor,
        f'stat -c %a "$2" "$(dirname "$2")" > {tmp_path}/rights; cp "$2" {tmp_path}/seen;'
        f' echo "$1" >> {tmp_path}/rights; echo swap > "$2.swp";'
        ' printf "/und\\303\\266\\n" >> "$2"',
    )
    paste = "\n".join(f"@lamp.py line {number}" for number in range(30))
    with ModelServer.in_thread(["The answer."]) as server:
        keys = [
            Key(READY, "see " + pasted(paste)),
            Key("30 lines]", CTRL_X_CTRL_E),
            Key("/undö", ENTER),
            Key(AT_REST, CTRL_D),
        ]
        env = {"VISUAL": f"'{command}' --wait", "EDITOR": "false"}
        scene = converse(home, project, server, keys, env=env)
        assert sent(server) == f"see {paste}\n/undö"
    assert (tmp_path / "seen").read_text() == f"see {paste}\n"
    assert (tmp_path / "rights").read_text() == "600\n700\n--wait\n"
    assert "[pasted text 1: 30 lines]" in scene.text
    assert list((home.path / "drafts").iterdir()) == []


FAILING = (
    (None, "cannot be started; set $VISUAL or $EDITOR"),
    ("exit 3", "ended with exit code 3; the draft is unchanged"),
    ("kill -9 $$", "ended with signal SIGKILL; the draft is unchanged"),
    ('rm "$1"', "No such file"),
    ('printf "a\\0b" > "$1"', "saved no text; the draft is unchanged"),
)


@pytest.mark.sweep
def test_an_editor_that_fails_keeps_the_draft(home: Home, project: Path, editor: Path) -> None:
    with open_chat(home, project, env={"EDITOR": f"'{editor}'"}, columns=200) as chat:
        for script, said in FAILING:
            if script is not None:
                write_editor(editor, script)
            told = re.compile(said.replace(" ", r"\s+").replace("$", r"\$"))
            chat.type("my draft" + CTRL_X_CTRL_E, shows=told)
            assert chat.send(" two") == "my draft two", said


@pytest.mark.sweep
def test_a_run_goes_on_behind_the_editor_and_draws_nothing_over_it(
    home: Home, project: Path, editor: Path
) -> None:
    command = write_editor(
        editor,
        """trap 'echo caught' INT; echo EDITING; read line; stty raw -echo
        echo "got $line" > "$1"; while [ ! -e made ]; do sleep 0.05; done; echo EDITED""",
    )
    script = [
        Pauses(seconds=1.0),
        calls("code.write_file", path="made", content="x"),
        "The answer.",
        "Another answer.",
    ]
    with ModelServer.in_thread(script) as server:
        keys = [
            Key(READY, "begin" + ENTER),
            Key("> begin", "draft" + CTRL_X_CTRL_E),
            Key("EDITING", CTRL_C),
            Key("caught", "words\n"),
            Key(re.compile(r"The answer\.[\s\S]*got words"), ENTER),
            Key("Another answer.", CTRL_D),
        ]
        env = {"EDITOR": f"'{command}'"}
        scene = converse(home, project, server, keys, "--mode", "accept-edits", env=env)
        assert sent(server) == "got words"
    over = scene.raw.decode().partition("EDITING")[2].partition("EDITED")[0]
    assert "code.write_file" not in over
    assert "sandbox off" not in over
    assert "code.write_file" in scene.text


@pytest.mark.sweep
def test_leaving_ends_the_editor_and_removes_the_draft(
    home: Home, project: Path, editor: Path, tmp_path: Path
) -> None:
    pid = tmp_path / "pid"
    command = write_editor(editor, f"echo $$ > {pid}; echo $PPID >> {pid}; echo EDITING; sleep 60")

    def terminate() -> None:
        os.kill(int(pid.read_text().split()[1]), signal.SIGTERM)

    with ModelServer.in_thread([]) as server:
        keys = [Key(READY, "my draft" + CTRL_X_CTRL_E), Key("EDITING", terminate)]
        scene = converse(home, project, server, keys, env={"EDITOR": f"'{command}'"})
    assert scene.code == 143
    assert list((home.path / "drafts").iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text().split()[0]), 0)


def test_the_draft_of_a_killed_chat_is_removed_by_the_next(
    home: Home, project: Path, editor: Path, tmp_path: Path
) -> None:
    pid = tmp_path / "pid"
    command = write_editor(editor, f"echo $PPID > {pid}; echo EDITING; sleep 0.2")
    drafts = home.path / "drafts"

    def kill() -> None:
        os.kill(int(pid.read_text()), signal.SIGKILL)

    with ModelServer.in_thread([]) as server:
        keys = [Key(READY, "my draft" + CTRL_X_CTRL_E), Key("EDITING", kill)]
        converse(home, project, server, keys, env={"EDITOR": f"'{command}'"})
        (left,) = drafts.iterdir()
        assert stat.S_IMODE((left / "draft.md").stat().st_mode) == 0o600
        converse(home, project, server, [Key(READY, CTRL_D)], env={})
    assert list(drafts.iterdir()) == []


@pytest.mark.sweep
def test_the_edit_command_begins_a_draft_and_sends_it_where_nothing_is_drawn(
    home: Home, project: Path, editor: Path
) -> None:
    command = write_editor(editor, 'echo more >> "$1"')
    env = {"EDITOR": f"'{command}'"}
    with ModelServer.in_thread(["One answer.", "Another answer."]) as server:
        keys = [
            Key(READY, "/edit don't stop" + ENTER),
            Key("more", ENTER),
            Key(AT_REST, CTRL_D),
        ]
        converse(home, project, server, keys, env=env)
        keys = [Key("> ", "/edit hello" + ENTER), Key("Another answer.", CTRL_D)]
        converse(home, project, server, keys, "--plain", env=env)
        assert [sent(server, 0), sent(server, 1)] == ["don't stop\nmore", "hello\nmore"]
