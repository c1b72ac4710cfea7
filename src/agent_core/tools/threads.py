"""Plain functions beside the event loop: threads of their own, and the way back from them."""

import asyncio
import concurrent.futures
import contextvars
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Self

from agent_core.errors import ErrorCode, ToolError
from agent_core.text import shorten_text
from agent_core.tools.base import ArtifactWriter
from agent_core.tools.results import storable_text
from agent_core.types import ArtifactSource

logger = logging.getLogger(__name__)

PROGRESS_BYTES = 2_000
"""A longer line of progress is shortened."""

PROGRESS_BURST = 20
"""So many lines are shown at once; of more, the latest wait."""

_PROGRESS_SECONDS = 0.1
_MANY_LINES = 1_000
_SLOW_SECONDS = 5.0


async def in_own_thread(function: Callable[[], Any]) -> Any:
    """Run a foreign function in a thread that nothing has to wait for.

    A pooled thread that never comes back would keep others waiting and the process from ending.
    A thread that goes on after its call was cancelled is reported in the log.
    """
    outcome: concurrent.futures.Future[Any] = concurrent.futures.Future()
    state = contextvars.copy_context()

    def work() -> None:
        outcome.set_running_or_notify_cancel()
        try:
            outcome.set_result(state.run(function))
        except BaseException as error:  # noqa: BLE001 - raised again where it is awaited
            if not isinstance(error, Exception) or isinstance(error, StopIteration):
                # It would end the event loop or pass for one of its signals.
                error = RuntimeError(f"{type(error).__name__}: {error}")
            outcome.set_exception(error)

    thread = threading.Thread(target=work, name="tool", daemon=True)
    thread.start()
    try:
        return await asyncio.wrap_future(outcome)
    except asyncio.CancelledError:
        if not outcome.done():
            logger.warning("a tool goes on in %s after its call was cancelled", thread.name)
        raise


class OpenCall:
    """What a call may use while it runs, from the event loop and from any thread.

    Everything is handed to the loop in order. Once the call has ended, progress is ignored and an
    artifact is refused.

    Args:
        show: shows one line of progress; called in the event loop.
        write: keeps an artifact; awaited in the event loop.
        is_cancelled: whether the run is being cancelled.
    """

    def __init__(
        self, show: Callable[[str], None], write: ArtifactWriter, is_cancelled: Callable[[], bool]
    ) -> None:
        self._show = show
        self._write = write
        self._is_run_cancelled = is_cancelled
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._is_over = False
        self._lines: deque[str] = deque(maxlen=PROGRESS_BURST)
        self._is_due = False
        self._shown = 0
        self._allowed = float(PROGRESS_BURST)
        self._counted_at = time.monotonic()
        self._writing: set[concurrent.futures.Future[str]] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Show what waits, and end everything that threads still wait for."""
        with self._lock:
            self._is_over = True
            lines, writing = list(self._lines), list(self._writing)
            self._lines.clear()
        for line in lines:
            self._show(line)
        for each in writing:
            each.cancel()

    def progress(self, text: str) -> None:
        """Show a line to the user. Lines that come too fast to be read are left out."""
        line = storable_text(shorten_text(str(text), PROGRESS_BYTES))
        with self._lock:
            if self._is_over:
                return
            self._lines.append(line)
            if self._is_due:
                return
            self._is_due = True
        if threading.get_ident() == self._thread:
            self._show_lines()
        else:
            try:
                self._loop.call_soon_threadsafe(self._show_lines)
            except RuntimeError:  # the loop is closed; no line can be shown any more
                logger.debug("progress of a call came after the end of the event loop")

    def is_cancelled(self) -> bool:
        """Whether the call should stop: its run is being cancelled, or it has ended."""
        return self._is_over or self._is_run_cancelled()

    def artifact(
        self,
        data: ArtifactSource,
        *,
        filename: str,
        kind: str = "tool_output",
        mime_type: str | None = None,
        summary: str | None = None,
    ) -> Any:
        """Keep a file. In a plain function it returns the id, in a coroutine it is awaited."""
        writing = self._write(
            data, filename=filename, kind=kind, mime_type=mime_type, summary=summary
        )
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            try:
                return self._start(writing).result()
            except concurrent.futures.CancelledError:
                raise _call_ended() from None
        return writing if running is self._loop else asyncio.wrap_future(self._start(writing))

    def _start(self, writing: Coroutine[Any, Any, str]) -> concurrent.futures.Future[str]:
        with self._lock:
            try:
                if self._is_over:
                    raise RuntimeError
                future = asyncio.run_coroutine_threadsafe(writing, self._loop)
            except RuntimeError:  # the call has ended, or the loop is closed
                writing.close()
                raise _call_ended() from None
            self._writing.add(future)
        future.add_done_callback(self._writing.discard)
        return future

    def _show_lines(self) -> None:
        with self._lock:
            self._is_due = False
            now = time.monotonic()
            pause = _PROGRESS_SECONDS if self._shown < _MANY_LINES else _SLOW_SECONDS
            earned = (now - self._counted_at) / pause
            self._allowed = min(PROGRESS_BURST, self._allowed + earned)
            self._counted_at = now
            count = min(int(self._allowed), len(self._lines))
            lines = [self._lines.popleft() for _ in range(count)]
            self._allowed -= count
            self._shown += count
            if self._lines:
                self._is_due = True
                self._loop.call_later(pause, self._show_lines)
        for line in lines:
            self._show(line)


def _call_ended() -> ToolError:
    return ToolError(ErrorCode.CANCELLED, "the call has ended; its artifact was not kept")
