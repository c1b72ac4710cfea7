"""What a snapshot says of the workspace's own repository, and what git keeps from exclusion."""

import subprocess
from pathlib import Path

import pytest

from agent_core.snapshots.records import GitState, LeftOut, LeftOutReason, Snapshot
from agent_core.snapshots.store import SnapshotStore


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    return SnapshotStore(tmp_path / "home" / "snapshots")


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / "a").write_text("1")
    (folder / "sub" / "deep").mkdir(parents=True)
    (folder / "sub" / "deep" / "b").write_text("2")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    return folder


def git(folder: Path, *arguments: str) -> str:
    author = ["-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *author, *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603
    return done.stdout.strip()


def state(snapshot: Snapshot) -> GitState:
    assert snapshot.git is not None
    return snapshot.git


def test_head_branch_and_index_are_noted(store: SnapshotStore, repo: Path) -> None:
    head = git(repo, "rev-parse", "HEAD")
    clean = GitState(head=head, branch="main", is_index_clean=True)
    assert state(store.record(repo)) == clean
    (repo / "a").write_text("changed, but not staged")
    assert state(store.record(repo)) == clean
    git(repo, "add", "a")
    assert state(store.record(repo)).is_index_clean is False
    git(repo, "restore", "--staged", "a")
    assert state(store.record(repo)) == clean
    git(repo, "checkout", "-q", "--detach")
    assert state(store.record(repo)) == GitState(head=head, branch=None, is_index_clean=True)


@pytest.mark.parametrize("version", ["2", "3", "4"])
def test_any_version_of_the_index_is_read(store: SnapshotStore, repo: Path, version: str) -> None:
    (repo / "new").write_text("3")
    (repo / ("long" * 50)).write_text("4")
    git(repo, "update-index", "--index-version", version)
    git(repo, "add", "-N", "new")
    assert state(store.record(repo)).is_index_clean is True
    git(repo, "add", ".")
    assert state(store.record(repo)).is_index_clean is False
    git(repo, "commit", "-qm", "second")
    assert state(store.record(repo)).is_index_clean is True
    git(repo, "reset", "-q", "--soft", "HEAD~1")
    assert state(store.record(repo)).is_index_clean is False


def test_packed_objects_and_branches_are_read(store: SnapshotStore, repo: Path) -> None:
    for number in range(30):
        (repo / "sub" / "deep" / "b").write_text("text\n" * number)
        git(repo, "commit", "-qam", f"number {number}" + " of many" * 50)
    git(repo, "gc", "-q", "--aggressive", "--prune=now")
    git(repo, "pack-refs", "--all")
    head = git(repo, "rev-parse", "HEAD")
    assert not list((repo / ".git" / "refs" / "heads").iterdir())
    assert state(store.record(repo)) == GitState(head=head, branch="main", is_index_clean=True)
    (repo / "a").write_text("2")
    git(repo, "add", "a")
    git(repo, "restore", "--staged", "a")
    assert state(store.record(repo)).is_index_clean is True
    git(repo, "rm", "-q", "--cached", "sub/deep/b")
    assert state(store.record(repo)).is_index_clean is False


def test_a_folder_in_a_repository_and_a_further_work_tree_have_a_state(
    store: SnapshotStore, repo: Path
) -> None:
    head = git(repo, "rev-parse", "HEAD")
    assert state(store.record(repo / "sub")).head == head
    other = repo.parent / "other"
    git(repo, "worktree", "add", "-q", "-b", "side", str(other))
    found = store.record(other)
    assert state(found) == GitState(head=head, branch="side", is_index_clean=True)
    assert found.files == 2


def test_without_a_commit_or_a_repository_there_is_less_to_say(
    store: SnapshotStore, tmp_path: Path
) -> None:
    folder = tmp_path / "new"
    folder.mkdir()
    assert store.record(folder).git is None
    git(folder, "init", "-q", "-b", "main")
    found = state(store.record(folder))
    assert (found.head, found.branch, found.is_index_clean) == (None, "main", None)


def test_what_git_tracks_is_never_excluded(store: SnapshotStore, repo: Path) -> None:
    for name in ("dist/kept", "dist/in/kept", "dist/other", "dist/in/other", "sub/build/x"):
        (repo / name).parent.mkdir(parents=True, exist_ok=True)
        (repo / name).write_text(name)
    before = store.record(repo)
    assert before.left_out == (
        LeftOut("dist", LeftOutReason.EXCLUDED),
        LeftOut("sub/build", LeftOutReason.EXCLUDED),
    )
    git(repo, "add", "-f", "dist/kept", "dist/in/kept")
    after = store.record(repo)
    assert [change.path for change in store.diff(before.snapshot_id, after.snapshot_id)] == [
        "dist",
        "dist/in",
        "dist/kept",
        "dist/in/kept",
    ]
    assert LeftOut("dist/other", LeftOutReason.EXCLUDED) in after.left_out
    assert LeftOut("dist/in/other", LeftOutReason.EXCLUDED) in after.left_out
    inner = store.record(repo / "dist")
    assert inner.files == 4


@pytest.mark.parametrize("broken", [b"", b"DIRC", b"DIRC\0\0\0\2\xff\xff\xff\xff" + bytes(500)])
def test_a_broken_index_is_unknown(store: SnapshotStore, repo: Path, broken: bytes) -> None:
    (repo / ".git" / "index").write_bytes(broken)
    assert state(store.record(repo)).is_index_clean is None


@pytest.mark.parametrize(
    "head", ["", "ref: ../../../etc/passwd", "ref: refs/heads/../../config", "\0", "ref: " * 5000]
)
def test_a_hostile_head_leads_nowhere(store: SnapshotStore, repo: Path, head: str) -> None:
    (repo / ".git" / "HEAD").write_text(head)
    assert state(store.record(repo)).head is None
