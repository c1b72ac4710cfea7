"""Projects whose runs one worker executes: opened when a run needs them, closed later."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from msgspec import Struct, field
from msgspec.structs import replace

from agent_core.aio import finish_uncancelled
from agent_core.runtime.options import RuntimeOptions
from agent_core.runtime.services import Services, open_services

_MOST_IDLE = 8
"""Number of projects that stay open without a run."""


class _OpenProject(Struct, eq=False, kw_only=True):
    """One project, opened and closed by the same task, as its contexts require."""

    task: asyncio.Task[None]
    services: asyncio.Future[Services]
    is_unused: asyncio.Event = field(default_factory=asyncio.Event)
    users: int = 0


class OpenProjects:
    """The services of the open projects, by their folders.

    A project that fails to open is tried again by the next run that needs it.

    Args:
        options: options of every project; their store is already open.
    """

    def __init__(self, options: RuntimeOptions) -> None:
        self._options = options
        self._open: dict[str, _OpenProject] = {}  # the most recently used project is last
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def services(self) -> list[Services]:
        """Services of the projects that are open now."""
        ready = (project.services for project in self._open.values())
        return [each.result() for each in ready if each.done() and not _has_failed(each)]

    @asynccontextmanager
    async def use(self, folder: str) -> AsyncGenerator[Services]:
        """Open the project in this folder, or use it if it is open; it stays open meanwhile.

        Raises:
            ConfigError: the folder is gone, or its settings cannot be used.
            StorageError: the database cannot be read.
        """
        project = self._open.pop(folder, None) or self._begin(folder)
        self._open[folder] = project
        project.users += 1
        try:
            yield await asyncio.shield(project.services)
        finally:
            project.users -= 1
            if project.services.done() and _has_failed(project.services):
                self._close(folder, project)
            idle = [(name, each) for name, each in self._open.items() if not each.users]
            for name, each in idle[: max(0, len(idle) - _MOST_IDLE)]:
                self._close(name, each)

    async def close(self) -> None:
        """Close all projects; runs under way in them are cancelled."""
        for folder, project in list(self._open.items()):
            self._close(folder, project)
        if self._closing:
            await finish_uncancelled(asyncio.gather(*self._closing, return_exceptions=True))

    def _begin(self, folder: str) -> _OpenProject:
        opened: asyncio.Future[Services] = asyncio.get_running_loop().create_future()
        is_unused = asyncio.Event()
        task = asyncio.create_task(self._keep(folder, opened, is_unused), name=f"open {folder}")
        return _OpenProject(task=task, services=opened, is_unused=is_unused)

    async def _keep(
        self, folder: str, opened: asyncio.Future[Services], is_unused: asyncio.Event
    ) -> None:
        try:
            async with open_services(replace(self._options, project_dir=folder)) as services:
                opened.set_result(services)
                await is_unused.wait()
        except Exception as error:
            if opened.done():
                raise
            opened.set_exception(error)

    def _close(self, folder: str, project: _OpenProject) -> None:
        if self._open.get(folder) is project:
            del self._open[folder]
        project.is_unused.set()
        self._closing.add(project.task)
        project.task.add_done_callback(self._closed)

    def _closed(self, task: asyncio.Task[None]) -> None:
        self._closing.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            asyncio.get_running_loop().call_exception_handler(
                {"message": "a project could not be closed", "exception": error, "task": task}
            )


def _has_failed(opened: asyncio.Future[Services]) -> bool:
    return opened.cancelled() or opened.exception() is not None
