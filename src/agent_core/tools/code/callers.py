"""Files in which hooks, editors and agents name the programs that they run.

A commit, an opened editor, an entered folder and a started agent run the programs named in these
files, so writing such a program is as dangerous as writing the file that names it.
"""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from agent_core.opening import read_beginning

_ON_ENTERING = ".envrc"
_FILES = (
    _ON_ENTERING,
    *(".pre-commit-config.yaml", ".pre-commit-config.yml", "prek.toml", ".overcommit.yml"),
    *(f"{name}.{end}" for name in ("lefthook", ".lefthook") for end in ("yml", "yaml", "toml")),
    *(".vscode/tasks.json", ".vscode/settings.json", ".vscode/mcp.json", ".zed/settings.json"),
    *(".mcp.json", "mcp.json", ".cursor/mcp.json", ".cursor/hooks.json", ".gemini/settings.json"),
    *(".claude/settings.json", ".claude/settings.local.json", ".codex/config.toml"),
)
_FOLDERS = (".husky", ".githooks", ".git/hooks")
"""Folders whose files are hooks of Git."""

_OF_THE_USER = (
    *(".bashrc", ".bash_profile", ".bash_login", ".profile", ".zshrc", ".zshenv", ".zprofile"),
    *(".config/fish/config.fish", ".ssh/config", ".tmux.conf", ".vimrc", ".config/nvim/init.lua"),
)
"""Files below a home that shells, editors and the like read at every start."""

_LONGEST = 262_144
_MOST_HOOKS = 100
_VARIABLE = re.compile(r"\$(?:\w+|\{[\w:]+\})/")
_BETWEEN_WORDS = re.compile(r"[\s\"'`;|&()<>=,:{}\[\]]+")
_ADDS_TO_PATH = re.compile(r"\bPATH(?:_add)?\b|\bload_prefix\b")


def is_named_by_caller(path: Path, root: Path) -> bool:
    """Return whether a hook, an editor or an agent runs a file below a project. Blocks on files."""
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - there may be no home
    callers = ((home / name, home) for name in _OF_THE_USER)
    folders = (folder for folder in path.parents if folder.is_relative_to(root))
    inside = ((file, folder) for folder in folders for file in _callers_in(folder))
    return any(_names(file, path, folder) for file, folder in (*inside, *callers))


def _callers_in(folder: Path) -> Iterator[Path]:
    for name in _FILES:
        if os.path.lexists(file := folder / name):
            yield file
    for name in _FOLDERS:
        with suppress(OSError):
            hooks = islice((folder / name).iterdir(), _MOST_HOOKS)
            yield from (hook for hook in hooks if hook.suffix != ".sample")


def _names(file: Path, path: Path, folder: Path) -> bool:
    text = read_beginning(file, _LONGEST).decode(errors="replace")
    for line in _VARIABLE.sub("./", text).splitlines():
        has_programs = file.name == _ON_ENTERING and _ADDS_TO_PATH.search(line) is not None
        for word in _BETWEEN_WORDS.split(line):
            for place in _places(word, folder, file.parent):
                if place == path:
                    return True
                if has_programs and place in path.parents and folder in place.parents:
                    return True
    return False


def _places(word: str, *folders: Path) -> Iterator[Path]:
    """Yield the paths a word may lead to; a leading slash may follow a computed folder."""
    if not re.search(r"\w", word):
        return
    for folder in folders:
        for name in dict.fromkeys((word, word.lstrip("/"))):
            with suppress(OSError, ValueError):
                yield Path(os.path.realpath(folder / os.path.expanduser(name)))  # noqa: PTH111
