"""The mounts that keep a part of a writable tree from being written to."""

import os
import stat
from collections.abc import Iterable
from enum import StrEnum

PLACEHOLDER_MODE = 0o1555
"""Mode of an empty placeholder folder: nothing exists there, and nothing may be made there."""


class Kind(StrEnum):
    """Kind of mount on a path: the path itself, ..."""

    WRITE = "writable"
    PIN = "as it is: what something is mounted on can be neither renamed nor removed"
    PROTECT = "read-only"
    HIDE = "what cannot be opened"


Bind = tuple[Kind, bytes]


def plan(write: list[bytes], protect: list[bytes], hidden: Iterable[bytes] = ()) -> list[Bind]:
    """Return the mounts in a read-only tree, in order.

    For a protected path that does not exist, the first missing folder is protected; for a link, its
    target.
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
    """Pin the folders between a path and its writable folder, so that none of them can be moved.

    Returns:
        False if the path is in no writable folder, or a folder between is protected or missing.
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
    """Return whether a path is free: nothing exists there, or only a program's placeholder."""
    try:
        return os.lstat(path).st_mode == stat.S_IFDIR | PLACEHOLDER_MODE and not os.listdir(path)  # noqa: PTH208
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False


def _depth(path: bytes) -> int:
    return len([part for part in path.split(b"/") if part])
