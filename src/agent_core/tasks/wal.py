"""One Task's log, open for appending: the source of truth, never rewritten."""

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from agent_core.errors import ErrorCode, TaskError


class TaskLog:
    """A locked, append-only file. What `append` returned from is in it; what it raised for is not.

    Args:
        descriptor: the open file; it is closed by `close`, and here if the lock is taken.
        path: for messages, and to notice that the file is not there any more.

    Raises:
        TaskError: `task_wal_unavailable`, another process appends to it.
    """

    def __init__(self, descriptor: int, path: Path) -> None:
        self.path = path
        self._descriptor = descriptor
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            why = "another process works on it" if isinstance(error, BlockingIOError) else error
            raise unavailable(path, why, retryable=True) from error
        self._size = os.fstat(descriptor).st_size
        self._end = self._size
        self._missing = b""

    def read(self) -> bytes:
        """The whole file as it is now.

        Raises:
            OSError: it cannot be read.
        """
        return read_all(self._descriptor, self._size)

    def continue_at(self, end: int, *, is_terminated: bool) -> None:
        """Overwrite what follows `end` with the next append; until then it stays.

        A last line without its newline gets it in the same write.
        """
        self._end = end
        self._missing = b"" if is_terminated else b"\n"

    def append(self, lines: bytes, *, durable: bool) -> None:
        """Add complete lines in one write, on the disk itself if `durable`.

        Raises:
            TaskError: `task_wal_unavailable`; the file is as it was.
        """
        self._require_untouched()
        lines = self._missing + lines
        try:
            if self._size > self._end:
                os.ftruncate(self._descriptor, self._end)
            self._write(lines)
            if durable:
                os.fsync(self._descriptor)
        except OSError as error:
            self._take_back()
            raise unavailable(self.path, error, retryable=True) from error
        self._end += len(lines)
        self._size = self._end
        self._missing = b""

    def close(self) -> None:
        """Give the file back to other processes."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _write(self, lines: bytes) -> None:
        # A short write is not an error for the system: the rest then fails with the reason.
        written = 0
        while written < len(lines):
            rest = memoryview(lines)[written:]
            written += os.pwrite(self._descriptor, rest, self._end + written)

    def _take_back(self) -> None:
        # If it cannot be cut now, the next append tries again; a reader sees a torn tail.
        with suppress(OSError):
            os.ftruncate(self._descriptor, self._end)
        self._size = os.fstat(self._descriptor).st_size

    def _require_untouched(self) -> None:
        """Somebody may edit a log by hand, but not under a Task that is open."""
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
            raise LogChangedError(self.path, "somebody else has written to it")


class LogChangedError(TaskError):
    """The file is not the one that was replayed; nothing was written, it has to be read again."""

    def __init__(self, path: Path, why: object) -> None:
        message = f"the Task log {path} has changed: {why}. It is read again with the next call"
        details = {"path": str(path)}
        super().__init__(ErrorCode.TASK_WAL_UNAVAILABLE, message, True, details)


def read_all(descriptor: int, size: int) -> bytes:
    """The first `size` bytes of a file."""
    pieces: list[bytes] = []
    at = 0
    while at < size and (piece := os.pread(descriptor, size - at, at)):
        pieces.append(piece)
        at += len(piece)
    return b"".join(pieces)


def unavailable(path: Path, why: object, *, retryable: bool = False, line: int = 0) -> TaskError:
    """The error for a log that cannot be used, naming it and the cure."""
    message = f"the Task log {path} cannot be used: {why}"
    details: dict[str, object] = {"path": str(path)}
    if line:
        message += ". Mend or remove the line, or move the file away"
        details["line"] = line
    return TaskError(ErrorCode.TASK_WAL_UNAVAILABLE, message, retryable, details)
