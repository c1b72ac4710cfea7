"""A skill in the index, and a loaded skill."""

from dataclasses import dataclass
from pathlib import Path

from agent_core.text.json_text import JsonObject
from kgent.errors import Record


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
    declared_permissions: JsonObject = {}


@dataclass(frozen=True, slots=True)
class SkillFile:
    """A file of a skill: its path in the skill's folder, and its content."""

    name: str
    content: bytes
    is_executable: bool
