"""The skills of a run: listed by their front matter, and loaded one at a time."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

from agent_core.errors import ErrorCode
from agent_core.opening import MAX_TEXT_BYTES
from agent_core.text import quoted
from kgent.config.models import KgentConfig
from kgent.errors import ErrorCategory, KgentError
from kgent.skills.loader import (
    MAX_INSTRUCTIONS,
    cut_text,
    hash_files,
    list_beside,
    list_skill_files,
)
from kgent.skills.models import LoadedSkill, SkillSummary
from kgent.skills.parser import SKILL_FILE, SkillHead, read_front_matter, read_head, skill_error


class SkillRegistry:
    """Finds skills and loads them."""

    def __init__(self, paths: Sequence[Path], enabled: Sequence[str] | None = None) -> None:
        self._paths = list(paths)
        self._enabled = None if enabled is None else list(enabled)
        self._heads: dict[str, SkillHead] | None = None
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
        return {skill.id: hash_files(list_skill_files(skill.path)) for skill in self.discover()}

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
            message = f"there is no skill {quoted(skill_id)}; there are: {known}"
            raise KgentError(ErrorCode.SKILL_NOT_FOUND, message, category=ErrorCategory.SKILL)
        summary, permissions = head
        folder = summary.path
        body = read_front_matter(folder / SKILL_FILE, MAX_TEXT_BYTES).body
        return LoadedSkill(
            summary=summary,
            instructions=cut_text(body.strip(), MAX_INSTRUCTIONS),
            references_summary=list_beside(folder / "references"),
            templates_summary=list_beside(folder / "templates"),
            declared_permissions=permissions,
        )

    def _read_heads(self) -> dict[str, SkillHead]:
        if self._heads is not None:
            return self._heads
        heads: dict[str, SkillHead] = {}
        for folder in () if self._enabled == [] else self._find_folders():
            summary, permissions = read_head(folder)
            other, _ = heads.setdefault(summary.id, (summary, permissions))
            if other.path != summary.path:
                reason = f"the id {summary.id!r} is taken by {other.path}"
                raise skill_error(folder / SKILL_FILE, reason)
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
            if (path / SKILL_FILE).is_file():
                yield path
                continue
            try:
                inner = sorted(path.iterdir())
            except OSError as error:
                raise skill_error(path, f"the folder cannot be read: {error.strerror}") from error
            yield from (folder for folder in inner if (folder / SKILL_FILE).is_file())
