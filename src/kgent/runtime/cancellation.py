"""Cancellation of a run, from any thread or signal handler."""

import asyncio
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

from agent_core.errors import ErrorCode
from kgent.errors import ErrorInfo, engine_error


class Cancellation:
    """A request to stop a run, made at most once, from any thread or signal handler."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may come while this thread holds it
        self._reason: ErrorInfo | None = None
        self._listeners: list[Callable[[], object]] = []
        self._tasks: set[asyncio.Task[object] | None] = set()

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

    @contextmanager
    def stopping_task(self) -> Generator[None]:
        """Cancel the current task with the run, until the end of the block.

        A block inside another of the same task changes nothing.
        """
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        if task is None or task in self._tasks:
            yield
            return
        is_inside, has_asked = True, False

        def stop() -> None:
            nonlocal has_asked
            if is_inside:
                has_asked = task.cancel()

        def stop_from_anywhere() -> None:
            with suppress(RuntimeError):  # the loop has just ended
                loop.call_soon_threadsafe(stop)

        self._tasks.add(task)
        try:
            with self.calling(stop_from_anywhere):
                yield
        finally:
            is_inside = False
            self._tasks.discard(task)
            if has_asked:
                task.uncancel()
