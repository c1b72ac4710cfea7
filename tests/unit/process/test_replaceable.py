"""Which files Git tracks, read from the index that real Git has written."""

import os
import subprocess
from pathlib import Path

from agent_core.process.repository_states import find_replaceable
from tables import together


def git(folder: Path, *arguments: str) -> None:
    argv = ["git", "-C", str(folder), *arguments]
    subprocess.run(argv, check=True, capture_output=True)  # noqa: S603


@together("version", ["2", "3", "4"])
@together("digest", ["sha1", "sha256"])
def test_tracked_files_and_folders_are_found(tmp_path: Path, version: str, digest: str) -> None:
    git(tmp_path, "init", "-q", f"--object-format={digest}")
    for name in ("a/b/c", "a/bb", "uv.lock", ".husky/pre-commit", "\u00e4 x", "new"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name, encoding="utf-8")
    git(tmp_path, "add", "a", "uv.lock", ".husky", "\u00e4 x")
    git(tmp_path, "add", "-N", "new")
    git(tmp_path, "update-index", "--index-version", version)
    (tmp_path / "other").write_text("untracked", encoding="utf-8")
    asked = ["a/b", "a/b/c", ".husky", "uv.lock", "ä x", "new", "absent", "other", ".git/hooks"]
    found = find_replaceable([str(tmp_path / name) for name in asked])
    assert sorted(found) == sorted(str(tmp_path / name) for name in asked[:7])


@together("content", [b"", b"DIRC", b"DIRC\0\0\0\2\0\0\0\7x", b"x" * 100])
def test_a_broken_index_has_no_files(tmp_path: Path, content: bytes) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / ".git/index").write_bytes(content)
    (tmp_path / "a").touch()
    assert find_replaceable([str(tmp_path / "a")]) == []


def test_a_pipe_in_place_of_an_index_is_not_waited_for(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    os.mkfifo(tmp_path / ".git/index")
    (tmp_path / "a").touch()
    assert find_replaceable([str(tmp_path / "a")]) == []
