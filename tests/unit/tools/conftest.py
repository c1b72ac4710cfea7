"""What the tests of tools share: a project, and a context that remembers what it was given."""

from pathlib import Path

import pytest

from agent_core.tools import ToolContext
from agent_core.types import RunIdentity
from tool_facts import Kept


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
def context(project: Path, kept: Kept) -> ToolContext:
    return ToolContext(
        run=RunIdentity(session_id="sess_1", agent_id="agent_1", run_id="run_1"),
        tool_call_id="call_1",
        project_dir=project,
        progress=kept.lines.append,
        artifact=kept,
        is_cancelled=_never,
    )


def _never() -> bool:
    return False
