"""The files and folders that a program would open, followed to where they lead."""

import os
import re
from collections.abc import Iterable, Iterator
from fnmatch import translate
from itertools import islice
from pathlib import Path

from msgspec import Struct, field

from agent_core.disk.reading import read_text_file
from agent_core.tools.code.openings import Opening
from agent_core.tools.code.repositories import find_tracked

_MAX_ENTRIES = 50_000
_MAX_IGNORE_FILE = 262_144
_IGNORE_FILES = (".gitignore", ".ignore", ".rgignore")
_PLAIN_NAME = re.compile(r"([\w.@+-]+)/?")
_UNCLEAR = re.compile(r"[\[{\\]")
_NEVER = re.compile(r"(?!)")


class Met(Struct):
    """The files and folders that a program meets below the places that it is given.

    Attributes:
        opened: resolved paths of all that it opens or enters.
        tracked: resolved paths that git shows the committed content of.
        is_complete: there is no more; otherwise the folders are too large to look through.
    """

    opened: dict[str, None] = field(default_factory=dict[str, None])
    tracked: dict[str, None] = field(default_factory=dict[str, None])
    is_complete: bool = True


def meet(opening: Opening, base: Path, met: Met) -> None:
    """Add what a program meets when it runs in a folder. Blocks on files."""
    if opening.depth != "itself":
        for word in opening.paths:
            entries = _Walk(opening).below(os.path.realpath(base / word))
            room = max(_MAX_ENTRIES - len(met.opened), 0)
            found = list(islice(entries, room + 1))
            met.is_complete &= len(found) <= room
            met.opened |= dict.fromkeys(found[:room])
    if opening.tracked is not None:
        files = find_tracked(base, opening.tracked)
        met.is_complete &= files is not None
        for file in files or ():
            met.tracked[file] = None
            folder = os.path.dirname(file)  # noqa: PTH120 - for many files
            while folder not in met.tracked and folder != os.sep:
                met.tracked[folder] = None
                folder = os.path.dirname(folder)  # noqa: PTH120


class _Walk:
    """Goes through folders as the program would."""

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._included = _any_of(opening.included)
        self._excluded = _exactly(opening.excluded)
        self._excluded_folders = _exactly(opening.excluded_folders)
        self._shown = [_any_of(part for glob in opening.shown for part in _name_parts(glob))]
        self._ignored: set[str] = set()
        self._ignored_folders: set[str] = set()
        self._has_hidden = opening.has_hidden
        self._seen: set[str] = set()

    def below(self, root: str) -> Iterator[str]:
        """Yield the resolved paths of what is opened below a folder, without the folder."""
        if self._opening.ignores:
            self._read_ignore_files_above(Path(root))
        folders = [root]
        while folders:
            folder = folders.pop()
            if folder in self._seen:
                continue
            self._seen.add(folder)
            if self._opening.ignores:
                self._read_ignore_files(folder)
            try:
                entries = list(os.scandir(folder))
            except OSError:  # no folder, or one that the program cannot read either
                continue
            for entry in entries:
                yield from self._entry(entry, folders)

    def _entry(self, entry: os.DirEntry[str], folders: list[str]) -> Iterator[str]:
        opening = self._opening
        if (is_link := entry.is_symlink()) and not opening.follows:
            return
        try:
            is_folder = entry.is_dir()
        except OSError:
            return
        if self._leaves_out(entry.name, is_folder=is_folder and not is_link):
            return
        path = os.path.realpath(entry.path) if is_link else entry.path
        if is_folder:
            if opening.depth == "tree":
                yield from dict.fromkeys((entry.path, path))
                folders.append(path)
        elif not opening.names_only and (
            not opening.included or self._included.match(entry.name.casefold())
        ):
            yield from dict.fromkeys((entry.path, path))

    def _leaves_out(self, name: str, *, is_folder: bool) -> bool:
        excluded = self._excluded_folders if is_folder else self._excluded
        if excluded.match(name):
            return True
        is_ignored = name in self._ignored or (is_folder and name in self._ignored_folders)
        if not is_ignored and (self._has_hidden or not name.startswith(".")):
            return False
        folded = name.casefold()
        return not any(shown.match(folded) for shown in self._shown)

    def _read_ignore_files_above(self, root: Path) -> None:
        """Note the names that are left out everywhere below a folder, and what may be shown."""
        top = next((each for each in (root, *root.parents) if (each / ".git").exists()), None)
        above = [root, *root.parents]
        for folder in above[: above.index(top) + 1] if top else above[:1]:
            for line in self._read_ignore_files(str(folder), is_in_repository=top is not None):
                if found := _PLAIN_NAME.fullmatch(line):
                    ignored = self._ignored_folders if line.endswith("/") else self._ignored
                    ignored.add(found[1])

    def _read_ignore_files(self, folder: str, *, is_in_repository: bool = False) -> list[str]:
        """Note what may be shown although it is hidden, and return the lines that leave out."""
        kept: list[str] = []
        for name in _IGNORE_FILES:
            file = Path(folder, name)
            if not os.path.lexists(file):
                continue
            try:
                content = read_text_file(file, _MAX_IGNORE_FILE + 1)
            except OSError:
                content = b""
                self._has_hidden = True
            if len(content) > _MAX_IGNORE_FILE:
                self._has_hidden = True
            text = content[:_MAX_IGNORE_FILE].decode("utf-8", "replace")
            lines = [line.strip() for line in text.splitlines()]
            shown = [part for line in lines if line[:1] == "!" for part in _name_parts(line[1:])]
            self._shown += [_any_of(shown)] if shown else []
            if is_in_repository or name != ".gitignore":
                kept += lines
        return kept


def _name_parts(glob: str) -> Iterator[str]:
    """Yield the globs for single names in one for a path; any name for those of any depth."""
    parts = [part for part in glob.split("/") if part not in {"", "**"}]
    yield from parts if parts and not _UNCLEAR.search(glob) else ["*"]


def _any_of(globs: Iterable[str]) -> re.Pattern[str]:
    texts = [translate(glob.casefold()) for glob in globs]
    return re.compile("|".join(texts)) if texts else _NEVER


def _exactly(globs: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(translate, globs)) or _NEVER.pattern)
