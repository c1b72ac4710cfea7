"""Listening to a run, and stopping it."""

import threading
import time
from pathlib import Path

import pytest

from agent_core.redaction import Redactor
from kgent.engine.base import EngineEvent, EngineEventKind
from kgent.engine.mock import MockAgentEngine
from kgent.runtime.cancellation import Cancellation, run_in_loop
from kgent.runtime.executor import RedactingCallback
from kgent.runtime.runner import run
from kgent.runtime.state import RunStatus
from kgent_runs import profile, state

SECRET = "value-of-the-key"  # noqa: S105 - the point of the test


@pytest.mark.parametrize("size", [1, 3, 7, 100])
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
    assert result.status is RunStatus.COMPLETED
    assert caplog.text.count("hears no more") == 1


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
    assert time.monotonic() - began < 5
    assert result.status is RunStatus.INCOMPLETE
    assert state(result.sandbox_root)["failure_reason"] == "cancelled: enough"


async def test_a_loop_of_its_own_can_be_had_inside_another() -> None:
    async def work() -> int:
        return 42

    assert run_in_loop(work, cancellation=Cancellation()) == 42
