"""Remove unneeded objects so that a crash at any moment loses nothing that is needed.

Snapshots are removed first. Then packs with many unneeded objects are rewritten, and removed when
the new pack is on the disk. The caller keeps all other work away.
"""

import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from agent_core.disk.folders import flush_folder
from agent_core.disk.unfinished import INTENT, OPENED
from agent_core.errors import StorageError
from agent_core.snapshots.contents import digests_in, pieces_of
from agent_core.snapshots.packs import Pack, Packs, PackWriter
from agent_core.snapshots.recorder import LAST
from agent_core.snapshots.records import Damage, FileType
from agent_core.snapshots.stat_cache import load, read_about, save
from agent_core.snapshots.trees import decode_tree

MANY_PACKS = 40
"""Number of small packs from which they are merged into one."""
SMALL_PACK_BYTES = 32 << 20

_WASTE = 0.2


def needed_by(packs: Packs, trees: Iterable[bytes]) -> set[bytes]:
    """Return the digests of everything in these root folders, as far as they can be read.

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
            continue  # its contents cannot be restored
        for entry in entries:
            if entry.kind is FileType.FOLDER:
                waiting.append(entry.content)
            elif entry.kind is FileType.FILE and entry.content not in needed:
                needed.add(entry.content)
                if entry.is_chunked:
                    needed.update(_pieces(packs, entry.content))
    return needed


def owners_of(packs: Packs, trees: Mapping[str, Iterable[bytes]]) -> dict[bytes, str | None]:
    """Return who alone needs each object: the owner of its root folders, or None if several do.

    Each object is read at most twice, however many root folders lead to it.

    Raises:
        OSError: a pack cannot be read.
    """
    owners: dict[bytes, str | None] = {}
    for owner, roots in trees.items():
        waiting = list(roots)
        while waiting:
            digest = waiting.pop()
            if digest in owners and owners[digest] in {owner, None}:
                continue
            now = owners[digest] = None if digest in owners else owner
            try:
                entries = decode_tree(packs.get(digest)).values()
            except StorageError:
                continue
            for entry in entries:
                if entry.kind is FileType.FOLDER:
                    waiting.append(entry.content)
                elif entry.kind is FileType.FILE:
                    pieces = _pieces(packs, entry.content) if entry.is_chunked else ()
                    for content in (entry.content, *pieces):
                        owners[content] = now if owners.get(content, now) == now else None
    return owners


def bytes_by_owner(packs: Packs, owners: Mapping[bytes, str | None]) -> dict[str, int]:
    """Return the stored bytes of the objects that each owner alone needs.

    Raises:
        OSError: a pack cannot be read.
    """
    found: dict[str, int] = {}
    for pack in packs:
        for digest, place in pack.items():
            owner = owners.get(digest)
            if owner is not None:
                found[owner] = found.get(owner, 0) + pack.stored_size(place)
    return found


def wasteful_packs(
    packs: Packs, needed: Collection[bytes], *, is_thorough: bool = False
) -> list[Pack]:
    """Return the packs with many unneeded objects; a thorough search accepts none at all.

    Raises:
        OSError: a pack cannot be read.
    """
    found: list[Pack] = []
    for pack in packs:
        useful = unneeded = 0
        for digest, place in pack.items():
            if digest in needed:
                useful += pack.stored_size(place)
            else:
                unneeded += 1
        if pack.size - useful > _WASTE * pack.size or (is_thorough and unneeded):
            found.append(pack)
    return found


def write_anew(old: Iterable[Pack], folder: Path, needed: Collection[bytes] | None) -> int:
    """Replace packs by one pack with their needed objects, and return the freed bytes.

    Args:
        old: the packs; a damaged one stays unchanged.
        folder: the folder of packs.
        needed: digests of the needed objects; None for all of them.

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
                continue  # a damaged pack stays unchanged
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
    """Merge many small packs into one.

    Raises:
        OSError: a pack cannot be read or written; everything is still there.
    """
    small = [pack for pack in packs if pack.size < SMALL_PACK_BYTES]
    if len(small) >= MANY_PACKS:
        write_anew(small, folder, None)


def damages_of(packs: Packs, tree: bytes) -> Iterator[Damage]:
    """Yield the damages in a root folder and everything below it.

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
    """Remove partial files of processes that died while writing.

    Raises:
        OSError: a file cannot be removed.
    """
    for pattern in (".*.part", "*/.*.part", "projects/*/.*.part"):
        for part in folder.glob(pattern):
            part.unlink(missing_ok=True)


def forget_findings(projects: Path, needed: Collection[bytes]) -> None:
    """Remove the findings about folders that no snapshot has in this form: they name its files.

    Raises:
        OSError: they cannot be written.
    """
    for last in projects.glob(f"*/{LAST}"):
        about, records = load(last)
        kept = {path: record for path, record in records.items() if record.digest in needed}
        if len(kept) < len(records):
            save(last, about, kept)


def forget_removed_workspaces(projects: Path) -> None:
    """Remove the findings about workspaces that no longer exist.

    Raises:
        OSError: they cannot be removed.
    """
    for project in projects.glob("*"):
        root = json.loads(read_about(project / LAST) or b"{}").get("root")
        is_gone = root is not None and not os.path.lexists(root)
        if is_gone and not (project / INTENT).exists() and not (project / OPENED).exists():
            import shutil  # noqa: PLC0415 - slow to import

            shutil.rmtree(project)
