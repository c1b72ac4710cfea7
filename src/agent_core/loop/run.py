"""One agent run, from prompt to outcome. This is the file to read first."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from agent_core.aio import start_uncancelled
from agent_core.errors import (
    AgentCoreError,
    ErrorCode,
    LastTurnError,
    ParkedError,
    StorageError,
    ToolRetry,
)
from agent_core.events import Journal
from agent_core.loop.context import (
    HistorySource,
    OnEnd,
    Outcome,
    Reply,
    ResumePoint,
    RunContext,
    RunStats,
    ignore,
    settle,
)
from agent_core.loop.model_turn import last_reply, release_answer, take_turn
from agent_core.loop.tool_turn import abort_open_calls, finish_turn, run_tools
from agent_core.redaction import log_failure
from agent_core.text import plural
from agent_core.tools.base import OutputMisfitError
from agent_core.types import (
    Draft,
    EndReason,
    EventType,
    NodeType,
    StopReason,
    Usage,
    user_text,
)

if TYPE_CHECKING:
    from agent_core.loop.validators import OutputChecks
    from agent_core.tools.output import ExpectedOutput

logger = logging.getLogger(__name__)

_CUT_OFF = (
    "Your answer was cut off by the output limit. Continue exactly where it stopped; "
    "repeat nothing and do not apologise."
)


_EMPTY = (
    "Your last reply was empty. Answer the user, or call a tool if there is more to do; "
    "if everything is done, say so in a sentence."
)
_EMPTY_REPLIES = 1
"""Empty replies in a row after which the model is asked once more."""


async def run_agent(ctx: RunContext, prompt: Draft, *, on_end: OnEnd = ignore) -> Outcome:
    """Run to the end and settle: whatever happens, one outcome and one closing event.

    Raises:
        asyncio.CancelledError: the run was cancelled; it has been settled as such.
    """
    async with conclude(ctx.journal, on_end) as stats:
        await converse(ctx, prompt, stats)
    return stats.outcome


@asynccontextmanager
async def conclude(
    journal: Journal, on_end: OnEnd, *, parked_history: HistorySource | None = None
) -> AsyncGenerator[RunStats]:
    """Settle a run when the block ends; an error in the block becomes the outcome.

    This is the only place where an exception decides how a run ends.

    Args:
        journal: stores the end.
        on_end: gets the outcome before the closing event is shown, so that neither is seen without
            the other.
        parked_history: the history of a run that has waited for an answer.

    Raises:
        asyncio.CancelledError: the work was cancelled; the run has been settled as such.
    """
    stats = RunStats()
    try:
        yield stats
    except asyncio.CancelledError:
        await start_uncancelled(_settle_cancelled(journal, stats, on_end, parked_history))
        raise
    except LastTurnError:
        outcome = stats.cancelled(journal.path)
    except ParkedError as parked:
        outcome = stats.parked(parked.request_ids)
    except AgentCoreError as error:
        outcome = stats.failed(error)
    except Exception as error:  # noqa: BLE001 - logged and settled
        what = f"run {journal.run.run_id} failed on a bug"
        log_failure(logger, what, error=error, clean=journal.clean)
        message = f"internal error ({type(error).__name__}); the log has the details"
        outcome = stats.failed(AgentCoreError(ErrorCode.INTERNAL_ERROR, message))
    else:
        outcome = stats.completed()
    stats.outcome = await settle(journal, outcome, on_end)


async def _settle_cancelled(
    journal: Journal, stats: RunStats, on_end: OnEnd, parked_history: HistorySource | None
) -> None:
    if parked_history is not None and not journal.path:
        with suppress(StorageError):  # the session's next run answers its calls then
            await settle_parked(journal, parked_history, on_end)
            return
    abort_open_calls(journal)
    await settle(journal, stats.cancelled(journal.path), on_end)


async def settle_parked(
    journal: Journal, history: HistorySource, on_end: OnEnd = ignore
) -> Outcome:
    """Cancel a waiting run: its calls are answered as not made, or with what their children have.

    Raises:
        StorageError: its history cannot be read.
    """
    left_off = await history.resume(journal) or ResumePoint(0, Usage(), ())
    abort_open_calls(journal, left_off.waiting)
    outcome = Outcome(EndReason.ABORTED_TOOLS, "", left_off.usage, left_off.turns)
    return await settle(journal, outcome, on_end)


async def converse(ctx: RunContext, prompt: Draft, stats: RunStats) -> Reply:
    """Ask the model, run the tools it calls, and repeat until it has nothing left to call."""
    async with ctx.extensions.around_run():
        ctx = await begin_conversation(ctx, prompt, stats)
        while stats.turns < ctx.limits.max_turns:
            if (handover := ctx.toolbox.handover) is not None and handover.taken is not None:
                ctx = await handover.take_over(ctx)
            reply = await take_turn(ctx, stats)
            if reply.calls:
                await run_tools(ctx, reply.calls)
                if handover is not None and handover.taken is not None:
                    continue
            is_over = await may_stop(ctx, reply, stats)
            if ctx.inbox.has_mail and await hear_user(ctx, reply, stats, is_over=is_over):
                continue
            if is_over:
                ctx.inbox.is_closed = True
                return reply
        limit = ctx.limits.max_turns
        raise AgentCoreError(ErrorCode.MAX_TURNS, f"no final answer after {plural(limit, 'turn')}")


async def ask_once(ctx: RunContext, prompt: Draft, stats: RunStats) -> Reply:
    """Ask for one valid reply; the calls in it are not made."""
    await begin_conversation(ctx, prompt, stats)
    reply = await take_turn(ctx, stats)
    while not reply.calls and not await may_stop(ctx, reply, stats):
        reply = await take_turn(ctx, stats)
    return reply


async def begin_conversation(ctx: RunContext, prompt: Draft, stats: RunStats) -> RunContext:
    """Resume the path, run the session's first hooks, and add the user's message.

    Returns:
        The context of the agent that has the conversation.

    A run that continues after another process has its message on the path already; calls that had
    not begun are made now, each judged again. A reply without calls at the end of the path becomes
    the next turn: it is judged, and the model is not asked again.

    Raises:
        LastTurnError: the run continues, and was to be cancelled after its turn, which has ended.
    """
    ctx.journal.note(EventType.LOOP_STARTED, {"mode": ctx.run.mode, "role": ctx.run.role})
    left_off = await ctx.history.resume(ctx.journal)
    stats.call_ids = ctx.journal.call_ids()
    if ctx.toolbox.handover is not None:
        ctx = await ctx.toolbox.handover.restore(ctx)
    await ctx.extensions.run_started()
    if left_off is None:
        await ctx.extensions.on_message(prompt)
        ctx.journal.add(prompt, EventType.MESSAGE_CREATED)
    else:
        stats.restore(left_off)
        await finish_turn(ctx, left_off.calls)
        if (reply := last_reply(ctx)) is not None:
            stats.replayed_reply, stats.turns = reply, stats.turns - 1
        elif ctx.inbox.is_last_turn:
            raise LastTurnError
    return ctx


async def may_stop(ctx: RunContext, reply: Reply, stats: RunStats) -> bool:
    """Return whether a reply ends the run; if not, add a note for the model where one is needed.

    Raises:
        AgentCoreError: `max_output_tokens`: the answer was cut off too often in a row;
            `empty_reply`: the model has said nothing twice in a row; `output_invalid`: the answer
            did not have the expected type too often.
    """
    if reply.calls:
        may_answer = reply.deferred_answer is not None or ctx.toolbox.may_end_run
        if not (may_answer and release_answer(ctx, reply, stats)):
            return False
    if reply.is_paused:
        return False
    if reply.stop_reason is StopReason.MAX_TOKENS:
        if stats.continuations >= ctx.limits.max_continuations:
            message = f"the answer was still cut off after {stats.continuations} continuations"
            raise AgentCoreError(ErrorCode.MAX_OUTPUT_TOKENS, message)
        note = user_text(_CUT_OFF, NodeType.SYSTEM_NOTE, reason="max_output_tokens")
        stats.follow(ctx.journal.add(note))
        return False
    if reply.is_empty and not stats.continuations:
        if stats.empty_replies >= _EMPTY_REPLIES:
            message = "the model has twice sent an empty reply: no text and no call"
            raise AgentCoreError(ErrorCode.EMPTY_REPLY, message)
        note = user_text(_EMPTY, NodeType.SYSTEM_NOTE, reason="empty_reply")
        stats.follow(ctx.journal.add(note))
        return False
    objection = await ctx.extensions.before_stop("".join(stats.answer))
    may_continue = stats.stop_denials < ctx.limits.max_stop_denials
    stats.stop_objection = None if may_continue else objection
    if objection and may_continue:
        note = user_text(objection, NodeType.SYSTEM_NOTE, reason="stop_hook")
        stats.follow(ctx.journal.add(note, EventType.STOP_HOOK_PREVENTED))
        return False
    expected, checks = ctx.toolbox.expected, ctx.toolbox.checks
    if expected is not None and not accept_output(ctx, expected, stats):
        return False
    return checks is None or await accept_checked(ctx, checks, stats)


async def hear_user(ctx: RunContext, reply: Reply, stats: RunStats, *, is_over: bool) -> bool:
    """Add the messages that the user has sent meanwhile, if another turn can answer them.

    They come after the results of a turn's calls, or in place of the run's end; an answer that was
    cut off is continued first. Messages that come too late stay where they wait.

    Returns:
        Whether there were any, so that the run continues.

    Raises:
        LastTurnError: the run is to be cancelled after this turn, and would continue.
    """
    if ctx.inbox.is_last_turn:
        if is_over:
            return False
        raise LastTurnError
    is_boundary = is_over or bool(reply.calls)
    if not is_boundary or stats.turns >= ctx.limits.max_turns:
        return False
    return await ctx.inbox.deliver(ctx.journal, ctx.extensions)


def accept_output(ctx: RunContext, expected: "ExpectedOutput", stats: RunStats) -> bool:
    """Return whether the answer has the expected type; if not, send it back to the model.

    Raises:
        AgentCoreError: `output_invalid`: it was sent back as often as allowed.
    """
    try:
        stats.output, stats.is_typed = expected.read(stats.answer), True
    except OutputMisfitError as misfit:
        if stats.output_retries >= expected.retries:
            raise expected.failure(misfit, "".join(stats.answer)) from None
        objection = expected.objection(misfit)
        note = user_text(objection, NodeType.SYSTEM_NOTE, reason="output_invalid")
        stats.follow(ctx.journal.add(note, EventType.MESSAGE_CREATED))
        return False
    return True


async def accept_checked(ctx: RunContext, checks: "OutputChecks", stats: RunStats) -> bool:
    """Return whether the program's functions accept the answer; if not, send it to the model again.

    Raises:
        AgentCoreError: `output_invalid`: it was sent back as often as allowed; or a function
            failed.
    """
    text = "".join(stats.answer)
    try:
        value = stats.output if stats.is_typed else text
        stats.output, stats.is_typed = await checks.checked(ctx, value), True
    except ToolRetry as refusal:
        if stats.output_retries >= checks.retries:
            raise checks.failure(refusal, text) from None
        objection = f"Your answer was refused: {refusal.reason}\nGive the whole answer again."
        note = user_text(objection, NodeType.SYSTEM_NOTE, reason="output_invalid")
        stats.is_typed = False
        stats.follow(ctx.journal.add(note, EventType.MESSAGE_CREATED))
        return False
    return True
