"""A whole run without a real model: everything is written, and the status follows."""

from pathlib import Path

import yaml

from kgent import RunOptions
from kgent.config.loader import fingerprint_config, load_config
from kgent.errors import ErrorCategory
from kgent.memory.contract import MemoryItem, MemoryWriteResult
from kgent.runtime.runner import run
from kgent.runtime.state import RunStatus
from kgent_runs import a_run, calls, events, lines, profile, skill, state, types

OWED = {"required": ["deliverables/report.md"]}
WRITES = calls("write_file", path="deliverables/report.md", content="# Report\n")


def test_a_minimal_run_leaves_a_complete_folder(tmp_path: Path) -> None:
    skill(tmp_path / "skills")
    result = a_run(
        tmp_path,
        calls("load_skill", skill_id="reporting"),
        WRITES,
        "Done.",
        skills={"paths": ["skills"]},
        deliverables=OWED,
    )
    root = result.sandbox_root
    assert root is not None
    assert (result.status, result.final_text) == (RunStatus.completed, "Done.")
    assert result.found == ["deliverables/report.md"]

    config = load_config(root / "config.yaml")
    assert yaml.safe_load((root / "config.yaml").read_text())["profile"]["id"] == "writer"
    assert fingerprint_config(config) == state(root)["config_fingerprint"]
    assert (root / "prompt.md").read_text() == "Write the report."
    system = (root / "effective-system-prompt.md").read_text()
    assert "reporting: How to do reporting." in system
    assert "deliverables/report.md" in system

    assert types(root) == [
        "run.created",
        "config.loaded",
        "skill.indexed",
        "prompt.rendered",
        "run.started",
        "tool.started",
        "skill.loaded",
        "tool.completed",
        "tool.started",
        "file.written",
        "tool.completed",
        "deliverable.check.started",
        "deliverable.check.completed",
        "run.completed",
    ]
    transcript = (root / "transcript.md").read_text()
    assert "- loaded `reporting`" in transcript
    assert "`write_file` completed" in transcript
    assert "deliverables/report.md: present" in transcript
    assert "Status: completed" in transcript

    written = state(root)
    assert written["status"] == "completed"
    assert written["failure_reason"] is None
    assert written["run_id"] == result.run_id
    assert written["usage"] == {"model_calls": 3}
    assert written["started_at"] < written["ended_at"]


def test_a_run_that_owes_something_is_incomplete(tmp_path: Path) -> None:
    result = a_run(tmp_path, "I forgot.", deliverables=OWED)
    assert (result.status, result.missing) == (
        RunStatus.incomplete,
        ["deliverables/report.md"],
    )
    assert types(result.sandbox_root)[-3:] == [
        "deliverable.missing",
        "deliverable.check.completed",
        "run.incomplete",
    ]
    written = state(result.sandbox_root)
    assert written["status"] == "incomplete"
    assert written["failure_reason"].startswith("deliverable_missing: ")


def test_given_ids_join_an_earlier_session_and_task(tmp_path: Path) -> None:
    path = profile(tmp_path)
    first = run(path, "one")
    second = run(
        path, "two", RunOptions(session_id=first.session_id, task_id=first.task_id, run_id="mine")
    )
    assert (second.session_id, second.task_id) == (first.session_id, first.task_id)
    assert second.sandbox_root == tmp_path.resolve() / "runs" / "mine"
    assert events(second.sandbox_root)[0]["session_id"] == first.session_id
    again = run(path, "three", RunOptions(run_id="mine"))
    assert again.is_blocked
    assert again.sandbox_root is None
    assert state(second.sandbox_root)["run_id"] == "mine"


def test_an_unsafe_id_is_blocked_before_anything_is_made(tmp_path: Path) -> None:
    for bad in ("../x", "", ".hidden", "a/b", "x" * 200):
        result = run(profile(tmp_path), "x", RunOptions(run_id=bad))
        assert result.is_blocked
        assert result.error is not None
        assert result.error.category is ErrorCategory.CONFIG
    assert not (tmp_path / "runs").exists()


def test_a_malformed_skill_blocks_a_run_whose_folder_is_complete(tmp_path: Path) -> None:
    skill(tmp_path / "skills", "bad", "no head")
    result = a_run(tmp_path, WRITES, skills={"paths": ["skills"]}, deliverables=OWED)
    assert result.is_blocked
    root = result.sandbox_root
    assert root is not None
    assert "run.started" not in types(root)
    assert types(root)[-1] == "run.failed"
    assert events(root)[-1]["data"]["governance"] == "blocked"
    assert state(root)["error"]["category"] == "skill"
    assert "## Result" in (root / "transcript.md").read_text()
    assert not (root / "deliverables" / "report.md").exists()


class Notebook:
    """A memory with one thing in it."""

    def __init__(self, *, breaks: bool = False) -> None:
        self._breaks = breaks

    def recall_memory(self, query: str, scope: str, limit: int) -> list[MemoryItem]:
        if self._breaks:
            raise ConnectionError("nobody answers")
        return [MemoryItem(content="Reports are short.")]

    def write_memory(self, content: str, scope: str, tags: list[str]) -> MemoryWriteResult:
        return MemoryWriteResult(accepted=True)


def test_what_is_remembered_stands_in_the_system_prompt(tmp_path: Path) -> None:
    result = run(profile(tmp_path), "x", memory=Notebook())
    assert result.sandbox_root is not None
    system = (result.sandbox_root / "effective-system-prompt.md").read_text()
    assert system.endswith("# Memory\n\n- Reports are short.\n")
    assert {"memory.recall.started", "memory.recall.completed"} <= set(types(result.sandbox_root))


def test_a_memory_that_fails_costs_the_run_nothing_else(tmp_path: Path) -> None:
    result = run(profile(tmp_path), "x", memory=Notebook(breaks=True))
    assert result.status is RunStatus.completed
    assert result.sandbox_root is not None
    (error,) = lines(result.sandbox_root / "logs" / "errors.jsonl")
    assert error["category"] == "memory"


def test_external_memory_without_one_is_a_fault_of_the_profile(tmp_path: Path) -> None:
    path = profile(tmp_path, memory={"write_mode": "external"})
    assert run(path, "x").is_blocked
    assert run(path, "x", memory=Notebook()).status is RunStatus.completed
    named = {"provider": "somebody's"}
    assert run(profile(tmp_path, memory={**named, "write_mode": "external"}), "x").is_blocked
    assert run(profile(tmp_path, memory=named), "x").status is RunStatus.completed
