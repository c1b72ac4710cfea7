"""The table of roles that determines the tools of each role.

Two kinds of tools differ by name. The built-in `agent.*` and `internal.*` tools are listed in the
table; all others (`code.*`, MCP, declarative, the caller's own) act on the world outside, and the
table says whether a role has all tools, only the tools that read the project, or none.
"""

from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct

from agent_core.tools.base import Tool
from agent_core.types import AgentRole
from agent_core.types.tools import CODE_READERS

_BUILT_IN = ("agent.", "internal.")

_SKILL = "internal.load_skill"
_LEADING = {
    _SKILL,
    "internal.recall_memory",
    "agent.plan_template",
    "agent.list_agent_definitions",
    "agent.create_sub_agent",
}
_TASKS = {
    f"agent.task_{name}"
    for name in (
        *("template", "create", "list", "update", "complete", "fail", "cancel"),
        *("get", "query_steps", "update_step"),
    )
}
WAIT_WORKERS = "agent.wait_workers"
_WORKERS = {"agent.list_workers", "agent.dispatch_worker", WAIT_WORKERS}
_OWN_STEP = {f"agent.task_{name}" for name in ("get", "query_steps", "update_step", "claim_step")}


class RoleTools(Struct, frozen=True):
    """A row of the table of roles.

    Attributes:
        built_in: the `agent.*` and `internal.*` tools the role has.
        work: the tools that act on the world outside; None means all of them.
    """

    built_in: frozenset[str]
    work: frozenset[str] | None = None


ROLE_TOOLS: Mapping[AgentRole, RoleTools] = {
    AgentRole.MAIN: RoleTools(frozenset({*_LEADING, "agent.fork_agent"})),
    AgentRole.ORCHESTRATOR: RoleTools(frozenset({*_LEADING, *_TASKS, *_WORKERS})),
    AgentRole.SUB: RoleTools(frozenset({_SKILL})),
    AgentRole.FORK: RoleTools(frozenset({_SKILL})),
    AgentRole.WORKER: RoleTools(frozenset({_SKILL, *_OWN_STEP}), CODE_READERS),
    AgentRole.COMPACT: RoleTools(frozenset(), frozenset()),
}

BUILT_IN_TOOLS = frozenset[str]().union(*(row.built_in for row in ROLE_TOOLS.values()))
"""All `agent.*` and `internal.*` tools that any role has."""


def does_work(name: str) -> bool:
    """Return whether the tool is not one of the built-in ones for the conversation itself."""
    return not name.startswith(_BUILT_IN)


def select_tools(
    role: AgentRole,
    tools: Iterable[Tool],
    *,
    granted: Collection[str] | None = None,
    also: Collection[str] = (),
) -> list[Tool]:
    """Select the tools that a run of this role has.

    `granted` replaces the working tools of the row: a worker's own list, or the tools that a parent
    leaves its child. A role without working tools gets none this way either. `also` are tools that
    this run has beside those of its role.
    """
    row = ROLE_TOOLS[role]
    work = row.work if granted is None or row.work == frozenset() else granted
    chosen: list[Tool] = []
    for tool in tools:
        if tool.name.startswith(_BUILT_IN):
            is_had = tool.name in row.built_in or tool.name in also
        else:
            is_had = work is None or tool.name in work
        if is_had:
            chosen.append(tool)
    return chosen


def permits(role: AgentRole, name: str) -> bool:
    """Return whether the table lets any run of this role have the tool, if it exists."""
    row = ROLE_TOOLS[role]
    return row.work != frozenset() if does_work(name) else name in row.built_in
