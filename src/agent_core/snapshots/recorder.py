"""Record one workspace, using the findings of its last recording."""

import json
import os
import stat
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from agent_core.disk.unfinished import OPENED
from agent_core.errors import StorageError
from agent_core.snapshots.catalogue import Catalogue
from agent_core.snapshots.closed import Opener
from agent_core.snapshots.contents import digests_in
from agent_core.snapshots.packs import Packs
from agent_core.snapshots.places import Places
from agent_core.snapshots.records import (
    ROOT,
    FileType,
    LeftOutReason,
    Snapshot,
    SnapshotSettings,
    TreeEntry,
)
from agent_core.snapshots.stat_cache import FolderRecord, load, save
from agent_core.snapshots.tracked import Exclusions, TrackedPaths
from agent_core.snapshots.trees import changes_between, decode_tree, entry_at, folders_above
from agent_core.snapshots.walk import Walk, WalkScope

LAST = "last"
"""The file with the findings of the last recording, in the folder about a workspace."""

Span = tuple[Snapshot, Snapshot]
"""The states before and after an operation."""


class Recording(Struct, frozen=True):
    """A snapshot, and the findings of the walk that recorded it.

    Attributes:
        records: by path, which has a slash at its end.
        settings: the settings it was recorded with.
        kept: existing paths that were recorded although a pattern excludes them.
    """

    snapshot: Snapshot
    records: Mapping[bytes, FolderRecord]
    settings: SnapshotSettings
    kept: Set[bytes]


class Recorder(Struct, frozen=True, kw_only=True):
    """Records one workspace, while no other process does.

    Attributes:
        root: the workspace, resolved.
        project: the folder about the workspace.
        packs: keeps contents.
        catalogue: keeps snapshots.
        own: folders of the program, which no snapshot holds.
        generation: a text that changes with each sweep that removed objects.
        check: called between two files; raises to end the work.
    """

    root: Path
    project: Path
    packs: Packs
    catalogue: Catalogue
    own: Collection[Path]
    generation: str
    check: Callable[[], None]

    @property
    def own_paths(self) -> frozenset[bytes]:
        """Paths of the program's own folders in the workspace."""
        inside = (path for path in self.own if path.is_relative_to(self.root))
        return frozenset(os.fsencode(path.relative_to(self.root)) for path in inside)

    def record(
        self, settings: SnapshotSettings, spans: Sequence[Span] = (), *, opens: bool = True
    ) -> Recording:
        """Record the present state of the workspace.

        Args:
            settings: what is left out.
            spans: snapshots that this one will be compared with. Their paths are recorded, even if
              they would be left out today.
            opens: open files that were closed between two of those snapshots, to record them.

        Raises:
            TooManyFilesError: there are more files than a snapshot may hold.
            OSError: the workspace cannot be read, or the store cannot be written.
            StorageError: a folder of those snapshots is missing or damaged.
        """
        opener = self.opener(spans) if spans and opens else None
        recording = self._record(settings, opener)
        while (wider := self._widened(settings, recording, spans)) != settings:
            settings = wider
            recording = self._record(settings, opener)
        return recording

    def _record(self, settings: SnapshotSettings, opener: Opener | None) -> Recording:
        last = self.project / LAST
        said, known = load(last)
        about: dict[str, Any] = json.loads(said) if said else {}
        own = self.own_paths
        if known and about.get("generation") != self.generation:
            known = {path: each for path, each in known.items() if self._is_kept(each)}
        scope = {
            "root": os.fspath(self.root),
            "exclude": list(settings.exclude),
            "max_file_bytes": settings.max_file_bytes,
            "own": sorted(map(os.fsdecode, own)),
            "kept": sorted(settings.kept),
        }
        exclusions = Exclusions(settings.exclude)
        is_same_exclude = about.get("exclude") == scope["exclude"]
        noted: dict[str, Any] = about.get("tracking") or {}
        tracked = TrackedPaths(self.root, exclusions, noted if is_same_exclude else {})
        exclusions.kept.update(map(os.fsencode, settings.kept))
        is_same_scope = all(about.get(key) == value for key, value in scope.items())
        walk = Walk(
            self.root,
            self.packs,
            scope=WalkScope(settings, exclusions, tracked, own),
            known=known,
            is_same_scope=is_same_scope and noted.get("kept") == tracked.notes["kept"],
            check=self.check,
            opener=opener,
        )
        with Places(self.root) as places:
            mode = stat.S_IMODE(os.fstat(places.root).st_mode)
            tree = walk.record(places.root)
        self.packs.commit()  # before the records refer to it
        now = {**scope, "generation": self.generation, "tracking": tracked.notes}
        if walk.records and (not walk.is_settled or about != now):
            try:
                save(last, json.dumps(now).encode(), walk.records)
            except OSError:  # the next walk reads again what is not saved here
                if noted.get("kept") != tracked.notes["kept"]:
                    raise
        snapshot = Snapshot(
            snapshot_id="",
            tree=tree.digest.hex(),
            files=walk.files,
            size_bytes=sum(record.size_bytes for record in walk.records.values()),
            left_out=tuple(sorted(walk.left_out(), key=lambda each: (each.path, each.reason))),
            git=tracked.git,
            mode=mode,
        )
        return Recording(self.keep(snapshot), walk.records, settings, exclusions.kept)

    def _widened(
        self, settings: SnapshotSettings, recording: Recording, spans: Sequence[Span]
    ) -> SnapshotSettings:
        """Return settings that record everything the snapshots of the spans hold."""
        paths, largest = set[bytes](), settings.max_file_bytes
        for snapshot in {each.tree: each for span in spans for each in span}.values():
            for change in changes_between(self.packs, recording.snapshot, snapshot):
                if change.after is not None and change.after.kind is not FileType.FOLDER:
                    largest = max(largest, change.after.size)
                if change.before is None:
                    paths.add(os.fsencode(change.path))
        kept = Exclusions(settings.exclude).meant(paths) - recording.kept
        return replace(
            settings,
            kept=tuple(sorted({*settings.kept, *map(os.fsdecode, kept)})),
            max_file_bytes=largest,
        )

    def keep(self, snapshot: Snapshot) -> Snapshot:
        """Keep a snapshot whose objects were put into the packs.

        Raises:
            OSError: it cannot be written.
        """
        self.packs.commit()
        return self.catalogue.keep(snapshot)

    def opener(self, spans: Sequence[Span]) -> Opener:
        """Return an opener of closed paths, for comparing the workspace with snapshots.

        It opens paths that a snapshot holds, and paths that were closed between two of them. Paths
        that were closed before are closed for a reason.
        """
        trees = {bytes.fromhex(each.tree) for span in spans for each in span}
        before, after = (
            {path for span in spans for path in span[end].left_out_with(LeftOutReason.UNREADABLE)}
            for end in (0, 1)
        )

        def may_open(path: bytes) -> bool:
            if any(entry_at(self.packs, tree, path) is not None for tree in trees):
                return True
            name = os.fsdecode(path)
            return name not in before and not after.isdisjoint((ROOT, name, *folders_above(name)))

        return Opener(self.project / OPENED, may_open)

    def _is_kept(self, record: FolderRecord) -> bool:
        """Return whether the packs still have a folder and the files in it."""
        has = self.packs.has
        return has(record.digest) and all(
            has(entry.content) and all(map(has, self._pieces(entry)))
            for entry in decode_tree(record.tree).values()
            if entry.kind is FileType.FILE
        )

    def _pieces(self, entry: TreeEntry) -> Collection[bytes]:
        try:
            return list(digests_in(self.packs.get(entry.content))) if entry.is_chunked else ()
        except StorageError:
            return (b"",)  # no pack has an object of this name
