"""Landlock limits the use of files, TCP ports and processes by a thread and its children.

A rule belongs to a file or folder itself, whatever its path is later, and applies to everything
beneath it. Of the rights that are *handled*, all that no rule allows are refused; each version of
the interface handles more.
"""

import contextlib
import os
import struct
from collections.abc import Iterable

from agent_core.process import kernel

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_DIR, REMOVE_FILE = (1 << bit for bit in range(6))
MAKE_CHAR, MAKE_DIR, MAKE_REG, MAKE_SOCK, MAKE_FIFO, MAKE_BLOCK, MAKE_SYM = (
    1 << bit for bit in range(6, 13)
)
REFER, TRUNCATE, IOCTL_DEV = (1 << bit for bit in range(13, 16))

READ = EXECUTE | READ_FILE | READ_DIR
WRITE = (1 << 16) - 1 - READ
"""Everything else there is in version 7."""

DEVICE = WRITE_FILE | TRUNCATE | IOCTL_DEV
_OF_A_FILE = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
_NOT_IN_A_TREE = MAKE_CHAR | MAKE_BLOCK
_ALL_TCP = 0b11
_ALL_SCOPES = 0b11

_VERSION_FLAG = 1
_PATH_BENEATH = 1


def version() -> int:
    """The version of the kernel's interface; 0 if it has none, or it is switched off."""
    with contextlib.suppress(OSError):
        return kernel.system_call(kernel.LANDLOCK_CREATE, None, 0, _VERSION_FLAG)
    return 0


def known(rights: int, abi: int) -> int:
    """Return the file rights that a version of the interface has, of some rights."""
    bits = 13 + (abi >= 2) + (abi >= 3) + (abi >= 5)
    return rights & ((1 << bits) - 1)


class Ruleset:
    """Rules that are gathered, and then hold for the thread that calls `restrict`."""

    def __init__(self, *, abi: int, reads: int, tcp: bool) -> None:
        """Handle every right of this version.

        Args:
            abi: the version.
            reads: rights to read and execute that take a rule, too.
            tcp: TCP ports are refused.

        Raises:
            OSError: the kernel refuses.
        """
        self._handled = known(WRITE | reads, abi)
        tcp_rights = _ALL_TCP if tcp and abi >= 4 else 0
        scopes = _ALL_SCOPES if abi >= 6 else 0
        fields = struct.pack("=QQQ", self._handled, tcp_rights, scopes)
        size = 8 if abi < 4 else 16 if abi < 6 else 24
        self._fd = kernel.system_call(kernel.LANDLOCK_CREATE, fields[:size], size, 0)

    def allow(self, paths: Iterable[bytes], rights: int) -> None:
        """Allow rights to each path that exists, and to everything beneath it.

        Raises:
            OSError: a link is in a path, or it cannot be looked at.
        """
        for path in paths:
            try:
                fd = kernel.open_path(path)
            except (FileNotFoundError, NotADirectoryError):
                continue
            try:
                self._allow(fd, rights)
            finally:
                os.close(fd)

    def _allow(self, fd: int, rights: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{fd}"):  # noqa: PTH112
            rights &= ~_NOT_IN_A_TREE
        else:
            rights &= _OF_A_FILE
        if allowed := rights & self._handled:
            rule = struct.pack("=Qi", allowed, fd)
            kernel.system_call(kernel.LANDLOCK_ADD, self._fd, _PATH_BENEATH, rule, 0)

    def restrict(self) -> None:
        """Hold this thread, and everything it starts from now on, to the rules.

        Raises:
            OSError: the kernel refuses.
        """
        kernel.system_call(kernel.LANDLOCK_RESTRICT, self._fd, 0)
        os.close(self._fd)
