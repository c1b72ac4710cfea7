"""The logs of a session's Tasks as files: opened, locked, appended to, read and removed.

Links inside a project are not followed, a log is never rewritten, and every method blocks on files:
call them in a thread.
"""

import asyncio
import fcntl
import os
import re
import stat
from collections import deque
from collections.abc import Collection, Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path

import orjson
from msgspec import Struct, field

from agent_core.disk.locks import closing_lock
from agent_core.errors import AgentCoreError, ErrorCode, StorageError, TaskError, validation_error
from agent_core.opening import open_descriptor
from agent_core.tasks.apply import schema_error
from agent_core.tasks.graph import Dag
from agent_core.tasks.log_format import PADDING, ReplayedLog, last_line, read_log, was_never_created
from agent_core.tasks.model import TASK_ENDS, CloseRun, TaskChange, TaskStatus, task_error
from agent_core.text.json_text import JsonObject
from agent_core.types import SESSION_ID_PATTERN, CleanupFailure, CleanupResult, ErrorPayload

SUFFIX = ".wal.jsonl"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAX_LOG = 256 * 1024 * 1024
_TAIL = 16 * 1024
_HEAD = 1024 * 1024
_RECENT = 200


class LogChangedError(TaskError):
    """The file is not the one that was replayed; nothing was written, and it must be read again."""

    def __init__(self, path: Path, why: object) -> None:
        message = f"the Task log {path} has changed: {why}. It is read again with the next call"
        details = {"path": str(path)}
        super().__init__(ErrorCode.TASK_WAL_UNAVAILABLE, message, True, details)


def _unavailable(path: Path, why: object, *, retryable: bool = False, line: int = 0) -> TaskError:
    """Return the error for a log that cannot be used, naming it and the cure."""
    message = f"the Task log {path} cannot be used: {why}"
    details: JsonObject = {"path": str(path)}
    if line:
        message += ". Correct or remove the line, or move the file away"
        details["line"] = line
    return TaskError(ErrorCode.TASK_WAL_UNAVAILABLE, message, retryable, details)


class TaskLog:
    """A locked, append-only file; if `append` raises, none of its lines are in the file.

    Args:
        descriptor: the open file; it is closed by `close`, or here if the lock is taken.
        path: used in messages, and to notice that the file was removed or replaced.

    Raises:
        TaskError: `task_wal_unavailable`: another process appends to it.
    """

    def __init__(self, descriptor: int, path: Path) -> None:
        self.path = path
        self._descriptor = descriptor
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            why = "another process works on it" if isinstance(error, BlockingIOError) else error
            raise _unavailable(path, why, retryable=True) from error
        self._lock = ExitStack()
        self._lock.enter_context(closing_lock(descriptor))
        self._size = self._end = os.fstat(descriptor).st_size
        self._missing = b""

    def continue_at(self, end: int, *, is_terminated: bool) -> None:
        """Overwrite everything after `end` with the next append; until then it stays.

        A last line without its newline gets it in the same write.
        """
        self._end = end
        self._missing = b"" if is_terminated else b"\n"

    def append(self, lines: bytes, *, durable: bool) -> None:
        """Add complete lines in one write; if `durable`, wait until they are on the disk.

        Raises:
            TaskError: `task_wal_unavailable`; the file is unchanged.
        """
        self._require_untouched()
        lines = self._missing + lines
        try:
            if self._size > self._end:
                os.ftruncate(self._descriptor, self._end)
            written = 0  # a short write is no error for the system: the rest fails with the reason
            while written < len(lines):
                rest = memoryview(lines)[written:]
                written += os.pwrite(self._descriptor, rest, self._end + written)
            if durable:
                os.fsync(self._descriptor)
        except OSError as error:
            # If it cannot be cut now, the next append tries again; a reader sees a torn tail.
            with suppress(OSError):
                os.ftruncate(self._descriptor, self._end)
            self._size = os.fstat(self._descriptor).st_size
            raise _unavailable(self.path, error, retryable=True) from error
        self._end += len(lines)
        self._size = self._end
        self._missing = b""

    def close(self) -> None:
        """Release the file for other processes."""
        if self._descriptor >= 0:
            self._lock.close()
            self._descriptor = -1

    def _require_untouched(self) -> None:
        """Check that the file is unchanged: it may not be edited while its Task is open."""
        if self._descriptor < 0:
            raise LogChangedError(self.path, "it was closed")
        ours = os.fstat(self._descriptor)
        try:
            named = self.path.stat(follow_symlinks=False)
        except OSError as error:
            raise LogChangedError(self.path, error) from error
        if (named.st_dev, named.st_ino) != (ours.st_dev, ours.st_ino):
            raise LogChangedError(self.path, "it was replaced by another file")
        if ours.st_size != self._size:
            raise LogChangedError(self.path, "another process has written to it")


class OpenTask(Struct):
    """An active Task: its graph, its log, and the state that only this process has.

    Attributes:
        lines: number of lines in the log; the next line gets the following number.
        recent: the last changes, oldest first.
        dropped: bytes of a torn tail that the next append overwrites.
        deadlines: end of the lease of each claimed step, on the monotonic clock, in seconds.
        is_settled: changes that a crash or an edit left unfinished in the log have been completed.
        ending: set while the whole Task is being failed or cancelled, and done when that is over:
            no step can be claimed, and worker runs that end meanwhile leave their steps to it;
            `left_open` keeps them in case the Task does not end.
    """

    dag: Dag
    log: TaskLog
    lines: int = 0
    recent: deque[TaskChange] = field(default_factory=lambda: deque[TaskChange](maxlen=_RECENT))
    dropped: int = 0
    deadlines: dict[str, float] = field(default_factory=dict[str, float])
    is_settled: bool = False
    ending: asyncio.Event | None = None
    left_open: list[CloseRun] = field(default_factory=list[CloseRun])

    @property
    def is_ending(self) -> bool:
        """Return whether the whole Task is being failed or cancelled."""
        return self.ending is not None

    def require_not_ending(self) -> None:
        """Return unless the whole Task is being failed or cancelled.

        Raises:
            TaskError: `task_not_dispatchable`.
        """
        if self.is_ending:
            task_id = self.dag.task.task_id
            message = f"Task {task_id} is being failed or cancelled just now"
            raise task_error(ErrorCode.TASK_NOT_DISPATCHABLE, message, task_id=task_id)


class EndedLog(Struct, frozen=True):
    """A Task that has ended, known from the last line of its log."""

    name: str
    task_id: str
    status: TaskStatus
    updated_at: datetime


class UnreadableLog(Struct, frozen=True):
    """A log that cannot be used now.

    Attributes:
        task_id: the Task it seems to belong to, if any line names one.
        state: the file's state, used later to see whether it was repaired.
    """

    name: str
    error: TaskError
    task_id: str | None
    state: tuple[int, int] | None


AnyLog = OpenTask | EndedLog | UnreadableLog


class TaskLogStore:
    """The logs in `<wal_dir>/<session_id>`; the folder is created with the first Task.

    Args:
        wal_dir: resolved folder of the logs of all sessions.
        session_id: a checked session id, safe as a folder's name.
        project_dir: the resolved project. Every folder below it must be a real one: a link in a
            project must not redirect our files.
    """

    log_type = TaskLog

    def __init__(self, wal_dir: Path, session_id: str, *, project_dir: Path) -> None:
        self._folder = wal_dir / session_id
        self.session_id = session_id
        self._base = project_dir if wal_dir.is_relative_to(project_dir) else wal_dir

    def path(self, name: str) -> Path:
        """Return the path of a log."""
        return self._folder / name

    def names(self) -> list[str]:
        """Return the file names of the logs, sorted; empty if there is no folder yet.

        Raises:
            TaskError: `task_wal_unavailable`: the folder cannot be used.
        """
        try:
            with self._opened_folder(create=False) as folder:
                names = os.listdir(folder)  # noqa: PTH208 - of a descriptor, not of a path
                return sorted(name for name in names if name.endswith(SUFFIX))
        except FileNotFoundError:
            return []

    def writers(self) -> dict[str, str]:
        """Return the run that began each log, by the log's name, as far as it can be read.

        Raises:
            TaskError: `task_wal_unavailable`: the folder cannot be used.
        """
        found = ((name, self._find_first(name, "actor_run_id")) for name in self.names())
        return {name: run_id for name, run_id in found if run_id is not None}

    def free_name(self, name: str, taken: Collection[str]) -> str:
        """Return a name for a log: this one, or if it is `taken`, one like it that is not used."""
        used, number = {*taken, *self.names()} if name in taken else set[str](), 2
        free = name
        while free in used:
            free = f"{name.removesuffix(SUFFIX)}-{number}{SUFFIX}"
            number += 1
        return free

    def look_at(self, name: str) -> AnyLog | None:
        """Open a log if its Task is active; of an ended one only the end is read.

        Returns None if there is no such file.
        """
        try:
            descriptor = self._open_file(name, os.O_RDWR)
        except FileNotFoundError:
            return None
        except (OSError, TaskError) as error:
            return self.find_ended(name) or self.describe_unreadable(name, error)
        try:
            return _read_ended(name, descriptor) or self._open_task(name, os.dup(descriptor))
        except (OSError, AgentCoreError) as error:
            return self.describe_unreadable(name, error)
        finally:
            os.close(descriptor)

    def find_ended(self, name: str) -> EndedLog | None:
        """Return the log, if its last line ends its Task; nothing is locked or kept open."""
        try:
            with self._opened_file(name) as descriptor:
                return _read_ended(name, descriptor)
        except (OSError, AgentCoreError):
            return None

    def read(self, name: str) -> Dag:
        """Replay a Task without keeping or locking its log.

        Raises:
            TaskError: `task_wal_unavailable`.
        """
        content = self.content(name)
        try:
            return self._require_dag(name, read_log(content))
        except AgentCoreError as error:
            raise self._as_unavailable(name, error) from error

    def content(self, name: str) -> bytes:
        """Return the bytes of a log; nothing is locked or kept open.

        Raises:
            TaskError: `task_wal_unavailable`.
        """
        try:
            with self._opened_file(name) as descriptor:
                return _read_all(descriptor)
        except (OSError, AgentCoreError) as error:
            raise self._as_unavailable(name, error) from error

    def create(self, name: str) -> TaskLog:
        """Create an empty log and lock it.

        Raises:
            TaskError: `path_conflict`: the file exists; or `task_wal_unavailable`.
        """
        try:
            descriptor = self._open_file(name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        except FileExistsError as error:
            path = str(self.path(name))
            message = f"{path} already exists; choose another wal_name"
            raise task_error(ErrorCode.PATH_CONFLICT, message, path=path) from error
        except OSError as error:
            raise self._as_unavailable(name, error) from error
        return self.log_type(descriptor, self.path(name))

    def discard(self, name: str) -> None:
        """Remove a log.

        Raises:
            OSError: as for `os.unlink`.
        """
        with self._opened_folder(create=False) as folder:
            os.unlink(name, dir_fd=folder)

    def describe_unreadable(self, name: str, error: OSError | AgentCoreError) -> UnreadableLog:
        """Describe a log that cannot be used for this reason."""
        failure = self._as_unavailable(name, error)
        state = None if failure.retryable else self._state(name)
        return UnreadableLog(name, failure, self._find_first(name, "task_id"), state)

    def is_unchanged(self, log: UnreadableLog) -> bool:
        """Return whether the file of an unreadable log is unchanged since it was read."""
        return log.state is not None and log.state == self._state(log.name)

    def _open_task(self, name: str, descriptor: int) -> OpenTask | EndedLog:
        log = self.log_type(descriptor, self.path(name))
        try:
            content = _read_all(descriptor)
            replayed = read_log(content)
            if was_never_created(content):
                self.discard(name)
            dag = self._require_dag(name, replayed)
        except BaseException:
            log.close()
            raise
        task = dag.task
        if task.status.is_terminal:  # a tail without meaning hid its last line
            log.close()
            return EndedLog(name, task.task_id, task.status, task.updated_at)
        log.continue_at(replayed.end, is_terminated=replayed.is_terminated)
        recent = deque(replayed.changes, maxlen=_RECENT)
        return OpenTask(dag, log, replayed.lines, recent, len(content) - replayed.end)

    def _require_dag(self, name: str, replayed: ReplayedLog) -> Dag:
        dag = replayed.dag
        if dag is None:
            message = "line 1: it holds no complete line; its Task was never created"
            raise schema_error(message, line=1)
        if replayed.session_id != self.session_id:
            message = f"line 1: it belongs to the session {replayed.session_id}"
            raise schema_error(message, line=1)
        # A project may have been moved since the Task was created.
        dag.task = dag.task.model_copy(update={"wal_path": str(self.path(name))})
        return dag

    def _as_unavailable(self, name: str, error: OSError | AgentCoreError) -> TaskError:
        if isinstance(error, TaskError) and error.code is ErrorCode.TASK_WAL_UNAVAILABLE:
            return error
        line = error.details.get("line", 0) if isinstance(error, AgentCoreError) else 0
        return _unavailable(self.path(name), error, line=line)

    def _state(self, name: str) -> tuple[int, int] | None:
        try:
            found = self.path(name).stat(follow_symlinks=False)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size

    def _find_first(self, name: str, key: str) -> str | None:
        """Return a value from the first line of a log that has it."""
        try:
            with self._opened_file(name) as descriptor:
                head = os.pread(descriptor, _HEAD, 0)
        except (OSError, TaskError):
            return None
        for raw in head.splitlines():
            try:
                value = orjson.loads(raw)[key]
            except (orjson.JSONDecodeError, KeyError, TypeError):
                continue
            if isinstance(value, str):
                return value
        return None

    @contextmanager
    def _opened_file(self, name: str) -> Generator[int]:
        descriptor = self._open_file(name, os.O_RDONLY)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _open_file(self, name: str, flags: int) -> int:
        """Open a log and return its descriptor; `O_CREAT` creates the folder.

        Raises:
            FileNotFoundError, FileExistsError: as for `os.open`.
            TaskError: `task_wal_unavailable`: the folder or the file is not a real one.
        """
        creates = bool(flags & os.O_CREAT)
        with self._opened_folder(create=creates) as folder:
            try:
                opened = open_descriptor(name, flags | _FILE, 0o600, dir_fd=folder)
            except (FileNotFoundError, FileExistsError):
                raise
            except OSError as error:
                raise _unusable(self.path(name), error) from error
            if not stat.S_ISREG(os.fstat(opened).st_mode):
                os.close(opened)
                raise _unusable(self.path(name), "not a regular file")
            if creates:
                os.fsync(folder)
            return opened

    @contextmanager
    def _opened_folder(self, *, create: bool) -> Generator[int]:
        if create:
            self._base.mkdir(mode=0o700, parents=True, exist_ok=True)
        here = open_descriptor(self._base, _FOLDER)
        try:
            for part in self._folder.relative_to(self._base).parts:
                try:
                    if create:
                        with suppress(FileExistsError):
                            os.mkdir(part, 0o700, dir_fd=here)
                    inner = open_descriptor(part, _FOLDER | os.O_NOFOLLOW, dir_fd=here)
                except FileNotFoundError:
                    raise
                except OSError as error:
                    raise _unusable(self._folder, error) from error
                os.close(here)
                here = inner
            yield here
        finally:
            os.close(here)


class StoredTask(Struct, frozen=True):
    """A log that could be read."""

    session_id: str
    dag: Dag

    @property
    def task_id(self) -> str:
        return self.dag.task.task_id


def read_stored_tasks(
    wal_dir: Path,
    *,
    project_dir: Path,
    session_id: str | None = None,
    runs: Collection[str] | None = None,
) -> tuple[list[StoredTask], list[str]]:
    """Read the Tasks of a session, or all Tasks, the last changed first. Locks nothing.

    Returns the Tasks, and messages about logs that could not be read.

    Args:
        wal_dir: folder of the logs of all sessions.
        project_dir: the resolved project.
        session_id: the only session to read; None for all.
        runs: only Tasks that one of these runs has begun, as far as that is known; None for all.
    """
    tasks: list[StoredTask] = []
    problems: list[str] = []
    for each in [session_id] if session_id else _session_ids(wal_dir):
        store = TaskLogStore(wal_dir, each, project_dir=project_dir)
        try:
            names = store.names()
            if runs is not None:
                others = {name for name, run_id in store.writers().items() if run_id not in runs}
                names = [name for name in names if name not in others]
        except (OSError, TaskError) as error:
            problems.append(str(error))
            continue
        for name in names:
            try:
                tasks.append(StoredTask(each, store.read(name)))
            except AgentCoreError as error:
                problems.append(error.message)
    tasks.sort(key=lambda found: found.dag.task.updated_at, reverse=True)
    return tasks, problems


def cleanup_ended_tasks(
    wal_dir: Path,
    *,
    project_dir: Path,
    statuses: Collection[TaskStatus] = (TaskStatus.COMPLETED,),
    older_than: datetime | None = None,
    dry_run: bool = True,
) -> CleanupResult:
    """Find logs whose last line ends their Task, and delete them unless it is a dry run.

    Ids in the result are paths. Active and unreadable logs are never touched.

    Args:
        wal_dir: resolved folder of the logs of all sessions.
        project_dir: the resolved project.
        statuses: the final statuses to include.
        older_than: an aware time; include only Tasks last changed before it.
        dry_run: delete nothing; `freed_bytes` is then the size that would be freed.

    Raises:
        AgentCoreError: `validation_error`: `older_than` has no time zone.
    """
    if older_than is not None and older_than.tzinfo is None:
        message = "older_than needs a time zone, as in datetime.now(UTC)"
        raise validation_error(message)
    found: list[tuple[TaskLogStore, str]] = []
    for session_id in _session_ids(wal_dir):
        store = TaskLogStore(wal_dir, session_id, project_dir=project_dir)
        with suppress(OSError, AgentCoreError):
            logs = [log for name in store.names() if (log := store.find_ended(name))]
            found += [
                (store, log.name)
                for log in logs
                if log.status in statuses and (older_than is None or log.updated_at < older_than)
            ]
    deleted: list[str] = []
    failed: list[CleanupFailure] = []
    freed = 0
    for store, name in found:
        path = store.path(name)
        try:
            size = path.stat(follow_symlinks=False).st_size
            if not dry_run:
                store.discard(name)
                deleted.append(str(path))
            freed += size
        except (OSError, AgentCoreError) as error:
            what = f"the log could not be deleted: {error}"
            is_known = isinstance(error, AgentCoreError)
            known = error if is_known else StorageError(ErrorCode.STORAGE_ERROR, what)
            failed.append(CleanupFailure(id=str(path), error=ErrorPayload.of(known)))
    return CleanupResult(
        dry_run=dry_run,
        candidates=[str(store.path(name)) for store, name in found],
        deleted=deleted,
        failed=failed,
        freed_bytes=freed,
    )


def _session_ids(wal_dir: Path) -> Iterator[str]:
    try:
        names = sorted(entry.name for entry in wal_dir.iterdir())
    except OSError:
        return iter(())
    return (name for name in names if re.fullmatch(SESSION_ID_PATTERN, name))


def _unusable(path: Path, why: object) -> TaskError:
    message = (
        f"Task logs cannot be kept in {path}: {why}. "
        "It must be a real file in real folders that this user can write, without links"
    )
    return task_error(ErrorCode.TASK_WAL_UNAVAILABLE, message, path=str(path))


def _read_all(descriptor: int) -> bytes:
    pieces: list[bytes] = []
    at, size = 0, _size(descriptor)
    while at < size and (piece := os.pread(descriptor, size - at, at)):
        pieces.append(piece)
        at += len(piece)
    return b"".join(pieces)


def _size(descriptor: int) -> int:
    size = os.fstat(descriptor).st_size
    if size > _MAX_LOG:
        raise schema_error(f"it has {size} bytes; more than {_MAX_LOG} are not read")
    return size


def _read_ended(name: str, descriptor: int) -> EndedLog | None:
    """Return the log, if its last line ends its Task; only its end is read."""
    size = _size(descriptor)
    length, last = 0, None
    while length < size:
        length = min(size, max(_TAIL, length * 8))
        tail = os.pread(descriptor, length, size - length)
        if length == size or b"\n" in tail.rstrip(PADDING):
            last = last_line(tail)
            break
    if last is None or last.event_type not in TASK_ENDS:
        return None
    return EndedLog(name, last.task_id, TASK_ENDS[last.event_type], last.created_at)
