"""Reading run folders back, also those of runs that hardly began."""

from pathlib import Path

import pytest

from kgent.errors import KgentError
from kgent.review.page import render_page
from kgent.review.report import read_report
from kgent_runs import a_context


def test_a_run_that_died_before_its_first_word_is_lost(tmp_path: Path) -> None:
    context = a_context(tmp_path)
    assert read_report(context.sandbox_root).outcome == "pending"
    context.records.close()
    report = read_report(context.sandbox_root)
    assert (report.outcome, report.state.run_id) == ("lost", "run_1")
    assert "lost" in render_page(report)


def test_a_run_without_a_state_is_known_by_its_first_event(tmp_path: Path) -> None:
    """The first release made run folders whose `run.json` was empty at first."""
    context = a_context(tmp_path)
    (context.sandbox_root / "run.json").write_bytes(b"")
    assert read_report(context.sandbox_root).state.run_id == "unknown"
    context.records.events.emit("run.created", "run", context.core_fields(), actor="runtime")
    assert read_report(context.sandbox_root).outcome == "pending"
    context.records.close()
    report = read_report(context.sandbox_root)
    assert (report.outcome, report.state.run_id) == ("lost", "run_1")


def test_a_damaged_state_is_said_to_be_damaged(tmp_path: Path) -> None:
    root = a_context(tmp_path).sandbox_root
    (root / "run.json").write_text("{", encoding="utf-8")
    with pytest.raises(KgentError, match=r"run\.json is damaged"):
        read_report(root)


def test_what_is_missing_is_told_and_the_rest_is_shown(tmp_path: Path) -> None:
    root = a_context(tmp_path).sandbox_root
    for name in ("prompt.md", "artifact-manifest.json", "logs/tools.jsonl"):
        (root / name).unlink()
    problems = read_report(root).problems
    assert {"prompt.md cannot be read", "artifact-manifest.json cannot be read"} <= set(problems)
    assert "tools.jsonl cannot be read" in problems
