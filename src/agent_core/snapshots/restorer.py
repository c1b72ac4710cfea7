"""Restores: what would change, what stands against it, and what a crash has left half done."""

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from agent_core.disk.folders import flush_folder
from agent_core.errors import StorageError
from agent_core.snapshots.catalogue import write_whole
from agent_core.snapshots.contents import FileKeeper
from agent_core.snapshots.intents import INTENT, Intent, read_intent
from agent_core.snapshots.places import Places
from agent_core.snapshots.recorder import Recorder, Recording
from agent_core.snapshots.records import (
    ChangeKind,
    FileType,
    Restored,
    Snapshot,
    SnapshotSettings,
    TreeChange,
)
from agent_core.snapshots.restoring import Restoration, RestoredPaths, Staging
from agent_core.snapshots.stat_cache import FolderRecord
from agent_core.snapshots.trees import Merging, changes_between


class Restorer(Struct, frozen=True):
    """Brings one workspace to recorded states.

    Attributes:
        recorder: of the workspace.
    """

    recorder: Recorder

    def restore(
        self, snapshot_id: str, *, base: str | None, force: bool, settings: SnapshotSettings
    ) -> Restored:
        """See `SnapshotStore.restore`."""
        self.recover(force=force)
        packs = self.recorder.packs
        target = self.recorder.catalogue.get(snapshot_id)
        now = self.recorder.record(settings)
        refused: set[str] = set()
        if base is not None and base != now.snapshot.snapshot_id:
            owned = bytes.fromhex(self.recorder.catalogue.get(base).tree)
            merging = Merging(packs)
            tree = merging.merge(owned, bytes.fromhex(target.tree), now.tree)
            refused, target = merging.conflicts, self._keep(tree, target)
        changes = list(changes_between(packs, now.tree, bytes.fromhex(target.tree)))
        refused |= self._in_the_way(changes, now.snapshot)
        if refused and not force:
            return _restored(now.snapshot, target, RestoredPaths(refused=sorted(refused)))
        staging = Staging.of(changes, now.records)
        intent = Intent(now.snapshot.snapshot_id, target.snapshot_id, settings, force, staging)
        try:
            outcome = self._carry_out(intent, changes, now)
        except (OSError, StorageError):
            self._roll_back(intent)
            raise
        return _restored(now.snapshot, target, outcome)

    def recover(self, *, force: bool = False) -> Restored | None:
        """Finish a restore that was interrupted; None if there is none.

        Paths that are neither what they were nor what they should be are left alone.

        Args:
            force: if it cannot be finished, leave the workspace as it is.

        Raises:
            StorageError: it cannot be finished, because something is missing or damaged.
            OSError: the disk is full or broken.
        """
        place = self._intent_place
        intent = read_intent(place)
        if intent is None:
            return None
        try:
            return self._finish(intent)
        except StorageError:
            if not force:
                raise
            place.unlink()
            return None

    @property
    def _intent_place(self) -> Path:
        return self.recorder.project / INTENT

    def _keep(self, tree: bytes, like: Snapshot) -> Snapshot:
        """A snapshot of this root folder, with what else is said about another one."""
        self.recorder.packs.commit()
        return self.recorder.catalogue.keep(
            tree=tree.hex(),
            files=like.files,
            size_bytes=like.size_bytes,
            left_out=list(like.left_out),
            git=like.git,
        )

    def _roll_back(self, intent: Intent) -> None:
        """Return to what the workspace was, because something could not be written.

        What cannot be written now either is left to `recover`, in this direction.
        """
        if read_intent(self._intent_place) is None:  # nothing was changed yet
            return
        with suppress(OSError, StorageError):
            self._take_back(intent, self._wanted(intent))
            staging = replace(intent.staging, swaps={}, modes={})
            back = replace(intent, before=intent.target, target=intent.before, staging=staging)
            write_whole(self._intent_place, back.encode())
            self._finish(back)

    def _wanted(self, intent: Intent) -> dict[str, TreeChange]:
        """The changes that lead from what the workspace was to what it should be."""
        found = (self.recorder.catalogue.get(each) for each in (intent.before, intent.target))
        trees = [bytes.fromhex(snapshot.tree) for snapshot in found]
        return {change.path: change for change in changes_between(self.recorder.packs, *trees)}

    def _take_back(self, intent: Intent, wanted: Mapping[str, TreeChange]) -> None:
        """Put what is on its way back to where it was."""
        swaps = {
            number: wanted[os.fsdecode(path)].before
            for number, path in intent.staging.swaps.items()
            if os.fsdecode(path) in wanted
        }
        with Places(self.recorder.root) as places:
            self._restoration(places, intent, (), {}).take_back(swaps)

    def _finish(self, intent: Intent) -> Restored:
        packs, catalogue = self.recorder.packs, self.recorder.catalogue
        before, target = catalogue.get(intent.before), catalogue.get(intent.target)
        wanted = self._wanted(intent)
        self._take_back(intent, wanted)
        now = self.recorder.record(intent.settings)
        left = list(changes_between(packs, now.tree, bytes.fromhex(target.tree)))
        foreign = {change.path for change in left if not _is_left(change, wanted)}
        held = {above for path in foreign for above in _folders_above(path)}
        refused = {
            change.path
            for change in left
            if change.path in wanted
            and (change.path in foreign or (change.kind is ChangeKind.KIND and change.path in held))
        }
        if not intent.moves_aside:
            refused |= self._in_the_way(left, now.snapshot)
        changes = [
            change
            for change in left
            if change.path in wanted
            and refused.isdisjoint((change.path, *_folders_above(change.path)))
        ]
        staging = Staging.of(changes, now.records)
        outcome = self._carry_out(replace(intent, staging=staging), changes, now)
        outcome.refused += refused
        return _restored(before, target, outcome)

    def _carry_out(
        self, intent: Intent, changes: Sequence[TreeChange], now: Recording
    ) -> RestoredPaths:
        """Write the intent, make the changes, verify them, remove the intent."""
        write_whole(self._intent_place, intent.encode())
        with Places(self.recorder.root) as places:
            restoration = self._restoration(places, intent, changes, now.records)
            try:
                restoration.stage(self.recorder.check, passes_over_damage=intent.moves_aside)
            except BaseException:
                restoration.clean_up()
                self._intent_place.unlink()
                raise
            restoration.apply()
            restoration.clean_up()
            restoration.flush()
        self._verify(restoration.outcome, intent, changes)
        self._intent_place.unlink()
        flush_folder(self._intent_place.parent)
        return restoration.outcome

    def _restoration(
        self,
        places: Places,
        intent: Intent,
        changes: Sequence[TreeChange],
        known: Mapping[bytes, FolderRecord],
    ) -> Restoration:
        return Restoration(
            places,
            self.recorder.packs,
            staging=intent.staging,
            changes=changes,
            known=known,
            keeper=FileKeeper(self.recorder.packs, intent.settings.max_file_bytes),
            moves_aside=intent.moves_aside,
        )

    def _verify(
        self, outcome: RestoredPaths, intent: Intent, changes: Sequence[TreeChange]
    ) -> None:
        """Read back what was placed; what is not as it should be counts as refused."""
        after = self.recorder.record(intent.settings)
        target = bytes.fromhex(self.recorder.catalogue.get(intent.target).tree)
        differing = {
            change.path for change in changes_between(self.recorder.packs, after.tree, target)
        }
        stayed = {
            change.path
            for change in changes
            if change.after is None
            and change.before is not None
            and change.before.kind is FileType.FOLDER
        }
        differing.intersection_update(change.path for change in changes)
        outcome.refused += differing - stayed - set(outcome.refused)
        outcome.restored[:] = [path for path in outcome.restored if path not in differing]
        outcome.deleted[:] = [path for path in outcome.deleted if path not in differing]

    def _in_the_way(self, changes: Sequence[TreeChange], now: Snapshot) -> set[str]:
        """The paths that hold something that is not recorded and would have to go."""
        held = {
            above
            for each in now.left_out
            if not each.reason.is_recorded
            for above in _folders_above(each.path)
        }
        found: set[str] = set()
        with Places(self.recorder.root) as places:
            for change in changes:
                if change.kind is ChangeKind.KIND and change.path in held:
                    found.add(change.path)
                if change.kind is not ChangeKind.ADDED or change.after is None:
                    continue
                try:
                    status = places.status(os.fsencode(change.path))
                except PermissionError:
                    found.add(change.path)
                    continue
                is_folder = change.after.kind is FileType.FOLDER
                if status is not None and not (is_folder and stat.S_ISDIR(status.st_mode)):
                    found.add(change.path)
        return found


def _is_left(change: TreeChange, wanted: Mapping[str, TreeChange]) -> bool:
    """Whether the path is what it was when the restore began, or what the restore has made."""
    planned = wanted.get(change.path)
    if planned is None:
        return False
    now = change.before
    if now is None or now == planned.before:
        return True
    return now.kind is FileType.FOLDER and any(  # its own permission bits come last
        each is not None and each.kind is now.kind for each in (planned.before, planned.after)
    )


def _folders_above(path: str) -> Iterator[str]:
    while path := path.rpartition("/")[0]:
        yield path


def _restored(before: Snapshot, target: Snapshot, outcome: RestoredPaths) -> Restored:
    return Restored(
        before=before,
        restored=tuple(outcome.restored),
        deleted=tuple(outcome.deleted),
        refused=tuple(sorted(set(outcome.refused))),
        moved_aside=tuple(outcome.moved_aside),
        left_out=tuple(
            sorted({*before.left_out, *target.left_out}, key=lambda each: (each.path, each.reason))
        ),
    )
