"""The tools that list and load skills."""

import asyncio
from functools import partial
from typing import Annotated

from pydantic import Field

from agent_core.tools.schema import Arguments
from kgent.skills.registry import SkillRegistry
from kgent.tools.calls import OwnTool, ToolCallScope
from kgent.tools.permissions import EffectivePermissionPolicy, requested_tools
from kgent.tools.results import ToolResult


def skill_tools(skills: SkillRegistry, policy: EffectivePermissionPolicy) -> list[OwnTool]:
    """Return the tools for the skills of a run."""
    return [
        OwnTool("list_skills", _ListSkills, "read", partial(_list_skills, skills)),
        OwnTool("load_skill", _LoadSkill, "read", partial(_load_skill, skills, policy)),
    ]


class _ListSkills(Arguments):
    """List the skills there are: id, name, description, tags."""


async def _list_skills(skills: SkillRegistry, _: _ListSkills, __: ToolCallScope) -> ToolResult:
    found = await asyncio.to_thread(skills.discover)
    index = [skill.model_dump(mode="json", exclude={"path"}) for skill in found]
    return ToolResult(ok=True, summary=f"skills: {len(index)}", data={"skills": index})


class _LoadSkill(Arguments):
    """Load a skill: its instructions, and what lies beside them."""

    skill_id: Annotated[str, Field(min_length=1, description="An id from the index.")]


async def _load_skill(
    skills: SkillRegistry,
    policy: EffectivePermissionPolicy,
    arguments: _LoadSkill,
    call: ToolCallScope,
) -> ToolResult:
    skill = await asyncio.to_thread(skills.load_skill, arguments.skill_id)
    wanted, refused = skill.declared_permissions, policy.refused(requested_tools(skill))
    skill_id, size = skill.summary.id, len(skill.instructions)
    call.note(
        "skill.loaded",
        f"loaded the skill {skill_id}",
        {"skill": skill_id, "declared_permissions": wanted, "not_granted": refused},
    )
    line = f"- loaded `{skill_id}` ({size} characters)"
    call.context.records.transcript.append_section("Skills", line)
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
