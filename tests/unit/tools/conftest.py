"""What the tests of tools share: a project, and a context that remembers what it was given."""

from pathlib import Path

import pytest

from agent_core.tools import ToolContext
from agent_core.tools.workspace import PathPolicy, Workspace
from tool_facts import Code, Kept, a_boundary, a_context, a_home, a_project, a_workspace


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return a_project(tmp_path)


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
def context(project: Path, kept: Kept) -> ToolContext:
    return a_context(project, kept)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return a_home(tmp_path)


@pytest.fixture
def boundaries(project: Path, home: Path) -> PathPolicy:
    return a_boundary(project, home)


@pytest.fixture
def workspace(boundaries: PathPolicy, home: Path) -> Workspace:
    return a_workspace(boundaries, home)


@pytest.fixture
def code(workspace: Workspace, context: ToolContext) -> Code:
    return Code(workspace, context)
