"""What the tests of tools share: a project, and a context that remembers what it was given."""

import os
from pathlib import Path

import pytest

from agent_core.config.models import DEFAULT_SENSITIVE_PATHS
from agent_core.disk.unfinished import UnfinishedWrites
from agent_core.tools import ToolContext
from agent_core.tools.workspace import PathPolicy, Workspace
from agent_core.types import RunIdentity
from tool_facts import Code, Kept


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


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "config.toml").write_text("secret", encoding="utf-8")
    return folder


@pytest.fixture
def boundaries(project: Path, home: Path) -> PathPolicy:
    return PathPolicy(
        project,
        protected=[home, project / ".soong-agent" / "tasks"],
        sensitive=DEFAULT_SENSITIVE_PATHS,
    )


@pytest.fixture
def workspace(boundaries: PathPolicy, home: Path) -> Workspace:
    return Workspace(
        boundaries=boundaries,
        env={"PATH": os.environ["PATH"]},
        unfinished=UnfinishedWrites.at(home),
    )


@pytest.fixture
def code(workspace: Workspace, context: ToolContext) -> Code:
    return Code(workspace, context)
