"""The table of roles, read the other way round: which roles have a tool."""

from pathlib import Path

from agent_core.agents.roles import (
    BUILT_IN_TOOLS,
    ROLE_TOOLS,
    does_work,
    permits,
    select_tools,
)
from agent_core.disk.unfinished import UnfinishedWrites
from agent_core.tools.base import Tool
from agent_core.tools.code import code_tools
from agent_core.tools.registry import tool_from
from agent_core.tools.workspace import PathPolicy, Workspace
from agent_core.types import AgentRole, ToolDefinition, ToolPermission
from agent_core.types.tools import CODE_READERS
from tables import together

WORK = ["code.read_file", "code.list_dir", "code.search", "code.write_file", "mcp.s.t", "mine"]
LEADING = {"main", "orchestrator"}
EVERYBODY = {"main", "orchestrator", "sub", "fork", "worker"}

WHO_HAS = {
    "internal.load_skill": EVERYBODY,
    "internal.recall_memory": LEADING,
    "agent.plan_template": LEADING,
    "agent.list_agent_definitions": LEADING,
    "agent.create_sub_agent": LEADING,
    "agent.fork_agent": {"main"},
    "agent.list_workers": {"orchestrator"},
    "agent.dispatch_worker": {"orchestrator"},
    "agent.wait_workers": {"orchestrator"},
    "agent.task_template": {"orchestrator"},
    "agent.task_create": {"orchestrator"},
    "agent.task_list": {"orchestrator"},
    "agent.task_update": {"orchestrator"},
    "agent.task_complete": {"orchestrator"},
    "agent.task_fail": {"orchestrator"},
    "agent.task_cancel": {"orchestrator"},
    "agent.task_get": {"orchestrator", "worker"},
    "agent.task_query_steps": {"orchestrator", "worker"},
    "agent.task_update_step": {"orchestrator", "worker"},
    "agent.task_claim_step": {"worker"},
    "code.read_file": EVERYBODY,
    "code.list_dir": EVERYBODY,
    "code.search": EVERYBODY,
    "code.write_file": EVERYBODY - {"worker"},
    "mcp.s.t": EVERYBODY - {"worker"},
    "mine": EVERYBODY - {"worker"},
}


def tool_named(name: str) -> Tool:
    async def nothing(arguments: object, context: object) -> None: ...

    return tool_from(ToolDefinition(name=name, description="d"), nothing)


EVERY_TOOL = [tool_named(name) for name in {*BUILT_IN_TOOLS, *WORK}]


@together("name", sorted({*BUILT_IN_TOOLS, *WORK}))
def test_each_tool_is_for_the_roles_of_the_table(name: str) -> None:
    having = {
        role.value
        for role in AgentRole
        if name in {tool.name for tool in select_tools(role, EVERY_TOOL)}
    }
    assert having == WHO_HAS[name]


def test_the_table_has_a_row_for_every_role_and_no_tool_without_one() -> None:
    assert set(ROLE_TOOLS) == set(AgentRole)
    assert {name for name in WHO_HAS if not does_work(name)} == BUILT_IN_TOOLS


def test_one_that_compacts_has_no_tools_whatever_it_is_granted() -> None:
    assert not select_tools(AgentRole.COMPACT, EVERY_TOOL, granted=WORK)


@together("role", [AgentRole.SUB, AgentRole.FORK, AgentRole.WORKER])
def test_what_is_granted_replaces_the_working_tools_and_only_those(role: AgentRole) -> None:
    granted = {"mine", "agent.task_create", "internal.recall_memory"}
    names = {tool.name for tool in select_tools(role, EVERY_TOOL, granted=granted)}
    assert {name for name in names if does_work(name)} == {"mine"}
    assert {name for name in names if not does_work(name)} == ROLE_TOOLS[role].built_in


def test_a_tool_with_a_built_in_prefix_that_is_in_no_row_has_no_role() -> None:
    strange = tool_named("agent.become_root")
    assert not any(select_tools(role, [strange]) for role in AgentRole)
    assert not any(permits(role, strange.name) for role in AgentRole)


def test_the_readers_are_the_code_tools_that_only_read(tmp_path: Path) -> None:
    workspace = Workspace(boundaries=PathPolicy(tmp_path), unfinished=UnfinishedWrites.at(tmp_path))
    definitions = [tool.definition for tool in code_tools(workspace)]
    readonly = {d.name for d in definitions if d.permission is ToolPermission.READONLY}
    assert readonly == CODE_READERS, "CODE_READERS in types/tools.py lists them, for workers"
