"""What a snapshot says of the workspace's own repository, and what git keeps from exclusion."""

import os
import subprocess
from pathlib import Path
from random import Random

import pytest

from agent_core.git.index import find_submodules, read_index
from agent_core.snapshots.records import GitState, LeftOut, LeftOutReason, Snapshot
from agent_core.snapshots.store import SnapshotStore
from tables import together


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


NAMES = ("a", "a.b", "a-b", "a0", "a/b/c", "a/b-c", "b/a", "b.c", "z/\xe9", "sp ace", "l" * 200)


@pytest.mark.long
@together("seed", range(6))
def test_an_index_has_the_paths_and_the_tree_that_git_says(tmp_path: Path, seed: int) -> None:
    random = Random(seed)  # noqa: S311
    algorithm = random.choice(["sha1", "sha256"])
    git(tmp_path, "init", "-q", "-b", "main", f"--object-format={algorithm}")
    for _ in range(4):
        for name in random.sample(NAMES, 5):
            path = tmp_path / name
            if any(above.is_file() or above.is_symlink() for above in path.parents):
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.is_dir():
                path.unlink(missing_ok=True)
                path.write_text(name) if random.random() < 0.8 else path.symlink_to("x")
        git(tmp_path, "add", "-A")
        if random.random() < 0.5:
            git(tmp_path, "commit", "-qm", "some", "--allow-empty")
        git(tmp_path, "update-index", "--index-version", random.choice("234"))
        index = read_index(tmp_path / ".git")
        assert index is not None
        listed = git(tmp_path, "-c", "core.quotePath=false", "ls-files", "-z").split("\0")
        assert sorted(map(os.fsdecode, index.items)) == sorted(filter(None, listed))
        assert index.tree().hex() == git(tmp_path, "write-tree")


def test_a_damaged_index_is_never_read(repo: Path) -> None:
    place = repo / ".git" / "index"
    whole = place.read_bytes()
    for at in range(len(whole)):
        place.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert read_index(repo / ".git") is None
        place.write_bytes(whole[:at])
        assert read_index(repo / ".git") is None
    place.write_bytes(whole[:-20] + bytes(20))
    assert read_index(repo / ".git") is not None, "git can be told to compute no checksum"


def test_a_split_and_a_sparse_index_lose_no_path(store: SnapshotStore, repo: Path) -> None:
    git(repo, "update-index", "--split-index")
    (repo / "new").write_text("3")
    git(repo, "add", "new")
    git(repo, "rm", "-q", "--cached", "a")
    index = read_index(repo / ".git")
    assert index is not None
    assert {b"new", b"sub/deep/b"} <= index.items.keys()
    assert state(store.record(repo)).is_index_clean is None
    for shared in (repo / ".git").glob("sharedindex.*"):
        shared.unlink()
    assert read_index(repo / ".git") is None
    (repo / ".git" / "index").unlink()
    git(repo, "reset", "-q", "--hard")
    git(repo, "sparse-checkout", "init", "--cone", "--sparse-index")
    git(repo, "sparse-checkout", "set", "other")
    index = read_index(repo / ".git")
    assert index is not None
    assert index.items.keys() == {b"a", b"sub"}
    assert state(store.record(repo)).is_index_clean is True


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


@pytest.mark.parametrize("version", ["2", "4"])
@pytest.mark.parametrize("is_split", [False, True])
def test_submodules_are_found_whatever_the_checksum(
    repo: Path, version: str, *, is_split: bool
) -> None:
    assert find_submodules(repo / ".git", digest_bytes=20) == []
    head = git(repo, "rev-parse", "HEAD")
    git(repo, "update-index", "--add", "--cacheinfo", f"160000,{head},sub/inner")
    git(repo, "update-index", "--index-version", version)
    if is_split:
        git(repo, "update-index", "--split-index")
    place = repo / ".git" / "index"
    place.write_bytes(place.read_bytes()[:-20] + bytes(range(20)))
    assert "160000" in git(repo, "ls-files", "--stage"), "git reads it"
    assert find_submodules(repo / ".git", digest_bytes=20) == ["sub/inner"]
