"""One at a time, and never half: a lock that outlives the caller who took it."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class SerialExecutor:
    """Runs work one after the other, each to its end.

    A caller that is cancelled while it waits for its turn has done nothing. One that is
    cancelled later leaves at once; its work goes on, and so does its turn.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Wait for the turn, and return what the work returns."""
        await self._lock.acquire()
        running = asyncio.create_task(work())
        running.add_done_callback(self._end_turn)
        return await asyncio.shield(running)

    def _end_turn(self, done: "asyncio.Task[Any]") -> None:
        self._lock.release()
        if not done.cancelled():
            done.exception()  # seen: whoever waited for it may be gone
