"""The POSIX locks that processes keep on the files of a database, as the kernel lists them."""

from pathlib import Path

import pytest

_LOCKS = Path("/proc/locks")
_KEPT = 128
"""The first byte of what a connection locks until it is closed; the bytes before it are locked for
the time of a query or a transaction."""

needs_locks = pytest.mark.skipif(not _LOCKS.exists(), reason="the kernel does not list its locks")


def locks_of(database: Path, *, pid: int | None = None) -> set[str]:
    """Return the locks that open connections keep; of all processes, or of one."""
    inodes = {str(file.stat().st_ino) for file in database.parent.glob(f"{database.name}*")}
    rows = [line.split() for line in _LOCKS.read_text("utf-8").splitlines() if "->" not in line]
    return {
        " ".join(row[1:])
        for row in rows
        if row[1] == "POSIX"
        and row[5].rpartition(":")[2] in inodes
        and int(row[6]) >= _KEPT
        and (pid is None or int(row[4]) == pid)
    }


def holders_of(database: Path) -> set[int] | None:
    """Return the processes with a lock on a database; None where the kernel lists no locks."""
    if not _LOCKS.exists():
        return None
    return {int(lock.split()[3]) for lock in locks_of(database)}
