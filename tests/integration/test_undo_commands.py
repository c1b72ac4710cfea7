"""`undo`, `redo`, `workspace diff` and `sessions fork`, as a user calls them."""

import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import warm
from captures import record
from in_process import carry_out
from isolation import Home
from sweeps import is_whole, kept

pytestmark = pytest.mark.timeout(120)

KEY = "sk-abcdefgh12345678abcdefgh"


def wrote(path: str, content: str) -> dict[str, Any]:
    arguments = {"path": path, "content": content, "overwrite": True}
    return {"type": "calls", "calls": [{"name": "code.write_file", "arguments": arguments}]}


def soong_agent(home: Home, project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return carry_out([*arguments, "--path", str(project)], home.env(), given="1\n" * 80)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def ran(home: Home, project: Path) -> Path:
    """A project in which a run of the command has written two files."""
    replies = [wrote("a.txt", f"one\nkey = {KEY}\n"), wrote("b.bin", "b\0b"), "done"]
    script = home.write("replies.json", json.dumps(replies))
    path = json.dumps(str(script))
    home.write_config(
        f'[model]\nprovider = "scripted"\nname = "replay"\npath = {path}\n'
        "context_window = 32000\n\n[memory]\nenabled = false\n"
    )
    (project / "a.txt").write_text("zero\n")
    done = soong_agent(home, project, "run", "go", "--session-id", "s1")
    assert done.returncode == 0, done.stderr
    assert (project / "b.bin").exists()
    return project


@pytest.mark.long
def test_undo_and_redo_say_what_came_back(home: Home, ran: Path) -> None:
    undone = soong_agent(home, ran, "undo")
    assert undone.returncode == 0, undone.stderr
    assert undone.stderr.startswith("  restored: a.txt\n")
    assert "\ntaken back: go\n" in undone.stderr
    assert "restored: a.txt" in undone.stderr
    assert "deleted: b.bin" in undone.stderr
    assert (ran / "a.txt").read_text() == "zero\n"
    again = soong_agent(home, ran, "undo", "s1")
    assert again.returncode == 2
    assert "nothing to undo" in again.stderr
    assert soong_agent(home, ran, "redo").returncode == 0
    assert (ran / "b.bin").exists()
    assert soong_agent(home, ran, "redo").returncode == 2


@pytest.mark.sweep
def test_a_run_whose_model_was_named_on_the_command_line_is_undone(home: Home, ran: Path) -> None:
    (home.path / "config.toml").unlink()
    assert "s1" in soong_agent(home, ran, "sessions", "list").stdout
    assert soong_agent(home, ran, "approvals", "list").returncode == 0
    assert soong_agent(home, ran, "permissions", "list").returncode == 0
    assert "git" in soong_agent(home, ran, "permissions", "explain", "--", "git", "log").stdout
    undone = soong_agent(home, ran, "undo")
    assert undone.returncode == 0, undone.stderr
    assert (ran / "a.txt").read_text() == "zero\n"
    assert soong_agent(home, ran, "redo").returncode == 0
    compacted = soong_agent(home, ran, "sessions", "compact", "s1")
    assert compacted.returncode == 2
    assert "$SOONG_AGENT_MODEL" in compacted.stderr


@pytest.mark.sweep
def test_of_many_paths_the_first_are_shown_and_the_rest_is_counted(home: Home, ran: Path) -> None:
    (ran / "a.txt").write_text("mine\n")
    many = [wrote(f"many/{number:03}.txt", "x") for number in range(60)]
    together = {"type": "calls", "calls": [call for each in many for call in each["calls"]]}
    home.write("replies.json", json.dumps([together, "done"]))
    done = soong_agent(home, ran, "run", "go", "--session-id", "s1")
    assert done.returncode == 0, done.stderr
    undone = soong_agent(home, ran, "undo")
    assert undone.returncode == 0, undone.stderr
    assert undone.stderr.count("  deleted: many/") == 50
    assert "  deleted: 11 more paths\n" in undone.stderr
    assert not (ran / "many").exists(), "the eleventh is the folder"


def test_changes_of_others_are_named_with_the_cure(home: Home, ran: Path) -> None:
    (ran / "a.txt").write_text("mine\n")
    refused = soong_agent(home, ran, "undo")
    assert refused.returncode == 1
    assert "Changed after the run, by you or others: a.txt. With force (--force)" in refused.stderr
    assert refused.stderr.count("a.txt") == 1, "it is said once"
    assert (ran / "b.bin").exists()
    assert soong_agent(home, ran, "undo", "--force").returncode == 0
    assert (ran / "a.txt").read_text() == "zero\n"


@pytest.mark.sweep
def test_many_changes_of_others_are_listed(home: Home, ran: Path) -> None:
    many = [wrote(f"{number}.txt", "x") for number in range(20)]
    together = {"type": "calls", "calls": [call for each in many for call in each["calls"]]}
    home.write("replies.json", json.dumps([together, "done"]))
    assert soong_agent(home, ran, "run", "go", "--session-id", "s1").returncode == 0
    for number in range(20):
        (ran / f"{number}.txt").write_text("mine\n")
    refused = soong_agent(home, ran, "undo")
    assert refused.returncode == 1
    assert refused.stderr.count("\n  changed by others: ") == 20


@pytest.mark.sweep
def test_only_files_that_no_setting_leaves_out_are_named(home: Home, ran: Path) -> None:
    (ran / "node_modules").mkdir()
    (ran / "node_modules" / "m.js").write_text("m")
    os.mkfifo(ran / "pipe")
    home.write("replies.json", json.dumps([wrote("c.txt", "c"), "done"]))
    assert soong_agent(home, ran, "run", "go", "--session-id", "s1").returncode == 0
    undone = soong_agent(home, ran, "undo")
    assert undone.returncode == 0, undone.stderr
    assert "  in no snapshot: pipe (fifo)\n" in undone.stderr
    assert "node_modules" not in undone.stderr


def test_a_diff_shows_text_without_secrets_and_names_the_rest(home: Home, ran: Path) -> None:
    undone = soong_agent(home, ran, "undo")
    snapshot = undone.stderr.split("just before: ")[1].split()[0]
    soong_agent(home, ran, "redo")
    shown = soong_agent(home, ran, "sessions", "show", "s1")
    nodes = [line.split("]")[0][1:] for line in shown.stdout.splitlines() if "[node_" in line]
    done = soong_agent(home, ran, "workspace", "diff", nodes[0], snapshot)
    assert done.returncode == 0, done.stderr
    assert "-zero\n+one\n" in done.stdout
    assert KEY not in done.stdout
    assert "added: b.bin (binary" in done.stdout
    words = [sys.executable, "-m", "agent_core.cli", "workspace", "diff", nodes[0], snapshot]
    screen = record(words, env=home.env(), cwd=ran)
    assert re.search(r"\n +\d+ - zero\n +\d+ \+ one\n", screen.text)  # as /diff and calls do
    assert KEY not in screen.text
    assert "added: b.bin (binary" in screen.text
    wrong = soong_agent(home, ran, "workspace", "diff", "node_none", snapshot)
    assert wrong.returncode == 1
    assert "no node node_none" in wrong.stderr


@pytest.mark.sweep
def test_a_fork_works_in_a_copy_of_the_project(home: Home, ran: Path) -> None:
    (ran / "node_modules").mkdir()
    (ran / "node_modules" / "m.js").write_text("m")
    copy = ran.with_name(f"{ran.name}-copy")
    done = soong_agent(home, ran, "sessions", "fork", "s1", "--into", str(copy))
    assert done.returncode == 0, done.stderr
    session_id = done.stdout.split()[0]
    assert names_in(copy) == ["a.txt", "b.bin", "node_modules"]
    undone = soong_agent(home, copy, "undo", session_id)
    assert undone.returncode == 0, undone.stderr
    assert names_in(copy) == ["a.txt", "node_modules"]
    assert names_in(ran) == ["a.txt", "b.bin", "node_modules"]
    taken = soong_agent(home, ran, "sessions", "fork", "s1", "--into", str(copy))
    assert taken.returncode == 2
    assert "is not empty" in taken.stderr


@pytest.mark.sweep
@pytest.mark.parametrize("output", kept([">&-", "> /dev/full", "| true"], "> /dev/full"))
def test_a_fork_whose_id_cannot_be_written_says_it_on_standard_error(
    home: Home, ran: Path, output: str
) -> None:
    copy = ran.with_name(f"{ran.name}-copy")
    words = ["-m", "agent_core.cli"]  # a copy cannot be given a stream that is closed
    command = [sys.executable, *(words if output == ">&-" else warm.arguments(*words))]
    fork = f'{shlex.join(command)} sessions fork s1 --path "$1" --into "$2"'
    script = f"{fork} {output}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(  # noqa: S603 - our own command
        ["bash", "-c", script, "-", str(ran), str(copy)],  # noqa: S607
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=home.env(),
    )
    assert done.returncode == (1 if output == "> /dev/full" else 141), done.stderr
    (said,) = (line for line in done.stderr.splitlines() if "cannot be written (" in line)
    session_id, folder = said.split("): ")[1].split()
    assert folder == str(copy)
    undone = soong_agent(home, copy, "undo", session_id)
    assert undone.returncode == 0, undone.stderr


def test_without_a_session_there_is_nothing_to_undo(home: Home, project: Path) -> None:
    home.write_config('[model]\nprovider = "scripted"\nname = "m"\n')
    done = soong_agent(home, project, "undo")
    assert done.returncode == 1
    assert "has an answer yet" in done.stderr
    assert "--path" in done.stderr


@pytest.mark.long
def test_a_run_of_another_process_holds_undo_back_and_is_taken_back_once_killed(
    home: Home, ran: Path
) -> None:
    script = "echo two > a.txt; mkdir made; touch made/started; sleep 60"
    call = {"name": "code.run_command", "arguments": {"argv": ["sh", "-c", script]}}
    home.write("replies.json", json.dumps([{"type": "calls", "calls": [call]}, "done"]))
    arguments = ["run", "again", "--session-id", "s2", "--path", str(ran)]
    with subprocess.Popen(  # noqa: S603 - our own command
        [sys.executable, "-m", "agent_core.cli", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
        env=home.env(),
    ) as running:
        assert running.stdin is not None
        running.stdin.write("1\n")
        running.stdin.flush()
        while not (ran / "made" / "started").exists():
            assert running.poll() is None
            time.sleep(0.05)
        for session_id in ("s1", "s2"):
            refused = soong_agent(home, ran, "undo", session_id, "--force")
            assert refused.returncode == 1
            assert "is active in" in refused.stderr or "is running" in refused.stderr
        assert (ran / "a.txt").read_text() == "two\n"
        running.kill()
    for _ in range(2 if is_whole() else 1):
        undone = soong_agent(home, ran, "undo", "s2")
        assert undone.returncode == 0, undone.stderr
        assert names_in(ran) == ["a.txt", "b.bin"]
        assert (ran / "a.txt").read_text().startswith("one\n")
        redone = soong_agent(home, ran, "redo", "s2")
        assert redone.returncode == 0, redone.stderr
        assert names_in(ran) == ["a.txt", "b.bin", "made"]
        assert (ran / "a.txt").read_text() == "two\n"
    assert soong_agent(home, ran, "undo", "s2").returncode == 0
    assert soong_agent(home, ran, "undo", "s1").returncode == 0
    assert names_in(ran) == ["a.txt"]
    assert (ran / "a.txt").read_text() == "zero\n"
