"""Work that is done at most once a day: the time of a file marks when it was done."""

import time
from contextlib import suppress
from pathlib import Path

from agent_core.disk.folders import make_private

_DAY_S = 24 * 3600


def is_due(mark: Path) -> bool:
    """Return whether the work was done more than a day ago, or never.

    A time more than a day in the future was left by a wrong clock, and is not waited for.
    """
    try:
        return abs(time.time() - mark.stat().st_mtime) > _DAY_S
    except OSError:
        return True


def mark_done(mark: Path) -> None:
    """Mark the work as done now; if that cannot be stored, it is done again."""
    with suppress(OSError):
        make_private(mark.parent)
        mark.touch(mode=0o600)
