"""Translates SQLite's errors into messages that say what a person can do."""

import os
import sqlite3
from pathlib import Path

from agent_core.errors import ErrorCode, StorageError
from agent_core.opening import SIDE_FILES
from agent_core.storage.rows import unstorable

_NOT_LOCKABLE = (
    "cannot be locked, as on some network file systems; keep the home directory on a local disk,"
    " or mount its file system with locks"
)
_ENVIRONMENT = {
    sqlite3.SQLITE_BUSY: "is held by another process; wait for it to finish, or end it",
    sqlite3.SQLITE_LOCKED: "is held by another process; wait for it to finish, or end it",
    sqlite3.SQLITE_FULL: "cannot grow, the disk is full; free some space and resume the session",
    sqlite3.SQLITE_READONLY: "is read-only; make the file and its folder writable for you",
    sqlite3.SQLITE_PERM: "may not be opened; make the file and its folder writable for you",
    sqlite3.SQLITE_AUTH: "may not be opened; make the file and its folder writable for you",
    sqlite3.SQLITE_IOERR: "cannot be read or written; check the disk, its quota and the limits"
    " on file size and open files, then resume the session",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened; check that its folder exists and is yours, and"
    " the limit on open files",
    sqlite3.SQLITE_NOMEM: "cannot be used, memory is short",
    sqlite3.SQLITE_CORRUPT: "is damaged; restore it from a backup, or move it away",
    sqlite3.SQLITE_NOTADB: "is not a session database; restore it from a backup, or move it away",
    sqlite3.SQLITE_PROTOCOL: _NOT_LOCKABLE,
}
_REFUSED_LOCKS = {
    sqlite3.SQLITE_IOERR_LOCK,
    sqlite3.SQLITE_IOERR_RDLOCK,
    sqlite3.SQLITE_IOERR_SHMLOCK,
    sqlite3.SQLITE_IOERR_CHECKRESERVEDLOCK,
}
"""Kinds of `SQLITE_IOERR`: it is not the disk that fails."""
_LASTING = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_PASSING = _ENVIRONMENT.keys() - _LASTING


def is_busy(error: sqlite3.Error) -> bool:
    """Return whether another process holds a lock, so that trying again helps."""
    return _primary_code(error) in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def is_read_only(error: sqlite3.Error) -> bool:
    """Return whether a necessary change was not possible on this connection."""
    return _primary_code(error) == sqlite3.SQLITE_READONLY


def is_environmental(error: Exception) -> bool:
    """Return whether the file or the machine failed, and not just this one write."""
    return isinstance(error, sqlite3.Error) and _primary_code(error) in _ENVIRONMENT


def explain(error: Exception, path: Path) -> Exception:
    """Return the error for the caller: a `StorageError` for everything that SQLite refuses."""
    if not isinstance(error, sqlite3.Error):
        return unstorable(error)
    code = _primary_code(error)
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    extended = getattr(error, "sqlite_errorcode", 0)
    meaning = _NOT_LOCKABLE if extended in _REFUSED_LOCKS else _ENVIRONMENT.get(code)
    if code == sqlite3.SQLITE_CANTOPEN and (closed := _closed_file(path)):
        meaning = f"cannot be opened: you may not read {closed}; make it readable for you"
    text = (
        f"the session database {path} {meaning}"
        if meaning
        else f"the session database {path} refused a write or a query ({name})"
    )
    explanation = StorageError(
        ErrorCode.STORAGE_ERROR,
        text,
        retryable=code in _PASSING,
        details={"path": str(path), "sqlite": name},
    )
    explanation.__cause__ = error
    return explanation


def not_lockable(path: Path, error: OSError) -> StorageError:
    """Return the error for a database in a folder whose files cannot be locked."""
    return StorageError(
        ErrorCode.STORAGE_ERROR,
        f"the session database {path} {_NOT_LOCKABLE} ({error.strerror})",
        details={"path": str(path)},
    )


def _closed_file(path: Path) -> Path | None:
    """Return a file of the database that exists and that this user may not read."""
    files = (path, *(Path(f"{path}{end}") for end in SIDE_FILES))
    return next((each for each in files if os.path.lexists(each) and not _may_read(each)), None)


def _may_read(path: Path) -> bool:
    # Opening and closing the file would release this process's locks on it.
    return os.access(path, os.R_OK, effective_ids=os.access in os.supports_effective_ids)


def _primary_code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
