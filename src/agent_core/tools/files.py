"""Opens and replaces files so that nothing swapped in between the check and the use is followed.

A path that was resolved and checked has no links in it. It is opened part by part beneath folder
descriptors, none of which may be a link: a folder that is swapped for a link in the meantime
gives an error, not a file. (`openat2` would do the same in one call, but Python has no binding for
it, and the walk works everywhere.)
"""

import errno
import os
import stat
from collections import OrderedDict
from collections.abc import Collection, Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

from agent_core.disk.folders import open_folder
from agent_core.disk.unfinished import UnfinishedWrites
from agent_core.errors import ErrorCode, ToolError
from agent_core.opening import open_descriptor

Version = tuple[int, ...]
"""Device, inode, size and time of change: different as soon as the content is."""

MAX_LOADED_BYTES = 32 * 2**20
"""A file beyond this is not held in memory: it can be read in pages, or replaced, not edited."""

_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_READABLE_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_REMEMBERED = 10_000
_CONTENT_FIELDS = 4
"""Of a status: all but the time at which its name, owner or mode has changed."""
_KERNEL_FOLDERS = {("/", "proc"), ("/", "sys"), ("/", "dev")}
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - ordinary files in an unordinary place

_CODES = {
    errno.ENOENT: ErrorCode.FILE_NOT_FOUND,
    errno.EEXIST: ErrorCode.PATH_CONFLICT,
    errno.EISDIR: ErrorCode.PATH_CONFLICT,
    errno.ENOTDIR: ErrorCode.PATH_CONFLICT,
    errno.ELOOP: ErrorCode.PATH_CONFLICT,
    errno.ENXIO: ErrorCode.PATH_CONFLICT,
    errno.ENAMETOOLONG: ErrorCode.VALIDATION_ERROR,
    errno.EACCES: ErrorCode.PERMISSION_DENIED,
    errno.EPERM: ErrorCode.PERMISSION_DENIED,
    errno.EROFS: ErrorCode.PERMISSION_DENIED,
}
_CURES = {
    errno.ENOENT: "there is no such file or folder",
    errno.ENOTDIR: "a part of the path is a file, or has become a link since it was looked at",
    errno.ELOOP: "it is a link that leads nowhere, or has become one since it was looked at",
    errno.ENXIO: "it is a socket, not a file",
}


class FileState(Struct, frozen=True):
    """A file at the time it was looked at.

    Attributes:
        status: device, inode, size, times of change; different as soon as it is touched.
        mode: its permission bits, owner and group, which a replacement gets too.
        content: all of it; None beyond `MAX_LOADED_BYTES`.
    """

    status: tuple[int, ...]
    mode: tuple[int, int, int]
    content: bytes | None

    @property
    def version(self) -> Version:
        """The same as long as the content is."""
        return self.status[:_CONTENT_FIELDS]


@contextmanager
def disk_errors(shown: str) -> Generator[None]:
    """Turn an error of the file system into one that a model can read.

    Raises:
        ToolError: with the code that fits.
    """
    try:
        yield
    except OSError as error:
        number = error.errno or 0
        reason = _CURES.get(number) or error.strerror or str(error)
        code = _CODES.get(number, ErrorCode.STORAGE_ERROR)
        raise ToolError(code, f"{shown}: {reason}") from error


def belongs_to_kernel(path: Path) -> bool:
    """Return whether a path is in a folder of devices or of access to running processes."""
    return path.parts[:2] in _KERNEL_FOLDERS and not path.is_relative_to(_SHARED_MEMORY)


def open_file(path: Path) -> BinaryIO:
    """Open a resolved path for reading, if it is an ordinary file. Never waits for a writer.

    Raises:
        OSError: it does not exist, or a link has replaced a part of the path.
        ToolError: `path_conflict`; it is a folder, a pipe, a device …
    """
    not_ordinary = ToolError(ErrorCode.PATH_CONFLICT, f"{path} is not an ordinary file")
    if belongs_to_kernel(path):
        raise not_ordinary
    with open_folder(path.parent) as folder:
        descriptor = open_descriptor(path.name or ".", _FILE, dir_fd=folder)
    with ExitStack() as on_failure:
        on_failure.callback(os.close, descriptor)
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise ToolError(ErrorCode.PATH_CONFLICT, f"{path} is a folder, not a file")
        if not stat.S_ISREG(mode):
            raise not_ordinary
        on_failure.pop_all()
    return os.fdopen(descriptor, "rb")


@contextmanager
def open_below(name: str, folder: int) -> Generator[int]:
    """A descriptor of a folder in another one, which can be listed; links are not followed."""
    descriptor = open_descriptor(name, _READABLE_FOLDER, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def read_state(path: Path) -> FileState | None:
    """Read the state of a file at a resolved path; None if there is nothing.

    Raises:
        OSError: it cannot be opened.
        ToolError: `path_conflict`; it is not an ordinary file.
    """
    try:
        file = open_file(path)
    except FileNotFoundError:
        return None
    with file:
        status = os.fstat(file.fileno())
        content = file.read() if status.st_size <= MAX_LOADED_BYTES else None
        mode = (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid)
        return FileState(_stat_fields(status), mode, content)


def version_of(file: BinaryIO) -> Version:
    """The version of an open file."""
    return _stat_fields(os.fstat(file.fileno()))[:_CONTENT_FIELDS]


def replace_file(
    path: Path,
    content: bytes,
    *,
    before: FileState | None,
    create_dirs: bool = True,
    unfinished: UnfinishedWrites,
) -> Version:
    """Put `content` at a resolved path, whole or not at all, on disk when this returns.

    Returns the version that is there now.

    Args:
        path: where; its folder is made if it is missing and `create_dirs`.
        content: all of it.
        before: what was there when the change was allowed; None for nothing.
        create_dirs: make missing folders.
        unfinished: where the write is noted, for the case that this process is killed.

    Raises:
        OSError: the disk is full, read-only …; the old content is still there.
        ToolError: `path_conflict`; the file has changed since it was looked at.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(open_folder(path.parent, create=create_dirs))
        name = stack.enter_context(unfinished.noted(path.parent))
        descriptor = open_descriptor(name, _NEW, 0o666 if before is None else 0o600, dir_fd=folder)
        with ExitStack() as on_failure:
            on_failure.callback(_unlink, name, folder)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                if before is not None:
                    bits, owner, group = before.mode
                    with suppress(OSError):  # only the superuser may give files away
                        os.fchown(descriptor, owner, group)
                    os.fchmod(descriptor, bits)
                os.fsync(descriptor)
                version = version_of(file)
            if read_state(path) != before:
                raise _conflict_error(path)
            if before is None:
                try:
                    os.link(
                        name, path.name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False
                    )
                except FileExistsError as error:  # another program has taken the name
                    raise _conflict_error(path) from error
                except OSError:  # a file system without links: the check just before has to do
                    os.rename(name, path.name, src_dir_fd=folder, dst_dir_fd=folder)
                else:
                    _unlink(name, folder)
            else:
                os.rename(name, path.name, src_dir_fd=folder, dst_dir_fd=folder)
            on_failure.pop_all()
        with open_below(".", folder) as readable, suppress(OSError):
            os.fsync(readable)  # some file systems cannot, and need not
    return version


def _unlink(name: str, folder: int) -> None:
    with suppress(OSError):
        os.unlink(name, dir_fd=folder)


def _stat_fields(status: os.stat_result) -> tuple[int, ...]:
    times = (status.st_mtime_ns, status.st_ctime_ns)
    return (status.st_dev, status.st_ino, status.st_size, *times)


def _conflict_error(path: Path) -> ToolError:
    message = f"{path} changed on disk since it was looked at; read it again"
    return ToolError(ErrorCode.PATH_CONFLICT, message, details={"reason": "changed_on_disk"})


class FileVersionTracker:
    """The version of each file that each agent has read last, in memory only.

    An edit is planned on the version an agent has read. If the file has changed since, the edit may
    undo the work of another, so the file has to be read again. Files never read are not tracked.
    """

    def __init__(self) -> None:
        self._versions: OrderedDict[tuple[str, Path], Version] = OrderedDict()

    def note_write(self, agent_id: str, path: Path, version: Version) -> None:
        """Remember that an agent has made this version of a file, if it had read the one before."""
        if (agent_id, path) in self._versions:
            self.note_read(agent_id, path, version)

    def note_read(self, agent_id: str, path: Path, version: Version) -> None:
        """Remember that an agent has read this version of a resolved path."""
        self._versions.pop((agent_id, path), None)  # so that it becomes the newest
        self._versions[agent_id, path] = version
        if len(self._versions) > _REMEMBERED:
            self._versions.popitem(last=False)

    def forget(self, agent_ids: Collection[str]) -> None:
        """Forget the versions these agents have read, because other versions replaced the files."""
        for key in [key for key in self._versions if key[0] in agent_ids]:
            del self._versions[key]

    def require_current(self, agent_id: str, path: Path, version: Version, *, shown: str) -> None:
        """Return if the agent has read this version, or none at all.

        Raises:
            ToolError: `path_conflict`; it knows an older one.
        """
        if self._versions.get((agent_id, path), version) != version:
            message = f"{shown} changed on disk since you read it; read it again"
            details = {"reason": "changed_on_disk"}
            raise ToolError(ErrorCode.PATH_CONFLICT, message, details=details)
