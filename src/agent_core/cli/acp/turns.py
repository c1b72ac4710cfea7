"""The prompts of a session, which are begun and answered in the order in which they arrive."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Iterable
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

from acp.schema import PromptResponse

from agent_core.api import RunHandle
from agent_core.errors import AgentCoreError
from agent_core.types import RunStatus, RuntimeEvent

_END_S = 5.0
"""Seconds to show the end of a run whose request was cancelled."""

Answering: TypeAlias = Coroutine[Any, Any, PromptResponse]
Begin: TypeAlias = Callable[[], Awaitable[RunHandle[Any] | None]]


class PromptTurn:
    """One prompt, from its arrival to its answer.

    Args:
        order: the lock that a prompt holds while it starts its run.
        before: the tasks that answer the earlier prompts.

    Attributes:
        order: as given.
        handle: its run, once it is started.
        in_front: ids of runs that execute, and are shown, before its own.
        warnings: about its run, which the user has not seen yet.
        is_cancelled: the answer is `cancelled`, however its run ends.
        end_reason: why its run ended.
    """

    def __init__(self, order: asyncio.Lock, before: Iterable[asyncio.Task[Any]]) -> None:
        self.order = order
        self.handle: RunHandle[Any] | None = None
        self.in_front: set[str] = set()
        self.warnings: list[str] = []
        self.is_cancelled = False
        self.end_reason: str | None = None
        self._before = [*before]
        self._is_its_turn = False
        self._beginning: asyncio.Task[RunHandle[Any] | None] | None = None
        self._events: AsyncGenerator[RuntimeEvent] | None = None
        self._first: RuntimeEvent | None = None
        self._watching: list[asyncio.Task[None]] = []

    async def wait_for_turn(self) -> None:
        """Wait until the earlier prompts are answered; nothing of this one is shown before."""
        if self._before:
            await asyncio.wait(self._before)
        self._is_its_turn = True

    def begin(self, begin: Begin) -> "asyncio.Task[RunHandle[Any] | None]":
        """Start its run, if it has one, even while earlier prompts are being answered."""
        self._beginning = asyncio.create_task(self._begin(begin))
        return self._beginning

    async def _begin(self, begin: Begin) -> RunHandle[Any] | None:
        async with self.order:
            handle = self.handle = await begin()
            if handle is None:
                return None
            self._events = handle.events()
        if self.is_cancelled:
            await handle.cancel()
        # From its first event on, the run waits for its reader: it stays close to the screen.
        self._first = await anext(self._events, None)
        return handle

    async def finish(self, answering: Answering) -> PromptResponse:
        """Return the answer. If the request is cancelled, the end of a shown run is shown first."""
        work = asyncio.create_task(answering)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            if not work.done():
                with suppress(AgentCoreError):
                    await self.cancel()
                if self._is_its_turn:
                    await asyncio.wait([work], timeout=_END_S)
            raise
        finally:
            work.cancel()

    async def events(self) -> AsyncGenerator[RuntimeEvent]:
        """Yield the events of its run."""
        if self._events is None or self._first is None:
            return
        yield self._first
        async for event in self._events:
            yield event

    def watch(self, following: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Show a stream of events in addition to the run's, until the prompt is answered."""
        task = asyncio.create_task(following)
        self._watching.append(task)
        return task

    async def cancel(self) -> None:
        """Cancel its run, if need be before it begins.

        A run that has stopped at a question stays so: it waits for the answer.
        """
        self.is_cancelled = True
        if self.handle is None:
            if self._beginning is not None:
                self._beginning.cancel()
        elif self.handle.status is not RunStatus.WAITING:
            await self.handle.cancel()

    async def stop(self) -> None:
        """Show nothing more."""
        tasks = [*self._watching, *([] if self._beginning is None else [self._beginning])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._events is not None:
            await self._events.aclose()


class PromptQueue:
    """The prompts of a session that are not answered yet."""

    def __init__(self) -> None:
        self._turns: list[PromptTurn] = []
        self._answering: dict[asyncio.Task[Any], None] = {}
        self._order = asyncio.Lock()

    @contextmanager
    def take(self) -> Generator[PromptTurn]:
        """Add a prompt, which counts as answered when the current task ends."""
        turn = PromptTurn(self._order, self._answering)
        if (task := asyncio.current_task()) is not None:
            self._answering[task] = None
            task.add_done_callback(lambda _: self._answering.pop(task, None))
        self._turns.append(turn)
        try:
            yield turn
        finally:
            self._turns.remove(turn)

    @property
    def handles(self) -> list[RunHandle[Any]]:
        """The runs that were started for the prompts."""
        return [turn.handle for turn in self._turns if turn.handle is not None]

    def turn_of(self, *run_ids: str | None) -> PromptTurn | None:
        """Return the prompt to which one of these runs belongs."""
        for turn in self._turns:
            if turn.handle is not None and turn.handle.run_id in run_ids:
                return turn
        return None

    async def cancel(self) -> None:
        """Cancel all prompts, the last one first, so that no run begins in between.

        A run whose cancellation cannot be stored ends with its runtime.
        """
        cancelling = (turn.cancel() for turn in reversed(self._turns))
        await asyncio.gather(*cancelling, return_exceptions=True)

    async def answered(self, timeout_s: float | None = None) -> None:
        """Wait until the present prompts are answered, but no longer than `timeout_s`."""
        if self._answering:
            await asyncio.wait([*self._answering], timeout=timeout_s)
