"""Gives each root run what it leads: a crew, and an orchestrator its Tasks and workers too."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from agent_core.agents.crew import ChildSpawner
from agent_core.agents.plan import SpawnerDeps
from agent_core.events import Journal
from agent_core.types import AgentRole


@asynccontextmanager
async def open_spawner(deps: SpawnerDeps, leader: Journal) -> AsyncGenerator[ChildSpawner]:
    """Make ready what a root run may start; an orchestrator's Tasks are replayed.

    Raises:
        TaskError: the folder of the Task logs cannot be used.
    """
    if leader.run.role is not AgentRole.ORCHESTRATOR:
        yield ChildSpawner(deps, leader)
        return
    # Tasks and workers are a third of all code, and most runs have neither.
    from agent_core.agents.orchestra import open_orchestrator_spawner  # noqa: PLC0415

    async with open_orchestrator_spawner(deps, leader) as orchestra:
        yield orchestra
