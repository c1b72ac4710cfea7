"""Commands whose standard output cannot be written: closed from the beginning, or a full disk."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from isolation import Home
from model_server import ModelServer
from session_stories import a_story
from sweeps import paired, sampled
from worker_processes import write_config

CLOSED = (
    "soong-agent: standard output is closed: redirect it to a file, or to /dev/null if it is not"
    " needed\n"
)
COMMANDS = (
    "--version",
    "--help",
    "run --help",
    "sessions list",
    "sessions list --json",
    "sessions search add",
    "sessions search add --json",
    "sessions show 18aa",
    "sessions tree 18aa",
    "sessions export 18aa --jsonl",
    "sessions export 18aa --html",
    "cost",
    "cost --json",
    "config show",
    "config show --json",
    "agents list",
    "agents list --json",
    "skills list",
    "completion bash",
    "schema events",
    "doctor",
    "doctor --json",
    "store migrate",
)
SKILL = "---\nname: deploy\ndescription: How we deploy.\n---\nWith care.\n"


@pytest.fixture
async def place(home: Home, project: Path) -> Path:
    await a_story(home, project)
    home.write("skills/deploy/SKILL.md", SKILL)
    return project


def soong_agent_into(
    output: str, words: str, home: Home, project: Path, *, given: str = os.devnull, **more: str
) -> subprocess.CompletedProcess[str]:
    with open(given, "rb") as read, open(output, "wb") as written:  # noqa: PTH123 - devices
        return subprocess.run(  # noqa: S603 - our own interpreter and program
            [sys.executable, "-m", "agent_core.cli", *words.split()],
            cwd=project,
            env=home.env(**more),
            stdin=read,
            stdout=written,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )


def soong_agent(
    words: str, home: Home, project: Path, **more: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - our own interpreter and program
        ["sh", "-c", f'exec "{sys.executable}" -m agent_core.cli {words}'],  # noqa: S607
        cwd=project,
        env=home.env(**more),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("unbuffered", "commands"),
    [
        ("", sampled(COMMANDS, keep=3)),
        pytest.param("1", sampled(COMMANDS, keep=2), marks=pytest.mark.sweep),
    ],
    ids=["", "1"],
)
async def test_a_command_that_prints_fails_where_it_cannot(
    home: Home, place: Path, unbuffered: str, commands: Sequence[str]
) -> None:
    for words in commands:
        full = soong_agent_into("/dev/full", words, home, place, PYTHONUNBUFFERED=unbuffered)
        assert (words, full.returncode) == (words, 1)
        assert "standard output" in full.stderr.splitlines()[-1]
        assert full.stderr.endswith(": No space left on device\n")
        assert "Traceback" not in full.stderr


@pytest.mark.long
@pytest.mark.timeout(240)
async def test_a_command_that_prints_is_told_that_it_cannot(home: Home, place: Path) -> None:
    """Python opens no stream for a descriptor that is closed, buffered or not."""
    for words in sampled(COMMANDS, keep=1):
        closed = soong_agent(f"{words} >&-", home, place)
        assert (words, closed.returncode) == (words, 141)
        assert closed.stderr.endswith(CLOSED)
        assert closed.stderr.count("standard output is closed") == 1
        assert "Traceback" not in closed.stderr


@pytest.mark.sweep
def test_an_editor_is_not_served_without_a_standard_output(home: Home, project: Path) -> None:
    asked = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1}}
    given = str(home.write("asked", json.dumps(asked) + "\n"))
    closed = soong_agent(f"acp < {given} >&-", home, project)
    assert (closed.returncode, closed.stderr) == (141, CLOSED)
    full = soong_agent_into("/dev/full", "acp", home, project, given=given)
    told = "soong-agent: cannot write to standard output: No space left on device\n"
    assert (full.returncode, full.stderr.endswith(told)) == (1, True)
    assert soong_agent_into(os.devnull, "acp", home, project, given=given).returncode == 0


@pytest.mark.parametrize(
    ("words", "output"), sampled(paired(["run go", "attach run_1"], [">&-", "1</dev/null"]), keep=1)
)
def test_what_shows_an_answer_is_not_started_without_a_standard_output(
    home: Home, project: Path, words: str, output: str
) -> None:
    with ModelServer.in_thread(["done"]) as server:
        write_config(home, server)
        done = soong_agent(f"{words} {output}", home, project)
        assert (done.returncode, done.stderr) == (141, CLOSED)
        assert server.requests == []
