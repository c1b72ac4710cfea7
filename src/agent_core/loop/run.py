"""One agent run, from prompt to outcome. This is the file to read first."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from agent_core.errors import AgentCoreError, ErrorCode
from agent_core.events import Journal
from agent_core.loop.ask import Reply, take_turn
from agent_core.loop.begin import begin
from agent_core.loop.context import RunContext
from agent_core.loop.outcome import OnEnd, Outcome, RunStats, ignore, settle
from agent_core.loop.stop import check_stop
from agent_core.loop.tools import run_tools
from agent_core.redaction.tracebacks import log_failure
from agent_core.types import Draft

logger = logging.getLogger(__name__)


async def run_agent(ctx: RunContext, prompt: Draft, *, on_end: OnEnd = ignore) -> Outcome:
    """Run to the end and settle: whatever happens, one outcome and one closing event.

    Raises:
        asyncio.CancelledError: the run was cancelled; it has been settled as such.
    """
    return await conclude(ctx.journal, lambda stats: converse(ctx, prompt, stats), on_end=on_end)


async def conclude(
    journal: Journal, work: Callable[[RunStats], Awaitable[object]], *, on_end: OnEnd
) -> Outcome:
    """Do a run's work and write down how it ended.

    This is the only place where an exception decides the fate of a run. `on_end` is told the
    outcome before the closing event goes out, so that nobody sees the one without the other.
    """
    stats = RunStats()
    try:
        await work(stats)
    except asyncio.CancelledError:
        await settle(journal, stats.cancelled(journal.path), on_end)
        raise
    except AgentCoreError as error:
        outcome = stats.failed(error)
    except Exception as error:  # noqa: BLE001 - logged and settled
        what = f"run {journal.run.run_id} hit a bug"
        log_failure(logger, what, error=error, clean=journal.clean)
        message = f"internal error ({type(error).__name__}); the log has the details"
        outcome = stats.failed(AgentCoreError(ErrorCode.INTERNAL_ERROR, message))
    else:
        outcome = stats.completed()
    return await settle(journal, outcome, on_end)


async def converse(ctx: RunContext, prompt: Draft, stats: RunStats) -> Reply:
    """Ask the model, run the tools it calls, and repeat until it has nothing left to call."""
    await begin(ctx, prompt, stats)
    for _ in range(ctx.limits.max_turns):
        reply = await take_turn(ctx, stats)
        if reply.calls:
            await run_tools(ctx, reply.calls)
        elif objection := await check_stop(ctx, reply, stats):
            ctx.journal.add(objection.note, objection.event)
        else:
            return reply
    limit = ctx.limits.max_turns
    raise AgentCoreError(ErrorCode.MAX_TURNS, f"no final answer after {limit} turns")
