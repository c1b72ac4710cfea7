"""Skills as data."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict


class SkillSummary(BaseModel):
    """What the index says of a skill; `path` is its folder, resolved."""

    model_config = ConfigDict(frozen=True)

    id: str
    name: str
    description: str
    tags: list[str] = []
    path: Path


class LoadedSkill(BaseModel):
    """A skill with its instructions.

    `declared_permissions` is what the skill says it needs: a request, never a grant.
    """

    model_config = ConfigDict(frozen=True)

    summary: SkillSummary
    instructions: str
    references_summary: str | None = None
    templates_summary: str | None = None
    declared_permissions: dict[str, Any] = {}
