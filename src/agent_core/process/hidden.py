"""Finds the files that no confined program may open, because a lock on one would stop this program.

SQLite waits for POSIX locks, which a process can take on every file that it may read, and other
parts of the program wait for the locks of files and folders in the home.
"""

import os
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from agent_core.opening import SIDE_FILES, open_database_paths

_MOST_ENTRIES = 50_000
"""The most entries of folders that are searched for further names of a file."""


class HiddenFiles(Struct, frozen=True):
    """The files that are hidden from the programs of one runtime.

    Attributes:
        database: database of the sessions; other files that this process has open are hidden, too.
        places: files and folders with other locks.
        folders: where further names of the database's files are looked for.
    """

    database: Path
    places: tuple[Path, ...]
    folders: tuple[Path, ...]

    def find(self) -> tuple[list[str], list[str]]:
        """Return the resolved paths to hide, and texts about files left open. Blocks on files."""
        found = [os.path.realpath(place) for place in self.places if place.exists()]
        present, may_come = list[str](), list[str]()
        opened = open_database_paths()
        for database in dict.fromkeys([os.path.realpath(self.database), *opened]):
            if not os.path.exists(database):  # noqa: PTH110 - text
                continue
            beside = [f"{database}{end}" for end in SIDE_FILES]
            present += [path for path in (database, *beside) if os.path.exists(path)]  # noqa: PTH110
            if database not in opened:  # SQLite makes them when it is opened
                may_come += beside[:2]
        names, holes = self._find_names(present)
        return list(dict.fromkeys((*present, *may_come, *names, *found))), holes

    def _find_names(self, paths: Iterable[str]) -> tuple[list[str], list[str]]:
        """Return other names of the files (hard links), and texts about those not found."""
        wanted: dict[tuple[int, int], tuple[str, int]] = {}
        for path in paths:
            with suppress(OSError):
                status = os.stat(path)  # noqa: PTH116 - text
                if status.st_nlink > 1:
                    wanted[status.st_dev, status.st_ino] = path, status.st_nlink
        if not wanted:
            return [], []
        names = {identity: {path} for identity, (path, _) in wanted.items()}
        for name, identity in _search(self.folders, {inode for _, inode in wanted}):
            if identity in names:
                names[identity].add(name)
        holes = [
            f"{path} has another name (a hard link) that was not found, by which programs can"
            " open it: remove it"
            for identity, (path, count) in wanted.items()
            if len(names[identity]) < count
        ]
        return [name for each in names.values() for name in sorted(each)], holes


def _search(folders: Iterable[Path], inodes: set[int]) -> Iterable[tuple[str, tuple[int, int]]]:
    """Yield the entries of folders with one of these numbers, upper levels first."""
    pending = deque(os.path.realpath(folder) for folder in folders)
    entries_left = _MOST_ENTRIES
    while pending and entries_left > 0:
        with suppress(OSError), os.scandir(pending.popleft()) as entries:
            for entry in entries:
                entries_left -= 1
                if entry.inode() in inodes:
                    status = entry.stat(follow_symlinks=False)
                    yield entry.path, (status.st_dev, status.st_ino)
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
