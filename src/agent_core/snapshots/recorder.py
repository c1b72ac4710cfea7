"""Recording one workspace, with what its last recording found."""

import json
import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from agent_core.disk.reading import version_of
from agent_core.errors import StorageError
from agent_core.snapshots.catalogue import Catalogue
from agent_core.snapshots.contents import digests_in
from agent_core.snapshots.git import Repository
from agent_core.snapshots.packs import Packs
from agent_core.snapshots.places import Places
from agent_core.snapshots.records import (
    FileType,
    GitState,
    Snapshot,
    SnapshotSettings,
    TreeEntry,
)
from agent_core.snapshots.stat_cache import FolderRecord, load, save
from agent_core.snapshots.trees import decode_tree
from agent_core.snapshots.walk import Exclusions, Walk

LAST = "last"
"""The file with what the last recording found, in the folder about a workspace."""


class Recording(Struct, frozen=True):
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


class Recorder(Struct, frozen=True, kw_only=True):
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

    @property
    def own_paths(self) -> frozenset[bytes]:
        """The program's own folders in the workspace."""
        inside = (path for path in self.own if path.is_relative_to(self.root))
        return frozenset(os.fsencode(path.relative_to(self.root)) for path in inside)

    def record(self, settings: SnapshotSettings) -> Recording:
        """Record the workspace as it is.

        Raises:
            TooManyFilesError: there is no snapshot of so many files.
            OSError: the workspace cannot be read, or the store cannot be written.
        """
        last = self.project / LAST
        said, known = load(last)
        about: dict[str, Any] = json.loads(said) if said else {}
        own = self.own_paths
        is_same_exclude = about.get("exclude") == list(settings.exclude)
        git = self._look_at_git(settings, about.get("git") if is_same_exclude else None)
        tracked: list[str] = git["tracked"] if git is not None else []
        tracked = sorted({*tracked, *settings.kept})
        if known and about.get("generation") != self.generation:
            known = {path: each for path, each in known.items() if self._is_kept(each)}
        scope = {
            "root": os.fspath(self.root),
            "exclude": list(settings.exclude),
            "max_file_bytes": settings.max_file_bytes,
            "own": sorted(map(os.fsdecode, own)),
            "tracked": tracked,
        }
        walk = Walk(
            self.root,
            self.packs,
            settings=settings,
            exclusions=Exclusions(settings.exclude, map(os.fsencode, tracked)),
            own=own,
            known=known,
            is_same_scope=all(about.get(key) == value for key, value in scope.items()),
            check=self.check,
        )
        with Places(self.root) as places:
            tree = walk.record(places.root)
        self.packs.commit()
        now = {**scope, "generation": self.generation, "git": git}
        if not walk.is_settled or about != now:
            with suppress(OSError):  # the next walk reads again what is not written here
                save(last, json.dumps(now).encode(), walk.records)
        snapshot = self.catalogue.keep(
            tree=tree.digest.hex(),
            files=walk.files,
            size_bytes=sum(record.size_bytes for record in walk.records.values()),
            left_out=sorted(walk.left_out(), key=lambda each: (each.path, each.reason)),
            git=None
            if git is None
            else GitState(head=git["head"], branch=git["branch"], is_index_clean=git["is_clean"]),
        )
        return Recording(snapshot, walk.records)

    def _look_at_git(
        self, settings: SnapshotSettings, before: Mapping[str, Any] | None
    ) -> dict[str, Any] | None:
        """What the repository stands at, and the excluded paths that it tracks."""
        repository = Repository.around(self.root)
        if repository is None:
            return None
        head, branch = repository.head()
        try:
            version = version_of(repository.index)
        except OSError:
            version = None
        found: dict[str, Any] = {
            "index": version and list(version),
            "head": head,
            "branch": branch,
            "is_clean": None,
            "tracked": [],
        }
        if before and version and (before["index"], before["head"]) == (list(version), head):
            found |= {key: before[key] for key in ("is_clean", "tracked")}
        elif (index := repository.read_index()) is not None:
            inside = os.fsencode(f"{self.root.relative_to(repository.top)}/").removeprefix(b"./")
            paths = (path.removeprefix(inside) for path in index.items if path.startswith(inside))
            exclusions = Exclusions(settings.exclude, paths)
            found["tracked"] = sorted(map(os.fsdecode, exclusions.tracked))
            found["is_clean"] = repository.is_clean(head, index) if head is not None else None
        return found

    def _is_kept(self, record: FolderRecord) -> bool:
        """Whether the packs still have the folder and the files in it."""
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
            return (b"",)  # no pack has such an object
