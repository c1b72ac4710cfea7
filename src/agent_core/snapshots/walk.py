"""Recording a workspace: one walk, which reads only what has changed since the last one.

Folders are opened one inside the other, never through a link. An entry costs one `lstat`; a folder
whose names and statuses are those of the last walk costs one comparison.
"""

import errno
import os
import re
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from agent_core.opening import open_descriptor
from agent_core.snapshots.contents import FileKeeper
from agent_core.snapshots.packs import DIGEST_BYTES, Packs, digest_of
from agent_core.snapshots.records import (
    FileType,
    LeftOut,
    LeftOutReason,
    SnapshotSettings,
    TooManyFilesError,
    TreeEntry,
)
from agent_core.snapshots.stat_cache import FolderRecord, Version, packed
from agent_core.snapshots.trees import Tree, decode_tree, encode_tree
from agent_core.text.wildcards import Wildcards

MAX_DEPTH = 400
"""Folders below this are left out: each level takes a descriptor."""
OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_FORMAT = 0o170000
_IS_FOLDER = 0o040000
_SPECIAL = {
    stat.S_IFIFO: LeftOutReason.FIFO,
    stat.S_IFSOCK: LeftOutReason.SOCKET,
    stat.S_IFCHR: LeftOutReason.DEVICE,
    stat.S_IFBLK: LeftOutReason.DEVICE,
}
_CLOSED_ENTRY: Version = (0, 0, 0, 0, 1)
"""Of an entry that may not be looked at; no version that is kept for another reason."""
_GONE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}
_CLOSED = {errno.EACCES, errno.EPERM}
_TEMPORARY = re.compile(rb"\.soong-agent-[0-9a-f]{16}\.tmp").fullmatch
_NO_DIGEST = bytes(DIGEST_BYTES)


class Exclusions:
    """The patterns of `exclude`.

    Args:
        patterns: as lines of a `.gitignore` at the top of the workspace.
        tracked: paths that git tracks, relative to the workspace.
    """

    def __init__(self, patterns: Iterable[str], tracked: Iterable[bytes] = ()) -> None:
        lines = os.fsencode("\n".join(patterns))
        self._of_files = Wildcards.parse(lines, folders=False)
        self._of_folders = Wildcards.parse(lines, folders=True)
        kept: set[bytes] = set()
        for path in tracked:
            parts = path.split(b"/")
            above = [b"/".join(parts[:count]) for count in range(1, len(parts))]
            if any(self.fit(folder, is_folder=True) for folder in above) or self.fit(
                path, is_folder=False
            ):
                kept |= {path, *above}
        self.tracked = frozenset(kept)

    def fit(self, path: bytes, *, is_folder: bool) -> bool:
        """Whether a pattern means this path itself."""
        patterns = self._of_folders if is_folder else self._of_files
        return patterns.verdict(path) is True

    def is_tracked(self, path: bytes) -> bool:
        """Whether git tracks it, or something in it, though a pattern means it."""
        return path in self.tracked


class Walk:
    """One walk over a workspace.

    Args:
        root: the workspace, for messages.
        packs: where what is read is put.
        settings: what is left out.
        exclusions: the patterns among them, and what git tracks.
        own: paths of the program's own folders in the workspace.
        known: the records of the walk before, by path.
        is_same_scope: they were made with the same settings and exclusions.
        check: called now and then; raises to end the walk.

    Attributes:
        records: by path, which has a slash at its end.
        is_settled: the records are the same as before, and would be at the next walk.
    """

    def __init__(
        self,
        root: Path,
        packs: Packs,
        *,
        settings: SnapshotSettings,
        exclusions: Exclusions,
        own: Collection[bytes],
        known: Mapping[bytes, FolderRecord],
        is_same_scope: bool,
        check: Callable[[], None],
    ) -> None:
        self.records: dict[bytes, FolderRecord] = {}
        self.is_settled = True
        self.files = 0
        self._root = root
        self._packs = packs
        self._settings = settings
        self._exclusions = exclusions
        self._own = own
        self._known = known
        self._is_same_scope = is_same_scope
        self._check = check
        self._keeper = FileKeeper(packs, settings.max_file_bytes)

    def record(self, root: int) -> FolderRecord:
        """Walk the folder of this descriptor.

        Raises:
            TooManyFilesError: it has more than a snapshot may hold.
            OSError: it cannot be read, or the packs cannot be written.
        """
        if not self._known:
            self._refuse_too_many()
        return self._record(root, b"", depth=0, is_excluded=False)

    def left_out(self) -> Iterator[LeftOut]:
        """What is not recorded as it is."""
        for path, record in self.records.items():
            for name, reason in _reasons_in(record.left_out):
                yield LeftOut(os.fsdecode(path + name), reason)

    def _record(
        self, descriptor: int, path: bytes, *, depth: int, is_excluded: bool
    ) -> FolderRecord:
        self._check()
        old = self._known.get(path)
        names, words = _look(descriptor)
        is_same = (
            old is not None
            and self._is_same_scope
            and old.versions == packed(words)
            and old.names == os.fsencode("/".join(names))
        )
        if is_same and old is not None:
            draft = old
            self._count(old.files)
        else:
            draft = self._examine(descriptor, path, names, words, old, is_excluded=is_excluded)
        inner: dict[bytes, FolderRecord | LeftOutReason | None] = {}
        for name in draft.folders.split(b"/") if draft.folders else ():
            opened = _open_folder(name, descriptor) if depth < MAX_DEPTH else LeftOutReason.TOO_DEEP
            if opened is None or isinstance(opened, LeftOutReason):
                inner[name] = opened
                noted = opened is not None and (name, opened) in _reasons_in(draft.left_out)
                is_same = is_same and noted
                continue
            try:
                inner_path = b"%b%b/" % (path, name)
                inside = is_excluded or self._exclusions.fit(path + name, is_folder=True)
                record = self._record(opened, inner_path, depth=depth + 1, is_excluded=inside)
            finally:
                os.close(opened)
            inner[name] = record
            is_same = is_same and record is self._known.get(inner_path)
        self.records[path] = made = draft if is_same else self._completed(draft, inner, old)
        return made

    def _refuse_too_many(self) -> None:
        """Count before anything is read for the first time; what is tracked counts later."""
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
        *,
        is_excluded: bool,
    ) -> FolderRecord:
        """The folder without the digests of those in it; what has changed is read."""
        before, known = old.entries() if old is not None else ({}, {})
        reasons = dict(_reasons_in(old.left_out)) if old is not None else {}
        each = iter(words)
        versions = list[Version](zip(each, each, each, each, each, strict=True))
        tree: Tree = {}
        left_out: list[tuple[bytes, LeftOutReason]] = []
        for number, name in enumerate(map(os.fsencode, names)):
            version = versions[number]
            if _is_own(path, name):
                continue
            reason = self._reason_against(path + name, version, is_excluded=is_excluded)
            if reason is not None:
                pass
            elif version[0] & _FORMAT == _IS_FOLDER:
                tree[name] = TreeEntry(FileType.FOLDER, stat.S_IMODE(version[0]), 0, _NO_DIGEST)
            elif name in known and before.get(name) == version:
                tree[name] = known[name]
                reason = reasons.get(name)
            else:
                self._check()
                kept = self._keeper.keep(descriptor, name)
                versions[number], reason = kept.version, kept.reason
                if kept.entry is not None:
                    tree[name] = kept.entry
            if reason is not None:
                left_out.append((name, reason))
        files = [entry for entry in tree.values() if entry.kind is not FileType.FOLDER]
        self._count(len(files))
        return FolderRecord(
            names=os.fsencode("/".join(names)),
            versions=packed([word for version in versions for word in version]),
            folders=b"/".join(
                sorted(name for name, entry in tree.items() if entry.kind is FileType.FOLDER)
            ),
            tree=encode_tree(tree),
            left_out=_joined(left_out),
            files=len(files),
            size_bytes=sum(entry.size for entry in files),
            digest=_NO_DIGEST,
        )

    def _reason_against(
        self, path: bytes, version: Version, *, is_excluded: bool
    ) -> LeftOutReason | None:
        """Why an entry is not recorded, as far as its status tells."""
        kind = version[0] & _FORMAT
        if path in self._own:
            return LeftOutReason.PROGRAM_HOME
        fits = is_excluded or self._exclusions.fit(path, is_folder=kind == _IS_FOLDER)
        if fits and not self._exclusions.is_tracked(path):
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
        """The record with the digests of the folders in it."""
        self.is_settled = False
        tree = decode_tree(draft.tree)
        reasons = dict(_reasons_in(draft.left_out))
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
            else:  # it is gone, and may come back as it was
                draft = draft._replace(names=b"/", versions=b"")
        content = encode_tree(tree)
        digest = digest_of(content)
        if old is None or digest != old.digest:
            self._packs.put(content)
        return draft._replace(tree=content, left_out=_joined(reasons.items()), digest=digest)


def _look(descriptor: int) -> tuple[list[str], list[int]]:
    """The names in a folder, and the five numbers of each that tell its version."""
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


def _open_folder(name: bytes, descriptor: int) -> int | LeftOutReason | None:
    """The folder, or why it cannot be opened; None if there is none any more."""
    try:
        return open_descriptor(name, OPEN_FOLDER, dir_fd=descriptor)
    except OSError as error:
        if error.errno in _GONE:
            return None
        if error.errno in _CLOSED:
            return LeftOutReason.UNREADABLE
        raise


def _is_own(path: bytes, name: bytes) -> bool:
    """Whether it is the workspace's own repository, or a temporary file of this program."""
    return (name == b".git" and not path) or (
        name.startswith(b".soong-agent-") and _TEMPORARY(name) is not None
    )


def _joined(left_out: Iterable[tuple[bytes, LeftOutReason]]) -> bytes:
    return b"/".join(b"%b/%b" % (reason.value.encode(), name) for name, reason in left_out)


def _reasons_in(left_out: bytes) -> Iterator[tuple[bytes, LeftOutReason]]:
    parts = iter(left_out.split(b"/") if left_out else ())
    for reason, name in zip(parts, parts, strict=True):
        yield name, LeftOutReason(reason.decode())
