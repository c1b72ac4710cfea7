"""Runs a module as on a kernel without Landlock and without namespaces for users.

`python old_kernel.py module argument…`: a filter of system calls refuses what confines programs.
"""

import ctypes
import errno
import runpy
import struct
import sys

from agent_core.process.confinement import probe

_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _FILTER = 22, 38, 2
_LANDLOCK, _UNSHARE, _CLONE, _CLONE3 = 444, 272, 56, 435
_NEW_USER_OR_MOUNTS = 0x1002_0000
_ALLOW, _ERROR = 0x7FFF_0000, 0x0005_0000
_LOAD, _EQUALS, _HAS_BITS, _RETURN = 0x20, 0x15, 0x45, 0x06


def refuse() -> None:
    """Refuse the calls in this process and what it starts (x86-64)."""
    program = [
        (_LOAD, 0, 0, 0),
        (_EQUALS, 5, 0, _LANDLOCK),
        (_EQUALS, 4, 0, _CLONE3),
        (_EQUALS, 4, 0, _UNSHARE),
        (_EQUALS, 0, 4, _CLONE),
        (_LOAD, 0, 0, 16),
        (_HAS_BITS, 1, 2, _NEW_USER_OR_MOUNTS),
        (_RETURN, 0, 0, _ERROR | errno.ENOSYS),
        (_RETURN, 0, 0, _ERROR | errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]
    code = b"".join(struct.pack("HBBI", *line) for line in program)
    filters = ctypes.create_string_buffer(code)
    given = struct.pack("HxxxxxxP", len(program), ctypes.addressof(filters))
    libc = ctypes.CDLL(None, use_errno=True)
    for call in ((_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (_PR_SET_SECCOMP, _FILTER, given)):
        if libc.prctl(*call):
            raise OSError(ctypes.get_errno(), "the filter cannot be set")


if __name__ == "__main__":
    refuse()
    probe.cache_clear()  # a copy of a process may know what the kernel was able to do before
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
