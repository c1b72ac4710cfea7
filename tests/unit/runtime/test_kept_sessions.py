"""What a process keeps of sessions between their runs."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent_core.runtime import session_prompts, table
from agent_core.runtime.session_prompts import SessionPrompts
from agent_core.runtime.table import RunTable
from agent_core.types import ClaimedRun, RunStatus, SessionRecord, utc_now


def a_session(session_id: str, words: str = "") -> SessionRecord:
    now = utc_now()
    return SessionRecord(
        session_id=session_id,
        cwd="/project",
        metadata={"prompt": {"repository": words}},
        created_at=now,
        updated_at=now,
    )


async def test_the_facts_of_a_session_in_use_are_kept_longest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_prompts, "_KNOWN_SESSIONS", 2)
    unused: Any = None
    prompts = SessionPrompts(unused, tmp_path)
    for session_id in ("s1", "s2", "s1", "s3"):
        prompts.load(a_session(session_id, "first"))
    for session_id, words in (("s1", "first"), ("s3", "first"), ("s2", "second")):
        prompts.load(a_session(session_id, "second"))
        known = prompts._known[session_id]
        assert known.repository == words


def test_the_paths_of_few_nodes_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "_MOST_LEFT_NODES", 10)
    unused: Any = None
    runs = RunTable(unused, unused, unused, unused, unused)

    def end(session_id: str, nodes: int) -> None:
        journal = SimpleNamespace(
            has_end=True,
            is_stored=True,
            path=[SimpleNamespace(node_id="n1")] * nodes,
            active_node_id="n1",
            call_ids=set[str],
        )
        claimed = ClaimedRun(session=a_session(session_id), agent=unused, run=unused, resumed=True)
        run: Any = SimpleNamespace(
            identity=SimpleNamespace(session_id=session_id),
            status=RunStatus.COMPLETED,
            journal=journal,
            claimed=claimed,
        )
        runs.run_ended(run)

    def kept() -> list[str]:
        return [each for each in ("s1", "s2", "s3") if runs.last_claim(each) is not None]

    end("s1", 4)
    end("s2", 4)
    assert kept() == ["s1", "s2"]
    end("s1", 6)
    assert kept() == ["s1", "s2"]
    end("s3", 2)
    assert kept() == ["s1", "s3"]
    end("s1", 11)
    assert kept() == ["s3"]
