"""The command line of `bwrap`, for systems where it may make mounts and this process may not."""

from contextlib import ExitStack

from agent_core.process import mounts
from agent_core.process.mounts import Kind

_OPTIONS = {Kind.WRITE: b"--bind", Kind.PIN: b"--bind", Kind.PROTECT: b"--ro-bind"}


def options(*, network: bool) -> list[bytes]:
    """What every program gets: processes and, without `network`, a network of its own."""
    words = [b"--die-with-parent", b"--unshare-user-try", b"--unshare-pid", b"--unshare-ipc"]
    return [*words, b"--cap-drop", b"ALL", *([] if network else [b"--unshare-net"])]


def view(
    write: list[bytes], read: list[bytes] | None, protect: list[bytes], files: ExitStack
) -> list[bytes]:
    """What the program sees of the file system, and what of it can be written to.

    Args:
        write: what can be written to.
        read: all that can be read besides; None: everything.
        protect: what cannot be written to although it lies in `write`.
        files: closes what has to stay open until the program has ended.
    """
    words = [b"--ro-bind", b"/", b"/"] if read is None else []
    for path in read or ():
        words += [b"--ro-bind-try", path, path]
    words += [b"--dev", b"/dev", b"--proc", b"/proc", b"--remount-ro", b"/proc"]
    for kind, path in mounts.plan(write, protect):
        if kind is not Kind.PROTECT or mounts.hold_placeholder(path, files):
            words += [_OPTIONS[kind], path, path]
    return words
