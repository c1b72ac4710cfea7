"""Removing what no snapshot needs, so that a crash at any moment loses nothing that is needed.

Snapshots are forgotten first. Then packs with much that is not needed are written anew, and removed
when the new one is on the disk. The caller keeps everything else away meanwhile.
"""

import json
import os
import shutil
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from agent_core.disk.folders import flush_folder
from agent_core.disk.interrupted import INTENT, OPENED
from agent_core.errors import StorageError
from agent_core.snapshots.contents import digests_in, pieces_of
from agent_core.snapshots.packs import Pack, Packs, PackWriter
from agent_core.snapshots.recorder import LAST
from agent_core.snapshots.records import Damage, FileType
from agent_core.snapshots.stat_cache import read_about
from agent_core.snapshots.trees import decode_tree

MANY_PACKS = 40
"""So many small packs are written together into one."""
SMALL_PACK_BYTES = 32 << 20

_WASTE = 0.2


def needed_by(packs: Packs, trees: Iterable[bytes]) -> set[bytes]:
    """The digests of everything in these root folders, as far as they can be read.

    Raises:
        OSError: a pack cannot be read.
    """
    needed: set[bytes] = set()
    waiting = list(trees)
    while waiting:
        digest = waiting.pop()
        if digest in needed:
            continue
        needed.add(digest)
        try:
            entries = decode_tree(packs.get(digest)).values()
        except StorageError:
            continue  # what is below it cannot be restored
        for entry in entries:
            if entry.kind is FileType.FOLDER:
                waiting.append(entry.content)
            elif entry.kind is FileType.FILE and entry.content not in needed:
                needed.add(entry.content)
                if entry.is_chunked:
                    needed.update(_pieces(packs, entry.content))
    return needed


def wasteful_packs(packs: Packs, needed: Collection[bytes]) -> list[Pack]:
    """The packs of which much is not needed.

    Raises:
        OSError: a pack cannot be read.
    """
    found: list[Pack] = []
    for pack in packs:
        useful = sum(pack.stored_size(place) for digest, place in pack.items() if digest in needed)
        if pack.size - useful > _WASTE * pack.size:
            found.append(pack)
    return found


def write_anew(old: Iterable[Pack], folder: Path, needed: Collection[bytes] | None) -> int:
    """Replace packs by one with what is needed of them; returns the bytes that are free again.

    Args:
        old: the packs; one that is damaged stays as it is.
        folder: where packs are.
        needed: digests of objects; without it, all are.

    Raises:
        OSError: a pack cannot be read or written; everything needed is still there.
    """
    writer = PackWriter(folder)
    replaced: list[Pack] = []
    try:
        for pack in old:
            wanted = [each for each in pack.items() if needed is None or each[0] in needed]
            records = [(digest, pack.record(place)) for digest, place in wanted]
            if not all(record.startswith(digest) for digest, record in records):
                continue  # it is damaged, and left as it is
            for digest, record in records:
                if digest not in writer.places:
                    writer.add_record(digest, record)
            replaced.append(pack)
        written = writer.commit()
    finally:
        writer.abandon()
    for pack in replaced:
        pack.path.unlink()
    if replaced:
        flush_folder(folder)
    return sum(pack.size for pack in replaced) - written


def merge_small(packs: Packs, folder: Path) -> None:
    """Write many small packs into one.

    Raises:
        OSError: a pack cannot be read or written; everything is still there.
    """
    small = [pack for pack in packs if pack.size < SMALL_PACK_BYTES]
    if len(small) >= MANY_PACKS:
        write_anew(small, folder, None)


def damages_of(packs: Packs, tree: bytes) -> Iterator[Damage]:
    """What of a root folder and everything below it cannot be restored.

    Raises:
        OSError: a pack cannot be read.
    """
    waiting = [(b"", tree)]
    while waiting:
        path, digest = waiting.pop()
        try:
            entries = decode_tree(packs.get(digest))
        except StorageError as error:
            yield Damage(os.fsdecode(path) or ".", error.message)
            continue
        for name, entry in entries.items():
            inner = path + b"/" + name if path else name
            if entry.kind is FileType.FOLDER:
                waiting.append((inner, entry.content))
            elif entry.kind is FileType.FILE:
                try:
                    if sum(map(len, pieces_of(packs, entry))) != entry.size:
                        yield Damage(os.fsdecode(inner), "its size is not what was recorded")
                except StorageError as error:
                    yield Damage(os.fsdecode(inner), error.message)


def _pieces(packs: Packs, digest: bytes) -> Iterable[bytes]:
    try:
        return digests_in(packs.get(digest))
    except StorageError:
        return ()


def remove_parts(folder: Path) -> None:
    """Remove what processes that died while they wrote have left.

    Raises:
        OSError: it cannot be removed.
    """
    for pattern in (".*.part", "*/.*.part", "projects/*/.*.part"):
        for part in folder.glob(pattern):
            part.unlink(missing_ok=True)


def forget_removed_workspaces(projects: Path) -> None:
    """Remove what the last recording found of workspaces that are gone.

    Raises:
        OSError: it cannot be removed.
    """
    for project in projects.glob("*"):
        root = json.loads(read_about(project / LAST) or b"{}").get("root")
        is_gone = root is not None and not os.path.lexists(root)
        if is_gone and not (project / INTENT).exists() and not (project / OPENED).exists():
            shutil.rmtree(project)
