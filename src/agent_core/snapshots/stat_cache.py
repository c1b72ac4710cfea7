"""The findings of the last recording, so that the next one reads only changes.

There is one record per folder: the names in it and the status of each, as bytes that are compared
at once. A file that is damaged or of another version is ignored: everything is read again.
"""

import struct
import zlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from agent_core.opening import read_bytes
from agent_core.snapshots.catalogue import write_whole
from agent_core.snapshots.records import LeftOutReason
from agent_core.snapshots.trees import Tree, decode_tree

Version = tuple[int, int, int, int, int]
"""Mode, inode, size, and times of the last change of content and of status, in nanoseconds."""
UNSETTLED: Version = (0, 0, 0, 0, 0)
"""Version of a file that changed so recently that a further change might not show."""

_MAGIC = b"soongst2"
_RECORD = struct.Struct("<IIIIIIIQ32s")
_CHECK = struct.Struct("<8sII")  # magic, CRC of the rest and the length, bytes of the note
_WORD = 1 << 64
_HALF = 1 << 63


class FolderRecord(NamedTuple):
    """One folder as it was recorded.

    Attributes:
        names: names of all entries, in the system's order, separated by slashes; one slash alone
            if the folder has to be read again.
        versions: versions of all entries, in the same order, packed.
        folders: the names of the recorded folders, in order, separated by slashes.
        tree: the folder as an object.
        left_out: reasons and names, separated by slashes.
        files: the number of files and links directly in the folder.
        size_bytes: the sum of their sizes.
        digest: the digest of the tree.
    """

    names: bytes
    versions: bytes
    folders: bytes
    tree: bytes
    left_out: bytes
    files: int
    size_bytes: int
    digest: bytes

    def reasons(self) -> dict[bytes, LeftOutReason]:
        """Return the reasons for entries that are not recorded as they are, by name."""
        parts = iter(self.left_out.split(b"/") if self.left_out else ())
        return {
            name: LeftOutReason(reason.decode()) for reason, name in zip(parts, parts, strict=True)
        }

    def entries(self) -> tuple[dict[bytes, Version], Tree]:
        """Return the versions and the recorded entries by name."""
        if not self.versions:
            return {}, decode_tree(self.tree)
        words = iter(unpacked(self.versions))
        versions = zip(words, words, words, words, words, strict=True)
        names = self.names.split(b"/") if self.names else []
        return dict(zip(names, versions, strict=True)), decode_tree(self.tree)


def joined(reasons: Mapping[bytes, LeftOutReason]) -> bytes:
    """Encode reasons by name as in a record."""
    return b"/".join(b"%b/%b" % (reason.value.encode(), name) for name, reason in reasons.items())


def packed(words: Sequence[int]) -> bytes:
    """Pack numbers as bytes; numbers of more than 64 bits lose their highest bits."""
    try:
        return array("q", words).tobytes()
    except OverflowError:
        return array("q", [(word + _HALF) % _WORD - _HALF for word in words]).tobytes()


def unpacked(versions: bytes) -> Iterable[int]:
    words = array("q")
    words.frombytes(versions)
    return words


def load(path: Path) -> tuple[bytes, dict[bytes, FolderRecord]]:
    """Read the note about the records, and the records by path (with a slash at the end)."""
    records: dict[bytes, FolderRecord] = {}
    content, at = _read_checked(path)
    about = content[_CHECK.size : at]
    unpack, size = _RECORD.unpack_from, _RECORD.size
    while at < len(content):
        a, b, c, d, e, f, files, size_bytes, digest = unpack(content, at)
        names = (folder := at + size) + a
        versions = names + b
        folders = versions + c
        tree = folders + d
        left_out = tree + e
        at = left_out + f
        records[content[folder:names]] = FolderRecord(
            content[names:versions],
            content[versions:folders],
            content[folders:tree],
            content[tree:left_out],
            content[left_out:at],
            files,
            size_bytes,
            digest,
        )
    return about, records


def read_about(path: Path) -> bytes:
    """Read the note about the records; empty if the file is damaged or cannot be read."""
    content, end = _read_checked(path)
    return content[_CHECK.size : end]


def _read_checked(path: Path) -> tuple[bytes, int]:
    """Read a file of records, and where its note ends; empty if it is damaged or not there."""
    try:
        content = read_bytes(path)
        magic, checksum, length = _CHECK.unpack_from(content)
    except (OSError, struct.error):
        return b"", 0
    rest = memoryview(content)[_CHECK.size :]
    if magic != _MAGIC or zlib.crc32(rest, length) != checksum:
        return b"", 0
    return content, _CHECK.size + length


def save(path: Path, about: bytes, records: dict[bytes, FolderRecord]) -> None:
    """Replace the stored records.

    Raises:
        OSError: they cannot be written; the earlier ones stay.
    """
    pieces = [about]
    for folder, record in records.items():
        parts = (folder, *record[:5])
        pieces.append(_RECORD.pack(*map(len, parts), *record[5:]))
        pieces += parts
    rest = b"".join(pieces)
    start = _CHECK.pack(_MAGIC, zlib.crc32(rest, len(about)), len(about))
    write_whole(path, start + rest, flush=False)  # a damaged file is ignored
