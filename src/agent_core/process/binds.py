"""What is mounted where, so that of a tree that can be written to a part cannot."""

import os
import stat
from collections.abc import Iterable
from enum import StrEnum

PLACEHOLDER_MODE = 0o1555
"""Of an empty folder that stands where there is nothing, and nothing may be made."""


class Kind(StrEnum):
    """What is mounted on a path: itself, ..."""

    WRITE = "writable"
    PIN = "as it is: what something is mounted on can be neither renamed nor removed"
    PROTECT = "read-only"
    HIDE = "what cannot be opened"


Bind = tuple[Kind, bytes]


def plan(write: list[bytes], protect: list[bytes], hidden: Iterable[bytes] = ()) -> list[Bind]:
    """Return what to mount in a tree that is read-only, in this order.

    Of a protected path that does not exist it is the first folder that is missing. Of a link it is
    what the link points to.
    """
    rules = dict.fromkeys(write, Kind.WRITE)
    for path in protect:
        rules[os.path.realpath(path) if os.path.islink(path) else path] = Kind.PROTECT  # noqa: PTH114
    planned = dict[bytes, Kind]()
    for path in sorted(rules, key=_depth):
        if rules[path] is Kind.WRITE:
            if os.path.lexists(path):
                _pin_above(path, rules, planned)
            planned[path] = Kind.WRITE
        elif path != b"/":
            _plan_protection(path, rules, planned)
    binds = [(kind, path) for path, kind in planned.items()]
    return [*binds, *((Kind.HIDE, path) for path in hidden if os.path.lexists(path))]


def _plan_protection(path: bytes, rules: dict[bytes, Kind], planned: dict[bytes, Kind]) -> None:
    if _pin_above(path, rules, planned):
        planned[path] = Kind.PROTECT


def _pin_above(path: bytes, rules: dict[bytes, Kind], planned: dict[bytes, Kind]) -> bool:
    """Pin what lies between a path and the writable folder it is in, so that it stays in its place.

    Returns:
        False where the path is in none, or something between is missing, and cannot be made.
    """
    folders = list[bytes]()
    folder = os.path.dirname(path)  # noqa: PTH120
    while folder not in rules:
        if folder == b"/":
            return False  # nothing above it can be written to
        folders.append(folder)
        folder = os.path.dirname(folder)  # noqa: PTH120
    if rules[folder] is not Kind.WRITE:
        return False
    for between in reversed(folders):
        if planned.get(between) is Kind.PROTECT:
            return False
        if between not in planned and is_vacant(between):
            planned[between] = Kind.PROTECT
            return False
        planned[between] = Kind.PIN
    return True


def is_beneath(path: bytes, folder: bytes) -> bool:
    """Return whether a path is a folder, or lies in it."""
    return path == folder or path.startswith(folder.rstrip(b"/") + b"/")


def is_vacant(path: bytes) -> bool:
    """Whether there is nothing, or what an earlier or another program's rule has put there."""
    try:
        return os.lstat(path).st_mode == stat.S_IFDIR | PLACEHOLDER_MODE and not os.listdir(path)  # noqa: PTH208
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False


def _depth(path: bytes) -> int:
    return len([part for part in path.split(b"/") if part])
