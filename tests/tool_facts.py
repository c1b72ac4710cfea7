"""Calling tools as a run would, and looking at what their context was given."""

import asyncio
import os
from pathlib import Path
from typing import Any

from agent_core.config.models import DEFAULT_SENSITIVE_PATHS
from agent_core.disk.unfinished import UnfinishedWrites
from agent_core.tools import Action, ToolAnswer, Toolbox, ToolContext
from agent_core.tools.code import code_tools
from agent_core.tools.workspace import PathPolicy, ProgramPlaces, Workspace
from agent_core.types import ArtifactSource, RunIdentity, ToolCall


class Kept:
    """Artifacts and progress lines, kept in memory."""

    def __init__(self) -> None:
        self.artifacts: dict[str, bytes] = {}
        self.lines: list[str] = []

    async def __call__(
        self,
        data: ArtifactSource,
        *,
        filename: str,
        kind: str = "tool_output",
        mime_type: str | None = None,
        summary: str | None = None,
    ) -> str:
        if isinstance(data, bytes):
            content = data
        else:
            assert not isinstance(data, Path)
            data.seek(0)
            content = await asyncio.to_thread(data.read)
        artifact_id = f"art_{len(self.artifacts)}"
        self.artifacts[artifact_id] = content
        return artifact_id


class Code:
    """The code tools of a workspace."""

    def __init__(self, workspace: Workspace, context: ToolContext) -> None:
        self.workspace = workspace
        self.context = context
        self.box = Toolbox(code_tools(workspace))

    async def prepare(self, name: str, **arguments: object) -> Action:
        """Look at a call without doing it."""
        call = ToolCall(tool_call_id="call_1", name=f"code.{name}", arguments=arguments)
        tool, parsed = self.box.resolve(call)
        return await tool.prepare(parsed, self.context)

    async def __call__(self, name: str, **arguments: object) -> dict[str, Any]:
        """Do a call that somebody has agreed to."""
        answer = await (await self.prepare(name, **arguments)).run()
        answer = answer.answer if isinstance(answer, ToolAnswer) else answer
        assert isinstance(answer, dict)
        return answer


def a_project(folder: Path) -> Path:
    """Make an empty project."""
    project = folder / "project"
    project.mkdir()
    return project


def a_home(folder: Path) -> Path:
    """Make a home of the program, with a configuration that nobody may read."""
    home = folder / "home"
    home.mkdir()
    (home / "config.toml").write_text("secret", encoding="utf-8")
    return home


def a_boundary(project: Path, home: Path) -> PathPolicy:
    """Return the rules about the paths of a project."""
    return PathPolicy(
        project,
        program=ProgramPlaces(protected=(home, project / ".soong-agent" / "tasks")),
        sensitive=DEFAULT_SENSITIVE_PATHS,
    )


def a_workspace(boundaries: PathPolicy, home: Path) -> Workspace:
    """Return what the code tools of a project work with."""
    return Workspace(
        boundaries=boundaries,
        env={"PATH": os.environ["PATH"]},
        unfinished=UnfinishedWrites.at(home),
    )


def a_context(project: Path, kept: Kept) -> ToolContext:
    """Return what a call is given, which remembers what it is told."""
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
