"""Runs that end badly: the folder is complete all the same, and says what happened."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from kgent import RunOptions
from kgent.cli import main
from kgent.engine.mock import MockFailure, MockPause
from kgent.errors import ErrorInfo
from kgent.review.report import read_report
from kgent.runtime.cancellation import Cancellation
from kgent.runtime.runner import run
from kgent.runtime.state import RunStatus
from kgent_runs import a_run, calls, events, lines, profile, state, types

SOURCE = Path(__file__).parents[2] / "src"
OWED = {"required": ["deliverables/report.md"]}
COMPLETE = (
    "run.json", "config.yaml", "prompt.md", "effective-system-prompt.md", "sandbox-manifest.json",
    "artifact-manifest.json", "events.jsonl", "transcript.md", "workspace", "deliverables",
    "archive", "logs/tools.jsonl", "logs/errors.jsonl",
)  # fmt: skip


def assert_complete(root: Path | None) -> Path:
    assert root is not None
    assert [name for name in COMPLETE if not (root / name).exists()] == []
    return root


def test_a_failing_engine_is_in_events_errors_and_state(tmp_path: Path) -> None:
    result = a_run(
        tmp_path,
        calls("write_file", path="workspace/a", content="x"),
        MockFailure(fail="the model is gone", code="provider_error"),
        deliverables=OWED,
    )
    root = assert_complete(result.sandbox_root)
    assert result.status is RunStatus.failed
    assert {"error", "run.failed"} <= set(types(root))
    assert "run.completed" not in types(root)
    (error,) = lines(root / "logs" / "errors.jsonl")
    info = ErrorInfo.model_validate(error)
    assert (info.code, info.category, info.message) == (
        "provider_error",
        "engine",
        "the model is gone",
    )
    written = state(root)
    assert written["status"] == "failed"
    assert written["failure_reason"] == "provider_error: the model is gone"
    assert main(["verify", str(root)]) == 0


def test_time_that_is_up_leaves_an_incomplete_run(tmp_path: Path) -> None:
    result = a_run(tmp_path, MockPause(sleep=30), runtime={"timeout_seconds": 0.2})
    root = assert_complete(result.sandbox_root)
    assert result.status is RunStatus.incomplete
    assert state(root)["failure_reason"].startswith("timeout: the run took longer than 0.2 s")


def test_steps_that_are_used_up_leave_an_incomplete_run(tmp_path: Path) -> None:
    result = a_run(tmp_path, "a", "b", "c", runtime={"max_steps": 2})
    assert result.status is RunStatus.incomplete
    assert state(result.sandbox_root)["failure_reason"].startswith("max_turns: ")


def test_a_run_cancelled_before_it_began_is_incomplete(tmp_path: Path) -> None:
    stop = Cancellation()
    stop.cancel("not today")
    result = run(profile(tmp_path), "x", cancellation=stop)
    assert_complete(result.sandbox_root)
    assert (result.status, str(result.error)) == (
        RunStatus.incomplete,
        "cancelled: not today",
    )


def test_an_interrupt_in_an_engine_of_somebody_else_is_incomplete(tmp_path: Path) -> None:
    class Interrupted:
        def run(self, request: object) -> object:
            raise KeyboardInterrupt

    result = a_run(tmp_path, engine=Interrupted())  # pyright: ignore[reportArgumentType] - a fake
    assert_complete(result.sandbox_root)
    assert result.status is RunStatus.incomplete


def test_a_run_folder_that_vanishes_ends_in_an_error_and_no_exception(tmp_path: Path) -> None:
    import shutil  # noqa: PLC0415 - only here

    class Deletes:
        def run(self, request: object) -> object:
            shutil.rmtree(tmp_path / "run")
            raise RuntimeError("boom")

    result = a_run(tmp_path, engine=Deletes())  # pyright: ignore[reportArgumentType] - a fake
    assert result.status is RunStatus.failed
    assert result.error is not None


@pytest.fixture
def running(tmp_path: Path) -> Generator[subprocess.Popen[str]]:
    """A `kgent run` in a process of its own, which waits in the middle."""
    script = (
        '[{"tool": "write_file", "args": {"path": "workspace/a", "content": "x"}}, {"sleep": 60}]'
    )
    (tmp_path / "s.json").write_text(script, encoding="utf-8")
    path = profile(tmp_path, model={"path": "s.json"}, deliverables=OWED)
    process = subprocess.Popen(  # noqa: S603 - our own interpreter and program
        [sys.executable, "-m", "kgent", "run", "--config", str(path), "--prompt", "x",
         "--sandbox", str(tmp_path / "run")],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip
    log = tmp_path / "run" / "logs" / "tools.jsonl"
    deadline = time.monotonic() + 60
    while not (log.exists() and log.stat().st_size):
        assert time.monotonic() < deadline, "the run did not begin"
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.02)
    yield process
    process.kill()
    process.communicate()


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_leaves_an_incomplete_run(
    running: "subprocess.Popen[str]", tmp_path: Path, number: signal.Signals
) -> None:
    running.send_signal(number)
    out, _ = running.communicate(timeout=60)
    assert running.returncode == 3
    assert "status   incomplete" in out
    root = assert_complete(tmp_path / "run")
    assert state(root)["status"] == "incomplete"
    assert number.name in state(root)["failure_reason"]
    assert types(root)[-1] == "run.incomplete"
    assert main(["verify", str(root)]) == 0


def test_a_killed_run_is_readable_and_said_to_be_lost(
    running: "subprocess.Popen[str]", tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "run"
    assert read_report(root).outcome == "running"
    running.kill()
    running.wait()
    assert_complete(root)
    report = read_report(root)
    assert (report.outcome, report.is_lost) == ("lost", True)
    assert events(root)[-1]["type"] == "tool.completed"
    assert "run.started" in types(root)
    assert "## Prompt" in (root / "transcript.md").read_text()

    assert main(["show", str(root)]) == 0
    assert "the run was lost" in capsys.readouterr().out
    assert main(["verify", str(root)]) == 1
    page = tmp_path / "page.html"
    assert main(["show", str(root), "--html", str(page)]) == 0
    assert "the run was lost" in page.read_text()

    with (root / "events.jsonl").open("ab") as file:
        file.write(b'{"event_id": "torn')
    assert "1 damaged lines were passed over" in " ".join(read_report(root).problems)

    again = run(tmp_path / "kgent.yaml", "x", RunOptions(sandbox=root))
    assert again.is_blocked
