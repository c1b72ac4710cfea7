"""Cancellation of a run from any thread, and running of coroutines from synchronous code."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import copy_context
from typing import Any, TypeVar

from agent_core.aio import is_loop_running
from agent_core.errors import ErrorCode
from kgent.errors import ErrorInfo, engine_error

T = TypeVar("T")


class Cancellation:
    """A request to stop a run, made at most once, from any thread or signal handler."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may come while this thread holds it
        self._reason: ErrorInfo | None = None
        self._listeners: list[Callable[[], object]] = []

    @property
    def reason(self) -> ErrorInfo | None:
        """Return the reason to stop the run; None if it may continue."""
        return self._reason

    @property
    def is_cancelled(self) -> bool:
        """Return whether the run has been asked to stop."""
        return self._reason is not None

    def cancel(
        self, message: str = "the run was cancelled", *, code: ErrorCode = ErrorCode.CANCELLED
    ) -> None:
        """Ask the run to stop. Only the first reason is kept; later calls change nothing."""
        with self._lock:
            if self._reason is not None:
                return
            self._reason = engine_error(code, message)
            listeners = list(self._listeners)
        for listener in listeners:
            listener()

    @contextmanager
    def calling(self, listener: Callable[[], object]) -> Generator[None]:
        """Call `listener` when the run is cancelled, or immediately if it already is."""
        with self._lock:
            self._listeners.append(listener)
            is_late = self.is_cancelled
        try:
            if is_late:
                listener()
            yield
        finally:
            with self._lock:
                self._listeners.remove(listener)


def run_in_loop(work: Callable[[], Coroutine[Any, Any, T]], *, cancellation: Cancellation) -> T:
    """Run a coroutine to its end, and block until then, even in a thread with an event loop.

    Raises:
        asyncio.CancelledError: the run was cancelled, and so was the coroutine.
    """

    async def work_until_cancelled() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def stop() -> None:
            if task is not None:
                with suppress(RuntimeError):  # the loop has just ended
                    loop.call_soon_threadsafe(task.cancel)

        with cancellation.calling(stop):
            return await work()

    if not is_loop_running():
        return asyncio.run(work_until_cancelled())
    context = copy_context()
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="kgent") as pool:
        return pool.submit(context.run, lambda: asyncio.run(work_until_cancelled())).result()


class BackgroundLoop:
    """An event loop in its own thread, for objects that have to stay in one loop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kgent", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in that loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def run_beside(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in that loop and await it; a cancellation reaches it."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def close(self) -> None:
        """Stop the loop and its thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
