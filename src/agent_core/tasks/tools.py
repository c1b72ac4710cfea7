"""The `agent.task_*` tools: how models see and change Tasks.

Ids of agents and runs come from the run that calls, never from arguments. Which of these tools a
run has at all is decided by its role; what a worker may see of a Task, by its scope.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field

from agent_core.assets import load_asset
from agent_core.errors import ErrorCode, PermissionDeniedError, TaskError
from agent_core.tasks.actor import Actor, TaskScope
from agent_core.tasks.answers import (
    StepQuery,
    error_view,
    is_asked_for,
    page_of,
    step_view,
    task_summary,
    unreadable_view,
    whole_task,
    written_answer,
)
from agent_core.tasks.board import TaskBoard
from agent_core.tasks.commands import AbortTask, Report
from agent_core.tasks.ledger import Written
from agent_core.tasks.model import StepId, StepStatus, TaskId, TaskStatus, Text
from agent_core.tasks.operations import NewTask, Operation
from agent_core.tasks.ports import NoRuns, RunStopper, TaskJournal
from agent_core.tasks.shelf import EndedLog, OpenTask, UnreadableLog
from agent_core.tools.base import Action, Concurrency, Tool, ToolContext, ToolOutput, ToolReturn
from agent_core.tools.schema import Arguments, model_check, model_schema
from agent_core.types import (
    Access,
    AgentRole,
    ErrorPayload,
    JsonBlock,
    NodeType,
    SafeId,
    ToolDefinition,
    ToolPermission,
    ToolResult,
    user_text,
)

A = TypeVar("A", bound=Arguments)
Limit = Annotated[int, Field(ge=1, le=500)]
Offset = Annotated[int, Field(ge=0)]
_READY_LIMIT = 5
_LIMIT = 50


class TemplateArguments(Arguments):
    goal: Text | None = None


class GetArguments(Arguments):
    task_id: TaskId
    include_terminal_steps: bool = False


class ListArguments(Arguments):
    status: TaskStatus | None = None
    include_terminal: bool = False
    limit: Limit = _LIMIT
    offset: Offset = 0


class UpdateArguments(Arguments):
    task_id: TaskId
    operations: Annotated[tuple[Operation, ...], Field(min_length=1)]


class QueryArguments(Arguments):
    task_id: TaskId
    statuses: tuple[StepStatus, ...] | None = None
    worker_pool_id: SafeId | None = None
    claimed_by_agent_id: SafeId | None = None
    include_terminal_steps: bool = False
    limit: Annotated[
        Limit | None, Field(description="50 if absent; 5 where a worker asks for ready steps")
    ] = None
    offset: Offset = 0


class ClaimArguments(Arguments):
    task_id: TaskId
    step_id: StepId


class UpdateStepArguments(Arguments):
    task_id: TaskId
    step_id: StepId
    status: Literal["running", "blocked", "completed", "failed", "cancelled"] | None = None
    result_summary: Text | None = None
    artifact_ids: tuple[SafeId, ...] | None = None
    reason: Text | None = None


class CompleteArguments(Arguments):
    task_id: TaskId
    result_summary: Text | None = None


class GiveUpArguments(Arguments):
    task_id: TaskId
    reason: Text | None = None


def task_tools(
    board: TaskBoard,
    journal: TaskJournal,
    *,
    scope: TaskScope | None = None,
    stopper: RunStopper | None = None,
) -> list[Tool]:
    """The task tools of one run.

    Args:
        board: the session's Tasks.
        journal: the run's.
        scope: what the run's dispatch allows; None for an orchestrator, who gets all tools but
            the one that claims.
        stopper: stops the workers of a Task that is given up.
    """
    calls = _Calls(board, journal, scope, NoRuns() if stopper is None else stopper)
    shared = [
        _tool("get", _GET, GetArguments, calls.get),
        _tool("query_steps", _QUERY, QueryArguments, calls.query_steps),
        _tool("update_step", _UPDATE_STEP, UpdateStepArguments, calls.update_step, writes=True),
    ]
    if scope is not None:
        claims = _tool("claim_step", _CLAIM, ClaimArguments, calls.claim_step, writes=True)
        return [*shared, claims]
    return [
        _tool("template", _TEMPLATE, TemplateArguments, calls.template),
        _tool("create", _CREATE, NewTask, calls.create, writes=True),
        _tool("list", _LIST, ListArguments, calls.list_tasks),
        _tool("update", _UPDATE, UpdateArguments, calls.update, writes=True),
        _tool("complete", _COMPLETE, CompleteArguments, calls.complete, writes=True),
        _tool("fail", _FAIL, GiveUpArguments, calls.fail, writes=True, lane=Concurrency.END),
        _tool("cancel", _CANCEL, GiveUpArguments, calls.cancel, writes=True, lane=Concurrency.END),
        *shared,
    ]


_TEMPLATE = "Get the instructions for turning a goal into a Task. Read them before task_create."
_CREATE = (
    "Create a Task: a graph of steps that workers claim. task_id and step_id are yours to choose "
    "([a-z0-9_-]); wal_name names its log file. Steps without open dependencies are ready at once."
)
_GET = "Look at a Task and its steps."
_LIST = "List this session's Tasks, the last changed first."
_UPDATE = (
    "Change a Task's graph: operations are applied in order, all or none. Steps that workers hold "
    "stay with them; blocking the Task stops new claims and dispatches."
)
_QUERY = "Find steps of a Task by status, pool or agent, in order of creation."
_CLAIM = (
    "Claim one ready step for this run; a run claims one step only. If somebody was faster, the "
    "answer says so: query again and take another step."
)
_UPDATE_STEP = (
    "Report on a step: running when you begin, completed with a result_summary, or blocked, failed "
    "or cancelled with a reason. Without status it is a sign of life and renews the claim."
)
_COMPLETE = (
    "End a Task whose required steps are all completed; optional steps not begun are cancelled."
)
_FAIL = "End a Task as failed: its workers are stopped, every unfinished step fails. Final."
_CANCEL = "Cancel a Task: its workers are stopped, every unfinished step is cancelled. Final."


def _tool(
    name: str,
    description: str,
    arguments: type[A],
    run: Callable[[A, ToolContext], Awaitable[ToolReturn | ToolOutput]],
    *,
    writes: bool = False,
    lane: Concurrency | None = None,
) -> Tool:
    full_name = f"agent.task_{name}"
    definition = ToolDefinition(
        name=full_name,
        description=description,
        input_schema=model_schema(arguments),
        permission=ToolPermission.WRITE if writes else ToolPermission.READONLY,
        tags={"internal"},
    )

    async def prepare(checked: A, context: ToolContext) -> Action:
        return Action(Access(summary=full_name), partial(run, checked, context))

    return Tool(
        definition=definition,
        parse=model_check(full_name, arguments),
        prepare=prepare,
        lane=lane or (Concurrency.TASK if writes else Concurrency.READ),
    )


class _Calls:
    """What each tool does, for one run."""

    def __init__(
        self,
        board: TaskBoard,
        journal: TaskJournal,
        scope: TaskScope | None,
        stopper: RunStopper,
    ) -> None:
        self._board = board
        self._journal = journal
        self._scope = scope
        self._stopper = stopper

    def _actor(self, context: ToolContext) -> Actor:
        """Who calls; only an orchestrator acts without a scope."""
        if self._scope is None and context.run.role is not AgentRole.ORCHESTRATOR:
            message = f"a {context.run.role} has no Tasks; only an orchestrator and its workers do"
            raise PermissionDeniedError(ErrorCode.PERMISSION_DENIED, message)
        return Actor(context.agent_id, context.run_id, self._journal, self._scope)

    async def template(self, given: TemplateArguments, context: ToolContext) -> ToolOutput:
        self._actor(context)
        asset = load_asset("template.task_dag.default")
        text = f"{asset.text}\n\nThe goal: {given.goal}" if given.goal else asset.text
        origin = {"template_id": asset.asset_id, "template_version": asset.version}
        node = user_text(
            text, NodeType.TASK_INSTRUCTION, **origin, tool_call_id=context.tool_call_id
        )
        return ToolOutput({**origin, "note": "the instructions follow"}, [node])

    async def create(self, new: NewTask, context: ToolContext) -> ToolReturn:
        return written_answer(await self._board.create(new, self._actor(context)))

    async def update(self, given: UpdateArguments, context: ToolContext) -> ToolReturn:
        by = self._actor(context)
        return written_answer(await self._board.update(given.task_id, given.operations, by))

    async def complete(self, given: CompleteArguments, context: ToolContext) -> ToolReturn:
        by = self._actor(context)
        return written_answer(await self._board.complete(given.task_id, given.result_summary, by))

    async def fail(self, given: GiveUpArguments, context: ToolContext) -> ToolReturn:
        return await self._give_up(given, TaskStatus.FAILED, context)

    async def cancel(self, given: GiveUpArguments, context: ToolContext) -> ToolReturn:
        return await self._give_up(given, TaskStatus.CANCELLED, context)

    async def _give_up(
        self, given: GiveUpArguments, status: TaskStatus, context: ToolContext
    ) -> ToolReturn:
        by, end = self._actor(context), AbortTask(status, given.reason)
        done = await self._board.give_up(given.task_id, end, by, stopper=self._stopper)
        return written_answer(done)

    async def get(self, given: GetArguments, context: ToolContext) -> ToolReturn:
        dag = await self._board.get(given.task_id, self._actor(context))
        return whole_task(dag, self._scope, includes_terminal=given.include_terminal_steps)

    async def list_tasks(self, given: ListArguments, context: ToolContext) -> ToolReturn:
        logs = await self._board.tasks(self._actor(context))
        wanted = (log for log in logs if _is_wanted(log, given))
        shown, more = page_of(wanted, limit=given.limit, offset=given.offset)
        return {"tasks": [await self._listed(log) for log in shown], **more}

    async def _listed(self, log: OpenTask | EndedLog | UnreadableLog) -> Mapping[str, Any]:
        match log:
            case OpenTask(dag=dag):
                return task_summary(dag)
            case UnreadableLog():
                return unreadable_view(log)
            case EndedLog():
                try:
                    return task_summary(await self._board.read(log))
                except TaskError as error:
                    return {"task_id": log.task_id, "error": error_view(error)}

    async def query_steps(self, given: QueryArguments, context: ToolContext) -> ToolReturn:
        dag = await self._board.get(given.task_id, self._actor(context))
        query = StepQuery(
            statuses=given.statuses or (),
            worker_pool_id=given.worker_pool_id,
            claimed_by_agent_id=given.claimed_by_agent_id,
            includes_terminal=given.include_terminal_steps,
        )
        seeks_work = self._scope is not None and given.statuses == (StepStatus.READY,)
        limit = given.limit or (_READY_LIMIT if seeks_work else _LIMIT)
        steps, more = page_of(query.select(dag, self._scope), limit=limit, offset=given.offset)
        shown = [step_view(dag, step) for step in steps]
        return {"task": task_summary(dag, self._scope), "steps": shown, **more}

    async def claim_step(self, given: ClaimArguments, context: ToolContext) -> ToolReturn:
        by = self._actor(context)
        try:
            done = await self._board.claim(given.task_id, given.step_id, by)
        except TaskError as error:
            if error.code is not ErrorCode.STEP_ALREADY_CLAIMED:
                raise
            return _not_claimed(error)
        return {"claimed": True, **self._with_step(done, given.step_id)}

    async def update_step(self, given: UpdateStepArguments, context: ToolContext) -> ToolReturn:
        said = Report(
            step_id=given.step_id,
            status=StepStatus(given.status) if given.status else None,
            result_summary=given.result_summary,
            artifact_ids=given.artifact_ids,
            reason=given.reason,
        )
        done = await self._board.report(given.task_id, said, self._actor(context))
        return self._with_step(done, given.step_id)

    def _with_step(self, done: Written, step_id: str) -> dict[str, Any]:
        step = step_view(done.dag, done.dag.step(step_id))
        return {"step": step, **written_answer(done, self._scope)}


def _is_wanted(log: OpenTask | EndedLog | UnreadableLog, given: ListArguments) -> bool:
    match log:
        case OpenTask(dag=dag):
            status = dag.task.status
        case EndedLog(status=status):
            pass
        case UnreadableLog():
            return given.status is None
    return is_asked_for(status, given.status, includes_terminal=given.include_terminal)


def _not_claimed(error: TaskError) -> ToolResult:
    """Not an error of the worker's, so not shown as one; programs find the code all the same."""
    answer = {"claimed": False, **error_view(error)}
    payload = ErrorPayload(
        type=type(error).__name__, code=error.code, message=error.message, details=error.details
    )
    return ToolResult(content=[JsonBlock(data=answer)], error=payload)
