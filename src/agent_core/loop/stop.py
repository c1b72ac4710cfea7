"""May it end? A reply without tool calls ends a run, unless something objects."""

from dataclasses import dataclass

from agent_core.errors import AgentCoreError, ErrorCode
from agent_core.loop.ask import Reply
from agent_core.loop.context import RunContext
from agent_core.loop.outcome import Tally
from agent_core.types import Draft, EventType, NodeType, StopReason, user_text

_CUT_OFF = (
    "Your answer was cut off by the output limit. Continue exactly where it stopped; "
    "repeat nothing and do not apologise."
)


@dataclass(frozen=True, slots=True)
class Objection:
    """A reason to go on, as the model will read it."""

    note: Draft
    event: EventType


async def reason_to_go_on(ctx: RunContext, reply: Reply, tally: Tally) -> Objection | None:
    """Return what the model should hear instead of the end, or None to let the run end.

    Raises:
        AgentCoreError: `max_output_tokens`: the answer was cut off too often in a row.
    """
    if reply.stop_reason is StopReason.MAX_TOKENS:
        if tally.continuations >= ctx.limits.max_continuations:
            message = f"the answer was still cut off after {tally.continuations} continuations"
            raise AgentCoreError(ErrorCode.MAX_OUTPUT_TOKENS, message)
        tally.continuations += 1
        note = user_text(_CUT_OFF, NodeType.SYSTEM_NOTE, reason="max_output_tokens")
        return Objection(note, EventType.MESSAGE_CREATED)
    tally.continuations = 0
    if tally.stop_denials >= ctx.limits.max_stop_denials:
        return None
    if reason := await ctx.hooks.before_stop():
        tally.stop_denials += 1
        tally.answer.clear()
        note = user_text(reason, NodeType.SYSTEM_NOTE, reason="stop_hook")
        return Objection(note, EventType.STOP_HOOK_PREVENTED)
    return None
