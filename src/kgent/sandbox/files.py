"""The run's own files, which are hashed as they are written.

Programs started by the run can change these files, like any other program of the user. So the files
are compared with the hashes from the time of writing, and never read back to get them.
"""

import errno
import fcntl
import hashlib
import os
import secrets
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from agent_core.disk.folders import change_mode, open_folder
from agent_core.disk.unfinished import UnfinishedWrites
from agent_core.errors import AgentCoreError, ToolError
from agent_core.opening import open_descriptor
from agent_core.text import readable_name
from agent_core.text.json_text import JsonObject, JsonValue
from agent_core.tools.files import open_file, read_state, replace_file
from kgent.errors import Record

R = TypeVar("R")


PRIVATE_FILE = 0o600
PRIVATE_FOLDER = 0o700
UNFINISHED = ".kgent-unfinished"
"""The file next to run folders with notes about writes; it exists while a run writes."""
DISPLACED = "archive/displaced"
"""The folder for files that are moved away because they are in the place of a record."""
_CHUNK = 2**18
_UNREAD = getattr(os, "O_PATH", os.O_RDONLY | os.O_NONBLOCK) | os.O_NOFOLLOW | os.O_CLOEXEC
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_COPY = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FICLONE = 0x40049409  # of linux/fs.h: a file shares the blocks of another
DISK_FAILURES = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS}
_APPENDS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def name_bytes(path: str) -> str | None:
    """Return the path's bytes in hex if `readable_name` has to replace some; None if not."""
    raw = os.fsencode(path)
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.hex()
    return None


class NamedRecord(Record):
    """A path in a run folder.

    `path_hex` has the bytes of a path that is not UTF-8; `path` then is its `readable_name`.
    """

    path: str
    path_hex: Annotated[str, Field(pattern=r"^([0-9a-f]{2})+$")] | None = None

    @property
    def name(self) -> str:
        """Return the path for use in system calls."""
        return self.path if self.path_hex is None else os.fsdecode(bytes.fromhex(self.path_hex))

    @model_serializer(mode="wrap")
    def _without_absent_bytes(
        self, serialize: SerializerFunctionWrapHandler
    ) -> Mapping[str, JsonValue]:
        fields: JsonObject = serialize(self)
        return fields if self.path_hex else {k: v for k, v in fields.items() if k != "path_hex"}


class FileRecord(NamedRecord):
    """The state of a file: path in the run folder, size, SHA-256 in hex, octal mode.

    `sha256` is empty if the file was too large to read.
    """

    bytes: int
    sha256: str
    mode: str | None = None


class EditRecord(NamedRecord):
    """A file that was changed, added or removed between two attempts.

    Without a hash it is gone, is no file any more, or cannot be read.
    """

    bytes: int | None = None
    sha256: str | None = None


@dataclass(slots=True)
class _Content:
    """Size and hash of a file's content, and its descriptor while it is held open."""

    size: int = 0
    digest: Any = field(default_factory=hashlib.sha256)
    descriptor: int | None = None
    mode: int = PRIVATE_FILE

    def add(self, raw: bytes) -> None:
        self.size += len(raw)
        self.digest.update(raw)

    def record(self, name: str) -> FileRecord:
        return FileRecord(
            path=readable_name(name),
            bytes=self.size,
            sha256=self.digest.hexdigest(),
            mode=mode_text(self.mode),
            path_hex=name_bytes(name),
        )


def mode_text(mode: int) -> str:
    """Return the permissions of a file or folder as four octal digits."""
    return f"{stat.S_IMODE(mode):04o}"


def describe_file(root: Path, name: str, *, limit: int | None = None) -> FileRecord:
    """Return the current state of a file in the run folder `root`, which is a resolved path.

    Links are not followed. A file of more than `limit` bytes is not read. If it grows meanwhile,
    the added part is not read.
    """
    content = _Content()
    with open_file(root / name) as file:
        facts = os.fstat(file.fileno())
        is_read = limit is None or facts.st_size <= limit
        while is_read and (chunk := file.read(min(_CHUNK, facts.st_size - content.size))):
            content.add(chunk)
    found = content.record(name).model_copy(update={"mode": mode_text(facts.st_mode)})
    return found if is_read else found.model_copy(update={"bytes": facts.st_size, "sha256": ""})


OtherKind = Literal["folder", "link", "special", "unreadable"]
"""Kinds of entries other than files; an `unreadable` folder cannot be listed."""


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """An entry of a folder: its path in the folder, for system calls, and its kind."""

    name: str
    kind: Literal["file"] | OtherKind
    target: str | None = None
    mode: str | None = None


def walk_folder(root: Path, *, takes_rights: bool = False) -> Iterator[FolderEntry]:
    """Yield everything in a folder, each folder before its contents; links are not followed.

    Paths may have any length. With `takes_rights`, folders that their owner may not read are made
    readable.

    Raises:
        OSError: `root` cannot be listed.
    """
    waiting = [""]
    while waiting:
        name = waiting.pop()
        try:
            mode, entries = _list_folder(root, name, takes_rights=takes_rights)
        except OSError:
            if not name:
                raise
            yield FolderEntry(name, "unreadable")
            continue
        if name:
            yield FolderEntry(name, "folder", mode=mode)
        waiting += [entry.name for entry in entries if entry.kind == "folder"]
        yield from (entry for entry in entries if entry.kind != "folder")


def _list_folder(root: Path, folder: str, *, takes_rights: bool) -> tuple[str, list[FolderEntry]]:
    """Return the mode and the entries of a folder, which may have a path of any length."""
    found: list[FolderEntry] = []
    with open_folder(root / folder) as place:
        try:
            descriptor = open_descriptor(".", _LIST, dir_fd=place)
        except PermissionError:
            if not takes_rights:
                raise
            set_rights(place, added=stat.S_IRWXU)
            descriptor = open_descriptor(".", _LIST, dir_fd=place)
        try:
            with os.scandir(descriptor) as inside:
                for one in inside:
                    name = f"{folder}/{one.name}" if folder else one.name
                    try:
                        mode = one.stat(follow_symlinks=False).st_mode
                        link = stat.S_ISLNK(mode)
                        target = os.readlink(one.name, dir_fd=descriptor) if link else None
                    except FileNotFoundError:  # removed since the folder was listed
                        continue
                    if link:
                        found.append(FolderEntry(name, "link", target))
                    elif stat.S_ISDIR(mode):
                        found.append(FolderEntry(name, "folder"))
                    else:
                        kind = "file" if stat.S_ISREG(mode) else "special"
                        found.append(FolderEntry(name, kind, mode=mode_text(mode)))
            return mode_text(os.fstat(descriptor).st_mode), found
        finally:
            os.close(descriptor)


def copy_file(
    root: Path,
    name: str,
    place: Path,
    *,
    kept: int = 0o777,
    check: Callable[[], object] = lambda: None,
) -> FileRecord:
    """Copy a file to a new place, sharing its blocks if the file system can, and hash the copy.

    Args:
        root: a resolved folder.
        name: the file, below `root`. Links are not followed, and content that is added meanwhile is
          left out.
        place: the copy, in a folder that exists.
        kept: the permissions that the copy has as well.
        check: called before each piece; raises to end the copying.

    Raises:
        OSError, ToolError: the file cannot be read, or the copy cannot be written.
    """
    content = _Content()
    with open_file(root / name) as file, open_folder(place.parent) as folder:
        source, facts = file.fileno(), os.fstat(file.fileno())
        copy = open_descriptor(place.name, _COPY, PRIVATE_FILE, dir_fd=folder)
        try:
            size, is_shared = facts.st_size, False
            with suppress(OSError):
                fcntl.ioctl(copy, _FICLONE, source)
                size, is_shared = os.fstat(copy).st_size, True
            while chunk := os.read(copy if is_shared else source, min(_CHUNK, size - content.size)):
                check()
                content.add(chunk)
                if not is_shared:
                    write_all(copy, chunk)
            content.mode = stat.S_IMODE(facts.st_mode) & kept | stat.S_IRUSR
            os.fchmod(copy, content.mode)
        finally:
            os.close(copy)
    return content.record(name)


def make_readable(root: Path, name: str, *, mode: int | None = None) -> None:
    """Let the owner read a file of the run folder, or set its mode.

    Links are not followed. A file with a second name (hard link) is not changed, because that name
    may be outside the run folder.
    """
    path = root / name
    with open_folder(path.parent) as folder:
        descriptor = open_descriptor(path.name, _UNREAD, dir_fd=folder)
        try:
            found = os.fstat(descriptor)
            if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
                set_rights(descriptor, added=stat.S_IRUSR | stat.S_IWUSR, mode=mode)
        finally:
            os.close(descriptor)


def set_rights(descriptor: int, *, added: int, mode: int | None = None) -> None:
    """Set or add permissions of a file or folder whose descriptor need not allow reading."""
    known = stat.S_IMODE(os.fstat(descriptor).st_mode)
    wanted = known | added if mode is None else mode
    if wanted != known:
        change_mode(descriptor, wanted)


class RunFiles:
    """Writes the files that a run keeps about itself; may be used in several threads.

    Names are relative to `root`. Files that grow are kept open: if one is removed or replaced
    during the run, nothing is lost, and `restore` puts it back.

    Attributes:
        unfinished: notes of the writes in progress. If a program of the run makes them impossible,
          the records are still written.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.unfinished = UnfinishedWrites(root.parent / UNFINISHED, is_optional=True)
        self._lock = threading.RLock()
        self._written: dict[str, _Content] = {}
        self._locked: str | None = None
        self._is_closed = False

    def lock(self, name: str, descriptor: int) -> None:
        """Take over a growing file whose lock the caller has, and keep the lock until `close`."""
        with self._lock:
            self._locked = name
            self._written.setdefault(name, _Content()).descriptor = descriptor

    def adopt(self, name: str) -> None:
        """Continue a file that an earlier attempt has written, from its current content."""
        content = _Content()
        with open_file(self.root / name) as file:
            while chunk := file.read(_CHUNK):
                content.add(chunk)
            content.mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        with self._lock:
            known = self._written.get(name)
            content.descriptor = known.descriptor if known else None
            self._written[name] = content

    def expect_empty(self, names: Iterable[str]) -> None:
        """Register existing empty files."""
        with self._lock:
            for name in names:
                self._written.setdefault(name, _Content())

    def put(self, name: str, content: str | bytes, *, mode: int = PRIVATE_FILE) -> FileRecord:
        """Replace a whole file; it is on disk when this returns.

        If something else than an ordinary file has this name, it is moved to `archive/displaced/`.
        """
        raw = content.encode("utf-8", "replace") if isinstance(content, str) else content
        with self._lock:
            self._retry_after_clearing(lambda: self._replace(name, raw, mode=mode), name)
            written = _Content(mode=mode)
            written.add(raw)
            self._drop(name)
            self._written[name] = written
            return written.record(name)

    def append(self, name: str, raw: bytes) -> None:
        """Append bytes to a file, all of them or none."""
        with self._lock:
            descriptor = self.hold(name)
            start = os.fstat(descriptor).st_size
            try:
                write_all(descriptor, raw)
            except OSError:
                with suppress(OSError):
                    os.ftruncate(descriptor, start)
                raise
            self._written[name].add(raw)

    def hold(self, name: str) -> int:
        """Open a file that will grow, and keep it open; return its descriptor."""
        with self._lock:
            if self._is_closed:
                raise ValueError(f"the run is over; {name} takes no more lines")
            written = self._written.setdefault(name, _Content())
            if written.descriptor is None:
                written.descriptor = self._retry_after_clearing(
                    lambda: _open_to_append(self.root / name), name
                )
                if name == self._locked:  # it was put back; readers hold its lock for a moment
                    with suppress(OSError):
                        fcntl.flock(written.descriptor, fcntl.LOCK_EX)
            return written.descriptor

    def record(self, name: str) -> FileRecord | None:
        """Return the state of a file as it was written; None if the run did not write it."""
        with self._lock:
            written = self._written.get(name)
            return written.record(name) if written else None

    def find_changed(self, *names: str) -> dict[str, str]:
        """Return the files that differ from what was written, with the reason for each.

        Only the given ones are compared, or all if none is given.
        """
        with self._lock:
            found: dict[str, str] = {}
            for name, written in self._written.items():
                if names and name not in names:
                    continue
                held = written.descriptor
                if held is not None and not _is_same_file(self.root / name, held):
                    found[name] = "it was removed or replaced"
                    continue
                try:
                    now = describe_file(self.root, name, limit=written.size)
                    if (now.bytes, now.sha256) != (written.size, written.digest.hexdigest()):
                        found[name] = "its content was changed"
                except FileNotFoundError:
                    found[name] = "it was removed"
                except (OSError, AgentCoreError):
                    found[name] = "it is not an ordinary file that can be read"
        return found

    def restore(self) -> None:
        """Put back every growing file that was removed or replaced, and flush all of them.

        Every file that the run wrote gets its mode again, as far as the file system supports modes;
        the resulting mode is recorded.
        """
        with self._lock:
            for name, written in self._written.items():
                with suppress(OSError):
                    make_readable(self.root, name, mode=written.mode)
                if written.descriptor is None:
                    continue
                if _is_same_file(self.root / name, written.descriptor):
                    os.fsync(written.descriptor)
                    continue
                content = bytearray()
                while chunk := os.pread(
                    written.descriptor, written.size - len(content), len(content)
                ):
                    content += chunk
                self._retry_after_clearing(
                    lambda n=name, c=bytes(content): self._replace(n, c), name
                )
                self._drop(name)  # the next line goes to the restored file
            for name, written in self._written.items():
                with suppress(OSError):
                    found = (self.root / name).stat(follow_symlinks=False).st_mode
                    if stat.S_ISREG(found):
                        written.mode = stat.S_IMODE(found)

    def overwrite(self, name: str, content: str) -> None:
        """Overwrite a file in place, for a disk without room for a second copy."""
        raw = content.encode("utf-8", "replace")
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        with self._lock:
            descriptor = open_descriptor(self.root / name, flags, PRIVATE_FILE)
            try:
                write_all(descriptor, raw)
                os.ftruncate(descriptor, len(raw))
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def close(self) -> None:
        """Close every open file, and refuse further lines. May be called again."""
        with self._lock:
            self._is_closed = True
            for name, written in self._written.items():
                if written.descriptor is not None:
                    with suppress(OSError):
                        os.fsync(written.descriptor)
                    self._drop(name)

    def _replace(self, name: str, raw: bytes, *, mode: int = PRIVATE_FILE) -> None:
        path = self.root / name
        path.parent.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        try:
            before = read_state(path)
            replace_file(path, raw, before=before, unfinished=self.unfinished)
        except ToolError as error:  # not an ordinary file, or changed meanwhile
            raise OSError(errno.EEXIST, error.message) from error
        with suppress(OSError):  # not every file system has permissions
            make_readable(self.root, name, mode=mode)

    def _drop(self, name: str) -> None:
        known = self._written.get(name)
        if known is not None and known.descriptor is not None:
            os.close(known.descriptor)
            known.descriptor = None

    def _retry_after_clearing(self, write: Callable[[], R], name: str) -> R:
        """Write; if something is in the way, move it away and write again."""
        try:
            return write()
        except OSError as error:
            if error.errno in DISK_FAILURES:
                raise
            self._clear(name)
            return write()

    def _clear(self, name: str) -> None:
        """Make the parent folders exist and be writable, and move anything else at `name` away."""
        place = self.root
        if _is_in_the_way(place, is_folder=True):
            place.rename(place.with_name(f"displaced-{secrets.token_hex(4)}"))
        place.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        with suppress(OSError):
            place.chmod(PRIVATE_FOLDER)
        *folders, last = Path(name).parts
        for part in folders:
            place = place / part
            if _is_in_the_way(place, is_folder=True):
                self._displace(place)
            place.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
            with suppress(OSError):
                place.chmod(PRIVATE_FOLDER)
        if _is_in_the_way(place / last, is_folder=False):
            self._displace(place / last)
        with suppress(OSError):
            make_readable(self.root, name)

    def _displace(self, path: Path) -> None:
        name = f"{path.name}-{secrets.token_hex(4)}"
        displaced = self.root / DISPLACED
        if path in {displaced, *displaced.parents}:
            path.rename(self.root / f"displaced-{name}")
            return
        self._clear(f"{DISPLACED}/{name}")
        path.rename(displaced / name)


def _is_in_the_way(path: Path, *, is_folder: bool) -> bool:
    """Return whether the path is something other than the expected folder or ordinary file."""
    if path.is_symlink():
        return True
    return path.exists() and not (path.is_dir() if is_folder else path.is_file())


def _open_to_append(path: Path) -> int:
    path.parent.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
    descriptor = open_descriptor(path, _APPENDS, PRIVATE_FILE)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EEXIST, f"{path} is not an ordinary file")
    return descriptor


def write_all(descriptor: int, raw: bytes) -> None:
    """Write all bytes to an open file."""
    view = memoryview(raw)
    while view:
        view = view[os.write(descriptor, view) :]


def _is_same_file(path: Path, descriptor: int) -> bool:
    try:
        found = path.stat(follow_symlinks=False)
    except OSError:
        return False
    return os.path.samestat(found, os.fstat(descriptor))
