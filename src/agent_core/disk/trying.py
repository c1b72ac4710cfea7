"""Tries whether a run could write files and folders, and leaves nothing behind."""

import errno
import os
import pwd
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from agent_core.opening import DatabaseInUseError, is_folder, open_descriptor

_TRIED_BYTES = 1 << 16
_TRIED = os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_HAS_EFFECTIVE_IDS = os.access in os.supports_effective_ids
_FULL = {errno.ENOSPC: "its disk is full", errno.EDQUOT: "the disk quota is used up"}


class WriteFault(Struct, frozen=True):
    """A file or folder that cannot be written, with the reason and a cure."""

    path: Path
    reason: str
    cure: str

    def __str__(self) -> str:
        return f"{self.path} cannot be written: {self.reason}"


def try_folder(folder: Path) -> WriteFault | None:
    """Write a file without a name into a folder, or into the nearest one that exists."""
    there = nearest_existing(folder)
    if not is_folder(there):
        return WriteFault(there, "it is not a folder", f"move {there} away")
    try:
        # The first kind of file never has a name; not every file system has it.
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(bytes(_TRIED_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return _fault(there, error)
    return None


def nearest_existing(folder: Path) -> Path:
    """Return a folder, or the nearest one above it that exists."""
    return next(each for each in (folder, *folder.parents) if os.path.lexists(each))


def try_file(path: Path) -> WriteFault | None:
    """Open a file for reading and writing, without changing it; a missing file is fine."""
    try:
        os.close(open_descriptor(path, _TRIED))
    except (FileNotFoundError, DatabaseInUseError):  # this process has opened it for writing
        return None
    except OSError as error:
        return _fault(path, error)
    return None


def try_tree(root: Path) -> Iterator[WriteFault]:
    """Try the files below a folder, and ask the system about the folders and the folder itself."""
    for place, _, files in os.walk(root):
        if not os.access(place, os.R_OK | os.W_OK | os.X_OK, effective_ids=_HAS_EFFECTIVE_IDS):
            refusal = PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            yield _fault(Path(place), refusal)
        for name in files:
            if (fault := try_file(Path(place, name))) is not None:
                yield fault


def _fault(path: Path, error: OSError) -> WriteFault:
    """Find out why the system refuses to write here."""
    if reason := _FULL.get(error.errno or 0):
        return WriteFault(path, reason, f"free some space for {path}")
    status = None
    with suppress(OSError):
        if os.statvfs(path).f_flag & os.ST_RDONLY:
            cure = f"mount the file system of {path} writable, or set $SOONG_AGENT_HOME"
            return WriteFault(path, "its file system is mounted read-only", cure)
        status = path.stat()
    if status is not None and status.st_uid != os.geteuid() and os.geteuid() != 0:
        cure = f"make it yours: sudo chown -R {_name(os.geteuid())} '{path}'"
        return WriteFault(path, f"it belongs to {_name(status.st_uid)}", cure)
    wanted = stat.S_IRUSR | stat.S_IWUSR | (stat.S_IXUSR if is_folder(path) else 0)
    if status is not None and status.st_mode & wanted != wanted:
        reason = f"its mode is {stat.S_IMODE(status.st_mode):04o}"
        return WriteFault(path, reason, f"change its mode: chmod u+rwX '{path}'")
    reason = error.strerror or str(error)
    cure = f"look at its attributes and access lists: lsattr -d '{path}', getfacl '{path}'"
    return WriteFault(path, reason, cure)


def _name(user: int) -> str:
    with suppress(KeyError):
        return pwd.getpwuid(user).pw_name
    return f"user {user}"
