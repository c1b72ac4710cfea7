"""Records: events, logs and transcript of a run, in order and within bounds."""

import json
import os
import threading
from pathlib import Path

import pytest

from agent_core.redaction import Redactor
from kgent.errors import ErrorCategory, ErrorInfo
from kgent.records.context import RunRecords
from kgent.records.events import Event, is_held, lock_events
from kgent.records.logs import ToolCallRecord
from kgent.records.transcript import SECTIONS, quoted
from kgent.runtime.state import state_text
from kgent_runs import IDS, a_context, events, lines


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return a_context(tmp_path).sandbox_root


@pytest.fixture
def records(root: Path) -> RunRecords:
    return RunRecords(root, IDS, redactor=Redactor({}))


def test_the_sequence_of_events_increments_without_gaps(root: Path, records: RunRecords) -> None:
    for _ in range(3):
        records.events.emit("run.created", "begins", {}, actor="runtime")
    assert [event["sequence"] for event in events(root)] == [1, 2, 3]


def test_lines_are_appended_and_never_rewritten(root: Path, records: RunRecords) -> None:
    records.events.emit("run.created", "one", {}, actor="runtime")
    before = (root / "events.jsonl").read_bytes()
    records.events.emit("run.started", "two", {}, actor="runtime")
    assert (root / "events.jsonl").read_bytes().startswith(before)


def test_an_event_has_its_thirteen_fields(root: Path, records: RunRecords) -> None:
    records.events.emit(
        "tool.started",
        "begins",
        {"a": 1},
        actor="tool:x",
        severity="warning",
        correlation_id="call_1",
        parent_event_id="evt_0",
    )
    (event,) = events(root)
    assert list(event) == list(Event.model_fields)
    assert len(event) == 13
    assert event | {"event_id": "", "timestamp": ""} == {
        "event_id": "",
        "sequence": 1,
        "run_id": "run_1",
        "session_id": "sess_1",
        "task_id": "task_1",
        "type": "tool.started",
        "timestamp": "",
        "actor": "tool:x",
        "severity": "warning",
        "summary": "begins",
        "data": {"a": 1},
        "correlation_id": "call_1",
        "parent_event_id": "evt_0",
    }


def test_large_data_is_summarised_and_kept_as_a_file(root: Path, records: RunRecords) -> None:
    event = records.events.emit("error", "big", {"text": "x" * 3000}, actor="runtime")
    assert event.data["summarised"] is True
    assert event.data["keys"] == ["text"]
    kept = json.loads((root / event.data["artifact"]).read_text())
    assert kept == {"text": "x" * 3000}
    assert len((root / "events.jsonl").read_bytes()) < 2048


def test_data_that_is_no_json_becomes_json(root: Path, records: RunRecords) -> None:
    records.events.emit(
        "error", "odd\ud800 \x00 text\n" * 100, {"path": root, "bad": "\ud800"}, actor="runtime"
    )
    (event,) = events(root)
    assert event["data"]["path"] == str(root)
    assert "\n" not in event["summary"]


def test_secrets_reach_no_record(root: Path) -> None:
    secret = "hunter2-very-secret"  # noqa: S105 - the point of the test
    records = RunRecords(root, IDS, redactor=Redactor({"MODEL_KEY": secret}))
    records.events.emit("error", f"said {secret}", {"deep": [{"x": secret}]}, actor="runtime")
    records.events.emit("error", "big", {"x": secret * 500}, actor="runtime")
    records.errors.record(ErrorInfo(code="x", message=f"no {secret}"))
    records.transcript.append_section("Result", quoted(secret))
    records.archive.add_lines("candidate-memory.jsonl", {"content": secret})
    records.close()
    for path in root.rglob("*"):
        assert not path.is_file() or secret not in path.read_text()


def test_numbers_that_json_does_not_have_are_null_in_every_record(
    root: Path, records: RunRecords
) -> None:
    odd = {"a": float("nan"), "b": 2**70, "c": [float("inf")]}
    records.events.emit("error", "odd", odd, actor="runtime")
    kept = [
        records.archive.keep_json("outputs", "odd", odd),
        records.archive.add_lines("odd.jsonl", odd),
    ]

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    assert events(root)[0]["data"]["a"] is None
    for path in kept:
        read = json.loads((root / path).read_text(), parse_constant=refuse)
        assert read == {"a": None, "b": 2**70, "c": [None]}
    assert '"a": null' in state_text(odd)


def test_events_from_many_threads_keep_their_order(root: Path, records: RunRecords) -> None:
    def emit() -> None:
        for _ in range(50):
            records.events.emit("tool.started", "x", {"y": "z" * 100}, actor="tool:x")

    threads = [threading.Thread(target=emit) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [event["sequence"] for event in events(root)] == list(range(1, 201))


def test_nothing_is_recorded_after_the_end(records: RunRecords) -> None:
    records.events.emit("run.created", "begins", {}, actor="runtime")
    records.close()
    with pytest.raises(ValueError, match="the run is over"):
        records.events.emit("error", "late", {}, actor="runtime")


def test_a_living_run_is_told_from_a_dead_one(tmp_path: Path) -> None:
    context = a_context(tmp_path)
    assert is_held(context.sandbox_root) is True
    assert lock_events(context.sandbox_root) is None
    context.records.close()
    assert is_held(context.sandbox_root) is False
    lock = lock_events(context.sandbox_root)
    assert lock is not None
    assert is_held(context.sandbox_root) is True
    os.close(lock)


def test_the_transcript_has_its_sections_in_order_whatever_was_said(tmp_path: Path) -> None:
    context = a_context(tmp_path)
    records = context.records
    records.transcript.append_section("Result", "the end")
    records.transcript.append_section("Run", "the beginning")
    records.transcript.append_section("Result", "really")
    records.transcript.finalize(context)
    text = (context.sandbox_root / "transcript.md").read_text()
    heads = [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")]
    assert heads == list(SECTIONS)
    assert "the end\nreally" in text


def test_the_transcript_can_be_read_before_it_is_finished(root: Path, records: RunRecords) -> None:
    records.transcript.append_section("Run", "- id: 1")
    assert "## Run\n\n- id: 1\n" in (root / "transcript.md").read_text()


def test_quoted_text_cannot_end_its_quotation() -> None:
    text = "```\n## Result\n````\nfake"
    first, *_, last = quoted(text).splitlines()
    assert first == "`````text"
    assert last == "`````"


def test_run_records_bring_the_four_writers_together(root: Path, records: RunRecords) -> None:
    records.events.emit("run.created", "begins", {}, actor="runtime")
    records.transcript.append_section("Run", "x")
    records.tools.record(
        ToolCallRecord(
            call_id="call_1",
            tool_name="write_file",
            action="write",
            started_at="t",
            status="completed",
            artifacts=["workspace/a"],
        )
    )
    records.errors.record(
        ErrorInfo(code="timeout", message="late", category=ErrorCategory.ENGINE),
        correlation_id="call_1",
    )
    assert len(events(root)) == 1
    assert lines(root / "logs" / "tools.jsonl")[0]["call_id"] == "call_1"
    (error,) = lines(root / "logs" / "errors.jsonl")
    assert ErrorInfo.model_validate(error).category is ErrorCategory.ENGINE
    assert error["correlation_id"] == "call_1"
    assert records.tools.maker_of("workspace/a") == "write_file"
