"""The account of all running children: how many there may be, where they are, how they stop."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from agent_core.agents.child import ChildCancelReason, ChildRun, OnFailure, no_trace
from agent_core.config.models import AgentsConfig
from agent_core.errors import ErrorCode, ToolError
from agent_core.events import EventStream, SessionStore
from agent_core.types import EventLevel, EventType, RunIdentity

logger = logging.getLogger(__name__)

MakeChild = Callable[[], Awaitable[ChildRun]]
"""Prepares a child; nothing of it is stored before it runs."""

LeftBehind = Callable[[str], Awaitable[None]]
"""Hears, with the session's id, that a child has ended after its parent."""


async def _nobody_waits(_: str) -> None:
    """For a runtime whose sessions are nobody else's."""


@dataclass(slots=True, eq=False)
class RunningChild:
    """A child and the task that carries it out.

    `is_left_behind`: it did not stop in time, and nobody waits for it any more.
    """

    child: ChildRun
    task: asyncio.Task[None]
    is_left_behind: bool = False


class ChildRuns:
    """Every child run of one runtime. Whoever starts one waits for it here, or stops it.

    A child that does not stop in time is left behind: its place stays taken until it has ended,
    and `close` waits for it.
    """

    def __init__(
        self,
        store: SessionStore,
        config: AgentsConfig,
        *,
        on_failure: OnFailure = no_trace,
        left_behind: LeftBehind = _nobody_waits,
    ) -> None:
        self._store = store
        self._config = config
        self._on_failure = on_failure
        self._left_behind = left_behind
        self._cancel_timeout_s = config.child_cancel_timeout_ms / 1000
        self._of_run: Counter[str] = Counter()
        self._of_session: Counter[str] = Counter()
        self._running: dict[str, RunningChild] = {}

    def __len__(self) -> int:
        """How many are running now."""
        return len(self._running)

    async def start(
        self,
        make: MakeChild,
        leader: RunIdentity,
        *,
        freed: Callable[[], object] = lambda: None,
    ) -> RunningChild:
        """Take a place and start the child in it. Whoever starts it waits for it, or stops it.

        `freed` is called once, when the child has ended for good or will never exist.

        Raises:
            ToolError: `child_agent_limit_exceeded`.
            AgentCoreError: the child could not be prepared; there is none.
        """
        places = ExitStack()
        places.callback(freed)
        with ExitStack() as unless_started:
            unless_started.callback(places.close)
            self._take(leader)
            places.callback(self._give_back, leader)
            child = await make()
            unless_started.pop_all()
        task = asyncio.create_task(self._carry_out(child), name=child.run.run_id)
        running = self._running[child.run.run_id] = RunningChild(child, task)
        task.add_done_callback(partial(self._forget, child.run.run_id, places))
        return running

    async def wait(self, running: RunningChild, *, timeout_ms: int | None) -> None:
        """Return when the child has ended or was left behind; stop it when its time is over.

        Raises:
            AgentCoreError: the child could not be stored; there is none.
            asyncio.CancelledError: the leader was cancelled, and the child with it.
        """
        limit_ms = timeout_ms or self._config.default_child_timeout_ms
        try:
            await asyncio.wait([running.task], timeout=limit_ms / 1000)
            if not running.task.done():
                await self._stop([running], ChildCancelReason.TIMEOUT)
        except asyncio.CancelledError:
            if not running.is_left_behind:
                # All of the leader's at once: one after the other would take as many times as long.
                mine = self._of(running.child.run.parent_run_id)
                await self._stop(mine, ChildCancelReason.PARENT_CANCELLED)
                if running.task.done():
                    running.child.tell_end()
            raise
        if running.task.done():
            running.task.result()
            running.child.tell_end()

    async def stop_all(self, leader: RunIdentity, reason: ChildCancelReason) -> None:
        """Stop what a run has started and not waited for; the run is over."""
        if mine := self._of(leader.run_id):
            await self._stop(mine, reason)

    def is_running(self, run_id: str) -> bool:
        """Whether a child has not ended yet."""
        return run_id in self._running

    def stream(self, run_id: str, *, parent_run_id: str) -> EventStream | None:
        """The events of a running child of that parent."""
        found = self._running.get(run_id)
        if found is None or found.child.run.parent_run_id != parent_run_id:
            return None
        return found.child.stream

    async def stop(self, run_id: str) -> None:
        """Ask a run to stop because its Task has ended, and return when it has."""
        if running := self._running.get(run_id):
            running.child.request_stop(ChildCancelReason.TASK_ENDED)
            await asyncio.wait([running.task])

    async def close(self) -> None:
        """Stop what is still running, and wait as long as a cancellation may take."""
        for running in self._running.values():
            running.child.request_stop(ChildCancelReason.RUNTIME_CLOSED)
        tasks = [running.task for running in self._running.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=self._cancel_timeout_s)

    async def _carry_out(self, child: ChildRun) -> None:
        try:
            await child.carry_out(self._store, self._on_failure)
        finally:
            if child.parent.is_closing:
                await self._left_behind(child.run.session_id)

    def _of(self, leader_run_id: str | None) -> list[RunningChild]:
        """The running children of a run, those aside that were left behind."""
        return [
            running
            for running in self._running.values()
            if running.child.run.parent_run_id == leader_run_id and not running.is_left_behind
        ]

    async def _stop(self, stopped: Sequence[RunningChild], reason: ChildCancelReason) -> None:
        """Ask children to stop, and wait as long as that may take."""
        for running in stopped:
            running.child.request_stop(reason)
        tasks = [running.task for running in stopped]
        await asyncio.wait(tasks, timeout=self._cancel_timeout_s)
        for running in stopped:
            if not running.task.done() and not running.is_left_behind:
                child, running.is_left_behind = running.child, True
                logger.warning("child run %s did not stop in time", child.run.run_id)
                late = EventType.CHILD_AGENT_CANCEL_TIMEOUT
                child.tell_parent(late, EventLevel.WARNING, reason=reason)

    def _forget(self, run_id: str, places: ExitStack, task: asyncio.Task[None]) -> None:
        del self._running[run_id]
        places.close()
        if not task.cancelled():
            task.exception()  # seen: whoever waited for it may be gone

    def _take(self, leader: RunIdentity) -> None:
        of_run, of_session = self._of_run[leader.run_id], self._of_session[leader.session_id]
        config = self._config
        for running, most, owner in (
            (of_run, config.max_children_per_run, "run"),
            (of_session, config.max_concurrent_children_per_session, "session"),
        ):
            if running >= most:
                message = f"{running} children of this {owner} are running, and no more may"
                details = {"scope": owner, "running": running, "limit": most}
                code = ErrorCode.CHILD_AGENT_LIMIT_EXCEEDED
                raise ToolError(code, message, retryable=True, details=details)
        self._of_run[leader.run_id] = of_run + 1
        self._of_session[leader.session_id] = of_session + 1

    def _give_back(self, leader: RunIdentity) -> None:
        for places, key in (
            (self._of_run, leader.run_id),
            (self._of_session, leader.session_id),
        ):
            places[key] -= 1
            if not places[key]:
                del places[key]
