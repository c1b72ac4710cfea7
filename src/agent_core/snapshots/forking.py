"""A copy of a workspace, as it is or as it was."""

import os
import shutil
from contextlib import suppress
from pathlib import Path

from agent_core.errors import ErrorCode, StorageError
from agent_core.snapshots.contents import FileKeeper
from agent_core.snapshots.copying import WorkspaceCopy
from agent_core.snapshots.places import Places
from agent_core.snapshots.recorder import Recorder
from agent_core.snapshots.records import Copied, SnapshotSettings
from agent_core.snapshots.restoring import Restoration, Staging
from agent_core.snapshots.trees import changes_between


def copy_workspace(
    recorder: Recorder, into: Path, *, snapshot_id: str | None, settings: SnapshotSettings
) -> Copied:
    """Copy the workspace of a recorder; nothing is left of a copy that is not finished.

    Args:
        recorder: of the workspace.
        into: does not exist or is empty.
        snapshot_id: the state of the copy; by default the workspace's own.
        settings: what is left out of snapshots.

    Raises:
        StorageError: the folder is not empty, or is in the workspace, or something is damaged.
        OSError: something cannot be read or written.
    """
    root, into = recorder.root, into.resolve()
    if into.is_relative_to(root) or root.is_relative_to(into):
        raise StorageError(
            ErrorCode.PATH_CONFLICT, f"a copy of {root} cannot be in or around it: {into}"
        )
    was_there = into.exists()
    if was_there and (not into.is_dir() or any(into.iterdir())):
        raise StorageError(ErrorCode.PATH_CONFLICT, f"{into} is there, and is no empty folder")
    into.mkdir(parents=True, exist_ok=True)
    try:
        return _copy(recorder, into, snapshot_id, settings)
    except BaseException:
        for path in into.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        if not was_there:
            with suppress(OSError):
                into.rmdir()
        raise


def _copy(
    recorder: Recorder, into: Path, snapshot_id: str | None, settings: SnapshotSettings
) -> Copied:
    recording = target = None
    if snapshot_id is not None:
        target = bytes.fromhex(recorder.catalogue.get(snapshot_id).tree)
        recording = recorder.record(settings)
    copy = WorkspaceCopy(own=recorder.own_paths, check=recorder.check)
    with Places(recorder.root) as source, Places(into) as copied:
        copy.copy(source.root, copied.root)
        os.fchmod(copied.root, os.fstat(source.root).st_mode & 0o7777)
        if recording is None or target is None:
            return Copied(tuple(copy.left_out))
        changes = list(changes_between(recorder.packs, recording.tree, target))
        restoration = Restoration(
            copied,
            recorder.packs,
            staging=Staging.of(changes, recording.records),
            changes=changes,
            known={},
            keeper=FileKeeper(recorder.packs, settings.max_file_bytes),
            moves_aside=True,
        )
        restoration.stage(recorder.check, passes_over_damage=False)
        restoration.apply()
        restoration.clean_up()
    return Copied(tuple(copy.left_out), tuple(restoration.outcome.refused))
