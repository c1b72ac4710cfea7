"""Packs with the objects of a snapshot, for sending it to another machine."""

import secrets
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from agent_core.disk.folders import make_private, remove_tree
from agent_core.snapshots.contents import digests_in
from agent_core.snapshots.packs import MissingObjectError, Packs, PackWriter
from agent_core.snapshots.records import FileType, TreeEntry
from agent_core.snapshots.trees import decode_tree

SENDING = "sending"
"""The folder of packs on their way to another machine."""
_PACK_BYTES = 64 << 20
"""Bytes after which a sent pack is closed."""


def objects_beyond(packs: Packs, tree: bytes, known: bytes | None) -> Iterator[bytes]:
    """Yield the digests of all objects of a folder that another folder does not have.

    Args:
        packs: holds all of the folder.
        tree: the folder.
        known: the other folder; objects of it that are not in the packs count as unknown.

    Raises:
        StorageError: an object of the folder is missing or damaged.
        OSError: it cannot be read.
    """
    seen: set[bytes] = set()
    waiting = [(tree, known)]
    while waiting:
        digest, other = waiting.pop()
        if digest == other or digest in seen:
            continue
        seen.add(digest)
        yield digest
        before = _entries(packs, other)
        for name, entry in decode_tree(packs.get(digest)).items():
            was = before.get(name)
            is_same_kind = was is not None and was.kind is entry.kind
            old = was.content if was is not None and is_same_kind else None
            if entry.kind is FileType.FOLDER:
                waiting.append((entry.content, old))
            elif entry.kind is FileType.FILE and entry.content != old:
                found = [entry.content]
                if entry.is_chunked:
                    found += digests_in(packs.get(entry.content))
                new = dict.fromkeys(each for each in found if each not in seen)
                seen.update(new)
                yield from new


def write_packs(packs: Packs, digests: Iterable[bytes], folder: Path) -> Iterator[Path]:
    """Write objects into packs in a folder; each pack is removed when the next one is requested.

    Raises:
        StorageError: an object is missing, or a pack cannot be written.
        OSError: it cannot be read.
    """
    place = folder / secrets.token_hex(8)
    make_private(place)
    writer = PackWriter(place)
    try:
        size = 0
        for digest in digests:
            record = packs.record(digest)
            writer.add_record(digest, record)
            size += len(record)
            if size > _PACK_BYTES:
                yield from _committed(writer, place)
                size = 0
        yield from _committed(writer, place)
    finally:
        writer.abandon()
        remove_tree(place, keep=False)


def _committed(writer: PackWriter, place: Path) -> Iterator[Path]:
    if writer.commit():
        for path in place.iterdir():
            yield path
            path.unlink()


def _entries(packs: Packs, digest: bytes | None) -> Mapping[bytes, TreeEntry]:
    if digest is None:
        return {}
    try:
        return decode_tree(packs.get(digest))
    except MissingObjectError:
        return {}
