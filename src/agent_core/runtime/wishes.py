"""Explicit wishes for the memory: which are being carried out, and what became of them."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent_core.types import MemoryWish

_SEARCH_S = 5.0
_MOST_TOLD = 100
"""Number of outcomes that are kept until they are asked for."""


class Wishes:
    """The sessions whose wishes this process carries out, and the outcomes.

    Attributes:
        are_left: they are left to the next process, and nothing waits for them.
    """

    def __init__(self) -> None:
        self.are_left = False
        self._open: dict[str, bool] = {}  # by session, whether it is known that it has a wish
        self._changed = asyncio.Event()
        self._outcomes: list[MemoryWish] = []

    def begin(self, session_id: str, *, is_known: bool = False) -> None:
        """Note that a session has a wish that is being carried out; or that it may have one."""
        self._open[session_id] = is_known
        self._changed.set()

    def end(self, session_id: str) -> None:
        """Note that a session has no wish, or that the work on it has ended."""
        self._open.pop(session_id, None)
        self._changed.set()

    def tell(self, outcome: "MemoryWish") -> None:
        """Keep an outcome until it is asked for."""
        self._outcomes = [*self._outcomes, outcome][-_MOST_TOLD:]

    def leave(self) -> None:
        """Stop waiting: the next process carries out what is left."""
        self.are_left = True
        self._changed.set()

    async def settled(self, on_wait: Callable[[], object] | None = None) -> None:
        """Wait until nothing is open, or what is open is left.

        If there is a wish to wait for, `on_wait` is called once. A search for wishes is waited for
        a moment only: what it has not found yet, the next process finds.
        """
        clock = asyncio.get_running_loop().time
        searches_until = clock() + _SEARCH_S
        while self._open and not self.are_left:
            has_wish = any(self._open.values())
            if has_wish and on_wait is not None:
                on_wait()
                on_wait = None
            self._changed.clear()
            try:
                async with asyncio.timeout_at(None if has_wish else searches_until):
                    await self._changed.wait()
            except TimeoutError:
                return

    def take(self) -> "list[MemoryWish]":
        """Return the outcomes since the last call."""
        outcomes, self._outcomes = self._outcomes, []
        return outcomes
