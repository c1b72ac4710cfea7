"""The logs of a session's Tasks in memory: unnamed files that disappear with the program."""

import os
import tempfile
from pathlib import Path

from agent_core.tasks.log_store import LogChangedError, TaskLog, TaskLogStore

TaskLogs = dict[str, int]
"""Open files of one session by the names of their logs."""


class InMemoryLog(TaskLog):
    """A log that no other process can see."""

    def _require_untouched(self) -> None:
        if self._descriptor < 0:
            raise LogChangedError(self.path, "it was closed")


class InMemoryTaskLogStore(TaskLogStore):
    """The logs of one session, kept as long as their owner keeps them.

    Args:
        logs: the existing logs; new ones are added.
        session_id: a checked session id.
    """

    log_type = InMemoryLog

    def __init__(self, logs: TaskLogs, session_id: str) -> None:
        super().__init__(Path("/memory"), session_id, project_dir=Path("/memory"))
        self._logs = logs

    def names(self) -> list[str]:
        """Return the names of the logs, sorted."""
        return sorted(self._logs)

    def discard(self, name: str) -> None:
        """Remove a log."""
        os.close(self._logs.pop(name))

    def _open_file(self, name: str, flags: int) -> int:
        if flags & os.O_CREAT:
            if name in self._logs:
                raise FileExistsError(name)
            self._logs[name] = _unnamed_file()
        elif name not in self._logs:
            raise FileNotFoundError(name)
        return os.dup(self._logs[name])

    def _state(self, name: str) -> None:  # noqa: ARG002 - the signature of a file
        return None


def _unnamed_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("task-log")
    with tempfile.TemporaryFile() as file:  # on systems other than Linux
        return os.dup(file.fileno())
