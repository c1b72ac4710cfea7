"""A run in which the agent tries to leave its folder."""

from pathlib import Path

import pytest

from kgent.runtime.state import RunStatus
from kgent_runs import a_run, calls, events, lines


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    target = tmp_path / "outside.txt"
    target.write_text("secret outside", encoding="utf-8")
    return target


def test_paths_outside_the_folder_can_be_neither_read_nor_written(
    tmp_path: Path, outside: Path
) -> None:
    result = a_run(
        tmp_path,
        calls("read_file", path=str(outside)),
        calls("read_file", path="../outside.txt"),
        calls("write_file", path=str(outside), content="mine"),
        calls("write_file", path="workspace/../../outside.txt", content="mine"),
        calls("write_file", path="events.jsonl", content=""),
        calls("grep_files", pattern="secret", path=str(tmp_path)),
        "I could not.",
    )
    root = result.sandbox_root
    assert root is not None
    assert result.status is RunStatus.completed
    assert outside.read_text(encoding="utf-8") == "secret outside"
    for path in root.rglob("*"):
        assert not path.is_file() or "secret outside" not in path.read_text()

    rejected = [event for event in events(root) if event["type"] == "file.rejected"]
    blocked = [event for event in events(root) if event["type"] == "tool.blocked"]
    errors = lines(root / "logs" / "errors.jsonl")
    assert (len(rejected), len(blocked), len(errors)) == (6, 6, 6)
    assert all(event["correlation_id"] for event in rejected)
    assert {error["category"] for error in errors} == {"sandbox"}
    assert {call["status"] for call in lines(root / "logs" / "tools.jsonl")} == {"blocked"}


def test_a_link_made_by_a_command_leads_nowhere(tmp_path: Path, outside: Path) -> None:
    result = a_run(
        tmp_path,
        calls("run_command", argv=["ln", "-s", str(outside), "link"]),
        calls("run_command", argv=["ln", "-s", "../run.json", "../deliverables/r"]),
        calls("read_file", path="workspace/link"),
        calls("write_file", path="workspace/link", content="mine"),
        calls("write_file", path="deliverables/r", content="{}"),
        tools={"shell": {"enabled": True, "allowed_commands": ["ln"]}},
        deliverables={"required": ["deliverables/r"]},
    )
    assert result.sandbox_root is not None
    assert result.missing == ["deliverables/r"]
    assert outside.read_text(encoding="utf-8") == "secret outside"
    statuses = [call["status"] for call in lines(result.sandbox_root / "logs" / "tools.jsonl")]
    assert statuses == ["completed", "completed", "blocked", "blocked", "blocked"]
