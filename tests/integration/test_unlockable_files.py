"""A home on a file system without locks is refused at once, with the cause."""

import subprocess
import sys
from pathlib import Path

import pytest

import unlockable
from isolation import Home
from runtimes import CONFIG
from session_stories import SOONG
from sweeps import paired, sampled

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(
        not unlockable.can_refuse_locks(), reason="needs a filter of system calls of Linux"
    ),
]


def refused(error: str, home: Home, project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command for which each lock fails; long before another process is given up."""
    return subprocess.run(  # noqa: S603 - our own command
        [sys.executable, unlockable.__file__, error, "agent_core.cli", *words],
        cwd=project,
        env=home.env(),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=30,
        check=False,
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("is_new", "error"),
    sampled(paired([True, False], sampled(["ENOLCK", "EOPNOTSUPP", "EINVAL"], keep=1)), keep=1),
)
def test_a_start_says_that_files_cannot_be_locked(
    home: Home, project: Path, error: str, is_new: bool
) -> None:
    script = home.path / "replies.json"
    script.write_text('["hello"]', encoding="utf-8")
    home.write_config(f'[model]\nprovider = "scripted"\nname = "x"\npath = "{script}"\n')
    command = ["run", "hi"]
    if not is_new:
        subprocess.run(  # noqa: S603
            [SOONG, *command], cwd=project, env=home.env(), check=True, capture_output=True
        )
    done = refused(error, home, project, *command)
    assert done.returncode == 1
    assert "sessions.sqlite cannot be locked, as on some network file systems" in done.stderr
    assert "keep the home directory on a local disk" in done.stderr
    assert "another process" not in done.stderr


def test_doctor_tries_locks(home: Home, project: Path) -> None:
    home.write_config(CONFIG)
    done = refused("ENOLCK", home, project, "doctor")
    (line,) = [line for line in done.stdout.splitlines() if line.split()[1] == "database"]
    assert line.startswith("broken")
    assert "cannot be locked" in line
