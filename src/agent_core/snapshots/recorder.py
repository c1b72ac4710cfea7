"""Recording one workspace, with what its last recording found."""

import json
import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from agent_core.snapshots.catalogue import Catalogue
from agent_core.snapshots.exclusions import Exclusions
from agent_core.snapshots.packs import Packs
from agent_core.snapshots.places import Places
from agent_core.snapshots.records import Snapshot, SnapshotSettings
from agent_core.snapshots.stat_cache import FolderRecord, load, save
from agent_core.snapshots.walk import Walk


@dataclass(frozen=True, slots=True)
class Recording:
    """A snapshot, and what the walk for it has found.

    Attributes:
        records: by path, which has a slash at its end.
    """

    snapshot: Snapshot
    records: Mapping[bytes, FolderRecord]

    @property
    def tree(self) -> bytes:
        """The digest of the root folder."""
        return bytes.fromhex(self.snapshot.tree)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorder:
    """Records one workspace; no other process does so meanwhile.

    Attributes:
        root: the workspace, resolved.
        project: the folder about the workspace.
        packs: where contents are kept.
        catalogue: where snapshots are kept.
        own: folders of the program, which no snapshot holds.
        generation: another text after each sweep that removed objects.
        check: called between two files; raises to end the work.
    """

    root: Path
    project: Path
    packs: Packs
    catalogue: Catalogue
    own: Collection[Path]
    generation: str
    check: Callable[[], None]

    def record(self, settings: SnapshotSettings) -> Recording:
        """Record the workspace as it is.

        Raises:
            TooManyFilesError: there is no snapshot of so many files.
            OSError: the workspace cannot be read, or the store cannot be written.
        """
        last = self.project / "last"
        about, known = load(last)
        exclusions = Exclusions(settings.exclude)
        root = self.root
        own = {
            os.fsencode(path.relative_to(root)) for path in self.own if path.is_relative_to(root)
        }
        scope = json.dumps(
            {
                "generation": self.generation,
                "exclude": settings.exclude,
                "max_file_bytes": settings.max_file_bytes,
                "tracked": sorted(map(os.fsdecode, exclusions.tracked)),
                "own": sorted(map(os.fsdecode, own)),
            }
        ).encode()
        walk = Walk(
            root,
            self.packs,
            settings=settings,
            exclusions=exclusions,
            own=own,
            known=known,
            is_same_scope=about == scope,
            check=self.check,
        )
        with Places(root) as places:
            tree = walk.record(places.root)
        self.packs.commit()
        if not walk.is_settled or about != scope:
            with suppress(OSError):  # the next walk reads again what is not written here
                save(last, scope, walk.records)
        snapshot = self.catalogue.keep(
            tree=tree.digest.hex(),
            files=walk.files,
            size_bytes=sum(record.size_bytes for record in walk.records.values()),
            left_out=sorted(walk.left_out(), key=lambda each: (each.path, each.reason)),
            git=None,
        )
        return Recording(snapshot, walk.records)
