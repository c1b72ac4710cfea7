"""Requests that clients may send twice, and that are carried out once."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from agent_core.errors import StorageError
from agent_core.types import new_id

if TYPE_CHECKING:
    from agent_core.storage.repeats import SentBefore
    from agent_core.storage.store import SessionStore

KEPT = timedelta(hours=24)
"""The time for which an answer is kept."""

_LEASE, _PAUSE_S = timedelta(minutes=1), 20.0


class RepeatedRequests:
    """The requests of a database that were sent before, in this process or another.

    If a process dies while it carries a request out, the request counts as sent for another minute.

    Args:
        open_store: returns the store, once it is open.
    """

    def __init__(self, open_store: "Callable[[], Awaitable[SessionStore]]") -> None:
        self._open_store = open_store
        self._holder = new_id("req")
        self._held: set[str] = set()
        self._holding: asyncio.Task[None] | None = None

    async def begin(self, key: str, digest: str) -> "SentBefore | None":
        """Begin to carry a request out, until `keep` or `drop`.

        Args:
            key: identifies the request.
            digest: of its content.

        Returns:
            None; if the key was used before, the request that used it, and nothing is begun.
        """
        store = await self._open_store()
        found = await store.begin_request(key, digest, holder=self._holder, lease=_LEASE)
        if found is None:
            self._held.add(key)
            if self._holding is None or self._holding.done():
                self._holding = asyncio.create_task(self._hold())
        return found

    async def keep(self, key: str, answer: str, session_id: str | None = None) -> None:
        """Store the answer to a request that was begun; it is kept for 24 hours.

        Args:
            key: identifies the request.
            answer: the answer.
            session_id: the session that it is about, and with which it is deleted.
        """
        store = await self._open_store()
        self._held.discard(key)
        await store.keep_answer(key, answer, holder=self._holder, lasts=KEPT, session_id=session_id)

    async def drop(self, key: str) -> None:
        """Forget a request that was begun, because nothing came of it."""
        store = await self._open_store()
        self._held.discard(key)
        await store.drop_request(key, holder=self._holder)

    async def _hold(self) -> None:
        while self._held:
            await asyncio.sleep(_PAUSE_S)
            with suppress(StorageError):  # the next time may succeed
                store = await self._open_store()
                held = sorted(self._held)
                await store.hold_requests(held, holder=self._holder, lease=_LEASE)
