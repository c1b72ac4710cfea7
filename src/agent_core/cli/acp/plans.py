"""The Tasks of a session as the plan that an editor shows."""

import asyncio
from collections.abc import Callable

from acp.schema import AgentPlanUpdate, PlanEntry, PlanEntryStatus

from agent_core.api import AgentRuntime
from agent_core.cli.tasks import own_runs
from agent_core.config.paths import Setup
from agent_core.tasks.log_store import read_stored_tasks
from agent_core.tasks.model import TaskStep, TaskStepStatus


async def plan_of(
    runtime: AgentRuntime, setup: Setup, session_id: str, clean: Callable[[str], str]
) -> AgentPlanUpdate | None:
    """Return the steps of a session's Tasks; None if it has none."""
    folder, project = setup.tasks_dir, setup.project
    if not await asyncio.to_thread((folder / session_id).is_dir):
        return None
    runs = await own_runs(runtime, session_id)
    tasks, _ = await asyncio.to_thread(
        read_stored_tasks, folder, project_dir=project, session_id=session_id, runs=runs
    )
    steps = [step for task in reversed(tasks) for step in task.dag.steps()]
    if not steps:
        return None
    return AgentPlanUpdate(session_update="plan", entries=[_entry(each, clean) for each in steps])


def _entry(step: TaskStep, clean: Callable[[str], str]) -> PlanEntry:
    name = clean(step.title or step.step_id)
    if step.status.is_terminal and step.status is not TaskStepStatus.COMPLETED:
        name = f"{name} ({step.status})"
    return PlanEntry(
        content=name, priority="medium" if step.required else "low", status=_status(step)
    )


def _status(step: TaskStep) -> PlanEntryStatus:
    if step.status.is_terminal:
        return "completed"
    return "in_progress" if step.status.is_claim else "pending"
