"""Folders that are removed, also where others have closed a part of them."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent_core.artifacts.files import remove_folder
from agent_core.disk.folders import remove_tree
from agent_core.opening import is_file, is_folder, is_there
from rights import as_anyone


@contextmanager
def closed(folder: Path) -> Generator[None]:
    """Close a folder, and obey that as other users do."""
    mode = folder.stat().st_mode
    folder.chmod(0)
    try:
        with as_anyone():
            yield
    finally:
        if folder.exists():
            folder.chmod(mode)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder with a file, a link to a folder, and a folder with a file."""
    top = tmp_path / "top"
    (top / "inner").mkdir(parents=True)
    (top / "inner" / "a.txt").write_text("a")
    (top / "b.txt").write_text("b")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "kept.txt").write_text("kept")
    (top / "link").symlink_to(tmp_path / "elsewhere")
    return top


@pytest.mark.parametrize("keep", [True, False])
def test_a_tree_is_removed_and_what_its_links_lead_to_stays(tree: Path, keep: bool) -> None:
    remove_tree(tree, keep=keep)
    assert tree.exists() is keep
    assert not keep or not [*tree.iterdir()]
    assert (tree.parent / "elsewhere" / "kept.txt").exists()
    remove_tree(tree / "nothing", keep=keep)


@pytest.mark.parametrize("keep", [True, False])
def test_a_tree_is_removed_as_far_as_it_is_open(tree: Path, keep: bool) -> None:
    with closed(tree.parent):
        remove_tree(tree, keep=keep)
    with closed(tree):
        remove_tree(tree, keep=keep)
    assert (tree / "b.txt").exists()
    with closed(tree / "inner"):
        remove_tree(tree, keep=keep)
    assert (tree / "inner" / "a.txt").exists()
    assert not (tree / "b.txt").exists()
    remove_tree(tree, keep=keep)
    assert tree.exists() is keep


def test_what_of_a_session_could_not_be_removed_is_reported(tree: Path) -> None:
    (tree / "inner").chmod(0o600)  # it can be listed, and not entered
    with as_anyone():
        failed = {path.name for path, _ in remove_folder(tree)}
    assert failed == {"a.txt", "inner", "top"}
    (tree / "inner").chmod(0o700)
    assert remove_folder(tree) == []
    assert not tree.exists()
    assert (tree.parent / "elsewhere" / "kept.txt").exists()


def test_what_cannot_be_looked_at_is_no_folder_and_no_file(tree: Path) -> None:
    assert (is_folder(tree), is_file(tree / "b.txt"), is_there(tree)) == (True, True, True)
    assert (is_folder(tree / "b.txt"), is_file(tree)) == (False, False)
    for path in (tree / ("n" * 300), tree / "nothing", tree / "b.txt" / "x"):
        assert not any(look(path) for look in (is_folder, is_file, is_there))
    with closed(tree):
        assert not any(look(tree / "b.txt") for look in (is_folder, is_file, is_there))
