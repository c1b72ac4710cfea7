"""Remove the logs of Tasks that are over, across all sessions of a project."""

import re
from collections.abc import Collection
from datetime import datetime
from pathlib import Path

from agent_core.errors import AgentCoreError, ErrorCode, StorageError
from agent_core.tasks.folder import LogFolder
from agent_core.tasks.model import TaskStatus
from agent_core.tasks.shelf import TaskLogStore
from agent_core.types import SESSION_ID_PATTERN, CleanupFailure, CleanupResult, ErrorPayload


def cleanup_ended_tasks(
    wal_dir: Path,
    *,
    project_dir: Path,
    statuses: Collection[TaskStatus] = (TaskStatus.COMPLETED,),
    older_than: datetime | None = None,
    dry_run: bool = True,
) -> CleanupResult:
    """Find, and unless it is a dry run delete, logs whose last line says that the Task is over.

    Ids in the result are paths. Active and unreadable logs are never touched. File work; call it
    in a thread.

    Args:
        wal_dir: where the logs of all sessions are, resolved.
        project_dir: the project, resolved.
        statuses: which ends count.
        older_than: aware; only Tasks last changed before it.
        dry_run: delete nothing; `freed_bytes` says what would be freed.

    Raises:
        AgentCoreError: `validation_error`, `older_than` has no time zone.
    """
    if older_than is not None and older_than.tzinfo is None:
        message = "older_than needs a time zone, such as datetime.now(UTC) has"
        raise AgentCoreError(ErrorCode.VALIDATION_ERROR, message)
    candidates: list[str] = []
    deleted: list[str] = []
    failed: list[CleanupFailure] = []
    freed = 0
    for session_id in _sessions(wal_dir):
        shelf = TaskLogStore(LogFolder(wal_dir, session_id, project_dir=project_dir))
        for name in _ended(shelf, statuses, older_than):
            path = shelf.path(name)
            candidates.append(str(path))
            try:
                size = path.stat(follow_symlinks=False).st_size
                if not dry_run:
                    shelf.discard(name)
            except (OSError, AgentCoreError) as error:
                failed.append(CleanupFailure(id=str(path), error=_payload(error)))
            else:
                freed += size
                deleted += [] if dry_run else [str(path)]
    return CleanupResult(
        dry_run=dry_run, candidates=candidates, deleted=deleted, failed=failed, freed_bytes=freed
    )


def _sessions(wal_dir: Path) -> list[str]:
    try:
        names = sorted(entry.name for entry in wal_dir.iterdir())
    except OSError:
        return []
    return [name for name in names if re.fullmatch(SESSION_ID_PATTERN, name)]


def _ended(
    shelf: TaskLogStore, statuses: Collection[TaskStatus], older_than: datetime | None
) -> list[str]:
    try:
        names = shelf.names()
    except (OSError, AgentCoreError):
        return []
    logs = (shelf.ended(name) for name in names)
    return [
        log.name
        for log in logs
        if log is not None
        and log.status in statuses
        and (older_than is None or log.updated_at < older_than)
    ]


def _payload(error: OSError | AgentCoreError) -> ErrorPayload:
    failure = (
        error
        if isinstance(error, AgentCoreError)
        else StorageError(ErrorCode.STORAGE_ERROR, f"the log could not be deleted: {error}")
    )
    return ErrorPayload(type=type(failure).__name__, code=failure.code, message=failure.message)
