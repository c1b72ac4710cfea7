"""Starts a child of any kind, and makes its result: the part that all of them share."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from agent_core.agents.child import ChildCancelReason, ChildRun
from agent_core.agents.children import RunningChild
from agent_core.agents.plan import ChildSpec, SpawnerDeps
from agent_core.agents.ports import RunSpec
from agent_core.agents.repair import OutputSchemaCheck
from agent_core.agents.report import ChildReport, report_of
from agent_core.errors import ErrorCode
from agent_core.events import EventStream, Journal
from agent_core.types import ErrorPayload, EventLevel, EventType, JsonBlock, RunStatus, ToolResult


@dataclass(frozen=True, slots=True)
class ChildResult:
    """A child that has ended, the report it gave, and the error if it did not do its task."""

    child: ChildRun
    report: ChildReport
    error: ErrorPayload | None

    def as_result(self) -> ToolResult:
        """The answer to the call that started it."""
        content = JsonBlock(data=self.report.as_json())
        return ToolResult(content=[content], is_error=self.error is not None, error=self.error)


async def start_child(
    deps: SpawnerDeps,
    leader: Journal,
    plan: ChildSpec,
    *,
    freed: Callable[[], object] = lambda: None,
) -> RunningChild:
    """Start a child; `finish_child` waits for it.

    `freed` is called once, when the child has ended for good or will never exist.

    Raises:
        ToolError: `child_agent_limit_exceeded`, or `task_not_dispatchable`, its Task has ended
            meanwhile; nothing was started.
        AgentCoreError: its context cannot be had; nothing was started.
    """

    async def make() -> ChildRun:
        child = await _made(deps, leader, plan)
        plan.duty.begin()  # from here to its start nothing waits
        return child

    return await deps.children.start(make, leader.run, freed=freed)


async def run_child(deps: SpawnerDeps, leader: Journal, plan: ChildSpec) -> ChildResult:
    """Run a child to its end.

    Raises:
        ToolError: `child_agent_limit_exceeded`; nothing was started.
        AgentCoreError: its context cannot be had; nothing was started.
        asyncio.CancelledError: the leader was cancelled, and the child with it.
    """
    return await finish_child(deps, await start_child(deps, leader, plan), plan)


async def finish_child(deps: SpawnerDeps, running: RunningChild, plan: ChildSpec) -> ChildResult:
    """Wait for a child and make its result.

    Raises:
        AgentCoreError: it could not be stored; there is none.
        asyncio.CancelledError: the leader was cancelled, and the child with it.
    """
    await deps.children.wait(running, timeout_ms=plan.assignment.timeout_ms)
    child, expected = running.child, plan.expected
    error = _failure(child)
    if error is None and expected is not None and (faults := expected.faults(child.outcome.text)):
        event = EventType.CHILD_RESULT_SCHEMA_VALIDATION_FAILED
        child.tell_parent(event, EventLevel.WARNING, faults=faults)
        error = _error(
            child,
            ErrorCode.SCHEMA_ERROR,
            f"its answer does not have the expected shape: {'; '.join(faults)}",
            reason="child_result_schema_validation_failed",
        )
    return ChildResult(child, _report(child, plan), error)


async def _made(deps: SpawnerDeps, leader: Journal, plan: ChildSpec) -> ChildRun:
    """The child, ready to run; nothing of it is stored yet."""
    stream, duty, expected = EventStream(), plan.duty, plan.expected
    journal = deps.open_journal(plan.run, stream, plan.path)
    ctx = await deps.contexts.context(
        RunSpec(
            run=plan.run,
            journal=journal,
            history=plan.history,
            definition=plan.definition,
            tools=duty.tools(journal),
            granted=plan.granted,
            board=duty.board(journal),
        )
    )
    ctx = replace(ctx, toolbox=duty.guarded(ctx.toolbox))
    if expected is not None:
        ctx = replace(ctx, hooks=OutputSchemaCheck(ctx.hooks, journal, expected))
    return ChildRun(
        ctx,
        plan.prompt,
        parent=leader,
        stream=stream,
        agent=plan.agent if plan.is_new else None,
        record=dict(plan.record),
        before_end=duty.before_end(journal),
    )


def _failure(child: ChildRun) -> ErrorPayload | None:
    outcome = child.outcome
    match outcome.status:
        case RunStatus.COMPLETED:
            return None
        case RunStatus.FAILED:
            cause = outcome.error
            code = cause.code if cause else ErrorCode.INTERNAL_ERROR
            details = cause.details if cause else {}
            reason = cause.message if cause else "the cause is unknown"
            return _error(child, code, f"it failed: {reason}", **details)
        case _ if child.stop_reason is ChildCancelReason.TIMEOUT:
            return _error(child, ErrorCode.TIMEOUT, "it did not finish in time and was stopped")
        case _:
            why = child.stop_reason or ChildCancelReason.RUNTIME_CLOSED
            return _error(child, ErrorCode.CANCELLED, "it was stopped", reason=why.value)


def _error(child: ChildRun, code: ErrorCode, message: str, **details: Any) -> ErrorPayload:
    run_id = child.run.run_id
    return ErrorPayload(
        type="ToolError",
        code=code,
        message=f"the child agent's run {run_id}: {message}",
        details={**details, "child_run_id": run_id},
    )


def _report(child: ChildRun, plan: ChildSpec) -> ChildReport:
    outcome, run = child.outcome, child.run
    mine = [node for node in child.ctx.journal.path if node.run_id == run.run_id]
    facts = {
        "child_run_id": run.run_id,
        "child_agent_id": run.agent_id,
        "agent_definition_id": plan.definition.agent_definition_id,
        "end_reason": outcome.end_reason.value,
        "turns": outcome.turns,
        "usage": outcome.usage.model_dump(exclude={"raw_usage"}),
    }
    return report_of(
        outcome.text,
        mine,
        status=outcome.status.value,
        has_shape=plan.expected is not None,
        metadata=facts,
    )
