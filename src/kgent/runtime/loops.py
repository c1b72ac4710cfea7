"""Where plain code meets coroutines: an event loop of its own, stopped when the run is."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from kgent.runtime.cancellation import Cancellation

T = TypeVar("T")


def in_own_loop(work: Callable[[], Coroutine[Any, Any, T]], *, cancellation: Cancellation) -> T:
    """Run a coroutine to its end. Safe where an event loop runs already: it blocks that one.

    Raises:
        asyncio.CancelledError: the run was to stop, and the work has been cancelled.
    """

    async def watched() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def stop() -> None:
            if task is not None:
                with suppress(RuntimeError):  # the loop has just ended
                    loop.call_soon_threadsafe(task.cancel)

        with cancellation.calling(stop):
            return await work()

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(watched())
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="kgent") as pool:
        return pool.submit(lambda: asyncio.run(watched())).result()


class BackgroundLoop:
    """An event loop in a thread of its own, for objects that belong to one loop for life."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kgent", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        """Stop the loop and its thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
