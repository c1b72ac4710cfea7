"""Open and read files, except those of a database that this process has open.

POSIX drops every lock that a process holds on a file when the process closes any descriptor of it.
SQLite relies on these locks. Without them another process may think it is the last user of the
database, and delete the log that this process writes. All modules therefore open files with the
functions here, and `agent_core.storage.connections` registers each database while it is open.
"""

import errno
import os
import stat
import time
from _thread import RLock
from collections.abc import Iterator
from contextlib import suppress
from io import BufferedReader
from pathlib import Path

SIDE_FILES = ("-wal", "-shm", "-journal")
"""Endings that SQLite appends to the name of a database for its other files."""

_Identity = tuple[int, int]

# Windows has neither; there the commands load this module only to say that they do not run.
_ONLY_FOLDERS = getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_PATH", 0)
_ONLY_NEW = os.O_CREAT | os.O_EXCL
_REASON = (
    "it belongs to a database that this process has open, and reading it here would release"
    " the locks on it; use SQLite, for example `sqlite3 FILE '.backup COPY'`"
)

_BEGINNING = b"SQLite format 3\0"

MAX_TEXT_BYTES = 262_144
"""Most bytes that are kept of an instruction file or a skill."""
HEAD_BYTES = 16_384
"""Bytes that are enough for any front matter."""
FileVersion = tuple[int, int, int, int]
_SETTLED_NS = 2_000_000_000
"""No file system's clock is coarser: an older file was not changed twice within one tick."""


class DatabaseInUseError(PermissionError):
    """The file belongs to a database that this process has open."""


class HeldDatabase:
    """A registered database: nothing in this process opens its files until it is released.

    Args:
        path: the database file, which exists.

    Raises:
        OSError: there is no such file.
    """

    def __init__(self, path: Path) -> None:
        place = os.path.realpath(path)
        identity = _identity_of(path.stat())
        with _changing:
            self._files = _open_databases.setdefault(identity, _Files(place, identity))
            self._files.holders += 1
        self._is_settled = self._is_released = False

    def settle(self) -> None:
        """Record that SQLite has opened the files beside the database, which now stay the same."""
        with _changing:
            if not self._is_settled and not self._is_released:
                self._is_settled = True
                self._files.settle()

    def release(self) -> None:
        """Allow opening the files again, once no other holder is left. May be called again."""
        with _changing:
            if self._is_released:
                return
            self._is_released = True
            self._files.holders -= 1
            self._files.settled -= self._is_settled
            if not self._files.holders:
                del _open_databases[self._files.identity]
                for descriptor in self._files.kept:
                    os.close(descriptor)


class _Files:
    """The files of one database.

    Attributes:
        identity: device and inode of the database file.
        path: its path, resolved.
        holders: the number of connections that hold the files.
        settled: the number of those that have the files beside the database open.
        kept: descriptors that must not be closed before the last connection.
    """

    def __init__(self, path: str, identity: _Identity) -> None:
        self.identity = identity
        self.path = path
        self.holders = self.settled = 0
        self.kept: list[int] = []
        self._beside: frozenset[_Identity] = frozenset()

    def settle(self) -> None:
        """Remember the files beside the database for as long as a settled connection is open."""
        self.settled += 1
        self._beside = frozenset(self._look_beside())

    def have(self, file: _Identity) -> bool:
        """Return whether a file is one of the database's files."""
        if file[0] != self.identity[0]:
            return False
        beside = self._beside if self.settled else self._look_beside()
        return file == self.identity or file in beside

    def _look_beside(self) -> Iterator[_Identity]:
        for end in SIDE_FILES:
            with suppress(OSError):
                yield _identity_of(os.stat(f"{self.path}{end}"))  # noqa: PTH116 - for each file


_open_databases: dict[_Identity, _Files] = {}
_changing = RLock()  # the garbage collector may release a database in any line
if hasattr(os, "register_at_fork"):  # no other thread may hold it in a forked process
    os.register_at_fork(
        before=_changing.acquire,
        after_in_parent=_changing.release,
        after_in_child=_changing.release,
    )


def open_descriptor(
    path: str | bytes | os.PathLike[str],
    flags: int,
    mode: int = 0o777,
    *,
    dir_fd: int | None = None,
) -> int:
    """Return a descriptor, as `os.open` does.

    Raises:
        DatabaseInUseError: the file belongs to a database that this process has open.
        OSError: it cannot be opened.
    """
    if not _open_databases or flags & _ONLY_FOLDERS or flags & _ONLY_NEW == _ONLY_NEW:
        return os.open(path, flags, mode, dir_fd=dir_fd)
    follow = not flags & os.O_NOFOLLOW
    with suppress(FileNotFoundError):  # it may be about to be created
        found = os.stat(path, dir_fd=dir_fd, follow_symlinks=follow)
        _refuse(_database_of(found), path)
    descriptor = os.open(path, flags & ~os.O_TRUNC, mode, dir_fd=dir_fd)
    found = os.fstat(descriptor)
    if database := _database_of(found):  # swapped in a moment ago
        with _changing:
            database.kept.append(descriptor)
        _refuse(database, path)
    if flags & os.O_TRUNC and stat.S_ISREG(found.st_mode):
        os.ftruncate(descriptor, 0)
    return descriptor


def open_binary(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a file for reading bytes.

    Raises:
        OSError: it cannot be opened, or belongs to an open database.
    """
    return os.fdopen(open_descriptor(path, os.O_RDONLY | os.O_CLOEXEC), "rb")


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a file.

    Raises:
        OSError: it cannot be read, or belongs to an open database.
    """
    with open_binary(path) as file:
        return file.read()


def read_beginning(path: str | os.PathLike[str], limit: int) -> bytes:
    """Return the beginning of a regular file; empty for anything else, or if it cannot be read.

    It does not wait for a pipe.
    """
    with suppress(OSError, ValueError):
        descriptor = open_descriptor(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                return file.read(limit)
    return b""


def read_text(path: str | os.PathLike[str], encoding: str = "utf-8") -> str:
    r"""Return the text of a file, with `\\n` at the end of each line.

    Raises:
        OSError: it cannot be read, or belongs to an open database.
        UnicodeDecodeError: it is no text of this encoding.
    """
    descriptor = open_descriptor(path, os.O_RDONLY | os.O_CLOEXEC)
    with os.fdopen(descriptor, encoding=encoding) as file:
        return file.read()


_NO_REPLACEMENT = {errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY}
"""Errors of a file that may be changed in a folder that may not, or is mounted by itself."""


def write_text(path: str | os.PathLike[str], text: str, *, errors: str = "strict") -> None:
    """Replace a file by a text in UTF-8, at once and with its mode; create it if needed.

    Whatever happens, it is the old file or the new one. Only what is no ordinary file, such as a
    pipe, and a file in a folder that cannot be changed or mounted by itself, are written in place.
    A file that its user may only read is not replaced.

    Raises:
        OSError: it cannot be written, or belongs to a database.
        UnicodeEncodeError: the text cannot be encoded.
    """
    data = text.encode(errors=errors)
    refuse_database(path)
    try:
        _write(path, data)
    except OSError as error:
        error.filename = os.fspath(path)  # and not the draft
        raise


def _write(path: str | os.PathLike[str], data: bytes) -> None:
    place = os.path.realpath(path)
    before = None
    with suppress(FileNotFoundError):
        before = Path(place).stat()
    if _is_replaceable(path, before):
        try:
            _replace(place, data, before)
        except OSError as error:
            if before is None or error.errno not in _NO_REPLACEMENT:
                raise
        else:
            return
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    with os.fdopen(open_descriptor(path, flags, 0o666), "wb") as file:
        file.write(data)


def _is_replaceable(path: str | os.PathLike[str], before: os.stat_result | None) -> bool:
    """Return whether another file may take the place of this one, which others have not opened."""
    is_descriptor = os.path.abspath(path).startswith(("/dev/", "/proc/"))  # noqa: PTH100 - links stay
    if is_descriptor or os.fspath(path).endswith("/"):
        return False
    if before is None:
        return True
    is_own = before.st_uid == os.geteuid() and before.st_nlink == 1
    return is_own and stat.S_ISREG(before.st_mode) and bool(before.st_mode & stat.S_IWUSR)


def _replace(place: str, data: bytes, before: os.stat_result | None) -> None:
    """Put a new file in the place of another one, or of none."""
    folder, name = os.path.split(place)
    draft = f"{folder}/.{name[:40]}.{os.urandom(4).hex()}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(draft, flags, 0o666), "wb") as file:
        try:
            if before is not None:
                os.fchmod(file.fileno(), stat.S_IMODE(before.st_mode))
            file.write(data)
            file.flush()
            if before is not None:
                os.fsync(file.fileno())
            os.replace(draft, place)  # noqa: PTH105 - text
        except BaseException:
            os.unlink(draft)  # noqa: PTH108 - text
            raise


def refuse_open_database(path: str | os.PathLike[str]) -> None:
    """Check a path that a library is about to open; a missing file is fine.

    Raises:
        DatabaseInUseError: the file belongs to a database that this process has open.
        OSError: it cannot be looked at.
    """
    if _open_databases:
        with suppress(FileNotFoundError, NotADirectoryError):
            _refuse(_database_of(Path(path).stat()), path)


def open_database_paths() -> list[str]:
    """Return the resolved paths of the databases that this process has open."""
    return [files.path for files in tuple(_open_databases.values()) if files.settled]


def refuse_database(path: str | os.PathLike[str]) -> None:
    """Check a path that output is about to replace; a missing file is fine.

    Raises:
        DatabaseInUseError: the file belongs to a database, open here or not.
        OSError: it cannot be looked at.
    """
    refuse_open_database(path)
    name = os.path.realpath(path)
    for end in ("", *SIDE_FILES):
        if name.endswith(end) and _is_database(name.removesuffix(end)):
            reason = "it belongs to a database, which output does not replace; name another file"
            raise DatabaseInUseError(errno.EACCES, reason, name)


def _is_database(name: str) -> bool:
    """Return whether a file begins like a database of SQLite."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        if not stat.S_ISREG(Path(name).stat().st_mode):
            return False
        with os.fdopen(open_descriptor(name, flags), "rb") as file:
            return file.read(len(_BEGINNING)) == _BEGINNING
    except DatabaseInUseError:
        return True
    except OSError:
        return False


def _database_of(status: os.stat_result) -> _Files | None:
    file = _identity_of(status)
    return next((each for each in tuple(_open_databases.values()) if each.have(file)), None)


def _refuse(database: _Files | None, path: str | bytes | os.PathLike[str]) -> None:
    if database is not None:
        raise DatabaseInUseError(errno.EACCES, _REASON, os.fsdecode(path))


def _identity_of(status: os.stat_result) -> _Identity:
    return status.st_dev, status.st_ino


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Return whether a folder is here that can be looked at.

    `Path.is_dir` raises some errors before Python 3.14, such as those of a closed folder above it
    and of a name that is too long. So do `is_file` and `exists`, for which the others here are.
    """
    return os.path.isdir(path)  # noqa: PTH112 - see above


def is_file(path: str | os.PathLike[str]) -> bool:
    """Return whether an ordinary file is here that can be looked at."""
    return os.path.isfile(path)  # noqa: PTH113 - see above


def is_there(path: str | os.PathLike[str]) -> bool:
    """Return whether anything is here that can be looked at."""
    return os.path.exists(path)  # noqa: PTH110 - see above


def is_settled(changed_ns: int) -> bool:
    """Return whether a change now would have another time than one at `changed_ns`."""
    return time.time_ns() - changed_ns >= _SETTLED_NS


def version_of(path: Path) -> FileVersion | None:
    """Return a value that identifies this content of a file; None while the file is too new.

    Raises:
        OSError: there is no such file.
    """
    found = os.stat(path)  # noqa: PTH116 - called for every file, in every run
    if not is_settled(max(found.st_mtime_ns, found.st_ctime_ns)):
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def read_text_file(path: Path, limit: int) -> bytes:
    """Read the first `limit` bytes of a regular file; never wait for a pipe.

    Raises:
        OSError: it cannot be read, or is not a regular file.
    """
    descriptor = open_descriptor(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(0, "it is not a regular file")
        return file.read(limit)
