"""The runtimes that requests use."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from agent_core.api import AgentRuntime
from agent_core.serve.problems import HttpProblem


class Runtimes(Protocol):
    """Finds the runtime that acts in a folder or for a session.

    A runtime that was found stays open until it is released.

    Attributes:
        reader: reads every session that the console shows.
        projects: the folders that are offered for new sessions, the first one by default; empty if
            there is no choice.
    """

    reader: AgentRuntime

    @property
    def projects(self) -> Sequence[str]: ...

    async def of_session(self, session_id: str, cwd: str) -> AgentRuntime:
        """Return the runtime that acts for a session.

        Raises:
            AgentCoreError: `session_elsewhere`: its folder is gone.
        """
        ...

    async def of_project(self, project: str | None) -> AgentRuntime:
        """Return the runtime of a folder; None is where new sessions work.

        Raises:
            HttpProblem: 403: the console does not serve the folder.
        """
        ...

    def release(self, runtime: AgentRuntime) -> None:
        """Let go of a runtime that was found."""
        ...

    def shows(self, cwd: str) -> bool:
        """Return whether sessions that work in this folder are shown."""
        ...


class OnePlace:
    """The runtime of a program, which serves its own project."""

    def __init__(self, runtime: AgentRuntime) -> None:
        self.reader = runtime
        self.projects: Sequence[str] = ()

    async def of_session(self, session_id: str, cwd: str) -> AgentRuntime:  # noqa: ARG002
        """Return the runtime."""
        return self.reader

    async def of_project(self, project: str | None) -> AgentRuntime:
        """Return the runtime; its project is the only one.

        Raises:
            HttpProblem: 403: the request names another folder.
        """
        if project is not None and not await asyncio.to_thread(self._is_here, project):
            raise HttpProblem(
                403, "runs of this application work in one project; leave project out"
            )
        return self.reader

    def _is_here(self, project: str) -> bool:
        with suppress(OSError, RuntimeError, ValueError):  # no path, or a loop of links
            return Path(project).resolve() == self.reader.project
        return False

    def release(self, runtime: AgentRuntime) -> None:
        """Do nothing: the program closes the runtime."""

    def shows(self, cwd: str) -> bool:  # noqa: ARG002
        """Return that every session of the runtime is shown."""
        return True
