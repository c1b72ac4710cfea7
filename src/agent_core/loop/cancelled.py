"""Whether somebody has cancelled the run, as opposed to an exception that only looks like it.

A tool or an adapter may swallow the cancellation it was interrupted with, or leak one of its own
making. What counts is what was asked of the task.
"""

import asyncio
from typing import Any


def is_cancelled(task: asyncio.Task[Any] | None) -> bool:
    """Whether the task was asked to stop, and has not taken that back."""
    return task is not None and task.cancelling() > 0


def stop_if_cancelled() -> None:
    """Begin nothing more if the current task was asked to stop.

    Raises:
        asyncio.CancelledError: it was, and somebody has swallowed that.
    """
    if is_cancelled(asyncio.current_task()):
        raise asyncio.CancelledError
