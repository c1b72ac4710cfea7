"""Finds the protected files inside of the folders that programs write to."""

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

from msgspec import Struct

from agent_core.git.repository import read_pointer
from agent_core.git.settings import parse_settings, read_text, user_settings
from agent_core.opening import read_beginning
from agent_core.process.confinement import nearest
from agent_core.process.repository_states import examine

REPOSITORY = (".git/hooks", ".git/config")
"""Hooks that Git runs, and the settings that name programs it runs."""

_DEPENDENCIES = frozenset(
    (
        *("node_modules", "bower_components", "jspm_packages", ".yarn", ".pnpm-store"),
        *("site-packages", "dist-packages", "__pypackages__", ".venv", "venv", ".tox", ".nox"),
        *(".bundle", ".cargo", ".gradle", ".m2", "Pods"),
    )
)
"""Folders that a package manager fills, replaces and removes."""

_FIRST_ENTRIES, _MORE_ENTRIES = 50_000, 2_000
"""Most entries searched at first, and for each further program; upper levels first."""

_MOST_MATCHES = 500
_LONGEST_SETTINGS = 65_536
_MOST_INCLUDED = 50
_MOST_FOLDERS = 5_000
_POINTER = "commondir"
"""A file in a repository that names another repository, whose settings and hooks then count."""


class ProtectedPaths(Struct, frozen=True):
    """The protected paths.

    Attributes:
        paths: all of them, links resolved.
        holes: texts about places that could not be protected.
        unwanted: files that do not exist, and must not exist afterwards: no folder can be put in
            their place meanwhile, because Git would not work.
        left: hooks in working trees, and included settings, that are checked afterwards instead.
    """

    paths: list[str]
    holes: list[str]
    unwanted: list[str]
    left: list[str]


class ProtectedFiles:
    """Finds the protected files, again for each program.

    A file that was found stays protected while it exists, so a program cannot hide it by filling
    the upper folders.

    Args:
        patterns: one without a slash is a glob for a name, wherever it is but in folders of
            dependencies, whose owner replaces what is in them; one with a slash is a path, or a
            glob for one. Those that begin with `.git/` are meant of every repository, and of the
            one that the project may become.
        project: where relative paths start.
        folders: the folders that programs write to; no others are searched.
        is_watched: a `RepositoryWatch` looks at repositories afterwards. Those below the folders
            can then be changed and removed, unless they have more than it can put back.
    """

    def __init__(
        self,
        patterns: Sequence[str],
        *,
        project: Path,
        folders: Sequence[Path],
        is_watched: bool = False,
    ) -> None:
        self._is_watched = is_watched
        self._paths = [one for one in patterns if "/" in one and not one.startswith(".git/")]
        self._in_git = [one[len(".git/") :] for one in patterns if one.startswith(".git/")]
        names = [pattern.casefold() for pattern in patterns if "/" not in pattern]
        self._is_named = re.compile("|".join(map(translate, names)) or r"(?!)").match
        self._project = project
        self._folders = [str(folder) for folder in folders]
        self._known: list[str] = []
        self._links = set[str]()
        self._unwanted = set[str]()
        self._entries_left = _FIRST_ENTRIES
        self._lock = threading.Lock()

    def find(self, *, makes_repository: bool = False) -> ProtectedPaths:
        """Search for all protected files; blocks on files.

        Args:
            makes_repository: a program may make the project's own repository, where there is none.
        """
        with self._lock:
            self._holes = set[str]()
            self._left = set[str]()
            most, self._entries_left = self._entries_left, _MORE_ENTRIES
            known = filter(os.path.lexists, self._known)
            found = chain(known, self._find_paths(), self._find_names(most, makes_repository))
            inside = (path for path in found if nearest(path, self._folders))
            self._known = list(dict.fromkeys(inside))
            self._unwanted = {path for path in self._unwanted if nearest(path, self._folders)}
            unwanted = [path for path in sorted(self._unwanted) if not os.path.lexists(path)]
            return ProtectedPaths(
                list(self._known), sorted(self._holes), unwanted, sorted(self._left)
            )

    def is_protected(self, path: Path) -> bool:
        """Return whether a path below the project is protected, or in a repository's own folder.

        Only the folders above it are looked at. Blocks on files.
        """
        with self._lock:
            self._holes = set[str]()
            self._left = set[str]()
            names = [name.casefold() for name in path.relative_to(self._project).parts]
            if ".git" in names:
                return True
            above = [folder for folder in path.parents if folder.is_relative_to(self._project)]
            inside = [place for place in (path, *above) if place != self._project]
            named = [place for place in inside if self._is_named(place.name.casefold())]
            if any(not _is_dependency(place, [str(self._project)]) for place in named):
                return True
            if any(map(_is_repository, above)):
                return True
            found = [*self._find_paths()]
            for folder in above:
                if os.path.lexists(folder / ".git"):
                    found += _as_far_as_it_goes(self._find_by_name(f"{folder}/.git"))
            return nearest(str(path), found) > 0

    def _find_paths(self) -> Iterator[str]:
        for pattern in self._paths:
            expanded = os.path.expanduser(pattern)  # noqa: PTH111 - a `~` without a user stays
            path = os.path.join(self._project, expanded)  # noqa: PTH118 - patterns are text
            if has_magic(path):
                found = iglob(path, include_hidden=True)  # noqa: PTH207 - of any folder
                yield from map(os.path.realpath, islice(found, _MOST_MATCHES))
            else:
                yield os.path.realpath(path)

    def _find_names(self, most: int, makes_repository: bool) -> Iterator[str]:
        is_made = makes_repository and not os.path.lexists(self._project / ".git")
        if self._in_git and not (self._is_watched and is_made):
            yield from _as_far_as_it_goes(self._find_by_name(f"{self._project}/.git"))
        for path in islice(chain.from_iterable(map(_entries, self._folders)), most):
            name = path.rpartition("/")[2]
            if self._is_named(name.casefold()) and not _is_dependency(Path(path), self._folders):
                yield os.path.realpath(path)
            elif name == ".git" and self._in_git:
                if self._is_left_to_the_watch(path):
                    continue
                yield from _as_far_as_it_goes(self._find_by_name(path))
            elif name == "HEAD" and self._in_git and _is_repository(Path(path).parent):
                if self._is_left_to_the_watch(str(Path(path).parent)):
                    continue
                yield from _as_far_as_it_goes(self._find_in_repository(Path(path).parent))

    def _is_left_to_the_watch(self, entry: str) -> bool:
        is_root = entry.removesuffix("/.git") in self._folders
        if not self._is_watched or is_root:
            return False
        state = examine(entry)
        if state.is_whole:
            self._left.update(state.followed)
            self._left.update(map(os.path.dirname, state.followed))
        return state.is_whole

    def _find_by_name(self, path: str) -> Iterator[str]:
        """Yield the protected files of a `.git`: a repository, or a file that names one."""
        folder = Path(path)
        self._note_link(folder)
        if folder.is_file():
            yield os.path.realpath(path)
            named = _pointer(folder).removeprefix("gitdir: ")
            if _is_repository(folder.parent / named):
                yield from self._find_in_repository(folder.parent / named, tree=folder.parent)
        else:
            yield from self._find_in_repository(folder, tree=folder.parent)

    def _find_in_repository(self, folder: Path, *, tree: Path | None = None) -> Iterator[str]:
        """Yield the protected files of a repository, its submodules and its other working trees.

        Args:
            folder: of the repository, or of one of its working trees.
            tree: its working tree, where it is known.
        """
        pointer = folder / _POINTER
        if pointer.exists():  # the folder of a working tree
            yield os.path.realpath(pointer)
            folder /= _pointer(pointer)
        repositories = [folder]
        for inner, folders, files in islice(os.walk(folder / "modules"), _MOST_FOLDERS):
            if "HEAD" in files:
                repositories.append(Path(inner))
                folders[:] = {"modules"}.intersection(folders)
        for repository in repositories:
            is_module = repository != folder and _is_repository(repository)
            if not (is_module and self._is_left_to_the_watch(str(repository))):
                for part in self._in_git:
                    self._note_link(repository / part)
                    yield os.path.realpath(repository / part)
            for place in (repository, *_folders(repository / "worktrees")):
                is_inner = is_module or place != repository
                if is_inner and self._is_left_to_the_watch(str(place)):
                    continue
                yield from self._find_pointers(place, settings=repository / "config")
        settings = [folder / "config", folder / "config.worktree"]
        settings += user_settings()
        yield from self._find_named_in(settings, tree or folder.parent)

    def _find_pointers(self, folder: Path, *, settings: Path) -> Iterator[str]:
        """Files in the folder of a repository that lead Git to other hooks and settings."""
        has_more = "worktreeconfig" in _beginning(settings).lower()
        for name in (_POINTER, "config.worktree"):
            path = os.path.realpath(folder / name)
            if os.path.lexists(path):
                yield path
            elif has_more or name == _POINTER:
                self._unwanted.add(path)

    def _find_named_in(self, settings: list[Path], tree: Path) -> Iterator[str]:
        """The folders of hooks that settings name, and the settings that they include."""
        pending, seen = deque(settings), set(settings)
        while pending:
            file = pending.popleft()
            for name, given in _named_places(file):
                value = Path(given)
                with suppress(RuntimeError):  # of a user who has no home
                    value = value.expanduser()
                if name == "core.hookspath":
                    hooks = os.path.realpath(tree / value)
                    if not any(nearest(root, [hooks]) for root in self._folders):
                        self._note_link(tree / value)
                        yield hooks
                elif value.parts and file.parent / value not in seen:
                    included = file.parent / value
                    path = os.path.realpath(included)
                    if Path(path).is_file():
                        yield path
                    elif nearest(path, self._folders):
                        self._holes.add(f"{path} can be made, and Git would take settings from it")
                    if len(seen) < _MOST_INCLUDED:
                        seen.add(included)
                        pending.append(included)

    def _note_link(self, path: Path) -> None:
        if path.is_symlink() and nearest(os.path.realpath(path.parent), self._folders):
            self._holes.add(f"{path} is a link, which can be replaced by another one")


def _is_dependency(path: Path, roots: Sequence[str]) -> bool:
    """Return whether a package manager fills a folder that a path lies in, below a root."""
    return any(
        folder.name in _DEPENDENCIES or (folder / "pyvenv.cfg").is_file()
        for folder in path.parents
        if str(folder) not in roots and nearest(str(folder), roots)
    )


def _as_far_as_it_goes(found: Iterator[str]) -> Iterator[str]:
    """Yield paths until a name in a file cannot be a path."""
    with suppress(OSError, ValueError):
        yield from found


def _is_repository(folder: Path) -> bool:
    return (folder / "HEAD").is_file() and (
        (folder / "objects").is_dir() or (folder / _POINTER).is_file()
    )


def _named_places(file: Path) -> Iterator[tuple[str, str]]:
    """Yield the settings of a file that name a folder of hooks, or another file of settings."""
    with suppress(ValueError):  # it is not known how Git reads the rest
        for name, value in parse_settings(read_text(read_beginning(file, _LONGEST_SETTINGS))):
            if name == "core.hookspath" or re.fullmatch(
                r"include(?:if\..*)?\.path", name, re.DOTALL
            ):
                yield name, value


def _folders(path: Path) -> list[Path]:
    with suppress(OSError):
        return [folder for folder in path.iterdir() if folder.is_dir()]
    return []


def _pointer(path: Path) -> str:
    return read_pointer(read_beginning(path, _LONGEST_SETTINGS))


def _beginning(path: Path) -> str:
    return read_beginning(path, _LONGEST_SETTINGS).decode(errors="replace")


def _entries(root: str) -> Iterator[str]:
    """Yield everything below a folder, upper levels first; links are not followed."""
    pending = deque([root])
    while pending:
        with suppress(OSError), os.scandir(pending.popleft()) as entries:
            for entry in entries:
                yield entry.path
                if entry.name != ".git" and entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
