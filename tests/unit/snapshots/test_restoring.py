"""A restore brings back exactly what was recorded, and destroys nothing else."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from agent_core.errors import StorageError
from agent_core.snapshots.records import LeftOutReason, Refusal, SnapshotSettings
from agent_core.snapshots.store import SnapshotStore
from rights import as_anyone
from sweeps import examples
from workspaces import change, fingerprint


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    return SnapshotStore(tmp_path / "home" / "snapshots")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.mark.timeout(120)
@settings(
    max_examples=examples(12),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
)
@given(st.integers(0, 2**32), st.lists(st.integers(0, 12), min_size=2, max_size=5))
def test_any_state_comes_back_exactly(seed: int, steps: list[int]) -> None:
    random = Random(seed)  # noqa: S311
    place = Path(tempfile.mkdtemp())
    try:
        work = place / "work"
        work.mkdir()
        store = SnapshotStore(place / "store")
        states: list[tuple[str, str]] = []
        for count in steps:
            for _ in range(count):
                change(work, random)
            states.append((store.record(work).snapshot_id, fingerprint(work)))
        for snapshot_id, expected in random.sample(states * 2, len(states) * 2):
            done = store.restore(work, snapshot_id)
            assert fingerprint(work) == expected, (seed, steps, done)
            assert not done.refused
            assert store.record(work).snapshot_id == snapshot_id
            assert not list(work.glob(".soong-agent-*"))
    finally:
        shutil.rmtree(place)


SMALL = SnapshotSettings(max_file_bytes=100)


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_what_others_have_changed_is_refused_and_replaced_by_force(
    store: SnapshotStore, work: Path
) -> None:
    for name in ("mine", "theirs", "both"):
        (work / name).write_text("first")
    first = store.record(work).snapshot_id
    (work / "mine").write_text("second")
    (work / "both").write_text("second")
    second = store.record(work).snapshot_id
    (work / "both").write_text("another's")
    done = store.restore(work, first, base=second)
    assert (done.refused, done.restored) == ({"both": Refusal.CHANGED}, ())
    assert (work / "mine").read_text() == "second"
    forced = store.restore(work, first, base=second, force=True)
    assert (forced.refused, forced.restored) == ({}, ("both", "mine"))
    store.restore(work, forced.before.snapshot_id)
    assert (work / "both").read_text() == "another's"


@pytest.mark.parametrize("force", [False, True])
def test_paths_outside_of_what_is_taken_back_are_left_alone(
    store: SnapshotStore, work: Path, *, force: bool
) -> None:
    (work / "mine").write_text("first")
    (work / "theirs").write_text("first")
    first = store.record(work).snapshot_id
    (work / "mine").write_text("second")
    second = store.record(work).snapshot_id
    (work / "theirs").write_text("another's")
    (work / "new").write_text("another's")
    done = store.restore(work, first, base=second, force=force)
    assert (done.restored, done.deleted, done.refused) == (("mine",), (), {})
    assert (work / "theirs").read_text() == (work / "new").read_text() == "another's"


@pytest.mark.parametrize("name", ["data", "n" * 255])
def test_what_no_snapshot_holds_is_moved_aside_by_force_alone(
    store: SnapshotStore, work: Path, name: str
) -> None:
    (work / name).write_text("small")
    first = store.record(work, settings=SMALL).snapshot_id
    (work / name).write_bytes(b"L" * 500)
    assert store.restore(work, first, settings=SMALL).refused == {name: Refusal.IN_THE_WAY}
    done = store.restore(work, first, settings=SMALL, force=True)
    assert (work / name).read_text() == "small"
    (moved,) = done.moved_aside
    assert (work / moved.moved_to).read_bytes() == b"L" * 500


def test_excluded_files_survive_the_folder_around_them(store: SnapshotStore, work: Path) -> None:
    first = store.record(work).snapshot_id
    (work / "pkg" / "dist").mkdir(parents=True)
    (work / "pkg" / "dist" / "kept").write_text("kept")
    (work / "pkg" / "a").write_text("a")
    done = store.restore(work, first)
    assert (done.deleted, done.refused) == (("pkg/a",), {})
    assert names(work) == ["pkg", "pkg/dist", "pkg/dist/kept"]


def test_a_folder_with_excluded_files_is_moved_aside_for_a_file(
    store: SnapshotStore, work: Path
) -> None:
    (work / "pkg").write_text("a file")
    first = store.record(work).snapshot_id
    (work / "pkg").unlink()
    (work / "pkg" / "dist").mkdir(parents=True)
    (work / "pkg" / "dist" / "kept").write_text("kept")
    (work / "pkg" / "a").write_text("a")
    assert store.restore(work, first).refused == {"pkg": Refusal.IN_THE_WAY}
    (moved,) = store.restore(work, first, force=True).moved_aside
    assert (work / "pkg").read_text() == "a file"
    assert (work / moved.moved_to / "dist" / "kept").read_text() == "kept"


def test_a_copy_is_the_workspace_as_it_is_or_was(store: SnapshotStore, work: Path) -> None:
    (work / ".git").mkdir()
    (work / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (work / "dist").mkdir()
    (work / "dist" / "built").write_text("built")
    (work / "closed").mkdir()
    (work / "closed" / "a").write_text("first")
    (work / "closed").chmod(0o555)
    first, before = store.record(work).snapshot_id, fingerprint(work)
    (work / "closed" / "a").write_text("second")
    place = work.parent
    assert store.copy_out(work, place / "is").left_out == ()
    assert fingerprint(place / "is") == fingerprint(work)
    (place / "was").mkdir()
    assert store.copy_out(work, place / "was", snapshot_id=first).refused == {}
    assert fingerprint(place / "was") == before
    assert (place / "was" / ".git" / "HEAD").read_text() == "ref: refs/heads/main\n"
    for into in (work, work / "in", place, place / "was"):
        with pytest.raises(StorageError):
            store.copy_out(work, into)
    assert fingerprint(place / "was") == before


def test_a_copy_leaves_out_every_name_of_an_unreadable_file(
    store: SnapshotStore, work: Path
) -> None:
    for name in ("closed", "open"):
        (work / name).write_text(name)
        for twin in ("a", "b", "c"):
            (work / f"{name}-{twin}").hardlink_to(work / name)
    (work / "closed").chmod(0)
    place = work.parent / "copy"
    with as_anyone():
        copied = store.copy_out(work, place)
    expected = {f"closed{end}": LeftOutReason.UNREADABLE for end in ("", "-a", "-b", "-c")}
    assert {each.path: each.reason for each in copied.left_out} == expected
    assert names(place) == ["open", "open-a", "open-b", "open-c"]
    assert len({(place / name).stat().st_ino for name in names(place)}) == 1


def test_a_copy_passes_over_what_disappears_meanwhile(
    store: SnapshotStore, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (work / "kept").write_text("kept")
    (work / "link").symlink_to("kept")
    read = os.readlink

    def remove_first(path: str, *, dir_fd: int | None = None) -> str:
        (work / "link").unlink(missing_ok=True)
        return read(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "readlink", remove_first)
    place = work.parent / "copy"
    assert store.copy_out(work, place).left_out == ()
    assert names(place) == ["kept"]


def test_a_file_system_mounted_in_the_workspace_is_restored_too(
    store: SnapshotStore, work: Path
) -> None:
    inner = work / "mounted"
    inner.mkdir()
    command = ["mount", "-t", "tmpfs", "tmpfs", str(inner)]
    if subprocess.run(command, capture_output=True, check=False).returncode:  # noqa: S603
        pytest.skip("mounting is not permitted here")
    try:
        (inner / "a").write_text("first")
        first, before = store.record(work).snapshot_id, fingerprint(work)
        (inner / "a").write_text("second")
        (inner / "b").write_text("new")
        assert store.restore(work, first).refused == {}
        assert fingerprint(work) == before
    finally:
        subprocess.run(["umount", str(inner)], check=True)  # noqa: S603, S607
