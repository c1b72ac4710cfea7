"""What a snapshot holds, and what it leaves out."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from agent_core.errors import StorageError
from agent_core.snapshots.records import (
    ChangeKind,
    FileType,
    LeftOut,
    LeftOutReason,
    SnapshotSettings,
    TooManyFilesError,
    TreeChange,
)
from agent_core.snapshots.store import SnapshotStore


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    return SnapshotStore(tmp_path / "home" / "snapshots")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def short(changes: list[TreeChange]) -> list[tuple[str, ChangeKind]]:
    return [(change.path, change.kind) for change in changes]


def test_an_unchanged_workspace_has_the_same_snapshot(store: SnapshotStore, work: Path) -> None:
    (work / "a").write_text("1")
    (work / "empty").mkdir()
    first = store.record(work)
    assert store.record(work) == first
    assert store.get(first.snapshot_id) == first
    assert (first.files, first.size_bytes) == (1, 1)


def test_a_change_in_the_same_tick_and_of_the_same_size_is_seen(
    store: SnapshotStore, work: Path
) -> None:
    (work / "a").write_text("1")
    first = store.record(work)
    (work / "a").write_text("2")
    (change,) = store.diff(first.snapshot_id, store.record(work).snapshot_id)
    assert (change.path, change.kind) == ("a", ChangeKind.MODIFIED)
    assert change.before is not None
    assert change.after is not None
    assert (store.read(change.before), store.read(change.after)) == (b"1", b"2")


def test_every_kind_of_change_is_named(store: SnapshotStore, work: Path) -> None:
    for name in ("content", "mode", "gone", "kind", "link"):
        (work / name).write_text(name)
    (work / "folder" / "empty").mkdir(parents=True)
    before = store.record(work).snapshot_id
    (work / "content").write_text("other")
    (work / "mode").chmod(0o711)
    (work / "gone").unlink()
    (work / "kind").unlink()
    (work / "kind").mkdir()
    (work / "kind" / os.fsdecode(b"\xff\n")).write_text("inner")
    (work / "link").unlink()
    (work / "link").symlink_to("/nowhere")
    (work / "folder" / "empty").rmdir()
    assert short(store.diff(before, store.record(work).snapshot_id)) == [
        ("content", ChangeKind.MODIFIED),
        ("gone", ChangeKind.DELETED),
        ("kind", ChangeKind.KIND),
        ("link", ChangeKind.KIND),
        ("mode", ChangeKind.MODE),
        ("folder/empty", ChangeKind.DELETED),
        (os.fsdecode(b"kind/\xff\n"), ChangeKind.ADDED),
    ]


def test_what_is_left_out_is_named(store: SnapshotStore, work: Path) -> None:
    (work / "node_modules" / "x").mkdir(parents=True)
    (work / "sub" / "build").mkdir(parents=True)
    (work / ".git").mkdir()
    (work / "large").write_bytes(bytes(11))
    (work / "fits").write_bytes(bytes(10))
    (work / "twin").hardlink_to(work / "fits")
    os.mkfifo(work / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(work / "sock"))
    snapshot = store.record(work, settings=SnapshotSettings(max_file_bytes=10))
    assert snapshot.left_out == (
        LeftOut("fits", LeftOutReason.HARD_LINK),
        LeftOut("large", LeftOutReason.TOO_LARGE),
        LeftOut("node_modules", LeftOutReason.EXCLUDED),
        LeftOut("pipe", LeftOutReason.FIFO),
        LeftOut("sock", LeftOutReason.SOCKET),
        LeftOut("sub/build", LeftOutReason.EXCLUDED),
        LeftOut("twin", LeftOutReason.HARD_LINK),
    )
    assert snapshot.files == 2


def test_a_nested_repository_is_files(store: SnapshotStore, work: Path) -> None:
    (work / "inner" / ".git").mkdir(parents=True)
    (work / "inner" / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    before = store.record(work).snapshot_id
    (work / "inner" / ".git" / "HEAD").unlink()
    (change,) = store.diff(before, store.record(work).snapshot_id)
    assert change.path == "inner/.git/HEAD"
    assert change.before is not None
    assert change.before.kind is FileType.FILE


def test_above_the_limit_there_is_no_snapshot(store: SnapshotStore, work: Path) -> None:
    for number in range(3):
        (work / str(number)).touch()
    assert store.record(work, settings=SnapshotSettings(max_files=3)).files == 3
    with pytest.raises(TooManyFilesError, match="more than 2 files"):
        store.record(work, settings=SnapshotSettings(max_files=2))


def test_the_programs_own_folders_are_in_no_snapshot(work: Path) -> None:
    home = work / "home"
    store = SnapshotStore(home / "snapshots", own=[home])
    (work / "a").touch()
    first = store.record(work)
    assert first.left_out == (LeftOut("home", LeftOutReason.PROGRAM_HOME),)
    assert store.record(work) == first


def test_only_the_programs_own_temporary_files_are_no_files(
    store: SnapshotStore, work: Path
) -> None:
    (work / ".soong-agent-0123456789abcdef.tmp").touch()
    (work / ".soong-agent-notes.tmp").touch()
    snapshot = store.record(work)
    assert (snapshot.files, snapshot.left_out) == (1, ())


def test_everything_kept_is_private(store: SnapshotStore, work: Path) -> None:
    (work / "secret").write_text("x" * 1000)
    store.record(work)
    folder = work.parent / "home"
    for path in folder.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path


@pytest.mark.parametrize("snapshot_id", ["", "snap_0", "../../x", "snap_" + "0" * 32])
def test_an_unknown_snapshot_is_a_clear_error(store: SnapshotStore, snapshot_id: str) -> None:
    with pytest.raises(StorageError, match="there is no snapshot"):
        store.get(snapshot_id)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs the superuser, to become another user")
def test_what_may_not_be_read_is_named_and_is_opened_by_a_restore() -> None:
    program = """
import os, shutil, tempfile
from pathlib import Path
from agent_core.snapshots.store import SnapshotStore
place = Path(tempfile.mkdtemp())
SnapshotStore(place / "used").record(place)  # which loads everything
shutil.rmtree(place / "used")
os.chown(place, 65534, 65534)
os.setgid(65534), os.setuid(65534)
work = place / "work"
for name in ("closed", "listed", "open"):
    (work / name).mkdir(parents=True)
    (work / name / "f").write_text(name)
(work / "unreadable").write_text("x")
store = SnapshotStore(work.parent / "own-store")
first = store.record(work).snapshot_id
(work / "open" / "f").write_text("changed")
os.chmod(work / "closed", 0), os.chmod(work / "listed", 0o400), os.chmod(work / "unreadable", 0)
left = store.record(work).left_out
print([(each.path, each.reason.value) for each in left])
done = store.restore(work, first)
print(done.refused, sorted(done.restored), [path.read_text() for path in sorted(work.glob("*/f"))])
print(done.before.left_out)
assert store.record(work).snapshot_id == first
shutil.rmtree(place)
"""
    done = subprocess.run(  # noqa: S603 - our own interpreter and text
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    first, second, third = done.stdout.splitlines()
    assert first == (
        "[('closed', 'unreadable'), ('listed/f', 'unreadable'), ('unreadable', 'unreadable')]"
    )
    assert second == (
        "{} ['closed', 'listed', 'open/f', 'unreadable'] ['closed', 'listed', 'open']"
    )
    assert third.count("'closed'>") == 3


def test_too_many_files_are_refused_before_any_is_read(store: SnapshotStore, work: Path) -> None:
    (work / "large").write_bytes(os.urandom(1000))
    (work / "node_modules").mkdir()
    (work / "node_modules" / "x").touch()
    (work / "other").touch()
    with pytest.raises(TooManyFilesError):
        store.record(work, settings=SnapshotSettings(max_files=1))
    assert list((work.parent / "home" / "snapshots" / "packs").iterdir()) == []
    assert store.record(work, settings=SnapshotSettings(max_files=2)).files == 2
