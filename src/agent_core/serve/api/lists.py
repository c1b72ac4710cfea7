"""Tasks, workers, the queue and costs."""

from pydantic import AwareDatetime

from agent_core.api.pages import MOST
from agent_core.errors import ErrorCode, TaskError
from agent_core.serve.operations import ApiCall, Operation, Paging, Query
from agent_core.tasks.model import SessionTask
from agent_core.text import shorten_name
from agent_core.types import CostSummary, CostUnit, Page
from agent_core.types.workers import QueuedRun, WorkerRecord


class TasksQuery(Paging):
    """Selects Tasks: of one session, or of the sessions used last."""

    session_id: str | None = None


class TaskQuery(Query):
    """The session of a Task; without one, the last used sessions are searched."""

    session_id: str | None = None


class CostQuery(Paging):
    """The unit and the limits of a sum of costs."""

    by: CostUnit = "all"
    since: AwareDatetime | None = None
    project: str | None = None


async def _tasks(call: ApiCall[TasksQuery, None]) -> Page[SessionTask]:
    visit, asked = call.visit, call.query
    runtime = visit.runtime
    if asked.session_id is not None:
        runtime = await visit.acting(asked.session_id)
    return await runtime.pages.tasks(
        asked.limit, asked.cursor, session_id=asked.session_id, tenant=visit.tenant
    )


async def _task(call: ApiCall[TaskQuery, None]) -> SessionTask:
    visit, task_id, session_id = call.visit, call.path("task_id"), call.query.session_id
    if session_id is not None:
        runtime = await visit.acting(session_id)
        task = await runtime.tasks.get(session_id, task_id)
        return SessionTask(session_id=session_id, **dict(task))
    cursor = None
    while True:
        page = await visit.runtime.pages.tasks(MOST, cursor, tenant=visit.tenant)
        for each in page.items:
            if each.task_id == task_id:
                return each
        if (cursor := page.next_cursor) is None:
            break
    message = f"no session used last has a Task {shorten_name(task_id)}; name its session_id"
    raise TaskError(ErrorCode.TASK_NOT_FOUND, message)


async def _workers(call: ApiCall[Paging, None]) -> Page[WorkerRecord]:
    visit, asked = call.visit, call.query
    return await visit.runtime.pages.workers(asked.limit, asked.cursor, tenant=visit.tenant)


async def _queue(call: ApiCall[Paging, None]) -> Page[QueuedRun]:
    visit, asked = call.visit, call.query
    return await visit.runtime.pages.queue(asked.limit, asked.cursor, tenant=visit.tenant)


async def _cost(call: ApiCall[CostQuery, None]) -> Page[CostSummary]:
    visit, asked = call.visit, call.query
    return await visit.runtime.pages.costs(
        asked.by,
        asked.limit,
        asked.cursor,
        since=asked.since,
        project=asked.project,
        tenant=visit.tenant,
    )


OPERATIONS = [
    Operation(
        method="GET",
        path="/api/tasks",
        summary="List Tasks with their steps, the newest first",
        handler=_tasks,
        answer=Page[SessionTask],
        query=TasksQuery,
        refusals=[404, 409],
    ),
    Operation(
        method="GET",
        path="/api/tasks/{task_id}",
        summary="Read a Task with its steps",
        handler=_task,
        answer=SessionTask,
        query=TaskQuery,
        refusals=[404, 409],
    ),
    Operation(
        method="GET",
        path="/api/workers",
        summary="List the workers of a Postgres database",
        handler=_workers,
        answer=Page[WorkerRecord],
        right="admin",
        query=Paging,
    ),
    Operation(
        method="GET",
        path="/api/queue",
        summary="List runs that wait for a worker, and runs that workers execute",
        handler=_queue,
        answer=Page[QueuedRun],
        right="admin",
        query=Paging,
    ),
    Operation(
        method="GET",
        path="/api/cost",
        summary="Add up the cost of all sessions",
        handler=_cost,
        answer=Page[CostSummary],
        query=CostQuery,
    ),
]
