"""Listening to a run, and stopping it."""

import asyncio
import threading
import time
from pathlib import Path

import pytest

from agent_core.redaction import Redactor
from kgent.engine.base import EngineEvent, EngineEventKind, RedactingCallback
from kgent.engine.mock import MockAgentEngine, MockPause
from kgent.review.verification import verify
from kgent.runtime.cancellation import Cancellation
from kgent.runtime.options import RunOptions
from kgent.runtime.runner import run, run_async
from kgent.runtime.state import RunStatus
from kgent_runs import profile, state
from tables import together

SECRET = "value-of-the-key"  # noqa: S105 - the point of the test


@together("size", [1, 3, 7, 100])
def test_a_secret_is_not_heard_however_it_is_cut(size: int) -> None:
    heard: list[str] = []
    listener = RedactingCallback(lambda event: heard.append(event.text), Redactor({"KEY": SECRET}))
    text = f"It is {SECRET}, really."
    for start in range(0, len(text), size):
        piece = text[start : start + size]
        listener(EngineEvent(kind=EngineEventKind.TEXT, text=piece))
    listener.finish()
    assert "".join(heard) == "It is [redacted:KEY], really."


def test_a_listener_that_breaks_does_not_end_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def breaks(event: EngineEvent) -> None:
        raise BrokenPipeError

    result = run(profile(tmp_path), "x", engine=MockAgentEngine(["a", "b"]), event_callback=breaks)
    assert result.status is RunStatus.completed
    assert caplog.text.count("is not called again") == 1


def test_the_first_reason_to_stop_counts() -> None:
    stop = Cancellation()
    called: list[int] = []
    with stop.calling(lambda: called.append(1)):
        stop.cancel("first")
        stop.cancel("second")
    with stop.calling(lambda: called.append(2)):
        pass
    assert stop.reason is not None
    assert (stop.reason.message, called) == ("first", [1, 2])


def test_a_cancelled_run_ends_soon_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text('[{"sleep": 60}]', encoding="utf-8")
    stop = Cancellation()
    threading.Timer(0.2, stop.cancel, ["enough"]).start()
    began = time.monotonic()
    result = run(profile(tmp_path, model={"path": "s.json"}), "x", cancellation=stop)
    assert time.monotonic() - began < 30
    assert result.status is RunStatus.incomplete
    assert state(result.sandbox_root)["failure_reason"] == "cancelled: enough"


async def test_a_run_can_block_where_an_event_loop_runs(tmp_path: Path) -> None:
    assert run(profile(tmp_path), "x").status is RunStatus.completed


async def test_a_run_in_the_loop_of_its_caller_ends_with_a_folder_when_it_is_cancelled(
    tmp_path: Path,
) -> None:
    began = asyncio.Event()
    engine = MockAgentEngine(["so far", MockPause(sleep=60)])
    options = RunOptions(sandbox=tmp_path / "run")
    work = run_async(
        profile(tmp_path), "x", options, engine=engine, event_callback=lambda _: began.set()
    )
    running = asyncio.create_task(work)
    await began.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert state(tmp_path / "run")["status"] == "incomplete"
    assert verify(tmp_path / "run").problems == []
