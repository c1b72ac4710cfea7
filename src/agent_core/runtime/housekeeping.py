"""Removes what Tasks leave behind in a project."""

import asyncio
from datetime import datetime
from pathlib import Path

from agent_core.config.paths import Setup, resolve_project, tasks_folder
from agent_core.tasks import TaskStatus, cleanup_ended_tasks
from agent_core.types import CleanupResult


async def cleanup_tasks(
    setup: Setup,
    project: str | Path,
    *,
    dry_run: bool,
    include_failed: bool,
    include_cancelled: bool,
    older_than: datetime | None,
) -> CleanupResult:
    """Find, and unless it is a dry run delete, the logs of a project's Tasks that are over.

    Raises:
        ConfigError: there is no such project.
        AgentCoreError: `validation_error`: `older_than` is naive.
    """
    folder = resolve_project(project)
    statuses = {TaskStatus.COMPLETED}
    statuses |= {TaskStatus.FAILED} if include_failed else set()
    statuses |= {TaskStatus.CANCELLED} if include_cancelled else set()
    return await asyncio.to_thread(
        cleanup_ended_tasks,
        tasks_folder(setup.config.task.wal_dir, home=setup.home, project=folder),
        project_dir=folder,
        statuses=statuses,
        older_than=older_than,
        dry_run=dry_run,
    )
