"""Helpers for asyncio tasks: cancellation, work that it must not interrupt, background work.

A tool or an adapter may swallow the cancellation it was interrupted with, or leak one of its own
making. What counts is what was requested of the task.
"""

import asyncio
from collections.abc import Coroutine, Generator
from functools import partial
from types import coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def to_the_end(work: "Coroutine[Any, Any, T] | asyncio.Future[T]") -> T:
    """Await `work` whole, however often the caller is cancelled; raise the cancellation after.

    Raises:
        asyncio.CancelledError: the caller was cancelled; the work is done all the same.
    """
    task = work if isinstance(work, asyncio.Future) else asyncio.create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        failure = None if task.cancelled() else task.exception()
        raise cancelled from failure
    return task.result()


async def begun_at_once(work: Coroutine[Any, Any, T]) -> T:
    """`to_the_end` for work that mostly has nothing to wait for: then it needs no task.

    It begins in the caller's task, and gets one of its own where it first waits: so its beginning
    must not ask which task it is in, as a timeout does.

    Raises:
        asyncio.CancelledError: the caller was cancelled; the work is done all the same.
    """
    try:
        awaited = work.send(None)
    except StopIteration as end:
        return end.value

    async def rest() -> T:
        return await _go_on(work, awaited)

    return await to_the_end(rest())


@coroutine
def _go_on(work: Coroutine[Any, Any, T], awaited: Any) -> Generator[Any, Any, T]:
    """Carry on with work that waits for `awaited`."""
    while True:
        try:
            value = yield awaited
        except BaseException as error:  # noqa: BLE001 - it belongs to the work
            step = partial(work.throw, error)
        else:
            step = partial(work.send, value)
        try:
            awaited = step()
        except StopIteration as end:
            return end.value


class SideTasks:
    """Background tasks: each runs until it is done, or until `end` is called."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[object]] = set()

    def start(self, work: Coroutine[Any, Any, object]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def end(self, timeout_s: float) -> None:
        """Wait so long for what is under way, and cancel what is left of it then."""
        if self._tasks:
            _, left = await asyncio.wait(self._tasks, timeout=timeout_s)
            for task in left:
                task.cancel()


async def stop_task(task: asyncio.Task[None]) -> None:
    """Cancel a task, and return when it has ended, however it does."""
    task.cancel()
    await asyncio.wait([task])


def is_loop_running() -> bool:
    """Whether this thread is inside an event loop, where blocking functions must not wait."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def is_cancelled(task: asyncio.Task[Any] | None) -> bool:
    """Whether the task was asked to stop, and has not taken that back."""
    return task is not None and task.cancelling() > 0


def stop_if_cancelled() -> None:
    """Begin nothing more if the current task was asked to stop.

    Raises:
        asyncio.CancelledError: it was, and the exception was swallowed on its way.
    """
    if is_cancelled(asyncio.current_task()):
        raise asyncio.CancelledError
