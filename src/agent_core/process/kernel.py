"""Calls of the Linux kernel that Python has no function for.

Like all modules that `jail` imports, this one is loaded by the supervisor, which has the standard
library and nothing else.
"""

import ctypes
import os
import struct

OPEN_TREE, MOVE_MOUNT, OPENAT2, MOUNT_SETATTR = 428, 429, 437, 442
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446

O_PATH = getattr(os, "O_PATH", 0)
AT_FDCWD = -100
AT_EMPTY_PATH = 0x1000

_RESOLVE_NO_SYMLINKS = 0x04

_libc = ctypes.CDLL(None, use_errno=True)
_kept: "list[ctypes.Array[ctypes.c_char]]" = []

Argument = int | bytes | None


def system_call(number: int, *arguments: Argument) -> int:
    """Make a system call by its number, which must be the same on all processors.

    Raises:
        OSError: the kernel refuses.
    """
    return _checked(_libc.syscall(ctypes.c_long(number), *map(_as_word, arguments)))


def library_call(name: str, *arguments: Argument) -> int:
    """Make a call that the C library has a function for.

    Raises:
        OSError: the kernel refuses.
    """
    return _checked(getattr(_libc, name)(*map(_as_word, arguments)))


def _as_word(argument: Argument) -> ctypes.c_long | bytes | None:
    return ctypes.c_long(argument) if isinstance(argument, int) else argument


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def open_path(path: bytes, flags: int = 0) -> int:
    """Return a descriptor for a path that has no link in it; the file itself is not opened.

    Raises:
        OSError: the path does not exist, or a link is in the way (ELOOP).
    """
    how = struct.pack("=QQQ", O_PATH | os.O_CLOEXEC | flags, 0, _RESOLVE_NO_SYMLINKS)
    return system_call(OPENAT2, AT_FDCWD, path, how, len(how))


def keep(content: bytes) -> int:
    """Return the address of a copy of bytes, kept in this process and its forks."""
    array = ctypes.create_string_buffer(content, len(content))
    _kept.append(array)
    return ctypes.addressof(array)
