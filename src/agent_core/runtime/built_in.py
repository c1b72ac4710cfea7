"""Definitions of the built-in tools, for people who inspect past requests.

They are the definitions that runs are offered. No tool is built here, and runs do not load this
module.
"""

from collections.abc import Mapping

from agent_core.agents.assignments import (
    AgentArguments,
    ForkAssignment,
    ListDefinitions,
    SubAssignment,
    with_budget,
)
from agent_core.agents.spawner import agent_definition
from agent_core.agents.worker_assignments import ListWorkers, WaitWorkers, WorkerAssignment
from agent_core.context.skills import LOAD_SKILL, PLAN_TEMPLATE, LoadSkill, PlanTemplate
from agent_core.memory.recall import RECALL_MEMORY, RecallArguments
from agent_core.tasks.tools import TASK_ARGUMENTS, task_definition
from agent_core.tools.deferred import CALL_TOOL, FIND_TOOLS, CallTool, FindTools
from agent_core.tools.registry import model_definition
from agent_core.tools.schema import Arguments
from agent_core.types import ToolDefinition

_OF_EVERY_RUN: Mapping[str, type[Arguments]] = {
    LOAD_SKILL: LoadSkill,
    PLAN_TEMPLATE: PlanTemplate,
    RECALL_MEMORY: RecallArguments,
    FIND_TOOLS: FindTools,
    CALL_TOOL: CallTool,
}
_OF_AGENTS: Mapping[str, type[AgentArguments]] = {
    "create_sub_agent": SubAssignment,
    "fork_agent": ForkAssignment,
    "list_agent_definitions": ListDefinitions,
    "dispatch_worker": WorkerAssignment,
    "wait_workers": WaitWorkers,
    "list_workers": ListWorkers,
}
_WITH_BUDGET: Mapping[str, type[AgentArguments]] = {
    "create_sub_agent": with_budget(SubAssignment),
    "fork_agent": with_budget(ForkAssignment),
    "dispatch_worker": with_budget(WorkerAssignment),
}


def built_in_definitions() -> dict[str, ToolDefinition]:
    """Return all definitions by name, as a run without a budget has them."""
    of_tasks = (task_definition(name) for name in TASK_ARGUMENTS)
    of_agents = (agent_definition(name, kind) for name, kind in _OF_AGENTS.items())
    others = (model_definition(name, kind) for name, kind in _OF_EVERY_RUN.items())
    return {each.name: each for each in (*others, *of_agents, *of_tasks)}


def budget_definitions() -> dict[str, ToolDefinition]:
    """Return the definitions that a run with a budget has instead."""
    limited = (agent_definition(name, kind) for name, kind in _WITH_BUDGET.items())
    return {each.name: each for each in limited}
