"""The runtimes that requests use: a program's own, or one for each folder of a server."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic

from msgspec import Struct, field

from agent_core.api import AgentRuntime
from agent_core.errors import ErrorCode, StorageError
from agent_core.opening import is_folder
from agent_core.serve.problems import HttpProblem

_MOST_IDLE = 8
_LAST_S = 2.0
"""Seconds in which the database has to respond when the server stops."""

_IDLE_S = 300.0
"""Seconds after its last use from which an idle runtime may be closed."""


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


class _Opened(Struct):
    """The runtime of a folder.

    Attributes:
        runtime: the runtime.
        users: requests that use it.
        used_at: when the last one has let go of it.
    """

    runtime: AgentRuntime
    users: int = 0
    used_at: float = field(default_factory=monotonic)


class ServedFolders:
    """Finds the runtimes of a server that works in several folders.

    Args:
        named: the folders of the command line; new sessions work in the first.
        reader: the runtime of the first folder.
        open_runtime: returns the runtime of a folder; it reads settings, in a thread.
        is_shared: other machines use the database, too.
        secrets: values that no run may store or show, by name.
    """

    def __init__(
        self,
        named: Sequence[Path],
        *,
        reader: AgentRuntime,
        open_runtime: Callable[[Path], AgentRuntime],
        is_shared: bool = False,
        secrets: Mapping[str, str] | None = None,
    ) -> None:
        self.reader = reader
        self.projects: Sequence[str] = tuple(map(str, named))
        self._first = named[0]
        self._named = set(named)
        self._open_runtime = open_runtime
        self._is_shared = is_shared
        self._secrets = secrets or {}
        self._opened = {self._first: _Opened(reader)}
        self._opening = asyncio.Lock()

    async def of_session(self, session_id: str, cwd: str) -> AgentRuntime:
        """Return the runtime of the folder in which a session works.

        Raises:
            StorageError: `session_elsewhere`: the folder is gone.
            ConfigError: the settings cannot be used there.
        """
        folder = Path(cwd)
        is_here = await asyncio.to_thread(is_folder, folder)
        if not is_here and self._is_shared:
            return await self._use(self._first)  # its runs go to where its files are
        if not is_here:
            message = f"session {session_id} works in {cwd}, which is not on this machine"
            details = {"session_id": session_id, "cwd": cwd}
            raise StorageError(ErrorCode.SESSION_ELSEWHERE, message, details=details)
        return await self._use(folder)

    async def of_project(self, project: str | None) -> AgentRuntime:
        """Return the runtime of a folder; None is where new sessions work.

        Raises:
            HttpProblem: 403: the server does not work in that folder.
            ConfigError: the settings cannot be used there.
        """
        if project is None:
            return await self._use(self._first)
        folder = await asyncio.to_thread(_resolve, self._first, project)
        if folder is None or not await self._is_served(folder):
            detail = "this server does not work in that folder; name it with --project at the start"
            raise HttpProblem(403, detail)
        return await self._use(folder)

    async def _is_served(self, folder: Path) -> bool:
        if folder in self._named:
            return True
        return bool(await self.reader.session_summaries(limit=1, project=folder))

    async def _use(self, folder: Path) -> AgentRuntime:
        async with self._opening:
            if (opened := self._opened.get(folder)) is None:
                await self._close_idle()
                runtime = await asyncio.to_thread(self._open_runtime, folder)
                await runtime.__aenter__()
                await runtime.learn_secrets(self._secrets)
                opened = self._opened[folder] = _Opened(runtime)
            opened.users += 1
            return opened.runtime

    def release(self, runtime: AgentRuntime) -> None:
        """Let go of a runtime; it may be closed once nothing works in it."""
        for opened in self._opened.values():
            if opened.runtime is runtime:
                opened.users -= 1
                opened.used_at = monotonic()

    async def _close_idle(self) -> None:
        """Close the runtimes that were used least recently, but for some."""
        oldest = monotonic() - _IDLE_S
        idle = [
            (opened.used_at, folder)
            for folder, opened in self._opened.items()
            if folder != self._first and not opened.users and opened.runtime.is_idle
        ]
        idle.sort()
        unused = sum(used_at < oldest for used_at, _ in idle)
        for _, folder in idle[: max(unused, len(idle) - _MOST_IDLE + 1)]:
            await self._opened.pop(folder).runtime.close()

    async def stop(self) -> None:
        """Take no more runs, cancel those under way, and park those with an open question."""
        stopping = (opened.runtime.stop_runs() for opened in self._opened.values())
        await asyncio.gather(*stopping, return_exceptions=True)

    async def respond(self) -> bool:
        """Return whether the database still takes what the runtimes store."""
        return await self.reader.database.responds(to_writes=True, within_s=_LAST_S)

    def hurry(self) -> None:
        """Stop waiting for a database that does not respond."""
        for opened in self._opened.values():
            opened.runtime.database.hurry()

    async def close(self) -> None:
        """Close all runtimes, the reader last; what memory was asked for is left to later ones."""
        for opened in self._opened.values():
            opened.runtime.leave_wishes()
        others = [each.runtime for each in self._opened.values() if each.runtime is not self.reader]
        await asyncio.gather(*(each.close() for each in others), return_exceptions=True)
        await self.reader.close()


def _resolve(first: Path, project: str) -> Path | None:
    """Return the folder that a request names; None if there is none."""
    try:
        folder = (first / project).resolve(strict=True)
    except (OSError, RuntimeError, ValueError):
        return None
    return folder if is_folder(folder) else None
