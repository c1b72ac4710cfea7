"""Tasks as they lie on disk, for people who look: nothing is locked, written or kept open."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agent_core.errors import AgentCoreError, TaskError
from agent_core.tasks.dag import Dag
from agent_core.tasks.folder import LogFolder
from agent_core.tasks.shelf import TaskLogStore
from agent_core.types import SESSION_ID_PATTERN


@dataclass(frozen=True, slots=True)
class StoredTask:
    """A log that could be read."""

    session_id: str
    dag: Dag

    @property
    def task_id(self) -> str:
        return self.dag.task.task_id


@dataclass(frozen=True, slots=True)
class StoredTasks:
    """What a project's folder of logs holds; `problems` says which logs could not be read."""

    tasks: tuple[StoredTask, ...] = ()
    problems: tuple[str, ...] = ()


def stored_tasks(wal_dir: Path, *, project_dir: Path, session_id: str | None = None) -> StoredTasks:
    """Read the Tasks of a session, or of all: the last changed first. File work.

    Args:
        wal_dir: where the logs of all sessions are.
        project_dir: the project, resolved.
        session_id: only this one's.
    """
    tasks: list[StoredTask] = []
    problems: list[str] = []
    for each in [session_id] if session_id else _sessions(wal_dir):
        shelf = TaskLogStore(LogFolder(wal_dir, each, project_dir=project_dir))
        try:
            names = shelf.names()
        except (OSError, TaskError) as error:
            problems.append(str(error))
            continue
        for name in names:
            try:
                tasks.append(StoredTask(each, shelf.read(name)))
            except AgentCoreError as error:
                problems.append(error.message)
    tasks.sort(key=lambda found: found.dag.task.updated_at, reverse=True)
    return StoredTasks(tuple(tasks), tuple(problems))


def _sessions(wal_dir: Path) -> Iterator[str]:
    try:
        names = sorted(entry.name for entry in wal_dir.iterdir())
    except OSError:
        return iter(())
    return (name for name in names if re.fullmatch(SESSION_ID_PATTERN, name))
