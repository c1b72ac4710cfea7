"""`attach` and `cancel`: one process carries a run out, and others watch it and end it."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent_core.providers.scripted import Calls, Hangs, ScriptedCall, calls
from captures import Key, record
from isolation import Home
from model_server import ModelServer
from sweeps import sampled

pytestmark = pytest.mark.timeout(300)


def configured(home: Home, server: ModelServer, unattended: str = "deny") -> None:
    home.write_config(
        f'[model]\nprovider = "openai"\nname = "m"\nbase_url = "{server.base_url("openai")}"\n'
        f'[permissions]\nunattended = "{unattended}"\n[memory]\nenabled = false\n'
    )


def soong_agent(home: Home, *arguments: str) -> subprocess.CompletedProcess[str]:
    with started(home, *arguments) as process:
        out, error = process.communicate(timeout=100)
    return subprocess.CompletedProcess(arguments, process.returncode, out, error)


@contextmanager
def started(
    home: Home, *arguments: str, stdin: int = subprocess.DEVNULL
) -> Generator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "agent_core.cli", *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(  # noqa: S603 - our own command
        command, stdin=stdin, stdout=pipe, stderr=pipe, text=True, env=home.env()
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The lines that are whole by now."""
    text = path.read_text("utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def until(condition: Callable[[], object]) -> None:
    while not condition():
        time.sleep(0.05)


def has(file: Path, event_type: str) -> bool:
    return any(each.get("event_type") == event_type for each in lines_of(file))


@contextmanager
def under_way(
    home: Home, project: Path, file: Path
) -> Generator[tuple[subprocess.Popen[str], str]]:
    """A run of another process, whose model has begun to answer, and its id."""
    place = ("--path", str(project), "--events", str(file))
    with started(home, "run", *place, "--session-id", "s1", "go") as run:
        until(lambda: has(file, "model_started"))
        yield run, str(lines_of(file)[0]["run_id"])


def numbers(file: Path) -> list[int]:
    return [each["run_seq"] for each in lines_of(file) if each.get("run_seq")]


def test_a_run_of_another_process_is_watched_left_watched_again_and_cancelled(
    home: Home, project: Path, tmp_path: Path
) -> None:
    with ModelServer.in_thread([calls("code.list_dir", path="."), Hangs(text="so")]) as server:
        configured(home, server)
        file, left, again = (tmp_path / name for name in ("run", "left", "again"))
        with under_way(home, project, file) as (run, run_id):
            until(lambda: len(server.requests) == 2)
            place = ("--path", str(tmp_path))
            with started(home, "attach", run_id, "--events", str(left), *place) as first:
                until(lambda: len(numbers(left)) >= len(numbers(file)))
                first.send_signal(signal.SIGINT)
                out, error = first.communicate(timeout=60)
            seen = numbers(left)
            assert (first.returncode, out) == (130, "")
            how = (
                f"soong-agent attach {run_id} --after {seen[-1]}; to cancel it: soong-agent cancel"
            )
            assert how in error
            assert run.poll() is None
            more = ("--after", str(seen[-2]), "--events", str(again))
            with started(home, "attach", run_id[:24], *more, *place) as second:
                until(lambda: numbers(again))
                done = soong_agent(home, "cancel", run_id.removeprefix("run_")[:20], *place)
                assert (done.returncode, done.stdout) == (0, ""), done.stderr
                assert f"{run_id} is cancelled" in done.stderr
                assert second.wait(60) == 130
            assert run.wait(60) == 130
        assert seen[:-1] + numbers(again) == numbers(file)
        result = lines_of(again)[-1]
        assert (result["type"], result["status"], result["run_id"]) == (
            "result",
            "cancelled",
            run_id,
        )
        late = soong_agent(home, "cancel", run_id, *place)
        assert (late.returncode, "has already ended: it is cancelled" in late.stderr) == (0, True)


@pytest.mark.sweep
def test_a_run_that_has_ended_is_shown_as_run_shows_it(home: Home, project: Path) -> None:
    with ModelServer.in_thread([calls("code.list_dir", path="."), "all done"]) as server:
        configured(home, server)
        place = ("--path", str(project))
        run = soong_agent(home, "run", *place, "--session-id", "s1", "go")
        ids = soong_agent(home, "sessions", "export", "s1", "--jsonl", *place).stdout
        run_id = re.findall(r'"run_id": ?"(run_\w+)"', ids)[0]
        shown = soong_agent(home, "attach", run_id, *place)
        assert (shown.returncode, shown.stdout) == (0, run.stdout) == (0, "all done\n")
        took = re.compile(r"\d+ ms|[\d.]+ s")
        assert took.sub("", shown.stderr) == took.sub("", run.stderr)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    sampled(
        [
            pytest.param(["attach", "run_nothere"], 1, "there is no run", id="unknown"),
            pytest.param(["cancel", "nothere"], 1, "there is no run", id="unknown to cancel"),
            pytest.param(["attach", "run_"], 2, "is not one", id="too short"),
            pytest.param(["cancel", ""], 2, "the value is empty", id="empty"),
            pytest.param(["attach", "x", "--after", "-1"], 2, "whole number from 0", id="negative"),
            pytest.param(["attach", "x", "--after", "ten"], 2, "whole number from 0", id="a word"),
            pytest.param(["attach"], 2, "required: run", id="none"),
            pytest.param(["cancel", "a", "b"], 2, "unrecognized arguments: b", id="two"),
        ],
        keep=3,
    ),
)
def test_wrong_ids_and_numbers_say_what_is_needed(
    home: Home, project: Path, arguments: list[str], code: int, said: str
) -> None:
    done = soong_agent(home, *arguments, "--path", str(project))
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr


@pytest.mark.sweep
def test_one_answer_at_an_attached_terminal_settles_what_it_covers(
    home: Home, project: Path, tmp_path: Path
) -> None:
    (project / "a.txt").write_text("one\n", encoding="utf-8")
    read = ScriptedCall(name="code.read_file", arguments={"path": "a.txt"})
    with ModelServer.in_thread([Calls(calls=[read, read, read]), "all done"]) as server:
        configured(home, server, 'wait"\nreadonly_default = "ask')
        file = tmp_path / "run"
        with under_way(home, project, file) as (run, run_id):
            until(lambda: file.read_text("utf-8").count('"permission_requested"') == 3)
            command = [sys.executable, "-m", "agent_core.cli", "attach", run_id]
            scene = record(
                [*command, "--path", str(project)],
                env=home.env(),
                cwd=project,
                keys=[Key("y once", "a")],
                seconds=60,
            )
            assert run.wait(60) == 0
    assert scene.code == 0, scene.text
    assert "all done" in scene.text
    assert scene.text.count("allowed for the session") == 1
    assert "already answered" not in scene.text


def test_whoever_is_at_a_terminal_is_asked(home: Home, project: Path, tmp_path: Path) -> None:
    script = [calls("code.write_file", path="a.txt", content="new\n"), "all done"]
    with ModelServer.in_thread(script) as server:
        configured(home, server, "wait")
        file = tmp_path / "run"
        with under_way(home, project, file) as (run, run_id):
            until(lambda: has(file, "permission_requested"))
            command = [sys.executable, "-m", "agent_core.cli", "attach", run_id]
            scene = record(
                [*command, "--path", str(project)],
                env=home.env(),
                cwd=project,
                keys=[Key("y once", "y")],
                seconds=60,
            )
            assert "Write: a.txt" in scene.text
            assert "all done" in scene.text
            assert run.wait(60) == 0
    assert (project / "a.txt").read_text() == "new\n"
    (decided,) = (e for e in lines_of(file) if e.get("event_type") == "permission_decided")
    assert decided["payload"]["decided_by"] == "terminal"
