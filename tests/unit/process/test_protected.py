"""The files of Git that are protected: of a repository, its modules, its other working trees."""

from pathlib import Path

import pytest

from agent_core.process.protected import REPOSITORY, ProtectedFiles, ProtectedPaths
from agent_core.process.repository_states import LARGEST_FILE
from confined_work import git


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A checkout with a module `m`, whose repository has a module `n`, and a working tree `w`."""
    tree = tmp_path / "tree"
    tree.mkdir()
    git(tree, "init", "-q")
    git(tree, "commit", "-q", "--allow-empty", "-m", "one")
    for name in ("m", "m/modules/n"):
        git(tree, "init", "-q", "--bare", f".git/modules/{name}")
    git(tree, "worktree", "add", "-q", str(tmp_path / "w"))
    return tree


def found(
    folder: Path, *, watched: bool = False, patterns: tuple[str, ...] = REPOSITORY
) -> ProtectedPaths:
    return ProtectedFiles(patterns, project=folder, folders=[folder], is_watched=watched).find()


def below(folder: Path, paths: list[str]) -> set[str]:
    return {str(Path(path).relative_to(folder)) for path in paths}


def test_every_repository_inside_of_one_is_protected(tree: Path) -> None:
    seen = found(tree)
    assert seen.holes == []
    paths = below(tree, seen.paths)
    for place in (".git", ".git/modules/m", ".git/modules/m/modules/n"):
        assert {f"{place}/hooks", f"{place}/config"} <= paths
    assert ".git/worktrees/w/commondir" in paths
    # Files that would lead Git to other settings must not be made.
    inner = {".git/modules/m/commondir", ".git/modules/m/modules/n/commondir"}
    assert below(tree, seen.unwanted) == {".git/commondir", *inner}


def test_settings_of_one_working_tree_are_protected_where_git_reads_them(tree: Path) -> None:
    for place in (".git", ".git/modules/m"):
        git(tree, "--git-dir", place, "config", "extensions.worktreeConfig", "true")
    (tree / ".git/worktrees/w/config.worktree").write_text("[core]\n")
    seen = found(tree)
    assert ".git/worktrees/w/config.worktree" in below(tree, seen.paths)
    unwanted = below(tree, seen.unwanted)
    assert {".git/config.worktree", ".git/modules/m/config.worktree"} <= unwanted
    assert ".git/modules/m/modules/n/config.worktree" not in unwanted


def test_inner_repositories_that_can_be_put_back_are_left_to_the_watch(tree: Path) -> None:
    seen = found(tree, watched=True)
    paths = below(tree, seen.paths)
    assert {".git/hooks", ".git/config"} <= paths
    assert not {path for path in paths if path.startswith((".git/modules", ".git/worktrees"))}
    assert below(tree, seen.unwanted) == {".git/commondir"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("place", "file"),
    [
        (".git/modules/m", "config"),
        (".git/modules/m/modules/n", "config"),
        (".git/worktrees/w", "config.worktree"),
    ],
)
def test_an_inner_repository_with_more_than_can_be_put_back_is_protected(
    tree: Path, place: str, file: str
) -> None:
    (tree / place / file).write_text("#" * LARGEST_FILE)
    seen = found(tree, watched=True)
    inner = {path for path in below(tree, seen.paths) if path.startswith(place + "/")}
    if file == "config":
        assert inner == {f"{place}/config", f"{place}/hooks"}
        assert f"{place}/commondir" in below(tree, seen.unwanted)
    else:
        assert inner == {f"{place}/commondir", f"{place}/config.worktree"}


def test_a_repository_elsewhere_is_protected_for_the_checkout_that_names_it(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "checkout").mkdir(parents=True)
    (folder / "away").mkdir()
    away = folder / "away" / "store"
    git(folder / "checkout", "init", "-q", "--separate-git-dir", str(away))
    git(folder / "checkout", "config", "core.hooksPath", "tools")
    git(folder, "init", "-q", "--bare", str(away / "modules" / "m"))
    paths = below(folder, found(folder).paths)
    assert {"checkout/.git", "away/store/hooks", "away/store/config"} <= paths
    assert {"away/store/modules/m/hooks", "away/store/modules/m/config"} <= paths
    assert "checkout/tools" in paths, "of the settings, from the checkout"


def test_a_pointer_at_no_repository_protects_only_itself(tmp_path: Path) -> None:
    (tmp_path / ".git").write_text("gitdir: elsewhere\n")
    (tmp_path / "elsewhere").mkdir()
    assert below(tmp_path, found(tmp_path).paths) == {".git"}


def test_a_bare_repository_is_found_by_its_head(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "--bare", "bare.git")
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "HEAD").write_text("no repository\n")
    paths = below(tmp_path, found(tmp_path).paths)
    assert paths == {f"bare.git/{name}" for name in ("hooks", "config")} | {
        ".git/hooks",
        ".git/config",
    }
    assert found(tmp_path, watched=True).paths != found(tmp_path).paths


def test_included_settings_are_protected_and_those_that_can_be_made_are_a_hole(tree: Path) -> None:
    (tree / "more").write_text("[include]\n path = deeper\n")
    (tree / "deeper").write_text("[core]\n")
    git(tree, "config", "include.path", "../more")
    git(tree, "config", "--add", "include.path", "../missing")
    seen = found(tree)
    assert {"more", "deeper"} <= below(tree, seen.paths)
    assert seen.holes == [f"{tree}/missing can be made, and Git would take settings from it"]


def test_links_that_can_be_replaced_are_holes(tree: Path, tmp_path: Path) -> None:
    hooks = tree / ".git" / "modules" / "m" / "hooks"
    for sample in hooks.iterdir():
        sample.unlink()
    hooks.rmdir()
    hooks.symlink_to(tmp_path)
    assert found(tree).holes == [f"{hooks} is a link, which can be replaced by another one"]


def test_names_are_protected_but_in_folders_of_dependencies(tmp_path: Path) -> None:
    for place in ("a", "node_modules/b", "env", "env/lib"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / ".ENVRC").touch()
    (tmp_path / "env" / "pyvenv.cfg").touch()
    seen = found(tmp_path, patterns=(".envrc",))
    assert below(tmp_path, seen.paths) == {"a/.ENVRC"}
    assert below(tmp_path, found(tmp_path, patterns=("a/*",)).paths) == {"a/.ENVRC"}


def test_the_repository_that_the_project_may_become_is_protected_unless_it_is_watched(
    tmp_path: Path,
) -> None:
    def paths(*, watched: bool, makes: bool) -> set[str]:
        files = ProtectedFiles(REPOSITORY, project=tmp_path, folders=[tmp_path], is_watched=watched)
        return below(tmp_path, files.find(makes_repository=makes).paths)

    own = {".git/hooks", ".git/config"}
    assert paths(watched=False, makes=True) == own
    assert paths(watched=True, makes=False) == own
    assert paths(watched=True, makes=True) == set()
    git(tmp_path, "init", "-q")
    assert paths(watched=True, makes=True) >= own


def test_a_repository_beside_the_project_is_protected_at_the_root_of_a_folder_only(
    tmp_path: Path,
) -> None:
    project, other = tmp_path / "project", tmp_path / "other"
    for folder in (project, other, other / "inner"):
        folder.mkdir()
        git(folder, "init", "-q")
    git(other / "inner", "config", "include.path", str(other / "more"))
    (other / "more").write_text("[core]\n")
    seen = ProtectedFiles(
        REPOSITORY, project=project, folders=[project, other], is_watched=True
    ).find()
    paths = below(tmp_path, seen.paths)
    assert {"other/.git/hooks", "project/.git/hooks"} <= paths
    assert not {path for path in paths if path.startswith("other/inner")}
    assert below(tmp_path, seen.left) == {"other", "other/more"}, "checked afterwards instead"


def test_a_project_below_a_writable_folder_stays_protected_if_git_may_make_its_repository(
    tmp_path: Path,
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    files = ProtectedFiles(REPOSITORY, project=project, folders=[tmp_path], is_watched=True)
    assert below(tmp_path, files.find(makes_repository=True).paths) == set()
    git(project, "init", "-q")
    own = {"project/.git/hooks", "project/.git/config"}
    for makes in (True, False):
        assert below(tmp_path, files.find(makes_repository=makes).paths) >= own


def test_nothing_of_a_repository_that_cannot_be_read_whole_is_left_for_later(
    tmp_path: Path,
) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    git(inner, "init", "-q")
    git(inner, "config", "include.path", "../more")
    (inner / "more").write_text("[core]\n")
    seen = found(tmp_path, watched=True)
    assert below(tmp_path, seen.left) == {"inner", "inner/more"}
    assert "inner/.git/config" not in below(tmp_path, seen.paths)
    git(inner, "config", "--add", "include.path", "../endless")
    (inner / "endless").write_text("# " + "x" * LARGEST_FILE)
    seen = found(tmp_path, watched=True)
    assert seen.left == []
    assert {"inner/.git/config", "inner/more"} <= below(tmp_path, seen.paths)


def test_what_was_found_before_counts_while_it_is_there(tree: Path) -> None:
    (tree / ".envrc").touch()
    files = ProtectedFiles((*REPOSITORY, ".envrc"), project=tree, folders=[tree])
    before = files.find()
    assert ".envrc" in below(tree, before.paths)
    (tree / ".envrc").unlink()
    (tree / ".git" / "commondir").write_text(".\n")
    after = files.find()
    assert ".envrc" not in below(tree, after.paths)
    assert ".git/commondir" in below(tree, before.unwanted) - below(tree, after.unwanted)


def test_settings_of_one_working_tree_name_hooks_too(tree: Path) -> None:
    (tree / ".git" / "config.worktree").write_text("[core]\n hooksPath = tools\n")
    assert "tools" in below(tree, found(tree).paths)


def test_a_folder_that_is_named_like_dependencies_is_one_of_them_only_inside(
    tmp_path: Path,
) -> None:
    root = tmp_path / "node_modules"
    root.mkdir()
    (root / ".envrc").touch()
    assert below(root, found(root, patterns=(".envrc",)).paths) == {".envrc"}
