"""What one leading run may start: the agents below it, and, for an orchestrator, its Tasks."""

from collections.abc import Sequence

from agent_core.agents.catalog import listed_definitions
from agent_core.agents.plan import (
    ChildSpec,
    SpawnerDeps,
    checked_tools,
    child_identity,
    expected_output,
)
from agent_core.agents.prompts import child_prompt
from agent_core.agents.start import run_child
from agent_core.context.composer import TaskBoardSource
from agent_core.errors import ErrorCode, ToolError
from agent_core.events import Journal
from agent_core.tools.agent_tools import (
    ChildAssignment,
    Dispatch,
    ForkAssignment,
    ListWorkers,
    SubAssignment,
    WaitWorkers,
    agent_tools,
)
from agent_core.tools.base import Tool, ToolContext, ToolReturn
from agent_core.types import (
    AgentRecord,
    AgentRole,
    AgentType,
    Node,
    ToolResult,
    new_id,
    utc_now,
)


class ChildSpawner:
    """Starts agents for one root run: the `AgentSpawner` of its tools."""

    def __init__(self, deps: SpawnerDeps, leader: Journal) -> None:
        self._deps = deps
        self._leader = leader

    @property
    def tools(self) -> list[Tool]:
        """The tools that start agents."""
        return agent_tools(self)

    @property
    def board(self) -> TaskBoardSource | None:
        """The task board, as the model sees it; only orchestrators have one."""
        return None

    async def definitions(self) -> ToolReturn:
        """The agent definitions there are."""
        deps = self._deps
        listed = await listed_definitions(
            deps.definitions, deps.offer, deps.setup.config, self._leader.run.mode
        )
        return {"agent_definitions": listed}

    async def workers(self, asked: ListWorkers) -> ToolReturn:
        """The configured workers and what they are doing."""
        raise _only_an_orchestrator("lists", asked)

    async def create(self, assignment: SubAssignment, context: ToolContext) -> ToolReturn:
        """Start a sub agent: its conversation begins with its task."""
        default = self._deps.setup.config.agents.default_sub_agent_definition
        return await self._start(AgentRole.SUB, assignment, context, (), default=default)

    async def fork(self, assignment: ForkAssignment, context: ToolContext) -> ToolReturn:
        """Start a fork: its conversation begins where the call was made."""
        default = self._deps.setup.config.agents.default_fork_agent_definition
        path = path_before(self._leader.path, context.tool_call_id)
        return await self._start(AgentRole.FORK, assignment, context, path, default=default)

    async def dispatch(self, dispatch: Dispatch, context: ToolContext) -> ToolReturn:
        """Send a worker to a Task."""
        raise _only_an_orchestrator("dispatches", dispatch, context)

    async def wait_workers(self, asked: WaitWorkers) -> ToolReturn:
        """Collect the results of workers."""
        raise _only_an_orchestrator("waits for", asked)

    async def _start(
        self,
        role: AgentRole,
        assignment: ChildAssignment,
        context: ToolContext,
        path: Sequence[Node],
        *,
        default: str,
    ) -> ToolResult:
        deps, leader, now = self._deps, self._leader.run, utc_now()
        definition = deps.definitions.get(assignment.agent_definition_id or default)
        tools = await checked_tools(deps, role, assignment.allowed_tools)
        run = child_identity(leader, role, agent_id=new_id("agent"))
        agent = AgentRecord(
            agent_id=run.agent_id,
            session_id=leader.session_id,
            parent_agent_id=leader.agent_id,
            agent_type=AgentType(role),
            agent_definition_id=definition.agent_definition_id,
            created_by_run_id=leader.run_id,
            fork_from_node_id=path[-1].node_id if path else None,
            created_at=now,
            updated_at=now,
        )
        plan = ChildSpec(
            run=run,
            agent=agent,
            definition=definition,
            assignment=assignment,
            expected=expected_output(assignment),
            prompt=child_prompt(assignment, leader, context.tool_call_id),
            path=path,
            granted=None if tools is None else frozenset(tools),
            record={
                "agent_definition_id": definition.agent_definition_id,
                "tool_call_id": context.tool_call_id,
            },
        )
        finished = await run_child(deps, self._leader, plan)
        await deps.store.update_agent(run.agent_id, result=finished.report.as_json())
        return finished.as_result()


def _only_an_orchestrator(what: str, *_asked: object) -> ToolError:
    return ToolError(ErrorCode.TOOL_NOT_AVAILABLE, f"only an orchestrator {what} workers")


def path_before(path: Sequence[Node], tool_call_id: str) -> list[Node]:
    """The path up to, not including, the message that made this call."""
    for place in range(len(path) - 1, -1, -1):
        if any(call.tool_call_id == tool_call_id for call in path[place].calls):
            return list(path[:place])
    return list(path)
