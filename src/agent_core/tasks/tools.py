"""The `agent.task_*` tools, with which models read and change Tasks, and their answers.

Ids of agents and runs come from the calling run, never from arguments. A run's role decides which
of these tools it has; its scope decides which part of a Task a worker may see.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Annotated, Any, Literal

from pydantic import Field

from agent_core.assets import load_asset
from agent_core.errors import ErrorCode, PermissionDeniedError, TaskError
from agent_core.tasks.board import StopRun, TaskBoard, Written
from agent_core.tasks.graph import Dag
from agent_core.tasks.log_store import AnyLog, EndedLog, OpenTask, UnreadableLog
from agent_core.tasks.model import (
    UNFINISHED,
    AbortTask,
    Actor,
    Complete,
    NewTask,
    Operation,
    Report,
    StepId,
    TaskId,
    TaskJournal,
    TaskScope,
    TaskStatus,
    TaskStep,
    TaskStepStatus,
    Text,
    Update,
)
from agent_core.tasks.rules import GIVE_UP
from agent_core.tools.base import Action, Concurrency, Tool, ToolAnswer, ToolContext, ToolReturn
from agent_core.tools.registry import model_definition, model_tool
from agent_core.tools.schema import Arguments
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

Run = Callable[[Any, Actor], Awaitable[ToolReturn | ToolAnswer]]
"""Makes a call with its checked arguments."""

Limit = Annotated[int, Field(ge=1, le=500)]
Offset = Annotated[int, Field(ge=0)]
_READY_LIMIT = 5
_LIMIT = 50
_MAX_IDS = 50
_MAX_STEPS = 100


class TemplateArguments(Arguments):
    """Get the instructions for turning a goal into a Task. Read them before task_create."""

    goal: Text | None = None


class GetArguments(Arguments):
    """Look at a Task and its steps."""

    task_id: TaskId
    include_terminal_steps: bool = False


class ListArguments(Arguments):
    """List this session's Tasks, the last changed first."""

    status: TaskStatus | None = None
    include_terminal: bool = False
    limit: Limit = _LIMIT
    offset: Offset = 0


class UpdateArguments(Arguments):
    """Change a Task's graph: operations are applied in order, all or none. Steps that workers
    hold stay with them; blocking the Task stops new claims and dispatches.
    """

    task_id: TaskId
    operations: Annotated[tuple[Operation, ...], Field(min_length=1)]


class QueryArguments(Arguments):
    """Find steps of a Task by status, pool or agent, in order of creation."""

    task_id: TaskId
    statuses: tuple[TaskStepStatus, ...] | None = None
    worker_pool_id: SafeId | None = None
    claimed_by_agent_id: SafeId | None = None
    include_terminal_steps: bool = False
    limit: Annotated[
        Limit | None, Field(description="50 if absent; 5 where a worker asks for ready steps")
    ] = None
    offset: Offset = 0


class ClaimArguments(Arguments):
    """Claim one ready step for this run; a run claims one step only. If another run was faster,
    the answer says so: query again and take another step.
    """

    task_id: TaskId
    step_id: StepId


class UpdateStepArguments(Arguments):
    """Report on a step: running when you begin, completed with a result_summary, or blocked,
    failed or cancelled with a reason. Without status it is a sign of life and renews the claim.
    """

    task_id: TaskId
    step_id: StepId
    status: Literal["running", "blocked", "completed", "failed", "cancelled"] | None = None
    result_summary: Text | None = None
    artifact_ids: tuple[SafeId, ...] | None = None
    reason: Text | None = None


class CompleteArguments(Arguments):
    """End a Task whose required steps are all completed; optional steps not begun are cancelled."""

    task_id: TaskId
    result_summary: Text | None = None


class FailArguments(Arguments):
    """End a Task as failed: its workers are stopped, every unfinished step fails. Final."""

    task_id: TaskId
    reason: Text | None = None


class CancelArguments(FailArguments):
    """Cancel a Task: its workers are stopped, every unfinished step is cancelled. Final."""


_WRITES, _READS = ToolPermission.WRITE, ToolPermission.READONLY
TASK_ARGUMENTS: Mapping[str, tuple[type[Arguments], ToolPermission]] = {
    "template": (TemplateArguments, _READS),
    "create": (NewTask, _WRITES),
    "list": (ListArguments, _READS),
    "update": (UpdateArguments, _WRITES),
    "complete": (CompleteArguments, _WRITES),
    "fail": (FailArguments, _WRITES),
    "cancel": (CancelArguments, _WRITES),
    "get": (GetArguments, _READS),
    "query_steps": (QueryArguments, _READS),
    "update_step": (UpdateStepArguments, _WRITES),
    "claim_step": (ClaimArguments, _WRITES),
}
"""The arguments of each `agent.task_<name>`, and whether it changes a Task."""

FindArtifacts = Callable[[Collection[str]], Awaitable[Collection[str]]]
"""Returns which of these ids are artifacts of the session."""

_ENDS = {"fail", "cancel"}
_TAGS = ("internal",)


def build_task_tools(
    board: TaskBoard,
    journal: TaskJournal,
    *,
    scope: TaskScope | None = None,
    stop_run: StopRun | None = None,
    find_artifacts: FindArtifacts | None = None,
) -> list[Tool]:
    """Build the task tools of one run.

    Args:
        board: the session's Tasks.
        journal: journal of the run.
        scope: the limits set by the run's dispatch; None for an orchestrator, who gets all tools
            except the one that claims.
        stop_run: stops a worker of a Task that is failed or cancelled; None without workers.
        find_artifacts: finds the artifacts of the session, which alone a step can name.
    """
    calls = _Calls(board, scope, stop_run=stop_run, find_artifacts=find_artifacts)
    runs: dict[str, Run] = {
        "get": calls.get,
        "query_steps": calls.query_steps,
        "update_step": calls.update_step,
    }
    if scope is not None:
        runs["claim_step"] = calls.claim_step
    else:
        runs = {
            "template": _template,
            "create": calls.create,
            "list": calls.list_tasks,
            "update": calls.update,
            "complete": calls.complete,
            "fail": partial(calls.abort, TaskStatus.FAILED),
            "cancel": partial(calls.abort, TaskStatus.CANCELLED),
            **runs,
        }
    return [_tool(journal, scope, name, run) for name, run in runs.items()]


def _tool(journal: TaskJournal, scope: TaskScope | None, name: str, run: Run) -> Tool:
    full_name = f"agent.task_{name}"
    arguments, permission = TASK_ARGUMENTS[name]
    concurrency = Concurrency.READ if permission is _READS else Concurrency.TASK

    async def call(checked: Arguments, context: ToolContext) -> ToolReturn | ToolAnswer:
        role = context.run.role
        if scope is None and role is not AgentRole.ORCHESTRATOR:
            message = f"a {role} has no Tasks; only an orchestrator and its workers do"
            raise PermissionDeniedError(ErrorCode.PERMISSION_DENIED, message)
        ids = (context.agent_id, context.run_id)
        return await run(checked, Actor(*ids, journal, scope, context.tool_call_id))

    async def prepare(checked: Arguments, context: ToolContext) -> Action:
        return Action(Access(summary=full_name), partial(call, checked, context))

    return model_tool(
        full_name,
        arguments,
        prepare,
        permission=permission,
        tags=_TAGS,
        concurrency=Concurrency.END if name in _ENDS else concurrency,
    )


def task_definition(name: str) -> ToolDefinition:
    """Return the definition of `agent.task_<name>`."""
    arguments, permission = TASK_ARGUMENTS[name]
    return model_definition(f"agent.task_{name}", arguments, permission=permission, tags=_TAGS)


async def _template(given: TemplateArguments, by: Actor) -> ToolAnswer:
    asset = load_asset("template.task_dag.default")
    text = f"{asset.text}\n\nThe goal: {given.goal}" if given.goal else asset.text
    origin = {"template_id": asset.asset_id, "template_version": asset.version}
    node = user_text(text, NodeType.TASK_INSTRUCTION, **origin, tool_call_id=by.tool_call_id)
    return ToolAnswer({**origin, "note": "the instructions follow"}, [node])


class _Calls:
    """The calls of one run."""

    def __init__(
        self,
        board: TaskBoard,
        scope: TaskScope | None,
        *,
        stop_run: StopRun | None,
        find_artifacts: FindArtifacts | None,
    ) -> None:
        self._board = board
        self._scope = scope
        self._find_artifacts = find_artifacts
        self._stop_run = stop_run

    async def create(self, new: NewTask, by: Actor) -> ToolReturn:
        return build_answer(await self._board.create(new, by))

    async def update(self, given: UpdateArguments, by: Actor) -> ToolReturn:
        update = Update(given.operations)
        return build_answer(await self._board.change(given.task_id, update, by))

    async def complete(self, given: CompleteArguments, by: Actor) -> ToolReturn:
        end = Complete(given.result_summary)
        return build_answer(await self._board.change(given.task_id, end, by))

    async def abort(self, status: TaskStatus, given: FailArguments, by: Actor) -> ToolReturn:
        end = AbortTask(status, given.reason)
        stop_run = self._stop_run
        return build_answer(await self._board.abort(given.task_id, end, by, stop_run=stop_run))

    async def get(self, given: GetArguments, by: Actor) -> ToolReturn:
        dag = await self._board.get(given.task_id, by)
        return view_task(dag, self._scope, includes_terminal=given.include_terminal_steps)

    async def list_tasks(self, given: ListArguments, by: Actor) -> ToolReturn:
        logs = await self._board.tasks(by)
        wanted = (log for log in logs if _is_wanted(log, given))
        shown, more = take_page(wanted, limit=given.limit, offset=given.offset)
        return {"tasks": [await self._listed(log) for log in shown], **more}

    async def _listed(self, log: AnyLog) -> Mapping[str, Any]:
        match log:
            case OpenTask(dag=dag):
                return summarise_task(dag)
            case UnreadableLog(error=error):
                return {
                    "task_id": log.task_id,
                    "wal_path": error.details.get("path", log.name),
                    "status": "unavailable",
                    "error": _view_error(error),
                }
            case EndedLog():
                try:
                    return summarise_task(await self._board.read(log))
                except TaskError as error:
                    return {"task_id": log.task_id, "error": _view_error(error)}

    async def query_steps(self, given: QueryArguments, by: Actor) -> ToolReturn:
        dag = await self._board.get(given.task_id, by)
        seeks_work = self._scope is not None and given.statuses == (TaskStepStatus.READY,)
        limit = given.limit or (_READY_LIMIT if seeks_work else _LIMIT)
        found = select_steps(
            dag,
            self._scope,
            given.statuses or (),
            worker_pool_id=given.worker_pool_id,
            claimed_by_agent_id=given.claimed_by_agent_id,
            includes_terminal=given.include_terminal_steps,
        )
        steps, more = take_page(found, limit=limit, offset=given.offset)
        shown = [view_step(dag, step) for step in steps]
        return {"task": summarise_task(dag, self._scope), "steps": shown, **more}

    async def claim_step(self, given: ClaimArguments, by: Actor) -> ToolReturn:
        try:
            done = await self._board.claim(given.task_id, given.step_id, by)
        except TaskError as error:
            if error.code is not ErrorCode.STEP_ALREADY_CLAIMED:
                raise
            # Not an error of the worker, so it is not shown as one; programs find its code.
            answer = JsonBlock(data={"claimed": False, **_view_error(error)})
            return ToolResult(content=[answer], error=ErrorPayload.of(error))
        return {"claimed": True, **self._with_step(done, given.step_id)}

    async def update_step(self, given: UpdateStepArguments, by: Actor) -> ToolReturn:
        if given.artifact_ids and self._find_artifacts is not None:
            known = await self._find_artifacts(given.artifact_ids)
            if unknown := [each for each in given.artifact_ids if each not in known]:
                raise TaskError(
                    ErrorCode.ARTIFACT_NOT_FOUND,
                    f"this session has no artifact {', '.join(unknown[:_MAX_IDS])}; nothing was"
                    " written. Name artifacts by the ids that results have",
                    details={"path": "$.artifact_ids", "artifact_ids": unknown[:_MAX_IDS]},
                )
        report = Report(
            step_id=given.step_id,
            status=TaskStepStatus(given.status) if given.status else None,
            result_summary=given.result_summary,
            artifact_ids=given.artifact_ids,
            reason=given.reason,
        )
        done = await self._board.report(given.task_id, report, by)
        return self._with_step(done, given.step_id)

    def _with_step(self, done: Written, step_id: str) -> dict[str, Any]:
        step = view_step(done.dag, done.dag.step(step_id))
        return {"step": step, **build_answer(done, self._scope)}


def _is_wanted(log: AnyLog, given: ListArguments) -> bool:
    """Return whether a list shows this Task; a final status is included if it is asked for."""
    if isinstance(log, UnreadableLog):
        return given.status is None
    status = log.dag.task.status if isinstance(log, OpenTask) else log.status
    if given.status is not None:
        return status is given.status
    return given.include_terminal or not status.is_terminal


def select_steps(
    dag: Dag,
    scope: TaskScope | None,
    statuses: tuple[TaskStepStatus, ...] = (),
    *,
    worker_pool_id: str | None = None,
    claimed_by_agent_id: str | None = None,
    includes_terminal: bool = False,
) -> Iterable[TaskStep]:
    """Return steps in order of creation. Without `statuses`, unfinished ones, or all of them."""
    default = () if includes_terminal else UNFINISHED
    return (
        step
        for step in dag.steps(*(statuses or default))
        if (scope is None or scope.allows(step.step_id))
        and worker_pool_id in {None, step.worker_pool_id}
        and claimed_by_agent_id in {None, step.claimed_by_agent_id}
    )


def summarise_task(dag: Dag, scope: TaskScope | None = None) -> dict[str, Any]:
    """Return a Task without its steps; for a worker only the part that concerns it."""
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


def view_step(dag: Dag, step: TaskStep) -> dict[str, Any]:
    """Return a step, with the reason for its state if one was given."""
    view = step.model_dump(mode="json", exclude_none=True)
    if reason := dag.reasons.get(step.step_id):
        view["reason"] = reason
    if step.step_id in dag.marked:
        view["metadata"] = {"updated_after_dispatch": True}
    return view


def view_task(dag: Dag, scope: TaskScope | None, *, includes_terminal: bool) -> dict[str, Any]:
    """Return a Task with its steps, the first hundred of a large one."""
    steps = list(select_steps(dag, scope, includes_terminal=includes_terminal))
    answer = {
        **summarise_task(dag, scope),
        "steps": [view_step(dag, step) for step in steps[:_MAX_STEPS]],
    }
    if len(steps) > _MAX_STEPS:
        answer["steps_left_out"] = len(steps) - _MAX_STEPS
        answer["hint"] = "agent__task_query_steps shows the other steps, page by page"
    return answer


def take_page(items: Iterable[Any], *, limit: int, offset: int) -> tuple[list[Any], dict[str, Any]]:
    """Return one page, and the arguments for the next one."""
    found = list(islice(items, offset, offset + limit + 1))
    if len(found) <= limit:
        return found, {"has_more": False}
    return found[:limit], {"has_more": True, "next_offset": offset + limit}


def build_answer(done: Written, scope: TaskScope | None = None) -> dict[str, Any]:
    """Return a writing tool's answer: the Task after it, and the ids of the log's lines."""
    answer: dict[str, Any] = {"task": summarise_task(done.dag, scope)}
    if stranded := [each for each in done.stranded if scope is None or scope.allows(each)]:
        answer |= list_stranded(stranded)
    answer["wal_event_ids"] = done.event_ids[:_MAX_IDS]
    if len(done.event_ids) > _MAX_IDS:
        answer["wal_event_count"] = len(done.event_ids)
    return answer


def list_stranded(step_ids: Sequence[str]) -> dict[str, Any]:
    """Return the part of an answer that names stranded steps, with the ways to let them begin."""
    answer: dict[str, Any] = {"stranded_step_ids": list(step_ids[:_MAX_IDS])}
    if len(step_ids) > _MAX_IDS:
        answer["stranded_step_count"] = len(step_ids)
    hint = (
        "these steps wait for a failed or cancelled step and cannot begin. The orchestrator can,"
        " with agent__task_update, reopen a failed step (reopen_step) or remove the dependency"
        f" (remove_dependency); {GIVE_UP}"
    )
    return {**answer, "stranded_hint": hint}


def _view_error(error: TaskError) -> Mapping[str, Any]:
    """Return an error in the form that answers contain."""
    return {"code": error.code.value, "message": error.message, "details": error.details}
