"""What one leading run may start: the agents below it, and, for an orchestrator, its Tasks."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from agent_core.agents.catalog import listed_definitions
from agent_core.agents.dispatch import Dispatcher
from agent_core.agents.plan import ChildPlan, Staff, checked_tools, child_identity, expected_output
from agent_core.agents.prompts import child_prompt
from agent_core.agents.start import run_child
from agent_core.agents.workers import Worker
from agent_core.context.composer import TaskBoardSource
from agent_core.errors import ErrorCode, ToolError
from agent_core.events import Journal
from agent_core.tasks import Actor, BoardLimits, BoardSettings, TaskBoard, board_text, open_board
from agent_core.tasks.tools import task_tools
from agent_core.tools.agent_tools import (
    ChildAssignment,
    Dispatch,
    ForkAssignment,
    ListWorkers,
    SubAssignment,
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


@asynccontextmanager
async def open_crew(staff: Staff, leader: Journal) -> AsyncGenerator["Crew"]:
    """Make ready what a root run may start; an orchestrator's Tasks are replayed.

    Raises:
        TaskError: the folder of the Task logs cannot be used.
    """
    run, config = leader.run, staff.setup.config
    if run.role is not AgentRole.ORCHESTRATOR:
        yield Crew(staff, leader, None)
        return
    settings = BoardSettings(
        session_id=run.session_id,
        project_dir=staff.setup.project,
        wal_dir=staff.setup.tasks_dir,
        step_lease_timeout_ms=config.task.step_lease_timeout_ms,
        child_cancel_timeout_ms=config.agents.child_cancel_timeout_ms,
    )
    async with open_board(settings, Actor(run.agent_id, run.run_id, leader)) as board:
        yield Crew(staff, leader, board)


class Crew:
    """Starts agents for one root run; its tools' `AgentSpawner`. Made by `open_crew`."""

    def __init__(self, staff: Staff, leader: Journal, board: TaskBoard | None) -> None:
        config = staff.setup.config.context
        self._staff = staff
        self._leader = leader
        self._board = board
        self._limits = BoardLimits(
            changes=config.task_recent_changes_limit,
            minutes=config.task_recent_changes_window_minutes,
        )

    @property
    def tools(self) -> list[Tool]:
        """The tools that start agents, and an orchestrator's task tools."""
        tools = agent_tools(self)
        if self._board is not None:
            stopper = self._staff.children
            tools += task_tools(self._board, self._leader, stopper=stopper)
        return tools

    @property
    def board(self) -> TaskBoardSource | None:
        """The orchestrator's task board, as the model sees it."""
        board, agent_id = self._board, self._leader.run.agent_id
        if board is None:
            return None
        return lambda budget: board_text(
            board.active(),
            now=utc_now(),
            agent_id=agent_id,
            limits=replace(self._limits, tokens=budget),
        )

    async def definitions(self) -> ToolReturn:
        """The agent definitions there are."""
        staff = self._staff
        listed = await listed_definitions(
            staff.definitions, staff.offer, staff.setup.config, self._leader.run.mode
        )
        return {"agent_definitions": listed}

    async def workers(self, asked: ListWorkers) -> ToolReturn:
        """The configured workers and what they are doing."""
        found = self._staff.workers.in_pool(asked.worker_pool_id)
        return {"workers": [self._view(worker) for worker in found]}

    async def create(self, assignment: SubAssignment, context: ToolContext) -> ToolReturn:
        """Start a sub agent: its conversation begins with its task."""
        default = self._staff.setup.config.agents.default_sub_agent_definition
        return await self._start(AgentRole.SUB, assignment, context, (), default=default)

    async def fork(self, assignment: ForkAssignment, context: ToolContext) -> ToolReturn:
        """Start a fork: its conversation begins where the call was made."""
        default = self._staff.setup.config.agents.default_fork_agent_definition
        path = path_before(self._leader.path, context.tool_call_id)
        return await self._start(AgentRole.FORK, assignment, context, path, default=default)

    async def dispatch(self, dispatch: Dispatch, context: ToolContext) -> ToolReturn:
        """Send a worker to a Task."""
        if self._board is None:
            message = "only an orchestrator dispatches workers"
            raise ToolError(ErrorCode.TOOL_NOT_AVAILABLE, message)
        dispatcher = Dispatcher(self._staff, self._leader, self._board, limits=self._limits)
        return await dispatcher.dispatch(dispatch, context)

    async def _start(
        self,
        role: AgentRole,
        assignment: ChildAssignment,
        context: ToolContext,
        path: Sequence[Node],
        *,
        default: str,
    ) -> ToolResult:
        staff, leader, now = self._staff, self._leader.run, utc_now()
        definition = staff.definitions.get(assignment.agent_definition_id or default)
        tools = await checked_tools(staff, role, assignment.allowed_tools)
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
        plan = ChildPlan(
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
        finished = await run_child(staff, self._leader, plan)
        await staff.store.update_agent(run.agent_id, result=finished.report.as_json())
        return finished.as_result()

    def _view(self, worker: Worker) -> dict[str, Any]:
        workers = self._staff.workers
        agent_id = worker.agent_id(self._leader.run.session_id)
        definition, run_id = workers.definition(worker), workers.run_of(agent_id)
        view: dict[str, Any] = {
            "worker_agent_id": agent_id,
            "worker_id": worker.worker_id,
            "agent_definition_id": worker.definition_id,
            "name": definition.name if definition else "",
            "description": definition.description if definition else "",
            "worker_pool_id": worker.pool_id,
            "status": "unavailable" if definition is None else "busy" if run_id else "idle",
            "suggested_tools": list(definition.suggested_tools) if definition else [],
            "tags": list(definition.tags) if definition else [],
        }
        if run_id is not None:
            view["current_run_id"] = run_id
            claimed = self._board.claimed_by(run_id) if self._board else None
            if claimed is not None and claimed.is_held:
                view["current_step_id"] = claimed.step.step_id
        return view


def path_before(path: Sequence[Node], tool_call_id: str) -> list[Node]:
    """The path up to, not including, the message that made this call."""
    for place in range(len(path) - 1, -1, -1):
        if any(call.tool_call_id == tool_call_id for call in path[place].calls):
            return list(path[:place])
    return list(path)
