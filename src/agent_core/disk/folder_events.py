"""Learn from the kernel in which folders entries have come, gone or changed their names (inotify).

Linux alone has this, and only for file systems of this machine: others change without its
knowledge.
"""

import ctypes
import errno
import os
from collections.abc import Iterable
from contextlib import suppress
from struct import Struct
from weakref import finalize

from agent_core.aio.loops import reset_after_fork

_CREATED, _DELETED, _MOVED_FROM, _MOVED_TO = 0x100, 0x200, 0x40, 0x80
_DELETED_SELF, _MOVED_SELF = 0x400, 0x800
_OVERFLOW, _IGNORED = 0x4000, 0x8000
_ONLY_FOLDERS, _NO_LINKS, _EXISTING_ONLY = 0x01000000, 0x02000000, 0x04000000
_CHANGES = _CREATED | _DELETED | _MOVED_FROM | _MOVED_TO | _DELETED_SELF | _MOVED_SELF
_MASK = _CHANGES | _ONLY_FOLDERS | _NO_LINKS | _EXISTING_ONLY
_EVENT = Struct("iIII")
_READ_BYTES = 65_536
_LOCAL = {
    *(0xEF53, 0x58465342, 0x9123683E, 0x01021994),  # ext, XFS, Btrfs, tmpfs
    *(0x794C7630, 0x2FC12FC1, 0xF2F52010, 0xCA451A4E),  # overlay, ZFS, F2FS, bcachefs
}


class FolderEvents:
    """Watches folders, each under a key.

    Raises:
        OSError: the kernel has no such events, or no room for them.
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._keys: dict[int, str] = {}  # by the kernel's number
        self._numbers: dict[str, int] = {}
        self._local: set[int] = set()
        try:
            self._descriptor = self._checked(
                self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), ""
            )
        except AttributeError as error:  # another system than Linux
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from error
        self.close = finalize(self, os.close, self._descriptor)
        reset_after_fork(self)

    def reset(self) -> None:
        """Lose all folders after a fork: the events belong to the parent process."""
        self.close()
        self._descriptor = -1  # the number may soon be another file's
        self._keys.clear()
        self._numbers.clear()

    @property
    def count(self) -> int:
        """The number of keys under which a folder is watched."""
        return len(self._numbers)

    def watch(self, key: str, path: str) -> None:
        """Watch a folder from now on, under this key alone; the key's former folder no longer.

        Raises:
            OSError: it cannot be watched, or not all changes of its file system are known here.
        """
        place = os.fsencode(path)
        number = self._checked(self._libc.inotify_add_watch(self._descriptor, place, _MASK), path)
        if self._numbers.get(key) != number:
            self.forget((key,))
            if number in self._keys:
                del self._numbers[self._keys[number]]
            self._keys[number], self._numbers[key] = key, number
        device = os.stat(place).st_dev  # noqa: PTH116 - for each folder
        if device not in self._local:
            if self._kind_of(path) not in _LOCAL:
                raise OSError(errno.EXDEV, "others may change this file system", path)
            self._local.add(device)

    def forget(self, keys: Iterable[str]) -> None:
        """Watch the folders under these keys no longer."""
        for key in keys:
            if (number := self._numbers.pop(key, None)) is not None:
                del self._keys[number]
                self._libc.inotify_rm_watch(self._descriptor, number)

    def changed(self) -> set[str] | None:
        """Return the keys of the folders that have changed since the last call.

        Returns:
            The keys; None if there were too many events to keep.

        Raises:
            OSError: there are no events any more: this is a forked process.
        """
        found: set[str] = set()
        is_complete = True
        while data := self._read():
            at = 0
            while at < len(data):
                number, kind, _, size = _EVENT.unpack_from(data, at)
                at += _EVENT.size + size
                is_complete = is_complete and not kind & _OVERFLOW
                if (key := self._keys.get(number)) is not None:
                    found.add(key)
                    if kind & _IGNORED:  # the folder is gone
                        del self._keys[number], self._numbers[key]
        return found if is_complete else None

    def _read(self) -> bytes:
        if not self.close.alive:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        with suppress(BlockingIOError):
            return os.read(self._descriptor, _READ_BYTES)
        return b""

    def _kind_of(self, path: str) -> int:
        """Return the number that the kernel gives to the kind of a file system."""
        found = (ctypes.c_long * 32)()
        self._checked(self._libc.statfs(os.fsencode(path), found), path)
        return found[0]

    def _checked(self, result: int, path: str) -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), path)
        return result
