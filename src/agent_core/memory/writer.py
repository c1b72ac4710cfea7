"""The only way to change the memory folder, and it changes nothing else.

It is no tool, and no agent can reach it. Files are replaced whole; a reader sees the old text or
the new one, and what a killed process leaves is removed at the next start.
"""

import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path

from agent_core.disk.unfinished import UnfinishedWrites
from agent_core.memory.entry import CATEGORIES, Memory, one_line
from agent_core.memory.folder import CATALOG, MemoryFolder, write_failed

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:\-]{0,249}\.md")
_ENTRY = re.compile(r"- \[[^\]]*\]\((?:" + "|".join(CATEGORIES) + r")/[^)]*\)")
_TITLE = "# Memory"


class MemoryWriter:
    """Writes into one memory folder; the caller holds its lock.

    Args:
        folder: where memories lie.
        unfinished: notes of writes in progress.
    """

    def __init__(self, folder: MemoryFolder, *, unfinished: UnfinishedWrites) -> None:
        self._folder = folder
        self._unfinished = unfinished

    def save(self, memory: Memory) -> None:
        """Write a memory's file, new or again.

        Raises:
            AgentCoreError: `memory_write_failed`.
        """
        self.write(memory.path, memory.as_file())

    def forget(self, memory: Memory) -> None:
        """Delete a memory's file.

        Raises:
            AgentCoreError: `memory_write_failed`.
        """
        category, name = _inside(memory.path)
        try:
            with self._folder.opened(category) as inside:
                os.unlink(name, dir_fd=inside)
                os.fsync(inside)
        except OSError as error:
            raise write_failed(f"{memory.path} cannot be deleted", error) from error

    def catalogue(self, memories: Iterable[Memory]) -> None:
        """Write the catalog anew, in the order given; lines of the user's own are kept.

        Raises:
            AgentCoreError: `memory_write_failed`.
        """
        try:
            before = self._folder.lines()
        except (OSError, ValueError) as error:
            raise write_failed(f"{CATALOG} cannot be read, so it is not written", error) from error
        own = "\n".join(line for line in before if not _ENTRY.match(line)).strip() or _TITLE
        lines = "\n".join(map(catalog_line, memories))
        self.write(CATALOG, f"{own}\n\n{lines}\n" if lines else f"{own}\n")

    def write(self, path: str, text: str) -> None:
        """Replace a file below the folder as a whole: `MEMORY.md` or `<category>/<name>.md`.

        Raises:
            AgentCoreError: `memory_write_failed`: it is another path, leads elsewhere, or the
                disk refuses.
        """
        category, name = _inside(path)
        try:
            if category:
                folder = self._folder.root / category
                folder.mkdir(mode=0o700, exist_ok=True)
            with self._folder.opened(category) as inside:
                _refuse_special(inside, name)
                with self._unfinished.noted(self._folder.root / category) as temporary:
                    _replace(inside, name, _encoded(text), temporary=temporary)
        except OSError as error:
            raise write_failed(f"{path} cannot be written", error) from error


def catalog_line(memory: Memory) -> str:
    """A memory's line in the catalog."""
    tags = f" [{', '.join(map(one_line, memory.tags))}]" if memory.tags else ""
    shown = one_line(memory.summary)
    return f"- [{memory.memory_id}]({memory.path}) {memory.category}: {shown}{tags}"


def _inside(path: str) -> tuple[str, str]:
    """The category and the name of a path that may be written.

    Raises:
        AgentCoreError: `memory_write_failed`, it is another path.
    """
    category, _, name = path.rpartition("/")
    is_catalog = path == CATALOG
    if is_catalog or (category in CATEGORIES and _NAME.fullmatch(name)):
        return category, name
    shown = str(Path(path))[:200]
    folders = ", ".join(CATEGORIES)
    raise write_failed(f"{shown!r} is no place for a memory; those are {CATALOG} and {folders}")


def _refuse_special(inside: int, name: str) -> None:
    try:
        found = os.stat(name, dir_fd=inside, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISREG(found.st_mode):
        raise write_failed(f"{name} is no regular file")


def _encoded(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


def _replace(inside: int, name: str, data: bytes, *, temporary: str) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o600, dir_fd=inside)
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
