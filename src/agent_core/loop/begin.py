"""The beginning of a run: pick the conversation up where it was left, and add the new message."""

from agent_core.loop.context import RunContext
from agent_core.loop.outcome import RunStats
from agent_core.types import Draft, EventType, TextBlock


async def begin(ctx: RunContext, prompt: Draft, stats: RunStats) -> None:
    """Resume the path, answer what a dead process left open, tell the hooks, and hear the user."""
    ctx.journal.note(EventType.LOOP_STARTED, {"mode": ctx.run.mode, "role": ctx.run.role})
    await ctx.history.resume(ctx.journal)
    stats.call_ids |= {call.tool_call_id for node in ctx.journal.path for call in node.calls}
    await ctx.hooks.session_start()
    await ctx.hooks.user_prompt(text_of(prompt))
    ctx.journal.add(prompt, EventType.MESSAGE_CREATED)


def text_of(draft: Draft) -> str:
    """What a draft says in words."""
    return "".join(block.text for block in draft.content if isinstance(block, TextBlock))
