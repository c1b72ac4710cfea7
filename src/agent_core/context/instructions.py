"""Instruction files: `CLAUDE.md`, `AGENTS.md` and the user's rules. Found once, read on demand.

The catalog shows their paths and front matter, never their bodies. It is the only text that a
project contributes to a prompt before the model has read anything.
"""

import asyncio
import logging
import os
import stat
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import date
from functools import lru_cache
from itertools import islice
from pathlib import Path
from time import thread_time
from typing import Any, cast

from msgspec import Struct, field

from agent_core.assets import parse_front_matter
from agent_core.context.loaded import read_current, with_text
from agent_core.disk.reading import (
    HEAD_BYTES,
    MAX_TEXT_BYTES,
    FileVersion,
    read_text_file,
    version_of,
)
from agent_core.opening import open_descriptor
from agent_core.text import content_hash, fit_lines, one_line
from agent_core.text.wildcards import Wildcards
from agent_core.tools.base import LoadedTexts, ToolContext, View
from agent_core.tools.text import decode_text
from agent_core.tools.workspace import Reading, path_to_read
from agent_core.types import Node, NodeType, user_text

logger = logging.getLogger(__name__)

MOST_FILES = 200
SKIPPED_FOLDERS = frozenset(
    {
        *(".git", "node_modules", ".venv", "venv", "dist", "build", "target", ".next"),
        *(".cache", "__pycache__", ".soong-agent"),
    }
)
"""Never entered, ignored or not. `.soong-agent` holds the program's own files."""

_NAMES = ("CLAUDE.md", "AGENTS.md")
_RELEVANT = frozenset({*_NAMES, ".gitignore"})
_MOST_ENTRIES = 200_000
_MOST_SECONDS = 1.0
"""CPU time: a longer walk is ended there, and the catalog marked as `truncated`."""
_MOST_IGNORE_BYTES = 262_144
_VALUE_CHARS, _FIELDS_CHARS = 200, 400
_PLAIN = (str, int, float, bool, date)


class InstructionFile(Struct, frozen=True):
    """A file as the catalog shows it.

    Attributes:
        path: the resolved path, by which a read is recognised.
        shown: the path that the model passes to `code.read_file`: relative within the project,
            absolute for the user's own files.
        fields: the front matter; empty if there is none that can be read.
        problem: the reason why the file or its front matter cannot be read.
        content: the whole content of the file of the home or the project root, unless it is too
            long; None for other files.
    """

    path: Path
    shown: str
    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])
    problem: str | None = None
    content: bytes | None = None

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


class InstructionCatalog(Struct, frozen=True):
    """All instruction files of a run. `truncated`: there were more files."""

    files: tuple[InstructionFile, ...] = ()
    truncated: bool = False

    def text(self, budget: int, *, without: Collection[str] = ()) -> str:
        """Return one line for each file, within `budget` tokens; empty if there are no files.

        Files whose shown path is in `without` are not listed.
        """
        lines = [file.line for file in self.files if file.shown not in without]
        if self.truncated:
            lines.append(f"- (truncated: there are more than {len(self.files)} files)")
        return fit_lines(lines, budget)

    @property
    def problems(self) -> list[str]:
        """Return the files listed only by path because they cannot be read, with the reasons."""
        return [f"{file.shown}: {file.problem}" for file in self.files if file.problem]

    @property
    def own(self) -> list[tuple[str, bytes]]:
        """Return the files of the home and the project root: the path to show, and the content."""
        return [(f.shown, f.content) for f in self.files if f.content is not None]

    def current(self, node: Node) -> Node | None:
        """Return a loaded file as it is on disk: the same node if unchanged; None if gone."""
        shown = node.metadata.get("path")
        path = next((file.path for file in self.files if file.shown == shown), None)
        try:
            read = None if path is None else read_current(node, path)
        except OSError:
            return None
        if path is None or read is None:
            return node if path or self.truncated else None
        return with_text(node, *read)

    def find(self, path: Path) -> InstructionFile | None:
        """Return the file at this resolved path, if it is an instruction file."""
        for file in self.files:
            if file.path == path:
                return file
        return None


def find_instructions(
    home: Path, project: Path, *, is_closed: Callable[[Path], bool]
) -> InstructionCatalog:
    """Search home and project and read the heads of the files found.

    Does file work: call it in a thread. A head that cannot be read is one of `problems`.

    Args:
        home: the program's home, resolved.
        project: the project, resolved.
        is_closed: whether a path is read only after a question: such a folder is not entered, and a
            file that resolves to such a path is not listed.
    """
    found: dict[Path, str] = {}
    if own := _own_file(home, _NAMES, root=home):
        found[own[0]] = str(home / own[1])
    rules: list[Path] = []
    for folder, _, names in os.walk(f"{home}/rules"):
        rules += [Path(folder, name) for name in names if name.endswith(".md")]
    for path in sorted(rules):
        if (resolved := _resolve_file(path, home)) is not None:
            found[resolved] = str(path)
    walk = _Walk(project, is_closed)
    for shown, path in sorted(walk.files()):
        found.setdefault(path, shown)
    if not found:
        return InstructionCatalog(truncated=walk.cut_short)
    own_names = {f"{home}/{name}" for name in _NAMES} | set(_NAMES)
    files = [
        _read_head(path, shown, is_own=shown in own_names)
        for path, shown in islice(found.items(), MOST_FILES)
    ]
    return InstructionCatalog(tuple(files), walk.cut_short or len(found) > MOST_FILES)


class _Walk:
    """A walk over the project, nearest folders first, that skips unnecessary folders."""

    def __init__(self, root: Path, is_closed: Callable[[Path], bool]) -> None:
        self.cut_short = False
        self._root = root
        self._is_closed = is_closed

    def files(self) -> Iterator[tuple[str, Path]]:
        """Yield the path below the root and the resolved path of each instruction file."""
        entries, end = 0, thread_time() + _MOST_SECONDS
        waiting = deque[tuple[str, tuple[_IgnoreRules, ...]]]([("", ())])
        while waiting and not self.cut_short:
            below, rules = waiting.popleft()
            names, folders, seen = self._list(below)
            entries += seen
            self.cut_short = entries > _MOST_ENTRIES or thread_time() > end
            own = _own_file(self._root / below, names, root=self._root) if names else None
            if own and not self._is_closed(own[0]):
                yield path_to_read(f"{below}{own[1]}"), own[0]
            if ".gitignore" in names and (rule := _read_ignore_file(self._root, below)):
                rules = (*rules, rule)
            for name in folders:
                folder = f"{below}{name}"
                if not _is_ignored(folder, rules) and not self._is_closed(self._root / folder):
                    waiting.append((f"{folder}/", rules))

    def _list(self, below: str) -> tuple[set[str], list[str], int]:
        """Return the relevant files of a folder, the folders to enter, and the number of entries.

        Links do not count as folders: their target is found in its own place, or is outside.
        """
        try:
            with os.scandir(f"{self._root}/{below}") as listing:
                entries = list(islice(listing, _MOST_ENTRIES + 1))
        except OSError:
            return set(), [], 0  # a folder that cannot be listed contributes no files
        names: set[str] = set()
        folders: list[str] = []
        for entry in entries:
            if entry.name in _RELEVANT:
                names.add(entry.name)
            if entry.name not in SKIPPED_FOLDERS and entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
        return names, folders, len(entries)


_IgnoreRules = tuple[str, Wildcards]
"""The folder of a `.gitignore` (ending in `/`, or empty), and its patterns."""


def _read_ignore_file(root: Path, below: str) -> _IgnoreRules | None:
    """Read a `.gitignore`; None if it cannot be read or is too long."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        with os.fdopen(open_descriptor(f"{root}/{below}.gitignore", flags), "rb") as file:
            content = file.read(_MOST_IGNORE_BYTES + 1)
    except OSError:
        return None
    return None if len(content) > _MOST_IGNORE_BYTES else (below, _parse_ignore_file(content))


@lru_cache(maxsize=32)
def _parse_ignore_file(content: bytes) -> Wildcards:
    """Return the patterns of a file; successive runs read the same files."""
    return Wildcards.parse(content, folders=True)


def _is_ignored(folder: str, rules: tuple[_IgnoreRules, ...]) -> bool:
    """Return whether the closest ignore file with a pattern for the folder excludes it."""
    for base, patterns in reversed(rules):
        verdict = patterns.verdict(os.fsencode(folder[len(base) :]))
        if verdict is not None:
            return verdict
    return False


def _own_file(folder: Path, names: Collection[str], *, root: Path) -> tuple[Path, str] | None:
    """Return the resolved instruction file of a folder and its name; `CLAUDE.md` is preferred."""
    for name in _NAMES:
        if name not in names or not os.path.lexists(f"{folder}/{name}"):
            continue
        if (resolved := _resolve_file(folder / name, root)) is not None:
            return resolved, name
    return None


def _resolve_file(path: Path, root: Path) -> Path | None:
    """Return the regular file behind `path`; None if there is none or it is outside of `root`."""
    try:
        resolved = path.resolve(strict=True)
        is_file = stat.S_ISREG(resolved.stat().st_mode)
    except (OSError, RuntimeError):
        return None
    return resolved if is_file and resolved.is_relative_to(root) else None


def _read_head(path: Path, shown: str, *, is_own: bool) -> InstructionFile:
    try:
        version = version_of(path)
        if version is not None:
            return _read_known_head(path, shown, version, is_own=is_own)
        return _read_head_now(path, shown, is_own=is_own)
    except OSError as error:
        return InstructionFile(path, shown, problem=error.strerror or str(error))


@lru_cache(maxsize=1024)
def _read_known_head(
    path: Path, shown: str, _version: FileVersion, *, is_own: bool
) -> InstructionFile:
    """Read a head, once for each version of the file."""
    return _read_head_now(path, shown, is_own=is_own)


def _read_head_now(path: Path, shown: str, *, is_own: bool) -> InstructionFile:
    head = read_text_file(path, MAX_TEXT_BYTES + 1 if is_own else HEAD_BYTES)
    is_whole = len(head) < HEAD_BYTES
    described = parse_front_matter(decode_text(head[:HEAD_BYTES], complete=is_whole))
    content = head if is_own and len(head) <= MAX_TEXT_BYTES else None
    return InstructionFile(path, shown, described.fields, described.problem, content)


class LoadedInstructions:
    """Recognises instruction files when a run reads them, for `code.read_file`.

    The read itself is an ordinary one. In addition, the whole body is added as an
    `instruction_context` node, unless this version of the file is already in view.
    """

    def __init__(self, catalog: InstructionCatalog, view: View) -> None:
        self._catalog = catalog
        self._loaded = LoadedTexts(view, NodeType.INSTRUCTION_CONTEXT, "path")

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
