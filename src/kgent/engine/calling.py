"""Calling a plain tool from an event loop: in a thread of its own, and waited for when stopped."""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

from agent_core.tools.threads import in_own_thread
from kgent.runtime.context import RunContext
from kgent.tools.registry import ToolDefinition, call_tool
from kgent.tools.results import ToolResult

GRACE_S = 5.0
"""How long a call may take to let go once the run is to stop; then it is left behind."""


async def call_in_thread(
    definition: ToolDefinition, args: Mapping[str, Any], context: RunContext, *, call_id: str
) -> ToolResult:
    """Run a call without holding up the loop.

    A cancelled call is given `GRACE_S` seconds to end: what it writes stays part of the run.
    """
    work = asyncio.create_task(
        in_own_thread(partial(call_tool, definition, args, context, call_id=call_id))
    )
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        work.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait([work], timeout=GRACE_S)
        raise
