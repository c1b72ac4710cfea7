"""Folders as objects: unchanged ones are shared; how two of them differ, and how changes merge."""

import os
import struct
from collections.abc import Iterator, Mapping

from agent_core.errors import ErrorCode, StorageError
from agent_core.snapshots.packs import DIGEST_BYTES, Packs
from agent_core.snapshots.records import ChangeKind, FileType, TreeChange, TreeEntry

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
    """The folder as an object: equal folders are equal bytes."""
    pieces: list[bytes] = []
    for name in sorted(tree):
        entry = tree[name]
        code = _CODES[entry.kind, entry.is_chunked]
        size = len(entry.content) if entry.kind is FileType.LINK else entry.size
        pieces += (_ENTRY.pack(code, entry.mode, size, len(name)), name, entry.content)
    return b"".join(pieces)


def decode_tree(content: bytes) -> Tree:
    """The folder of an object.

    Raises:
        StorageError: it is none.
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


def changes_between(packs: Packs, before: bytes, after: bytes) -> Iterator[TreeChange]:
    """What differs between two folders and below them: a folder before what is in it.

    Raises:
        StorageError: a folder is missing or damaged.
        OSError: it cannot be read.
    """
    waiting: list[tuple[bytes, bytes | None, bytes | None]] = [(b"", before, after)]
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
            if (kind := _kind_of_change(was, now)) is not None:
                yield TreeChange(os.fsdecode(path), kind, was, now)
            folders = _folder(was), _folder(now)
            if folders != (None, None):
                inner.append((path + b"/", *folders))
        waiting += reversed(inner)


class Merging:
    """The changes between two folders, made in a third one.

    Args:
        packs: where folders are read and kept.

    Attributes:
        conflicts: paths that differ in the third folder, too, in another way; they are changed.
    """

    def __init__(self, packs: Packs) -> None:
        self.conflicts: set[str] = set()
        self._packs = packs

    def merge(self, base: bytes, target: bytes, now: bytes) -> bytes:
        """`now` with what differs between `base` and `target`, all of them folders.

        Raises:
            StorageError: a folder is missing or damaged.
            OSError: it cannot be read or written.
        """
        return self._keep(self._merged(self._tree(base), self._tree(target), self._tree(now), b""))

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
        if target in (base, now):
            return now
        if now == base:
            return target
        if now is not None and _is_folder(now):
            wanted = base if target is None else target
            if wanted is not None and _is_folder(wanted):
                return self._folder(base, target, now, path)
        self.conflicts.add(os.fsdecode(path))
        return target

    def _folder(
        self, base: TreeEntry | None, target: TreeEntry | None, now: TreeEntry, path: bytes
    ) -> TreeEntry | None:
        """A folder that is there, and is to be otherwise, or to go.

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


def _kind_of_change(was: TreeEntry | None, now: TreeEntry | None) -> ChangeKind | None:
    """How the entry itself differs; None if only what is below it does."""
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
    return StorageError(ErrorCode.STORAGE_ERROR, "an object of the snapshots is no folder")
