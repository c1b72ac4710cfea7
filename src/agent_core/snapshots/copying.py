"""Copy a workspace in its present or an earlier state, with its repository and excluded folders."""

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from agent_core.disk.folders import remove_tree
from agent_core.errors import ErrorCode, StorageError
from agent_core.opening import open_descriptor
from agent_core.snapshots.contents import FileKeeper
from agent_core.snapshots.places import OPEN_FOLDER, ROOT, Places
from agent_core.snapshots.recorder import Recorder
from agent_core.snapshots.records import CopyResult, LeftOut, LeftOutReason, SnapshotSettings
from agent_core.snapshots.restoring import Restoration, Staging
from agent_core.snapshots.trees import Merging, changes_between

_SOURCE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_SHARE_BLOCKS = 0x40049409  # FICLONE
_SMALL = 65_536
_PIECE = 8 << 20
_SPECIAL = {
    stat.S_IFSOCK: LeftOutReason.SOCKET,
    stat.S_IFCHR: LeftOutReason.DEVICE,
    stat.S_IFBLK: LeftOutReason.DEVICE,
}


def copy_workspace(
    recorder: Recorder, into: Path, *, snapshot_id: str | None, settings: SnapshotSettings
) -> CopyResult:
    """Copy the workspace of a recorder; an unfinished copy is removed.

    Args:
        recorder: the recorder of the workspace.
        into: does not exist or is empty.
        snapshot_id: the state of the copy; by default the workspace's present state.
        settings: what snapshots leave out.

    Raises:
        StorageError: the folder is not empty, or is in the workspace, or something is damaged.
        OSError: something cannot be read or written.
    """
    root, into = recorder.root, into.resolve()
    if into.is_relative_to(root) or root.is_relative_to(into):
        raise StorageError(
            ErrorCode.PATH_CONFLICT, f"a copy of {root} cannot be in or around it: {into}"
        )
    was_there = into.exists()
    if was_there and (not into.is_dir() or any(into.iterdir())):
        raise StorageError(ErrorCode.PATH_CONFLICT, f"{into} exists, and is not an empty folder")
    into.mkdir(parents=True, exist_ok=True)
    try:
        return _copy(recorder, into, snapshot_id, settings)
    except BaseException:
        remove_tree(into, keep=was_there)
        raise


def _copy(
    recorder: Recorder, into: Path, snapshot_id: str | None, settings: SnapshotSettings
) -> CopyResult:
    recording = target = None
    if snapshot_id is not None:
        target = recorder.catalogue.get(snapshot_id)
        recording = recorder.record(settings, [(target, target)], opens=False)
        now = recording.snapshot
        target = Merging(recorder.packs, base=now, target=target, now=now).merge()
    copy = _TreeCopy(own=recorder.own_paths, check=recorder.check)
    with Places(recorder.root) as source, Places(into) as copied:
        folder = source.open(b"")
        try:
            copy.copy(folder, copied.root)
        finally:
            os.close(folder)
        copied.set_mode(ROOT, stat.S_IMODE(os.fstat(source.root).st_mode))
        if recording is None or target is None:
            return CopyResult(tuple(copy.left_out))
        changes = list(changes_between(recorder.packs, recording.snapshot, target))
        restoration = Restoration(
            copied,
            recorder.packs,
            staging=Staging.of(changes, recording),
            changes=changes,
            known={},
            keeper=FileKeeper(recorder.packs, settings.max_file_bytes),
            moves_aside=True,
        )
        restoration.stage(recorder.check, passes_over_damage=False)
        restoration.apply()
        restoration.clean_up()
        restoration.set_modes_of_folders()
    return CopyResult(tuple(copy.left_out), restoration.outcome.refused)


class _TreeCopy:
    """Copies a folder with modes, times, links, hard links and holes.

    Args:
        own: paths of the program's own folders, which are not copied.
        check: called between two files; raises to end the work.

    Attributes:
        left_out: what was not copied.
    """

    def __init__(self, *, own: Collection[bytes], check: Callable[[], None]) -> None:
        self.left_out: list[LeftOut] = []
        self._own = own
        self._check = check
        self._linked: dict[tuple[int, int], bytes] = {}
        self._shares_blocks = True

    def copy(self, source: int, target: int) -> None:
        """Copy everything in one folder into another, which is empty.

        Raises:
            OSError: something cannot be read or written.
        """
        self._copy(source, target, target, b"")

    def _copy(self, source: int, target: int, top: int, prefix: bytes) -> None:
        self._check()
        found: list[tuple[str, os.stat_result]] = []
        with os.scandir(source) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # it is gone by now
                    found.append((entry.name, entry.stat(follow_symlinks=False)))
        for name, status in found:
            path = prefix + os.fsencode(name)
            kind = status.st_mode & 0o170000
            if path in self._own or kind in _SPECIAL:
                self._leave_out(path, _SPECIAL.get(kind, LeftOutReason.PROGRAM_HOME))
            elif kind == stat.S_IFREG:
                if status.st_nlink == 1 or not self._link(name, target, top, status):
                    self._check()
                    is_copied = self._copy_file(name, source, target, path, status)
                    if is_copied and status.st_nlink > 1:
                        self._linked[status.st_dev, status.st_ino] = path
            elif kind == stat.S_IFDIR:
                inner = self._open(name, OPEN_FOLDER, source, path)
                if inner is None:
                    continue
                try:
                    os.mkdir(name, 0o700, dir_fd=target)
                    copied = open_descriptor(name, OPEN_FOLDER, dir_fd=target)
                    try:
                        self._copy(inner, copied, top, path + b"/")
                        os.fchmod(copied, status.st_mode & 0o7777)
                        os.utime(copied, ns=(status.st_atime_ns, status.st_mtime_ns))
                    finally:
                        os.close(copied)
                finally:
                    os.close(inner)
            elif kind == stat.S_IFLNK:
                try:
                    leads_to = os.readlink(name, dir_fd=source)
                except FileNotFoundError:
                    continue
                os.symlink(leads_to, name, dir_fd=target)
                times = status.st_atime_ns, status.st_mtime_ns
                os.utime(name, ns=times, dir_fd=target, follow_symlinks=False)
            else:
                os.mkfifo(name, status.st_mode & 0o7777, dir_fd=target)

    def _leave_out(self, path: bytes, reason: LeftOutReason) -> None:
        self.left_out.append(LeftOut(os.fsdecode(path), reason))

    def _open(self, name: str, flags: int, source: int, path: bytes) -> int | None:
        """Open an entry for copying; None if it may not be read, or is gone."""
        try:
            return open_descriptor(name, flags, dir_fd=source)
        except FileNotFoundError:
            return None
        except PermissionError:
            self._leave_out(path, LeftOutReason.UNREADABLE)
            return None

    def _link(self, name: str, target: int, top: int, status: os.stat_result) -> bool:
        """Link to the copy of a file with several names; False if there is no copy yet."""
        first = self._linked.get((status.st_dev, status.st_ino))
        if first is None:
            return False
        os.link(first, name, src_dir_fd=top, dst_dir_fd=target, follow_symlinks=False)
        return True

    def _copy_file(
        self, name: str, source: int, target: int, path: bytes, status: os.stat_result
    ) -> bool:
        """Copy one file; False if it may not be read, or is gone."""
        old = self._open(name, _SOURCE, source, path)
        if old is None:
            return False
        try:
            new = open_descriptor(name, _NEW, 0o600, dir_fd=target)
            try:
                if not (self._shares_blocks and status.st_size and self._share(old, new)):
                    _copy_content(old, new, status)
                os.fchmod(new, status.st_mode & 0o7777)
                os.utime(new, ns=(status.st_atime_ns, status.st_mtime_ns))
            finally:
                os.close(new)
        finally:
            os.close(old)
        return True

    def _share(self, old: int, new: int) -> bool:
        """Let a file share the blocks of another; False if this is impossible."""
        try:
            fcntl.ioctl(new, _SHARE_BLOCKS, old)
        except OSError:
            self._shares_blocks = False
            return False
        return True


def _copy_content(old: int, new: int, status: os.stat_result) -> None:
    """Copy the content of a file; holes stay holes.

    Raises:
        OSError: it cannot be read or written.
    """
    size = status.st_size
    if size < _SMALL:
        content = os.read(old, size) if size else b""
        while content:
            content = content[os.write(new, content) :]
        return
    is_sparse = status.st_blocks * 512 < size
    at = 0
    while at < size:
        end = size
        if is_sparse:
            try:
                at = os.lseek(old, at, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    break
                raise
            end = os.lseek(old, at, os.SEEK_HOLE)
        while at < end:
            content = os.pread(old, min(_PIECE, end - at), at)
            if not content:
                break
            at += os.pwrite(new, content, at)
        else:
            continue
        break
    os.ftruncate(new, max(at, size) if is_sparse else at)
