"""The Task boards open in this process, which runs and programs use in turn."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from agent_core.aio import finish_uncancelled

if TYPE_CHECKING:
    from agent_core.tasks import TaskBoard

OpenBoard = Callable[[], AbstractAsyncContextManager["TaskBoard"]]
"""Opens the board of a session from its logs."""


class TaskBoards:
    """Keeps one board per session: a board locks its logs, so a second one could not write them.

    The run of an orchestrator keeps its board open. A program uses that board, or opens one for a
    moment; a run that begins meanwhile waits for it.
    """

    def __init__(self) -> None:
        self._held: dict[str, TaskBoard] = {}
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def hold(self, session_id: str, open_board: OpenBoard) -> "AsyncGenerator[TaskBoard]":
        """Open the board of a session until the end of its run."""
        turn, stack = self._turn(session_id), AsyncExitStack()

        async def release() -> None:
            async with turn:
                del self._held[session_id]
                await stack.aclose()

        async with turn:
            board = self._held[session_id] = await stack.enter_async_context(open_board())
        try:
            yield board
        finally:
            await finish_uncancelled(release())

    @asynccontextmanager
    async def use(self, session_id: str, open_board: OpenBoard) -> "AsyncGenerator[TaskBoard]":
        """Yield the board of the session's run, or one that is closed afterwards."""
        async with self._turn(session_id):
            if (held := self._held.get(session_id)) is not None:
                yield held
                return
            async with open_board() as board:
                yield board

    def _turn(self, session_id: str) -> asyncio.Lock:
        if (turn := self._turns.get(session_id)) is None:
            turn = self._turns[session_id] = asyncio.Lock()
        return turn
