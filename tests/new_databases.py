"""Gives a new session database its tables by copying a file, which takes a quarter of the time.

The copied one was made and migrated by the same process, as for a user. So is each database of the
tests about that: below `tests/unit/storage`, `tests/contract` and `tests/faults`, of tests marked
`cold`, and of any other name than a home's. All other tests only need one.
"""

import contextlib
import importlib
import os
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

_NAME = "sessions.sqlite"  # in every home
_REAL = ("unit/storage", "contract", "faults")
_TESTS = Path(__file__).resolve().parent

are_copied = False
_files: dict[int, bytes] = {}


def choose(item: "pytest.Item") -> None:
    """Decide how the databases of a test come to be."""
    global are_copied
    are_copied = not _is_about_databases(item.path) and item.get_closest_marker("cold") is None


@cache
def _is_about_databases(path: Path) -> bool:
    return any(path.is_relative_to(_TESTS / each) for each in _REAL)


def install() -> None:
    """Let new databases of a home be copies where `are_copied` says so."""
    connections: Any = importlib.import_module("agent_core.storage.connections")
    create = connections.create_database_file
    if create.__module__ == __name__:
        return
    _file(connections)

    def create_filled(path: Path) -> None:
        if are_copied and path.name == _NAME and not os.path.lexists(path):
            with contextlib.suppress(OSError):  # which `create` explains
                _copy(_file(connections), path)
        create(path)

    connections.create_database_file = create_filled


def _file(connections: Any) -> bytes:
    version: int = connections.migrations.MIGRATIONS[-1].version
    if version not in _files:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "empty")
            connections.open_writer(path).close()
            _files[version] = path.read_bytes()
    return _files[version]


def _copy(content: bytes, path: Path) -> None:
    """Write a file that only this user can read, which another process sees when it is whole."""
    number, made = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(content)
        os.link(made, path)
    finally:
        Path(made).unlink()
