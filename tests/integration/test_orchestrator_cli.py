"""Orchestrators and Tasks on the command line, with a scripted model."""

import json
import os
import pty
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from in_process import carry_out
from isolation import Home
from sweeps import kept

POOL = """
[[agents.worker_pools]]
pool_id = "builders"
[[agents.worker_pools.workers]]
worker_id = "anna"
agent_definition_id = "default_worker_agent"
"""
STEPS = [
    {"step_id": "s1", "title": "Lay the \x1b[31mbricks"},
    {"step_id": "s2", "title": "Paint", "depends_on_step_ids": ["s1"]},
]
REPORT = {"task_id": "t1", "step_id": "s1", "status": "completed", "result_summary": "laid"}


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "calls", "calls": [{"name": f"agent.{name}", "arguments": arguments}]}


SCRIPT = [
    call("task_create", task_id="t1", wal_name="wall", title="A wall", steps=STEPS),
    call("dispatch_worker", task_id="t1", instruction="Lay them."),
    call("task_claim_step", task_id="t1", step_id="s1"),
    {"type": "pauses", "seconds": 0.0},
    call("task_update_step", **REPORT),
    "laid",
    "The wall stands.",
]


def written(home: Home, *, pool: str = POOL, pause: float = 0.0) -> None:
    script = home.write("replies.json", json.dumps(SCRIPT).replace("0.0", str(pause)))
    model = f'[model]\nprovider = "scripted"\nname = "x"\npath = "{script}"\n'
    home.write_config(f"{model}context_window = 32000\n{pool}")


def soong(home: Home, project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return carry_out(arguments, home.env(), project)


def led(home: Home, project: Path) -> subprocess.CompletedProcess[str]:
    written(home)
    return soong(home, project, "run", "--orchestrator", "--session-id", "s1", "Build a wall.")


def test_o4_an_orchestrator_on_the_command_line_leads_a_worker(home: Home, project: Path) -> None:
    done = led(home, project)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "The wall stands.\n"
    assert "worker started: anna" in done.stderr
    summary = done.stderr[done.stderr.index("task t1") :]
    assert summary.splitlines()[:3] == [
        "task t1 running: 1 ready, 1 completed",
        "  completed s1 · Lay the \\x1b[31mbricks · laid",
        "  ready     s2 · Paint",
    ]
    assert "\x1b" not in done.stderr, "a pipe gets no picture and no colours"
    log = project / ".soong-agent" / "tasks" / "s1" / "wall.wal.jsonl"
    assert "task_step_completed" in log.read_text(encoding="utf-8")


def test_j1_an_orchestrator_without_a_pool_is_a_mistake_in_the_configuration(
    home: Home, project: Path
) -> None:
    written(home, pool="")
    done = soong(home, project, "run", "--orchestrator", "Build a wall.")
    assert done.returncode == 2
    assert "worker_pools" in done.stderr
    assert not (project / ".soong-agent").exists()


@pytest.mark.sweep
def test_on_a_terminal_the_open_steps_stay_below_the_output(home: Home, project: Path) -> None:
    written(home, pause=0.8)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "agent_core.cli", "run", "--orchestrator", "Build a wall."],
        cwd=project,
        env=home.env(TERM="xterm", COLUMNS="100", LINES="40"),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    screen = b""
    while True:
        try:
            piece = os.read(ours, 65_536)
        except OSError:  # how a pseudo-terminal says that the other end is closed
            break
        if not piece:
            break
        screen += piece
    os.close(ours)
    assert process.wait(timeout=20) == 0
    shown = screen.decode()
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert "└── claimed   s1 · Lay the" in plain
    assert "    └── pending   s2 · Paint" in plain
    assert re.search(r"\x1b\[\d+A\r\x1b\[J", shown)
    assert "\x1b[?25l" not in shown, "the cursor is never hidden"
    after = shown[shown.rindex("\x1b[J") :]
    assert "└" not in after, "the last picture is taken away"
    assert "task t1 running" in after


def test_a_task_is_shown_as_a_tree(home: Home, project: Path) -> None:
    led(home, project)
    done = soong(home, project, "tasks", "show", "--path", str(project), "t1")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "t1 running · A wall  (session s1)",
        "└── completed s1 · Lay the \\x1b[31mbricks · laid",
        "    └── ready     s2 · Paint",
    ]


@pytest.mark.sweep
def test_a_task_is_shown_as_json(home: Home, project: Path) -> None:
    led(home, project)
    done = soong(home, project, "tasks", "show", "--json", "t1")
    assert (done.returncode, done.stderr) == (0, "")
    shown = json.loads(done.stdout)
    assert (shown["session_id"], shown["task_id"], shown["status"]) == ("s1", "t1", "running")
    assert [each["status"] for each in shown["steps"]] == ["completed", "ready"]


@pytest.mark.sweep
def test_a_task_is_shown_in_ascii_where_nothing_else_can_be(home: Home, project: Path) -> None:
    led(home, project)
    done = carry_out(["tasks", "show", "t1"], home.env(), project, encoding="ascii")
    assert done.returncode == 0
    assert done.stdout.isascii()
    assert "`-- completed s1" in done.stdout


def test_a_task_becomes_a_picture_that_needs_nothing_from_the_network(
    home: Home, project: Path
) -> None:
    led(home, project)
    target = project / "wall.svg"
    done = soong(home, project, "tasks", "show", "--svg", str(target), "t1")
    assert done.returncode == 0, done.stderr
    text = target.read_text(encoding="utf-8")
    root = ET.fromstring(text)  # noqa: S314 - our own file
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "url(http" not in text
    words = " ".join("".join(root.itertext()).replace("\N{NO-BREAK SPACE}", " ").split())
    assert "completed s1 · Lay the" in words


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    kept(
        [
            (("nobody",), 1, "there are: t1"),
            pytest.param(("--session-id", "s2", "t1"), 2, "no session s2", marks=pytest.mark.sweep),
            pytest.param(
                ("--svg", "missing/wall.svg", "t1"), 1, "cannot be written", marks=pytest.mark.sweep
            ),
            (("--path", "missing", "t1"), 2, "missing"),
            pytest.param((), 2, "task", marks=pytest.mark.sweep),
        ],
        (("nobody",), 1, "there are: t1"),
    ),
)
def test_what_cannot_be_shown_is_said(
    home: Home, project: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    led(home, project)
    done = soong(home, project, "tasks", "show", *arguments)
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_tasks_are_listed(home: Home, project: Path) -> None:
    led(home, project)
    done = soong(home, project, "tasks")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["t1", "running", "1/2", "steps", "s1", "A", "wall"]
    done = soong(home, project, "tasks", "--session-id", "s1", "--json")
    listed = json.loads(done.stdout)
    assert (listed["session_id"], listed["task_id"], listed["status"]) == ("s1", "t1", "running")
    assert soong(home, project, "tasks", "list", "--session-id", "s2").stdout == ""


@pytest.mark.sweep
def test_a_log_that_cannot_be_read_is_named(home: Home, project: Path) -> None:
    led(home, project)
    log = project / ".soong-agent" / "tasks" / "s1" / "wall.wal.jsonl"
    log.write_text("broken\n" + log.read_text(encoding="utf-8"), encoding="utf-8")
    for words in (["show", "t1"], ["list"]):
        done = soong(home, project, "tasks", *words)
        assert done.returncode == 1
        assert "wall.wal.jsonl" in done.stderr


@pytest.mark.sweep
def test_tasks_are_shown_without_a_configuration(home: Home, project: Path) -> None:
    led(home, project)
    (home.path / "config.toml").unlink()
    assert soong(home, project, "tasks", "show", "t1").returncode == 0
