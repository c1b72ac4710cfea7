"""Record a workspace in one walk, which reads only changes since the last one.

Folders are opened one inside the other, never through a link. An entry costs one `lstat`; a folder
with the same names and statuses as in the last walk costs one comparison.
"""

import errno
import os
import re
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from agent_core.opening import open_descriptor
from agent_core.snapshots.closed import Opener
from agent_core.snapshots.contents import FileKeeper
from agent_core.snapshots.packs import DIGEST_BYTES, Packs, digest_of
from agent_core.snapshots.places import OPEN_FOLDER, ROOT as ROOT_PATH
from agent_core.snapshots.records import (
    ROOT,
    FileType,
    LeftOut,
    LeftOutReason,
    SnapshotSettings,
    TooManyFilesError,
    TreeEntry,
)
from agent_core.snapshots.stat_cache import FolderRecord, Version, joined, packed
from agent_core.snapshots.tracked import Exclusions, TrackedPaths
from agent_core.snapshots.trees import Tree, decode_tree, encode_tree

MAX_DEPTH = 400
"""Deepest level of folders that are recorded, because each level takes a descriptor."""

_FORMAT = 0o170000
_IS_FOLDER = 0o040000
_SPECIAL = {
    stat.S_IFIFO: LeftOutReason.FIFO,
    stat.S_IFSOCK: LeftOutReason.SOCKET,
    stat.S_IFCHR: LeftOutReason.DEVICE,
    stat.S_IFBLK: LeftOutReason.DEVICE,
}
_CLOSED_ENTRY: Version = (0, 0, 0, 0, 1)
"""Version of an entry whose status may not be read; no other entry has it."""
_GONE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}
_CLOSED = {errno.EACCES, errno.EPERM}
_TEMPORARY = re.compile(rb"\.soong-agent-[0-9a-f]{16}\.tmp").fullmatch
_NO_DIGEST = bytes(DIGEST_BYTES)
_AS_IT_IS = nullcontext[None]()


class WalkScope(Struct, frozen=True):
    """The extent of a walk: its settings, and the paths it passes over or keeps.

    Attributes:
        settings: what is left out.
        exclusions: the patterns among the settings, and the paths kept in spite of them.
        tracked: finds the paths to keep in repositories within the workspace.
        own: paths of the program's own folders in the workspace.
    """

    settings: SnapshotSettings
    exclusions: Exclusions
    tracked: TrackedPaths
    own: Collection[bytes]


class Walk:
    """One walk over a workspace.

    Args:
        root: the workspace, for messages.
        packs: keeps the contents.
        scope: what is recorded.
        known: the records of the walk before, by path.
        is_same_scope: they were made with the same settings and exclusions.
        check: called now and then; raises to end the walk.
        opener: opens closed files; without it they are left out.

    Attributes:
        records: by path, which has a slash at its end.
        is_settled: the records are the same as before, and would be at the next walk.
    """

    def __init__(
        self,
        root: Path,
        packs: Packs,
        *,
        scope: WalkScope,
        known: Mapping[bytes, FolderRecord],
        is_same_scope: bool,
        check: Callable[[], None],
        opener: Opener | None = None,
    ) -> None:
        self.records: dict[bytes, FolderRecord] = {}
        self.is_settled = True
        self.files = 0
        self._root = root
        self._packs = packs
        self._settings = scope.settings
        self._exclusions = scope.exclusions
        self._tracked = scope.tracked
        self._own = scope.own
        self._known = known
        self._is_same_scope = is_same_scope
        self._check = check
        self._opener = opener
        self._keeper = FileKeeper(packs, scope.settings.max_file_bytes, opener)
        self._is_closed = False

    def record(self, root: int) -> FolderRecord:
        """Walk the folder of this descriptor.

        Raises:
            TooManyFilesError: it has more files than a snapshot may hold.
            OSError: it cannot be read, or the packs cannot be written.
        """
        if not self._known:
            self._refuse_too_many()
        with _AS_IT_IS if self._opener is None else self._opener.open_root(root):
            try:
                folder = open_descriptor(ROOT_PATH, OPEN_FOLDER, dir_fd=root)
            except PermissionError:
                self._is_closed, self.is_settled = True, False
                return self._keep_closed()
            try:
                return self._record(folder, b"", _Spot(is_same_scope=self._is_same_scope))
            finally:
                os.close(folder)

    def left_out(self) -> Iterator[LeftOut]:
        """Yield the paths that are not recorded as they are, and those that had to be opened."""
        if self._is_closed:
            yield LeftOut(ROOT, LeftOutReason.UNREADABLE)
        for path, record in self.records.items():
            for name, reason in record.reasons().items():
                yield LeftOut(os.fsdecode(path + name), reason)
        for path in () if self._opener is None else self._opener.opened:
            yield LeftOut(os.fsdecode(path), LeftOutReason.CLOSED)

    def _keep_closed(self) -> FolderRecord:
        """Return the record of a workspace that may not be read: an empty folder."""
        digest = self._packs.put(b"")
        return FolderRecord(b"/", b"", b"", b"", b"", 0, 0, digest)

    def _record(self, descriptor: int, path: bytes, spot: "_Spot") -> FolderRecord:
        self._check()
        old = self._known.get(path)
        names, words = _look(descriptor)
        if path and ".git" in names and self._tracked.enter(path[:-1]):
            spot = replace(spot, is_same_scope=False)
        is_same = (
            old is not None
            and spot.is_same_scope
            and old.versions == packed(words)
            and old.names == os.fsencode("/".join(names))
            and not self._has_new_repositories(path, old)
        )
        if is_same and old is not None:
            draft = old
            self._count(old.files)
        else:
            draft = self._examine(descriptor, path, names, words, old, spot)
        inner: dict[bytes, FolderRecord | LeftOutReason | None] = {}
        for name in draft.folders.split(b"/") if draft.folders else ():
            inner_path = b"%b%b/" % (path, name)
            with self._access(descriptor, name, path + name):
                opened = _open_folder(name, descriptor, spot.depth)
                if opened is None or isinstance(opened, LeftOutReason):
                    inner[name] = opened
                    noted = opened is not None and draft.reasons().get(name) is opened
                    is_same = is_same and noted
                    continue
                try:
                    record = self._record(opened, inner_path, self._below(spot, path, name))
                finally:
                    os.close(opened)
            inner[name] = record
            is_same = is_same and record is self._known.get(inner_path)
        self.records[path] = made = draft if is_same else self._completed(draft, inner, old)
        return made

    def _access(self, folder: int, name: bytes, path: bytes) -> AbstractContextManager[int | None]:
        """Open a closed folder for the block, if it may be opened."""
        if self._opener is None:
            return _AS_IT_IS
        return self._opener.open_entry(folder, name, path)

    def _below(self, spot: "_Spot", path: bytes, name: bytes) -> "_Spot":
        """Return the conditions of a folder in another one."""
        is_git = spot.is_git or name == b".git"
        is_excluded = spot.is_excluded or self._exclusions.fit(path + name, is_folder=True)
        return _Spot(spot.depth + 1, is_excluded and not is_git, is_git, spot.is_same_scope)

    def _has_new_repositories(self, path: bytes, old: FolderRecord) -> bool:
        """Return whether a folder that was excluded now has something to keep."""
        return any(
            reason is LeftOutReason.EXCLUDED and self._tracked.look_into(path + name)
            for name, reason in old.reasons().items()
        )

    def _refuse_too_many(self) -> None:
        """Count files before the first recording reads them; tracked ones are counted later."""
        files = 0
        waiting = [b""]
        while waiting:
            path = waiting.pop()
            self._check()
            place = b"%b/%b" % (os.fsencode(self._root), path)
            with suppress(OSError), os.scandir(place) as found:
                for entry in found:
                    inner = path + entry.name
                    is_folder = entry.is_dir(follow_symlinks=False)
                    if (
                        _is_own(path, entry.name)
                        or inner in self._own
                        or self._exclusions.fit(inner, is_folder=is_folder)
                    ):
                        continue
                    if is_folder:
                        waiting.append(inner + b"/")
                    else:
                        files += entry.is_symlink() or entry.is_file()
            if files > self._settings.max_files:
                raise TooManyFilesError(self._root, self._settings.max_files)

    def _count(self, files: int) -> None:
        self.files += files
        if self.files > self._settings.max_files:
            raise TooManyFilesError(self._root, self._settings.max_files)

    def _examine(
        self,
        descriptor: int,
        path: bytes,
        names: Sequence[str],
        words: Sequence[int],
        old: FolderRecord | None,
        spot: "_Spot",
    ) -> FolderRecord:
        """Read changed entries; return a record without the digests of inner folders."""
        before, known = old.entries() if old is not None else ({}, {})
        reasons = old.reasons() if old is not None else {}
        each = iter(words)
        versions = list[Version](zip(each, each, each, each, each, strict=True))
        tree: Tree = {}
        left_out: dict[bytes, LeftOutReason] = {}
        for number, name in enumerate(map(os.fsencode, names)):
            version = versions[number]
            if _is_own(path, name):
                continue
            reason = self._reason_against(path + name, version, spot)
            if reason is not None:
                pass
            elif version[0] & _FORMAT == _IS_FOLDER:
                tree[name] = TreeEntry(FileType.FOLDER, stat.S_IMODE(version[0]), 0, _NO_DIGEST)
            elif name in known and before.get(name) == version:
                tree[name] = known[name]
                reason = reasons.get(name)
            else:
                self._check()
                kept = self._keeper.keep(descriptor, name, path + name)
                versions[number], reason = kept.version, kept.reason
                if kept.entry is not None:
                    tree[name] = kept.entry
            if reason is not None:
                left_out[name] = reason
        files = [entry for entry in tree.values() if entry.kind is not FileType.FOLDER]
        self._count(len(files))
        return FolderRecord(
            names=os.fsencode("/".join(names)),
            versions=packed([word for version in versions for word in version]),
            folders=b"/".join(
                sorted(name for name, entry in tree.items() if entry.kind is FileType.FOLDER)
            ),
            tree=encode_tree(tree),
            left_out=joined(left_out),
            files=len(files),
            size_bytes=sum(entry.size for entry in files),
            digest=_NO_DIGEST,
        )

    def _reason_against(self, path: bytes, version: Version, spot: "_Spot") -> LeftOutReason | None:
        """Return why an entry is not recorded, as far as its status shows it."""
        kind = version[0] & _FORMAT
        is_folder = kind == _IS_FOLDER
        if path in self._own:
            return LeftOutReason.PROGRAM_HOME
        if not spot.is_git and (
            spot.is_excluded or self._exclusions.fit(path, is_folder=is_folder)
        ):
            is_kept = path in self._exclusions.kept
            if not is_kept and not (is_folder and self._tracked.look_into(path)):
                return LeftOutReason.EXCLUDED
        if not kind:
            return LeftOutReason.UNREADABLE
        if kind in _SPECIAL:
            return _SPECIAL[kind]
        is_large = kind == stat.S_IFREG and version[2] > self._settings.max_file_bytes
        return LeftOutReason.TOO_LARGE if is_large else None

    def _completed(
        self,
        draft: FolderRecord,
        inner: Mapping[bytes, FolderRecord | LeftOutReason | None],
        old: FolderRecord | None,
    ) -> FolderRecord:
        """Return the record with the digests of inner folders."""
        self.is_settled = False
        tree = decode_tree(draft.tree)
        reasons = draft.reasons()
        versions, _ = draft.entries()
        for name, found in inner.items():
            reasons.pop(name, None)
            if isinstance(found, FolderRecord):
                mode = stat.S_IMODE(versions[name][0])
                tree[name] = TreeEntry(FileType.FOLDER, mode, 0, found.digest)
                continue
            tree.pop(name, None)
            if found is not None:
                reasons[name] = found
            else:  # gone, and may come back unchanged
                draft = draft._replace(names=b"/", versions=b"")
        content = encode_tree(tree)
        digest = digest_of(content)
        if old is None or digest != old.digest:
            self._packs.put(content)
        return draft._replace(tree=content, left_out=joined(reasons), digest=digest)


class _Spot(Struct, frozen=True):
    """Conditions of a folder that follow from the folders above it.

    Attributes:
        is_excluded: a pattern matches one of them.
        is_git: it is in the `.git` of a repository, where no pattern counts.
        is_same_scope: the last recording left out the same there.
    """

    depth: int = 0
    is_excluded: bool = False
    is_git: bool = False
    is_same_scope: bool = False


def _look(descriptor: int) -> tuple[list[str], list[int]]:
    """Return the names in a folder, and the five numbers of each that form its version."""
    names: list[str] = []
    words: list[int] = []
    with os.scandir(descriptor) as entries:
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            except PermissionError:
                names.append(entry.name)
                words += _CLOSED_ENTRY
                continue
            names.append(entry.name)
            mode = status.st_mode
            if mode & _FORMAT == _IS_FOLDER:
                words += (mode, status.st_ino, status.st_dev, 0, 0)
            else:
                words += (
                    mode,
                    status.st_ino,
                    status.st_size,
                    status.st_mtime_ns,
                    status.st_ctime_ns,
                )
    return names, words


def _open_folder(name: bytes, descriptor: int, depth: int) -> int | LeftOutReason | None:
    """Open a folder, or return why it cannot be opened; None if it no longer exists."""
    if depth >= MAX_DEPTH:
        return LeftOutReason.TOO_DEEP
    try:
        return open_descriptor(name, OPEN_FOLDER, dir_fd=descriptor)
    except OSError as error:
        if error.errno in _GONE:
            return None
        if error.errno in _CLOSED:
            return LeftOutReason.UNREADABLE
        raise


def _is_own(path: bytes, name: bytes) -> bool:
    """Return whether this is the workspace's own repository, or the program's temporary file."""
    return (name == b".git" and not path) or (
        name.startswith(b".soong-agent-") and _TEMPORARY(name) is not None
    )
