"""Runs a module for which no file can be locked, as on some network file systems.

Run as `python tests/unlockable.py <error> <module> [argument …]`. The kernel answers each request
for a lock with the error: a filter of system calls, which what it starts inherits.
"""

import ctypes
import errno
import platform
import runpy
import struct
import sys

_CALLS = {"x86_64": (72, 73), "aarch64": (25, 32)}
"""Numbers of `fcntl` and `flock`."""
_SETS_LOCK = (6, 7)
_ALLOW, _FAIL = 0x7FFF_0000, 0x0005_0000
_NO_NEW_PRIVILEGES, _SECCOMP, _BY_FILTER = 38, 22, 2


def can_refuse_locks() -> bool:
    """Return whether the numbers of the calls are known for this machine."""
    return sys.platform == "linux" and platform.machine() in _CALLS


def refuse_locks(error: int) -> None:
    """Let every lock of this process and its children fail."""
    of_fcntl, of_flock = _CALLS[platform.machine()]
    program = [
        (0x20, 0, 0, 0),  # load the number of the call
        (0x15, 5, 0, of_flock),
        (0x15, 0, 3, of_fcntl),
        (0x20, 0, 0, 24),  # load the second argument
        (0x15, 2, 0, _SETS_LOCK[0]),
        (0x15, 1, 0, _SETS_LOCK[1]),
        (0x06, 0, 0, _ALLOW),
        (0x06, 0, 0, _FAIL | error),
    ]
    code = b"".join(struct.pack("=HBBI", *step) for step in program)
    steps = ctypes.create_string_buffer(code)
    given = struct.pack("@HP", len(program), ctypes.addressof(steps))
    libc = ctypes.CDLL(None, use_errno=True)
    for call in (
        (_NO_NEW_PRIVILEGES, 1, 0, 0, 0),
        (_SECCOMP, _BY_FILTER, ctypes.c_char_p(given), 0, 0),
    ):
        if libc.prctl(*call):
            raise OSError(ctypes.get_errno(), "the filter was not installed")


if __name__ == "__main__":
    refuse_locks(getattr(errno, sys.argv[1]))
    sys.argv = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
