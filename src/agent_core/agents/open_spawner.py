"""Opens what a root run may start, by its role."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from agent_core.agents.spawner import ChildSpawner, SpawnerDeps
from agent_core.events import Journal
from agent_core.types import AgentRole


@asynccontextmanager
async def open_spawner(deps: SpawnerDeps, parent: Journal) -> AsyncGenerator[ChildSpawner]:
    """Open the spawner of a root run; an orchestrator's Tasks are replayed.

    Raises:
        TaskError: the folder of the Task logs cannot be used.
    """
    if parent.run.role is not AgentRole.ORCHESTRATOR:
        yield ChildSpawner(deps, parent)
        return
    # Tasks and workers are a third of all code, and most runs have neither.
    from agent_core.agents.orchestrator import open_orchestrator_spawner  # noqa: PLC0415

    async with open_orchestrator_spawner(deps, parent) as spawner:
        yield spawner
