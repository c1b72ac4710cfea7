"""Stopping a run from anywhere: a signal handler, another thread, a clock."""

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager

from agent_core.errors import ErrorCode
from kgent.errors import ErrorCategory, ErrorInfo


class Cancellation:
    """A request to stop, made at most once; whoever works asks it, or is called when it comes."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may come while this thread holds it
        self._reason: ErrorInfo | None = None
        self._listeners: list[Callable[[], object]] = []

    @property
    def reason(self) -> ErrorInfo | None:
        """Why the run is to stop; None while it may go on."""
        return self._reason

    @property
    def is_cancelled(self) -> bool:
        """Whether the run is to stop."""
        return self._reason is not None

    def cancel(
        self,
        message: str = "the run was cancelled",
        *,
        code: ErrorCode = ErrorCode.CANCELLED,
    ) -> None:
        """Ask the run to stop. The first reason counts; later ones change nothing."""
        with self._lock:
            if self._reason is not None:
                return
            self._reason = ErrorInfo(
                code=code.value, message=message, category=ErrorCategory.ENGINE
            )
            listeners = list(self._listeners)
        for listener in listeners:
            listener()

    @contextmanager
    def calling(self, listener: Callable[[], object]) -> Generator[None]:
        """Call `listener` when the run is to stop; at once, if it is already."""
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
