"""A call that was not made is shown like any other, with who or what has refused it."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent_core.providers.scripted import calls
from captures import Key, Shown
from chats import AT_REST, CTRL_D, ENTER, READY, configure, converse
from in_process import carry_out
from isolation import Home
from model_server import ModelServer, Status
from sweeps import kept

pytestmark = pytest.mark.timeout(120)

CODES = re.compile(r"\b(internal|validation|schema|tool|config)_error|permission_denied|\$[.\[]")
"""What programs read, and people do not."""
RULE = """
[[permissions.rules]]
decision = "deny"
tool = "code.run_command"
command = ["rm", "*"]
reason = "never"
"""
EDIT = calls("code.edit_file", path="cart.py", edits=[{"old": "a", "new": "b"}])
REMOVE = calls("code.run_command", argv=["rm", "cart.py"])
MISFIT = calls("code.edit_file", path="cart.py", edits=[{"old": "a"}])
UNKNOWN = calls("code.nothing", path="cart.py")


def soong(home: Home, *words: str) -> subprocess.CompletedProcess[str]:
    done = carry_out(words, home.env())
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize(
    ("mode", "edit"),
    kept(
        [("plan", "denied by plan mode"), ("ask", "denied: nobody could be asked")],
        ("plan", "denied by plan mode"),
    ),
)
def test_each_refusal_names_the_call_and_what_has_refused_it(
    home: Home, project: Path, mode: str, edit: str
) -> None:
    (project / "cart.py").write_text("a\n", encoding="utf-8")
    script: list[Any] = [EDIT, REMOVE, MISFIT, UNKNOWN, "Done."]
    with ModelServer.in_thread(script) as server:
        configure(home, server, RULE)
        where = ["--path", str(project)]
        shown = soong(home, "run", *where, "--session-id", "s1", "--mode", mode, "go").stderr
    story = soong(home, "sessions", "show", "s1", *where).stdout
    remove = "plan mode" if mode == "plan" else "rule config.toml#1 (never)"
    assert f"> code.edit_file edit cart.py (1 change) {edit}\n" in shown
    assert f"> code.run_command rm cart.py denied by {remove}\n" in shown
    misfit = "the arguments of code.edit_file do not fit: edits[0].new: Field required"
    assert re.search(rf"> code.edit_file cart.py failed \(.*\): {re.escape(misfit)}\n", shown)
    assert "> code.nothing cart.py failed" in shown
    assert re.search(rf"denied +code.edit_file edit cart.py .*\n +{edit}\n", story)
    assert re.search(rf"denied +code.run_command rm .*\n +denied by {re.escape(remove)}\n", story)
    assert re.search(rf"failed +code.edit_file cart.py .*\n +{re.escape(misfit)}\n", story)
    assert not CODES.search(shown + story)


def test_the_person_who_refuses_is_addressed(home: Home, project: Path) -> None:
    (project / "cart.py").write_text("a\n", encoding="utf-8")
    script: list[Any] = [EDIT, MISFIT, "A last answer.", EDIT, "A plan."]
    with ModelServer.in_thread(script) as server:
        keys = [
            Key(READY, f"go{ENTER}"),
            Key("y once", "e"),
            Key("why not?", f"not that file{ENTER}"),
            Key(AT_REST, f"/last{ENTER}"),
            Key(re.compile(rf"do not[\s\S]*{READY}"), f"/mode plan{ENTER}"),
            Key(re.compile(rf"answers with a plan[\s\S]*{READY}"), f"again{ENTER}"),
            Key(re.compile(rf"carry out[\s\S]*{READY}"), f"/last{ENTER}"),
            Key(
                Shown(r"> /last\s+● code.edit_file edit cart.py .*  denied by plan mode\s+>"),
                CTRL_D,
            ),
        ]
        scene = converse(home, project, server, keys)
    assert "● code.edit_file edit cart.py (1 change)  denied by you" in scene.lines
    assert "    not that file" in scene.lines
    assert not CODES.search(scene.text)


@pytest.mark.sweep
def test_a_killed_process_is_told_in_a_sentence(home: Home, project: Path) -> None:
    slow = calls("code.run_command", argv=["sleep", "600"])
    with ModelServer.in_thread([slow, "A last answer."]) as server:
        configure(home, server, '[[permissions.rules]]\ndecision = "allow"\ntool = "*"\n')
        running = subprocess.Popen(
            [sys.executable, "-m", "agent_core.cli", "run", "--session-id", "s1", "go"],
            env=home.env(),
            cwd=project,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert running.stderr is not None
        while "sleep 600" not in running.stderr.readline():
            assert running.poll() is None
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()
        running.stderr.close()
        story = soong(home, "sessions", "show", "s1", "--path", str(project)).stdout
        after = soong(home, "run", "--session-id", "s1", "--path", str(project), "go on").stderr
    assert "failed: the process that ran this ended before the run did" in story
    assert "> code.run_command sleep 600 unknown: the process running this call died" in after
    assert not CODES.search(story + after)


@pytest.mark.sweep
def test_what_has_failed_is_told_once_and_in_a_sentence(home: Home, project: Path) -> None:
    home.write("mcp.json", '{"mcpServers": {"gone": {"command": "/nonexistent/server"}}}')
    home.write(
        "hooks.json",
        '{"version": 1, "hooks": {"PreToolUse": [{"matcher": "code.list_dir", "hooks":'
        ' [{"type": "command", "command": "echo never >&2; exit 2"}]}]}}',
    )
    refused = Status(401, b'{"error": {"message": "bad key"}}')
    with ModelServer.in_thread([calls("code.list_dir", path="."), refused]) as server:
        configure(home, server)
        run = [sys.executable, "-m", "agent_core.cli", "run", "--session-id", "s1", "go"]
        shown = subprocess.run(  # noqa: S603 - our own command
            run,
            env=home.env(),
            cwd=project,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        ).stderr
    story = soong(home, "sessions", "show", "s1", "--path", str(project)).stdout
    for text in (shown, story):
        assert text.count("MCP server 'gone' cannot be started") == 1
        assert "mcp server failed" not in text
        assert text.count("never") == 1
        assert text.count("answered with status 401") == 1
        assert not CODES.search(text)
