"""The tutorial of the terminal: each line that it shows is shown by a real terminal, in order."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import warm
from agent_core.providers.scripted import Calls, Pauses, ScriptedCall, calls
from captures import Key, record
from chats import CTRL_D, ENTER, READY, configure
from isolation import Home
from model_server import ModelServer, Reply

pytestmark = pytest.mark.timeout(180)

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorials" / "terminal.md"
FILES = ROOT / "examples" / "tutorials" / "terminal"
ASKS = "? help > "
CHECKS = calls("code.run_command", argv=["python", "-m", "unittest"])
CORRECTION = {"old": "result * discount", "new": "result * (1 - discount)"}
BEFORE = "    def test_with_discount"
NEW_TEST = f"""\
    def test_everything_off(self):
        self.assertEqual(total([10], discount=1), 0)

{BEFORE}"""
REPLIES: list[Reply] = [
    CHECKS,
    "`total` multiplies by the discount, where it should take it off: `result * (1 - discount)`.",
    calls("code.edit_file", path="cart.py", edits=[CORRECTION]),
    CHECKS,
    "Fixed: both tests pass.",
    Calls(
        text="I look at the tests first.",
        calls=[ScriptedCall(name="code.read_file", arguments={"path": "test_cart.py"})],
    ),
    Pauses(seconds=1),
    calls("code.edit_file", path="test_cart.py", edits=[{"old": BEFORE, "new": NEW_TEST}]),
    "Added `test_everything_off`.",
    "1. Check `discount` in `total`.\n2. Add a test for a negative one.",
    CHECKS,
    "`total(prices, discount)` sums prices and takes a discount off.",
]
FIRST = [
    Key(READY, f"why do the tests fail?{ENTER}"),
    Key(ASKS, "a"),
    Key(re.compile(r"take it off[\s\S]*sandbox off"), f"fix it{ENTER}"),
    Key(ASKS, "y"),
    Key(re.compile(r"both tests pass[\s\S]*sandbox off"), f"/undo{ENTER}"),
    Key(re.compile(r"brings it back[\s\S]*sandbox off"), f"/redo{ENTER}"),
    Key(
        re.compile(r"changes are back[\s\S]*sandbox off"), f"test that everything can be off{ENTER}"
    ),
    Key("look at the tests", f"call it test_everything_off{ENTER}"),
    Key(ASKS, "y"),
    Key(re.compile(r"Added[\s\S]*sandbox off"), f"/diff test_cart.py{ENTER}"),
    Key(re.compile(r"1 file changed[\s\S]*sandbox off"), CTRL_D),
]
SECOND = [
    Key(READY, f"what if the discount is negative?{ENTER}"),
    Key(re.compile(r"negative one[\s\S]*sandbox off"), CTRL_D),
]


def settled(line: str) -> str:
    """Return a line without the values that a page cannot show."""
    line = re.sub(r"\bsess_[0-9a-f]+", "sess_…", line)
    line = re.sub(r"(?<=  )\d{4}-\d\d-\d\d \d\d:\d\d  ", "", line)
    line = re.sub(r"[\d,]+ tokens  \S+  /\S+", "…", line)
    return re.sub(r"\b[\d.]+ m?s$", "…", line).rstrip()


def shown_by(page: Path) -> list[str]:
    """Return the lines of the screens on a page."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"(?<=\n\n)(?: {4}.*\n|\n(?= {4}))+", re.sub(r"```[\s\S]*?```", "", text))
    return [line[4:].rstrip() for block in blocks for line in block.splitlines() if line.strip()]


def test_a_terminal_shows_what_the_page_shows(home: Home, tmp_path: Path) -> None:
    project = tmp_path / "shop"
    shutil.copytree(FILES, project, ignore=shutil.ignore_patterns("__pycache__"))
    warm.write_command(tmp_path / "bin")
    folders = [str(tmp_path / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
    env = home.env(PATH=os.pathsep.join(folders))
    lines = ["$ cd shop"]

    def chat(command: str, keys: list[Key]) -> None:
        words = command.split()
        argv = [sys.executable, "-m", "agent_core.cli", *words[1:]]
        recording = record(argv, env=env, cwd=project, columns=88, keys=keys)
        assert recording.code == 0
        lines.extend([f"$ {command}", *recording.lines])

    def shell(command: str) -> None:
        done = subprocess.run(  # noqa: S602 - the line of our own page
            command,
            shell=True,
            cwd=project,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        lines.extend([f"$ {command}", *done.stdout.splitlines()])

    with ModelServer.in_thread(REPLIES) as server:
        configure(home, server)
        chat("soong-agent chat", FIRST)
        chat("soong-agent chat --continue --mode plan", SECOND)
        for command in re.findall(r"^    \$ (.+)$", PAGE.read_text(encoding="utf-8"), re.M):
            if not command.startswith(("cd ", "soong-agent chat")):
                shell(command)
        server.assert_complete()

    rest = iter([settled(line) for line in lines])
    for line in shown_by(PAGE):
        wanted = line.replace(" --model openai:gpt-5-mini", "")
        assert any(line == wanted for line in rest), f"{wanted!r} is not shown, or not here"
