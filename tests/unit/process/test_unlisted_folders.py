"""Folders that cannot be listed hide no repository: Git enters them without listing them."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_core.process.repository_watch import RepositoryWatch

_NOBODY = 65534


@pytest.fixture
def root() -> Iterator[Path]:
    """A repository of a user who is not the superuser, who can list everything."""
    user = os.geteuid()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        root = Path(os.path.realpath(name))
        if user == 0:
            os.chown(root, _NOBODY, _NOBODY)
            os.seteuid(_NOBODY)
        try:
            git(root, "init", "-q")
            yield root
            for folder in (root / "q", root / "x/.git/hooks"):
                if folder.exists():
                    folder.chmod(0o755)
        finally:
            os.seteuid(user)


def git(folder: Path, *arguments: str) -> None:
    author = ("-c", "user.name=A", "-c", "user.email=a@example.com")
    argv = ["git", *author, "-C", str(folder), *arguments]
    subprocess.run(argv, check=True, capture_output=True)  # noqa: S603


def make(folder: Path) -> None:
    folder.mkdir(parents=True)
    git(folder, "init", "-q")
    git(folder, "commit", "-q", "--allow-empty", "-m", "one")


def test_a_submodule_in_a_folder_that_cannot_be_listed_is_examined(root: Path) -> None:
    watch = RepositoryWatch([root], home=None)
    known = watch.begin()
    make(root / "q/x")
    git(root / "q/x", "config", "core.fsmonitor", "evil")
    git(root, "add", "q/x")
    (root / "q").chmod(0o311)
    disabled = watch.end(known, restores=True)
    assert (root / "q/x/.git/config.disabled").exists()
    assert not (root / "q/x/.git/config").exists()
    assert any(text.startswith(f"{root}/q cannot be listed") for text in disabled)
    assert watch.end(watch.begin(), restores=True) == []


def test_a_folder_of_hooks_that_cannot_be_listed_is_moved_aside(root: Path) -> None:
    watch = RepositoryWatch([root], home=None)
    known = watch.begin()
    make(root / "x")
    hooks = root / "x/.git/hooks"
    hooks.mkdir(exist_ok=True)
    (hooks / "pre-commit").write_text("#!/bin/sh\n", encoding="utf-8")
    hooks.chmod(0o311)
    (text,) = watch.end(known, restores=True)
    assert text.startswith(f"{hooks} was moved to ")
    assert not hooks.exists()
