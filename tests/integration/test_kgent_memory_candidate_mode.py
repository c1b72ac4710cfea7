"""What an agent wants remembered waits for people to decide, or goes to a store."""

import asyncio
from pathlib import Path

from agcore.memory import InMemoryStore
from kgent.engine.mock import MockAgentEngine
from kgent.runtime.runner import run
from kgent.runtime.state import RunStatus
from kgent_runs import a_run, calls, lines, profile, types

REMEMBERS = calls("write_memory", content="Reports are short.", scope="style", tags=["a"])


def test_a_candidate_is_a_line_of_the_archive(tmp_path: Path) -> None:
    result = a_run(tmp_path, REMEMBERS, "Noted.", memory={"write_mode": "candidate"})
    root = result.sandbox_root
    assert root is not None
    (candidate,) = lines(root / "archive" / "candidate-memory.jsonl")
    assert candidate["content"] == "Reports are short."
    assert candidate["run_id"] == result.run_id
    assert "memory.write.requested" in types(root)


def test_a_store_of_the_toolkit_remembers_between_runs(tmp_path: Path) -> None:
    path = profile(
        tmp_path, memory={"write_mode": "external", "provider": "sqlite:memory/notes.sqlite"}
    )
    first = run(path, "Write.", engine=MockAgentEngine([REMEMBERS]))
    assert first.status is RunStatus.completed
    second = run(path, "How long are reports?", engine=MockAgentEngine())
    assert second.sandbox_root is not None
    system = (second.sandbox_root / "effective-system-prompt.md").read_text()
    assert "- Reports are short." in system
    assert (tmp_path / "memory" / "notes.sqlite").exists()


def test_a_store_given_in_code_is_used(tmp_path: Path) -> None:
    store = InMemoryStore()
    path = profile(tmp_path, memory={"write_mode": "external"})
    run(path, "Write.", engine=MockAgentEngine([REMEMBERS]), memory=store)
    assert len(asyncio.run(store.list())) == 1
