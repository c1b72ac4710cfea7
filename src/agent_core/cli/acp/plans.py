"""The Tasks of a session as the plan that an editor shows."""

from collections.abc import Callable, Collection

from acp.schema import AgentPlanUpdate, PlanEntry, PlanEntryStatus

from agent_core.config.paths import Setup
from agent_core.tasks.log_store import read_stored_tasks
from agent_core.tasks.model import TaskStep, TaskStepStatus


def plan_of(
    setup: Setup, session_id: str, clean: Callable[[str], str], *, runs: Collection[str] | None
) -> AgentPlanUpdate | None:
    """Return the steps of the Tasks that these runs have begun; None if it has none. Blocks."""
    tasks, _ = read_stored_tasks(
        setup.tasks_dir, project_dir=setup.project, session_id=session_id, runs=runs
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
