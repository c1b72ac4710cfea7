"""The skills of a run: listed by their front matter, and loaded one at a time within a budget."""

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast

from agent_core.assets import FrontMatter, parse_front_matter
from agent_core.disk.reading import HEAD_BYTES, MAX_TEXT_BYTES, read_text_file
from agent_core.errors import ErrorCode
from agent_core.text import one_line
from kgent.config import KgentConfig
from kgent.errors import ErrorCategory, KgentError, Record

MAX_INSTRUCTIONS = 20_000
"""Characters of a skill's instructions."""
MAX_SUMMARY = 2000
"""Characters of the list of references, and of the list of templates."""

MAX_SKILL_BYTES = 50_000_000
MAX_SKILL_FILES = 2000
"""Limits for the files of a skill that are copied into the folder of a run."""

_SKILL_FILE = "SKILL.md"
_ID = re.compile(r"[\w][\w .:-]{0,79}")
_ID_RULE = "use up to 80 letters, digits, spaces and _ . : -, and begin with a letter, a digit or _"
_MAX_DESCRIPTION = 1024
_FIRST_LINE_BYTES = 512
_MAX_ENTRIES = 200


class SkillSummary(Record):
    """A skill in the index; `path` is its folder, resolved."""

    id: str
    name: str
    description: str
    tags: list[str] = []
    path: Path


class LoadedSkill(Record):
    """A skill with its instructions.

    `declared_permissions` lists what the skill asks for; it grants nothing.
    """

    summary: SkillSummary
    instructions: str
    references_summary: str | None = None
    templates_summary: str | None = None
    declared_permissions: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class SkillFile:
    """A file of a skill: its path in the skill's folder, and its content."""

    name: str
    content: bytes
    is_executable: bool


_SkillHead = tuple[SkillSummary, dict[str, Any]]
"""A skill in the index, and the permissions it asks for."""


class SkillRegistry:
    """Finds skills and loads them."""

    def __init__(self, paths: Sequence[Path], enabled: Sequence[str] | None = None) -> None:
        self._paths = list(paths)
        self._enabled = None if enabled is None else list(enabled)
        self._heads: dict[str, _SkillHead] | None = None
        self._originals: list[Path] = []

    @classmethod
    def of(cls, config: KgentConfig) -> Self:
        """Return a registry with the skills that a profile names."""
        return cls([config.place(path) for path in config.skills.paths], config.skills.enabled)

    def discover(self) -> list[SkillSummary]:
        """Return the index, sorted by id; read the front matter of the skills once.

        Raises:
            KgentError: category `skill`; a skill is malformed, two skills have the same id, a path
              is not a folder, or an enabled skill does not exist.
        """
        return [summary for summary, _ in self._read_heads().values()]

    @property
    def folders(self) -> list[Path]:
        """Return the resolved folders of the skills, and of the originals if these are copies."""
        return [*(summary.path for summary, _ in self._read_heads().values()), *self._originals]

    def hashes(self) -> dict[str, str]:
        """Return a hash of all files of each skill of the index, by id.

        Raises:
            KgentError: category `skill`; one cannot be read, or is too large to be copied.
        """
        return {skill.id: _hash_files(list_skill_files(skill.path)) for skill in self.discover()}

    def copied(self, places: Mapping[str, Path]) -> "SkillRegistry":
        """Return the same skills with copies of their folders, which are given by id."""
        copy = SkillRegistry(list(places.values()), self._enabled)
        copy._originals = self.folders
        copy._heads = {
            skill_id: (summary.model_copy(update={"path": places[skill_id]}), permissions)
            for skill_id, (summary, permissions) in self._read_heads().items()
        }
        return copy

    def load_skill(self, skill_id: str) -> LoadedSkill:
        """Read the instructions of a skill of the index, and list the files beside them.

        Raises:
            KgentError: category `skill`; no skill has that id, or it cannot be read.
        """
        heads = self._read_heads()
        head = heads.get(skill_id)
        if head is None:
            known = ", ".join(heads) or "none"
            message = f"there is no skill {skill_id[:80]!r}; there are: {known}"
            raise KgentError(ErrorCode.SKILL_NOT_FOUND, message, category=ErrorCategory.SKILL)
        summary, permissions = head
        folder = summary.path
        body = _read_front_matter(folder / _SKILL_FILE, MAX_TEXT_BYTES).body
        return LoadedSkill(
            summary=summary,
            instructions=_cut(body.strip(), MAX_INSTRUCTIONS),
            references_summary=_list_files(folder / "references"),
            templates_summary=_list_files(folder / "templates"),
            declared_permissions=permissions,
        )

    def _read_heads(self) -> dict[str, _SkillHead]:
        if self._heads is not None:
            return self._heads
        heads: dict[str, _SkillHead] = {}
        for folder in () if self._enabled == [] else self._find_folders():
            summary, permissions = _read_head(folder)
            other, _ = heads.setdefault(summary.id, (summary, permissions))
            if other.path != summary.path:
                reason = f"the id {summary.id!r} is taken by {other.path}"
                raise _unusable(folder / _SKILL_FILE, reason)
        wanted = sorted(heads) if self._enabled is None else self._enabled
        if missing := [skill_id for skill_id in wanted if skill_id not in heads]:
            found = ", ".join(sorted(heads)) or "none"
            raise KgentError(
                ErrorCode.SKILL_NOT_FOUND,
                f"enabled, but not found: {', '.join(missing)}; found: {found}",
                category=ErrorCategory.SKILL,
                details={"missing": missing},
            )
        self._heads = {skill_id: heads[skill_id] for skill_id in sorted(set(wanted))}
        return self._heads

    def _find_folders(self) -> Iterator[Path]:
        for path in self._paths:
            if (path / _SKILL_FILE).is_file():
                yield path
                continue
            try:
                inner = sorted(path.iterdir())
            except OSError as error:
                raise _unusable(path, f"the folder cannot be read: {error.strerror}") from error
            yield from (folder for folder in inner if (folder / _SKILL_FILE).is_file())


def _read_head(folder: Path) -> _SkillHead:
    file = folder / _SKILL_FILE
    head = _read_front_matter(file, HEAD_BYTES)
    skill_id = head.text("id") or head.text("name")
    description = one_line(head.text("description"))[:_MAX_DESCRIPTION]
    if not skill_id or not description:
        raise _unusable(file, "the front matter needs an id or a name, and a description")
    if not _ID.fullmatch(skill_id):
        raise _unusable(file, f"the id {skill_id[:80]!r} is not valid: {_ID_RULE}")
    tags: Any = head.fields.get("tags") or ""
    if isinstance(tags, str):
        tags = [tag for tag in tags.split(",") if tag.strip()]
    permissions: Any = head.fields.get("permissions")
    if isinstance(permissions, list):
        permissions = dict.fromkeys(cast("list[object]", permissions), True)
    if not isinstance(tags, list):
        raise _unusable(file, "tags must be a list")
    if not isinstance(permissions, dict | None):
        raise _unusable(file, "permissions must be a mapping or a list of tool names")
    summary = SkillSummary(
        id=skill_id,
        name=one_line(head.text("name"))[:80] or skill_id,
        description=description,
        tags=[one_line(str(tag))[:80] for tag in cast("list[object]", tags)],
        path=folder.resolve(),
    )
    table = cast("dict[object, Any]", permissions or {})
    return summary, {str(key): item for key, item in table.items()}


def list_skill_files(folder: Path) -> Iterator[SkillFile]:
    """Yield the files of a skill, sorted by path, without links that lead out of it.

    Raises:
        KgentError: category `skill`; one cannot be read, or the skill is too large to be copied.
    """
    size, count = 0, 0
    for parent, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            file = Path(parent, name)
            place = file.resolve()
            is_inside = place.is_relative_to(folder) or name == _SKILL_FILE
            if not is_inside or not place.is_file():
                continue
            count += 1
            try:
                content = read_text_file(place, MAX_SKILL_BYTES + 1 - size)
                is_executable = bool(place.stat().st_mode & 0o111)
            except OSError as error:
                raise _unusable(file, f"it cannot be read: {error.strerror or error}") from error
            size += len(content)
            if size > MAX_SKILL_BYTES or count > MAX_SKILL_FILES:
                limit = f"{MAX_SKILL_FILES:,} files of {MAX_SKILL_BYTES:,} bytes in all"
                raise _unusable(folder, f"a run keeps a copy of it, of at most {limit}")
            yield SkillFile(file.relative_to(folder).as_posix(), content, is_executable)


def _hash_files(files: Iterable[SkillFile]) -> str:
    digest = hashlib.sha256()
    for file in files:
        kind = "x" if file.is_executable else "-"
        digest.update(f"{hashlib.sha256(file.content).hexdigest()} {kind} ".encode())
        digest.update(os.fsencode(file.name) + b"\0")
    return digest.hexdigest()


def _read_front_matter(file: Path, limit: int) -> FrontMatter:
    try:
        head = parse_front_matter(read_text_file(file, limit))
    except OSError as error:
        raise _unusable(file, f"it cannot be read: {error.strerror or error}") from error
    if head.problem:
        raise _unusable(file, head.problem)
    if not head.fields:
        raise _unusable(file, "it does not begin with a front matter between '---' lines")
    return head


def _unusable(file: Path, reason: str) -> KgentError:
    return KgentError(
        ErrorCode.SKILL_LOAD_FAILED,
        f"the skill {file} cannot be used: {reason}",
        category=ErrorCategory.SKILL,
        details={"path": str(file)},
    )


def _cut(text: str, limit: int) -> str:
    """Return `text`, cut to `limit` characters including a note about the missing ones."""
    if len(text) <= limit:
        return text
    mark = f"\n[… cut: {len(text)} characters, {limit} fit]"
    return text[: limit - len(mark)] + mark


def _list_files(folder: Path) -> str | None:
    """List the files of a folder, one per line: path, size and first line."""
    lines: list[str] = []
    for parent, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            file = Path(parent, name)
            if len(lines) == _MAX_ENTRIES or not file.is_file() or file.is_symlink():
                continue
            shown = file.relative_to(folder.parent).as_posix()
            try:
                size = file.stat().st_size
                head = read_text_file(file, _FIRST_LINE_BYTES).decode("utf-8-sig", "ignore")
            except OSError:
                lines.append(f"- {shown} (cannot be read)")
                continue
            first = one_line(head.strip().partition("\n")[0].lstrip("# "))[:120]
            lines.append(f"- {shown} ({size} bytes){f': {first}' if first else ''}")
    return _cut("\n".join(lines), MAX_SUMMARY) if lines else None
