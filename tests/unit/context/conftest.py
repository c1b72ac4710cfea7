"""A home, a project, and the facts a tool call comes with."""

from pathlib import Path

import pytest

from agent_core.tools import ToolContext
from agent_core.types import RunIdentity
from tool_facts import Kept


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


@pytest.fixture
def facts(project: Path) -> ToolContext:
    kept = Kept()

    def never() -> bool:
        return False

    return ToolContext(
        run=RunIdentity(session_id="sess_1", agent_id="agent_1", run_id="run_1"),
        tool_call_id="call_1",
        project_dir=project,
        progress=kept.lines.append,
        artifact=kept,
        is_cancelled=never,
    )
