"""Follows the children of a run, beside the events of the run itself."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from agent_core.api import RunHandle
    from agent_core.types import RuntimeEvent

_CATCH_UP_S = 5.0
"""Seconds that the end of a child waits until everything before it is shown."""


class Children:
    """Follows each child of a run from its start; what has not ended is left at the end.

    Args:
        handle: of the run.
        show: shows an event of a child.
    """

    def __init__(
        self, handle: "RunHandle[Any]", show: "Callable[[RuntimeEvent], Awaitable[None] | None]"
    ) -> None:
        self._handle = handle
        self._show = show
        self._followed: dict[str, asyncio.Task[None]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._followed.values():
            task.cancel()
            await asyncio.wait([task])

    async def note(self, event: "RuntimeEvent") -> None:
        """Take an event of the run before it is shown: a child begins, or has ended."""
        if event.payload.get("child_run_id") is None:
            return
        from agent_core.types.event_details import (  # noqa: PLC0415 - for readers of events only
            ChildCreated,
            ChildEnded,
            ChildEvent,
            WorkerDispatched,
        )

        details = event.details
        child_id = details.child_run_id if isinstance(details, ChildEvent) else None
        if child_id is None:
            return
        followed = self._followed.get(child_id)
        if followed is None and isinstance(details, ChildCreated | WorkerDispatched):
            self._followed[child_id] = asyncio.create_task(self._follow(child_id))
        elif followed is not None and isinstance(details, ChildEnded):
            await asyncio.wait([followed], timeout=_CATCH_UP_S)

    async def wait(self) -> None:
        """Wait until everything of the children is shown."""
        if self._followed:
            await asyncio.wait(self._followed.values())

    async def _follow(self, child_run_id: str) -> None:
        async with aclosing(self._handle.child_events(child_run_id)) as events:
            async for event in events:
                if (showing := self._show(event)) is not None:
                    await showing
