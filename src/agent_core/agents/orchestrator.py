"""Starts what only an orchestrator has: Tasks, their workers and the board."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from msgspec import Struct, structs

from agent_core.agents.assignments import with_budget
from agent_core.agents.child_runs import ChildCancelReason, ChildRun, ChildSpec, TaskBinding
from agent_core.agents.report import WorkerHandle, build_handle, find_failure, view_stored_worker
from agent_core.agents.roles import does_work
from agent_core.agents.spawner import (
    CONTEXT_PART,
    BuildContext,
    ChildSpawner,
    SpawnerDeps,
    build_agent_tool,
    build_expected_output,
)
from agent_core.agents.worker_assignments import ListWorkers, WaitWorkers, WorkerAssignment
from agent_core.agents.workers import PoolWorker
from agent_core.aio import end_uncancelled, finish_uncancelled
from agent_core.errors import AgentCoreError, ErrorCode, ToolError
from agent_core.events import Journal
from agent_core.extensions import Extension, ExtensionContext, Rank, RunTool
from agent_core.loop.options import RunOptions
from agent_core.redaction import log_failure
from agent_core.storage.store import SessionStore
from agent_core.tasks import (
    Actor,
    BoardLimits,
    BoardSettings,
    TaskBoard,
    TaskScope,
    WorkerEnding,
    build_task_tools,
    open_board,
    render_board,
)
from agent_core.tasks.forks import logs_of_others
from agent_core.tasks.tools import list_stranded
from agent_core.tools.base import Concurrency, CutCallError, Tool, ToolContext, ToolReturn
from agent_core.types import (
    AgentRecord,
    AgentRole,
    AgentType,
    ErrorPayload,
    EventLevel,
    EventType,
    JsonBlock,
    NodeType,
    RunIdentity,
    ToolCall,
    ToolDefinition,
    ToolPermission,
    ToolResult,
    user_text,
    utc_now,
)

logger = logging.getLogger(__name__)

_MAX_ERROR = 2000


@asynccontextmanager
async def open_orchestrator_spawner(
    deps: SpawnerDeps, parent: Journal, build_context: BuildContext, options: RunOptions
) -> AsyncGenerator["OrchestratorSpawner"]:
    """Replay the session's Tasks; at the end, stop the workers that still run.

    Raises:
        TaskError: the folder of the Task logs cannot be used.
    """
    run, config = parent.run, deps.setup.config
    settings = BoardSettings(
        session_id=run.session_id,
        project_dir=deps.setup.project,
        wal_dir=deps.setup.tasks_dir,
        logs=None if deps.task_logs is None else deps.task_logs[run.session_id],
        step_lease_timeout_ms=config.task.step_lease_timeout_ms,
        child_cancel_timeout_ms=config.agents.child_cancel_timeout_ms,
    )
    others = await logs_of_others(settings.open_logs(), deps.store)
    settings = structs.replace(settings, others=others)
    actor = Actor(run.agent_id, run.run_id, parent)
    is_working = deps.children.is_working
    opening = partial(open_board, settings, actor, redactor=deps.redactor, is_working=is_working)
    async with deps.boards.hold(run.session_id, opening) as board:
        spawner = OrchestratorSpawner(deps, parent, build_context, board, options)
        reason = ChildCancelReason.PARENT_ENDED
        try:
            yield spawner
        except asyncio.CancelledError:
            reason = ChildCancelReason.PARENT_CANCELLED
            raise
        finally:
            await finish_uncancelled(spawner.close(reason))


class SentWorker(Struct, frozen=True):
    """A dispatch that was answered before its worker ended.

    `handle` is that answer; `work` returns the result and raises nothing.
    """

    handle: WorkerHandle
    work: "asyncio.Task[ToolResult]"


class OrchestratorSpawner(ChildSpawner):
    """A spawner with Tasks and workers, made by `open_orchestrator_spawner`.

    The results of workers sent without waiting are kept until the run is over; a result can be
    fetched more than once.
    """

    def __init__(
        self,
        deps: SpawnerDeps,
        parent: Journal,
        build_context: BuildContext,
        board: TaskBoard,
        options: RunOptions,
    ) -> None:
        super().__init__(deps, parent, build_context, options)
        config = deps.setup.config.context
        self._board = board
        self.board = partial(self._board_text, parent.run.agent_id, None)
        self._limits = BoardLimits(
            changes=config.task_recent_changes_limit,
            minutes=config.task_recent_changes_window_minutes,
        )
        self._actor = Actor(parent.run.agent_id, parent.run.run_id, parent)
        self._find_artifacts = partial(deps.store.find_artifacts, parent.run.session_id)
        self._sent: dict[str, SentWorker] = {}
        self._collected: set[str] = set()

    @property
    def tools(self) -> list[Tool]:
        """Return the tools that start agents and workers, and the task tools."""
        dispatch = with_budget(WorkerAssignment) if self._is_limited else WorkerAssignment
        return [
            *super().tools,
            build_agent_tool("dispatch_worker", dispatch, self.dispatch, Concurrency.AGENT),
            build_agent_tool("wait_workers", WaitWorkers, self.wait_workers, Concurrency.WAIT),
            build_agent_tool("list_workers", ListWorkers, self.list_workers, Concurrency.READ),
            *build_task_tools(
                self._board,
                self._parent,
                stop_run=self._deps.children.stop,
                find_artifacts=self._find_artifacts,
            ),
        ]

    async def list_workers(self, asked: ListWorkers, _: ToolContext) -> ToolReturn:
        """Return the configured workers and their current work.

        Raises:
            ToolError: `worker_not_available`: there is no such pool.
        """
        found = self._deps.workers.in_pool(asked.worker_pool_id)
        return {"workers": [self._worker_view(worker) for worker in found]}

    async def dispatch(self, dispatch: WorkerAssignment, context: ToolContext) -> ToolReturn:
        """Send a worker; return the outcome of its step, or a handle once it runs.

        Raises:
            ToolError: no worker was sent: `worker_busy`, `worker_pool_busy`,
                `worker_not_available`, `task_not_dispatchable`, `validation_error`,
                `child_agent_limit_exceeded`.
        """
        try:
            spec = await self._plan_dispatch(dispatch, context)
            child = await self._start(spec, on_end=partial(self._free, spec.run))
            handle = build_handle(spec.run, spec.record)
            if dispatch.wait:
                return await self._finish(child, partial(self._build_answer, child, handle))
        except AgentCoreError as error:
            self._note_failure(dispatch, error)
            raise
        handle["status"] = "running"
        work = self._late_result(child, handle, dispatch)
        task = asyncio.create_task(work, name=f"wait {child.run.run_id}")
        self._sent[child.run.run_id] = SentWorker(handle, task)
        return {**handle}

    async def _plan_dispatch(self, dispatch: WorkerAssignment, context: ToolContext) -> ChildSpec:
        """Choose a worker and claim it; `_start` frees it if its run cannot begin.

        Raises:
            ToolError: as for `dispatch`.
        """
        workers, session_id = self._deps.workers, self._parent.run.session_id
        task_id, step_ids = dispatch.task_id, dispatch.allowed_step_ids
        dag = await self._board.require_dispatchable(task_id, step_ids, self._actor)
        tools = await self._check_assignment(AgentRole.WORKER, dispatch)
        expected = build_expected_output(dispatch)
        worker = workers.select(
            dag,
            session_id,
            pool_id=dispatch.worker_pool_id,
            agent_id=dispatch.worker_agent_id,
            tools=tools or (),
            step_ids=step_ids,
        )
        agent_id, definition_id = worker.agent_id(session_id), worker.definition_id
        run = self._child_identity(AgentRole.WORKER, agent_id, definition_id, task=dispatch.summary)
        workers.claim(agent_id, run.run_id)  # nothing is awaited since the choice
        facts = {
            "purpose": "worker",
            "worker_id": worker.worker_id,
            "worker_pool_id": worker.pool_id,
        }
        agent = self._agent_record(run, definition_id, AgentType.SUB, metadata=facts)
        allowed = None if step_ids is None else frozenset(step_ids)
        parts = [
            ("Instruction", dispatch.instruction),
            ("Task id", task_id),
            ("Steps you may claim", ", ".join(dict.fromkeys(step_ids or ()))),
            (CONTEXT_PART, dispatch.context or ""),
        ]
        return ChildSpec(
            run=run,
            agent=agent,
            definition=self._deps.definitions.get(definition_id),
            assignment=dispatch,
            expected=expected,
            prompt=self._prompt(parts, dispatch, context),
            history=WorkerHistory(self._deps.store, agent),
            granted=worker.granted(tools),
            record={
                **facts,
                "agent_definition_id": definition_id,
                "task_id": task_id,
                "allowed_step_ids": step_ids and list(step_ids),
                "selection_reason": "named" if dispatch.worker_agent_id else "first_idle",
                "tool_call_id": context.tool_call_id,
            },
            bind=partial(self._bind, run, TaskScope(task_id, allowed, worker.pool_id)),
        )

    async def wait_workers(self, asked: WaitWorkers, _: ToolContext) -> ToolReturn:
        """Wait for runs until they end or `timeout_ms` is over, and return their results.

        Without `run_ids`, waits for all runs not collected yet. A run that is not done is listed as
        running. Workers of earlier runs of the session, whose process may have died, are answered
        from what is stored.

        Raises:
            ToolError: `validation_error`: a run id is unknown, the list is empty, or the time is
                longer than a child may have.
        """
        self._check_timeout(asked.timeout_ms)
        run_ids, earlier = await self._find_sent(asked.run_ids)
        waiting = [work for run_id in run_ids if not (work := self._sent[run_id].work).done()]
        if waiting:
            limit_s = None if asked.timeout_ms is None else asked.timeout_ms / 1000
            try:
                await asyncio.wait(waiting, timeout=limit_s)
            except asyncio.CancelledError:
                await end_uncancelled(self.close(ChildCancelReason.PARENT_CANCELLED))
                answer = JsonBlock(data=self._view_sent(run_ids, earlier))
                raise CutCallError(ToolResult(content=[answer])) from None
        return self._view_sent(run_ids, earlier)

    async def close(self, reason: ChildCancelReason) -> None:
        """Stop the workers that still run, and wait until every result is recorded.

        Runs that do not stop in time are not waited for.
        """
        children = self._deps.children
        await children.stop_all(self._parent.run, reason)
        for run_id, sent in self._sent.items():
            if children.is_running(run_id):
                sent.work.cancel()
        if self._sent:
            await asyncio.wait([sent.work for sent in self._sent.values()])

    async def _build_answer(self, child: ChildRun, handle: WorkerHandle) -> ToolResult:
        """Build the result of a worker; the step counts if the text contradicts it.

        If the run has lost its claim, changes of the step by another run are not shown.
        """
        error = find_failure(child)
        claimed = await self._board.outcome(child.run.run_id, self._actor)
        step_id = claimed.step_id if claimed is not None else None
        report = await self._store_report(child, step_id=step_id)
        answer = {key: value for key, value in handle.items() if key != "status"}
        if claimed is not None:
            answer |= {"claimed_step_id": step_id, "claim_lost": claimed.is_lost}
            if (step := claimed.step) is not None:
                answer["step_status"] = step.status.value
                if step.result_summary is not None:
                    answer["step_result_summary"] = step.result_summary
            if claimed.stranded:
                answer |= list_stranded(claimed.stranded)
        answer |= {"no_step_claimed": claimed is None, "worker_result": report}
        return ToolResult(content=[JsonBlock(data=answer)], is_error=error is not None, error=error)

    async def _late_result(
        self, child: ChildRun, handle: WorkerHandle, dispatch: WorkerAssignment
    ) -> ToolResult:
        """Return the result of a worker sent without waiting; errors become error results."""
        run_id = child.run.run_id
        try:
            return await self._finish(child, partial(self._build_answer, child, handle))
        except AgentCoreError as error:
            self._note_failure(dispatch, error)
            failure = error
        except CutCallError as cut:
            return cut.result
        except asyncio.CancelledError:
            message = f"the worker's run {run_id} did not stop in time"
            failure = ToolError(ErrorCode.CANCELLED, message)
        except Exception as error:  # noqa: BLE001 - logged, and returned as any other error result
            what = f"the result of {run_id} failed on a bug"
            log_failure(logger, what, error=error, clean=self._parent.clean)
            failure = ToolError(ErrorCode.INTERNAL_ERROR, f"{what}; the log has the details")
        return ToolResult(is_error=True, error=ErrorPayload.of(failure))

    def _note_failure(self, dispatch: WorkerAssignment, error: AgentCoreError) -> None:
        facts = dispatch.model_dump(
            include={"task_id", "worker_pool_id", "worker_agent_id"}, exclude_none=True
        )
        facts |= {"code": error.code, "message": error.message}
        self._parent.note(EventType.WORKER_DISPATCH_FAILED, facts, level=EventLevel.WARNING)

    def _free(self, run: RunIdentity) -> None:
        self._deps.workers.release(run.agent_id, run.run_id)
        self._board.dismiss(run.run_id)

    def _bind(self, run: RunIdentity, scope: TaskScope, journal: Journal) -> TaskBinding:
        """Tie a worker's run to one Task, some of its steps and at most one claim."""

        def board(budget: int) -> str | None:
            calls = (call for node in journal.path for call in node.calls)
            if not any(call.name.startswith("agent.task_") for call in calls):
                return None
            return self._board_text(run.agent_id, scope, budget)

        by = Actor(run.agent_id, run.run_id, journal)
        return TaskBinding(
            tools=build_task_tools(
                self._board, journal, scope=scope, find_artifacts=self._find_artifacts
            ),
            board=board,
            extensions=[ClaimCheck(self._board, by)],
            begin=partial(self._board.admit, run.run_id, scope.task_id),
            before_end=partial(self._close_step, by),
        )

    def _board_text(self, agent_id: str, scope: TaskScope | None, budget: int) -> str:
        return render_board(
            self._board.active(),
            now=utc_now(),
            agent_id=agent_id,
            scope=scope,
            limits=structs.replace(self._limits, tokens=budget),
        )

    async def _close_step(
        self, by: Actor, reason: ChildCancelReason | None, error: BaseException | None
    ) -> None:
        """Fail the step that a run has left open."""
        ending, message = WorkerEnding.FINISHED, None
        if reason is ChildCancelReason.TIMEOUT:
            ending = WorkerEnding.TIMEOUT
        elif reason is not None or isinstance(error, asyncio.CancelledError):
            ending = WorkerEnding.CANCELLED
        elif isinstance(error, AgentCoreError):
            ending = WorkerEnding.FAILED
            message = " ".join(f"{error.code}: {error.message}".split())[:_MAX_ERROR]
        elif error is not None:
            ending = WorkerEnding.FAILED
            name = type(error).__name__
            message = f"{ErrorCode.INTERNAL_ERROR}: {name}; the log has the details"
        try:
            await self._board.run_ended(by.run_id, ending, by, error=message)
        except AgentCoreError as failure:
            # The claim's lease expires anyway; the work of the run is not undone.
            what, clean = f"the step of {by.run_id} stays open", self._parent.clean
            log_failure(logger, what, error=failure, clean=clean, level=logging.WARNING)

    def _worker_view(self, worker: PoolWorker) -> dict[str, Any]:
        workers = self._deps.workers
        agent_id = worker.agent_id(self._parent.run.session_id)
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
            if (step_id := self._board.step_held_by(run_id)) is not None:
                view["current_step_id"] = step_id
        uncollected = [
            sent_id
            for sent_id, sent in self._sent.items()
            if sent.handle["worker_agent_id"] == agent_id
            and sent.work.done()
            and sent_id not in self._collected
        ]
        return view | ({"uncollected_run_ids": uncollected} if uncollected else {})

    async def _find_sent(
        self, run_ids: Collection[str] | None
    ) -> tuple[list[str], list[dict[str, Any]]]:
        """Return which of these runs this run has sent, and the entries of earlier ones."""
        if run_ids is None:
            return [run_id for run_id in self._sent if run_id not in self._collected], []
        sent = [run_id for run_id in dict.fromkeys(run_ids) if run_id in self._sent]
        earlier: list[dict[str, Any]] = []
        unknown: list[str] = []
        for run_id in dict.fromkeys(run_ids):
            if run_id in self._sent:
                continue
            record = await self._deps.store.run(run_id)
            is_mine = record is not None and record.session_id == self._parent.run.session_id
            if record and is_mine and "worker_id" in record.metadata and record.status.is_terminal:
                earlier.append(await view_stored_worker(self._deps.store, record))
            else:
                unknown.append(run_id)
        if unknown or not run_ids:
            what = f"unknown runs: {', '.join(unknown[:10])}" if unknown else "no run"
            message = (
                f"run_ids names {what}; they are the child_run_id of dispatches of this session."
                " Leave it out to wait for all of this run"
            )
            details = {"path": "$.run_ids", "unknown_run_ids": unknown[:50]}
            raise ToolError(ErrorCode.VALIDATION_ERROR, message, details=details)
        return sent, earlier

    def _view_sent(
        self, run_ids: Collection[str], earlier: Sequence[dict[str, Any]]
    ) -> dict[str, Any]:
        workers = [*map(self._sent_view, run_ids), *earlier]
        running = [each["child_run_id"] for each in workers if each["status"] == "running"]
        return {"workers": workers, "running_run_ids": running}

    def _sent_view(self, run_id: str) -> dict[str, Any]:
        sent = self._sent[run_id]
        if not sent.work.done():
            return dict(sent.handle)
        self._collected.add(run_id)
        result = sent.work.result()
        view: dict[str, Any] = {**sent.handle, "status": "failed"}
        for block in result.content:
            if isinstance(block, JsonBlock):
                view |= block.data
                view["status"] = block.data["worker_result"]["status"]
        if result.error is not None:
            view["error"] = result.error.model_dump(mode="json", exclude_none=True)
        return view


class WorkerHistory:
    """The conversations of a worker: each dispatch is a new branch from one common root."""

    def __init__(self, store: SessionStore, agent: AgentRecord) -> None:
        self._store = store
        self._agent = agent

    async def resume(self, journal: Journal) -> None:
        """Begin at the root; the first run of the worker writes it."""
        agent = await self._store.agent(self._agent.agent_id) or self._agent
        if root_id := agent.metadata.get("root_node_id"):
            journal.path.extend(await self._store.path(root_id))
            return
        facts = self._agent.metadata
        text = f"You are worker {facts['worker_id']} of the pool {facts['worker_pool_id']}."
        node = journal.add(user_text(text, NodeType.SYSTEM_NOTE, reason="worker_root"))
        await journal.commit()
        await self._store.update_agent(agent.agent_id, metadata={"root_node_id": node.node_id})


class ClaimCheck(Extension):
    """Refuses calls that can change something once a run has lost the claim on its step.

    It looks twice: before a permission is requested, and right before the tool acts. The built-in
    `agent.*` and `internal.*` tools look themselves. The end of every call renews the claim, as
    open calls do.
    """

    rank = Rank.CLAIM

    def __init__(self, board: TaskBoard, by: Actor) -> None:
        self._board = board
        self._by = by
        self._begun: set[str] = set()
        self._changing: set[str] = set()

    async def before_tool_call(
        self, context: ExtensionContext, call: ToolCall, definition: ToolDefinition
    ) -> None:
        """Refuse the call if the claim is lost, or its lease has ended; now the call keeps it."""
        await self._board.begin_call(context.run.run_id, self._by)
        self._begun.add(call.tool_call_id)
        only_reads = definition.permission is ToolPermission.READONLY
        is_marked = not definition.tags.isdisjoint({"write", "dangerous"})
        if does_work(definition.name) and (is_marked or not only_reads):
            self._require(context.run.run_id, definition.name)
            self._changing.add(call.tool_call_id)

    async def wrap_tool_call(
        self, context: ExtensionContext, call: ToolCall, proceed: RunTool
    ) -> ToolReturn:
        """Refuse the call if the claim was lost while a permission was asked for."""
        if call.tool_call_id in self._changing:
            self._changing.discard(call.tool_call_id)
            self._require(context.run.run_id, call.name)
        return await proceed()

    async def after_tool_call(
        self,
        context: ExtensionContext,
        call: ToolCall,
        result: ToolResult,  # noqa: ARG002
    ) -> None:
        """Renew the claim, unless its lease had ended before the call."""
        if call.tool_call_id not in self._begun:  # it was refused before this check saw it
            await self._board.begin_call(context.run.run_id, self._by)
        self._begun.discard(call.tool_call_id)
        self._changing.discard(call.tool_call_id)
        await self._board.end_call(context.run.run_id, self._by)

    def _require(self, run_id: str, name: str) -> None:
        if self._board.has_lost_claim(run_id):
            what = (
                f"{name} is refused, because what it changes could spoil another worker's work."
                " End now"
            )
            raise self._board.claim_lost(run_id, what)
