"""Waits for what the user has asked to be remembered, and shows what became of it."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from agent_core.cli.terminal import Style
from agent_core.text import visible

if TYPE_CHECKING:
    from agent_core.api import AgentRuntime
    from agent_core.types import MemoryWish

Say = Callable[[str, Style], object]
"""Shows a line beside the answer."""

_WAITING = "updating memory as you asked; Ctrl-C leaves it to the next run"
_LEFT = "memory is not updated yet; the next run does it"
_IN_PLAN_MODE = "not remembered in plan mode; the next run that is not a plan does it"
_UNWATCHED_S = 60.0
"""Seconds that a process waits if no user can press Ctrl-C."""


async def finish_wishes(
    runtime: "AgentRuntime",
    session_id: str,
    say: Say,
    *,
    may_interrupt: Callable[[Callable[[], object] | None], object],
    is_watched: bool,
) -> None:
    """Wait until memory has what the user asked for, and show it; an interrupt leaves it.

    Args:
        runtime: has ended its runs.
        session_id: the session that is shown.
        say: shows a line.
        may_interrupt: sets what an interrupt calls meanwhile; None afterwards.
        is_watched: a person sees the lines.
    """
    finishing = asyncio.create_task(runtime.finish_wishes(lambda: say(_WAITING, Style.DIM)))
    may_interrupt(finishing.cancel)
    await asyncio.wait([finishing], timeout=None if is_watched else _UNWATCHED_S)
    may_interrupt(None)
    if not finishing.done():
        finishing.cancel()
        await asyncio.wait([finishing])
    if finishing.cancelled():
        runtime.leave_wishes()
        say(_LEFT, Style.WARN)
    else:
        show_wishes(finishing.result(), session_id, say)


def show_wishes(wishes: "list[MemoryWish]", session_id: str, say: Say) -> None:
    """Show what became of wishes."""
    for wish in wishes:
        where = "" if wish.session_id == session_id else f" (from session {wish.session_id})"
        for what, summaries in (("remembered", wish.remembered), ("forgotten", wish.forgotten)):
            for summary in summaries:
                say(visible(f"{what}: {summary}{where}", one_line=True), Style.DIM)
        if wish.error:
            text = f"memory was not updated: {wish.error}; a later run tries again{where}"
            say(visible(text, one_line=True), Style.WARN)
        elif wish.is_left:
            say(visible(f"{_IN_PLAN_MODE}{where}", one_line=True), Style.DIM)
        elif not (wish.remembered or wish.forgotten or where):
            say("nothing new to remember", Style.DIM)
