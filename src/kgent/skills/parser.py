"""`SKILL.md` taken apart: a head that says what the skill is, and the instructions below it."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from agent_core.assets import FrontMatter, parse_front_matter
from agent_core.disk.reading import HEAD_BYTES, MAX_TEXT_BYTES, read_text_file
from agent_core.errors import ErrorCode
from agent_core.text import one_line
from kgent.errors import ErrorCategory, KgentError
from kgent.skills.models import SkillSummary

SKILL_FILE = "SKILL.md"
_ID = re.compile(r"[\w][\w .:-]{0,79}")
_MAX_DESCRIPTION = 1024


@dataclass(frozen=True, slots=True)
class SkillHead:
    """The front matter of a skill."""

    summary: SkillSummary
    permissions: dict[str, Any]


def read_head(folder: Path) -> SkillHead:
    """Read what a skill says of itself; its instructions are not looked at.

    Raises:
        KgentError: category `skill`; the front matter is malformed, or lacks what it needs.
    """
    file = folder / SKILL_FILE
    head = _front_matter(file, HEAD_BYTES)
    skill_id = head.text("id") or head.text("name")
    description = one_line(head.text("description"))[:_MAX_DESCRIPTION]
    if not skill_id or not description:
        raise malformed(file, "the front matter needs an id or a name, and a description")
    if not _ID.fullmatch(skill_id):
        raise malformed(file, f"{skill_id[:80]!r} is too long or has signs an id cannot have")
    summary = SkillSummary(
        id=skill_id,
        name=one_line(head.text("name"))[:80] or skill_id,
        description=description,
        tags=_tags(file, head.fields.get("tags")),
        path=folder.resolve(),
    )
    return SkillHead(summary, _permissions(file, head.fields.get("permissions")))


def read_body(folder: Path) -> str:
    """The instructions of a skill.

    Raises:
        KgentError: category `skill`; the file cannot be read.
    """
    return _front_matter(folder / SKILL_FILE, MAX_TEXT_BYTES).body.strip()


def malformed(file: Path, reason: str) -> KgentError:
    """The error for a skill that cannot be used."""
    return KgentError(
        ErrorCode.SKILL_LOAD_FAILED,
        f"the skill {file} cannot be used: {reason}",
        category=ErrorCategory.SKILL,
        details={"path": str(file)},
    )


def _front_matter(file: Path, limit: int) -> FrontMatter:
    try:
        raw = read_text_file(file, limit)
    except OSError as error:
        raise malformed(file, f"it cannot be read: {error.strerror or error}") from error
    head = parse_front_matter(raw)
    if head.problem:
        raise malformed(file, head.problem)
    if not head.fields:
        raise malformed(file, "it does not begin with a front matter between '---' lines")
    return head


def _tags(file: Path, value: object) -> list[str]:
    if value is None:
        return []
    if isinstance(value, str):
        return [tag.strip() for tag in value.split(",") if tag.strip()]
    if isinstance(value, list):
        return [one_line(str(tag))[:80] for tag in cast("list[object]", value)]
    raise malformed(file, "tags must be a list")


def _permissions(file: Path, value: object) -> dict[str, Any]:
    match value:
        case None:
            return {}
        case dict():
            given = cast("dict[object, Any]", value)
            return {str(key): item for key, item in given.items()}
        case list():
            return {str(tool): True for tool in cast("list[object]", value)}
        case _:
            raise malformed(file, "permissions must be a mapping or a list of tool names")
