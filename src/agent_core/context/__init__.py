"""What the model sees: the path and the run's own texts, made into one request a turn."""

from agent_core.context.composer import Built, Composer, TaskBoardSource
from agent_core.context.instructions import (
    InstructionCatalog,
    LoadedInstructions,
    find_instructions,
)
from agent_core.context.plans import plan_template_tool
from agent_core.context.report import ContextBuildReport, rebuild_requests
from agent_core.context.skills import Skill, SkillCatalog, find_skills, load_skill_tool
from agent_core.context.system_prompt import (
    definition_block,
    memory_block,
    runtime_block,
    skills_block,
    static_blocks,
    system_block,
)
from agent_core.context.tokens import (
    Budget,
    TokenScale,
    estimate_blocks,
    estimate_text,
    estimate_tools,
)

__all__ = [
    "Budget",
    "Built",
    "Composer",
    "ContextBuildReport",
    "InstructionCatalog",
    "LoadedInstructions",
    "Skill",
    "SkillCatalog",
    "TaskBoardSource",
    "TokenScale",
    "definition_block",
    "estimate_blocks",
    "estimate_text",
    "estimate_tools",
    "find_instructions",
    "find_skills",
    "load_skill_tool",
    "memory_block",
    "plan_template_tool",
    "rebuild_requests",
    "runtime_block",
    "skills_block",
    "static_blocks",
    "system_block",
]
