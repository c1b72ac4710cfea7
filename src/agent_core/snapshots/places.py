"""Change single entries of a workspace, below a descriptor and never through a link."""

import os
import stat
from pathlib import Path
from typing import Self

from agent_core.disk.folders import change_mode, open_folder
from agent_core.opening import open_descriptor

OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
ROOT = b"."
"""The path of the workspace itself."""

_HANDLE = os.O_NOFOLLOW | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY | os.O_NONBLOCK)


class Places:
    """The entries of a workspace by path.

    Args:
        root: the workspace, resolved.

    Attributes:
        root: a descriptor of the workspace, which need not be readable.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, root: Path) -> None:
        with open_folder(root) as place:
            self.root: int = os.dup(place)
        self._path: bytes = b""
        self._folder = os.dup(self.root)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._folder)
        os.close(self.root)

    def parent(self, path: bytes) -> tuple[int, bytes]:
        """Return the folder around a path, open until the next call, and the last part of the path.

        Raises:
            OSError: there is no such folder, or there is a link in its place.
        """
        above, _, name = path.rpartition(b"/")
        if above != self._path:
            folder = self.open(above)
            os.close(self._folder)
            self._path, self._folder = above, folder
        return self._folder, name

    def forget(self) -> None:
        """Drop the cached folder, because folders were renamed."""
        os.close(self._folder)
        self._path, self._folder = b"", os.dup(self.root)

    def open(self, path: bytes) -> int:
        """Return a descriptor of a folder; the caller closes it.

        Raises:
            OSError: there is no such folder, or there is a link in its place.
        """
        if not path:
            return open_descriptor(ROOT, OPEN_FOLDER, dir_fd=self.root)
        folder = os.dup(self.root)
        for part in path.split(b"/"):
            try:
                inner = open_descriptor(part, OPEN_FOLDER, dir_fd=folder)
            finally:
                os.close(folder)
            folder = inner
        return folder

    def status(self, path: bytes) -> os.stat_result | None:
        """Return the status of an entry, of a link itself; None if there is nothing.

        Raises:
            OSError: its status cannot be read.
        """
        if path == ROOT:
            return os.fstat(self.root)
        try:
            folder, name = self.parent(path)
            return os.lstat(name, dir_fd=folder)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def set_mode(self, path: bytes, mode: int) -> None:
        """Set the permission bits of a file or folder; a link's stay unchanged.

        Raises:
            OSError: they cannot be set.
        """
        if path == ROOT:
            change_mode(self.root, mode)
            return
        folder, name = self.parent(path)
        set_mode(folder, name, mode)


def set_mode(folder: int, name: bytes, mode: int) -> None:
    """Set the permission bits of an entry of a folder, unless it is a link.

    Raises:
        OSError: they cannot be set.
    """
    handle = open_descriptor(name, _HANDLE, dir_fd=folder)
    try:
        if stat.S_ISLNK(os.fstat(handle).st_mode):
            return
        change_mode(handle, mode)
    finally:
        os.close(handle)
