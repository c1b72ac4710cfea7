"""The skills of a run, for the model: the index, and one skill at a time."""

from collections.abc import Callable
from typing import Annotated

from pydantic import Field

from agent_core.tools.schema import Arguments
from kgent.records.events import EventType
from kgent.skills.registry import SkillRegistry
from kgent.tools.guarded import Call
from kgent.tools.permissions import ungranted
from kgent.tools.results import ToolResult


class ListSkills(Arguments):
    """List the skills there are: id, name, description, tags."""


class LoadSkill(Arguments):
    """Load a skill: its instructions, and what lies beside them."""

    skill_id: Annotated[str, Field(min_length=1, description="An id from the index.")]


def list_skills(skills: SkillRegistry) -> Callable[[ListSkills, Call], ToolResult]:
    """The tool, for one registry."""

    def perform(arguments: ListSkills, call: Call) -> ToolResult:  # noqa: ARG001 - every tool's form
        index = [skill.model_dump(mode="json", exclude={"path"}) for skill in skills.discover()]
        return ToolResult(ok=True, summary=f"skills: {len(index)}", data={"skills": index})

    return perform


def load_skill(skills: SkillRegistry) -> Callable[[LoadSkill, Call], ToolResult]:
    """The tool, for one registry."""

    def perform(arguments: LoadSkill, call: Call) -> ToolResult:
        skill = skills.load_skill(arguments.skill_id)
        refused = ungranted(call.policy, skill)
        declared = skill.declared_permissions
        call.note(
            EventType.SKILL_LOADED,
            f"loaded the skill {skill.summary.id}",
            {"skill": skill.summary.id, "declared_permissions": declared, "not_granted": refused},
        )
        call.context.records.transcript.append_section(
            "Skills", f"- loaded `{skill.summary.id}` ({len(skill.instructions)} characters)"
        )
        data = {
            "id": skill.summary.id,
            "folder": str(skill.summary.path),
            "instructions": skill.instructions,
            "references": skill.references_summary,
            "templates": skill.templates_summary,
            "declared_permissions": declared,
            "not_granted": refused,
        }
        return ToolResult(ok=True, summary=f"loaded {skill.summary.id}", data=data)

    return perform
