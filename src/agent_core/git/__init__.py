"""Repositories of Git, read from their files: Git is never run on a foreign repository."""

import os
from pathlib import Path


def find_top(place: Path) -> Path | None:
    """Return the nearest folder at or above `place` that has a `.git`; None without one."""
    folder = str(place)
    while not os.access(f"{folder}/.git", os.F_OK):  # raises nothing inside, as lexists does
        folder, slash, _ = folder.rstrip("/").rpartition("/")
        if not slash:
            return None
        folder = folder or "/"
    return Path(folder)
