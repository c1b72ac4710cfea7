"""All logs of one session: which Tasks go on, which are over, which cannot be read."""

import asyncio
import os
from collections import deque
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import orjson

from agent_core.errors import AgentCoreError, ErrorCode, SchemaError, TaskError
from agent_core.tasks.changes import TASK_ENDS, Change
from agent_core.tasks.commands import CloseRun
from agent_core.tasks.dag import Dag
from agent_core.tasks.folder import SUFFIX, LogFolder
from agent_core.tasks.lines import PADDING, Line, Replayed, is_stillborn, last_line, read_log
from agent_core.tasks.model import TaskStatus
from agent_core.tasks.wal import TaskLog, read_all, unavailable

_MAX_LOG = 256 * 1024 * 1024
_TAIL = 16 * 1024
_RECENT = 200


@dataclass(slots=True)
class OpenTask:
    """A Task that goes on: its graph, its log, and what only this process knows of it.

    Attributes:
        lines: how many lines the log has; the next one gets the number after.
        recent: the last changes, oldest first.
        dropped: bytes of a torn tail that the next append overwrites.
        deadlines: when the lease of a claimed step ends, on the monotonic clock, in seconds.
        is_settled: what a crash or a hand left undone in the log is done.
        ending: set while the whole Task is being failed or cancelled, and done when that is over:
            nothing is claimed any more, and worker runs that end meanwhile leave their steps to
            it; `left_open` keeps them for the case that it does not happen.
    """

    dag: Dag
    log: TaskLog
    lines: int = 0
    recent: deque[Change] = field(default_factory=lambda: deque[Change](maxlen=_RECENT))
    dropped: int = 0
    deadlines: dict[str, float] = field(default_factory=dict[str, float])
    is_settled: bool = False
    ending: asyncio.Event | None = None
    left_open: list[CloseRun] = field(default_factory=list[CloseRun])

    @property
    def is_ending(self) -> bool:
        """The whole Task is being failed or cancelled."""
        return self.ending is not None

    def require_steady(self) -> None:
        """Return unless the whole Task is being given up.

        Raises:
            TaskError: `task_not_dispatchable`.
        """
        if self.is_ending:
            task_id = self.dag.task.task_id
            message = f"Task {task_id} is being failed or cancelled just now"
            details = {"task_id": task_id}
            raise TaskError(ErrorCode.TASK_NOT_DISPATCHABLE, message, details=details)


@dataclass(frozen=True, slots=True)
class EndedLog:
    """A Task that is over, known by the last line of its log."""

    name: str
    task_id: str
    status: TaskStatus
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class UnreadableLog:
    """A log that cannot be used now.

    Attributes:
        task_id: whose it seems to be, if any line says so.
        state: what the file looked like, to see later whether somebody has mended it.
    """

    name: str
    error: TaskError
    task_id: str | None
    state: tuple[int, int] | None


AnyLog = OpenTask | EndedLog | UnreadableLog


class TaskLogStore:
    """Opens, reads and makes the logs in one folder. Every method does its file work at once."""

    def __init__(self, folder: LogFolder) -> None:
        self._folder = folder

    def path(self, name: str) -> Path:
        """Where a log is."""
        return self._folder.path / name

    def names(self) -> list[str]:
        """The logs there are.

        Raises:
            TaskError: `task_wal_unavailable`, the folder cannot be used.
        """
        return self._folder.names()

    def look_at(self, name: str) -> AnyLog | None:
        """Open a log if its Task goes on; a finished one is only looked at from its end.

        None: there is no such file.
        """
        try:
            descriptor = self._folder.open(name, os.O_RDWR)
        except FileNotFoundError:
            return None
        except (OSError, TaskError) as error:
            return self.ended(name) or self.unreadable(name, error)
        try:
            return _ended(name, descriptor) or self._open(name, os.dup(descriptor))
        except (OSError, AgentCoreError) as error:
            return self.unreadable(name, error)
        finally:
            os.close(descriptor)

    def ended(self, name: str) -> EndedLog | None:
        """The log, if its last line says that its Task is over; nothing is locked or kept open."""
        try:
            descriptor = self._folder.open(name, os.O_RDONLY)
        except (OSError, TaskError):
            return None
        try:
            return _ended(name, descriptor)
        except (OSError, SchemaError):
            return None
        finally:
            os.close(descriptor)

    def read(self, name: str) -> Dag:
        """Replay a finished Task without keeping or locking its log.

        Raises:
            TaskError: `task_wal_unavailable`.
        """
        try:
            descriptor = self._folder.open(name, os.O_RDONLY)
            try:
                replayed = read_log(read_all(descriptor, _size(descriptor)))
            finally:
                os.close(descriptor)
            return self._placed(name, replayed)
        except (OSError, AgentCoreError) as error:
            raise self._unavailable(name, error) from error

    def create(self, name: str) -> TaskLog:
        """Make an empty log and lock it.

        Raises:
            TaskError: `path_conflict`, there is such a file; `task_wal_unavailable`.
        """
        try:
            descriptor = self._folder.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        except FileExistsError as error:
            message = f"{self.path(name)} exists already; choose another wal_name"
            details = {"path": str(self.path(name))}
            raise TaskError(ErrorCode.PATH_CONFLICT, message, details=details) from error
        except OSError as error:
            raise self._unavailable(name, error) from error
        return TaskLog(descriptor, self.path(name))

    def discard(self, name: str) -> None:
        """Remove a log into which nothing could be written."""
        self._folder.delete(name)

    def unreadable(self, name: str, error: OSError | AgentCoreError) -> UnreadableLog:
        """What is known of a log that cannot be used for this reason."""
        failure = self._unavailable(name, error)
        state = None if failure.retryable else self._state(name)
        return UnreadableLog(name, failure, self._task_id(name), state)

    def is_unchanged(self, log: UnreadableLog) -> bool:
        """Nobody has touched an unreadable log since it was looked at."""
        return log.state is not None and log.state == self._state(log.name)

    def _open(self, name: str, descriptor: int) -> OpenTask | EndedLog:
        log = TaskLog(descriptor, self.path(name))
        try:
            content = log.read()
            replayed = read_log(content)
            if is_stillborn(content):
                self.discard(name)
            dag, dropped = self._placed(name, replayed), len(content) - replayed.end
        except BaseException:
            log.close()
            raise
        if (header := dag.task).status.is_terminal:  # a tail that says nothing hid its last line
            log.close()
            return EndedLog(name, header.task_id, header.status, header.updated_at)
        log.continue_at(replayed.end, is_terminated=replayed.is_terminated)
        recent = deque(replayed.changes, maxlen=_RECENT)
        return OpenTask(dag, log, replayed.lines, recent, dropped)

    def _placed(self, name: str, replayed: Replayed) -> Dag:
        if replayed.dag is None:
            message = "it holds no complete line; its Task was never created"
            raise SchemaError(ErrorCode.SCHEMA_ERROR, message)
        if replayed.session_id != self._folder.session_id:
            message = f"line 1: it belongs to the session {replayed.session_id}"
            raise SchemaError(ErrorCode.SCHEMA_ERROR, message, details={"line": 1})
        # A project may have been moved since the Task was created.
        path = {"wal_path": str(self.path(name))}
        replayed.dag.task = replayed.dag.task.model_copy(update=path)
        return replayed.dag

    def _unavailable(self, name: str, error: OSError | AgentCoreError) -> TaskError:
        if isinstance(error, TaskError) and error.code is ErrorCode.TASK_WAL_UNAVAILABLE:
            return error
        line = error.details.get("line", 0) if isinstance(error, AgentCoreError) else 0
        return unavailable(self.path(name), error, line=line)

    def _state(self, name: str) -> tuple[int, int] | None:
        try:
            found = self.path(name).stat(follow_symlinks=False)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size

    def _task_id(self, name: str) -> str | None:
        """Whose log it is, from the first line that says so."""
        try:
            descriptor = self._folder.open(name, os.O_RDONLY)
        except (OSError, TaskError):
            return None
        try:
            head = os.pread(descriptor, 1024 * 1024, 0)
        finally:
            os.close(descriptor)
        for raw in head.splitlines():
            try:
                task_id = orjson.loads(raw)["task_id"]
            except (orjson.JSONDecodeError, KeyError, TypeError):
                continue
            if isinstance(task_id, str):
                return task_id
        return None


def log_name(wal_name: str) -> str:
    """The file's name for a name with or without its ending."""
    return wal_name if wal_name.endswith(SUFFIX) else wal_name + SUFFIX


def _size(descriptor: int) -> int:
    size = os.fstat(descriptor).st_size
    if size > _MAX_LOG:
        message = f"it has {size} bytes; more than {_MAX_LOG} are not read"
        raise SchemaError(ErrorCode.SCHEMA_ERROR, message)
    return size


def _ended(name: str, descriptor: int) -> EndedLog | None:
    last = _last_line(descriptor)
    if last is None or last.event_type not in TASK_ENDS:
        return None
    return EndedLog(name, last.task_id, TASK_ENDS[last.event_type], last.created_at)


def _last_line(descriptor: int) -> Line | None:
    """The last line, read from the end; None if it makes no sense."""
    size = _size(descriptor)
    length = 0
    while length < size:
        length = min(size, max(_TAIL, length * 8))
        tail = os.pread(descriptor, length, size - length)
        if length == size or b"\n" in tail.rstrip(PADDING):
            return last_line(tail)
    return None
