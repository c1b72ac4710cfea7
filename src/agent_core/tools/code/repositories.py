"""Repositories of git: the files git tracks, and whether reading a repository runs anything else.

Git runs programs named in a repository's own settings even when it only reads: a file monitor,
filters, converters, one hook, a signature checker, and the same in every repository below.
Settings come with a project, so this module looks for those that make a reading git run or connect
to something; all others (a default branch, a rebase strategy, notes of editors) change nothing. A
file of settings that cannot be read with certainty counts as one that runs something. The user's
own settings of git are trusted.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from shutil import which

from agent_core.git.index import GITLINK, Item
from agent_core.git.repository import Repository
from agent_core.git.settings import GitSetting, read_settings, user_settings

_MAX_TREE_ENTRIES = 50_000

_BOOLEANS = frozenset({"", "0", "1", "false", "no", "off", "on", "true", "yes"})
_FALSE = frozenset({"", "0", "false", "no", "off"})
_RUNS = re.compile(
    r"""core\.(?:alternaterefscommand|virtualfilesystem)
    | diff(?:\..*)?\.(?:command|external|textconv)
    | extensions\.partialclone
    | filter\..*\.(?:clean|process|smudge)
    | gpg(?:\..*)?\.(?:defaultkeycommand|program)
    | hook\..*
    | lfs\.extension\..*
    | remote\..*\.(?:partialclonefilter|receivepack|uploadpack|vcs)
    | trace2\..*
    | trailer\..*\.(?:cmd|command)
    """,
    re.VERBOSE | re.DOTALL,
)
"""Settings whose value is a program, or with which git connects or writes while it reads."""

_RUNS_UNLESS_BOOLEAN = re.compile(r"core\.(?:fsmonitor|pager)|pager\..*", re.DOTALL)
_RUNS_UNLESS_FALSE = re.compile(
    r"log\.showsignature|remote\..*\.promisor|status\.submodulesummary", re.DOTALL
)
_FORMATS = re.compile(r"format\.pretty|pretty\..*", re.DOTALL)
_LFS = re.compile(
    r"git-lfs (?:clean|smudge)(?: --skip)?(?: --)? %f|git-lfs filter-process(?: --skip)?"
)
"""The filters that git-lfs sets up: a program of the system, which connects to nothing."""

_HOOK_OF_READERS = "post-index-change"
"""Called when `git status` writes what it has learnt into the index; no other hook is."""


def find_plain_tree(cwd: Path) -> Path | None:
    """Return the working tree around a folder if reading its repository runs only git itself."""
    for folder in (cwd, *cwd.parents):
        parts = map(folder.joinpath, ("objects", "commondir"))
        if os.path.lexists(folder / "HEAD") and any(map(os.path.lexists, parts)):
            return None  # a repository without a working tree
        if os.path.lexists(folder / ".git"):
            return folder if _is_plain(folder) and _are_all_plain_below(folder) else None
    return None


def find_tracked(cwd: Path, words: Sequence[str]) -> list[str] | None:
    """Return the files of the index below the paths among some words; None if it is unknown.

    Args:
        cwd: where git runs.
        words: commits and paths; without any path all files are meant.
    """
    tree = find_top(cwd)
    if tree is None:
        return None if words else []
    files = _tracked_files(tree)
    if files is None:
        return None
    limits: list[str] = []
    for word in words:
        commit, colon, path = word.partition(":")
        if colon and commit and path:
            limits.append(os.path.realpath(tree / path))
        elif colon or re.search(r"[*?\[\\]", word):
            return files
        elif os.path.lexists(cwd / word):
            limits.append(os.path.realpath(cwd / word))
    if not limits:
        return files
    below = tuple(f"{limit.rstrip('/')}/" for limit in limits)
    return [*limits, *(file for file in files if file.startswith(below))]


def find_listed(cwd: Path, words: Sequence[str]) -> list[str] | None:
    """Return the paths in the index at or below some paths, links not followed.

    None if the index cannot be read.
    """
    tree = find_top(cwd)
    repository = _open_repository(tree) if tree is not None else None
    items = repository and _read_items(repository)
    if tree is None or items is None:
        return None
    top = os.path.realpath(tree)
    limits = tuple(os.path.realpath(cwd / word) for word in words)
    below = tuple(f"{limit.rstrip('/')}/" for limit in limits)
    paths = (f"{top}/{os.fsdecode(name)}" for name in items)
    return [path for path in paths if path in limits or path.startswith(below)]


def find_top(cwd: Path) -> Path | None:
    """Return the top of the working tree that a folder is in, whatever the repository is like."""
    return next((each for each in (cwd, *cwd.parents) if os.path.lexists(each / ".git")), None)


def may_show_more(cwd: Path, words: Sequence[str], *, is_history: bool) -> bool:
    """Return whether git may show files that its index does not name, from earlier commits.

    Args:
        cwd: where git runs.
        words: commits and paths that it is given.
        is_history: it shows commits whatever it is given.
    """
    paths = [word for word in words if ":" in word or os.path.lexists(cwd / word)]
    if not is_history and len(paths) == len(words):
        return False
    if paths and all(":" in word[1:] or not os.path.isdir(cwd / word) for word in paths):  # noqa: PTH112
        return False  # of these files only
    tree = find_top(cwd)
    repository = _open_repository(tree) if tree is not None else None
    if repository is None:
        return True
    has_packed = os.path.lexists(repository.common / "packed-refs")
    return has_packed or any(names for _, _, names in os.walk(repository.common / "refs"))


def _tracked_files(tree: Path) -> list[str] | None:
    """Return what the index names, in submodules too if settings make a reading git enter them."""
    pending, files = [tree], dict[str, None]()
    for top in pending:  # it grows meanwhile
        repository = _open_repository(top)
        items = repository and _read_items(repository)
        if repository is None or items is None:
            return None
        inside = {
            os.path.realpath(top / os.fsdecode(name)): mode for name, (mode, _) in items.items()
        }
        submodules = [
            path for path, mode in inside.items() if mode == GITLINK and path not in files
        ]
        files |= dict.fromkeys(inside)
        if submodules and _enters_submodules(repository):
            pending += (Path(path) for path in submodules if os.path.lexists(f"{path}/.git"))
    return [*files]


def _enters_submodules(repository: Repository) -> bool:
    """Return whether settings make git show what is in submodules, or cannot be read."""
    own = (repository.common / "config", repository.folder / "config.worktree")
    for file in (*own, *user_settings()):
        try:
            settings = {setting.name: setting.value.lower() for setting in read_settings(file)}
        except FileNotFoundError:
            continue
        except (OSError, ValueError):
            return True
        recurses = settings.get("submodule.recurse", "false") not in _FALSE
        if recurses or settings.get("diff.submodule") == "diff":
            return True
    return False


def _open_repository(tree: Path) -> Repository | None:
    """Return the repository of a working tree, unless another one could be put in its place."""
    return None if os.path.islink(tree / ".git") else Repository.at(tree)  # noqa: PTH114


def _read_items(repository: Repository) -> Mapping[bytes, Item] | None:
    """Return what the index names; None if it cannot be read."""
    if not os.path.lexists(repository.index):
        return {}
    index = repository.read_index()
    return None if index is None else index.items


def _is_plain(tree: Path) -> bool:
    """Return whether a working tree has a whole repository that runs nothing when it is read."""
    repository = _open_repository(tree)
    if repository is None:
        return False
    folder, common = repository.folder, repository.common
    if common == folder and os.path.lexists(folder / "commondir"):
        return False  # it cannot be read
    try:
        if not ((common / "objects").exists() and (common / "refs").exists()):
            return False  # git would look elsewhere
        files = [common / "config"]
        if os.path.lexists(folder / "config.worktree"):
            files.append(folder / "config.worktree")
        settings = [each for file in files for each in read_settings(file)]
    except (OSError, ValueError):
        return False
    hooks = common / "hooks"
    for setting in settings:
        if _runs_something(setting, tree, folder):
            return False
        if setting.name == "core.hookspath":
            hooks = tree / os.path.expanduser(setting.value)  # noqa: PTH111 - as git does
    try:
        names = [hook.name.casefold() for hook in Path(hooks).iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return _HOOK_OF_READERS not in names


def _runs_something(setting: GitSetting, tree: Path, folder: Path) -> bool:
    """Return whether git runs or connects to something because of a setting, or looks elsewhere."""
    name, value = setting.name, setting.value
    if _RUNS.fullmatch(name):
        return not (name.startswith("filter.") and _LFS.fullmatch(value) and _has_system_lfs(tree))
    if _RUNS_UNLESS_BOOLEAN.fullmatch(name):
        return value.lower() not in _BOOLEANS
    if _RUNS_UNLESS_FALSE.fullmatch(name):
        return value.lower() not in _FALSE
    if _FORMATS.fullmatch(name):
        return "%" in value and re.search(r"%[-+ ]?G", value) is not None
    if name == "core.worktree":
        return os.path.realpath(folder / value) != os.path.realpath(tree)
    return name.startswith("alias.") and value.startswith("!")


def _has_system_lfs(tree: Path) -> bool:
    program = which("git-lfs")
    return program is None or not os.path.realpath(program).startswith(f"{os.path.realpath(tree)}/")


def _are_all_plain_below(tree: Path) -> bool:
    """Return whether the repositories below one, whose settings git follows too, are plain.

    In a tree that is too large to look through, git only follows those that the index names.
    """
    seen = 0
    for current, folders, files in os.walk(tree):
        if current == str(tree):
            folders[:] = [name for name in folders if name != ".git"]
        names = [*folders, *files]
        seen += 1 + len(names)
        if seen > _MAX_TREE_ENTRIES:
            return _are_submodules_plain(tree)
        found = [name for name in names if name.casefold() == ".git"]
        if found and current != str(tree) and not (found == [".git"] and _is_plain(Path(current))):
            return False
        if found:
            folders[:] = [name for name in folders if name != ".git"]
    return True


def _are_submodules_plain(tree: Path) -> bool:
    repository = _open_repository(tree)
    items = repository and _read_items(repository)
    if items is None:
        return False
    below = [tree / os.fsdecode(name) for name, (mode, _) in items.items() if mode == GITLINK]
    populated = [each for each in below if os.path.lexists(each / ".git")]
    return all(_is_plain(each) and _are_all_plain_below(each) for each in populated)
