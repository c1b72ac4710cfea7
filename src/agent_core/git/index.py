"""The index of git: the tracked paths, and the tree that a commit of them would have.

The format is described in `gitformat-index`; versions 2 to 4 are read. An extra path does no harm
here, but a missing one does: an index that is not understood is unreadable, never empty.
"""

import hashlib
import os
import struct
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct, field

from agent_core.opening import read_text_file

Item = tuple[int, bytes]
"""Mode and digest of an entry, as git stores them."""

_MAX_BYTES = 256 << 20
_HASHES = {20: "sha1", 32: "sha256"}
_FOLDER_MODE = 0o040000
GITLINK = 0o160000
"""Mode of a folder that is a repository of its own."""
_PACKED_GITLINK = GITLINK.to_bytes(4)
_STATUS_BYTES = 40
_CHANGED_AT, _MODE_AT, _SIZE_AT = 8, 24, 36
_ONLY_ITS_NAME = 0x2000
_EXTENDED = 0x4000
_STAGES = 0x3000
_NAME_LENGTH = 0x0FFF


class GitIndex(Struct):
    """The content of an index.

    Attributes:
        items: mode and digest by path. In a sparse index, a whole folder can be one item.
        stats: seconds and nanoseconds of the last change, and size, by path, as git has seen them.
        names_only: paths with only their name staged.
        has_conflicts: a merge is not finished.
        is_whole: no part of it is in another file.
        digest_bytes: the size of a digest.
    """

    digest_bytes: int
    items: dict[bytes, Item] = field(default_factory=dict[bytes, Item])
    stats: dict[bytes, tuple[int, int, int]] = field(
        default_factory=dict[bytes, tuple[int, int, int]]
    )
    names_only: set[bytes] = field(default_factory=set[bytes])
    has_conflicts: bool = False
    is_whole: bool = True

    def tree(self) -> bytes:
        """Return the digest of the root folder that a commit of this index would have."""
        folders: dict[bytes, dict[bytes, Item]] = {b"": {}}
        for path, item in self.items.items():
            if path not in self.names_only:
                above, _, name = path.rpartition(b"/")
                folders.setdefault(above, {})[name] = item
        for path in list(folders):
            while path := path.rpartition(b"/")[0]:
                folders.setdefault(path, {})
        for path in sorted(folders, key=lambda each: each.count(b"/"), reverse=True):
            if path:
                above, _, name = path.rpartition(b"/")
                folders[above][name] = _FOLDER_MODE, self._digest_of(folders[path])
        return self._digest_of(folders[b""])

    def _digest_of(self, folder: Mapping[bytes, Item]) -> bytes:
        """Return the digest of one folder as git stores it: folders are sorted with a slash."""
        lines = sorted(
            (name + b"/" * (mode == _FOLDER_MODE), b"%o %b\0%b" % (mode, name, digest))
            for name, (mode, digest) in folder.items()
        )
        content = b"".join(line for _, line in lines)
        stored = b"tree %d\0%b" % (len(content), content)
        return hashlib.new(_HASHES[self.digest_bytes], stored).digest()


def read_index(folder: Path, *, digest_bytes: int | None = None) -> GitIndex | None:
    """Read the index in a `.git`; None if there is none, or if it cannot be read.

    Args:
        folder: `.git`.
        digest_bytes: the size of a digest in this repository; then an index with a wrong checksum
            is read too, as Git itself does.
    """
    try:
        index, shared = _read(folder / "index", digest_bytes)
        if shared is not None:
            rest, _ = _read(folder / f"sharedindex.{shared}", digest_bytes)
            index.items = {**rest.items, **index.items}
            index.stats = {**rest.stats, **index.stats}
            index.is_whole = False
    except (OSError, struct.error, ValueError, IndexError):
        return None
    return index


def find_submodules(folder: Path, *, digest_bytes: int) -> list[str]:
    """Return the paths of the repositories that an index names, relative to its working tree.

    Args:
        folder: `.git`.
        digest_bytes: the size of a digest in this repository.
    """
    try:
        content = read_text_file(folder / "index", _MAX_BYTES)
    except OSError:
        return []
    if _PACKED_GITLINK not in content and b"link" not in content:
        return []  # true of most repositories; reading all of a large index takes a while
    index = read_index(folder, digest_bytes=digest_bytes)
    items = index.items.items() if index else ()
    return [os.fsdecode(name) for name, (mode, _) in items if mode == GITLINK]


def _read(place: Path, digest_bytes: int | None) -> tuple[GitIndex, str | None]:
    """Read one file, and return the index with the digest of the file that holds the rest, or None.

    Raises:
        ValueError: it is damaged, too large, or not an index of these versions.
    """
    content = read_text_file(place, _MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise ValueError(place)
    for size, name in _HASHES.items():
        end = len(content) - size
        stored = content[end:]
        if stored == hashlib.new(name, memoryview(content)[:end]).digest():
            return _decoded(content[:end], size)
    if not any(content[-20:]):  # git is set to compute no checksum
        try:
            return _decoded(content[:-20], 20)
        except (ValueError, IndexError, struct.error):
            return _decoded(content[:-32], 32)
    if digest_bytes is not None:
        return _decoded(content[:-digest_bytes], digest_bytes)
    raise ValueError(place)


def _decoded(content: bytes, digest_bytes: int) -> tuple[GitIndex, str | None]:
    magic, version, count = struct.unpack_from(">4sII", content)
    if magic != b"DIRC" or version not in {2, 3, 4}:
        raise ValueError(version)
    index = GitIndex(digest_bytes)
    at, path = 12, b""
    flags_at = _STATUS_BYTES + digest_bytes
    for _ in range(count):
        begin = at
        (flags,) = struct.unpack_from(">H", content, at + flags_at)
        at += flags_at + 2
        is_only_its_name = False
        if flags & _EXTENDED:
            is_only_its_name = bool(content[at] << 8 & _ONLY_ITS_NAME)
            at += 2
        if version == 4:
            strip, at = _number(content, at)
            end = content.index(0, at)
            path = path[: len(path) - strip] + content[at:end]
            at = end + 1
        else:
            end = at + (flags & _NAME_LENGTH)
            if flags & _NAME_LENGTH == _NAME_LENGTH:
                end = content.index(0, end)
            path = content[at:end]
            at = begin + (end - begin + 8) // 8 * 8
        (mode,) = struct.unpack_from(">I", content, begin + _MODE_AT)
        index.has_conflicts |= bool(flags & _STAGES)
        tracked = path.rstrip(b"/")
        if not tracked:  # in a split index, an entry that replaces another one has no name
            continue
        changed = struct.unpack_from(">II", content, begin + _CHANGED_AT)
        (size,) = struct.unpack_from(">I", content, begin + _SIZE_AT)
        index.stats[tracked] = (*changed, size)
        index.items[tracked] = mode, content[begin + _STATUS_BYTES : begin + flags_at]
        if is_only_its_name:
            index.names_only.add(tracked)
    while at + 8 <= len(content):
        name, size = struct.unpack_from(">4sI", content, at)
        if name == b"link":
            return index, content[at + 8 : at + 8 + digest_bytes].hex()
        at += 8 + size
    return index, None


def _number(content: bytes, at: int) -> tuple[int, int]:
    """Return a number of variable length, and the position of its end."""
    value = content[at] & 0x7F
    while content[at] & 0x80:
        at += 1
        value = (value + 1 << 7) | (content[at] & 0x7F)
    return value, at + 1
