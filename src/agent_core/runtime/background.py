"""Work that goes on beside runs and after them, and the account of what it costs."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, cast

from agent_core.events import SessionJournal, SessionReads
from agent_core.types import Usage

logger = logging.getLogger(__name__)

_USAGE_KEY = "background_usage"


class Jobs:
    """The background jobs of one runtime, by session.

    Args:
        grace_s: how long `close` waits for what is under way, in seconds.
    """

    def __init__(self, *, grace_s: float) -> None:
        self._grace_s = grace_s
        self._patient: set[asyncio.Task[None]] = set()
        self._tasks: defaultdict[str, set[asyncio.Task[None]]] = defaultdict(set)

    def start(
        self,
        session_id: str,
        work: Coroutine[Any, Any, None],
        *,
        name: str,
        then: Callable[[], None],
        is_patient: bool = False,
    ) -> None:
        """Let `work` go on by itself. What it raises is a bug, and is logged.

        `then` is called when it has ended, even if it was cancelled before it began.

        Patient work can be done another day: `close` does not wait for it.
        """
        task = asyncio.create_task(work, name=_title(session_id, name))
        if is_patient:
            self._patient.add(task)
            task.add_done_callback(self._patient.discard)
        self._tasks[session_id].add(task)
        task.add_done_callback(lambda done: self._forget(session_id, done, then))

    def stop(self, session_id: str, *, name: str) -> None:
        """Ask the jobs of that name to end; they are waited for all the same."""
        for task in self._tasks.get(session_id, ()):
            if task.get_name() == _title(session_id, name):
                task.cancel()

    async def cancel(self, session_id: str) -> None:
        """Cancel the jobs of a session, and return when they have ended."""
        await _cancel_all(self._tasks.get(session_id, set()))

    async def close(self) -> None:
        """Wait a while for every job, then cancel what is left."""
        await _cancel_all(self._patient)
        tasks = [task for of_session in self._tasks.values() for task in of_session]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=self._grace_s)
            await _cancel_all(late)

    def _forget(self, session_id: str, task: asyncio.Task[None], then: Callable[[], None]) -> None:
        tasks = self._tasks[session_id]
        tasks.discard(task)
        if not tasks:
            del self._tasks[session_id]
        if not task.cancelled() and (error := task.exception()):
            logger.error("the background job %s broke", task.get_name(), exc_info=error)
        then()


def _title(session_id: str, name: str) -> str:
    return f"{name} of {session_id}"


async def _cancel_all(tasks: set[asyncio.Task[None]]) -> None:
    waiting = set(tasks)
    for task in waiting:
        task.cancel()
    if waiting:
        await asyncio.wait(waiting)


class UsageLedger:
    """Adds up the tokens of background model calls in the session's metadata, by purpose."""

    def __init__(self, store: SessionReads, journal: SessionJournal) -> None:
        self._store = store
        self._journal = journal
        self._lock = asyncio.Lock()  # adding up is reading, then writing

    async def add(self, session_id: str, purpose: str, usage: Usage) -> None:
        """Count what a call has cost; one that cost nothing is not written.

        Raises:
            StorageError: it could not be stored.
        """
        if usage == Usage():
            return
        async with self._lock:
            session = await self._store.session(session_id)
            if session is None:
                return
            known = read_background_usage(session.metadata)
            known[purpose] = known.get(purpose, Usage()).plus(usage)
            stored = {name: one.model_dump(exclude={"raw_usage"}) for name, one in known.items()}
            await self._journal.remember(session_id, {_USAGE_KEY: stored})


def read_background_usage(metadata: Mapping[str, Any]) -> dict[str, Usage]:
    """The cost of a session's background calls in its metadata, by purpose."""
    stored = metadata.get(_USAGE_KEY)
    if not isinstance(stored, dict):
        return {}
    entries = cast("dict[str, Any]", stored)
    return {purpose: Usage.model_validate(usage) for purpose, usage in entries.items()}
