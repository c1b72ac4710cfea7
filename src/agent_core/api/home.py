"""Keep a runtime open in one event loop at a time: its program's, or one that threads share."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from functools import partial
from inspect import isfunction
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from agent_core.aio.loops import (
    HomeLoop,
    SharedLoop,
    call_in_loop,
    require_no_loop,
    reset_after_fork,
    running_loop,
    used_by_threads,
)
from agent_core.errors import AgentCoreError, ArgumentError, validation_error
from agent_core.loading import without_collection
from agent_core.runtime.options import RuntimeOptions
from agent_core.text import kind_of

if TYPE_CHECKING:
    from agent_core.runtime.services import Services

T = TypeVar("T")

_OWNER, _KIND = "this runtime", "another AgentRuntime"


class HomeOpening:
    """The services of a runtime, which one task of one event loop opens and closes.

    The task ends after `end`, or with its event loop: `asyncio.run` cancels it.

    Args:
        options: the arguments of the runtime.
        is_private: the event loop is the one that threads share.
        on_end: called when everything is closed, or could not be opened.

    Attributes:
        home: the event loop.
        services: the open services; None before and after.
        is_ending: it is being closed.
        is_entered: a `with` block closes it.
        task: opens the services, and closes them.
    """

    _all: ClassVar[set["HomeOpening"]] = set()  # an event loop holds only weak references to tasks

    def __init__(
        self, options: RuntimeOptions, *, is_private: bool, on_end: Callable[["HomeOpening"], None]
    ) -> None:
        self.home = HomeLoop(_OWNER, kind=_KIND, is_private=is_private)
        self.services: Services | None = None
        self.is_ending = self.is_entered = False
        self._on_end = on_end
        self._stopped = asyncio.Event()
        self._opened: asyncio.Future[Services] = self.home.loop.create_future()
        # The services work for every caller, so they get no caller's context variables.
        serving = self._serve(options)
        self.task = self.home.loop.create_task(serving, name="agent-runtime", context=Context())
        self._all.add(self)

    async def opened(self) -> "Services":
        """Return the services once they are open.

        Raises:
            ConfigError, StorageError: they cannot be opened.
        """
        return await asyncio.shield(self._opened)

    async def end(self) -> None:
        """Close the services; cancelling the caller cancels the closing task too.

        Raises:
            Exception: the error of a part that was closed.
        """
        self.stop()
        if asyncio.current_task() is self.task:
            return
        cancelled: asyncio.CancelledError | None = None
        while not self.task.done():
            try:
                await asyncio.wait([self.task])
            except asyncio.CancelledError as error:
                cancelled = error
                self.task.cancel()
        failure = None if self.task.cancelled() else self.task.exception()
        if cancelled is not None:
            raise cancelled from failure
        if failure is not None:
            raise failure

    async def ended(self) -> None:
        """Wait until the services are closed."""
        await asyncio.wait([self.task])

    def stop(self) -> None:
        """Begin to close the services."""
        self.is_ending = True
        self._stopped.set()

    async def _serve(self, options: RuntimeOptions) -> None:
        try:
            # Half of what a program imports is only needed once something runs.
            with without_collection():
                from agent_core.runtime.services import open_services  # noqa: PLC0415

            async with open_services(options, self.home) as services:
                self.services = services
                self._opened.set_result(services)
                with suppress(asyncio.CancelledError):  # the event loop ends
                    await self._stopped.wait()
                self.is_ending = True
        except BaseException as error:
            if self._opened.done():
                raise
            is_ended = isinstance(error, asyncio.CancelledError)
            self._opened.set_exception(closed_error() if is_ended else error)
            self._opened.exception()  # mark it as retrieved: the waiting callers may be gone
        finally:
            self.services = None
            self._all.discard(self)
            self._on_end(self)


class RuntimeHome:
    """Opens a runtime in the first event loop that uses it, and refuses others until it is closed.

    Threads without an event loop use it in the loop where it is open. If it is open in none,
    they share one of their own, which lasts as long as one of them uses it.

    Args:
        options: the arguments of the runtime.
    """

    def __init__(self, options: RuntimeOptions) -> None:
        self._options = options
        self._is_closed = False
        self._threads = SharedLoop("agent-runtime", self._end_private)
        self.reset()
        reset_after_fork(self)

    def reset(self) -> None:
        """Forget what is open: after a fork it belongs to the parent process, which closes it."""
        self._changing = threading.Lock()
        self._opening: HomeOpening | None = None
        self._claims = 0  # threads that use, or are about to use, the loop they share

    @property
    def opened(self) -> "Services | None":
        """The services, if they are open."""
        return None if self._opening is None else self._opening.services

    async def services(self) -> "Services":
        """Return the services, opened in the event loop of the caller unless they are open there.

        Raises:
            AgentCoreError: `validation_error`: the runtime belongs to another event loop, was
                closed, or no event loop of asyncio is running.
            ConfigError, StorageError: they cannot be opened.
        """
        opening = self._opening
        if opening is None or opening.is_ending:
            opening = self._open()
        opening.home.require()
        return opening.services or await opening.opened()

    async def enter(self, *, is_block: bool = True) -> None:
        """Open the services, even if the runtime was closed.

        Args:
            is_block: it is for a `with` block, and there is only one at a time.

        Raises:
            AgentCoreError: as for `services`; or another block has the runtime open.
            ConfigError, StorageError: as for `services`.
        """
        while self._opening is not None and self._opening.is_ending:
            self._opening.home.require()
            await self._opening.ended()
        was_open = self._opening is not None
        opening = self._open(is_entered=True)
        if is_block and opening.is_entered:
            raise validation_error(_ENTERED)
        opening.is_entered |= is_block
        try:
            await opening.opened()
        except BaseException:
            if not was_open:
                opening.task.cancel()
                await opening.end()
            raise

    async def close(self) -> None:
        """Close the services, if they are open.

        Raises:
            AgentCoreError: `validation_error`: they are open in another event loop of the program.
        """
        loop = running_loop(_OWNER)
        with self._changing:
            opening = self._opening
            if opening is not None and opening.home.loop.is_closed():
                self._opening = opening = None  # its services can no longer be closed
            if opening is not None and not opening.home.is_private:
                opening.home.require()
            self._is_closed = True
        if opening is None:
            return
        if opening.home.loop is loop:
            await opening.end()
        else:
            ending = asyncio.run_coroutine_threadsafe(opening.end(), opening.home.loop)
            await asyncio.wrap_future(ending)

    def call(
        self, work: Callable[[], Coroutine[Any, Any, T]], instead: str, *, method: str = "run_sync"
    ) -> T:
        """Run a coroutine that uses the services, for a thread without an event loop.

        Args:
            work: makes the coroutine.
            method: the blocking method, for the message.
            instead: the code to recommend where an event loop is running.

        Raises:
            AgentCoreError: `validation_error`: an event loop is running in this thread, or the one
              in which the runtime is open does not answer.
            ConfigError, StorageError: as for `services`.
        """
        require_no_loop(method, instead)
        while (opening := self._claim()) is not None:
            if not opening.is_ending:
                return call_in_loop(opening.home.loop, work)
            with suppress(AgentCoreError):  # the loop has ended, too
                call_in_loop(opening.home.loop, opening.ended)
        try:
            return self._threads.run(partial(self._entered, work))
        finally:
            self._release()

    def enter_sync(self) -> None:
        """Open the services in the event loop that threads share, until `exit_sync`.

        Raises:
            AgentCoreError: `validation_error`: the runtime is open in an event loop of the program,
                or one is running in this thread.
            ConfigError, StorageError: as for `services`.
        """
        require_no_loop("`with runtime`", "async with runtime")
        if (opening := self._claim()) is not None:
            raise opening.home.foreign()
        try:
            loop = self._threads.enter()
            try:
                call_in_loop(loop, self.enter, is_shared=True)
            except BaseException:
                self._threads.leave()
                raise
        except BaseException:
            self._release()
            raise

    def exit_sync(self) -> None:
        """Close the services, and stop using the event loop of the threads."""
        try:
            try:
                self.close_sync()
            finally:
                self._threads.leave()
        finally:
            self._release()

    def close_sync(self) -> None:
        """Close the services from a thread without an event loop, wherever they are open.

        Raises:
            AgentCoreError: `validation_error`: an event loop is running in this thread, or the one
                in which the runtime is open does not answer.
        """
        require_no_loop("close_sync", "await runtime.close()")
        opening = self._opening
        if opening is None or opening.home.loop.is_closed():
            self._opening, self._is_closed = None, True
            return
        try:
            call_in_loop(opening.home.loop, self.close)
        except AgentCoreError:
            if self._opening is opening:
                raise  # otherwise another thread has closed it, and its event loop has ended

    def close_later(self) -> None:
        """Begin to close the services, from any thread."""
        if (opening := self._opening) is not None:
            with suppress(RuntimeError):  # the event loop is closed
                opening.home.loop.call_soon_threadsafe(opening.stop)

    def _open(self, *, is_entered: bool = False) -> HomeOpening:
        """Begin to open the services in this event loop, unless that has begun.

        Raises:
            AgentCoreError: `validation_error`: as for `services`.
        """
        loop = running_loop(_OWNER)
        with self._changing:
            is_private = loop is self._threads.loop
            if (opening := self._opening) is not None:
                opening.home.require()
                if opening.is_ending:
                    raise closed_error()
                return opening
            if self._claims and not is_private:
                raise used_by_threads(_OWNER, _KIND)
            if self._is_closed and not is_entered:
                raise closed_error()
            self._is_closed = False
            self._opening = HomeOpening(self._options, is_private=is_private, on_end=self._ended)
            return self._opening

    def _ended(self, opening: HomeOpening) -> None:
        with self._changing:
            if self._opening is opening:
                self._opening = None

    def _claim(self) -> HomeOpening | None:
        """Claim the loop that threads share, or return the opening in another loop to use instead.

        Raises:
            AgentCoreError: `validation_error`: the loop in which the runtime is open is stopped.
        """
        with self._changing:
            opening = self._opening
            if opening is None or opening.home.is_private:
                self._claims += 1
                return None
        if not opening.home.loop.is_running():
            raise opening.home.foreign()
        return opening

    def _release(self) -> None:
        """Release the claim of `_claim`."""
        with self._changing:
            self._claims -= 1

    async def _entered(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        await self.enter(is_block=False)
        return await work()

    async def _end_private(self) -> None:
        """Close the services used by threads; this does not count as closing the runtime."""
        if self._opening is not None:
            await self._opening.end()


_ENTERED = (
    "this runtime is open in another `with` block, whose end would close it for both; use it inside"
    " that block, or create another AgentRuntime"
)


def closed_error() -> AgentCoreError:
    """Build the error for using a closed runtime."""
    message = (
        "this runtime is closed; create another one, or enter it again: write `async with runtime:`"
        " around the calls"
    )
    return validation_error(message)


class RuntimeMethods:
    """The base of the parts of `AgentRuntime`: each module of `api` has the methods of one subject.

    A subclass sets the home in its constructor.
    """

    _home: RuntimeHome

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, function in vars(cls).items():
            if isfunction(function) and not name.startswith("_"):
                function.__qualname__ = f"AgentRuntime.{name}"  # Python's own errors say it

    async def _reading(self, tenant: str | None) -> "Services":
        """Return the services that read the sessions of a tenant; None leaves that to the runtime.

        Raises:
            ArgumentError: the runtime is bound to another tenant.
            ConfigError: the name is invalid, or the database has no tenants.
        """
        services = await self._home.services()
        bound = services.project.setup.tenant
        if tenant is None or tenant == bound:
            return services
        if bound is not None:
            message = f"this runtime is bound to the tenant {bound!r}; leave tenant out"
            raise ArgumentError(message, "tenant")
        return services.of_tenant(tenant)

    async def _changeable(self, *, is_dry: bool = False) -> "Services":
        """Return the services for something that may change files before it stores anything.

        Raises:
            StorageError: the runtime is read-only.
        """
        services = await self._home.services()
        if not is_dry:
            services.store.require_writable()
        return services


def require_text(what: str, name: str | None) -> None:
    """Check an optional text that a program has passed, such as an id.

    Raises:
        ArgumentError: it is no text, or empty.
    """
    argument = what.replace(" ", "_")
    if name is None:
        return
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] - typed by users
        raise ArgumentError(f"the {what} must be a text, not {kind_of(name)}", argument)
    if not name.strip():
        raise ArgumentError(f"the {what} is empty; is a variable not set?", argument)
