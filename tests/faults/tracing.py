"""Lets a program wait until strace has attached to it.

So the program can be started as a warm copy; to load its modules under strace takes a second.
"""

import ctypes
import os
from contextlib import suppress

WAITS = "FAULT_WAITS"
"""The variable that tells a program to wait for a line of its input."""

_SET_PTRACER, _ANY = 0x59616D61, -1


def wait_for_tracer() -> None:
    """Wait for a line if this process is to be traced from here on."""
    if os.environ.pop(WAITS, None) is None:
        return
    with suppress(AttributeError):  # Yama lets only parents trace, unless it is told otherwise
        ctypes.CDLL(None).prctl(_SET_PTRACER, ctypes.c_ulong(_ANY), 0, 0, 0)
    os.read(0, 1)
