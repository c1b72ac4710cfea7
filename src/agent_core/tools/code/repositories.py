"""Whether a Git repository can make `git` run another program when it only reads.

Git runs what a repository's own settings name: a file monitor, filters, converters, hooks, a
signature checker, and the same in every repository nested in it. Settings come with a project, so
only a repository whose settings are all of a known kind, without hooks and without others inside,
counts as plain. The user's own settings of Git are trusted.
"""

import os
import re
import stat
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

_MAX_CONFIG_BYTES = 64_000
_MAX_ENTRIES = 50_000
_SECTION = re.compile(r'\[(core|user|init|(?:remote|branch) "[^"\\\n]+")\]', re.IGNORECASE)
_KEYS = {
    "core": "bare filemode ignorecase logallrefupdates precomposeunicode repositoryformatversion "
    "symlinks autocrlf eol",
    "user": "name email",
    "init": "defaultbranch",
    "remote": "url fetch pushurl tagopt",
    "branch": "remote merge rebase",
}
_SETTING = re.compile(r"([a-z]+)[ \t]*=[ \t]*([^\\\"\n]*)", re.IGNORECASE)
_OF_A_REPOSITORY = ("HEAD", "objects", "refs")


def plain_repository(cwd: Path) -> Path | None:
    """The working tree around `cwd` if nothing in its repository can make Git run a program."""
    for folder in (cwd, *cwd.parents):
        if all((folder / name).exists() for name in _OF_A_REPOSITORY):
            return None  # a repository without a working tree
        if os.path.lexists(folder / ".git"):
            is_plain = _is_plain(folder / ".git") and not _has_others_inside(folder)
            return folder if is_plain else None
    return None


def _is_plain(repository: Path) -> bool:
    """Is it a whole repository in a folder of its own, with known settings only?"""
    try:
        if not stat.S_ISDIR(repository.lstat().st_mode):
            return False
        if not all((repository / name).exists() for name in _OF_A_REPOSITORY):
            return False  # Git would go on looking elsewhere
        if any(os.path.lexists(repository / name) for name in ("commondir", "config.worktree")):
            return False
        return _has_known_settings(repository / "config") and not _has_hooks(repository / "hooks")
    except OSError:
        return False


def _has_known_settings(config: Path) -> bool:
    if not stat.S_ISREG(config.lstat().st_mode) or config.stat().st_size > _MAX_CONFIG_BYTES:
        return False
    keys: list[str] = []
    for line in config.read_bytes().decode("utf-8", "replace").split("\n"):
        text = line.strip(" \t\r")
        if not text or text[0] in "#;":
            continue
        if section := _SECTION.fullmatch(text):
            keys = _KEYS[section[1].split()[0].lower()].split()
        elif not (setting := _SETTING.fullmatch(text)) or setting[1].lower() not in keys:
            return False
    return True


def _has_hooks(folder: Path) -> bool:
    """Are there hooks beside the samples that Git puts there?"""
    if not os.path.lexists(folder):
        return False
    return any(not hook.name.endswith(".sample") for hook in folder.iterdir())


def _has_others_inside(folder: Path) -> bool:
    """Is there a repository below this one, whose settings Git would follow too?

    Folders too large to look through are not known to have none.
    """
    seen = 0
    for names in islice(_names_below(folder), _MAX_ENTRIES):
        seen += 1 + len(names)
        if ".git" in map(str.casefold, names) or seen > _MAX_ENTRIES:
            return True
    return False


def _names_below(folder: Path) -> Iterator[list[str]]:
    """The names in each folder below, not in the repository itself."""
    for current, folders, files in os.walk(folder):
        is_top = Path(current) == folder
        if is_top:
            folders[:] = [name for name in folders if name != ".git"]
        yield [*folders, *files]
