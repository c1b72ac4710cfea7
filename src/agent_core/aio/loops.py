"""Event loops and threads: the loop that an object belongs to, and a loop that threads share.

An object that is open in one event loop cannot be used from another: asyncio would fail in the
middle, or wait forever. Everything that a program can `await` asks here first, so that there is one
error, which says what to do.
"""

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, ParamSpec, Protocol, TypeVar, cast
from weakref import WeakSet

from agent_core.errors import AgentCoreError, validation_error

T = TypeVar("T")
P = ParamSpec("P")

PATIENCE_S = 10.0
"""Longest time in seconds that an event loop may take to answer a waiting thread."""


def running_loop(user: str) -> asyncio.AbstractEventLoop:
    """Return the event loop that runs here.

    Args:
        user: the object that needs it, for the message.

    Raises:
        AgentCoreError: `validation_error`: there is none, or one of another library.
    """
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        pass
    if (library := other_library()) is None:
        message = f"{user} needs asyncio, and no event loop of asyncio is running here"
        cure = "await it in a function that is started with asyncio.run(...)"
    else:
        message = f"{user} needs asyncio, and the event loop here is one of {library}"
        cure = f"call the synchronous method (run_sync) in a thread, as with {_in_thread(library)}"
    raise validation_error(f"{message}; {cure}")


def other_library() -> str | None:
    """Return the name of the async library that runs here, if it is not asyncio."""
    sniffio = sys.modules.get("sniffio")
    if sniffio is None:  # every other library imports it
        return None
    try:
        name = str(sniffio.current_async_library())
    except sniffio.AsyncLibraryNotFoundError:
        return None
    return None if name == "asyncio" else name


def require_no_loop(user: str, instead: str) -> None:
    """Check that no event loop runs in this thread, which would be blocked.

    Args:
        user: the blocking method, for the message.
        instead: the code to recommend for asyncio.

    Raises:
        AgentCoreError: `validation_error`: an event loop is running in this thread.
    """
    library = other_library()
    if library is not None:
        cure = f"call it in a thread, as with {_in_thread(library)}"
        message = f"an event loop of {library} is running here, and {user} would block it: {cure}"
        raise validation_error(message)
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        message = f"an event loop is running here, and {user} would block it: write `{instead}`"
        raise validation_error(message)


def _in_thread(library: str) -> str:
    call = "trio.to_thread.run_sync" if library == "trio" else "anyio.to_thread.run_sync"
    return f"`await {call}(...)`"


class Resettable(Protocol):
    """An object that a forked process cannot use without a reset."""

    def reset(self) -> None:
        """Drop state that belongs to the threads of the parent process."""
        ...


_to_reset: WeakSet[Resettable] = WeakSet()


def reset_after_fork(each: Resettable) -> None:
    """Reset an object in every forked process, where only one thread runs."""
    _to_reset.add(each)


def _reset_all() -> None:
    for each in tuple(_to_reset):
        each.reset()


os.register_at_fork(after_in_child=_reset_all)


class HomeLoop:
    """The event loop that an object belongs to: the one that runs where this is created.

    Args:
        owner: the object, for messages.
        kind: the thing to make for another event loop.
        is_private: it is the loop of a `SharedLoop`.
    """

    def __init__(self, owner: str, *, kind: str, is_private: bool = False) -> None:
        self.loop = running_loop(owner)
        self.is_private = is_private
        self._owner = owner
        self._kind = kind

    def require(self) -> None:
        """Check that this loop is the one that runs here.

        Raises:
            AgentCoreError: `validation_error`: another one is running, or none.
        """
        with suppress(RuntimeError):
            if asyncio.get_running_loop() is self.loop:
                return
        running_loop(self._owner)
        raise self.foreign()

    def foreign(self) -> AgentCoreError:
        """Build the error for a use from another event loop."""
        if self.is_private and not self.loop.is_closed():
            return used_by_threads(self._owner, self._kind)
        if self.loop.is_closed():
            where = "an event loop that has been closed; each asyncio.run has a new one"
            cure = "close it in its event loop, as `async with` does"
        elif not self.loop.is_running():
            where = "another event loop, which is not running now"
            cure = "run that one, or close it there"
        else:
            where = "another event loop, in which it is open"
            cure = "use it there, call `run_sync` in a thread without an event loop"
        message = f"{self._owner} belongs to {where}: {cure}, or make {self._kind} for this one"
        return validation_error(message)


def used_by_threads(owner: str, kind: str) -> AgentCoreError:
    """Build the error for a use while threads use the object in the loop that they share."""
    message = (
        f"{owner} is in use by threads that call its synchronous methods, and these have an event"
        " loop of their own: enter it with `async with` before they begin, so that they use this"
        f" event loop; or make {kind} for this one"
    )
    return validation_error(message)


def used_elsewhere(owner: str) -> AgentCoreError:
    """Build the error for a use while another event loop uses the object."""
    message = (
        f"{owner} is in use in another event loop; wait until it is free there, or make another one"
        " for this event loop"
    )
    return validation_error(message)


class LoopLock:
    """A lock for an object that one event loop at a time may use; a free lock can change loops.

    Args:
        owner: the guarded object, for messages.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._changing = threading.Lock()
        self._lock = asyncio.Lock()
        self._home: asyncio.AbstractEventLoop | None = None
        self._users = 0

    async def acquire(self) -> None:
        """Wait until it is free.

        Raises:
            AgentCoreError: `validation_error`: it is in use in another event loop.
        """
        loop = running_loop(self._owner)
        with self._changing:
            home = self._home
            if home is not loop:
                if home is not None and self._users and not home.is_closed():
                    raise used_elsewhere(self._owner)
                self._home = loop
                self._lock, self._users = asyncio.Lock(), 0
            self._users += 1
        try:
            await self._lock.acquire()
        except BaseException:
            self._users -= 1
            raise

    def release(self) -> None:
        """Release the lock for the next task of the same event loop."""
        self._lock.release()
        self._users -= 1

    __aenter__ = acquire

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


class ThreadPool(ThreadPoolExecutor):
    """A thread pool that still works while the interpreter waits for the last threads to end.

    From the end of the main thread on, Python refuses work for a pool, although other threads of
    the program may still be running.
    """

    _is_shut = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        try:
            return super().submit(fn, *args, **kwargs)
        except RuntimeError:
            if self._is_shut:
                raise
        outcome: Future[T] = Future()

        def work() -> None:
            if outcome.set_running_or_notify_cancel():
                try:
                    outcome.set_result(fn(*args, **kwargs))
                except BaseException as error:  # noqa: BLE001 - raised again for the awaiter
                    outcome.set_exception(error)

        threading.Thread(target=work, daemon=True).start()
        return outcome

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._is_shut = True
        super().shutdown(wait, cancel_futures=cancel_futures)


class _Call:
    """A coroutine that a thread runs in an event loop of another thread.

    The thread must notice if the loop in turn waits for it. The loop that threads share can do so
    only before the coroutine has begun: after that, only work for threads blocks the loop.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        work: Callable[[], Coroutine[Any, Any, Any]],
        *,
        is_shared: bool,
    ) -> None:
        self._loop = loop
        self._work = work
        self._is_shared = is_shared
        self._task: asyncio.Task[Any] | None = None
        self._ended = threading.Event()
        self._is_withdrawn = False

    def wait(self) -> Any:
        """Begin the coroutine, and return its result; an interrupt cancels it first."""
        try:
            # `call_soon_threadsafe` copies the context variables of the calling thread.
            self._tell(self._begin)
            while not self._ended.wait(PATIENCE_S):
                self._require_answer()
        except BaseException:
            self._is_withdrawn = True
            with suppress(AgentCoreError):
                self._tell(self._cancel)
                while self._task is not None and not self._ended.wait(PATIENCE_S):
                    self._require_answer()
            raise
        try:
            return cast("asyncio.Task[Any]", self._task).result()
        except asyncio.CancelledError as error:
            raise _loop_gone() from error

    def _tell(self, callback: Callable[[], object]) -> None:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError as error:
            raise _loop_gone() from error

    def _require_answer(self) -> None:
        """Check that the loop is running.

        Raises:
            AgentCoreError: `validation_error`: it is closed, or blocked.
        """
        if self._is_shared and self._task is not None:
            return
        answered = threading.Event()
        self._tell(answered.set)
        if not answered.wait(PATIENCE_S) and not self._ended.is_set():
            message = (
                f"the event loop in which the runtime is open has not answered for {PATIENCE_S:g}"
                " s: it does not run, or code in it blocks it, perhaps by waiting for this thread;"
                " wait for threads with `await asyncio.to_thread(...)`"
            )
            raise validation_error(message)

    def _begin(self) -> None:
        if not self._is_withdrawn:
            self._task = self._loop.create_task(self._work())
            self._task.add_done_callback(lambda _: self._ended.set())

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


def call_in_loop(
    loop: asyncio.AbstractEventLoop,
    work: Callable[[], Coroutine[Any, Any, T]],
    *,
    is_shared: bool = False,
) -> T:
    """Run a coroutine in the event loop of another thread, and return its result.

    An exception in the waiting thread, for example from Ctrl-C, cancels the coroutine, and is
    raised once the coroutine has ended.

    Args:
        loop: the event loop.
        work: the coroutine; it gets the context variables of this thread.
        is_shared: it is the loop of a `SharedLoop`.

    Raises:
        AgentCoreError: `validation_error`: the loop is blocked, or was closed.
    """
    return _Call(loop, work, is_shared=is_shared).wait()


def _loop_gone() -> AgentCoreError:
    message = (
        "the event loop in which the runtime was open has ended before this call;"
        " keep it running until every thread has its result"
    )
    return validation_error(message)


class _RunningLoop:
    """An event loop that runs in a thread of its own until `end`.

    Attributes:
        loop: the event loop.
    """

    def __init__(self, name: str) -> None:
        started: Future[asyncio.AbstractEventLoop] = Future()
        self._stopped = asyncio.Event()
        # A daemon, so that it does not keep a program alive that ends in the middle of a call.
        serve, given = self._serve, (started,)
        self._thread = threading.Thread(target=serve, args=given, name=name, daemon=True)
        self._thread.start()
        self.loop = started.result()

    def end(self) -> None:
        """Stop the loop, and wait until its thread has ended."""
        self.loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()

    def _serve(self, started: Future[asyncio.AbstractEventLoop]) -> None:
        async def serve() -> None:
            loop = asyncio.get_running_loop()
            loop.set_default_executor(ThreadPool())
            started.set_result(loop)
            await self._stopped.wait()

        try:
            asyncio.run(serve())
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)


class SharedLoop:
    """An event loop in a thread of its own, for threads that have none.

    It runs as long as any thread uses it, and all users at the same time share it.

    Args:
        name: the name of the thread.
        close: closes everything opened in the loop, before it ends.
    """

    def __init__(
        self, name: str, close: Callable[[], Coroutine[Any, Any, None]] | None = None
    ) -> None:
        self._name = name
        self._close = close
        self.reset()
        reset_after_fork(self)

    def reset(self) -> None:
        """Drop the loop and its users: after a fork they belong to the parent process."""
        self._changed = threading.Condition()
        self._users = 0
        self._is_ending = False
        self._running: _RunningLoop | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The loop while it has users, otherwise None."""
        running = self._running
        return None if running is None else running.loop

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine in the loop, and return its result.

        Raises:
            AgentCoreError: as for `call_in_loop`.
        """
        with self.used() as loop:
            return call_in_loop(loop, work, is_shared=True)

    @contextmanager
    def used(self) -> Generator[asyncio.AbstractEventLoop]:
        """Use the loop until the end of the block."""
        loop = self.enter()
        try:
            yield loop
        finally:
            self.leave()

    def enter(self) -> asyncio.AbstractEventLoop:
        """Use the loop until `leave`; the first user starts it."""
        with self._changed:
            while self._is_ending:
                self._changed.wait()
            running = self._running = self._running or _RunningLoop(self._name)
            self._users += 1
            return running.loop

    def leave(self) -> None:
        """Stop using the loop; the last user ends it and waits for its end."""
        with self._changed:
            self._users -= 1
            running = self._running
            if self._users or running is None:
                return
            self._is_ending = True
        try:
            try:
                if self._close is not None:
                    call_in_loop(running.loop, self._close, is_shared=True)
            finally:
                running.end()
        finally:
            with self._changed:
                self._is_ending, self._running = False, None
                self._changed.notify_all()
