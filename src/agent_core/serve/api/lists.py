"""Tasks, workers, the queue and costs."""

from collections.abc import AsyncGenerator

from pydantic import AwareDatetime

from agent_core.api import AgentRuntime
from agent_core.errors import AgentCoreError, ErrorCode, TaskError
from agent_core.serve.operations import Call, Operation, Paging, Query
from agent_core.serve.visits import Visit
from agent_core.tasks.model import TaskDocument
from agent_core.text import shorten_name
from agent_core.types import CostSummary, CostUnit, Page, SafeId, SessionSummary
from agent_core.types.workers import QueuedRun, WorkerRecord

_MOST_SEARCHED = 200
"""Sessions, the last used ones, in which a Task without a session is looked for."""


class SessionTask(TaskDocument):
    """A Task with the session that it belongs to."""

    session_id: SafeId


class TasksQuery(Paging):
    """Selects Tasks: of one session, or of up to `limit` sessions."""

    session_id: str | None = None


class TaskQuery(Query):
    """The session of a Task; without one, the last used sessions are searched."""

    session_id: str | None = None


class CostQuery(Paging):
    """The unit and the limits of a sum of costs."""

    by: CostUnit = "all"
    since: AwareDatetime | None = None
    project: str | None = None


async def _tasks(call: Call[TasksQuery, None]) -> Page[SessionTask]:
    visit, asked = call.visit, call.query
    if asked.session_id is not None:
        runtime = await visit.acting(asked.session_id)
        return Page(items=await _tasks_of(runtime, asked.session_id))
    page = await visit.runtime.pages.sessions(asked.limit, asked.cursor, tenant=visit.tenant)
    items: list[SessionTask] = []
    for session in page.items:
        items += await _readable_tasks(visit, session)
    return Page(items=items, next_cursor=page.next_cursor)


async def _task(call: Call[TaskQuery, None]) -> SessionTask:
    visit, task_id, session_id = call.visit, call.path("task_id"), call.query.session_id
    if session_id is not None:
        runtime = await visit.acting(session_id)
        return _of(session_id, await runtime.tasks.get(session_id, task_id))
    async for each in _last_tasks(visit):
        if each.task_id == task_id:
            return each
    message = f"none of the last used sessions has a Task {shorten_name(task_id)}; name its session"
    raise TaskError(ErrorCode.TASK_NOT_FOUND, message)


async def _last_tasks(visit: Visit) -> AsyncGenerator[SessionTask]:
    page = await visit.runtime.pages.sessions(_MOST_SEARCHED, tenant=visit.tenant)
    for session in page.items:
        for each in await _readable_tasks(visit, session):
            yield each


async def _tasks_of(runtime: AgentRuntime, session_id: str) -> list[SessionTask]:
    found = await runtime.tasks.list(session_id, include_terminal=True)
    return [_of(session_id, each) for each in found]


async def _readable_tasks(visit: Visit, session: SessionSummary) -> list[SessionTask]:
    """Return the Tasks of a session; none if it works in another folder than the reader."""
    if not visit.console.places.shows(session.cwd):
        return []
    try:
        return await _tasks_of(visit.runtime, session.session_id)
    except AgentCoreError:
        return []


def _of(session_id: str, task: TaskDocument) -> SessionTask:
    return SessionTask(session_id=session_id, **dict(task))


async def _workers(call: Call[Paging, None]) -> Page[WorkerRecord]:
    visit, asked = call.visit, call.query
    return await visit.runtime.pages.workers(asked.limit, asked.cursor, tenant=visit.tenant)


async def _queue(call: Call[Paging, None]) -> Page[QueuedRun]:
    visit, asked = call.visit, call.query
    return await visit.runtime.pages.queue(asked.limit, asked.cursor, tenant=visit.tenant)


async def _cost(call: Call[CostQuery, None]) -> Page[CostSummary]:
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
        summary="List Tasks with their steps, active ones first",
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
