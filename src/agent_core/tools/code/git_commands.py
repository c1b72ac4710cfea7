"""Commands of Git that Git does by halves where it cannot write everything they change.

One that writes the settings of its repository makes or renames a branch without noting its
upstream. One that replaces files all over a working tree changes the branch although some files
stay, so the next commit would take the work of others back. Such a command is refused before it
starts.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from agent_core.git.repository import Repository
from agent_core.opening import read_beginning
from agent_core.tools.code.languages import split_git
from agent_core.tools.code.repositories import find_top
from agent_core.tools.shells import words_of
from agent_core.types import CommandViews

_SUBCOMMANDS = {
    "lfs": words_of("install uninstall update"),
    "remote": words_of("add remove rename rm set-branches set-url"),
    "sparse-checkout": words_of("add disable init set"),
    "submodule": words_of("absorbgitdirs add deinit init set-branch set-url sync"),
}
_OPTIONS = {
    "branch": words_of(
        "-C -D -M -c -d -m -t -u --copy --delete --edit-description --move --set-upstream-to "
        "--track --unset-upstream"
    ),
    "checkout": words_of("-t --track"),
    "fetch": words_of("--set-upstream"),
    "pull": words_of("--set-upstream"),
    "push": words_of("-u --set-upstream"),
    "submodule": words_of("--init"),
    "switch": words_of("-t --track"),
    "worktree": words_of("--track"),
}
_CONFIG_READS = re.compile(
    r"--get.*|-l|--list|--show-.*|--name-only|list|get|--global|--system|-f|--file.*|--blob.*"
    r"|--help|-h"
)
_MOST_PACKED = 16 << 20
_NEW_BRANCH = words_of("-b -B -c -C --create --force-create")

_REPLACING = words_of("am bisect checkout cherry-pick merge pull rebase reset revert stash switch")
_SHOWING = {"stash": words_of("clear create drop list show"), "bisect": words_of("log view")}
_OF_THE_TREE = words_of("--hard --keep --merge")


def find_settings_change(command: CommandViews, cwd: Path) -> str | None:
    """Return the first words of a command that certainly writes its repository's settings.

    Args:
        command: the programs that are run.
        cwd: where they run.
    """
    for view in command.views:
        if len(view.argv) > 1 and Path(view.argv[0]).name == "git":
            subcommand, words = split_git(_without_settings(view.argv[1:]))
            if _writes(subcommand, words, cwd):
                first = [word for word in words[:1] if re.fullmatch(r"[\w-]+", word)]
                return " ".join(["git", subcommand, *first])
    return None


def _without_settings(words: Sequence[str]) -> Sequence[str]:
    """Return the words of git without settings that are for this command only."""
    while len(words) > 1 and words[0] == "-c":
        words = words[2:]
    return words


def settings_of(cwd: Path) -> str | None:
    """Return the settings of the repository that a folder is in, links resolved."""
    top = find_top(cwd)
    repository = Repository.at(top) if top is not None else None
    return None if repository is None else os.path.realpath(repository.common / "config")


def _writes(subcommand: str, words: Sequence[str], cwd: Path) -> bool:
    options = {word.partition("=")[0] for word in words if word.startswith("-")}
    operands = [word for word in words if not word.startswith("-")]
    if operands[:1] and operands[0] in _SUBCOMMANDS.get(subcommand, ()):
        return True
    if options & _OPTIONS.get(subcommand, frozenset()):
        return True
    if subcommand == "init":
        return True
    if subcommand == "config":
        writes = bool(operands[1:]) or any("unset" in word or "section" in word for word in words)
        return writes and not any(map(_CONFIG_READS.fullmatch, words))
    if subcommand in {"branch", "checkout", "switch", "worktree"} and "--no-track" not in options:
        is_new = subcommand in {"branch", "worktree"} or bool(options & _NEW_BRANCH)
        is_guessed = not is_new and "--no-guess" not in options and "--" not in words
        if is_guessed:
            return len(operands) == 1 and _is_of_remote(operands[0], cwd, is_whole=False)
        return any(_is_of_remote(word, cwd, is_whole=True) for word in operands[1:])
    return False


def _is_of_remote(name: str, cwd: Path, *, is_whole: bool) -> bool:
    """Return whether a name is one of a branch of a remote, and of no other branch.

    Args:
        name: of a branch.
        cwd: where Git runs.
        is_whole: the remote is a part of the name.
    """
    top = find_top(cwd)
    repository = Repository.at(top) if top is not None else None
    if repository is None or not re.fullmatch(r"[\w./-]+", name) or ".." in name:
        return False
    names = _names_of(repository.common)
    if is_whole:
        return f"refs/remotes/{name}" in names and f"refs/heads/{name}" not in names
    is_remote = any(re.fullmatch(rf"refs/remotes/[^/]+/{re.escape(name)}", ref) for ref in names)
    return is_remote and f"refs/heads/{name}" not in names


def _names_of(common: Path) -> set[str]:
    """Return the names of branches, of a repository with ordinary references."""
    found: set[str] = set()
    for folder, _, files in os.walk(common / "refs"):
        found |= {f"{os.path.relpath(folder, common)}/{name}" for name in files}
    packed = read_beginning(common / "packed-refs", _MOST_PACKED)
    lines = packed.decode("utf-8", "replace").splitlines()
    return found | {line.partition(" ")[2] for line in lines if line[:1] not in {"#", "^"}}


def find_tree_change(command: CommandViews, cwd: Path) -> tuple[str, Path] | None:
    """Return the first words of a command that may replace any file of a tree, and its folder."""
    for view in command.views:
        if len(view.argv) > 1 and Path(view.argv[0]).name == "git":
            folder, words = cwd, view.argv[1:]
            while len(words) > 1 and words[0] in {"-c", "-C"}:
                folder = folder / words[1] if words[0] == "-C" else folder
                words = words[2:]
            subcommand, words = split_git(words)
            if _replaces(subcommand, words):
                return f"git {subcommand}", Path(os.path.normpath(folder))
    return None


def _replaces(subcommand: str, words: Sequence[str]) -> bool:
    if subcommand not in _REPLACING or (words[:1] and words[0] in _SHOWING.get(subcommand, ())):
        return False
    if subcommand == "reset":
        return not _OF_THE_TREE.isdisjoint(words)
    if subcommand in {"checkout", "switch"}:
        is_of_paths = "--" in words
        is_only_named = len(words) == 2 and words[0] in {*_NEW_BRANCH, "--orphan"}
        return not (is_of_paths or is_only_named)
    return True
