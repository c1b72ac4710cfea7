"""The snapshots of all workspaces, in one folder that several processes share.

lock                shared by recordings and reads, exclusive for a sweep
generation          a text that changes with each sweep that removed objects
packs/              the objects: files, folders, lists of pieces
clean               exists if no removed snapshot has left an object
named/<id>          one JSON file per snapshot, dated when it was last recorded
projects/<key>/     per workspace: a lock, the last recording's findings, a restore's intent
sending/            packs on their way to another machine
"""

import os
import secrets
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from threading import Event

from agent_core.disk.folders import make_private, remove_tree
from agent_core.disk.locks import locked, locked_if_free
from agent_core.disk.unfinished import INTENT, OPENED, folder_about, is_interrupted
from agent_core.errors import ErrorCode, StorageError
from agent_core.opening import read_text
from agent_core.snapshots.catalogue import Catalogue, write_whole
from agent_core.snapshots.closed import close_again
from agent_core.snapshots.contents import pieces_of
from agent_core.snapshots.exchange import SENDING, objects_beyond, write_packs
from agent_core.snapshots.intents import read_intent
from agent_core.snapshots.packs import MissingObjectError, Packs
from agent_core.snapshots.recorder import Recorder
from agent_core.snapshots.records import (
    CopyResult,
    Damage,
    RestoreResult,
    Snapshot,
    SnapshotSettings,
    SparedFolder,
    StoppedError,
    TreeChange,
    TreeEntry,
)
from agent_core.snapshots.sweeping import (
    MANY_PACKS,
    bytes_by_owner,
    damages_of,
    forget_findings,
    forget_removed_workspaces,
    merge_small,
    needed_by,
    owners_of,
    remove_parts,
    wasteful_packs,
    write_anew,
)
from agent_core.snapshots.trees import Merging, changes_between, entry_at

_DEFAULTS = SnapshotSettings()


class SnapshotStore:
    """Records and restores workspaces. Every method blocks: call it in a thread.

    Args:
        folder: keeps everything; it is created if it is missing.
        own: folders of the program, which no snapshot holds wherever they are.
    """

    def __init__(self, folder: Path, *, own: Iterable[Path] = ()) -> None:
        self._folder = folder.resolve()
        self._own = tuple(path.resolve() for path in (folder, *own))
        self._catalogue = Catalogue(self._folder / "named")
        self._clean = self._folder / "clean"

    def record(
        self,
        root: Path,
        *,
        spans: Iterable[tuple[str, str]] = (),
        settings: SnapshotSettings = _DEFAULTS,
        stop: Event | None = None,
    ) -> Snapshot:
        """Record the workspace as it is now; an unchanged file costs one `lstat`.

        Args:
            root: the workspace.
            spans: ids of the snapshots before and after something, with which this one will be
              compared. Their paths are recorded, even if they would be left out today, and files
              that were closed between them are read.
            settings: what is left out.
            stop: when it is set, the work ends between two files.

        Raises:
            TooManyFilesError: there are more files than a snapshot may hold.
            StoppedError: it was asked to stop.
            StorageError: the workspace cannot be read, or the store cannot be written.
        """
        compared = [(self.get(begin), self.get(end)) for begin, end in spans]
        with self._recorder(root, stop) as recorder:
            snapshot = recorder.record(settings, compared).snapshot
            is_scattered = recorder.packs.count() > MANY_PACKS
        if is_scattered:
            self._merge()
        return snapshot

    def restore(
        self,
        root: Path,
        snapshot_id: str,
        *,
        base: str | None = None,
        force: bool = False,
        settings: SnapshotSettings = _DEFAULTS,
        stop: Event | None = None,
    ) -> RestoreResult:
        """Bring the workspace to a recorded state; its present state is recorded first.

        With `base`, only the paths that differ between it and the snapshot are changed. Without
        `force`, nothing is changed if one of them was changed since `base`, or if something that no
        snapshot holds is in the way: such paths are `refused`. With `force`, such changes are kept
        only in the snapshot `before`, and files that no snapshot holds are moved aside.

        Args:
            root: the workspace.
            snapshot_id: the wanted state.
            base: the last snapshot of its owner's work; without one, all changes are its own.
            force: replace what others have changed, too.
            settings: what is left out.
            stop: when it is set, the work ends, unless it has begun to change the workspace.

        Raises:
            TooManyFilesError: the workspace cannot be recorded, so it cannot be restored.
            StoppedError: it was asked to stop; nothing was changed.
            StorageError: something recorded is missing or damaged, or a disk is full or broken.
        """
        from agent_core.snapshots.restorer import Restorer  # noqa: PLC0415 - most runs only record

        with self._recorder(root, stop) as recorder:
            restorer = Restorer(recorder)
            return restorer.restore(snapshot_id, base=base, force=force, settings=settings)

    def merge(
        self, base: str, target: str, now: str, *, spared: SparedFolder | None = None
    ) -> tuple[Snapshot, list[str]]:
        """Apply the difference between the first two snapshots to the third one.

        What is `spared` stays as the third one has it.

        Returns:
            The new snapshot, and the paths that the third one changes in another way.

        Raises:
            StorageError: one of them is missing or damaged.
        """
        with self._working() as packs:
            states = {"base": self.get(base), "target": self.get(target), "now": self.get(now)}
            merging = Merging(packs, **states, spared=spared)
            merged = merging.merge()
            packs.commit()
            return self._catalogue.keep(merged), sorted(merging.conflicts)

    def recover(self, root: Path) -> RestoreResult | None:
        """Finish an interrupted restore of this workspace; None if there is none.

        Paths that are in neither their earlier nor their wanted state stay unchanged.

        Raises:
            StorageError: something recorded is missing or damaged, or a disk is full or broken.
        """
        if not is_interrupted(self._folder, root.resolve()):
            return None
        from agent_core.snapshots.restorer import Restorer  # noqa: PLC0415 - most runs only record

        with self._recorder(root, None) as recorder:
            return Restorer(recorder).recover()

    def get(self, snapshot_id: str) -> Snapshot:
        """Return a snapshot.

        Raises:
            StorageError: there is no snapshot with this id, or it is damaged.
        """
        return self._catalogue.get(snapshot_id)

    def diff(self, before: str, after: str) -> list[TreeChange]:
        """Return the differences between two snapshots, a folder before its contents.

        Raises:
            StorageError: one of them is missing or damaged.
        """
        with self._reading() as packs:
            return list(changes_between(packs, self.get(before), self.get(after)))

    def find(self, snapshot_id: str, path: str) -> TreeEntry | None:
        """Return the entry at a path relative to the workspace, or None; links are not followed.

        Raises:
            StorageError: the snapshot is missing or damaged.
        """
        with self._reading() as packs:
            tree = bytes.fromhex(self.get(snapshot_id).tree)
            return entry_at(packs, tree, os.fsencode(path))

    def read(self, entry: TreeEntry) -> bytes:
        """Return the contents of a recorded file.

        Raises:
            StorageError: it is missing or damaged.
        """
        with self._reading() as packs:
            return b"".join(pieces_of(packs, entry))

    def packed(self, snapshot_id: str, *, beyond: str | None) -> Generator[Path]:
        """Yield the objects of a snapshot as packs, each a file until the next one is requested.

        Args:
            snapshot_id: the snapshot.
            beyond: the root folder, in hex, of a state that the receiver of the packs has.

        Raises:
            StorageError: something is missing or damaged, or a pack cannot be written.
        """
        tree = bytes.fromhex(self.get(snapshot_id).tree)
        with self._working() as packs:
            digests = objects_beyond(packs, tree, bytes.fromhex(beyond) if beyond else None)
            yield from write_packs(packs, digests, self._folder / SENDING)

    def about(self, snapshot_id: str) -> str:
        """Return the record of a snapshot, for `take`.

        Raises:
            StorageError: there is no snapshot with this id, or it is damaged.
        """
        return self._catalogue.content(snapshot_id).decode()

    def is_whole(self, snapshot_id: str) -> bool:
        """Return whether all objects of a snapshot are here; a damaged one counts as here.

        Raises:
            StorageError: the store cannot be read.
        """
        try:
            tree = bytes.fromhex(self.get(snapshot_id).tree)
            with self._working() as packs:
                return all(map(packs.has, objects_beyond(packs, tree, None)))
        except StorageError as error:
            if error.details.get("reason") in {"no_snapshot", "damaged"}:
                return False
            raise

    def take(self, snapshot_id: str, about: str, packs: Mapping[str, Iterable[bytes]]) -> None:
        """Take over a snapshot of another machine.

        Args:
            snapshot_id: the snapshot.
            about: its record from the other machine.
            packs: the contents of packs, by names that identify the content; packs that are already
              here are not read.

        Raises:
            StorageError: a pack cannot be read or written, or the record is another snapshot's.
        """
        folder = self._folder / "packs"
        with self._working():
            for name, pieces in packs.items():
                place = folder / f"{name[:16]}.pack"
                if not place.exists():
                    write_whole(place, pieces)
            self._catalogue.take(snapshot_id, about.encode())

    def copy_out(
        self,
        root: Path,
        into: Path,
        *,
        snapshot_id: str | None = None,
        settings: SnapshotSettings = _DEFAULTS,
        stop: Event | None = None,
    ) -> CopyResult:
        """Copy a workspace to another folder, with its repository and the files snapshots exclude.

        Args:
            root: the workspace.
            into: does not exist or is empty.
            snapshot_id: the state of the recorded files in the copy; by default the present one.
            settings: what snapshots leave out.
            stop: when it is set, the work ends between two files.

        Raises:
            StoppedError: it was asked to stop.
            StorageError: the folder is not empty, or something cannot be read or written. The copy
              is removed then.
        """
        from agent_core.snapshots.copying import copy_workspace  # noqa: PLC0415 - most runs only record

        with self._recorder(root, stop) as recorder:
            return copy_workspace(recorder, into, snapshot_id=snapshot_id, settings=settings)

    def copy_to(self, other: "SnapshotStore", snapshot_ids: Iterable[str]) -> list[str]:
        """Copy snapshots to another store, and return the ids of missing or damaged ones.

        Everything readable in a damaged snapshot is copied.

        Raises:
            StorageError: the other store cannot be written, or a disk is broken.
        """
        found: dict[str, Snapshot] = {}
        unusable: list[str] = []
        for snapshot_id in snapshot_ids:
            try:
                found[snapshot_id] = self.get(snapshot_id)
            except StorageError:
                unusable.append(snapshot_id)
        theirs = other._catalogue  # noqa: SLF001 - of another store of this class
        with self._reading() as packs, other._working() as copies:  # noqa: SLF001
            damaged: set[bytes] = set()
            for digest in needed_by(packs, (bytes.fromhex(each.tree) for each in found.values())):
                if not copies.has(digest):
                    try:
                        copies.put(packs.get(digest))
                    except MissingObjectError:
                        damaged.add(digest)
            copies.commit()
            for snapshot_id, each in found.items():
                theirs.take(snapshot_id, self._catalogue.content(snapshot_id))
                if damaged and not damaged.isdisjoint(needed_by(packs, [bytes.fromhex(each.tree)])):
                    unusable.append(snapshot_id)
        return unusable

    def verify(self, snapshot_id: str) -> list[Damage]:
        """Read everything in a snapshot, and return the missing or damaged paths.

        Raises:
            StorageError: there is no such snapshot, or the disk is broken.
        """
        tree = bytes.fromhex(self.get(snapshot_id).tree)
        with self._working() as packs:
            return sorted(damages_of(packs, tree), key=lambda each: each.path)

    def has(self, snapshot_id: str) -> bool:
        """Return whether a snapshot is here, once no sweep is under way.

        Raises:
            StorageError: the store cannot be read.
        """
        with self._working():
            return self._catalogue.has(snapshot_id)

    def sweep(self, keep: Collection[str], *, recorded_before: datetime) -> int:
        """Remove snapshots and the objects that only they used, and return the freed bytes.

        If another process uses the store, the work is left to a later sweep.

        Args:
            keep: ids of snapshots that are still needed.
            recorded_before: snapshots recorded later are kept too, because references to them may
              not be stored yet.

        Raises:
            StorageError: a disk is full or broken; everything needed is still there.
        """
        if not self._folder.exists():
            return 0
        with _explained(self._folder), self._alone() as packs:
            if packs is None:
                return 0
            self._remove_snapshots(keep, recorded_before)
            return self._remove_objects(packs, is_thorough=False)

    def bytes_held(self, groups: Mapping[str, Collection[str]]) -> dict[str, int]:
        """Return the stored bytes that only one group of snapshots needs, for each.

        Args:
            groups: ids of snapshots, by the name of their group; missing ones are ignored.

        Raises:
            StorageError: the store cannot be read.
        """
        if not self._folder.exists():
            return {}
        with self._reading() as packs:
            trees: dict[str, list[bytes]] = {}
            for name, snapshot_ids in groups.items():
                there = [each for each in snapshot_ids if self._catalogue.has(each)]
                trees[name] = [bytes.fromhex(self.get(each).tree) for each in there]
            return bytes_by_owner(packs, owners_of(packs, trees))

    def erase(
        self,
        snapshot_ids: Collection[str],
        find_used: Callable[[], Collection[str]],
        *,
        recorded_before: datetime,
        wait_s: float,
    ) -> None:
        """Remove the snapshots of deleted sessions, with every object that nothing else needs.

        A caller that names a snapshot afterwards has to check that it is still here: see `has`.

        Args:
            snapshot_ids: the snapshots that the sessions named.
            find_used: finds the ids that are still needed; called when nothing else uses the store.
            recorded_before: other snapshots that are not needed are removed if they are older.
            wait_s: the seconds to wait for other uses of the store, in this process or another.

        Raises:
            StorageError: the store was in use for all that time, or a disk is full or broken.
        """
        if not self._folder.exists():
            return
        with _explained(self._folder), self._alone(wait_s) as packs:
            if packs is None:
                message = f"the snapshots in {self._folder} are in use by another run or command"
                raise StorageError(ErrorCode.STORAGE_ERROR, message, retryable=True)
            used = {*find_used(), *self._of_interrupted_restores()}
            if unneeded := {*snapshot_ids} - used:
                self._clean.unlink(missing_ok=True)
            for snapshot_id in unneeded:
                self._catalogue.remove(snapshot_id)
            is_clean = self._clean.exists()
            if self._remove_snapshots(used, recorded_before) or snapshot_ids or not is_clean:
                self._remove_objects(packs, is_thorough=True)
                self._clean.touch(mode=0o600)

    def _remove_snapshots(self, keep: Collection[str], recorded_before: datetime) -> int:
        """Remove old snapshots that are not needed, and return their number."""
        kept = {*keep, *self._of_interrupted_restores()}
        unneeded = [
            snapshot_id
            for snapshot_id, recorded_at in self._catalogue
            if snapshot_id not in kept and recorded_at < recorded_before
        ]
        if unneeded:
            self._clean.unlink(missing_ok=True)
        for snapshot_id in unneeded:
            self._catalogue.remove(snapshot_id)
        return len(unneeded)

    def _remove_objects(self, packs: Packs, *, is_thorough: bool) -> int:
        """Remove objects that no snapshot needs, and return the freed bytes."""
        remove_parts(self._folder)
        remove_tree(self._folder / SENDING, keep=False)
        forget_removed_workspaces(self._folder / "projects")
        trees = (self.get(snapshot_id).tree for snapshot_id, _ in self._catalogue)
        needed = needed_by(packs, map(bytes.fromhex, trees))
        if is_thorough:
            forget_findings(self._folder / "projects", needed)
        wasteful = wasteful_packs(packs, needed, is_thorough=is_thorough)
        if not wasteful:
            return 0
        write_whole(self._folder / "generation", secrets.token_hex(16).encode())
        return write_anew(wasteful, self._folder / "packs", needed)

    @contextmanager
    def _alone(self, wait_s: float = 0.0) -> Generator[Packs | None]:
        """Lock the store for this process alone, and yield its packs; None if it is in use."""
        with locked_if_free(self._folder / "lock", wait_s=wait_s) as is_alone:
            if not is_alone:
                yield None
                return
            with Packs(self._folder / "packs") as packs:
                yield packs

    def _merge(self) -> None:
        with suppress(OSError, StorageError), self._alone() as packs:  # another time, then
            if packs is not None:
                merge_small(packs, self._folder / "packs")

    def _of_interrupted_restores(self) -> Iterator[str]:
        for place in (self._folder / "projects").glob(f"*/{INTENT}"):
            intent = read_intent(place)
            if intent is not None:
                yield from (intent.before, intent.target)

    @contextmanager
    def _working(self, check: Callable[[], None] = lambda: None) -> Generator[Packs]:
        """Yield the packs, protected from sweeps during the block."""
        with _explained(self._folder):
            make_private(self._folder)
            lock = locked(self._folder / "lock", check=check, shared=True)
            with lock, Packs(self._folder / "packs") as packs:
                yield packs

    @contextmanager
    def _reading(self) -> Generator[Packs]:
        """Yield the packs, protected from sweeps; nothing is created."""
        with _explained(self._folder), ExitStack() as stack:
            with suppress(FileNotFoundError):  # a copy without the lock, which nothing sweeps
                lock = locked(self._folder / "lock", check=lambda: None, shared=True, create=False)
                stack.enter_context(lock)
            yield stack.enter_context(Packs(self._folder / "packs"))

    @contextmanager
    def _recorder(self, root: Path, stop: Event | None) -> Generator[Recorder]:
        """Open a workspace to record or restore it, for this process alone."""
        root, check = root.resolve(), _check_of(stop)
        project = folder_about(self._folder, root)
        with self._working(check) as packs:
            make_private(project)
            with locked(project / "lock", check=check), _explained(root):
                close_again(root, project / OPENED)
                yield Recorder(
                    root=root,
                    project=project,
                    packs=packs,
                    catalogue=self._catalogue,
                    own=self._own,
                    generation=self._generation(),
                    check=check,
                )

    def _generation(self) -> str:
        try:
            return read_text(self._folder / "generation", "ascii")
        except FileNotFoundError:
            return ""


def _check_of(stop: Event | None) -> Callable[[], None]:
    def check() -> None:
        if stop is not None and stop.is_set():
            raise StoppedError

    return check


@contextmanager
def _explained(place: Path) -> Generator[None]:
    """Explain an `OSError`.

    Raises:
        StorageError: instead of the `OSError`.
    """
    try:
        yield
    except OSError as error:
        named = error.filename
        where = named if isinstance(named, str) and named.startswith("/") else place
        raise StorageError(
            ErrorCode.STORAGE_ERROR,
            f"the snapshots cannot continue at {where}: {error.strerror};"
            " check the space, the limits and the permissions there",
            details={"path": str(where)},
        ) from error
