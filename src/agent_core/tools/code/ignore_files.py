"""Whether a search may follow the ignore files of a project.

ripgrep reads them all before it searches, and waits for a FIFO, reads `/dev/zero` for ever, and
compiles any number of patterns. So a search with an ignore file that is no regular file, or is too
long to be one, follows none.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from threading import Event

MAX_BYTES = 262_144

_NAMES = frozenset({".gitignore", ".ignore", ".rgignore"})
_NOT_ENTERED = frozenset({".git", ".hg", ".svn"})
_EXCLUDE = Path(".git", "info", "exclude")


def has_unfit_ignore_file(folder: Path, stop: Event) -> bool:
    """Look at the ignore files above `folder` and below it, until `stop` is set."""
    above = (parent / name for parent in folder.parents for name in (*_NAMES, _EXCLUDE))
    return any(map(_is_unfit, above)) or any(map(_is_unfit, _below(folder, stop)))


def _below(folder: Path, stop: Event) -> Iterator[Path]:
    for current, folders, files in os.walk(folder):
        if stop.is_set():
            return
        present = _NAMES.intersection((*folders, *files))
        yield from (Path(current, name) for name in present)
        if ".git" in folders or ".git" in files:
            yield Path(current, _EXCLUDE)
        folders[:] = (name for name in folders if name not in _NOT_ENTERED)


def _is_unfit(path: Path) -> bool:
    try:
        status = path.stat()
    except OSError:  # not there, or nothing that ripgrep can read either
        return False
    if stat.S_ISDIR(status.st_mode):
        return False
    return not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES
