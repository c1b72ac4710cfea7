"""Liveness of runtimes: each holds a file lock, which the kernel releases however the runtime ends.

An owner id contains its scope: the host and the folder of its lock file, by path and inode, since
two containers may have the same names. Between owners of one scope, locks decide, at once and
independently of clocks. Between scopes (two hosts, or two homes that share a database) a lock
cannot be inspected; there the lease decides, for a process that could have seen it renewed.
"""

import errno
import fcntl
import hashlib
import math
import os
import platform
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from agent_core.aio.loops import reset_after_fork
from agent_core.disk.folders import make_private
from agent_core.errors import ErrorCode, StorageError
from agent_core.opening import open_descriptor
from agent_core.types import new_id

HEARTBEAT = timedelta(seconds=10)
"""Time between two extensions of an owner's leases."""

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

_UNLOCKED = "lease"  # the scope of an owner whose file system has no locks


def now() -> float:
    """Return the seconds of a clock that continues in a pause or the machine's sleep."""
    return time.clock_gettime(_CLOCK)


class Owner:
    """This runtime as an owner of sessions, and its judgement of other owners.

    Attributes:
        owner_id: value of `sessions.owner` while a session belongs to this runtime.
    """

    def __init__(self, owner_id: str, folder: Path, *, heeds_leases: bool = False) -> None:
        self.owner_id = owner_id
        self._folder = folder
        self._heeds_leases = heeds_leases
        self._scope = _scope(folder)
        self._lease_s = 0.0
        self._leases: Mapping[str, float] = {}
        self._connected_at = self._heard_at = -math.inf
        self._descriptor: int | None = None

    @classmethod
    @contextmanager
    def open(cls, home: Path, *, heeds_leases: bool = False) -> Generator["Owner"]:
        """Hold a lock file until the end of the block.

        Args:
            home: the program's home; its locks are in `sessions/.owners`.
            heeds_leases: an owner whose lease is over is dead even if it holds its lock: it may be
                paused.

        Raises:
            StorageError: the folder or the lock file cannot be created.
        """
        folder = home.resolve() / "sessions" / ".owners"
        try:
            make_private(folder)
            owner_id, descriptor = _lock(folder)
        except OSError as error:
            is_full = error.errno in {errno.ENOSPC, errno.EDQUOT}
            cure = "free some space there" if is_full else "make the folder writable for you"
            raise StorageError(
                ErrorCode.STORAGE_ERROR,
                f"cannot hold a lock file in {folder}: {error.strerror}; {cure}",
                details={"path": str(folder)},
            ) from error
        owner = cls(owner_id, folder, heeds_leases=heeds_leases)
        owner._descriptor = descriptor
        reset_after_fork(owner)
        try:
            yield owner
        finally:
            owner._give_up()

    @classmethod
    def watching(cls, home: Path) -> "Owner":
        """Return a judge of the owners in a home, which owns nothing and writes nothing."""
        folder = home.resolve() / "sessions" / ".owners"
        try:
            return cls(f"{new_id('own')}.{_UNLOCKED}", folder)
        except OSError:  # the home has had no runtime yet, or cannot be read
            return cls.in_memory()

    @classmethod
    def in_memory(cls) -> "Owner":
        """Return an owner of sessions that no other process can see, without a lock file."""
        return cls(f"{new_id('own')}.{_UNLOCKED}", Path(os.devnull))

    def reset(self) -> None:
        """Leave the lock to the parent: a forked process would hold it after its death."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _give_up(self) -> None:
        """Release the lock, unless it belongs to the parent process."""
        if self._descriptor is not None:
            with suppress(OSError):
                _path(self._folder, self.owner_id).unlink(missing_ok=True)
            self.reset()

    def is_dead(self, owner_id: str, is_lease_over: bool) -> bool:
        """Return whether the runtime with this id is gone."""
        if owner_id == self.owner_id:
            return False
        if owner_id.rpartition(".")[2] == self._scope:
            is_free = _is_free(_path(self._folder, owner_id))
            if is_free is not None:
                return is_free or (self._heeds_leases and is_lease_over)
        return is_lease_over

    def heard(self, lease_s: float, leases: Mapping[str, float] | None = None) -> None:
        """Record that the shared database answered: other machines could have reached it, too.

        Args:
            lease_s: seconds of this runtime's lease; if it hears nothing for half of it, it may
                have been cut off.
            leases: seconds of other owners' leases, if they differ.
        """
        at = now()
        if at - self._heard_at > lease_s / 2:
            self._connected_at = at
        self._heard_at, self._lease_s = at, lease_s
        self._leases = self._leases if leases is None else leases

    def is_surely_dead(self, owner_id: str, is_lease_over: bool) -> bool:
        """Apply `is_dead` for a process that looks after all sessions.

        Where many machines share the database, a lease counts as over only for a process that was
        connected for a whole lease: after an outage, living owners have then had time to renew
        theirs.
        """
        if is_lease_over and self._heeds_leases:
            lease_s = self._leases.get(owner_id, self._lease_s)
            is_connected = now() - self._heard_at <= self._lease_s / 2
            is_lease_over = is_connected and self._heard_at - self._connected_at >= lease_s
        return self.is_dead(owner_id, is_lease_over)

    def find_dead(self) -> datetime | None:
        """Return when the first dead owner with a lock file began; None if there is none."""
        began: list[float] = []
        for path in self._folder.glob("*.lock"):
            with suppress(OSError):
                began += [path.stat().st_mtime] if _is_free(path) else []
        return datetime.fromtimestamp(min(began), tz=UTC) if began else None

    def sweep(self) -> None:
        """Remove the lock files of dead owners."""
        for path in self._folder.glob("*.lock"):
            _is_free(path, remove=True)


def _scope(folder: Path) -> str:
    found = folder.stat()
    place = f"{platform.node()}\0{folder}\0{found.st_dev}\0{found.st_ino}"
    return hashlib.sha256(place.encode(errors="replace")).hexdigest()[:12]


def _path(folder: Path, owner_id: str) -> Path:
    return folder / f"{owner_id}.lock"


def _lock(folder: Path) -> tuple[str, int]:
    """Create and hold a lock file of our own; return the owner id and the open descriptor."""
    while True:
        owner_id = f"{new_id('own')}.{_scope(folder)}"
        path = _path(folder, owner_id)
        descriptor = open_descriptor(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:  # a file system without locks: others have to use the lease
            path.unlink()
            return f"{new_id('own')}.{_UNLOCKED}", descriptor
        # A sweep may have removed the file as a dead owner's before this process held it.
        if os.fstat(descriptor).st_nlink:
            os.write(descriptor, f"{platform.node()} {os.getpid()}\n".encode(errors="replace"))
            return owner_id, descriptor
        os.close(descriptor)


def _is_free(path: Path, *, remove: bool = False) -> bool | None:
    """Return whether the lock is free, removing its file if asked; None if unknown."""
    try:
        descriptor = open_descriptor(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return True
    except (OSError, ValueError):  # the id may be any text
        return None
    try:
        # A shared lock: two processes that try at the same time do not block each other.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if remove:
            path.unlink(missing_ok=True)
    except BlockingIOError:
        return False
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return True
