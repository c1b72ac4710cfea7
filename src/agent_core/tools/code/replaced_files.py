"""Commands of Git that replace files all over a working tree.

Git changes the branch although it could not replace every file, so the next commit would take the
work of others back. Where it cannot write all of the tree, such a command is refused.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from agent_core.tools.code.languages import split_git
from agent_core.tools.shells import words_of
from agent_core.types import CommandViews

_REPLACING = words_of("am bisect checkout cherry-pick merge pull rebase reset revert stash switch")
_SHOWING = {"stash": words_of("clear create drop list show"), "bisect": words_of("log view")}
_NEW_BRANCH = words_of("-b -B -c -C --create --force-create --orphan")
_OF_THE_TREE = words_of("--hard --keep --merge")


def find_command(command: CommandViews, cwd: Path) -> tuple[str, Path] | None:
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
        is_only_named = len(words) == 2 and words[0] in _NEW_BRANCH
        return not (is_of_paths or is_only_named)
    return True
