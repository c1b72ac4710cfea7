"""What an orchestrator leads beside its children: Tasks, the workers on them, and the board."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from agent_core.agents.child import ChildCancelReason
from agent_core.agents.crew import ChildSpawner
from agent_core.agents.dispatch import Dispatcher
from agent_core.agents.plan import SpawnerDeps
from agent_core.agents.workers import Worker
from agent_core.aio import to_the_end
from agent_core.context.composer import TaskBoardSource
from agent_core.events import Journal
from agent_core.tasks import Actor, BoardLimits, BoardSettings, TaskBoard, board_text, open_board
from agent_core.tasks.tools import task_tools
from agent_core.tools.agent_tools import Dispatch, ListWorkers, WaitWorkers
from agent_core.tools.base import Tool, ToolContext, ToolReturn
from agent_core.types import utc_now


@asynccontextmanager
async def open_orchestrator_spawner(
    deps: SpawnerDeps, leader: Journal
) -> AsyncGenerator["OrchestratorSpawner"]:
    """Replay the session's Tasks and make their workers ready.

    Raises:
        TaskError: the folder of the Task logs cannot be used.
    """
    run, config = leader.run, deps.setup.config
    settings = BoardSettings(
        session_id=run.session_id,
        project_dir=deps.setup.project,
        wal_dir=deps.setup.tasks_dir,
        step_lease_timeout_ms=config.task.step_lease_timeout_ms,
        child_cancel_timeout_ms=config.agents.child_cancel_timeout_ms,
    )
    actor = Actor(run.agent_id, run.run_id, leader)
    async with open_board(settings, actor, redactor=deps.redactor) as board:
        orchestra, reason = OrchestratorSpawner(deps, leader, board), ChildCancelReason.PARENT_ENDED
        try:
            yield orchestra
        except asyncio.CancelledError:
            reason = ChildCancelReason.PARENT_CANCELLED
            raise
        finally:
            await to_the_end(orchestra.close(reason))


class OrchestratorSpawner(ChildSpawner):
    """A crew with Tasks and workers. Made by `open_orchestrator_spawner`."""

    def __init__(self, deps: SpawnerDeps, leader: Journal, board: TaskBoard) -> None:
        super().__init__(deps, leader)
        config = deps.setup.config.context
        self._board = board
        self._limits = BoardLimits(
            changes=config.task_recent_changes_limit,
            minutes=config.task_recent_changes_window_minutes,
        )
        self._dispatcher = Dispatcher(deps, leader, board, limits=self._limits)

    @property
    def tools(self) -> list[Tool]:
        """The tools that start agents, and those of the Tasks."""
        stop_run = self._deps.children.stop
        return [*super().tools, *task_tools(self._board, self._leader, stop_run=stop_run)]

    @property
    def board(self) -> TaskBoardSource | None:
        """The task board, as the model sees it."""
        board, agent_id = self._board, self._leader.run.agent_id
        return lambda budget: board_text(
            board.active(),
            now=utc_now(),
            agent_id=agent_id,
            limits=replace(self._limits, tokens=budget),
        )

    async def workers(self, asked: ListWorkers) -> ToolReturn:
        """The configured workers and what they are doing."""
        found = self._deps.workers.in_pool(asked.worker_pool_id)
        return {"workers": [self._view(worker) for worker in found]}

    async def dispatch(self, dispatch: Dispatch, context: ToolContext) -> ToolReturn:
        """Send a worker to a Task."""
        return await self._dispatcher.dispatch(dispatch, context)

    async def wait_workers(self, asked: WaitWorkers) -> ToolReturn:
        """Collect the results of workers that were sent without waiting."""
        return await self._dispatcher.dispatches.collect(asked)

    async def close(self, reason: ChildCancelReason) -> None:
        """Stop the workers that still run, and let their ends be recorded."""
        await self._dispatcher.close(reason)

    def _view(self, worker: Worker) -> dict[str, Any]:
        workers = self._deps.workers
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
            claimed = self._board.claimed_by(run_id)
            if claimed is not None and claimed.is_held:
                view["current_step_id"] = claimed.step.step_id
        if uncollected := self._dispatcher.dispatches.uncollected(agent_id):
            view["uncollected_run_ids"] = uncollected
        return view
