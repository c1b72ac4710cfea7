"""What the task tools answer: Tasks as JSON a model can read, large ones in excerpts."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from agent_core.errors import TaskError
from agent_core.tasks.actor import TaskScope
from agent_core.tasks.dag import Dag
from agent_core.tasks.ledger import Written
from agent_core.tasks.model import Step, StepStatus, TaskStatus
from agent_core.tasks.shelf import UnreadableLog

_MAX_IDS = 50
_MAX_STEPS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class StepQuery:
    """Which steps to show. Without `statuses`, those that are not over, or all of them."""

    statuses: tuple[StepStatus, ...] = ()
    worker_pool_id: str | None = None
    claimed_by_agent_id: str | None = None
    includes_terminal: bool = False

    def select(self, dag: Dag, scope: TaskScope | None) -> Iterable[Step]:
        """The steps, in order of creation."""
        open_ones = (status for status in StepStatus if not status.is_terminal)
        default = () if self.includes_terminal else open_ones
        return (
            step
            for step in dag.steps(*(self.statuses or default))
            if (scope is None or scope.allows(step.step_id))
            and self.worker_pool_id in {None, step.worker_pool_id}
            and self.claimed_by_agent_id in {None, step.claimed_by_agent_id}
        )


def task_summary(dag: Dag, scope: TaskScope | None = None) -> dict[str, Any]:
    """A Task without its steps; of a worker's Task only what concerns the worker."""
    header = dag.task.model_dump(mode="json")
    if scope is not None and scope.allowed_step_ids is not None:
        visible = [step for s in sorted(scope.allowed_step_ids) if (step := dag.find(s))]
        counts: dict[str, int] = {}
        for step in visible:
            counts[step.status.value] = counts.get(step.status.value, 0) + 1
    else:
        counts = dag.counts()
        header["root_step_ids"] = list(islice(dag.roots(), _MAX_IDS))
    diagnostics = {"stalled": dag.is_stalled, "completeable": dag.is_completable}
    return {**header, "step_counts": counts, "diagnostics": diagnostics}


def step_view(dag: Dag, step: Step) -> dict[str, Any]:
    """A step, with the reason for its state where one was given."""
    view = step.model_dump(mode="json", exclude_none=True)
    if reason := dag.reasons.get(step.step_id):
        view["reason"] = reason
    if step.step_id in dag.marked:
        view["metadata"] = {"updated_after_dispatch": True}
    return view


def whole_task(dag: Dag, scope: TaskScope | None, *, includes_terminal: bool) -> dict[str, Any]:
    """A Task with its steps, the first hundred of a large one."""
    steps = list(StepQuery(includes_terminal=includes_terminal).select(dag, scope))
    answer = {
        **task_summary(dag, scope),
        "steps": [step_view(dag, step) for step in steps[:_MAX_STEPS]],
    }
    if len(steps) > _MAX_STEPS:
        answer["steps_left_out"] = len(steps) - _MAX_STEPS
        answer["hint"] = "agent.task_query_steps shows the other steps, page by page"
    return answer


def page_of(items: Iterable[Any], *, limit: int, offset: int) -> tuple[list[Any], dict[str, Any]]:
    """One page, and how to get the next one."""
    found = list(islice(items, offset, offset + limit + 1))
    if len(found) <= limit:
        return found, {"has_more": False}
    return found[:limit], {"has_more": True, "next_offset": offset + limit}


def written_answer(done: Written, scope: TaskScope | None = None) -> dict[str, Any]:
    """What a writing tool answers: the Task after it, and the ids of the log's lines."""
    answer: dict[str, Any] = {"task": task_summary(done.dag, scope)}
    answer["wal_event_ids"] = done.event_ids[:_MAX_IDS]
    if len(done.event_ids) > _MAX_IDS:
        answer["wal_event_count"] = len(done.event_ids)
    return answer


def unreadable_view(log: UnreadableLog) -> dict[str, Any]:
    """A Task whose log cannot be used, and what would help."""
    error = log.error
    return {
        "task_id": log.task_id,
        "wal_path": error.details.get("path", log.name),
        "status": "unavailable",
        "error": error_view(error),
    }


def error_view(error: TaskError) -> Mapping[str, Any]:
    """An error inside an answer."""
    return {"code": error.code.value, "message": error.message, "details": error.details}


def is_asked_for(status: TaskStatus, wanted: TaskStatus | None, *, includes_terminal: bool) -> bool:
    """A Task of this status is asked for. One that asks for a final status wants final ones."""
    if wanted is not None:
        return status is wanted
    return includes_terminal or not status.is_terminal
