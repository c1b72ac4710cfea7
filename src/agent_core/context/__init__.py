"""What the model sees: the path and the run's own texts, made into one request a turn."""

from agent_core.context.blocks import (
    definition_block,
    memory_block,
    runtime_block,
    skills_block,
    static_blocks,
    system_block,
)
from agent_core.context.budget import Budget
from agent_core.context.composer import Built, Composer, TaskBoardSource
from agent_core.context.instructions import InstructionCatalog, find_instructions
from agent_core.context.loaded import LoadedInstructions, LoadedTexts, View
from agent_core.context.plans import plan_template_tool
from agent_core.context.rebuild import rebuild_requests
from agent_core.context.report import ContextBuildReport
from agent_core.context.skills import Skill, SkillCatalog, find_skills, load_skill_tool
from agent_core.context.tokens import TokenScale, estimate_blocks, estimate_text, estimate_tools

__all__ = [
    "Budget",
    "Built",
    "Composer",
    "ContextBuildReport",
    "InstructionCatalog",
    "LoadedInstructions",
    "LoadedTexts",
    "Skill",
    "SkillCatalog",
    "TaskBoardSource",
    "TokenScale",
    "View",
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
