"""Gives up the superuser's right to read and enter everything, for the length of a test.

`python rights.py module argument…` runs a module without it.
"""

import ctypes
import os
import runpy
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

_VERSION = 0x20080522
_CAPABILITIES = (1, 2)  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
_READS_ALL = sum(1 << each for each in _CAPABILITIES)
_PR_CAPBSET_DROP = 24


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


@contextmanager
def as_anyone() -> Generator[None]:
    """Obey permission bits as other users do, in this thread and in those it starts."""
    with _with_rights(lambda effective: effective & ~_READS_ALL):
        yield


@contextmanager
def as_superuser() -> Generator[None]:
    """Have the rights again that `as_anyone` gives up."""
    with _with_rights(lambda effective: effective | _READS_ALL):
        yield


@contextmanager
def _with_rights(changed: Callable[[int], int]) -> Generator[None]:
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = _Header(_VERSION, 0), (_Sets * 2)()

    def change(name: str) -> None:
        if getattr(libc, name)(ctypes.byref(header), sets):
            raise OSError(ctypes.get_errno(), name)

    change("capget")
    before = sets[0].effective
    sets[0].effective = changed(before) & sets[0].permitted
    change("capset")
    try:
        yield
    finally:
        sets[0].effective = before
        change("capset")


def _main() -> None:
    if os.geteuid() == 0:  # programs that this one starts have no right that the set lacks
        libc = ctypes.CDLL(None, use_errno=True)
        for each in _CAPABILITIES:
            if libc.prctl(_PR_CAPBSET_DROP, each, 0, 0, 0):
                raise OSError(ctypes.get_errno(), "prctl")
    with as_anyone():
        sys.argv = sys.argv[1:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
