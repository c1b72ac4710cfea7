"""Helpers for asyncio tasks: cancellation, uninterruptible work, and background work.

A tool or an adapter may swallow the cancellation that interrupted it, or leak one of its own. Only
cancellations requested of the task count.
"""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Generator
from contextlib import suppress
from functools import partial
from types import coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


async def finish_uncancelled(work: "Coroutine[Any, Any, T] | asyncio.Future[T]") -> T:
    """Await `work` to its end, however often the caller is cancelled; raise the cancellation after.

    Raises:
        asyncio.CancelledError: the caller was cancelled; the work is done nevertheless.
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


async def finish_soon(work: Coroutine[Any, Any, object], grace_s: float) -> None:
    """Await `work`; if the caller is cancelled, before or meanwhile, for `grace_s` seconds at most.

    Work that takes longer is then cancelled, and awaited.

    Raises:
        asyncio.CancelledError: the caller was cancelled meanwhile.
    """
    clock, task = asyncio.get_running_loop().time, asyncio.create_task(work)
    ends = clock() + grace_s if is_cancelled(asyncio.current_task()) else None
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        if ends is not None and clock() >= ends:
            task.cancel()
        left = None if ends is None else max(ends - clock(), 0.1)
        try:
            await asyncio.wait([task], timeout=left)
        except asyncio.CancelledError as error:
            cancelled = error
            ends = clock() + grace_s if ends is None else ends
    if cancelled is not None:
        raise cancelled
    if not task.cancelled():
        task.result()


async def end_uncancelled(work: Coroutine[Any, Any, T]) -> T:
    """Await `work` to its end and return its result, however often the caller is cancelled.

    For a caller that is being cancelled already, and raises that cancellation itself.
    """
    task = asyncio.create_task(work)
    with suppress(asyncio.CancelledError):
        await finish_uncancelled(task)
    return task.result()


async def start_uncancelled(work: Coroutine[Any, Any, T]) -> T:
    """Await work to its end like `finish_uncancelled`, without a task if it never has to wait.

    It begins in the caller's task, and gets a task of its own when it first waits: so its beginning
    must not depend on the current task, as a timeout does.

    Raises:
        asyncio.CancelledError: the caller was cancelled; the work is done nevertheless.
    """
    try:
        awaited = work.send(None)
    except StopIteration as end:
        return end.value
    return await finish_uncancelled(_rest(work, awaited))


def take_first_step(work: Coroutine[Any, Any, T]) -> "asyncio.Future[T]":
    """Take the first step of work in the caller's task, and return the future of its result.

    The future is done if the work never has to wait; otherwise a task continues the work.

    Raises:
        BaseException: the first step has failed.
    """
    try:
        awaited = work.send(None)
    except StopIteration as end:
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        done.set_result(end.value)
        return done
    return asyncio.create_task(_rest(work, awaited))


async def _rest(work: Coroutine[Any, Any, T], awaited: Any) -> T:
    """Continue work that waits for `awaited`, in the task that awaits this."""
    return await _continue(work, awaited)


@coroutine
def _continue(work: Coroutine[Any, Any, T], awaited: Any) -> Generator[Any, Any, T]:
    """Continue work that waits for `awaited`."""
    while True:
        try:
            value = yield awaited
        except BaseException as error:  # noqa: BLE001 - passed on to the work
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

    @property
    def is_idle(self) -> bool:
        """Return whether no task is left."""
        return not self._tasks

    async def end(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` seconds for the tasks, then cancel the remaining ones."""
        if self._tasks:
            _, left = await asyncio.wait(self._tasks, timeout=timeout_s)
            for task in left:
                task.cancel()


async def stop_task(task: asyncio.Task[None]) -> None:
    """Cancel a task, and return when it has ended in any way."""
    task.cancel()
    await asyncio.wait([task])


def is_loop_running() -> bool:
    """Return whether this thread runs an event loop, where blocking functions must not wait."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def is_cancelled(task: asyncio.Task[Any] | None) -> bool:
    """Return whether the task was asked to stop and the request was not withdrawn."""
    return task is not None and task.cancelling() > 0


def stop_if_cancelled() -> None:
    """Raise a cancellation if the current task was asked to stop.

    Raises:
        asyncio.CancelledError: it was, and the exception was swallowed on its way.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


class TaskStream(AsyncGenerator[T, None]):
    """An async generator that runs in a task of its own, one step for each requested item.

    It can be left at any point, in any way: closed, cancelled, forgotten, or kept until the event
    loop ends. Everything the generator has opened is then closed by its own task, in order. An
    async generator that is used directly may be closed by anyone, even the event loop, at the same
    time as the generators inside it.

    Args:
        source: the generator; it does not run before the first step.
    """

    def __init__(self, source: AsyncGenerator[T, None]) -> None:
        self._source = source
        self._steps: _Steps[T] | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_over = False

    async def asend(self, value: None, /) -> T:  # noqa: ARG002 - of the protocol
        """Return the next item, as `anext` does."""
        return await self.__anext__()

    async def __anext__(self) -> T:
        """Return the next item.

        Raises:
            StopAsyncIteration: there are no more items.
            AgentCoreError: `validation_error`: no event loop of asyncio is running here, or it is
                not the one in which the stream has begun.
        """
        if self._is_over:
            raise StopAsyncIteration
        self._require_loop()
        if self._steps is None:
            self._steps = _Steps()
            self._task = asyncio.create_task(self._steps.take_all(self._source))
        elif self._steps.given is not None:
            raise RuntimeError("this stream is being read already; it has one reader")
        try:
            return await self._steps.next()
        except BaseException:
            await finish_uncancelled(self.aclose())
            raise

    async def athrow(self, error: Any, value: Any = None, _: Any = None, /) -> T:
        """Close the stream, and raise the given error."""
        await self.aclose()
        raise error if value is None else value

    async def aclose(self) -> None:
        """Stop the generator, and wait until everything it opened is closed. Can be repeated."""
        self._is_over = True
        if self._task is None:
            await self._source.aclose()
        elif not self._task.done():
            self._require_loop()
            if self._task is not asyncio.current_task():
                self._task.cancel()
                await asyncio.wait([self._task])

    def _require_loop(self) -> None:
        from agent_core.aio.loops import running_loop, used_elsewhere  # noqa: PLC0415 - imports us

        loop = running_loop("this stream")
        if self._task is not None and self._task.get_loop() is not loop:
            raise used_elsewhere("this stream")

    def __del__(self) -> None:
        task = getattr(self, "_task", None)
        if task is not None and not task.done():
            with suppress(RuntimeError):  # the event loop is closed, so nothing can run any more
                task.get_loop().call_soon_threadsafe(task.cancel)

    def unwrap(self) -> AsyncGenerator[T, None]:
        """Return the generator, for a reader that always closes it and so needs no task.

        No item may have been read; this stream is over afterwards.
        """
        self._is_over = True
        return self._source


class _Steps(Generic[T]):
    """Passes the items of a generator on, one at a time, without a reference to the stream."""

    def __init__(self) -> None:
        self._wanted = asyncio.Event()
        self.given: asyncio.Future[T] | None = None

    async def next(self) -> T:
        """Return the next item.

        Raises:
            StopAsyncIteration: there are no more items, or the stream was closed.
        """
        self.given = asyncio.get_running_loop().create_future()
        self._wanted.set()
        try:
            return await self.given
        except _NothingFollowsError:
            raise StopAsyncIteration from None
        finally:
            self.given = None

    async def take_all(self, source: AsyncGenerator[T, None]) -> None:
        """Run the generator, one step for each requested item, to its end or until cancelled."""
        try:
            while True:
                await self._wanted.wait()
                self._wanted.clear()
                item = await anext(source)
                if self.given is not None and not self.given.done():
                    self.given.set_result(item)
        except StopAsyncIteration:
            pass
        except asyncio.CancelledError as error:
            if not is_cancelled(asyncio.current_task()):
                self._fail(error)  # the generator's own
                return
            await source.aclose()
            raise
        except BaseException as error:  # noqa: BLE001 - raised for the reader of the item
            self._fail(error)
        finally:
            self._fail(_NothingFollowsError())

    def _fail(self, error: BaseException) -> None:
        if self.given is not None and not self.given.done():
            self.given.set_exception(error)


class _NothingFollowsError(Exception):
    """The end of a stream, in a form that a future can hold."""


class TimeLimit:
    """A time limit that is paused while a person is waited for.

    Attributes:
        lasted: seconds of all pauses so far.
    """

    def __init__(self, limit: asyncio.Timeout) -> None:
        self.lasted = 0.0
        self._limit = limit
        self._pauses = 0
        self._began = 0.0
        self._left: float | None = None

    def pause(self) -> None:
        """Pause until `resume`; several pauses may overlap."""
        self._pauses += 1
        until = self._limit.when()
        if self._pauses == 1 and until is not None and not self._limit.expired():
            self._began = asyncio.get_running_loop().time()
            self._left = until - self._began
            self._limit.reschedule(None)

    def resume(self) -> None:
        """End a pause."""
        self._pauses -= 1
        if not self._pauses and self._left is not None:
            left = self._left
            self.end()
            self._limit.reschedule(asyncio.get_running_loop().time() + left)

    def end(self) -> None:
        """Leave the limit alone from now on, because the limited work has ended."""
        if self._left is not None:
            self.lasted += asyncio.get_running_loop().time() - self._began
            self._left = None
