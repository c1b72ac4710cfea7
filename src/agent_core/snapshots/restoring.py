"""Bring a workspace to a recorded state in such a way that a crash can always be finished.

New contents are first written, complete and flushed, into a folder of their own in the workspace.
Then everything is renamed into place, after entries of another kind were renamed away, and
deletions come last. Right before an entry is replaced or removed, it is checked to be as recorded.
"""

import errno
import os
import secrets
import stat
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Self

from msgspec import Struct, field

from agent_core.disk.unfinished import temporary_name
from agent_core.errors import ErrorCode, StorageError
from agent_core.opening import open_descriptor
from agent_core.snapshots.contents import FileKeeper, pieces_of, version_of
from agent_core.snapshots.packs import Packs
from agent_core.snapshots.places import OPEN_FOLDER, ROOT, Places, set_mode
from agent_core.snapshots.recorder import Recording
from agent_core.snapshots.records import (
    ChangeKind,
    FileType,
    MovedAside,
    Refusal,
    TreeChange,
    TreeEntry,
)
from agent_core.snapshots.stat_cache import FolderRecord, Version
from agent_core.snapshots.trees import decode_tree

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ENDS_WORK = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE}
_CHANGED, _IN_THE_WAY, _DAMAGED = errno.ESTALE, errno.EEXIST, errno.EBADMSG
_REFUSALS = {
    errno.ENOENT: Refusal.CHANGED,
    errno.ENOTDIR: Refusal.CHANGED,
    errno.ELOOP: Refusal.CHANGED,
    errno.EISDIR: Refusal.CHANGED,
    errno.ENOTEMPTY: Refusal.CHANGED,
    _CHANGED: Refusal.CHANGED,
    _IN_THE_WAY: Refusal.IN_THE_WAY,
    _DAMAGED: Refusal.DAMAGED,
}
_SYNC_ALL_FROM = 32
_LONGEST_KEPT_NAME = 240
_BLOCK = 65_536
_ZEROS = bytes(_BLOCK)


class RestoredPaths(Struct):
    """The outcome of a restore, by path."""

    restored: list[str] = field(default_factory=list[str])
    deleted: list[str] = field(default_factory=list[str])
    refused: dict[str, Refusal] = field(default_factory=dict[str, Refusal])
    moved_aside: list[MovedAside] = field(default_factory=list[MovedAside])


class Staging(Struct, frozen=True):
    """The folder in the workspace for entries on their way into it or out of it.

    Attributes:
        name: the name of the folder, in the form of a temporary file's name.
        swaps: the paths of the entries `old-<number>` that are renamed into it.
        modes: folders that are made writable during the restore, and their permission bits.
    """

    name: bytes
    swaps: Mapping[int, bytes] = field(default_factory=dict[int, bytes])
    modes: Mapping[bytes, int] = field(default_factory=dict[bytes, int])

    @classmethod
    def of(cls, changes: Sequence[TreeChange], now: Recording) -> Self:
        """Return the staging for these changes of a workspace that was just recorded."""
        swaps = {
            number: os.fsencode(change.path)
            for number, change in enumerate(changes)
            if change.kind is ChangeKind.KIND
        }
        folders = set(swaps.values())
        for change in changes:
            folders.update(_above(os.fsencode(change.path)))
        modes = {ROOT: now.snapshot.mode}
        modes |= {path: _mode_of(path, now.records) for path in sorted(folders)}
        return cls(
            os.fsencode(temporary_name(secrets.token_hex(8))),
            swaps,
            {
                path: mode
                for path, mode in modes.items()
                if mode is not None and mode & 0o700 != 0o700
            },
        )


class Restoration:
    """Carries out changes in a workspace.

    Args:
        places: the workspace.
        packs: the recorded contents.
        staging: the folder for entries on their way.
        changes: from the present to the wanted state, a folder before its contents.
        known: the records of the workspace as just recorded.
        keeper: compares entries whose status differs with what was recorded.
        moves_aside: entries that no snapshot holds are moved out of the way.
    """

    def __init__(
        self,
        places: Places,
        packs: Packs,
        *,
        staging: Staging,
        changes: Sequence[TreeChange],
        known: Mapping[bytes, FolderRecord],
        keeper: FileKeeper,
        moves_aside: bool,
    ) -> None:
        self.outcome = RestoredPaths()
        self._places = places
        self._packs = packs
        self._staging = staging
        self._changes = changes
        self._known = known
        self._keeper = keeper
        self._moves_aside = moves_aside
        self._damaged: set[int] = set()
        self._versions: tuple[bytes, Mapping[bytes, Version]] = (b"?", {})

    def stage(self, check: Callable[[], None], *, passes_over_damage: bool) -> None:
        """Write all new contents; the workspace itself stays unchanged.

        Raises:
            StorageError: contents are missing or damaged, and `passes_over_damage` is false.
            OSError: they cannot be written.
        """
        if (mode := self._staging.modes.get(ROOT)) is not None:
            self._places.set_mode(ROOT, mode | 0o700)
        os.mkdir(self._staging.name, 0o700, dir_fd=self._places.root)
        folder = self._places.open(self._staging.name)
        try:
            numbers = [number for number, change in enumerate(self._changes) if _is_placed(change)]
            for number in numbers:
                check()
                self._stage(number, folder, flushes=len(numbers) < _SYNC_ALL_FROM)
            if len(numbers) >= _SYNC_ALL_FROM:
                os.sync()
        finally:
            os.close(folder)
        if self._damaged and not passes_over_damage:
            paths = [self._changes[number].path for number in sorted(self._damaged)]
            raise StorageError(
                ErrorCode.STORAGE_ERROR,
                f"nothing was restored, because what was recorded of {_listed(paths)} is missing"
                " or damaged; restore with force to bring back the rest",
                details={"reason": "damaged", "paths": paths},
            )

    def apply(self) -> None:
        """Bring every entry to its place, and remove unwanted entries.

        Raises:
            OSError: the disk is full or broken; a recovery finishes the work.
        """
        for path, mode in self._staging.modes.items():
            with self._attempt(path):
                self._set_mode(path, mode | 0o700)
        swapped = set(self._staging.swaps.values())
        removals: list[tuple[bytes, TreeChange]] = []
        for number, change in enumerate(self._changes):
            path = os.fsencode(change.path)
            if change.after is not None:
                with self._attempt(path):
                    self._place(path, number, change, change.after)
            elif swapped.isdisjoint(_above(path)):
                removals.append((path, change))
        self.clear_swapped({number: self._changes[number].before for number in self._staging.swaps})
        for path, change in reversed(removals):
            with self._attempt(path):
                self._remove_wanted(path, change)

    def take_back(self, swaps: Mapping[int, TreeEntry | None]) -> None:
        """Remove what an interrupted restore has left in its staging folder.

        Args:
            swaps: the recorded state of each entry that was renamed away.

        Raises:
            OSError: the disk is broken.
            StorageError: a recorded folder is damaged.
        """
        for path, mode in self._staging.modes.items():
            with self._attempt(path):
                self._set_mode(path, mode | 0o700)
        with suppress(FileNotFoundError):
            self.clear_swapped(swaps)
        self.clean_up()
        self._set_modes(self._staging.modes)

    def flush(self) -> None:
        """Make every new and removed name survive a loss of power."""
        folders = {os.fsencode(change.path).rpartition(b"/")[0] for change in self._changes}
        if len(folders) >= _SYNC_ALL_FROM:
            os.sync()
            return
        for path in folders:
            try:
                folder = self._places.open(path)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except PermissionError:
                os.sync()
                return
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def clear_swapped(self, entries: Mapping[int, TreeEntry | None]) -> None:
        """Remove entries that were renamed away; those that are not as recorded are moved back.

        Such an entry gets a new name beside its old place.

        Args:
            entries: the recorded state of each.

        Raises:
            OSError: the disk is broken.
            StorageError: a recorded folder is damaged.
        """
        folder = self._places.open(self._staging.name)
        try:
            for number, entry in entries.items():
                name, path = b"old-%d" % number, self._staging.swaps[number]
                if not _exists(folder, name):
                    continue
                if entry is not None:
                    self._remove(folder, name, path, entry)
                if _exists(folder, name):
                    self._move_aside(folder, name, path)
        finally:
            os.close(folder)

    def clean_up(self) -> None:
        """Remove the staging folder."""
        import shutil  # noqa: PLC0415 - slow to import

        with suppress(FileNotFoundError):
            shutil.rmtree(self._staging.name, dir_fd=self._places.root)

    def give_up(self) -> None:
        """Return the workspace to its state before `stage`."""
        self.clean_up()
        if (mode := self._staging.modes.get(ROOT)) is not None:
            self._places.set_mode(ROOT, mode)

    def set_modes_of_folders(self) -> None:
        """Give every folder its wanted permission bits, or those it had before.

        Raises:
            OSError: the disk is full or broken.
        """
        modes = dict(self._staging.modes)
        for change in self._changes:
            if change.after is not None and change.after.kind is FileType.FOLDER:
                modes[os.fsencode(change.path)] = change.after.mode
        self._set_modes(modes)

    def _stage(self, number: int, folder: int, *, flushes: bool) -> None:
        """Write the content of one change; note the change if the content is damaged."""
        entry = self._changes[number].after
        if entry is not None:
            try:
                self._write(folder, b"new-%d" % number, entry, flushes=flushes)
            except StorageError:
                self._damaged.add(number)

    def _write(self, folder: int, name: bytes, entry: TreeEntry, *, flushes: bool) -> None:
        """Write a recorded file or link under a free name.

        Raises:
            OSError: it cannot be written.
            StorageError: it is missing or damaged.
        """
        if entry.kind is FileType.LINK:
            os.symlink(entry.content, name, dir_fd=folder)
            return
        file = open_descriptor(name, _NEW, 0o600, dir_fd=folder)
        try:
            size = 0
            for piece in pieces_of(self._packs, entry):
                _write_sparsely(file, piece)
                size += len(piece)
            os.ftruncate(file, size)
            if size != entry.size:
                raise StorageError(ErrorCode.STORAGE_ERROR, "its size is not what was recorded")
            os.fchmod(file, entry.mode)
            if flushes:
                os.fsync(file)
        finally:
            os.close(file)

    def _place(self, path: bytes, number: int, change: TreeChange, after: TreeEntry) -> None:
        """Apply one change.

        Raises:
            OSError: the system refuses.
        """
        folder, name = self._places.parent(path)
        before = change.before
        if number in self._damaged:
            raise OSError(_DAMAGED, "its contents are damaged")
        if before is not None:
            if not self._is_as_recorded(folder, name, path, before):
                raise OSError(_CHANGED, "it has changed just now")
            if change.kind is ChangeKind.MODE:
                if after.kind is FileType.FILE:
                    set_mode(folder, name, after.mode)
                self.outcome.restored.append(change.path)
                return
            if change.kind is ChangeKind.KIND:
                self._swap(number, path, after)
        elif status := self._places.status(path):
            is_there = stat.S_ISDIR(status.st_mode) and after.kind is FileType.FOLDER
            if not is_there and not self._moves_aside:
                raise OSError(_IN_THE_WAY, "something else is there")
            if not is_there:
                self._move_aside(folder, name, path)
        if change.kind is not ChangeKind.KIND:
            self._put(number, path, after)
        self.outcome.restored.append(change.path)

    def _put(self, number: int, path: bytes, entry: TreeEntry) -> None:
        folder, name = self._places.parent(path)
        if entry.kind is FileType.FOLDER:
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=folder)
        else:
            staged = self._staging.name + b"/new-%d" % number
            try:
                os.rename(staged, name, src_dir_fd=self._places.root, dst_dir_fd=folder)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                beside = self._staging.name  # another file system is mounted in the workspace
                self._write(folder, beside, entry, flushes=True)
                os.rename(beside, name, src_dir_fd=folder, dst_dir_fd=folder)

    def _swap(self, number: int, path: bytes, entry: TreeEntry) -> None:
        """Replace an entry by one of another kind, or put it back if that fails."""
        folder, name = self._places.parent(path)
        aside = self._staging.name + b"/old-%d" % number
        os.rename(name, aside, src_dir_fd=folder, dst_dir_fd=self._places.root)
        try:
            self._put(number, path, entry)
        except OSError:
            os.rename(aside, name, src_dir_fd=self._places.root, dst_dir_fd=folder)
            raise

    def _move_aside(self, folder: int, name: bytes, path: bytes) -> None:
        """Rename an entry to a new name beside its path.

        Raises:
            OSError: the system refuses.
        """
        above, slash, last = path.rpartition(b"/")
        token = secrets.token_hex(4).encode()
        moved_to = b"%b%b%b.kept-%b" % (above, slash, last[:_LONGEST_KEPT_NAME], token)
        beside, new_name = self._places.parent(moved_to)
        os.rename(name, new_name, src_dir_fd=folder, dst_dir_fd=beside)
        self.outcome.moved_aside.append(MovedAside(os.fsdecode(path), os.fsdecode(moved_to)))

    def _remove_wanted(self, path: bytes, change: TreeChange) -> None:
        """Remove an unwanted entry; a folder stays if something else is in it.

        Raises:
            OSError: the system refuses, or it has changed.
        """
        if change.before is None or self._places.status(path) is None:
            return
        folder, name = self._places.parent(path)
        if change.before.kind is FileType.FOLDER:
            if not _remove_empty(folder, name):
                return
        elif not self._is_as_recorded(folder, name, path, change.before):
            raise OSError(_CHANGED, "it has changed just now")
        else:
            os.unlink(name, dir_fd=folder)
        self.outcome.deleted.append(change.path)

    def _remove(self, folder: int, name: bytes, path: bytes, entry: TreeEntry) -> None:
        """Remove an entry and everything in it that is as recorded, and nothing else.

        Args:
            folder: descriptor of its folder.
            name: its name there.
            path: its path when it was recorded.
            entry: its recorded state.
        """
        if entry.kind is not FileType.FOLDER:
            if self._is_as_recorded(folder, name, path, entry):
                os.unlink(name, dir_fd=folder)
            return
        is_closed = entry.mode & 0o700 != 0o700
        with suppress(FileNotFoundError, NotADirectoryError):
            if is_closed:
                set_mode(folder, name, entry.mode | 0o700)
            inner = open_descriptor(name, OPEN_FOLDER, dir_fd=folder)
            try:
                for inner_name, inner_entry in decode_tree(self._packs.get(entry.content)).items():
                    with suppress(FileNotFoundError):
                        self._remove(inner, inner_name, path + b"/" + inner_name, inner_entry)
            finally:
                os.close(inner)
            if not _remove_empty(folder, name) and is_closed:
                set_mode(folder, name, entry.mode)

    def _is_as_recorded(self, folder: int, name: bytes, path: bytes, entry: TreeEntry) -> bool:
        """Return whether an entry is as recorded, by its status or else by its contents.

        Raises:
            OSError: its status cannot be read.
        """
        status = os.lstat(name, dir_fd=folder)
        if entry.kind is FileType.FOLDER:
            return stat.S_ISDIR(status.st_mode)
        above, _, last = path.rpartition(b"/")
        if self._versions[0] != above:
            record = self._known.get(above + b"/" if above else b"")
            self._versions = above, record.entries()[0] if record is not None else {}
        return (
            self._versions[1].get(last) == version_of(status)
            or self._keeper.keep(folder, name, path).entry == entry
        )

    def _set_modes(self, modes: Mapping[bytes, int]) -> None:
        """Set permission bits of folders, inner folders first."""
        for path in sorted(modes, key=lambda each: (each != ROOT, each), reverse=True):
            with self._attempt(path):
                self._set_mode(path, modes[path])

    def _set_mode(self, path: bytes, mode: int) -> None:
        status = self._places.status(path)
        if status is not None and stat.S_ISDIR(status.st_mode):
            self._places.set_mode(path, mode)

    @contextmanager
    def _attempt(self, path: bytes) -> Generator[None]:
        """Attempt a step for one path; if only this path fails, it is refused.

        Raises:
            OSError: the disk is full or broken.
        """
        try:
            yield
        except OSError as error:
            if error.errno in _ENDS_WORK:
                raise
            self.outcome.refused[os.fsdecode(path)] = _REFUSALS.get(
                error.errno or 0, Refusal.NOT_PERMITTED
            )


def _is_placed(change: TreeChange) -> bool:
    """Return whether a change writes a file or link."""
    return (
        change.after is not None
        and change.after.kind is not FileType.FOLDER
        and change.kind is not ChangeKind.MODE
    )


def _mode_of(path: bytes, known: Mapping[bytes, FolderRecord]) -> int | None:
    """Return the recorded permission bits of a folder; None if it is not one."""
    above, _, name = path.rpartition(b"/")
    record = known.get(above + b"/" if above else b"")
    entry = decode_tree(record.tree).get(name) if record is not None else None
    return entry.mode if entry is not None and entry.kind is FileType.FOLDER else None


def _above(path: bytes) -> Iterator[bytes]:
    """Yield the folders above a path."""
    while path := path.rpartition(b"/")[0]:
        yield path


def _exists(folder: int, name: bytes) -> bool:
    try:
        os.lstat(name, dir_fd=folder)
    except FileNotFoundError:
        return False
    return True


def _remove_empty(folder: int, name: bytes) -> bool:
    """Remove a folder; False if it is not empty.

    Raises:
        OSError: the system refuses.
    """
    try:
        os.rmdir(name, dir_fd=folder)
    except OSError as error:
        if error.errno in {errno.ENOTEMPTY, errno.EEXIST}:
            return False
        raise
    return True


def _write_sparsely(file: int, piece: bytes) -> None:
    """Append to a file; long runs of zeros become holes."""
    view = memoryview(piece)
    for at in range(0, len(piece), _BLOCK):
        block = view[at : at + _BLOCK]
        if len(block) == _BLOCK and block.tobytes() == _ZEROS:
            os.lseek(file, _BLOCK, os.SEEK_CUR)
            continue
        while block:
            block = block[os.write(file, block) :]


def _listed(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - 5} more" if len(paths) > 5 else ""
    return ", ".join(map(repr, paths[:5])) + more
