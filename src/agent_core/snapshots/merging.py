"""What a workspace is to be when one owner's changes are taken back, and those of others stay."""

import os
from collections.abc import Mapping

from agent_core.snapshots.packs import Packs
from agent_core.snapshots.records import FileType, TreeEntry
from agent_core.snapshots.trees import Tree, decode_tree, encode_tree


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


def _is_folder(entry: TreeEntry) -> bool:
    return entry.kind is FileType.FOLDER
