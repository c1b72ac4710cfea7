"""The folders in which clients may work, each with its settings, its runtime and its sessions."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from agent_core.api import AgentRuntime
from agent_core.cli.setup import open_runtime, read_command_setup
from agent_core.config.paths import Setup
from agent_core.errors import AgentCoreError, ErrorCode, StorageError, validation_error
from agent_core.permissions import PermissionCallback
from agent_core.storage.rows import session_not_found

Approvals = Literal["ask", "tool", "deny"]


class ServedProjects:
    """The runtimes of a server: one for each of its folders that is used.

    Args:
        setup: the settings of the first folder, where new sessions work.
        folders: the folders that clients may work in; no other is theirs.
        model: model of runs that name none, as the command line names it.
        approvals: who may answer questions.
        ask: puts a question to a client.
    """

    def __init__(
        self,
        setup: Setup,
        folders: Sequence[Path],
        *,
        model: str | None,
        approvals: Approvals,
        ask: PermissionCallback,
    ) -> None:
        self.first = setup.project
        self.folders = [*dict.fromkeys((setup.project, *folders))]
        self._model = model
        self._approvals: Approvals = approvals
        self._ask = ask
        self._runtimes: dict[Path, AgentRuntime] = {}
        self._open(setup)

    def _open(self, setup: Setup) -> AgentRuntime:
        permissions = setup.config.permissions
        unattended = {"ask": permissions.unattended, "tool": "park", "deny": "deny"}
        update = {"unattended": unattended[self._approvals]}
        config = setup.config.model_copy(
            update={"permissions": permissions.model_copy(update=update)}
        )
        runtime = self._runtimes[setup.project] = open_runtime(
            replace(setup, config=config),
            permission_callback=None if self._approvals == "deny" else self._ask,
        )
        return runtime

    async def find(self, project: str | None) -> AgentRuntime:
        """Return the runtime of a folder, as a client names it; None is the first folder.

        Raises:
            AgentCoreError: `validation_error`: clients may not work there, or there is no folder.
        """
        found = await self.folder(project)
        if (runtime := self._runtimes.get(found)) is not None:
            return runtime
        setup = await asyncio.to_thread(read_command_setup, found, self._model)
        return self._runtimes.get(found) or self._open(setup)

    async def folder(self, project: str | None) -> Path:
        """Return the folder that a client names, relative to the first one, which is None.

        Raises:
            AgentCoreError: `validation_error`: clients may not work there, or there is no folder.
        """
        return self.first if project is None else await asyncio.to_thread(self._resolve, project)

    def _resolve(self, project: str) -> Path:
        try:
            found = (self.first / project).resolve()
            is_folder = self.holds(found) and found.is_dir()
        except (OSError, RuntimeError, ValueError):
            found, is_folder = self.first, False
        if not is_folder:
            places = ", ".join(map(str, self.folders))
            message = f"there is no such folder to work in; this server works in {places}"
            raise validation_error(message)
        return found

    def holds(self, folder: Path) -> bool:
        """Return whether clients may work in a folder, which is resolved."""
        return folder in self.folders

    async def home_of(self, session_id: str) -> AgentRuntime:
        """Return the runtime of the folder in which a session works.

        Raises:
            StorageError: `session_not_found`: there is none, or it works in another place.
        """
        page = await self._runtimes[self.first].replay_session(session_id, 1, 1)
        folder = Path(page.session.cwd)
        if not self.holds(folder):
            raise session_not_found(session_id)
        try:
            return await self.find(str(folder))
        except AgentCoreError as error:
            if error.code is not ErrorCode.VALIDATION_ERROR:
                raise
            message = f"session {session_id} works in {folder}, which is gone"
            raise StorageError(ErrorCode.SESSION_ELSEWHERE, message) from None

    async def close(self) -> None:
        """Close all runtimes."""
        closing = (runtime.close() for runtime in self._runtimes.values())
        await asyncio.gather(*closing, return_exceptions=True)
