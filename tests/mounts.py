"""Runs programs where a folder is mounted read-only, which stops the superuser as well."""

import os
import subprocess
from pathlib import Path

import pytest

_MOUNT = (
    *("unshare", "--mount", *(() if os.geteuid() == 0 else ("--map-root-user",)), "sh", "-c"),
    'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"',
)


_FULL = """
copy=$(mktemp -d) && cp -a "$0/." "$copy" && mount -t tmpfs -o size=2m none "$0" || exit 99
cp -a "$copy/." "$0" && rm -r "$copy"
dd if=/dev/zero of="$0/fill" bs=4k 2>/dev/null
exec "$@"
"""


def full_disk(home: Path) -> tuple[str, ...]:
    """Return what runs a command where the home, as it is now, is on a disk that is full."""
    start = (*_MOUNT[:-1], _FULL, str(home))
    tried = subprocess.run([*start, "true"], check=False, capture_output=True)  # noqa: S603
    if tried.returncode:
        pytest.skip("no disk can be mounted here")
    return start


def read_only_mount(home: Path) -> tuple[str, ...]:
    """What runs a command where the home is mounted read-only."""
    tried = subprocess.run(  # noqa: S603
        [*_MOUNT, str(home), "touch", str(home / "x")], capture_output=True, text=True, check=False
    )
    if "Read-only" not in tried.stderr:
        pytest.skip(f"a folder cannot be mounted read-only here: {tried.stderr}")
    return (*_MOUNT, str(home))
