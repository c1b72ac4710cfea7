"""Read artifacts, and delete what is stored."""

import asyncio
from collections.abc import Collection
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from agent_core.api.arguments import checks_arguments
from agent_core.api.home import RuntimeMethods
from agent_core.errors import ArgumentError
from agent_core.runtime.options import project_folder

if TYPE_CHECKING:
    from agent_core.types import (
        ArtifactRecord,
        CleanupResult,
        DeleteSessionResult,
        StoredBytes,
    )


@checks_arguments()
class CleanupMethods(RuntimeMethods):
    """The methods of `AgentRuntime` that read artifacts, and delete what is stored."""

    async def artifact(self, artifact_id: str, *, tenant: str | None = None) -> "ArtifactRecord":
        """Return the record of an artifact.

        Args:
            artifact_id: id of the artifact.
            tenant: only sessions of this tenant, for a runtime that is bound to none.

        Raises:
            StorageError: `artifact_not_found`.
        """
        services = await self._reading(tenant)
        return await services.artifacts.find(artifact_id, services.store)

    async def open_artifact(self, artifact_id: str, *, tenant: str | None = None) -> "BinaryIO":
        """Open the content of an artifact for reading, without secrets; close it when done.

        Args:
            artifact_id: id of the artifact.
            tenant: only sessions of this tenant, for a runtime that is bound to none.

        Raises:
            StorageError: `artifact_not_found`; `file_not_found`: only its record is left.
        """
        services = await self._reading(tenant)
        record = await services.artifacts.find(artifact_id, services.store)
        return await services.artifacts.open(artifact_id, session_id=record.session_id)

    async def delete_artifact(self, artifact_id: str) -> None:
        """Delete one artifact, file and row.

        Raises:
            StorageError: `artifact_not_found`, or the file cannot be deleted.
        """
        await (await self._changeable()).artifacts.delete(artifact_id)

    async def cleanup_artifacts(
        self,
        session_id: str | None = None,
        dry_run: bool = True,
        include_all: bool = False,
        older_than: datetime | None = None,
        max_bytes: int | None = None,
    ) -> "CleanupResult":
        """Find, and unless `dry_run` delete, artifacts kept for debugging (or all of them).

        Args:
            session_id: only artifacts of this session.
            dry_run: only report what would be deleted.
            include_all: not only raw traffic, debug files and tracebacks.
            older_than: only artifacts last changed before this aware time.
            max_bytes: delete the oldest until the rest fits.

        Raises:
            ArgumentError: `older_than` is naive, `max_bytes` negative.
        """
        services = await self._changeable(is_dry=dry_run)
        return await services.artifacts.cleanup(
            session_id=session_id,
            dry_run=dry_run,
            include_all=include_all,
            older_than=older_than,
            max_bytes=max_bytes,
        )

    async def delete_session(self, session_id: str) -> "DeleteSessionResult":
        """Delete a session, with everything in the home that belonged only to it.

        Memories, plans, Task logs and the chat's input history stay. Data that cannot be removed
        now, because another program reads an old state of the database, is in `failed`; the next
        start removes it.

        Raises:
            StorageError: `session_not_found`; `session_active` while a run is queued or running.
        """
        return await (await self._home.services()).sessions.delete(session_id)

    async def stored_bytes(self, project: str | Path | None = None) -> "StoredBytes":
        """Measure the space that sessions and projects take, the largest first.

        Reads the rows of all sessions, and the lists of all snapshots in this home. With a Postgres
        database, snapshots shared by all machines are not counted.

        Args:
            project: only sessions that work in this folder.
        """
        sessions = (await self._home.services()).sessions
        folder = await asyncio.to_thread(project_folder, project)
        return await sessions.measure(folder)

    async def delete_sessions(
        self,
        *,
        older_than: datetime | timedelta | None = None,
        session_ids: Collection[str] | None = None,
        project: str | Path | None = None,
        keep_last: int = 0,
        dry_run: bool = True,
    ) -> "CleanupResult":
        """Find, and unless `dry_run` delete, the sessions that were not used for some time.

        The result has the ids of the sessions, and in `freed_bytes` the size of their text and
        artifacts. Sessions in use, or waiting for an answer, are kept. Each one is deleted as by
        `delete_session`.

        Args:
            older_than: the minimum time since the last use, or an aware time before which it was.
            session_ids: these sessions instead, whenever they were used; those that cannot be
                deleted are in `failed`.
            project: only sessions that work in this folder.
            keep_last: keep this many of the last used sessions, of the project if there is one.
            dry_run: only report what would be deleted.

        Raises:
            ArgumentError: both `older_than` and `session_ids` are given, or
                neither is,
                the time has no zone, or a number is negative.
        """
        from agent_core.runtime.retention import read_age  # noqa: PLC0415 - for few programs

        retention = (await self._home.services()).sessions.retention
        if session_ids is not None and older_than is None and project is None and not keep_last:
            return await retention.delete_these(list(dict.fromkeys(session_ids)), dry_run=dry_run)
        if older_than is None or session_ids is not None:
            message = "delete_sessions takes either older_than or session_ids"
            raise ArgumentError(message, "older_than")
        if keep_last < 0:
            raise ArgumentError("keep_last is negative", "keep_last")
        folder = await asyncio.to_thread(project_folder, project)
        before = read_age(older_than)
        return await retention.delete_unused(
            before, project=folder, keep_last=keep_last, dry_run=dry_run
        )

    async def cleanup_project_tasks(
        self,
        project: str | Path,
        dry_run: bool = True,
        include_failed: bool = False,
        include_cancelled: bool = False,
        older_than: datetime | None = None,
    ) -> "CleanupResult":
        """Find, and unless `dry_run` delete, the logs of a project's Tasks that have ended.

        Unfinished Tasks, and unreadable logs, are never touched.

        Args:
            project: the project; for a file, its folder.
            dry_run: only report what would be deleted.
            include_failed: include failed Tasks, not only completed ones.
            include_cancelled: include cancelled Tasks.
            older_than: only Tasks last changed before this aware time.

        Raises:
            ConfigError: there is no such project.
            ArgumentError: `older_than` is naive.
        """
        services = await self._changeable(is_dry=dry_run)
        return await services.project.cleanup_tasks(
            project,
            dry_run=dry_run,
            include_failed=include_failed,
            include_cancelled=include_cancelled,
            older_than=older_than,
        )
