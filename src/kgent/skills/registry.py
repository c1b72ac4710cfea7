"""Which skills a run sees."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from agent_core.errors import ErrorCode
from kgent.errors import ErrorCategory, KgentError
from kgent.skills.loader import load
from kgent.skills.models import LoadedSkill, SkillSummary
from kgent.skills.parser import SKILL_FILE, SkillHead, malformed, read_head


class SkillRegistry:
    """Finds skills and loads them.

    Args:
        paths: folders of skills, or folders that are skills.
        enabled: ids of the skills to see; None means all.
    """

    def __init__(self, paths: Sequence[Path], enabled: Sequence[str] | None = None) -> None:
        self._paths = list(paths)
        self._enabled = None if enabled is None else list(enabled)
        self._heads: dict[str, SkillHead] | None = None

    def discover(self) -> list[SkillSummary]:
        """The index, by id. Reads the heads of the skills, once.

        Raises:
            KgentError: category `skill`; a skill is malformed, an id is taken twice, a path is no
                folder, or an enabled skill is not there.
        """
        return [head.summary for head in self._found().values()]

    def load_skill(self, skill_id: str) -> LoadedSkill:
        """Read a skill of the index.

        Raises:
            KgentError: category `skill`; there is none of that id, or it cannot be read.
        """
        head = self._found().get(skill_id)
        if head is None:
            known = ", ".join(self._found()) or "none"
            raise KgentError(
                ErrorCode.SKILL_NOT_FOUND,
                f"there is no skill {skill_id[:80]!r}; there are: {known}",
                category=ErrorCategory.SKILL,
            )
        return load(head)

    @property
    def folders(self) -> list[Path]:
        """The folders of the skills of the index, resolved."""
        return [head.summary.path for head in self._found().values()]

    def _found(self) -> dict[str, SkillHead]:
        if self._heads is None:
            self._heads = self._discovered()
        return self._heads

    def _discovered(self) -> dict[str, SkillHead]:
        heads: dict[str, SkillHead] = {}
        if self._enabled == []:
            return heads
        for folder in self._candidates():
            head = read_head(folder)
            if other := heads.get(head.summary.id):
                if other.summary.path == head.summary.path:
                    continue
                reason = f"the id {head.summary.id!r} is taken by {other.summary.path}"
                raise malformed(folder / SKILL_FILE, reason)
            heads[head.summary.id] = head
        wanted = sorted(heads) if self._enabled is None else self._enabled
        if missing := [skill_id for skill_id in wanted if skill_id not in heads]:
            found = ", ".join(sorted(heads)) or "none"
            raise KgentError(
                ErrorCode.SKILL_NOT_FOUND,
                f"enabled, but not found: {', '.join(missing)}; found: {found}",
                category=ErrorCategory.SKILL,
                details={"missing": missing},
            )
        return {skill_id: heads[skill_id] for skill_id in sorted(set(wanted))}

    def _candidates(self) -> Iterator[Path]:
        for path in self._paths:
            if (path / SKILL_FILE).is_file():
                yield path
                continue
            try:
                inner = sorted(path.iterdir())
            except OSError as error:
                reason = f"the folder cannot be read: {error.strerror}"
                raise malformed(path, reason) from error
            yield from (folder for folder in inner if (folder / SKILL_FILE).is_file())
