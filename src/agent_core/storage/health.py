"""Examines a session database without changing it."""

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from msgspec import Struct

from agent_core.errors import ErrorCode, StorageError
from agent_core.storage import migrations
from agent_core.storage.connections import connect, size_of_files
from agent_core.storage.faults import explain, is_busy, is_read_only
from agent_core.storage.reading import UnlockedFile
from agent_core.storage.rows import table_of
from agent_core.storage.salvage import Salvage, is_damage
from agent_core.types import (
    AgentRecord,
    ArtifactRecord,
    Node,
    RunRecord,
    RuntimeEvent,
    SessionRecord,
)

if TYPE_CHECKING:
    from agent_core.types import DamagedRow

_WAIT_S = 1.0
_READ_S = 2.0
"""Seconds for which rows are read to find the damaged ones."""
_CHECKED_STEPS = 2_000_000
"""SQLite steps spent on the search for damage; a large database is checked only in part."""


class DatabaseHealth(Struct, frozen=True, kw_only=True):
    """The state of a session database.

    Attributes:
        version: version of its schema; None if there is no file yet.
        newest: newest schema version known to this program.
        size_bytes: size of the file and its log.
        free_bytes: free space on its disk.
        unused_bytes: free space in the file itself.
        is_locked: another process writes to it, or has not finished.
    """

    version: int | None
    newest: int
    size_bytes: int
    free_bytes: int
    unused_bytes: int = 0
    is_locked: bool = False


def examine(path: Path) -> DatabaseHealth:
    """Examine a database and its disk; blocks.

    Raises:
        StorageError: it cannot be read, is damaged, or of a newer version.
    """
    path = path.absolute()
    folder = next(folder for folder in path.parents if folder.exists())
    free = shutil.disk_usage(folder).free
    newest = migrations.MIGRATIONS[-1].version
    size = path.stat().st_size if path.exists() else 0
    if not size:
        return DatabaseHealth(version=None, newest=newest, size_bytes=0, free_bytes=free)
    file = UnlockedFile(path)
    try:
        version, unused = file.read(lambda connection: _read(connection, path))
        is_locked = _is_locked(path)
    except sqlite3.Error as error:
        raise explain(error, path) from error
    finally:
        file.close()
    return DatabaseHealth(
        version=version,
        newest=newest,
        size_bytes=size_of_files(path),
        free_bytes=free,
        unused_bytes=unused,
        is_locked=is_locked,
    )


def find_damage(path: Path) -> "tuple[list[DamagedRow], bool]":
    """Return the damaged rows of a database of this version, and whether every row was read.

    Rows are read for a bounded time; blocks.

    Raises:
        StorageError: the database cannot be read.
    """
    file = UnlockedFile(path.absolute())
    try:
        return file.read(_read_rows)
    except sqlite3.Error as error:
        raise explain(error, path) from error
    finally:
        file.close()


def _read_rows(connection: sqlite3.Connection) -> "tuple[list[DamagedRow], bool]":
    from agent_core.types import ApprovalRecord  # noqa: PLC0415 - only checks read every kind

    connection.row_factory = sqlite3.Row
    salvage, ends_at = Salvage(), monotonic() + _READ_S
    kinds = (SessionRecord, AgentRecord, RunRecord, Node, RuntimeEvent, ArtifactRecord)
    for kind in (*kinds, ApprovalRecord):
        table, _ = table_of(kind)
        try:
            for row in connection.execute(f"SELECT * FROM {table}"):  # noqa: S608 - our own names
                if monotonic() > ends_at:
                    return salvage.damaged, False
                salvage.read(kind, row)
        except sqlite3.Error as error:
            if not is_damage(error):
                raise
            salvage.note(table, "?", f"the rows behind it are not read: {error}")
    return salvage.damaged, True


def _read(connection: sqlite3.Connection, path: Path) -> tuple[int, int]:
    """Return the version of the schema, and the free bytes in the file."""
    version = migrations.version_of(connection, path)
    unused, size = (
        connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("freelist_count", "page_size")
    )
    steps = iter(range(_CHECKED_STEPS // 1000))
    connection.set_progress_handler(lambda: next(steps, None) is None, 1000)
    try:
        (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
            raise
        found = "ok"
    finally:
        connection.set_progress_handler(None, 0)
    if found != "ok":
        message = f"the session database {path} is damaged: {found}; restore it from a backup"
        raise StorageError(ErrorCode.STORAGE_ERROR, message, details={"path": str(path)})
    return version, unused * size


def _is_locked(path: Path) -> bool:
    """Return whether a write would have to wait; nothing is written.

    Without an index beside it, no process has the database open.
    """
    if not os.access(f"{path}-shm", os.R_OK | os.W_OK):
        return False
    with closing(connect(path, timeout=_WAIT_S)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
        except sqlite3.OperationalError as error:
            if is_read_only(error):
                return False
            if not is_busy(error):
                raise
            return True
    return False
