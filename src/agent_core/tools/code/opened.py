"""The files and folders that a program would open, followed to where they lead."""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from fnmatch import translate
from itertools import islice
from pathlib import Path

from msgspec import Struct, field

from agent_core.git.repository import Repository
from agent_core.git.settings import read_settings, user_settings
from agent_core.opening import read_text_file
from agent_core.tools.code.openings import Opening
from agent_core.tools.code.repositories import (
    find_listed,
    find_top,
    find_tracked,
    may_show_more,
)

_MAX_ENTRIES = 50_000
_MAX_IGNORE_FILE = 262_144
_IGNORE_FILES = (".gitignore", ".ignore", ".rgignore")
_PLAIN_NAME = re.compile(r"([\w.@+-]+)/?")
_UNCLEAR = re.compile(r"[\[{\\]")
_NEVER = re.compile(r"(?!)")


class Met(Struct):
    """The files and folders that a program reaches below the places it is given.

    Attributes:
        opened: resolved paths of all that it opens or enters.
        tracked: resolved paths whose committed content git shows.
        shows_history: git may show files of earlier commits, which its index does not name.
        is_complete: the list is complete; otherwise the folders are too large to look through.
        splits_names: one of the names that become words of a program becomes several, or an
            option.
    """

    opened: dict[str, None] = field(default_factory=dict[str, None])
    tracked: dict[str, None] = field(default_factory=dict[str, None])
    shows_history: bool = False
    is_complete: bool = True
    splits_names: bool = False


def meet(opening: Opening, base: Path, met: Met) -> None:
    """Add what a program reaches when it runs in a folder. Blocks on files."""
    if opening.depth != "itself":
        for word in opening.paths:
            root = os.path.realpath(base / word)
            entries = _Walk(opening).below(root)
            room = max(_MAX_ENTRIES - len(met.opened), 0)
            found = list(islice(entries, room + 1))
            met.is_complete &= len(found) <= room
            met.opened |= dict.fromkeys(found[:room])
            if opening.gives_names == "words":
                names = (path[len(root) :].lstrip("/") for path in found if path.startswith(root))
                met.splits_names |= not all(map(is_one_word, names))
    if opening.tracked is not None:
        files = find_tracked(base, opening.tracked)
        met.is_complete &= files is not None
        met.shows_history |= may_show_more(base, opening.tracked, is_history=opening.shows_history)
        if opening.gives_names:
            _meet_listed(base, opening.tracked, met)
        for file in files or ():
            met.tracked[file] = None
            folder = os.path.dirname(file)  # noqa: PTH120 - for many files
            while folder not in met.tracked and folder != os.sep:
                met.tracked[folder] = None
                folder = os.path.dirname(folder)  # noqa: PTH120


def _meet_listed(base: Path, words: Sequence[str], met: Met) -> None:
    """Add the files whose names git prints, and where links among them lead."""
    paths = find_listed(base, words)
    met.is_complete &= paths is not None
    top = f"{os.path.realpath(find_top(base) or base)}/"
    for path in paths or ():
        met.splits_names |= not all(map(is_one_word, path.removeprefix(top).split("/")))
        met.opened |= dict.fromkeys((path, os.path.realpath(path)))


_ONE_WORD = re.compile(r"(?!-)[\w./@%+,:=~-]*")


def is_one_word(name: str) -> bool:
    """Return whether programs and shells take a name for one word that is no option."""
    return _ONE_WORD.fullmatch(name) is not None


class _Walk:
    """Goes through folders as the program would."""

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._included = _any_of(opening.included)
        self._excluded = _exactly(opening.excluded)
        self._excluded_folders = _exactly(opening.excluded_folders)
        self._shown = [_any_of(part for glob in opening.shown for part in _name_parts(glob))]
        self._ignored = _IgnoredNames()
        self._ignored_by_git = _IgnoredNames()
        self._has_hidden = opening.has_hidden
        self._seen: set[tuple[str, bool]] = set()

    def below(self, root: str) -> Iterator[str]:
        """Yield the resolved paths of what is opened below a folder, without the folder."""
        if self._opening.ignores:
            self._read_ignore_files_above(Path(root))
        folders = [(root, False)]
        while folders:
            folder, is_nested = folders.pop()
            if (folder, is_nested) in self._seen:
                continue
            self._seen.add((folder, is_nested))
            try:
                entries = list(os.scandir(folder))
            except OSError:  # no folder, or one that the program cannot read either
                continue
            if self._opening.ignores and folder != root:
                names = {entry.name for entry in entries}
                for name in names.intersection(_IGNORE_FILES):
                    self._note_shown(Path(folder, name))
                if ".git" in names:  # ignore files of Git above this repository do not count in it
                    is_nested = True
                    self._note_excludes(Path(folder))
            for entry in entries:
                yield from self._entry(entry, folders, is_nested=is_nested)

    def _entry(
        self, entry: os.DirEntry[str], folders: list[tuple[str, bool]], *, is_nested: bool
    ) -> Iterator[str]:
        opening = self._opening
        if (is_link := entry.is_symlink()) and not opening.follows:
            if opening.gives_names and opening.gives_links and self._includes(entry.name):
                yield from dict.fromkeys((entry.path, os.path.realpath(entry.path)))
            return
        try:
            is_folder = entry.is_dir()
        except OSError:
            return
        is_own_folder = is_folder and not is_link
        if self._leaves_out(entry.name, is_folder=is_own_folder, is_nested=is_nested):
            return
        path = os.path.realpath(entry.path) if is_link else entry.path
        if is_folder:
            if opening.depth == "tree":
                yield from dict.fromkeys((entry.path, path))
                folders.append((path, is_nested))
        elif not opening.names_only and self._includes(entry.name):
            yield from dict.fromkeys((entry.path, path))

    def _includes(self, name: str) -> bool:
        return not self._opening.included or bool(self._included.match(name.casefold()))

    def _leaves_out(self, name: str, *, is_folder: bool, is_nested: bool) -> bool:
        excluded = self._excluded_folders if is_folder else self._excluded
        if excluded.match(name):
            return True
        is_ignored = self._ignored.holds(name, is_folder=is_folder)
        if not is_nested:
            is_ignored |= self._ignored_by_git.holds(name, is_folder=is_folder)
        if not is_ignored and (self._has_hidden or not name.startswith(".")):
            return False
        folded = name.casefold()
        return not any(shown.match(folded) for shown in self._shown)

    def _read_ignore_files_above(self, root: Path) -> None:
        """Note the names that are left out everywhere below a folder, and what may be shown.

        Files of Git count up to the top of its working tree, others in all folders above.
        """
        above = [root, *root.parents]
        top = next((each for each in above if os.path.lexists(each / ".git")), None)
        for folder in above:
            for name in _IGNORE_FILES:
                if not os.path.lexists(folder / name):
                    continue
                lines = self._note_shown(folder / name)
                if name != ".gitignore":
                    self._ignored.add(lines)
                elif top is not None and (folder == top or top in folder.parents):
                    self._ignored_by_git.add(lines)
        if top is not None:
            self._note_excludes(top)
        for file in _excludes_of_user():
            self._note_shown(file)

    def _note_excludes(self, tree: Path) -> None:
        """Note the names that the exclude list of the repository itself shows again."""
        repository = Repository.at(tree)
        folder = tree / ".git" if repository is None else repository.common
        self._note_shown(folder / "info" / "exclude")

    def _note_shown(self, file: Path) -> list[str]:
        """Note the hidden names that an ignore file shows again, and return its lines."""
        try:
            content = read_text_file(file, _MAX_IGNORE_FILE + 1)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError:
            content = b""
            self._has_hidden = True
        if len(content) > _MAX_IGNORE_FILE:
            self._has_hidden = True
        text = content[:_MAX_IGNORE_FILE].decode("utf-8-sig", "replace")
        lines = [line.strip() for line in text.splitlines()]
        shown = [part for line in lines if line[:1] == "!" for part in _name_parts(line[1:])]
        self._shown += [_any_of(shown)] if shown else []
        return lines


class _IgnoredNames:
    """Names that lines of ignore files leave out, wherever they are."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._folders: set[str] = set()

    def add(self, lines: Iterable[str]) -> None:
        for line in lines:
            if found := _PLAIN_NAME.fullmatch(line):
                (self._folders if line.endswith("/") else self._names).add(found[1])

    def holds(self, name: str, *, is_folder: bool) -> bool:
        return name in self._names or (is_folder and name in self._folders)


def _excludes_of_user() -> Iterator[Path]:
    """Yield the ignore files that the user's own settings of Git name, and the usual one."""
    for file in user_settings():
        if file.name == "config":
            yield file.with_name("ignore")
        with suppress(OSError, ValueError):
            for setting in read_settings(file):
                if setting.name == "core.excludesfile":
                    yield Path(os.path.expanduser(setting.value))  # noqa: PTH111 - as git does


def _name_parts(glob: str) -> Iterator[str]:
    """Yield the parts of a path glob that match a single name; `**` becomes any name."""
    parts = [part for part in glob.split("/") if part not in {"", "**"}]
    yield from parts if parts and not _UNCLEAR.search(glob) else ["*"]


def _any_of(globs: Iterable[str]) -> re.Pattern[str]:
    texts = [translate(glob.casefold()) for glob in globs]
    return re.compile("|".join(texts)) if texts else _NEVER


def _exactly(globs: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(translate, globs)) or _NEVER.pattern)
