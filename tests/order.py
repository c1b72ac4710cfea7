"""The order of the tests: those that wait most come first, and each worker has a share of them.

xdist gives each worker the same number of neighbouring tests, and takes the last of them away for
those that are done. In alphabetical order one would have nearly all tests of servers and browsers,
which wait most of their time: they would be left at the end, with an idle processor.
"""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

SHARES = 8
"""As many as `make test` starts workers at most."""

_TESTS = Path(__file__).resolve().parent
_SLOW = (
    "scale",
    "serve/test_pages_in_browser.py",
    "serve/test_api_description.py",
    "serve/test_page_pictures.py",
    "unit/disk",
    "unit/test_installation.py",
    "corpus",
    "faults",
    "serve",
    "unit/testing",
    "unit/storage",
    "integration",
    "unit/cli",
    "contract",
)
"""From what takes longest for each test to what takes less; all others are quick."""


def spread(items: "list[pytest.Item]") -> None:
    """Order tests in shares of equal size that begin with slow files; a file stays together."""
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    if len(files) < 2 * SHARES:
        return
    shares: list[list[pytest.Item]] = [[] for _ in range(SHARES)]
    for path in sorted(files, key=_rank):
        min(shares, key=len).extend(files[path])
    items[:] = [item for share in shares for item in share]


def _rank(path: Path) -> int:
    places = (rank for rank, each in enumerate(_SLOW) if path.is_relative_to(_TESTS / each))
    return next(places, len(_SLOW))
