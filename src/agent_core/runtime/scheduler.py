"""Decides which run is next: one at a time per session, in order; sessions run concurrently."""

import asyncio
import heapq
import logging
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from agent_core.errors import AgentCoreError, ErrorCode, StorageError, validation_error
from agent_core.loop import Outcome, settle, settle_parked
from agent_core.redaction import log_failure
from agent_core.runtime.run import Nesting, Phase, Run
from agent_core.types import (
    CancelResult,
    EndReason,
    ErrorPayload,
    EventLevel,
    EventType,
    RunStatus,
)

if TYPE_CHECKING:
    from agent_core.budgets.meter import Meter

logger = logging.getLogger(__name__)

_CANCELLED = Outcome(EndReason.ABORTED_STREAMING)
"""The outcome of a run that is cancelled before it began."""

CancelRun = Callable[[str], None]
"""Begins to cancel a run of this or another process by its id."""


class Scheduler:
    """Starts runs first come, first served: within a session, and across sessions for free places.

    A session is busy while a run of it is queued or running, and in a block of `keep_busy`, in
    which a run is opened in the store before `enqueue` adds it.

    A run started inside another one takes no place: the outer run may wait for it, and has one. The
    runs before it in its session take none either. If it lasts longer than the outer run, it gets
    the place that becomes free.
    """

    def __init__(
        self,
        *,
        max_running: int,
        cancel_timeout_s: float,
        cancel_run: CancelRun = lambda _: None,
    ) -> None:
        self._max_running = max_running
        self._cancel_timeout_s = cancel_timeout_s
        self._cancel_run = cancel_run
        self._busy: Counter[str] = Counter()  # runs, and blocks of `keep_busy`, by session
        self._lanes: defaultdict[str, deque[Run]] = defaultdict(deque)
        self._ready: list[tuple[int, Run]] = []  # heads of their lanes, oldest first
        self._running = 0
        self.is_closed = False
        self._idle = asyncio.Event()
        self._idle.set()

    @contextmanager
    def keep_busy(self, session_id: str) -> Generator[None]:
        """Keep the session busy for a run that is being opened."""
        self._busy[session_id] += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._vacate(session_id)

    def _vacate(self, session_id: str) -> None:
        self._busy[session_id] -= 1
        if not self._busy[session_id]:
            del self._busy[session_id]
        if not self._busy:
            self._idle.set()

    def require_open(self) -> None:
        """Refuse a run that was opened while the runtime was being closed.

        Raises:
            AgentCoreError: `validation_error`: `close` was called.
        """
        if self.is_closed:
            message = "this runtime is being closed; the run was cancelled before it began"
            raise validation_error(message)

    def nest(self, outer: Run, payer: "Meter | None", session_id: str) -> Nesting:
        """Announce a run of this session that is started inside `outer`.

        Raises:
            StorageError: `session_active`: the session waits for `outer`, or for a run inside which
                `outer` was started, so the new run could never begin.
            AgentCoreError: `cancelled`: `outer` is being cancelled.
        """
        if outer.is_stopping:
            message = f"run {outer.identity.run_id} is being cancelled and starts no other run"
            raise AgentCoreError(ErrorCode.CANCELLED, message)
        if (blocker := self._find_blocker(outer, session_id)) is not None:
            raise _never_free(session_id, blocker)
        nesting = Nesting(outer=outer, payer=payer, session_id=session_id)
        outer.nested.append(nesting)
        return nesting

    def _find_blocker(self, outer: Run, session_id: str) -> Run | None:
        """Return the run that a new run would wait for, and that waits for the new run."""
        waiting = {outer}
        while (nesting := outer.nesting) is not None:
            outer = nesting.outer
            waiting.add(outer)
        seen, to_see = set[str](), [session_id]
        while to_see:
            session_id = to_see.pop()
            if session_id in seen:
                continue
            seen.add(session_id)
            for run in self._lanes.get(session_id, ()):
                if run in waiting:
                    return run
                to_see += [each.session_id for each in run.nested if each.is_waiting]
        return None

    def enqueue(self, run: Run) -> bool:
        """Start the run or put it into its session's queue; return whether it waits.

        A run whose outer run was cancelled meanwhile is stopping, and does not begin; the caller
        ends it.
        """
        session_id = run.identity.session_id
        self._busy[session_id] += 1
        self._idle.clear()
        lane = self._lanes[session_id]
        lane.append(run)
        if run.nesting is not None:
            run.nesting.add(run)
            # A run that waited for an answer when its outer run ended has outlasted it.
            if run.nesting.outer.is_stopping and (run.is_nested or not run.is_continued):
                run.is_stopping = True
        if lane[0] is run or run.is_nested:
            self._offer(lane)
        self._advance()
        waits = run.phase is Phase.QUEUED
        if waits:
            run.status = RunStatus.QUEUED
        return waits

    def ending(self, session_id: str) -> Run | None:
        """Return the last run of this session if its end is stored, and it leaves in a moment."""
        lane = self._lanes.get(session_id)
        return lane[-1] if lane and lane[-1].journal.has_end else None

    def is_busy(self, session_id: str) -> bool:
        """Return whether a run of this session is queued or running here."""
        return session_id in self._busy

    async def cancel(self, run: Run) -> CancelResult:
        """Cancel a run, and wait until it has ended or the time for that is over.

        Runs started inside it are cancelled first. Repeating this, or cancelling an ended run, does
        nothing.
        """
        if not run.is_stopping and not run.journal.is_closing:
            run.is_stopping = True
            self._cancel_nested(run)
            if run.phase is Phase.QUEUED:
                await self.dequeue(run)
            else:
                _interrupt(run)
        if not await self._ends_in_time(run):
            if run.journal.is_closing:  # nothing but its end can be stored any more
                await self._ends_in_time(run)
            else:
                await self._store_late(run)
        timed_out = not run.ended.is_set()
        return CancelResult(run_id=run.identity.run_id, status=run.status, timed_out=timed_out)

    async def _store_late(self, run: Run) -> None:
        """Store that a run did not stop in time, with the requests to its children."""
        if not run.is_late:
            run.is_late = True
            logger.warning("run %s did not stop in time", run.identity.run_id)
            payload = {"timeout_s": self._cancel_timeout_s}
            run.journal.note(EventType.CANCEL_TIMEOUT, payload, level=EventLevel.WARNING)
        with suppress(StorageError):  # the run fails with it
            await run.journal.commit(is_shown=False)

    def _cancel_nested(self, run: Run) -> None:
        """Begin to cancel the runs that were started inside this one."""
        for each in run.nested:
            if each.run is not None:
                self._cancel_run(each.run.identity.run_id)

    async def abandon(self, run: Run, reason: StorageError) -> bool:
        """Stop the work on a run without writing anything: another owner has it.

        Returns:
            Whether the work has ended; it continues if it does not stop in time.
        """
        run.journal.abandon(reason)
        run.is_stopping = True
        self._cancel_nested(run)
        if run.phase is Phase.QUEUED:
            self._leave(run)
        else:
            _interrupt(run)
        return await self._ends_in_time(run)

    async def _ends_in_time(self, run: Run) -> bool:
        """Wait for the end of a run, and return whether it came in the time for that."""
        with suppress(TimeoutError):
            await asyncio.wait_for(run.ended.wait(), self._cancel_timeout_s)
        return run.ended.is_set()

    async def dequeue(self, run: Run) -> None:
        """End a cancelled run that is still queued, before anything was done for it."""
        if not run.is_continued:
            run.journal.note(EventType.RUN_DEQUEUED)
        try:
            await self.settle_unbegun(run)
        except BaseException:
            if run.is_continued and run.outcome is None:
                run.status = RunStatus.WAITING  # as it is stored
            run.stream.close()
            raise
        finally:
            self._leave(run)

    async def settle_unbegun(self, run: Run) -> None:
        """Store that a run was cancelled before it began, or while it waited for an answer.

        The run need not be in the queue.
        """
        if not run.is_continued:
            await settle(run.journal, _CANCELLED, run.finish, began=False)
            return
        await settle_parked(run.journal, run.history, run.finish)

    @property
    def is_idle(self) -> bool:
        """Return whether no run is queued, running or being opened."""
        return self._idle.is_set()

    async def close(self, park: Callable[[], Collection[str]] = lambda: ()) -> None:
        """Cancel every run, queued ones first, and wait as long as a cancellation may take.

        Runs that are being opened are refused, and waited for too.

        Args:
            park: called after the queued runs; returns the ids of runs that park instead.
        """
        self.is_closed = True
        runs = [run for lane in self._lanes.values() for run in lane]
        await asyncio.gather(*(self.cancel(run) for run in runs if run.phase is Phase.QUEUED))
        parking = park()
        runs = [run for lane in self._lanes.values() for run in lane]
        ends = (self._end(run, run.identity.run_id in parking) for run in runs)
        await asyncio.gather(*ends)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), self._cancel_timeout_s)

    async def _end(self, run: Run, parks: bool) -> None:
        """Cancel a run; one that parks only if that takes too long."""
        if parks:
            with suppress(TimeoutError):
                await asyncio.wait_for(run.ended.wait(), self._cancel_timeout_s)
        await self.cancel(run)

    def _advance(self) -> None:
        while self._ready and self._running < self._max_running:
            _, run = heapq.heappop(self._ready)
            if run.phase is Phase.QUEUED:
                self._begin(run)
                self._take_place(run)

    def _offer(self, lane: deque[Run]) -> None:
        """Begin the first run of a session, or let it wait for a place."""
        for run in lane:
            if run.is_nested:
                self._begin(lane[0])
                return
        heapq.heappush(self._ready, (lane[0].number, lane[0]))

    def _begin(self, run: Run) -> None:
        if run.phase is Phase.QUEUED and not run.is_stopping:
            run.phase = Phase.STARTED
            run.status = RunStatus.RUNNING
            run.task = asyncio.create_task(
                self._carry_out(run), name=run.identity.run_id, context=run.context
            )

    def _take_place(self, run: Run) -> None:
        if run.phase in {Phase.STARTED, Phase.RUNNING} and not run.has_place:
            run.has_place = True
            self._running += 1

    async def _carry_out(self, run: Run) -> None:
        run.phase = Phase.RUNNING
        try:
            if run.is_stopping:
                await self.settle_unbegun(run)
            else:
                await run.execute(run)
        except asyncio.CancelledError:
            if not run.is_stopping:
                raise  # the event loop itself is shutting down
        except Exception as error:  # noqa: BLE001 - logged and settled
            what = f"run {run.identity.run_id} could not be settled"
            log_failure(logger, what, error=error, clean=run.journal.clean)
            message = f"the end of the run could not be stored ({type(error).__name__})"
            payload = ErrorPayload.of(AgentCoreError(ErrorCode.INTERNAL_ERROR, message))
            run.finish(Outcome(EndReason.FAILED, error=payload))
            run.stream.close()
        finally:
            self._leave(run)

    def _leave(self, run: Run) -> None:
        if run.ended.is_set():  # it was abandoned while it was being dequeued
            return
        self._running -= run.has_place
        for each in run.nested:
            if isinstance(each.run, Run):
                self._take_place(each.run)
        if run.nesting is not None:
            run.nesting.end()
        session_id = run.identity.session_id
        lane = self._lanes[session_id]
        was_first = lane[0] is run
        lane.remove(run)
        self._vacate(session_id)
        if not lane:
            del self._lanes[session_id]
        elif was_first:
            self._offer(lane)
        run.leave()
        self._advance()


def _interrupt(run: Run) -> None:
    """Cancel the task of a run, which settles it; before its first step, the task looks itself."""
    if run.phase is Phase.RUNNING and run.task is not None:
        run.task.cancel()


def _never_free(session_id: str, blocker: Run) -> StorageError:
    run_id = blocker.identity.run_id
    return StorageError(
        ErrorCode.SESSION_ACTIVE,
        f"session {session_id} is busy until run {run_id} ends, and this run was started inside"
        f" that one: it could never begin. Start it in another session, or after run {run_id}"
        " has ended",
        details={"session_id": session_id, "run_id": run_id},
    )
