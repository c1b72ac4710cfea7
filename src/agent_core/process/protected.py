"""What stays as it is inside of the folders that programs write to: found by looking for it."""

import os
import re
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from fnmatch import translate
from glob import has_magic, iglob
from itertools import chain, islice
from pathlib import Path

from agent_core.process.confinement import nearest

REPOSITORY = (".git/hooks", ".git/config")
"""What Git runs, and what says what it runs."""

_FIRST_ENTRIES, _MORE_ENTRIES = 50_000, 2_000
"""How far folders are searched at first, and for each further program; upper levels first."""

_MOST_MATCHES = 500
_LONGEST_SETTINGS = 65_536
_HOOKS_PATH = re.compile(r"^[ \t]*hookspath[ \t]*=[ \t]*\"?([^\"\n]+?)\"?[ \t]*$", re.I | re.M)


class ProtectedFiles:
    """Finds what is protected, again for each program.

    What was found stays protected as long as it is there: a program that fills the upper folders
    hides nothing by it.

    Args:
        patterns: as in `tools.sensitive_paths`: one without a slash is a glob for a name, wherever
            it is; one with a slash is a path, or a glob for one. Those that begin with `.git/` are
            meant of every repository, and of the one that the project may become.
        project: where relative paths start.
        folders: those that are written to; nothing else is looked at.
    """

    def __init__(self, patterns: Sequence[str], *, project: Path, folders: Sequence[Path]) -> None:
        self._paths = [one for one in patterns if "/" in one and not one.startswith(".git/")]
        self._in_git = [one[len(".git/") :] for one in patterns if one.startswith(".git/")]
        names = [pattern.casefold() for pattern in patterns if "/" not in pattern]
        self._is_named = re.compile("|".join(map(translate, names)) or r"(?!)").match
        self._project = project
        self._folders = [str(folder) for folder in folders]
        self._known: list[str] = []
        self._links = set[str]()
        self._entries_left = _FIRST_ENTRIES
        self._lock = threading.Lock()

    def find(self) -> tuple[list[str], list[str]]:
        """The paths of all of it, links resolved, and links to it that can be replaced.

        It blocks on files.
        """
        with self._lock:
            self._links = set[str]()
            most, self._entries_left = self._entries_left, _MORE_ENTRIES
            known = filter(os.path.lexists, self._known)
            found = chain(known, self._find_paths(), self._find_names(most))
            inside = (path for path in found if nearest(path, self._folders))
            self._known = list(dict.fromkeys(inside))
            return list(self._known), sorted(self._links)

    def _find_paths(self) -> Iterator[str]:
        for pattern in self._paths:
            expanded = os.path.expanduser(pattern)  # noqa: PTH111 - a `~` without a user stays
            path = os.path.join(self._project, expanded)  # noqa: PTH118 - patterns are text
            if has_magic(path):
                found = iglob(path, include_hidden=True)  # noqa: PTH207 - of any folder
                yield from map(os.path.realpath, islice(found, _MOST_MATCHES))
            else:
                yield os.path.realpath(path)

    def _find_names(self, most: int) -> Iterator[str]:
        if self._in_git:
            yield from self._find_in_repository(f"{self._project}/.git")
        for path in islice(chain.from_iterable(map(_entries, self._folders)), most):
            name = path.rpartition("/")[2]
            if self._is_named(name.casefold()):
                yield os.path.realpath(path)
            elif name == ".git" and self._in_git:
                yield from self._find_in_repository(path)

    def _find_in_repository(self, path: str) -> Iterator[str]:
        """What is protected of a repository and of its submodules."""
        folder = Path(path)
        self._note_link(folder)
        if folder.is_file():
            yield os.path.realpath(path)  # it names the folder of the repository
            return
        repositories = [folder]
        for inner, _, files in os.walk(folder / "modules"):
            if "HEAD" in files:
                repositories.append(Path(inner))
        for repository in repositories:
            for part in self._in_git:
                self._note_link(repository / part)
                yield os.path.realpath(repository / part)
            settings = repository / "config.worktree"
            if settings.exists():
                yield os.path.realpath(settings)
        with suppress(OSError), (folder / "config").open("rb") as file:
            text = file.read(_LONGEST_SETTINGS).decode(errors="replace")
            for value in _HOOKS_PATH.findall(text):
                hooks = os.path.realpath(folder.parent / Path(value).expanduser())
                if not any(nearest(root, [hooks]) for root in self._folders):
                    yield hooks

    def _note_link(self, path: Path) -> None:
        if path.is_symlink() and nearest(os.path.realpath(path.parent), self._folders):
            self._links.add(str(path))


def _entries(root: str) -> Iterator[str]:
    """What is below a folder, the upper levels first; links are not followed."""
    pending = deque([root])
    while pending:
        with suppress(OSError), os.scandir(pending.popleft()) as entries:
            for entry in entries:
                yield entry.path
                if entry.name != ".git" and entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
