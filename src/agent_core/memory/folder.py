"""The memory folder: reading it, writing it, and the one lock that writers of all processes share.

Every method does file work and blocks: call it in a thread. A file is parsed again only when its
size, its time or its inode has changed.
"""

import codecs
import contextlib
import errno
import fcntl
import os
import re
import stat
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from agent_core.disk.locks import closing_lock
from agent_core.disk.unfinished import UnfinishedWrites
from agent_core.errors import AgentCoreError, ErrorCode
from agent_core.memory.entry import CATEGORIES, Memory, parse_memory
from agent_core.opening import open_descriptor

CATALOG = "MEMORY.md"
MAX_FILE_BYTES = 65_536
MAX_CATALOG_BYTES = 4 * 2**20
"""Room for tens of thousands of memories; a longer catalog is not rewritten."""

MOST_PROBLEMS = 20
"""Number of broken files that an event or an answer names."""

_LOCK = ".lock"
_PATIENCE_S = 10.0
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.:\-]{0,249}\.md"
_ENTRY = r"- \[[^\]]*\]\((?:" + "|".join(CATEGORIES) + r")/[^)]*\)"
_TITLE = "# Memory"

_Stamp = tuple[int, ...]
"""Distinguishes versions of a file without reading it; empty if its status cannot be read."""


class MemoryList(Struct, frozen=True):
    """All memories, newest first; `problems` names the files that were skipped, and why."""

    memories: Sequence[Memory] = ()
    problems: Sequence[str] = ()

    def get(self, memory_id: str) -> Memory | None:
        """Return the memory with this id, if there is one."""
        return next((one for one in self.memories if one.memory_id == memory_id), None)


class MemoryFolder:
    """The folder of one scope: `<root>/{user,feedback,reference}/*.md` and `<root>/MEMORY.md`.

    Links are not followed: all memories are inside this folder.

    Args:
        base: the memory folder of the home.
        below: names of the nested folders from `base` to the scope's own.
    """

    def __init__(self, base: Path, *below: str) -> None:
        self.root = base.joinpath(*below)
        self._base = base
        self._below = below
        self._parsed: dict[str, tuple[_Stamp, Memory | str]] = {}

    def read(self) -> MemoryList:
        """Read all memories; a file that cannot be read is one of `problems`.

        Raises:
            AgentCoreError: `memory_recall_failed`, the folder cannot be read.
        """
        found: dict[str, Memory] = {}
        problems: list[str] = []
        parsed: dict[str, tuple[_Stamp, Memory | str]] = {}
        for path, stamp, inside in self._files():
            known = self._parsed.get(path)
            shown = path.encode("utf-8", "replace").decode()
            try:
                one = known[1] if known and known[0] == stamp else _read_one(path, inside)
            except OSError as error:
                problems.append(f"{shown}: {error.strerror or error}")
                continue  # it may be readable the next time, without a change
            parsed[path] = stamp, one
            if isinstance(one, str):
                problems.append(f"{shown}: {one}")
            elif one.memory_id in found:
                problems.append(f"{path}: {found[one.memory_id].path} has the same id")
            else:
                found[one.memory_id] = one
        self._parsed = parsed
        newest = sorted(found.values(), key=lambda one: (one.created_at, one.path), reverse=True)
        return MemoryList(newest, problems)

    def find(self, memory_id: str, known: MemoryList) -> Memory | None:
        """Return a memory as it is now; `known` is what was read before, which spares a search.

        Raises:
            AgentCoreError: `memory_recall_failed`, the folder cannot be read.
        """
        memory = known.get(memory_id)
        if memory is not None:
            category, _, _ = memory.path.partition("/")
            with contextlib.suppress(OSError), self.opened(category) as inside:
                one = _read_one(memory.path, inside)
                if isinstance(one, Memory) and one.memory_id == memory_id:
                    return one
        return self.read().get(memory_id)

    def catalog(self) -> str:
        """Return the text of the catalog, up to `MAX_CATALOG_BYTES`; empty if it cannot be read."""
        try:
            with self.opened() as inside:
                content = _content(CATALOG, inside, MAX_CATALOG_BYTES)
        except (OSError, ValueError):
            return ""
        if len(content) > MAX_CATALOG_BYTES:
            content = content[:MAX_CATALOG_BYTES].rpartition(b"\n")[0]
        return _decode(content)

    def list_catalog(self, known: MemoryList) -> str:
        """Return the catalog of the files: the user's own lines of `MEMORY.md`, then one for each.

        Lines of `MEMORY.md` that name a file say nothing about it: the files do.
        """
        own = [line for line in self.catalog().splitlines() if not re.match(_ENTRY, line)]
        text = "\n".join(own).strip()
        lines = "\n".join(memory.as_catalog_line() for memory in known.memories)
        return "\n\n".join(part for part in ("" if text == _TITLE else text, lines) if part)

    def catalog_lines(self) -> list[str]:
        """Return all lines of the catalog; bytes that are not UTF-8 survive being written back.

        Raises:
            OSError: it exists and cannot be read.
            ValueError: it is not a regular file, or is longer than `MAX_CATALOG_BYTES`.
        """
        try:
            with self.opened() as inside:
                content = _content(CATALOG, inside, MAX_CATALOG_BYTES)
        except FileNotFoundError:
            return []
        if len(content) > MAX_CATALOG_BYTES:
            raise ValueError(f"it is larger than {MAX_CATALOG_BYTES} bytes; make it shorter")
        return content.decode("utf-8", "surrogateescape").splitlines()

    def text(self, path: str) -> str:
        """Read a text file below the folder.

        Raises:
            OSError: it does not exist, is a link, or cannot be read.
            ValueError: it is not a regular file, is too large, or is not UTF-8.
        """
        folder, _, name = path.rpartition("/")
        with self.opened(folder) as inside:
            return _text(name, inside)

    @contextlib.contextmanager
    def opened(self, category: str = "", *, create: bool = False) -> Generator[int]:
        """Open the folder, or a category's, and yield its descriptor; links are refused.

        Raises:
            OSError: the folder does not exist and `create` is false, or it is a link.
        """
        if create:
            self._base.mkdir(mode=0o700, parents=True, exist_ok=True)
        inside = open_descriptor(self._base, _FOLDER)
        try:
            for name in (*self._below, category) if category else self._below:
                outer = inside
                inside = _open_inner(name, outer, create=create)
                os.close(outer)
            yield inside
        finally:
            os.close(inside)

    @contextlib.contextmanager
    def locked(self) -> Generator[None]:
        """Hold the lock of writers of all processes until the end of the block.

        Raises:
            AgentCoreError: `memory_write_failed`, another process kept it for too long, or the
              folder cannot be used.
        """
        try:
            with self.opened(create=True) as inside:
                flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                descriptor = open_descriptor(_LOCK, flags, 0o600, dir_fd=inside)
        except OSError as error:
            raise write_failed(f"the memory folder {self.root} cannot be used", error) from error
        with closing_lock(descriptor):
            _lock(descriptor)
            yield

    def _files(self) -> Iterator[tuple[str, _Stamp, int]]:
        """Yield every file that may be a memory: its path, its stamp, and its folder.

        The folder is a descriptor, open until the next file is asked for.
        """
        for category in CATEGORIES:
            try:
                with self.opened(category) as inside:
                    for name in sorted(os.listdir(inside)):  # noqa: PTH208 - a descriptor, no path
                        if name.endswith(".md") and name[0] != ".":
                            yield f"{category}/{name}", _stamp(inside, name), inside
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                if error.errno == errno.ELOOP:
                    continue
                message = f"the memory folder {self.root / category} cannot be read: {error}"
                raise AgentCoreError(ErrorCode.MEMORY_RECALL_FAILED, message) from error


class MemoryWriter:
    """The only writer of a memory folder; it changes nothing else. The caller holds the lock.

    It is not a tool, and no agent can reach it. Files are replaced as a whole, so a reader sees the
    old text or the new one; temporary files of a killed process are removed at the next start.

    Args:
        folder: the memory folder.
        unfinished: notes of writes in progress.
    """

    def __init__(self, folder: MemoryFolder, *, unfinished: UnfinishedWrites) -> None:
        self._folder = folder
        self._unfinished = unfinished

    def save(self, memory: Memory) -> None:
        """Write a memory's file, replacing an older version.

        Raises:
            AgentCoreError: `memory_write_failed`.
        """
        self.write(memory.path, memory.as_file())

    def forget(self, memory: Memory) -> None:
        """Delete a memory's file.

        Raises:
            AgentCoreError: `memory_write_failed`.
        """
        category, name = _split_path(memory.path)
        try:
            with self._folder.opened(category) as inside:
                os.unlink(name, dir_fd=inside)
                os.fsync(inside)
        except OSError as error:
            raise write_failed(f"{memory.path} cannot be deleted", error) from error

    def write_catalog(self, memories: Iterable[Memory]) -> None:
        """Rewrite the catalog in the given order; the user's own lines are kept.

        Raises:
            AgentCoreError: `memory_write_failed`.
        """
        try:
            before = self._folder.catalog_lines()
        except (OSError, ValueError) as error:
            raise write_failed(f"{CATALOG} cannot be read, so it is not written", error) from error
        own = "\n".join(line for line in before if not re.match(_ENTRY, line)).strip() or _TITLE
        lines = "\n".join(memory.as_catalog_line() for memory in memories)
        self.write(CATALOG, f"{own}\n\n{lines}\n" if lines else f"{own}\n")

    def write(self, path: str, text: str) -> None:
        """Replace a file below the folder as a whole: `MEMORY.md` or `<category>/<name>.md`.

        Raises:
            AgentCoreError: `memory_write_failed`: the path is another, leads elsewhere, or the
                disk refuses.
        """
        category, name = _split_path(path)
        try:
            data = text.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            data = text.encode("utf-8", "replace")
        folder = self._folder.root / category
        try:
            with self._folder.opened(category, create=True) as inside:
                with contextlib.suppress(FileNotFoundError):
                    known = os.stat(name, dir_fd=inside, follow_symlinks=False)
                    if not stat.S_ISREG(known.st_mode):
                        raise write_failed(f"{name} is not a regular file")
                with self._unfinished.noted(folder) as temporary:
                    _replace(inside, name, data, temporary=temporary)
        except OSError as error:
            raise write_failed(f"{path} cannot be written", error) from error


def _open_inner(name: str, outer: int, *, create: bool) -> int:
    if create:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=outer)
            os.fsync(outer)
    return open_descriptor(name, _FOLDER, dir_fd=outer)


def _split_path(path: str) -> tuple[str, str]:
    """Split a path that may be written into its category and its name.

    Raises:
        AgentCoreError: `memory_write_failed`, the path may not be written.
    """
    category, _, name = path.rpartition("/")
    if path == CATALOG or (category in CATEGORIES and re.fullmatch(_NAME, name)):
        return category, name
    shown = str(Path(path))[:200]
    folders = ", ".join(CATEGORIES)
    raise write_failed(f"{shown!r} is not a place for a memory; places are {CATALOG} and {folders}")


def _replace(inside: int, name: str, data: bytes, *, temporary: str) -> None:
    descriptor = open_descriptor(temporary, _CREATE, 0o600, dir_fd=inside)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, name, src_dir_fd=inside, dst_dir_fd=inside)
    except BaseException:
        os.unlink(temporary, dir_fd=inside)
        raise
    os.fsync(inside)


def _lock(descriptor: int) -> None:
    end = time.monotonic() + _PATIENCE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in {errno.EWOULDBLOCK, errno.EACCES, errno.EINTR}:
                return  # a file system without locks, which suits a single process only
            if time.monotonic() > end:
                raise write_failed("another process writes memories", error) from error
            time.sleep(0.02)
        else:
            return


def _read_one(path: str, inside: int) -> Memory | str:
    """Return a memory, or the reason why the file is not one.

    Raises:
        OSError: it cannot be read.
    """
    try:
        return parse_memory(_text(path.rpartition("/")[2], inside), path)
    except ValueError as error:
        return str(error)


def _text(name: str, inside: int) -> str:
    content = _content(name, inside, MAX_FILE_BYTES)
    if len(content) > MAX_FILE_BYTES:
        raise ValueError(f"it is larger than {MAX_FILE_BYTES} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None


def _decode(content: bytes) -> str:
    """Decode the catalog: people edit it in their encoding, and it is added to in UTF-8."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        from agent_core.tools.text import decode_text  # noqa: PLC0415 - nearly all are UTF-8
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return decode_text(content)
    lines = content.splitlines()
    others = [line for line in lines if not _is_utf8(line)]
    decoded = iter(decode_text(b"\n".join(others)).split("\n"))
    return "\n".join(line.decode() if _is_utf8(line) else next(decoded, "") for line in lines)


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _content(name: str, inside: int, limit: int) -> bytes:
    """Read a file in an open folder, up to one byte beyond `limit`."""
    descriptor = open_descriptor(name, _READ, dir_fd=inside)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("it is not a regular file")
        return file.read(limit + 1)


def _stamp(inside: int, name: str) -> _Stamp:
    try:
        status = os.stat(name, dir_fd=inside, follow_symlinks=False)
    except OSError:
        return ()
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


def write_failed(what: str, error: Exception | None = None) -> AgentCoreError:
    """Build the error for a memory that could not be written."""
    message = f"{what}: {error}" if error else what
    return AgentCoreError(ErrorCode.MEMORY_WRITE_FAILED, message)
