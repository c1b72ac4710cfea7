"""Opening folders part by part, so that no link swapped in on the way is followed."""

import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)


@contextmanager
def open_folder(folder: Path, *, create: bool = False) -> Generator[int]:
    """A descriptor of a resolved folder; missing ones are made if `create`.

    Raises:
        OSError: it does not exist, or a link stands where there was none.
    """
    descriptor = os.open(folder.anchor, _FOLDER)
    try:
        for part in folder.parts[1:]:
            inner = _open_part(part, descriptor, create=create)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def folder_address(folder: Path) -> Generator[str]:
    """A name for exactly this folder, whatever happens to its path, where the system has one."""
    with open_folder(folder) as descriptor:
        address = Path(f"/proc/self/fd/{descriptor}")
        yield str(address if address.exists() else folder)


def _open_part(part: str, folder: int, *, create: bool) -> int:
    try:
        return os.open(part, _FOLDER, dir_fd=folder)
    except FileNotFoundError:
        if not create:
            raise
    with suppress(FileExistsError):
        os.mkdir(part, dir_fd=folder)
    return os.open(part, _FOLDER, dir_fd=folder)
