"""Kill -9 at every change of a file by a recording, a restore and a sweep of snapshots."""

import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from agent_core.snapshots.store import SnapshotStore
from faults import snapshot_driver
from faults.depth import Depth, Tally
from faults.injection import Fault, run_traced
from workspaces import fingerprint

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("strace")]

CALLS = {
    "write": 6,
    "ftruncate": 2,
    "fsync": 3,
    "rename": 3,
    "renameat": 4,
    "unlink": 1,
    "unlinkat": 3,
    "rmdir": 1,
    "mkdir": 1,
    "mkdirat": 2,
    "symlinkat": 1,
    "fchmod": 2,
    "chmod": 2,
}
"""The calls that change files, and which of them the short sweep is killed at."""


class Example:
    """A store with two states of a workspace, which is in the second one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "store"
        self.work = folder / "work"
        if not self.work.exists():
            self._make()
        self.first, self.second, self.first_print, self.second_print = (
            (folder / "states").read_text().split()
        )

    def _make(self) -> None:
        work = self.work
        for name in ("kept/a", "gone/deep/b", "text", "becomes-folder", "closed/c"):
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            (work / name).write_text(name * 100)
        (work / "becomes-file" / "inner").mkdir(parents=True)
        (work / "becomes-file" / "inner" / "x").write_text("x")
        (work / "link").symlink_to("text")
        (work / "empty").mkdir()
        (work / "closed").chmod(0o555)
        store = SnapshotStore(self.store)
        states = [store.record(work).snapshot_id, fingerprint(work)]
        shutil.rmtree(work / "gone")
        (work / "text").write_text("other")
        (work / "text").chmod(0o600)
        (work / "becomes-folder").unlink()
        (work / "becomes-folder" / "new").mkdir(parents=True)
        (work / "becomes-folder" / "new" / "y").write_text("y")
        shutil.rmtree(work / "becomes-file")
        (work / "becomes-file").write_text("z")
        (work / "link").unlink()
        (work / "link").symlink_to("kept")
        (work / "empty").rmdir()
        (work / "closed").chmod(0o755)
        (work / "closed" / "c").write_text("changed")
        (work / "closed").chmod(0o555)
        (work / "added" / "build").mkdir(parents=True)
        (work / "added" / "build" / "excluded").write_text("never touched")
        (work / "added" / "d").write_text("d")
        states[1:1] = [store.record(work).snapshot_id]
        shutil.rmtree(work / "added" / "build")
        states.append(fingerprint(work))
        (work / "added" / "build").mkdir()
        (work / "added" / "build" / "excluded").write_text("never touched")
        (self.folder / "states").write_text(" ".join(states))

    def copy(self, to: Path) -> "Example":
        shutil.copytree(self.folder, to, symlinks=True)
        return Example(to)

    def check_excluded(self) -> None:
        """The excluded file is there; afterwards it is not."""
        excluded = self.work / "added" / "build" / "excluded"
        assert excluded.read_text() == "never touched"
        shutil.rmtree(excluded.parent)
        if not any(excluded.parents[1].iterdir()):
            excluded.parents[1].rmdir()

    def check_restored(self) -> None:
        """The next start has the first state or the second one, and goes on from it."""
        store = SnapshotStore(self.store)
        done = store.recover(self.work)
        assert done is None or not done.refused, done
        assert not list(self.work.rglob(".soong-agent-*"))
        self.check_excluded()
        found = fingerprint(self.work)
        assert found in {self.first_print, self.second_print}
        assert done is None or found == self.first_print
        store.restore(self.work, self.second)
        assert fingerprint(self.work) == self.second_print
        store.restore(self.work, self.first)
        assert fingerprint(self.work) == self.first_print

    def check_recorded(self) -> None:
        """The states from before are whole, and the workspace can be recorded."""
        store = SnapshotStore(self.store)
        assert store.verify(self.first) == store.verify(self.second) == []
        snapshot_id = store.record(self.work).snapshot_id
        assert store.verify(snapshot_id) == []
        store.restore(self.work, self.first)
        store.restore(self.work, snapshot_id)

    def check_swept(self) -> None:
        """What was to be kept is whole, and what was not can be recorded again."""
        store = SnapshotStore(self.store)
        assert store.verify(self.first) == []
        assert store.verify(store.record(self.work).snapshot_id) == []


def kill(example: Example, what: str, call: str, check: Callable[[Example], None], at: int) -> bool:
    """Kill a driver there, and look; False if it had ended before."""
    place = example.folder.parent / f"{what}-{call}-{at}"
    one = example.copy(place)
    if what == "record":
        for number in range(3):
            (one.work / f"new-{number}").write_bytes(os.urandom(2000))
    driver = [sys.executable, snapshot_driver.__file__, what, str(one.store), str(one.work)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    done = run_traced(
        [*driver, one.first],
        Fault(call, "kill", at),
        Path("/dev/null"),
        cwd=place,
        environment=environment,
    )
    is_killed = done.returncode in {-9, 137}
    assert is_killed or done.returncode == 0, done.stderr
    check(one)
    shutil.rmtree(place)
    return is_killed


def sweep(
    tally: Tally, depth: Depth, folder: Path, what: str, check: Callable[[Example], None]
) -> None:
    example = Example(folder / "example")
    killed = 0
    for call, sample in CALLS.items():
        killed += tally.sweep(depth.points(sample), partial(kill, example, what, call, check))
    assert killed, "nothing was killed"


@pytest.mark.faults("kill: a restore of files")
def test_a_killed_restore_is_finished_by_the_next_start(
    tally: Tally, depth: Depth, tmp_path: Path
) -> None:
    sweep(tally, depth, tmp_path, "restore", Example.check_restored)


@pytest.mark.long
@pytest.mark.faults("kill: a recording of files")
def test_a_killed_recording_harms_no_snapshot(tally: Tally, depth: Depth, tmp_path: Path) -> None:
    sweep(tally, depth, tmp_path, "record", Example.check_recorded)


@pytest.mark.long
@pytest.mark.faults("kill: a sweep of snapshots")
def test_a_killed_sweep_removes_nothing_that_is_needed(
    tally: Tally, depth: Depth, tmp_path: Path
) -> None:
    sweep(tally, depth, tmp_path, "sweep", Example.check_swept)
