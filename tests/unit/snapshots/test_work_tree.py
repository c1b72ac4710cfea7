"""The branch of a repository, and whether its files are changed, as git says it."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from agent_core.git.repository import Repository
from agent_core.git.work_tree import describe_repository
from confined_work import git


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with one commit and nothing else."""
    git(tmp_path, "init", "-q", "-b", "main")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("a = 1\n")
    (tmp_path / "link").symlink_to("src")
    (tmp_path / ".gitignore").write_text("*.log\nbuild/\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    return tmp_path


def described(tree: Path) -> str:
    repository = Repository.around(tree)
    assert repository is not None
    return describe_repository(repository)


CHANGES: dict[str, Callable[[Path], object]] = {
    "content": lambda tree: (tree / "src" / "a.py").write_text("a = 2\n"),
    "length": lambda tree: (tree / "src" / "a.py").write_text("a = 10\n"),
    "deleted": lambda tree: (tree / "src" / "a.py").unlink(),
    "untracked": lambda tree: (tree / "src" / "b.py").write_text("b"),
    "untracked below": lambda tree: [(tree / "x" / "y").mkdir(parents=True),
                                     (tree / "x" / "y" / "c").write_text("c")],
    "staged": lambda tree: [(tree / "src" / "b.py").write_text("b"), git(tree, "add", ".")],
    "link": lambda tree: [(tree / "link").unlink(), (tree / "link").symlink_to("elsewhere")],
    "kind": lambda tree: [(tree / "link").unlink(), (tree / "link").write_text("src")],
}  # fmt: skip
SAME: dict[str, Callable[[Path], object]] = {
    "nothing": lambda _: None,
    "touched": lambda tree: os.utime(tree / "src" / "a.py"),
    "ignored": lambda tree: [(tree / "x.log").write_text("x"), (tree / "build").mkdir(),
                             (tree / "build" / "out").write_text("x")],
    "empty folder": lambda tree: (tree / "empty").mkdir(),
    "own folder": lambda tree: [(tree / ".soong-agent").mkdir(),
                                (tree / ".soong-agent" / "x").write_text("x")],
    "excluded": lambda tree: [(tree / ".git/info/exclude").write_text("mine\n"),
                              (tree / "mine").write_text("x")],
    "same again": lambda tree: (tree / "src" / "a.py").write_text("a = 1\n"),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_changed_files_are_seen(tree: Path, change: str) -> None:
    CHANGES[change](tree)
    assert described(tree) == "branch main, files changed"


@pytest.mark.parametrize("change", SAME)
def test_a_clean_tree_is_clean(tree: Path, change: str) -> None:
    SAME[change](tree)
    assert described(tree) == "branch main, no files changed"


def test_a_commit_without_a_branch_and_a_branch_without_a_commit(tree: Path) -> None:
    commit = git(tree, "rev-parse", "HEAD")[:10]
    git(tree, "checkout", "-q", "--detach")
    assert described(tree) == f"commit {commit}, no files changed"
    git(tree, "checkout", "-q", "--orphan", "fresh")
    assert described(tree) == "branch fresh, files changed"


def test_a_damaged_index_leaves_the_state_out(tree: Path) -> None:
    (tree / ".git" / "index").write_bytes(b"DIRC")
    assert described(tree) == "branch main"
