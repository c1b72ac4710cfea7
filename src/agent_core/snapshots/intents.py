"""The record of a restore, which is on the disk before the restore begins."""

import json
import os
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from agent_core.errors import ErrorCode, StorageError
from agent_core.opening import read_bytes
from agent_core.snapshots.records import SnapshotSettings
from agent_core.snapshots.restoring import Staging


class Intent(Struct, frozen=True):
    """A restore that has begun.

    Attributes:
        before: the snapshot of the workspace before the restore.
        target: the snapshot to restore.
        settings: the settings it is recorded with.
        moves_aside: files that no snapshot holds are moved out of the way.
        staging: the folder for entries on their way.
    """

    before: str
    target: str
    settings: SnapshotSettings
    moves_aside: bool
    staging: Staging

    def encode(self) -> bytes:
        """Encode the intent as it is stored."""
        staging = self.staging
        return json.dumps(
            {
                "version": 1,
                "before": self.before,
                "target": self.target,
                "settings": asdict(self.settings),
                "moves_aside": self.moves_aside,
                "staging": os.fsdecode(staging.name),
                "swaps": [[each, os.fsdecode(path)] for each, path in staging.swaps.items()],
                "modes": [[os.fsdecode(path), mode] for path, mode in staging.modes.items()],
            }
        ).encode()


def read_intent(place: Path) -> Intent | None:
    """Read the intent stored at a place; None if there is none.

    Raises:
        OSError: it cannot be read.
        StorageError: it is damaged.
    """
    try:
        found: dict[str, Any] = json.loads(read_bytes(place))
        settings = found["settings"]
        return Intent(
            found["before"],
            found["target"],
            SnapshotSettings(
                exclude=tuple(settings["exclude"]),
                max_files=settings["max_files"],
                max_file_bytes=settings["max_file_bytes"],
                kept=tuple(settings["kept"]),
            ),
            found["moves_aside"],
            Staging(
                os.fsencode(found["staging"]),
                {number: os.fsencode(path) for number, path in found["swaps"]},
                {os.fsencode(path): mode for path, mode in found["modes"]},
            ),
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(
            ErrorCode.STORAGE_ERROR,
            f"a restore was interrupted, and its record {place} is damaged: {error};"
            " look at the workspace, then remove the record",
        ) from error
