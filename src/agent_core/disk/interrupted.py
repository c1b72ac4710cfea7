"""Marker files that exist only while an operation on a workspace is incomplete.

A process that has the workspace to itself and finds one follows a process that has died.
"""

import hashlib
import os
from pathlib import Path

INTENT = "restore.json"
"""The planned restore, in the folder about a workspace."""
OPENED = "opened.json"
"""The record of what was opened for reading, in the same folder."""
MOVING = "moving"
"""Exists while a session and its files move to another state, in the same folder."""


def folder_about(store: Path, root: Path) -> Path:
    """Return the folder about a workspace in a store of snapshots."""
    return store / "projects" / hashlib.sha256(os.fsencode(root)).hexdigest()[:32]


def is_interrupted(store: Path, root: Path) -> bool:
    """Return whether an operation on a workspace is incomplete."""
    folder = folder_about(store, root)
    return any((folder / name).exists() for name in (INTENT, OPENED, MOVING))
