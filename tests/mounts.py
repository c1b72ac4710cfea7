"""Runs programs where a folder is mounted read-only, which stops the superuser as well."""

import os
import subprocess
from pathlib import Path

import pytest

_MOUNT = (
    *("unshare", "--mount", *(() if os.geteuid() == 0 else ("--map-root-user",)), "sh", "-c"),
    'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"',
)


def read_only_mount(home: Path) -> tuple[str, ...]:
    """What runs a command where the home is mounted read-only."""
    tried = subprocess.run(  # noqa: S603
        [*_MOUNT, str(home), "touch", str(home / "x")], capture_output=True, text=True, check=False
    )
    if "Read-only" not in tried.stderr:
        pytest.skip(f"a folder cannot be mounted read-only here: {tried.stderr}")
    return (*_MOUNT, str(home))
