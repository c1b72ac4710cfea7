"""The memory folder: reading it, and the one lock that writers of all processes share.

Every method does file work at once: call it in a thread.
"""

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent_core.errors import AgentCoreError, ErrorCode
from agent_core.memory.entry import CATEGORIES, Memory, parse_memory

CATALOG = "MEMORY.md"
MAX_FILE_BYTES = 65_536

_LOCK = ".lock"
_PATIENCE_S = 10.0
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Remembered:
    """Every memory, the newest first. `problems` says which files were passed over, and why."""

    memories: Sequence[Memory] = ()
    problems: Sequence[str] = ()

    def get(self, memory_id: str) -> Memory | None:
        """The memory with this id, if there is one."""
        return next((one for one in self.memories if one.memory_id == memory_id), None)


class MemoryFolder:
    """Where memories lie: `<root>/{user,feedback,reference}/*.md` and `<root>/MEMORY.md`.

    Links are not followed: what is remembered lies here or nowhere.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def read(self) -> Remembered:
        """Read all memories.

        Raises:
            AgentCoreError: `memory_recall_failed`, the folder cannot be read.
        """
        found: dict[str, Memory] = {}
        problems: list[str] = []
        for path in self._paths():
            try:
                memory = parse_memory(self.text(path), path)
            except (OSError, ValueError) as error:
                problems.append(f"{path}: {error}")
                continue
            if memory.memory_id in found:
                problems.append(f"{path}: its id is that of {found[memory.memory_id].path}")
            else:
                found[memory.memory_id] = memory
        newest = sorted(found.values(), key=lambda one: (one.created_at, one.path), reverse=True)
        return Remembered(newest, problems)

    def catalog(self) -> str:
        """The catalog as it stands; empty if there is none that can be read."""
        try:
            return self.text(CATALOG)
        except (OSError, ValueError):
            return ""

    def text(self, path: str) -> str:
        """The text of a file below the folder.

        Raises:
            OSError: it is not there, is a link, or cannot be read.
            ValueError: it is no regular file, or too large.
        """
        folder, _, name = path.rpartition("/")
        with self.opened(folder) as inside:
            descriptor = os.open(name, _READ, dir_fd=inside)
            with os.fdopen(descriptor, "rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise ValueError("it is no regular file")
                if status.st_size > MAX_FILE_BYTES:
                    raise ValueError(f"it is larger than {MAX_FILE_BYTES} bytes")
                return file.read(MAX_FILE_BYTES).decode("utf-8", "replace").replace("\0", "")

    @contextlib.contextmanager
    def opened(self, category: str = "") -> Generator[int]:
        """A descriptor of the folder, or of a category's; links are refused.

        Raises:
            OSError: there is no such folder, or it is a link.
        """
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        root = os.open(self.root, flags)
        try:
            inside = os.open(category, flags, dir_fd=root) if category else os.dup(root)
        finally:
            os.close(root)
        try:
            yield inside
        finally:
            os.close(inside)

    @contextlib.contextmanager
    def locked(self) -> Generator[None]:
        """Be the only writer among all processes, until the end of the block.

        Raises:
            AgentCoreError: `memory_write_failed`, somebody else kept it for too long, or the
                folder cannot be used.
        """
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self.opened() as inside:
                flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                descriptor = os.open(_LOCK, flags, 0o600, dir_fd=inside)
        except OSError as error:
            raise write_failed(f"the memory folder {self.root} cannot be used", error) from error
        try:
            self._take(descriptor)
            yield
        finally:
            os.close(descriptor)

    def _take(self, descriptor: int) -> None:
        end = time.monotonic() + _PATIENCE_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in {errno.EWOULDBLOCK, errno.EACCES, errno.EINTR}:
                    return  # a file system without locks: one process is what it is made for
                if time.monotonic() > end:
                    raise write_failed("another process writes memories", error) from error
                time.sleep(0.02)
            else:
                return

    def _paths(self) -> list[str]:
        paths: list[str] = []
        for category in CATEGORIES:
            try:
                with self.opened(category) as inside:
                    names = sorted(os.listdir(inside))  # noqa: PTH208 - a descriptor, no path
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                if error.errno == errno.ELOOP:
                    continue
                message = f"the memory folder {self.root / category} cannot be read: {error}"
                raise AgentCoreError(ErrorCode.MEMORY_RECALL_FAILED, message) from error
            names = [name for name in names if name.endswith(".md") and name[0] != "."]
            paths += [f"{category}/{name}" for name in names]
        return paths


def write_failed(what: str, error: Exception | None = None) -> AgentCoreError:
    """The error for a memory that could not be written."""
    message = f"{what}: {error}" if error else what
    return AgentCoreError(ErrorCode.MEMORY_WRITE_FAILED, message)
