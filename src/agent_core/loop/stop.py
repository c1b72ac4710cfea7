"""May it end? A reply without tool calls ends a run, unless something objects."""

from dataclasses import dataclass

from agent_core.errors import AgentCoreError, ErrorCode
from agent_core.loop.ask import Reply
from agent_core.loop.context import RunContext
from agent_core.loop.outcome import RunStats
from agent_core.types import Draft, EventType, NodeType, StopReason, user_text

_CUT_OFF = (
    "Your answer was cut off by the output limit. Continue exactly where it stopped; "
    "repeat nothing and do not apologise."
)


@dataclass(frozen=True, slots=True)
class StopVeto:
    """A reason to go on, as the model will read it."""

    note: Draft
    event: EventType


async def check_stop(ctx: RunContext, reply: Reply, stats: RunStats) -> StopVeto | None:
    """Return what the model should hear instead of the end, or None to let the run end.

    Raises:
        AgentCoreError: `max_output_tokens`: the answer was cut off too often in a row.
    """
    if reply.stop_reason is StopReason.MAX_TOKENS:
        if stats.continuations >= ctx.limits.max_continuations:
            message = f"the answer was still cut off after {stats.continuations} continuations"
            raise AgentCoreError(ErrorCode.MAX_OUTPUT_TOKENS, message)
        stats.continuations += 1
        note = user_text(_CUT_OFF, NodeType.SYSTEM_NOTE, reason="max_output_tokens")
        return StopVeto(note, EventType.MESSAGE_CREATED)
    stats.continuations = 0
    if stats.stop_denials >= ctx.limits.max_stop_denials:
        return None
    if reason := await ctx.hooks.before_stop():
        stats.stop_denials += 1
        stats.answer.clear()
        note = user_text(reason, NodeType.SYSTEM_NOTE, reason="stop_hook")
        return StopVeto(note, EventType.STOP_HOOK_PREVENTED)
    return None
