"""Work that goes on when a run has ended, or beside it: nobody waits for it but this."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Coroutine
from typing import Any

logger = logging.getLogger(__name__)


class Jobs:
    """The background jobs of one runtime, by session. Whoever starts one leaves it here.

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
        await _ended(self._tasks.get(session_id, set()))

    async def close(self) -> None:
        """Wait a while for every job, then cancel what is left."""
        await _ended(self._patient)
        tasks = [task for of_session in self._tasks.values() for task in of_session]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=self._grace_s)
            await _ended(late)

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


async def _ended(tasks: set[asyncio.Task[None]]) -> None:
    waiting = set(tasks)
    for task in waiting:
        task.cancel()
    if waiting:
        await asyncio.wait(waiting)
