"""Lets a program replace settings that are a copy: the kernel renames no file over a mounted one.

Git writes a new file beside its settings and renames it. A filter of system calls stops each
rename of the program here. If it is such a rename, the content becomes the next copy, which is
mounted over the last one, so that the program sees either the old or the new file. All other
renames are carried out by the kernel.
"""

import errno
import fcntl
import os
import select
import stat
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from agent_core.process import kernel, mounts, seccomp

_RECEIVE, _SEND, _IS_VALID = 0xC050_2100, 0xC018_2101, 0x4008_2102
_REQUEST, _ANSWER = "=QIIiIQ6Q", "=QqiI"
_CONTINUE = 1
_LONGEST_PATH = 4096
_LARGEST = 16 << 20
_CHUNK = 1 << 20
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


class _Rename(NamedTuple):
    """The two paths of a call, each with the folder that it starts from."""

    old: tuple[bytes, bytes]
    new: tuple[bytes, bytes]


@dataclass(slots=True)
class _Copy:
    """A file that is covered by its copy.

    Attributes:
        path: of the file.
        folder: a descriptor of the folder around it.
        name: of the file in that folder.
        first: the name of the first copy in the folder of all copies.
        number: of the present copy; earlier copies stay, because it is mounted over them.
    """

    path: bytes
    folder: int
    name: bytes
    first: bytes
    number: int = 0

    @property
    def copy(self) -> bytes:
        """Return the name of the present copy."""
        return b"%s.%d" % (self.first, self.number) if self.number else self.first


class Copies:
    """The copies that cover files in this namespace, and the renames that replace them.

    Args:
        folder: a descriptor of the folder with the copies, on a mount that the program cannot
            reach.
        files: the covered files, each with the name of its copy.
    """

    def __init__(self, folder: int, files: Mapping[bytes, bytes]) -> None:
        self._folder = folder
        self._copies: list[_Copy] = []
        for path, copy in files.items():
            above, name = os.path.split(path)
            mounts.cover(path, folder, copy)
            self._copies.append(_Copy(path, kernel.open_path(above), name, copy))

    def serve(self, listener: int) -> None:
        """Decide the renames of a program until its last process has ended."""
        waiting = select.poll()
        waiting.register(listener, select.POLLIN)
        while waiting.poll()[0][1] & select.POLLIN:
            request = bytearray(struct.calcsize(_REQUEST))
            try:
                fcntl.ioctl(listener, _RECEIVE, request, True)
            except OSError:  # the process was killed
                continue
            self._decide(listener, bytes(request))

    def _decide(self, listener: int, request: bytes) -> None:
        number, pid, _, call, _, _, *arguments = struct.unpack(_REQUEST, request)
        error, flags = 0, 0
        try:
            copy, name = self._find(_read_rename(pid, call, arguments))
            fcntl.ioctl(listener, _IS_VALID, struct.pack("=Q", number))
        except (OSError, LookupError, ValueError, OverflowError):
            flags = _CONTINUE
        else:
            try:
                self._replace(copy, name)
            except OSError as failure:
                error = -(failure.errno or errno.EIO)
        with suppress(OSError):  # killed meanwhile
            fcntl.ioctl(listener, _SEND, struct.pack(_ANSWER, number, 0, error, flags))

    def _find(self, rename: _Rename) -> tuple[_Copy, bytes]:
        """Return the copy that a rename replaces, and the name of the new file beside it.

        Raises:
            LookupError: it replaces no copy, or not by a file beside it.
            OSError: a folder cannot be found.
        """
        name = os.path.basename(rename.new[1])  # noqa: PTH119
        found = [each for each in self._copies if each.name == name]
        if not found:
            raise LookupError
        above, from_above = _status_above(rename.new), _status_above(rename.old)
        for each in found:
            here = os.fstat(each.folder)
            if os.path.samestat(above, here) and os.path.samestat(from_above, here):
                covering = os.stat(name, dir_fd=each.folder, follow_symlinks=False)
                copy = os.stat(each.copy, dir_fd=self._folder, follow_symlinks=False)
                if os.path.samestat(covering, copy):
                    return each, os.path.basename(rename.old[1])  # noqa: PTH119
        raise LookupError

    def _replace(self, copy: _Copy, name: bytes) -> None:
        """Cover a file with a new copy, and remove the file that the content is from.

        Raises:
            OSError: the settings have not changed.
        """
        following = b"%s.%d" % (copy.first, copy.number + 1)
        source = os.open(name, _READ, dir_fd=copy.folder)
        try:
            status = os.fstat(source)
            if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST:
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
            target = os.open(b"new", _NEW, 0o600, dir_fd=self._folder)
            try:
                os.fchmod(target, stat.S_IMODE(status.st_mode) & 0o777)
                _copy_content(source, target)
            finally:
                os.close(target)
            os.rename(b"new", following, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        finally:
            os.close(source)
        os.unlink(name, dir_fd=copy.folder)
        mounts.cover(copy.path, self._folder, following)
        copy.number += 1


def _copy_content(source: int, target: int) -> None:
    """Copy a file that a program may still be adding to, up to the size that a copy may have.

    Raises:
        OSError: it is larger, or cannot be copied.
    """
    left = _LARGEST
    while chunk := os.read(source, _CHUNK):
        left -= len(chunk)
        if left < 0:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        while chunk:
            chunk = chunk[os.write(target, chunk) :]


def _read_rename(pid: int, call: int, arguments: list[int]) -> _Rename:
    """Read the arguments of a call from the memory of the process that waits in it.

    Raises:
        LookupError: it is no plain rename.
        OSError: the memory cannot be read.
    """
    if call == seccomp.rename_calls()[0]:
        here = b"/proc/%d/cwd" % pid
        folders, places = (here, here), arguments[:2]
    else:
        if call == seccomp.rename_calls()[2] and arguments[4] & 0xFFFF_FFFF:
            raise LookupError
        folders = _folder_of(pid, arguments[0]), _folder_of(pid, arguments[2])
        places = [arguments[1], arguments[3]]
    memory = os.open(b"/proc/%d/mem" % pid, os.O_RDONLY | os.O_CLOEXEC)
    try:
        old, new = (_read_path(memory, place) for place in places)
    finally:
        os.close(memory)
    return _Rename((folders[0], old), (folders[1], new))


def _folder_of(pid: int, descriptor: int) -> bytes:
    number = struct.unpack("=i", struct.pack("=I", descriptor & 0xFFFF_FFFF))[0]
    return b"/proc/%d/cwd" % pid if number == kernel.AT_FDCWD else b"/proc/%d/fd/%d" % (pid, number)


def _read_path(memory: int, place: int) -> bytes:
    """Return the text at a place, which may end shortly before memory that cannot be read.

    Raises:
        LookupError: it is too long to be a path.
        OSError: it cannot be read.
    """
    text = b""
    while len(text) < _LONGEST_PATH:
        at = place + len(text)
        part = os.pread(memory, _LONGEST_PATH - at % _LONGEST_PATH, at)
        text += part
        if b"\0" in part:
            return text.partition(b"\0")[0]
        if not part:
            break
    raise LookupError


def _status_above(place: tuple[bytes, bytes]) -> os.stat_result:
    folder, path = place
    return os.stat(os.path.join(folder, os.path.dirname(path)))  # noqa: PTH116, PTH118, PTH120
