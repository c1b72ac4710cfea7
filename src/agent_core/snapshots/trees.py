"""Folders as objects, which unchanged folders share; differences between them, and merges."""

import os
import struct
from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from agent_core.errors import ErrorCode, StorageError
from agent_core.snapshots.packs import DIGEST_BYTES, Packs
from agent_core.snapshots.records import (
    ROOT,
    ChangeKind,
    FileType,
    LeftOutReason,
    Snapshot,
    SparedFolder,
    TreeChange,
    TreeEntry,
)

_ENTRY = struct.Struct("<cHQH")  # kind, permission bits, size, length of the name
_KINDS = {
    b"f": (FileType.FILE, False),
    b"c": (FileType.FILE, True),
    b"d": (FileType.FOLDER, False),
    b"l": (FileType.LINK, False),
}
_CODES = {each: code for code, each in _KINDS.items()}

Tree = dict[bytes, TreeEntry]
"""The entries of a folder by name."""


def encode_tree(tree: Mapping[bytes, TreeEntry]) -> bytes:
    """Encode a folder as an object: equal folders are equal bytes."""
    pieces: list[bytes] = []
    for name in sorted(tree):
        entry = tree[name]
        code = _CODES[entry.kind, entry.is_chunked]
        size = len(entry.content) if entry.kind is FileType.LINK else entry.size
        pieces += (_ENTRY.pack(code, entry.mode, size, len(name)), name, entry.content)
    return b"".join(pieces)


def decode_tree(content: bytes) -> Tree:
    """Decode an object as a folder.

    Raises:
        StorageError: it is not a folder.
    """
    tree: Tree = {}
    at = 0
    while at < len(content):
        try:
            code, mode, size, length = _ENTRY.unpack_from(content, at)
            kind, is_chunked = _KINDS[code]
        except (struct.error, KeyError) as error:
            raise _no_tree() from error
        at += _ENTRY.size + length
        name = content[at - length : at]
        length = size if kind is FileType.LINK else DIGEST_BYTES
        at += length
        if at > len(content) or name in {b"", b".", b".."} or b"/" in name or b"\0" in name:
            raise _no_tree()
        tree[name] = TreeEntry(kind, mode, size, content[at - length : at], is_chunked)
    return tree


def folders_above(path: str) -> Iterator[str]:
    """Yield the folders above a path, the nearest first."""
    while path := path.rpartition("/")[0]:
        yield path


def entry_at(packs: Packs, tree: bytes, path: bytes) -> TreeEntry | None:
    """Return the entry at a path in a root folder, or None.

    Raises:
        StorageError: a folder is missing or damaged.
        OSError: it cannot be read.
    """
    entry = TreeEntry(FileType.FOLDER, 0, 0, tree)
    for name in path.split(b"/") if path != os.fsencode(ROOT) else ():
        found = decode_tree(packs.get(entry.content)).get(name) if _is_folder(entry) else None
        if found is None:
            return None
        entry = found
    return entry


def changes_between(packs: Packs, before: Snapshot, after: Snapshot) -> Iterator[TreeChange]:
    """Yield the differences between two snapshots, a folder before its contents.

    Raises:
        StorageError: a folder is missing or damaged.
        OSError: it cannot be read.
    """
    if before.mode != after.mode and before.mode is not None and after.mode is not None:
        entries = (TreeEntry(FileType.FOLDER, mode, 0, b"") for mode in (before.mode, after.mode))
        yield TreeChange(ROOT, ChangeKind.MODE, *entries)
    digests = bytes.fromhex(before.tree), bytes.fromhex(after.tree)
    waiting: list[tuple[bytes, bytes | None, bytes | None]] = [(b"", *digests)]
    while waiting:
        prefix, old_digest, new_digest = waiting.pop()
        if old_digest == new_digest:
            continue
        old = {} if old_digest is None else decode_tree(packs.get(old_digest))
        new = {} if new_digest is None else decode_tree(packs.get(new_digest))
        inner: list[tuple[bytes, bytes | None, bytes | None]] = []
        for name in sorted(old.keys() | new.keys()):
            was, now = old.get(name), new.get(name)
            if was == now:
                continue
            path = prefix + name
            if (kind := kind_of_change(was, now)) is not None:
                yield TreeChange(os.fsdecode(path), kind, was, now)
            folders = _folder(was), _folder(now)
            if folders != (None, None):
                inner.append((path + b"/", *folders))
        waiting += reversed(inner)


class Merging:
    """The changes between two snapshots, applied to a third one.

    A path that the target has left out is unknown, and stays unchanged. A path that the base could
    not read, and that had to be opened for the third snapshot, counts as unchanged since the base.

    Args:
        packs: reads and keeps folders.
        base, target: the snapshots whose difference is applied.
        now: the third snapshot.
        spared: what stays as the third snapshot has it.

    Attributes:
        conflicts: paths that the third snapshot changes in another way; they are replaced.
    """

    def __init__(
        self,
        packs: Packs,
        *,
        base: Snapshot,
        target: Snapshot,
        now: Snapshot,
        spared: SparedFolder | None = None,
    ) -> None:
        self.conflicts: set[str] = set()
        self._spared = spared
        self._packs = packs
        self._base, self._target, self._now = base, target, now
        self._unknown = {
            os.fsencode(each.path) for each in target.left_out if not each.reason.is_recorded
        }
        opened = now.left_out_with(LeftOutReason.CLOSED)
        self._as_left = {
            os.fsencode(path)
            for path in base.left_out_with(LeftOutReason.UNREADABLE)
            if not opened.isdisjoint((ROOT, path, *folders_above(path)))
        }
        self._around = {  # folders with such paths must be compared even if they are equal
            os.fsencode(above)
            for path in map(os.fsdecode, self._unknown | self._as_left)
            for above in folders_above(path)
        }
        if spared is not None:
            folders = (spared.folder, *folders_above(spared.folder))
            self._around.update(map(os.fsencode, folders))

    def merge(self) -> Snapshot:
        """Return the third snapshot with the changes; it has no id yet.

        Raises:
            StorageError: a folder is missing or damaged.
            OSError: it cannot be read or written.
        """
        now = bytes.fromhex(self._now.tree)
        base = now if os.fsencode(ROOT) in self._as_left else bytes.fromhex(self._base.tree)
        target = bytes.fromhex(self._target.tree)
        trees = self._tree(base), self._tree(target), self._tree(now)
        tree = self._keep(self._merged(*trees, b""))
        return replace(self._now, snapshot_id="", tree=tree.hex(), mode=self._mode())

    def _mode(self) -> int | None:
        """Return the permission bits of the workspace itself."""
        base, target, now = self._base.mode, self._target.mode, self._now.mode
        if target is None or base is None or target in (base, now):
            return now
        if now != base:
            self.conflicts.add(ROOT)
        return target

    def _merged(
        self,
        base: Mapping[bytes, TreeEntry],
        target: Mapping[bytes, TreeEntry],
        now: Mapping[bytes, TreeEntry],
        prefix: bytes,
    ) -> Tree:
        merged: Tree = {}
        for name in base.keys() | target.keys() | now.keys():
            entry = self._entry(base.get(name), target.get(name), now.get(name), prefix + name)
            if entry is not None:
                merged[name] = entry
        return merged

    def _entry(
        self, base: TreeEntry | None, target: TreeEntry | None, now: TreeEntry | None, path: bytes
    ) -> TreeEntry | None:
        is_spared = self._spared is not None and self._spared.spares(path)
        if is_spared or (target is None and path in self._unknown):
            return now
        if path in self._as_left:
            base = now
        wanted = base if target is None else target
        are_folders = all(each is not None and _is_folder(each) for each in (now, wanted))
        if not (are_folders and path in self._around):
            if target in (base, now):
                return now
            if now == base:
                return target
        if now is not None and are_folders:
            return self._folder(base, target, now, path)
        self.conflicts.add(os.fsdecode(path))
        return target

    def _folder(
        self, base: TreeEntry | None, target: TreeEntry | None, now: TreeEntry, path: bytes
    ) -> TreeEntry | None:
        """Merge an existing folder that is changed or removed.

        It stays as long as others have something in it.
        """
        old, new = (
            self._tree(each.content) if each is not None and _is_folder(each) else {}
            for each in (base, target)
        )
        merged = self._merged(old, new, self._tree(now.content), path + b"/")
        if target is None and not merged:
            return None
        is_other = target is not None and (base is None or base.mode != target.mode)
        mode = target.mode if target is not None and is_other else now.mode
        return TreeEntry(FileType.FOLDER, mode, now.size, self._keep(merged))

    def _tree(self, digest: bytes) -> Tree:
        return decode_tree(self._packs.get(digest))

    def _keep(self, tree: Tree) -> bytes:
        return self._packs.put(encode_tree(tree))


def kind_of_change(was: TreeEntry | None, now: TreeEntry | None) -> ChangeKind | None:
    """Return how an entry itself differs; None if only something below it does."""
    if was is None:
        return ChangeKind.ADDED
    if now is None:
        return ChangeKind.DELETED
    if was.kind is not now.kind:
        return ChangeKind.KIND
    if was.kind is not FileType.FOLDER and was.content != now.content:
        return ChangeKind.MODIFIED
    return ChangeKind.MODE if was.mode != now.mode else None


def _is_folder(entry: TreeEntry) -> bool:
    return entry.kind is FileType.FOLDER


def _folder(entry: TreeEntry | None) -> bytes | None:
    return entry.content if entry is not None and _is_folder(entry) else None


def _no_tree() -> StorageError:
    return StorageError(ErrorCode.STORAGE_ERROR, "an object of the snapshots is not a folder")
