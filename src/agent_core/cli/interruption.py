"""Interrupts a command that has an event loop of its own, in another thread than the signals."""

import asyncio
from collections.abc import Coroutine
from threading import Lock
from typing import Any


class Interruption:
    """Runs the work of a command, and ends it when asked to."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._work: tuple[asyncio.AbstractEventLoop, asyncio.Task[int]] | None = None
        self._is_asked = False

    def interrupt(self) -> None:
        """End the work, now or as soon as it begins."""
        with self._lock:
            self._is_asked = True
            if self._work is not None:
                loop, task = self._work
                loop.call_soon_threadsafe(task.cancel)

    def run(self, work: Coroutine[Any, Any, int]) -> int:
        """Run the work to its end, on a loop of its own.

        Raises:
            KeyboardInterrupt: it was interrupted.
        """
        try:
            return asyncio.run(self._watched(work))
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None

    async def _watched(self, work: Coroutine[Any, Any, int]) -> int:
        task = asyncio.create_task(work)
        with self._lock:
            self._work = asyncio.get_running_loop(), task
            if self._is_asked:
                task.cancel()
        try:
            return await task
        finally:
            with self._lock:
                self._work = None
