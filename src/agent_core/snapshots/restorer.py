"""Restores: find the changes and the obstacles, and finish a restore that a crash interrupted."""

import os
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from agent_core.disk.folders import flush_folder
from agent_core.disk.unfinished import INTENT
from agent_core.errors import StorageError
from agent_core.snapshots.catalogue import write_whole
from agent_core.snapshots.contents import FileKeeper
from agent_core.snapshots.intents import Intent, read_intent
from agent_core.snapshots.places import Places
from agent_core.snapshots.recorder import Recorder, Recording, Span
from agent_core.snapshots.records import (
    ChangeKind,
    FileType,
    LeftOutReason,
    Refusal,
    RestoreResult,
    Snapshot,
    SnapshotSettings,
    TreeChange,
)
from agent_core.snapshots.restoring import Restoration, RestoredPaths, Staging
from agent_core.snapshots.stat_cache import FolderRecord, Version
from agent_core.snapshots.trees import Merging, changes_between, folders_above


class Restorer(Struct, frozen=True):
    """Brings one workspace to recorded states.

    Attributes:
        recorder: the recorder of the workspace.
    """

    recorder: Recorder

    def restore(
        self, snapshot_id: str, *, base: str | None, force: bool, settings: SnapshotSettings
    ) -> RestoreResult:
        """See `SnapshotStore.restore`."""
        self.recover(force=force)
        packs, catalogue = self.recorder.packs, self.recorder.catalogue
        target = catalogue.get(snapshot_id)
        owned = target if base is None else catalogue.get(base)
        now = self.recorder.record(settings, [(target, owned)])
        refused: dict[str, Refusal] = {}
        if base is not None and base != now.snapshot.snapshot_id:
            merging = Merging(packs, base=owned, target=target, now=now.snapshot)
            target = self.recorder.keep(merging.merge())
            refused = dict.fromkeys(merging.conflicts, Refusal.CHANGED)
        changes = list(changes_between(packs, now.snapshot, target))
        refused |= _in_the_way(changes, now)
        if refused and not force:
            return _restored(now.snapshot, target, RestoredPaths(refused=refused), now.settings)
        staging = Staging.of(changes, now)
        intent = Intent(now.snapshot.snapshot_id, target.snapshot_id, now.settings, force, staging)
        try:
            outcome = self._carry_out(intent, changes, now)
        except (OSError, StorageError):
            self._roll_back(intent)
            raise
        return _restored(now.snapshot, target, outcome, now.settings)

    def recover(self, *, force: bool = False) -> RestoreResult | None:
        """Finish an interrupted restore; None if there is none.

        Paths that are in neither their earlier nor their wanted state stay unchanged.

        Args:
            force: leave the workspace unchanged if it cannot be finished.

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

    def _roll_back(self, intent: Intent) -> None:
        """Return to the earlier state, because something could not be written.

        If this fails too, `recover` continues in the same direction.
        """
        if read_intent(self._intent_place) is None:  # nothing was changed yet
            return
        with suppress(OSError, StorageError):
            self._take_back(intent, self._wanted(intent))
            staging = replace(intent.staging, swaps={}, modes={})
            back = replace(intent, before=intent.target, target=intent.before, staging=staging)
            write_whole(self._intent_place, back.encode())
            self._finish(back)

    def _span(self, intent: Intent) -> Span:
        """Return the state that a restore leads to, and the state it leads away from."""
        catalogue = self.recorder.catalogue
        return catalogue.get(intent.target), catalogue.get(intent.before)

    def _wanted(self, intent: Intent) -> dict[str, TreeChange]:
        """Return the changes from the earlier to the wanted state, by path."""
        target, before = self._span(intent)
        changes = changes_between(self.recorder.packs, before, target)
        return {change.path: change for change in changes}

    def _take_back(self, intent: Intent, wanted: Mapping[str, TreeChange]) -> None:
        """Put entries in the staging folder back where they were."""
        swaps = {
            number: wanted[os.fsdecode(path)].before
            for number, path in intent.staging.swaps.items()
            if os.fsdecode(path) in wanted
        }
        with Places(self.recorder.root) as places:
            self._restoration(places, intent, (), {}).take_back(swaps)

    def _finish(self, intent: Intent) -> RestoreResult:
        target, before = self._span(intent)
        wanted = self._wanted(intent)
        self._take_back(intent, wanted)
        now = self.recorder.record(intent.settings, [(target, before)])
        left = list(changes_between(self.recorder.packs, now.snapshot, target))
        foreign = {change.path for change in left if not _is_left(change, wanted)}
        held = {above for path in foreign for above in folders_above(path)}
        refused = {
            change.path: Refusal.CHANGED
            for change in left
            if change.path in wanted
            and (change.path in foreign or (change.kind is ChangeKind.KIND and change.path in held))
        }
        if not intent.moves_aside:
            refused |= _in_the_way(left, now)
        changes = [
            change
            for change in left
            if change.path in wanted
            and refused.keys().isdisjoint((change.path, *folders_above(change.path)))
        ]
        staging = Staging.of(changes, now)
        intent = replace(intent, settings=now.settings, staging=staging)
        outcome = self._carry_out(intent, changes, now)
        outcome.refused |= refused
        return _restored(before, target, outcome, now.settings)

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
                restoration.give_up()
                self._intent_place.unlink()
                raise
            restoration.apply()
            restoration.clean_up()
            restoration.set_modes_of_folders()
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
        keeper = FileKeeper(
            self.recorder.packs,
            intent.settings.max_file_bytes,
            self.recorder.opener([self._span(intent)]),
        )
        return Restoration(
            places,
            self.recorder.packs,
            staging=intent.staging,
            changes=changes,
            known=known,
            keeper=keeper,
            moves_aside=intent.moves_aside,
        )

    def _verify(
        self, outcome: RestoredPaths, intent: Intent, changes: Sequence[TreeChange]
    ) -> None:
        """Record the workspace again; paths that differ from the target count as refused."""
        target, _ = self._span(intent)
        after = self.recorder.record(intent.settings, [(target, target)])
        differing = {
            change.path for change in changes_between(self.recorder.packs, after.snapshot, target)
        }
        stayed = {
            change.path
            for change in changes
            if change.after is None
            and change.before is not None
            and change.before.kind is FileType.FOLDER
        }
        differing.intersection_update(change.path for change in changes)
        for path in differing - stayed - outcome.refused.keys():
            outcome.refused[path] = Refusal.CHANGED
        outcome.restored[:] = [path for path in outcome.restored if path not in differing]
        outcome.deleted[:] = [path for path in outcome.deleted if path not in differing]


def _in_the_way(changes: Sequence[TreeChange], now: Recording) -> dict[str, Refusal]:
    """Return the paths where unrecorded files or folders are in the way."""
    held = {
        above
        for each in now.snapshot.left_out
        if not each.reason.is_recorded
        for above in folders_above(each.path)
    }
    standing = _Standing(now.records)
    found: dict[str, Refusal] = {}
    for change in changes:
        if change.kind is ChangeKind.KIND and change.path in held:
            found[change.path] = Refusal.IN_THE_WAY
        elif change.kind is ChangeKind.ADDED and change.after is not None:
            is_folder = change.after.kind is FileType.FOLDER
            refusal = standing.against(os.fsencode(change.path), is_folder=is_folder)
            if refusal is not None:
                found[change.path] = refusal
    return found


class _Standing:
    """Unrecorded files and folders, by path.

    Args:
        records: the records of the workspace as just recorded.
    """

    def __init__(self, records: Mapping[bytes, FolderRecord]) -> None:
        self._records = records
        self._found: dict[bytes, tuple[Mapping[bytes, LeftOutReason], Mapping[bytes, Version]]] = {}

    def against(self, path: bytes, *, is_folder: bool) -> Refusal | None:
        """Return why nothing can be put at a path; None if nothing is in its way.

        A folder can be put where there already is one.
        """
        above, _, name = path.rpartition(b"/")
        record = self._records.get(above + b"/" if above else b"")
        if record is None:
            return self.against(above, is_folder=True) if above else Refusal.NOT_PERMITTED
        if above not in self._found:
            self._found[above] = record.reasons(), record.entries()[0]
        reasons, versions = self._found[above]
        reason = reasons.get(name)
        if reason is LeftOutReason.UNREADABLE:
            return Refusal.NOT_PERMITTED
        if reason is None or (is_folder and stat.S_ISDIR(versions[name][0])):
            return None
        return Refusal.IN_THE_WAY


def _is_left(change: TreeChange, wanted: Mapping[str, TreeChange]) -> bool:
    """Return whether a path is as it was when the restore began, or as the restore made it."""
    planned = wanted.get(change.path)
    if planned is None:
        return False
    now = change.before
    if now is None or now == planned.before:
        return True
    return now.kind is FileType.FOLDER and any(  # its permission bits are set last
        each is not None and each.kind is now.kind for each in (planned.before, planned.after)
    )


def _restored(
    before: Snapshot, target: Snapshot, outcome: RestoredPaths, settings: SnapshotSettings
) -> RestoreResult:
    left_out = {*before.left_out, *target.left_out}
    return RestoreResult(
        before=before,
        settings=settings,
        restored=tuple(outcome.restored),
        deleted=tuple(outcome.deleted),
        refused=dict(sorted(outcome.refused.items())),
        moved_aside=tuple(outcome.moved_aside),
        left_out=tuple(sorted(left_out, key=lambda each: (each.path, each.reason))),
    )
