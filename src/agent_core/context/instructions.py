"""Instruction files: `CLAUDE.md`, `AGENTS.md` and the user's rules. Found once, read on demand.

The catalog shows their paths and front matter, never their bodies. It is the only text that a
project contributes to a prompt before the model has read anything.
"""

import asyncio
import logging
import os
import re
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from datetime import date
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, cast

from msgspec import Struct, field

from agent_core.assets import parse_front_matter
from agent_core.context.loaded import read_current, with_text
from agent_core.context.project_walk import ProjectWalk
from agent_core.git import find_top
from agent_core.opening import (
    MAX_TEXT_BYTES,
    FileVersion,
    read_text_file,
    version_of,
)
from agent_core.text import fit_lines, one_line
from agent_core.text.content import content_hash
from agent_core.tools.base import LoadedTexts, ToolContext, View
from agent_core.tools.text import decode_text
from agent_core.tools.workspace import Reading, path_to_read
from agent_core.types import Node, NodeType, user_text

logger = logging.getLogger(__name__)

MOST_FILES = 200
_NAMES = ("CLAUDE.md", "AGENTS.md")
_FOLDED_NAMES = tuple(map(str.lower, _NAMES))
_NAME_LENGTHS = {*map(len, _NAMES)}
_MOST_ENTRIES = 200_000
_VALUE_CHARS, _FIELDS_CHARS = 200, 400
_PLAIN = (str, int, float, bool, date)

_MOST_LEVELS = 5
"""Files that name files that name files, and so on, are followed so far."""
_MOST_NAMED, _MOST_LOOKUPS = 200, 2000
_NAMED = (
    r"(?a)(?<![\w.%+/@-])"
    r"@((?:\\ |[^\s@`\"'<>()\[\]{}\u2018-\u201f\u3000-\u303f\uff01-\uff5e])+)"
)
"""A path that a text names as `@path`; marks that end a sentence may follow it."""
_AFTER_PATH = ".,;:!?*_~|"
_UNDERLINED = r"(?m)^[^\n]+\n(?:=+|-+)[ \t\r]*$"
_SAYS_NOTHING = r"(?i)[\s*+>-]*+(?:#.*|`?@?(?:\./)?(?:claude|agents)\.md`?[.:]?)?"
"""A line that is empty, a heading, or the name of the file beside it."""
_MOST_SCANNED = 65_536
"""Bytes at the beginning of a file that are searched for the files it names."""


class InstructionFile(Struct, frozen=True):
    """A file as the catalog shows it.

    Attributes:
        path: the resolved path, by which a read is recognised.
        shown: the path that the model passes to `code.read_file`: relative within the project,
            absolute for other files.
        fields: the front matter; empty if there is none that can be read.
        problem: the reason why the file or its front matter cannot be read.
        is_users: it is the home's own file, or one of its rules, and may be a link.
    """

    path: Path
    shown: str
    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])
    problem: str | None = None
    is_users: bool = False

    @property
    def line(self) -> str:
        """Return the entry in the catalog: front matter on one line, each value shortened."""
        parts: list[str] = []
        for key, value in self.fields.items():
            items = cast("list[Any]", value) if isinstance(value, list) else [value]
            plain = [str(item) for item in items if isinstance(item, _PLAIN) and item != ""]
            if plain:
                parts.append(f"{one_line(str(key))}: {one_line(', '.join(plain))[:_VALUE_CHARS]}")
        described = "; ".join(parts)[:_FIELDS_CHARS]
        return f"- {one_line(self.shown)}" + (f" ({described})" if described else "")


def _find_nothing(_: str) -> Path | None:
    return None


class InstructionCatalog(Struct, frozen=True):
    """All instruction files of a run, those nearest to a root first.

    Attributes:
        files: the files that are listed.
        truncated: there are more files.
        own: the files of the home and of the project's root: the path to show, and the content.
        paths: the resolved paths by the paths to show, also of files that are not listed.
        look_up: finds a file by the path to show, if the search has not seen all folders.
    """

    files: tuple[InstructionFile, ...] = ()
    truncated: bool = False
    own: Sequence[tuple[str, bytes]] = ()
    paths: Mapping[str, Path] = field(default_factory=dict[str, Path])
    look_up: Callable[[str], Path | None] = _find_nothing

    def text(self, budget: int, *, without: Collection[str] = ()) -> str:
        """Return one line for each file, within `budget` tokens; empty if there are no files.

        Files whose shown path is in `without` are not listed.
        """
        if not self.files and not self.truncated:
            return ""
        lines = [file.line for file in self.files if file.shown not in without]
        if self.truncated:
            lines.append(f"- (truncated: there are more than {len(self.files)} files)")
        return fit_lines(lines, budget)

    @property
    def problems(self) -> list[str]:
        """Return the files listed only by path because they cannot be read, with the reasons."""
        return [f"{file.shown}: {file.problem}" for file in self.files if file.problem]

    def current(self, node: Node) -> Node | None:
        """Return a loaded file as it is on disk: the same node if unchanged; None if gone."""
        shown = str(node.metadata.get("path"))
        path = self.paths.get(shown) or self.look_up(shown)
        if path is None:
            return None
        try:
            read = read_current(node, path)
        except OSError:
            return None
        return node if read is None else with_text(node, *read)

    def find(self, path: Path) -> InstructionFile | None:
        """Return the file at this resolved path, if it is an instruction file."""
        for file in self.files:
            if file.path == path:
                return file
        return None


def find_instructions(
    home: Path,
    project: Path,
    *,
    is_closed: Callable[[Path], bool],
    preload: bool = False,
    walk: ProjectWalk | None = None,
) -> InstructionCatalog:
    """Search home and project, and read the files found.

    Does file work: call it in a thread. A head that cannot be read is one of `problems`.

    Args:
        home: the program's home, resolved.
        project: the project, resolved.
        is_closed: whether a path is read only after a question: such a folder is not entered, and a
            file that resolves to such a path is not listed.
        preload: read the contents of the home's and the project root's own files, for `own`.
        walk: of the project, if it is searched again later.
    """
    search = _Search(home, project, is_closed, walk or walk_project(project, is_closed))
    search.look()
    cut_short = search.is_cut_short
    look_up = search.look_up if cut_short else _find_nothing
    if not search.found:
        return InstructionCatalog(truncated=cut_short, look_up=look_up)
    ordered = sorted(search.found.items(), key=lambda each: each[1])
    files = [_describe(path, place) for path, place in islice(ordered, MOST_FILES)]
    own = [(place.shown, path) for path, place in ordered if preload and place.is_own]
    return InstructionCatalog(
        tuple(files),
        cut_short or len(ordered) > MOST_FILES,
        own=[each for each in map(_read_own, own) if each is not None],
        paths={place.shown: path for path, place in ordered},
        look_up=look_up,
    )


def walk_project(project: Path, is_closed: Callable[[Path], bool]) -> ProjectWalk:
    """Return a walk that finds the instruction files of a project."""
    return ProjectWalk(project, _is_instruction, is_closed)


_FOUND, _NAMED_ONLY = 0, 1


class _Place(NamedTuple):
    """The place of a file in the catalog: what is cut is what comes last.

    Attributes:
        depth: folders below the root; negative between the project and the root of its repository.
        origin: whether it was found by its name, or only because another file names it.
        shown: the path to show.
        is_own: it is the file of the home itself or of the project's root.
        is_users: it is one that the home holds by its name.
    """

    depth: int
    origin: int
    shown: str
    is_own: bool = False
    is_users: bool = False


class _Search:
    """Finds the instruction files of home and project."""

    def __init__(
        self, home: Path, project: Path, is_closed: Callable[[Path], bool], walk: ProjectWalk
    ) -> None:
        self.found: dict[Path, _Place] = {}
        self.is_cut_short = False
        self._home = home
        self._project = project
        self._is_closed = is_closed
        self._top = find_top(project) or project
        self._walk = walk
        self._lookups = 0

    def look(self) -> None:
        """Look into the home, above the project and into it, and at the files named there."""
        level: list[tuple[Path, Path, Path]] = []
        for place, path, root in sorted(self._find()):
            if path not in self.found:
                self.found[path] = place
                level.append((path, Path(self._project, place.shown).parent, root))
        for _ in range(_MOST_LEVELS if level else 0):
            level = [each for file in level for each in self._add_named(*file)]

    def look_up(self, shown: str) -> Path | None:
        """Return the resolved path of a file in the repository that an earlier run has loaded."""
        resolved = _resolve_file(self._project / shown, self._top)
        return None if resolved is None or self._is_closed(resolved) else resolved

    def _find(self) -> Iterator[tuple[_Place, Path, Path]]:
        """Yield place, resolved path and root of each file that is found by its name."""
        home, project = self._home, self._project
        names = _list_names(home)
        if names and (own := _own_file(home, names, root=None)):
            first = -len(project.parts)
            place = _Place(first, _FOUND, f"{home / own[1]}", is_own=True, is_users=True)
            yield place, own[0], home
        for path in _find_rules(f"{home}/rules"):
            if (resolved := _resolve_file(path, None)) is not None:
                depth = len(path.relative_to(home).parts) - 1
                yield _Place(depth, _FOUND, str(path), is_users=True), resolved, home
        above = project.parents if self._top != project else ()
        for distance, folder in enumerate(above, 1):
            if not folder.is_relative_to(self._top):
                break
            own = _own_file(folder, _list_names(folder), root=self._top)
            if own and not self._is_closed(own[0]):
                yield _Place(-distance, _FOUND, f"{folder / own[1]}"), own[0], self._top
        folders, self.is_cut_short = self._walk.search()
        for below, names in folders:
            own = _own_file(project / below, names, root=self._top, is_resolved=True)
            if own and not self._is_closed(own[0]):
                shown, depth = path_to_read(f"{below}{own[1]}"), below.count("/")
                yield _Place(depth, _FOUND, shown, is_own=depth == 0), own[0], self._top

    def _add_named(self, path: Path, folder: Path, root: Path) -> Iterator[tuple[Path, Path, Path]]:
        """Add the files that a file in `folder` names as `@path`, and yield them alike."""
        for name in _facts_of(path).names:
            self._lookups += 1
            if self._lookups > _MOST_LOOKUPS:
                return
            resolved = _resolve_named(folder, name, root)
            if resolved is None or resolved in self.found or self._is_closed(resolved):
                continue
            if resolved.is_relative_to(self._project):
                shown = path_to_read(str(resolved.relative_to(self._project)))
                depth = shown.removeprefix("./").count("/")
            else:
                shown, depth = str(resolved), len(resolved.relative_to(root).parts) - 1
            self.found[resolved] = _Place(depth, _NAMED_ONLY, shown)
            yield resolved, resolved.parent, root


def _list_names(folder: Path) -> set[str]:
    """Return the names in a folder that may be instruction files."""
    try:
        return {*filter(_is_instruction, os.listdir(folder))}  # noqa: PTH208 - names, not paths
    except OSError:
        return set()


def _is_instruction(name: str) -> bool:
    return len(name) in _NAME_LENGTHS and name.lower() in _FOLDED_NAMES


def _find_rules(folder: str) -> Iterator[Path]:
    """Yield the Markdown files below a folder, which may be a link."""
    seen = 0
    for below, _, names in os.walk(folder):
        yield from (Path(below, name) for name in names if name.lower().endswith(".md"))
        seen += len(names) + 1
        if seen > _MOST_ENTRIES:
            return


def _own_file(
    folder: Path, names: Collection[str], *, root: Path | None, is_resolved: bool = False
) -> tuple[Path, str] | None:
    """Return the resolved instruction file of a folder and its name.

    `CLAUDE.md` wins over `AGENTS.md` if it says something of its own.

    Args:
        folder: the folder.
        names: the names of instruction files in it.
        root: the file must be inside.
        is_resolved: the folder is inside, and resolved: only the files may be links.
    """
    own: list[tuple[Path, str]] = []
    for kind in _NAMES:
        spelled = sorted(names, key=lambda name: (name != kind, name))
        files = (
            (resolved, name)
            for name in spelled
            if name.lower() == kind.lower()
            and (resolved := _resolve_entry(folder / name, root, is_resolved)) is not None
        )
        own += islice(files, 1)
    if len(own) > 1 and not _facts_of(own[0][0]).has_own_words:
        return own[1] if _facts_of(own[1][0]).has_own_words else own[0]
    return own[0] if own else None


def _resolve_file(path: Path, root: Path | None) -> Path | None:
    """Return the regular file behind `path`; None without one, or if it is outside of `root`."""
    try:
        resolved = path.resolve(strict=True)
        is_file = stat.S_ISREG(resolved.stat().st_mode)
    except (OSError, RuntimeError, ValueError):
        return None
    return resolved if is_file and (root is None or resolved.is_relative_to(root)) else None


def _resolve_entry(path: Path, root: Path | None, is_resolved: bool) -> Path | None:
    if is_resolved:
        with suppress(OSError):
            if stat.S_ISREG(path.lstat().st_mode):
                return path
    return _resolve_file(path, root)


def _resolve_named(folder: Path, name: str, root: Path) -> Path | None:
    """Return the file inside `root` that a text in `folder` names; other words may follow it."""
    whole = name.replace("\\ ", " ")
    bare = whole.rstrip(_AFTER_PATH)
    until = re.match(r".+\.md", bare, re.IGNORECASE)
    for each in dict.fromkeys((whole, bare, until[0] if until else bare)):
        if each and (resolved := _resolve_file(folder / each, root)) is not None:
            return resolved
    return None


class _Facts(Struct, frozen=True):
    """The facts about a file's text.

    Attributes:
        fields: the front matter.
        problem: the reason why the file or its front matter cannot be read.
        names: the paths that it names as `@path`.
        has_own_words: whether it says more than headings and the name of the file beside it.
    """

    fields: Mapping[str, Any] = {}
    problem: str | None = None
    names: tuple[str, ...] = ()
    has_own_words: bool = False


def _facts_of(path: Path) -> _Facts:
    try:
        version = version_of(path)
        return _read_facts(path) if version is None else _known_facts(path, version)
    except OSError as error:
        return _Facts(problem=error.strerror or str(error))


@lru_cache(maxsize=1024)
def _known_facts(path: Path, _version: FileVersion) -> _Facts:
    """Read a file, once for each version of it."""
    return _read_facts(path)


def _read_facts(path: Path) -> _Facts:
    content = read_text_file(path, _MOST_SCANNED)
    text = decode_text(content, complete=len(content) < _MOST_SCANNED)
    described = parse_front_matter(text)
    found = re.finditer(_NAMED, described.body) if "@" in described.body else ()
    names = dict.fromkeys(match[1] for match in found)
    lines = re.sub(_UNDERLINED, "", _without_comments(described.body)).splitlines()
    return _Facts(
        described.fields,
        described.problem,
        tuple(islice(names, _MOST_NAMED)),
        not all(re.fullmatch(_SAYS_NOTHING, line.strip()) for line in lines),
    )


def _without_comments(text: str) -> str:
    parts: list[str] = []
    at = 0
    while (start := text.find("<!--", at)) >= 0 and (end := text.find("-->", start)) >= 0:
        parts.append(text[at:start])
        at = end + len("-->")
    return "".join((*parts, text[at:]))


def _describe(path: Path, place: _Place) -> InstructionFile:
    facts = _facts_of(path)
    return InstructionFile(path, place.shown, facts.fields, facts.problem, place.is_users)


def _read_own(own: tuple[str, Path]) -> tuple[str, bytes] | None:
    """Return the content of a file that is in the prompt from the start; None if it is too long."""
    shown, path = own
    try:
        content = read_text_file(path, MAX_TEXT_BYTES + 1)
    except OSError:
        return None
    return (shown, content) if len(content) <= MAX_TEXT_BYTES else None


class LoadedInstructions:
    """Recognises instruction files when a run reads them, for `code.read_file`.

    The read itself is an ordinary one. In addition, the whole body is added as an
    `instruction_context` node, unless this version of the file is already in view.
    """

    def __init__(self, catalog: InstructionCatalog, view: View) -> None:
        self._catalog = catalog
        self._loaded = LoadedTexts(view, NodeType.INSTRUCTION_CONTEXT, "path")

    def offers(self, path: Path, /) -> bool:
        """Return whether it is one of the home's files; links of the home may lead anywhere."""
        file = self._catalog.find(path)
        return file is not None and file.is_users

    def in_order(self, path: Path, /) -> AbstractAsyncContextManager[None]:
        """Let reads of instruction files pass one at a time; other reads are not delayed."""
        return nullcontext() if self._catalog.find(path) is None else self._loaded.in_order

    async def note(self, path: Path, context: ToolContext, /) -> Reading:
        """Return the nodes that reading the file at this resolved path adds to the conversation."""
        file = self._catalog.find(path)
        if file is None:
            return Reading()
        try:
            content = await asyncio.to_thread(read_text_file, path, MAX_TEXT_BYTES)
        except OSError as error:
            logger.warning("%s was read but cannot be kept in view: %s", file.shown, error)
            return Reading()
        version = content_hash(content)
        if not self._loaded.add(file.shown, version):
            return Reading(already_loaded=True)
        node = user_text(
            decode_text(content),
            NodeType.INSTRUCTION_CONTEXT,
            path=file.shown,
            hash=version,
            tool_call_id=context.tool_call_id,
        )
        return Reading(adds=[node])
