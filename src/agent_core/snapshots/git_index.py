"""The index of git: what is tracked, and whether it differs from a commit.

The format is that of `gitformat-index`, versions 2 to 4.
"""

import struct
from pathlib import Path

from msgspec import Struct, field

from agent_core.disk.reading import read_text_file
from agent_core.snapshots.git_objects import FOLDER_MODE, GitObjects, Item

_MAX_BYTES = 256 << 20
_STATUS_BYTES = 40
_MODE_AT = 24
_ONLY_ITS_NAME = 0x2000
_EXTENDED = 0x4000
_STAGES = 0x3000
_NAME_LENGTH = 0x0FFF


class GitIndex(Struct):
    """What git tracks.

    Attributes:
        items: mode and digest by path.
        remembered: the digests of whole folders, by path, where nothing was staged since.
        has_conflicts: a merge is not finished.
        is_whole: no part of it is in another file.
        names_only: paths of which nothing but the name is staged.
    """

    items: dict[bytes, Item] = field(default_factory=dict[bytes, Item])
    remembered: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])
    has_conflicts: bool = False
    is_whole: bool = True
    names_only: set[bytes] = field(default_factory=set[bytes])

    def is_same_as(self, objects: GitObjects, tree: bytes) -> bool | None:
        """Whether it is exactly a tree of git; None if that cannot be known.

        Raises:
            UnreadableError: an object cannot be read.
        """
        if self.has_conflicts:
            return False
        if not self.is_whole:
            return None
        folders: dict[bytes, dict[bytes, Item]] = {b"": {}}
        if b"" not in self.remembered:
            self._sort_into(folders)
        waiting = [(b"", tree)]
        while waiting:
            path, digest = waiting.pop()
            if path in self.remembered:
                if self.remembered[path] != digest:
                    return False
                continue
            staged = folders.get(path, {})
            committed = objects.tree(digest)
            if staged.keys() != committed.keys():
                return False
            for name, (mode, item) in committed.items():
                inner = path + b"/" + name if path else name
                if mode == FOLDER_MODE and inner in folders:
                    waiting.append((inner, item))
                elif staged[name] != (mode, item):
                    return False
        return True

    def _sort_into(self, folders: dict[bytes, dict[bytes, Item]]) -> None:
        for path, item in self.items.items():
            if path in self.names_only:
                continue
            above, _, name = path.rstrip(b"/").rpartition(b"/")
            while above not in folders:
                folders[above] = {name: item}
                above, _, name = above.rpartition(b"/")
                item = FOLDER_MODE, b""
            folders[above][name] = item


def read_index(folder: Path, digest_bytes: int) -> GitIndex | None:
    """The index in a `.git`; None if it cannot be read, or is too large.

    Args:
        folder: `.git`.
        digest_bytes: the size of a digest in this repository.
    """
    index = GitIndex()
    try:
        shared = _read_into(index, folder / "index", digest_bytes)
        if shared is not None:
            index.is_whole = False
            _read_into(index, folder / f"sharedindex.{shared}", digest_bytes)
    except (OSError, struct.error, ValueError, IndexError):
        return None
    return index


def _read_into(index: GitIndex, place: Path, digest_bytes: int) -> str | None:
    """Read one file; returns the digest of the file that holds the rest, if there is one."""
    content = read_text_file(place, _MAX_BYTES + 1)
    magic, version, count = struct.unpack_from(">4sII", content)
    if magic != b"DIRC" or version not in {2, 3, 4} or len(content) > _MAX_BYTES:
        raise ValueError(place)
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
        index.items[path] = mode, content[begin + _STATUS_BYTES : begin + flags_at]
        index.has_conflicts |= bool(flags & _STAGES)
        if is_only_its_name:
            index.names_only.add(path)
    shared: str | None = None
    while at + 8 <= len(content) - digest_bytes:
        name, size = struct.unpack_from(">4sI", content, at)
        extension = content[at + 8 : at + 8 + size]
        at += 8 + size
        if name == b"TREE":
            index.remembered = _remembered(extension, digest_bytes)
        elif name == b"link":
            shared = extension[:digest_bytes].hex()
    return shared


def _remembered(extension: bytes, digest_bytes: int) -> dict[bytes, bytes]:
    """The folders that git remembers the digests of, by path."""
    found: dict[bytes, bytes] = {}
    at = 0
    above: list[tuple[bytes, int]] = []
    while at < len(extension):
        end = extension.index(0, at)
        name = extension[at:end]
        line_end = extension.index(b"\n", end)
        entries, inner = map(int, extension[end + 1 : line_end].split(b" "))
        at = line_end + 1
        path = above[-1][0] + b"/" + name if above and above[-1][0] else name
        if entries >= 0:
            found[path] = extension[at : at + digest_bytes]
            at += digest_bytes
        if above:
            above[-1] = above[-1][0], above[-1][1] - 1
        above.append((path, inner))
        while above and above[-1][1] == 0:
            above.pop()
    return found


def _number(content: bytes, at: int) -> tuple[int, int]:
    """A number of variable length, and where it ends."""
    value = content[at] & 0x7F
    while content[at] & 0x80:
        at += 1
        value = (value + 1 << 7) | (content[at] & 0x7F)
    return value, at + 1
