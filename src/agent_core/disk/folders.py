"""Open folders part by part, so that no link swapped in on the way is followed; create them.

The time of a file in such a folder marks when work was done that is done at most once a day.
"""

import os
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from agent_core.opening import is_folder, open_descriptor

_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
_DAY_S = 24 * 3600


@contextmanager
def open_folder(folder: Path, *, create: bool = False) -> Generator[int]:
    """Open a resolved folder, and yield its descriptor; missing folders are made with `create`.

    Raises:
        OSError: it does not exist, or a folder was replaced by a link.
    """
    descriptor = open_descriptor(folder.anchor, _FOLDER)
    try:
        for part in folder.parts[1:]:
            inner = _open_part(part, descriptor, create=create)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def make_private(folder: Path) -> None:
    """Create the folder and its missing parents, each for this user only.

    Raises:
        OSError: one of them cannot be created.
    """
    for one in reversed([folder, *folder.parents]):
        if not one.exists():
            one.mkdir(mode=0o700, exist_ok=True)


def remove_tree(folder: Path, *, keep: bool) -> None:
    """Remove the contents of a folder, as far as possible, and the folder itself unless `keep`."""
    if not is_folder(folder):
        return
    import shutil  # noqa: PLC0415 - slow to import

    if not keep:
        shutil.rmtree(folder, ignore_errors=True)
        return
    with suppress(OSError), os.scandir(folder) as entries:
        for inner in entries:
            if inner.is_dir(follow_symlinks=False):
                shutil.rmtree(inner, ignore_errors=True)
            else:
                with suppress(OSError):
                    Path(inner).unlink()


def flush_folder(folder: Path) -> None:
    """Make a new name in the folder survive a loss of power."""
    descriptor = open_descriptor(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def change_mode(descriptor: int, mode: int) -> None:
    """Set the permission bits of a file or folder that may have been opened without reading it.

    Raises:
        OSError: they cannot be set.
    """
    address = Path(f"/proc/self/fd/{descriptor}")
    if address.exists():
        address.chmod(mode)
    else:
        os.fchmod(descriptor, mode)


@contextmanager
def folder_address(folder: Path) -> Generator[str]:
    """Yield a path to exactly this folder, even if it is moved, where the system has such paths."""
    with open_folder(folder) as descriptor:
        address = Path(f"/proc/self/fd/{descriptor}")
        yield str(address if address.exists() else folder)


def _open_part(part: str, folder: int, *, create: bool) -> int:
    try:
        return open_descriptor(part, _FOLDER, dir_fd=folder)
    except FileNotFoundError:
        if not create:
            raise
    with suppress(FileExistsError):
        os.mkdir(part, dir_fd=folder)
    return open_descriptor(part, _FOLDER, dir_fd=folder)


def is_due(mark: Path) -> bool:
    """Return whether the work was done more than a day ago, or never.

    A time more than a day in the future was left by a wrong clock, and is not waited for.
    """
    try:
        return abs(time.time() - mark.stat().st_mtime) > _DAY_S
    except OSError:
        return True


def mark_done(mark: Path) -> None:
    """Mark the work as done now; if that cannot be stored, it is done again."""
    with suppress(OSError):
        make_private(mark.parent)
        mark.touch(mode=0o600)
