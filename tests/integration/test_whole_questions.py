"""Whatever is asked can be read whole, wherever it is asked."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from agent_core.providers.scripted import calls
from captures import Session, open_terminal
from editors import Editor
from isolation import Home
from model_server import ModelServer
from runtimes import CONFIG, Asked, ask, runtime
from sweeps import kept

pytestmark = pytest.mark.timeout(90)

ROWS = [f"row {number:03} of the heredoc" for number in range(80)]
HEREDOC = "\n".join(["cat > b.txt <<'END'", *ROWS, "in: /harmless \u202e\x1b[2J", "END"])
LONG = "echo " + "x" * 12_000 + " && touch the-end"
SCRIPTS: list[Any] = [
    calls("code.run_command", argv=["sh", "-c", HEREDOC]),
    calls("code.run_command", argv=["sh", "-c", LONG]),
    calls("code.write_file", path="c.txt", content="".join(f"line {n}\n" for n in range(9_000))),
]


def configure(home: Home, server: ModelServer, more: str = "") -> None:
    home.write_config(
        f'[model]\nprovider = "openai"\nname = "m"\nbase_url = "{server.base_url("openai")}"\n'
        f"context_window = 32000\n[memory]\nenabled = false\n{more}"
    )


@pytest.mark.long
async def test_the_request_of_a_callback_is_whole(home: Home, project: Path) -> None:
    asked = Asked("deny", "deny", "deny")
    made = runtime(home, project, [*SCRIPTS, "done"], config=CONFIG, permission_callback=asked)
    async with made:
        await ask(made)
    heredoc, long, file = asked.requests
    lines = str(heredoc.metadata["lines"]).split("\n")
    assert lines[1:81] == ROWS
    assert lines[81] == r"in: /harmless \u202e\x1b[2J"
    assert str(long.metadata["target"]).endswith("x && touch the-end'")
    assert long.args_summary == long.metadata["target"]
    assert str(file.metadata["diff"]).endswith("+line 8999\n")


def seen(home: Home, project: Path, number: int, *options: str, rows: int) -> tuple[str, str]:
    """What a terminal shows of a question at first, and behind `v`."""
    with ModelServer.in_thread([SCRIPTS[number], "done"]) as server:
        configure(home, server)
        command = [sys.executable, "-m", "agent_core.cli", *(options or ("run", "go"))]
        is_plain = "--plain" in options
        enter = "\n" if is_plain else ""
        ours, child = open_terminal(command, env=home.env(), cwd=project, rows=rows)
        session = Session(ours, child, columns=80, rows=rows, ends_at=time.monotonic() + 60)
        try:
            if is_plain:
                session.wait_for("> ")
                session.type("go\n")
            session.wait_for("? help")
            session.wait_for("> ")
            first = session.recording().text
            before = len(session.recording().raw)
            session.type(f"v{enter}")
            goes_on = re.compile(r"continues |\? help")
            session.wait_for(goes_on)
            while b"? help" not in session.recording().raw[before:]:
                session.type(f" {enter}")
                session.wait_for(goes_on)
            return first, session.recording().raw[before:].decode()
        finally:
            child.send_signal(signal.SIGKILL)
            child.wait()
            os.close(ours)


@pytest.mark.long
@pytest.mark.parametrize(
    "options", kept([(), ("chat", "--plain")], ()), ids=kept(["run", "plain"], "run")
)
def test_a_long_command_shows_its_end_and_the_whole_of_it(
    home: Home, project: Path, options: tuple[str, ...]
) -> None:
    first, whole = seen(home, project, 0, *options, rows=30)
    assert "cat > b.txt" in first
    assert re.search(r"… \d+ lines not shown, v shows the whole", first)
    assert r"| in: /harmless \u202e\x1b[2J" in first
    assert '| END"' in first
    assert "\n  in: /harmless" not in first
    assert all(f"| {row}" in whole for row in ROWS)


@pytest.mark.sweep
def test_the_end_of_a_long_word_is_seen(home: Home, project: Path) -> None:
    first, whole = seen(home, project, 1, rows=30)
    assert "the-end'" in first
    assert len(re.findall("x", whole)) >= 12_000


@pytest.mark.sweep
def test_the_questions_of_other_processes_are_whole(home: Home, project: Path) -> None:
    with ModelServer.in_thread([SCRIPTS[0], "done"]) as server:
        configure(home, server, '[permissions]\nunattended = "park"\n')

        def soong(*words: str) -> str:
            return subprocess.run(  # noqa: S603 - our own interpreter
                [sys.executable, "-m", "agent_core.cli", *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=60,
                check=False,
                env=home.env(),
                cwd=project,
            ).stdout

        said = soong("run", "go")
        listed = soong("approvals", "list")
    for shown in (said, listed):
        assert all(f"    | {row}\n" in shown for row in ROWS)
        assert '    | END"\n' in shown


@pytest.mark.sweep
def test_an_editor_is_asked_with_the_whole_command(home: Home, project: Path) -> None:
    with ModelServer.in_thread([SCRIPTS[0], "done"]) as server:
        configure(home, server)
        with Editor(home) as editor:
            editor.prompt(editor.open(project), "go")
            (asked,) = editor.asked
    text = asked["params"]["toolCall"]["content"][0]["content"]["text"]
    assert all(f"\n  | {row}\n" in text for row in ROWS)
    assert '\n  | END"\n' in text
    assert r"  | in: /harmless \u202e\x1b[2J" in text
