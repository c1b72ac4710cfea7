"""The contents of files and links: put into packs, and read from them."""

import errno
import os
import stat
import time
from collections.abc import Iterator
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from agent_core.opening import open_descriptor
from agent_core.snapshots.closed import Opener
from agent_core.snapshots.packs import DIGEST_BYTES, Packs
from agent_core.snapshots.records import FileType, LeftOutReason, TreeEntry
from agent_core.snapshots.stat_cache import UNSETTLED, Version

PIECE_BYTES = 4 << 20
"""Larger files are kept in pieces of this size, in bytes."""

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_TRIES = 3
_SECOND_NS = 1_000_000_000
_TICK_NS = 100_000_000
_COARSE_TICK_NS = 2_000_000_000
_ZEROS = bytes(PIECE_BYTES)


class KeptEntry(Struct, frozen=True):
    """The result of keeping a file or link.

    Attributes:
        entry: None if it is not recorded.
        version: the version that was kept.
        reason: the reason why it is not recorded exactly; None if it is.
    """

    entry: TreeEntry | None
    version: Version = UNSETTLED
    reason: LeftOutReason | None = None


class FileKeeper:
    """Puts files into packs.

    Args:
        packs: the packs to put them into.
        max_bytes: larger files are not kept.
        opener: opens closed files; without it they are not kept.
    """

    def __init__(self, packs: Packs, max_bytes: int, opener: Opener | None = None) -> None:
        self._packs = packs
        self._max_bytes = max_bytes
        self._opener = opener

    def keep(self, folder: int, name: bytes, path: bytes) -> KeptEntry:
        """Keep a file or link; it is read again if it changes in the meantime.

        Args:
            folder: descriptor of its folder.
            name: its name there.
            path: its path in the workspace.

        Raises:
            OSError: it cannot be read, because the process has too many open files.
            StorageError: the pack cannot be written.
        """
        kept = self._keep_readable(folder, name)
        if self._opener is None or kept.reason is not LeftOutReason.UNREADABLE:
            return kept
        with suppress(FileNotFoundError), self._opener.open_entry(folder, name, path) as mode:
            if mode is not None:
                opened = self._keep_readable(folder, name)
                entry = None if opened.entry is None else replace(opened.entry, mode=mode)
                return KeptEntry(entry, reason=opened.reason)
        return kept

    def _keep_readable(self, folder: int, name: bytes) -> KeptEntry:
        kept = KeptEntry(None)
        for _ in range(_TRIES):
            try:
                kept = self._keep(folder, name)
            except OSError as error:
                if error.errno == errno.ENOENT:
                    return KeptEntry(None)
                if error.errno in {errno.EMFILE, errno.ENFILE}:
                    raise
                return KeptEntry(None, reason=LeftOutReason.UNREADABLE)
            if kept.reason is not LeftOutReason.CHANGING:
                break
        return kept

    def _keep(self, folder: int, name: bytes) -> KeptEntry:
        status = os.lstat(name, dir_fd=folder)
        if stat.S_ISLNK(status.st_mode):
            target = os.fsencode(os.readlink(name, dir_fd=folder))
            mode = stat.S_IMODE(status.st_mode)
            return KeptEntry(TreeEntry(FileType.LINK, mode, len(target), target), settled(status))
        if not stat.S_ISREG(status.st_mode):
            return KeptEntry(None)  # it was a file a moment ago
        file = open_descriptor(name, _OPEN, dir_fd=folder)
        try:
            before = os.fstat(file)
            if not stat.S_ISREG(before.st_mode):
                return KeptEntry(None)
            if before.st_size > self._max_bytes:
                return KeptEntry(None, reason=LeftOutReason.TOO_LARGE)
            content, size = self._keep_content(file, before.st_size)
            after = os.fstat(file)
        finally:
            os.close(file)
        mode = stat.S_IMODE(after.st_mode)
        entry = TreeEntry(FileType.FILE, mode, size, content, size > PIECE_BYTES)
        if size != before.st_size or version_of(before) != version_of(after):
            return KeptEntry(entry, reason=LeftOutReason.CHANGING)
        reason = LeftOutReason.HARD_LINK if after.st_nlink > 1 else None
        return KeptEntry(entry, settled(after), reason)

    def _keep_content(self, file: int, size: int) -> tuple[bytes, int]:
        """Keep the content of a file, and return its digest and the number of bytes read."""
        if size <= PIECE_BYTES:
            content = _read(file, size + 1, 0)
            if len(content) <= PIECE_BYTES:
                return self._packs.put(content), len(content)
        digests: list[bytes] = []
        at = 0
        while at < size:
            wanted = min(PIECE_BYTES, size - at)
            is_hole = _is_hole(file, at, wanted)
            piece = _ZEROS[:wanted] if is_hole else _read(file, wanted, at)
            digests.append(self._packs.put(piece))
            at += len(piece)
            if len(piece) < wanted:
                break
        return self._packs.put(b"".join(digests)), at


def settled(status: os.stat_result) -> Version:
    """Return the version, or `UNSETTLED` while a change might not alter the times."""
    changed_at = status.st_ctime_ns
    tick = _TICK_NS if changed_at % _SECOND_NS else _COARSE_TICK_NS
    if time.time_ns() - changed_at < tick:
        return UNSETTLED
    return version_of(status)


def version_of(status: os.stat_result) -> Version:
    """Return the version of a file's state, which no other state has."""
    return (
        status.st_mode,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


def pieces_of(packs: Packs, entry: TreeEntry) -> Iterator[bytes]:
    """Yield the contents of a recorded file, piece by piece.

    Raises:
        StorageError: a piece is missing or damaged.
        OSError: it cannot be read.
    """
    if not entry.is_chunked:
        yield packs.get(entry.content)
        return
    for digest in digests_in(packs.get(entry.content)):
        yield packs.get(digest)


def digests_in(content: bytes) -> Iterator[bytes]:
    """Return the digests of the pieces of a large file."""
    return (content[at : at + DIGEST_BYTES] for at in range(0, len(content), DIGEST_BYTES))


def _read(file: int, wanted: int, at: int) -> bytes:
    content = os.pread(file, wanted, at)
    while len(content) < wanted and (
        more := os.pread(file, wanted - len(content), at + len(content))
    ):
        content += more
    return content


def _is_hole(file: int, at: int, size: int) -> bool:
    """Return whether the system reports a hole, which reads as zeros."""
    try:
        return os.lseek(file, at, os.SEEK_DATA) >= at + size
    except OSError as error:
        return error.errno == errno.ENXIO
