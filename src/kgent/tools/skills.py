"""The tools that list and load skills."""

import asyncio
from typing import Annotated, cast

from pydantic import Field

from agent_core.permissions import PermissionGuard
from agent_core.tools.schema import Arguments
from kgent.skills.registry import SkillRegistry
from kgent.tools.calls import ToolCallScope
from kgent.tools.results import ToolResult


class ListSkills(Arguments):
    """List the skills there are: id, name, description, tags."""


async def perform_list_skills(
    skills: SkillRegistry, _: ListSkills, __: ToolCallScope
) -> ToolResult:
    found = await asyncio.to_thread(skills.discover)
    index = [skill.model_dump(mode="json", exclude={"path"}) for skill in found]
    return ToolResult(ok=True, summary=f"skills: {len(index)}", data={"skills": index})


class LoadSkill(Arguments):
    """Load a skill: its instructions, and what lies beside them."""

    skill_id: Annotated[str, Field(min_length=1, description="An id from the index.")]


async def perform_load_skill(
    skills: SkillRegistry, guard: PermissionGuard, arguments: LoadSkill, call: ToolCallScope
) -> ToolResult:
    skill = await asyncio.to_thread(skills.load_skill, arguments.skill_id)
    wanted = skill.declared_permissions
    lists = [cast("list[object]", value) for value in wanted.values() if isinstance(value, list)]
    names = {str(item) for items in lists for item in items}
    names |= {name for name, value in wanted.items() if value is True}
    refused = sorted(name for name in names if not guard.is_listed(name))
    skill_id, size = skill.summary.id, len(skill.instructions)
    call.note(
        "skill.loaded",
        f"loaded the skill {skill_id}",
        {"skill": skill_id, "declared_permissions": wanted, "not_granted": refused},
    )
    call.env.records.append_section("Skills", f"- loaded `{skill_id}` ({size} characters)")
    data = {
        "id": skill_id,
        "folder": str(skill.summary.path),
        "instructions": skill.instructions,
        "references": skill.references_summary,
        "templates": skill.templates_summary,
        "declared_permissions": wanted,
        "not_granted": refused,
    }
    return ToolResult(ok=True, summary=f"loaded {skill_id}", data=data)
