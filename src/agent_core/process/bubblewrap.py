"""The command line of `bwrap`, for systems where it may make mounts and this process may not."""

import os
from contextlib import ExitStack

from agent_core.process import mounts
from agent_core.process.binds import Bind, Kind, is_beneath


def options(*, network: bool) -> list[bytes]:
    """Return the options for every program: own processes, and without `network` no network."""
    words = [b"--die-with-parent", b"--unshare-user-try", b"--unshare-pid", b"--unshare-ipc"]
    return [*words, b"--cap-drop", b"ALL", *([] if network else [b"--unshare-net"])]


def view(binds: list[Bind], read: list[bytes] | None, files: ExitStack) -> list[bytes]:
    """Return the options for the file system: the paths a program sees, and those it can write.

    Args:
        binds: the mounts, in this order.
        read: the other readable paths; None: everything.
        files: closes the files that stay open until the program has ended.
    """
    words = [b"--ro-bind", b"/", b"/"] if read is None else []
    for path in read or ():
        words += [b"--ro-bind-try", path, path]
    words += [b"--dev", b"/dev", b"--proc", b"/proc", b"--remount-ro", b"/proc"]
    written = [path for kind, path in binds if kind == Kind.WRITE]
    for kind, path in binds:
        if kind == Kind.WRITE:
            words += [b"--bind-try", path, path]
        elif kind == Kind.PIN:
            words += [b"--bind", path, path]
        elif kind == Kind.HIDE:
            words += _hide(path, seen=[*(read or [b"/"]), *written])
        elif mounts.hold_placeholder(path, files):
            words += [b"--ro-bind", path, path]
    return words


def _hide(path: bytes, *, seen: list[bytes]) -> list[bytes]:
    """Cover the paths that must not be opened, if they would be visible."""
    if not any(is_beneath(path, each) for each in seen):
        return []
    if os.path.isdir(path):  # noqa: PTH112
        return [b"--perms", b"0000", b"--tmpfs", path, b"--remount-ro", path]
    return [b"--ro-bind", b"/dev/null", path]
