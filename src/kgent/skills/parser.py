"""The front matter of a skill."""

import re
from pathlib import Path
from typing import Any, cast

from agent_core.assets import FrontMatter, parse_front_matter
from agent_core.errors import ErrorCode
from agent_core.opening import HEAD_BYTES, read_text_file
from agent_core.text import one_line, quoted
from agent_core.text.json_text import JsonObject
from agent_core.tools.text import decode_text
from kgent.errors import ErrorCategory, KgentError
from kgent.skills.models import SkillSummary

SKILL_FILE = "SKILL.md"
_ID = re.compile(r"[\w][\w .:-]{0,79}")
_ID_RULE = "use up to 80 letters, digits, spaces and _ . : -, and begin with a letter, a digit or _"
_MAX_DESCRIPTION = 1024


SkillHead = tuple[SkillSummary, JsonObject]
"""A skill in the index, and the permissions it asks for."""


def read_head(folder: Path) -> SkillHead:
    """Read the entry of a skill in the index, without its instructions.

    Raises:
        KgentError: category `skill`; the file cannot be read, or its front matter is malformed.
    """
    file = folder / SKILL_FILE
    head = read_front_matter(file, HEAD_BYTES)
    skill_id = head.text("id") or head.text("name")
    description = one_line(head.text("description"))[:_MAX_DESCRIPTION]
    if not skill_id or not description:
        raise skill_error(file, "the front matter needs an id or a name, and a description")
    if not _ID.fullmatch(skill_id):
        raise skill_error(file, f"the id {quoted(skill_id)} is not valid: {_ID_RULE}")
    tags: Any = head.fields.get("tags") or ""
    if isinstance(tags, str):
        tags = [tag for tag in tags.split(",") if tag.strip()]
    permissions: Any = head.fields.get("permissions")
    if isinstance(permissions, list):
        permissions = dict.fromkeys(cast("list[object]", permissions), True)
    if not isinstance(tags, list):
        raise skill_error(file, "tags must be a list")
    if not isinstance(permissions, dict | None):
        raise skill_error(file, "permissions must be a mapping or a list of tool names")
    summary = SkillSummary(
        id=skill_id,
        name=one_line(head.text("name"))[:80] or skill_id,
        description=description,
        tags=[one_line(str(tag))[:80] for tag in cast("list[object]", tags)],
        path=folder.resolve(),
    )
    table = cast("dict[object, Any]", permissions or {})
    return summary, {str(key): item for key, item in table.items()}


def read_front_matter(file: Path, limit: int) -> FrontMatter:
    """Read the front matter of a file and, as far as `limit` bytes reach, its body.

    Raises:
        KgentError: category `skill`; the file cannot be read, or has no valid front matter.
    """
    try:
        content = read_text_file(file, limit)
    except OSError as error:
        raise skill_error(file, f"it cannot be read: {error.strerror or error}") from error
    head = parse_front_matter(decode_text(content, complete=len(content) < limit))
    if head.problem:
        raise skill_error(file, head.problem)
    if not head.fields:
        raise skill_error(file, "it does not begin with a front matter between '---' lines")
    return head


def skill_error(file: Path, reason: str) -> KgentError:
    """Build the error of a skill that cannot be used."""
    return KgentError(
        ErrorCode.SKILL_LOAD_FAILED,
        f"the skill {file} cannot be used: {reason}",
        category=ErrorCategory.SKILL,
        details={"path": str(file)},
    )
