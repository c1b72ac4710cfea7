"""The context of a tool that a test calls without a run."""

from collections.abc import Generator
from pathlib import Path
from typing import Generic

from agent_core.tools.base import Deps, ToolContext
from agent_core.types import ArtifactSource, RunIdentity, new_id


class _ArtifactId(str):
    """An id that a coroutine may await, and a plain function may use directly."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, str]:
        yield from ()
        return str(self)


class FakeToolContext(ToolContext[Deps], Generic[Deps]):
    """A `ToolContext` for a tool that a test calls as a function; it records the tool's calls.

    Args:
        deps: available to the tool as `context.deps`.
        project_dir: the folder it works on; the current one by default.
        is_cancelled: the value of `context.cancelled`.

    Attributes:
        lines: the lines the tool has shown with `progress`.
        artifacts: the data it has given to `artifact`, by file name.
    """

    lines: list[str]
    artifacts: dict[str, ArtifactSource]

    def __init__(
        self,
        deps: Deps = None,
        *,
        project_dir: str | Path | None = None,
        is_cancelled: bool = False,
    ) -> None:
        lines: list[str] = []
        artifacts: dict[str, ArtifactSource] = {}

        def keep(
            data: ArtifactSource,
            *,
            filename: str,
            kind: str = "tool_output",  # noqa: ARG001 - as tools give it
            mime_type: str | None = None,  # noqa: ARG001
            summary: str | None = None,  # noqa: ARG001
        ) -> str:
            artifacts[filename] = data
            return _ArtifactId(new_id("art"))

        super().__init__(
            run=RunIdentity(
                session_id=new_id("sess"), agent_id=new_id("agent"), run_id=new_id("run")
            ),
            tool_call_id=new_id("call"),
            project_dir=Path(project_dir or Path.cwd()).resolve(),
            progress=lines.append,
            artifact=keep,
            is_cancelled=lambda: is_cancelled,
            deps=deps,
        )
        object.__setattr__(self, "lines", lines)
        object.__setattr__(self, "artifacts", artifacts)
