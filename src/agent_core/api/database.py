"""`Database`, the database of a runtime as a server sees it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from agent_core.errors import StorageError

if TYPE_CHECKING:
    from agent_core.storage.store import SessionStore

logger = logging.getLogger(__name__)

WITHIN_S = 3.0
"""Seconds after which a database that has not responded counts as down."""

_LEAST_S = 0.3
"""Seconds that a caller waits at least: it is asked again in a moment, and may be back."""


class Database:
    """The database of a runtime; servers ask it whether it responds.

    Args:
        open_store: returns the store, once it is open.
        find_store: returns the store, if it is open.
    """

    def __init__(
        self,
        open_store: "Callable[[], Awaitable[SessionStore]]",
        find_store: "Callable[[], SessionStore | None]",
    ) -> None:
        self._open_store = open_store
        self._find_store = find_store
        self._asked: dict[bool, _Asked] = {}
        self._failing = set[bool]()

    @property
    def is_silent(self) -> bool:
        """Return whether a question waits for longer than usual: it is down until this is False."""
        loop = asyncio.get_running_loop()
        return any(
            not each.question.done()
            and each.question.get_loop() is loop
            and loop.time() > each.at + WITHIN_S
            for to_writes, each in self._asked.items()
            if not to_writes
        )

    async def responds(self, *, to_writes: bool = False, within_s: float = WITHIN_S) -> bool:
        """Return whether the database responds.

        It is asked once at a time, however many callers there are; while an earlier question has
        waited longer than `within_s`, the answer is soon False. The log says why, once for each
        outage.

        Args:
            to_writes: whether it also begins a transaction that writes, which a read-only server
                refuses, and another process that has locked the file of the sessions prevents.
            within_s: seconds that it has.

        Raises:
            ConfigError: the runtime cannot be opened.
        """
        loop = asyncio.get_running_loop()
        asked = self._asked.get(to_writes)
        if asked is None or asked.question.done() or asked.question.get_loop() is not loop:
            asked = self._asked[to_writes] = _Asked(
                asyncio.create_task(self._ask(to_writes=to_writes)), loop.time()
            )
        left = asked.at + within_s - loop.time()
        await asyncio.wait([asked.question], timeout=max(left, _LEAST_S))
        return asked.question.done() and asked.question.result()

    def hurry(self) -> None:
        """Stop waiting for it, before the runtime is closed or while it is.

        What finds it down, or locked, fails at once from now on instead of after a minute: what
        cannot be stored now is lost, as if the process had been killed.
        """
        if (store := self._find_store()) is not None:
            store.hurry()

    async def _ask(self, *, to_writes: bool) -> bool:
        try:
            await (await self._open_store()).respond(to_writes=to_writes)
        except StorageError as error:
            if to_writes not in self._failing:  # once for each outage
                self._failing.add(to_writes)
                logger.warning("the database does not respond: %s", error)
            return False
        if to_writes in self._failing:
            self._failing.discard(to_writes)
            logger.info("the database responds again")
        return True


class _Asked:
    """A question to the database, and when it was asked, by the event loop's clock."""

    def __init__(self, question: asyncio.Task[bool], at: float) -> None:
        self.question = question
        self.at = at
