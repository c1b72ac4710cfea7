"""Files about a workspace that are there only while something is half done in it.

Whoever finds one, and has the workspace for itself, comes after a process that has died.
"""

import hashlib
import os
from pathlib import Path

INTENT = "restore.json"
"""The file that says what a restore is about to do, in the folder about a workspace."""
OPENED = "opened.json"
"""The file that says what was opened to be read, in the same folder."""
MOVING = "moving"
"""It is there while a session and its files go to another state, in the same folder."""


def folder_about(store: Path, root: Path) -> Path:
    """Return the folder about a workspace in a store of snapshots."""
    return store / "projects" / hashlib.sha256(os.fsencode(root)).hexdigest()[:32]


def is_interrupted(store: Path, root: Path) -> bool:
    """Tell whether something is half done in a workspace."""
    folder = folder_about(store, root)
    return any((folder / name).exists() for name in (INTENT, OPENED, MOVING))
