"""The folder of a session's logs, reached without following a link that a project put there."""

import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from agent_core.errors import ErrorCode, TaskError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
SUFFIX = ".wal.jsonl"


class LogFolder:
    """`<wal_dir>/<session_id>`, made when the first Task is.

    Args:
        wal_dir: where the logs of all sessions are, resolved.
        session_id: a checked session id, safe as a folder's name.
        project_dir: the project, resolved. Below it every folder must be a real one: what comes
            with a project must not send our files elsewhere.
    """

    def __init__(self, wal_dir: Path, session_id: str, *, project_dir: Path) -> None:
        self.path = wal_dir / session_id
        self.session_id = session_id
        inside = wal_dir.is_relative_to(project_dir)
        self._base = project_dir if inside else wal_dir
        self._parts = self.path.relative_to(self._base).parts

    def names(self) -> list[str]:
        """The logs there are: file names, sorted; none if there is no folder yet.

        Raises:
            TaskError: `task_wal_unavailable`, the folder cannot be used.
        """
        try:
            with self._opened(create=False) as folder:
                names = os.listdir(folder)  # noqa: PTH208 - of a descriptor, not of a path
                return sorted(name for name in names if name.endswith(SUFFIX))
        except FileNotFoundError:
            return []

    def open(self, name: str, flags: int) -> int:
        """Open a log and return its descriptor, closed by the caller; `O_CREAT` makes the folder.

        Raises:
            FileNotFoundError, FileExistsError: as `os.open` does.
            TaskError: `task_wal_unavailable`, the folder or the file is not a real one.
        """
        creates = bool(flags & os.O_CREAT)
        with self._opened(create=creates) as folder:
            try:
                opened = os.open(name, flags | _FILE, 0o600, dir_fd=folder)
            except (FileNotFoundError, FileExistsError):
                raise
            except OSError as error:
                raise self._unusable(self.path / name, error) from error
            if not stat.S_ISREG(os.fstat(opened).st_mode):
                os.close(opened)
                raise self._unusable(self.path / name, "not a regular file")
            if creates:
                os.fsync(folder)
            return opened

    def delete(self, name: str) -> None:
        """Remove a log.

        Raises:
            OSError: as `os.unlink` does.
        """
        with self._opened(create=False) as folder:
            os.unlink(name, dir_fd=folder)

    @contextmanager
    def _opened(self, *, create: bool) -> Generator[int]:
        if create:
            self._base.mkdir(mode=0o700, parents=True, exist_ok=True)
        here = os.open(self._base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in self._parts:
                inner = self._enter(here, part, create=create)
                os.close(here)
                here = inner
            yield here
        finally:
            os.close(here)

    def _enter(self, outer: int, part: str, *, create: bool) -> int:
        if create:
            try:
                os.mkdir(part, 0o700, dir_fd=outer)
            except FileExistsError:
                pass
            except OSError as error:
                raise self._unusable(self.path, error) from error
        try:
            return os.open(part, _FOLDER, dir_fd=outer)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self._unusable(self.path, error) from error

    def _unusable(self, path: Path, why: object) -> TaskError:
        message = (
            f"Task logs cannot be kept in {path}: {why}. "
            "It must be a real file in real folders that this user can write, without links"
        )
        return TaskError(ErrorCode.TASK_WAL_UNAVAILABLE, message, details={"path": str(path)})
