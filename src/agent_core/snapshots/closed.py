"""Open files and folders that their owner may not read, while they are recorded.

A run can take away the right to read what it has changed, and an undo has to see it nevertheless. A
note on the disk lists what is open, so that the next process closes it after a crash.
"""

import json
import os
import stat
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from agent_core.disk.folders import change_mode
from agent_core.opening import read_bytes
from agent_core.snapshots.catalogue import write_whole
from agent_core.snapshots.places import ROOT, Places, set_mode

_NEEDED = {stat.S_IFDIR: 0o700, stat.S_IFREG: 0o400}


class Opener:
    """Opens closed files and folders one after another, and closes them again.

    Args:
        note: the file that lists what is open.
        may_open: returns whether a path may be opened, given that the folders above it were.

    Attributes:
        opened: the paths that were opened at any time.
    """

    def __init__(self, note: Path, may_open: Callable[[bytes], bool]) -> None:
        self.opened: set[bytes] = set()
        self._note = note
        self._may_open = may_open
        self._open: list[tuple[bytes, int, int]] = []

    @contextmanager
    def open_entry(self, folder: int, name: bytes, path: bytes) -> Generator[int | None]:
        """Open an entry of a folder, if it is closed and may be opened.

        Yields:
            The permission bits that it had; None if it stays unchanged.

        Raises:
            OSError: they cannot be set, or the note cannot be written.
        """
        try:
            status = os.lstat(name, dir_fd=folder)
        except OSError:  # opening it fails in the same way
            yield None
            return
        rights = os.R_OK | os.X_OK if stat.S_ISDIR(status.st_mode) else os.R_OK
        if os.access(name, rights, dir_fd=folder, effective_ids=True):
            yield None
            return
        with self._opened(status, path, lambda mode: set_mode(folder, name, mode)) as mode:
            yield mode

    @contextmanager
    def open_root(self, root: int) -> Generator[int | None]:
        """Open the workspace itself by its descriptor, like `open_entry`.

        Raises:
            OSError: it cannot be opened.
        """
        if os.access(ROOT, os.R_OK | os.X_OK, dir_fd=root, effective_ids=True):
            yield None
            return
        with self._opened(os.fstat(root), ROOT, lambda mode: change_mode(root, mode)) as mode:
            yield mode

    @contextmanager
    def _opened(
        self, status: os.stat_result, path: bytes, set_mode_to: Callable[[int], None]
    ) -> Generator[int | None]:
        mode, needed = stat.S_IMODE(status.st_mode), _NEEDED.get(stat.S_IFMT(status.st_mode))
        if needed is None or status.st_uid != os.geteuid() or not self._may_open(path):
            yield None
            return
        self._open.append((path, mode, mode | needed))
        self._write()
        try:
            set_mode_to(mode | needed)
            self.opened.add(path)
            yield mode
        finally:
            with suppress(FileNotFoundError):
                set_mode_to(mode)
            self._open.pop()
            self._write()

    def _write(self) -> None:
        """Write the note of open paths; it remains for the next process if this one is killed."""
        if not self._open:
            self._note.unlink(missing_ok=True)
            return
        said = [[os.fsdecode(path), *modes] for path, *modes in self._open]
        write_whole(self._note, json.dumps(said).encode(), flush=False)


def close_again(root: Path, note: Path) -> None:
    """Close everything that a dead process has left open.

    Raises:
        OSError: the permission bits cannot be set.
    """
    said: list[tuple[str, int, int]] = []
    try:
        said = json.loads(read_bytes(note))
    except FileNotFoundError:
        return
    except ValueError:  # it was never complete, so nothing was opened
        pass
    with Places(root) as places:
        for name, mode, opened in reversed(said):
            path = os.fsencode(name)
            status = places.status(path)
            if status is not None and stat.S_IMODE(status.st_mode) == opened:
                places.set_mode(path, mode)
    note.unlink(missing_ok=True)
