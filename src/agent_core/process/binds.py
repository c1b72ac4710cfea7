"""What is mounted where, so that of a tree that can be written to a part cannot."""

import os
import stat
from enum import StrEnum

PLACEHOLDER_MODE = 0o1555
"""Of an empty folder that stands where there is nothing, and nothing may be made."""


class Kind(StrEnum):
    """What is mounted on a path: itself, ..."""

    WRITE = "writable"
    PIN = "as it is: what something is mounted on can be neither renamed nor removed"
    PROTECT = "read-only"


Bind = tuple[Kind, bytes]


def plan(write: list[bytes], protect: list[bytes]) -> list[Bind]:
    """What to mount in a tree that is read-only, in this order.

    Of a protected path that does not exist it is the first folder that is missing. Of a link it is
    what the link points to.
    """
    rules = dict.fromkeys(write, Kind.WRITE)
    for path in protect:
        rules[os.path.realpath(path) if os.path.islink(path) else path] = Kind.PROTECT  # noqa: PTH114
    planned = dict[bytes, Kind]()
    for path in sorted(rules, key=_depth):
        if rules[path] is Kind.WRITE:
            planned[path] = Kind.WRITE
            continue
        above = max((other for other in rules if _is_above(other, path)), key=_depth, default=b"")
        if rules.get(above) is Kind.WRITE:
            parts = os.path.relpath(path, above).split(b"/")
            folders = [
                os.path.join(above, *parts[:count])  # noqa: PTH118
                for count in range(1, len(parts))
            ]
            missing = next(filter(is_vacant, folders), None)
            for folder in folders[: folders.index(missing)] if missing else folders:
                planned.setdefault(folder, Kind.PIN)
            planned[missing or path] = Kind.PROTECT
    return [(kind, path) for path, kind in planned.items()]


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


def _is_above(folder: bytes, path: bytes) -> bool:
    return folder != path and path.startswith(folder.rstrip(b"/") + b"/")
