"""Folders that are nobody else's business."""

from pathlib import Path


def make_private(folder: Path) -> None:
    """Make the folder and those above it that are missing, each for this user only.

    Raises:
        OSError: one of them cannot be made.
    """
    for one in reversed([folder, *folder.parents]):
        if not one.exists():
            one.mkdir(mode=0o700, exist_ok=True)
