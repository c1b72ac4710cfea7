"""Sends a worker to a Task: who goes, what it may touch, and how its step is left behind."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from agent_core.agents.child import BeforeEnd, ChildCancelReason
from agent_core.agents.children import RunningChild
from agent_core.agents.dispatches import Dispatches
from agent_core.agents.fence import fenced
from agent_core.agents.plan import (
    ChildSpec,
    SpawnerDeps,
    checked_tools,
    child_identity,
    expected_output,
)
from agent_core.agents.prompts import worker_prompt
from agent_core.agents.start import ChildResult, finish_child, start_child
from agent_core.agents.workers import WorkerQuery, WorkerSelection
from agent_core.context.composer import TaskBoardSource
from agent_core.errors import AgentCoreError, ErrorCode, ToolError
from agent_core.events import Journal, SessionStore
from agent_core.redaction import log_failure
from agent_core.tasks import Actor, BoardLimits, RunEnding, TaskBoard, TaskScope, board_text
from agent_core.tasks.tools import task_tools
from agent_core.tools.agent_tools import Dispatch
from agent_core.tools.base import Tool, ToolContext, ToolReturn
from agent_core.tools.registry import Toolbox
from agent_core.types import (
    AgentRecord,
    AgentRole,
    AgentType,
    ErrorPayload,
    EventLevel,
    EventType,
    JsonBlock,
    Node,
    NodeType,
    RunIdentity,
    ToolResult,
    user_text,
    utc_now,
)

logger = logging.getLogger(__name__)

_MAX_ERROR = 2000


class WorkerTaskBinding:
    """The duty of a worker's run: one Task, some of its steps, and at most one claim."""

    def __init__(
        self, board: TaskBoard, scope: TaskScope, run: RunIdentity, *, limits: BoardLimits
    ) -> None:
        self._board = board
        self._scope = scope
        self._run = run
        self._limits = limits

    def tools(self, journal: Journal) -> Sequence[Tool]:
        """The task tools, within the scope of the dispatch."""
        return task_tools(self._board, journal, scope=self._scope)

    def board(self, journal: Journal) -> TaskBoardSource | None:
        """The worker's part of the board, once it has used a task tool."""

        def shown(budget: int) -> str | None:
            if not _has_used_task_tools(journal.path):
                return None
            return board_text(
                self._board.active(),
                now=utc_now(),
                agent_id=self._run.agent_id,
                scope=self._scope,
                limits=replace(self._limits, tokens=budget),
            )

        return shown

    def guarded(self, toolbox: Toolbox) -> Toolbox:
        """Without its claim the run changes nothing any more."""
        return fenced(toolbox, self._board.has_lost_claim)

    def begin(self) -> None:
        """Count the run among those of its Task."""
        self._board.admit(self._run.run_id, self._scope.task_id)

    def before_end(self, journal: Journal) -> BeforeEnd:
        """A step that the run leaves open has failed."""
        by = Actor(self._run.agent_id, self._run.run_id, journal)

        async def close_step(reason: ChildCancelReason | None, error: BaseException | None) -> None:
            ending = _ending(reason, error)
            words = _words(error) if ending is RunEnding.FAILED else None
            try:
                await self._board.run_ended(self._run.run_id, ending, by, error=words)
            except AgentCoreError:
                # The claim's lease ends all the same; the run itself did what it did.
                logger.warning("the step of %s stays open", self._run.run_id, exc_info=True)

        return close_step


def _ending(reason: ChildCancelReason | None, error: BaseException | None) -> RunEnding:
    """How a run ended that was stopped for this reason, or by this exception."""
    if reason is ChildCancelReason.TIMEOUT:
        return RunEnding.TIMEOUT
    if reason is not None or isinstance(error, asyncio.CancelledError):
        return RunEnding.CANCELLED
    return RunEnding.FINISHED if error is None else RunEnding.FAILED


def _words(error: BaseException | None) -> str:
    if isinstance(error, AgentCoreError):
        return " ".join(f"{error.code}: {error.message}".split())[:_MAX_ERROR]
    return f"{ErrorCode.INTERNAL_ERROR}: {type(error).__name__}; the log has the details"


class WorkerHistory:
    """A worker's conversations: each dispatch is a new branch from one common root."""

    def __init__(self, store: SessionStore, agent: AgentRecord, root: Sequence[Node]) -> None:
        self._store = store
        self._agent = agent
        self._root = root

    async def resume(self, journal: Journal) -> None:
        """Begin at the root; the first dispatch plants it."""
        if self._root:
            journal.path.extend(self._root)
            return
        facts = self._agent.metadata
        text = f"You are worker {facts['worker_id']} of the pool {facts['worker_pool_id']}."
        node = journal.add(user_text(text, NodeType.SYSTEM_NOTE, reason="worker_root"))
        await journal.commit()
        await self._store.update_agent(
            self._agent.agent_id, metadata={"root_node_id": node.node_id}
        )


@dataclass(frozen=True, slots=True)
class DispatchDecision:
    """A dispatch that can go ahead."""

    choice: WorkerSelection
    run: RunIdentity
    scope: TaskScope
    granted: frozenset[str]


class Dispatcher:
    """Dispatches the workers of one orchestrator run."""

    def __init__(
        self, deps: SpawnerDeps, leader: Journal, board: TaskBoard, *, limits: BoardLimits
    ) -> None:
        self.dispatches = Dispatches()
        self._deps = deps
        self._leader = leader
        self._board = board
        self._limits = limits

    async def dispatch(self, dispatch: Dispatch, context: ToolContext) -> ToolReturn:
        """Send a worker, and tell what became of its step; or return a handle once it runs.

        Raises:
            ToolError: nobody was sent; the code says why.
        """
        try:
            order = await self._accepted(dispatch)
            plan = await self._plan(order, dispatch, context)
            freed = partial(self._free, order.run)
            running = await start_child(self._deps, self._leader, plan, freed=freed)
            if dispatch.wait:
                return await self._result(running, plan, order)
        except AgentCoreError as error:
            self._note_failure(dispatch, error)
            raise
        handle = {**_who(order), "status": "running"}
        work = self._late_result(running, plan, order, dispatch=dispatch)
        self.dispatches.add(handle, asyncio.create_task(work, name=f"wait {order.run.run_id}"))
        return handle

    async def close(self, reason: ChildCancelReason) -> None:
        """Stop the workers that still run, because their orchestrator's run is over."""
        children = self._deps.children
        await children.stop_all(self._leader.run, reason)
        left_behind = [each for each in self.dispatches.run_ids() if children.is_running(each)]
        await self.dispatches.close(left_behind)

    async def _result(
        self, running: RunningChild, plan: ChildSpec, order: DispatchDecision
    ) -> ToolResult:
        return await self._answer(await finish_child(self._deps, running, plan), order)

    async def _late_result(
        self, running: RunningChild, plan: ChildSpec, order: DispatchDecision, *, dispatch: Dispatch
    ) -> ToolResult:
        """The result for whoever collects it; an error is one too."""
        try:
            return await self._result(running, plan, order)
        except AgentCoreError as error:
            self._note_failure(dispatch, error)
            failure = error
        except asyncio.CancelledError:
            message = f"the worker's run {order.run.run_id} did not stop in time"
            failure = ToolError(ErrorCode.CANCELLED, message)
        except Exception as error:  # noqa: BLE001 - logged, and told as any other failure
            what = f"the result of {order.run.run_id} hit a bug"
            log_failure(logger, what, error=error, clean=self._leader.clean)
            failure = ToolError(ErrorCode.INTERNAL_ERROR, f"{what}; the log has the details")
        return ToolResult(is_error=True, error=ErrorPayload.of(failure))

    def _note_failure(self, dispatch: Dispatch, error: AgentCoreError) -> None:
        facts = dispatch.model_dump(
            include={"task_id", "worker_pool_id", "worker_agent_id"}, exclude_none=True
        )
        facts |= {"code": error.code, "message": error.message}
        failed = EventType.WORKER_DISPATCH_FAILED
        self._leader.note(failed, facts, level=EventLevel.WARNING)

    def _free(self, run: RunIdentity) -> None:
        self._deps.workers.release(run.agent_id, run.run_id)
        self._board.dismiss(run.run_id)

    async def _accepted(self, dispatch: Dispatch) -> DispatchDecision:
        """Check everything, choose the worker, and take it: nothing waits in between."""
        leader, workers = self._leader.run, self._deps.workers
        by = Actor(leader.agent_id, leader.run_id, self._leader)
        step_ids = dispatch.allowed_step_ids
        await self._board.require_dispatchable(dispatch.task_id, step_ids, by)
        tools = await checked_tools(self._deps, AgentRole.WORKER, dispatch.allowed_tools)
        dag = await self._board.get(dispatch.task_id, by)
        wanted = WorkerQuery(
            session_id=leader.session_id,
            pool_id=dispatch.worker_pool_id,
            agent_id=dispatch.worker_agent_id,
            tools=tools or (),
            step_ids=step_ids,
        )
        choice = workers.choose(wanted, dag)
        worker = choice.worker
        agent_id = worker.agent_id(leader.session_id)
        run = child_identity(leader, AgentRole.WORKER, agent_id=agent_id)
        allowed = None if step_ids is None else frozenset(step_ids)
        workers.claim(agent_id, run.run_id)
        scope = TaskScope(dispatch.task_id, allowed, worker.pool_id)
        return DispatchDecision(choice, run, scope, worker.granted(tools))

    async def _plan(
        self, order: DispatchDecision, dispatch: Dispatch, context: ToolContext
    ) -> ChildSpec:
        try:
            agent, is_new = await self._agent(order)
            root_id = agent.metadata.get("root_node_id")
            root = await self._deps.store.path(root_id) if root_id else []
            expected = expected_output(dispatch)
        except BaseException:
            self._deps.workers.release(order.run.agent_id, order.run.run_id)
            raise
        worker = order.choice.worker
        record = {
            "purpose": "worker",
            "agent_definition_id": worker.definition_id,
            "worker_id": worker.worker_id,
            "worker_pool_id": worker.pool_id,
            "task_id": dispatch.task_id,
            "allowed_step_ids": dispatch.allowed_step_ids and list(dispatch.allowed_step_ids),
            "selection_reason": order.choice.reason,
            "tool_call_id": context.tool_call_id,
        }
        return ChildSpec(
            run=order.run,
            agent=agent,
            is_new=is_new,
            definition=order.choice.definition,
            assignment=dispatch,
            expected=expected,
            prompt=worker_prompt(dispatch, self._leader.run, context.tool_call_id),
            history=WorkerHistory(self._deps.store, agent, root),
            granted=order.granted,
            record=record,
            duty=WorkerTaskBinding(self._board, order.scope, order.run, limits=self._limits),
        )

    async def _agent(self, order: DispatchDecision) -> tuple[AgentRecord, bool]:
        """The worker's row; it is written at its first dispatch."""
        found = await self._deps.store.agent(order.run.agent_id)
        if found is not None:
            return found, False
        worker, leader, now = order.choice.worker, self._leader.run, utc_now()
        record = AgentRecord(
            agent_id=order.run.agent_id,
            session_id=leader.session_id,
            parent_agent_id=leader.agent_id,
            agent_type=AgentType.SUB,
            agent_definition_id=worker.definition_id,
            created_by_run_id=leader.run_id,
            metadata={
                "purpose": "worker",
                "worker_id": worker.worker_id,
                "worker_pool_id": worker.pool_id,
            },
            created_at=now,
            updated_at=now,
        )
        return record, True

    async def _answer(self, finished: ChildResult, order: DispatchDecision) -> ToolResult:
        """The result; where the worker's words and the Task's step differ, the step holds.

        What another run has made of a step whose claim this one has lost is not shown.
        """
        run, leader = order.run, self._leader.run
        by = Actor(leader.agent_id, leader.run_id, self._leader)
        claimed = await self._board.outcome(run.run_id, by)
        step_id = claimed.step_id if claimed is not None else None
        report = replace(finished.report, step_id=step_id)
        await self._deps.store.update_agent(run.agent_id, result=report.as_json())
        answer = _who(order)
        if claimed is not None:
            answer |= {"claimed_step_id": step_id, "claim_lost": claimed.is_lost}
            if (step := claimed.step) is not None:
                answer["step_status"] = step.status.value
                if step.result_summary is not None:
                    answer["step_result_summary"] = step.result_summary
        answer |= {"no_step_claimed": claimed is None, "worker_result": report.as_json()}
        error = finished.error
        return ToolResult(content=[JsonBlock(data=answer)], is_error=error is not None, error=error)


def _who(order: DispatchDecision) -> dict[str, Any]:
    return {
        "worker_agent_id": order.run.agent_id,
        "child_run_id": order.run.run_id,
        "stream_id": order.run.run_id,
        "selection_reason": order.choice.reason,
    }


def _has_used_task_tools(path: Sequence[Node]) -> bool:
    return any(call.name.startswith("agent.task_") for node in path for call in node.calls)
