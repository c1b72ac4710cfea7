"""Who runs when, and what a cancellation leaves behind."""

import asyncio
from itertools import count

import pytest

from agent_core.errors import ErrorCode, StorageError
from agent_core.events import Journal
from agent_core.loop import Outcome, ResumePoint, conclude
from agent_core.runtime.run import Execute, Phase, Run, RunScope
from agent_core.runtime.scheduler import Scheduler
from agent_core.types import EndReason, EventType, RunStatus, user_text
from loop_parts import Session

numbers = count()


async def a_run(session: Session, execute: Execute, status: RunStatus = RunStatus.PENDING) -> Run:
    ctx = await session.start()
    return Run(
        number=next(numbers),
        execute=execute,
        identity=ctx.run,
        prompt=user_text("go"),
        journal=ctx.journal,
        stream=session.streams[-1],
        history=ctx.history,
        status=status,
        scope=RunScope(run_id=ctx.run.run_id),
    )


class Work:
    """Runs that go on until they are told to end."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self._gates: dict[str, asyncio.Event] = {}

    def gate(self, run: Run) -> asyncio.Event:
        return self._gates.setdefault(run.identity.run_id, asyncio.Event())

    async def execute(self, run: Run) -> None:
        run.journal.begin()
        async with conclude(run.journal, run.finish):
            self.begun.append(run.identity.run_id)
            await self.gate(run).wait()


def scheduler(*, most: int = 8, timeout_s: float = 5) -> Scheduler:
    return Scheduler(max_running=most, cancel_timeout_s=timeout_s)


async def test_d3_runs_of_one_session_follow_each_other_in_order() -> None:
    work, session = Work(), Session()
    queue = scheduler()
    runs = [await a_run(session, work.execute) for _ in range(3)]
    assert [queue.enqueue(run) for run in runs] == [False, True, True]
    await asyncio.sleep(0)
    assert work.begun == [runs[0].identity.run_id]
    for run in runs:
        work.gate(run).set()
        await run.ended.wait()
    assert work.begun == [run.identity.run_id for run in runs]
    assert not queue.is_busy("s1")


async def test_sessions_run_side_by_side_as_far_as_there_are_places() -> None:
    work = Work()
    queue = scheduler(most=2)
    runs = [await a_run(Session(session_id=f"s{n}"), work.execute) for n in range(3)]
    assert [queue.enqueue(run) for run in runs] == [False, False, True]
    await asyncio.sleep(0)
    assert work.begun == [run.identity.run_id for run in runs[:2]]
    work.gate(runs[1]).set()
    await runs[1].ended.wait()
    await asyncio.sleep(0)
    assert work.begun[-1] == runs[2].identity.run_id
    await queue.close()
    assert {run.status for run in runs} == {RunStatus.COMPLETED, RunStatus.CANCELLED}


async def test_d4_a_cancelled_queued_run_never_begins_and_says_so() -> None:
    work, session = Work(), Session()
    queue = scheduler()
    first, second, third = [await a_run(session, work.execute, RunStatus.QUEUED) for _ in range(3)]
    for run in (first, second, third):
        queue.enqueue(run)
    result = await queue.cancel(second)
    assert (result.status, result.timed_out) == (RunStatus.CANCELLED, False)
    work.gate(first).set()
    work.gate(third).set()
    await third.ended.wait()
    assert second.identity.run_id not in work.begun
    events = [e for e in await session.events() if e.run_id == second.identity.run_id]
    assert [event.event_type for event in events] == [
        EventType.RUN_DEQUEUED,
        EventType.RUN_CANCELLED,
    ]


async def test_cancelling_twice_or_after_the_end_changes_nothing() -> None:
    work = Work()
    queue = scheduler()
    run = await a_run(Session(), work.execute)
    queue.enqueue(run)
    await asyncio.sleep(0)
    both = await asyncio.gather(*(queue.cancel(run) for _ in range(20)))
    assert {result.status for result in both} == {RunStatus.CANCELLED}
    assert run.outcome is not None
    assert run.outcome.end_reason is EndReason.ABORTED_STREAMING
    again = await queue.cancel(run)
    assert again.status is RunStatus.CANCELLED


async def test_a_run_that_does_not_stop_in_time_is_reported_and_cleaned_up_later() -> None:
    release = asyncio.Event()

    async def stubborn(run: Run) -> None:
        async with conclude(run.journal, run.finish):
            try:
                await asyncio.Event().wait()
            finally:
                await release.wait()

    session = Session()
    queue = scheduler(timeout_s=0.05)
    run = await a_run(session, stubborn)
    queue.enqueue(run)
    await asyncio.sleep(0)
    result = await queue.cancel(run)
    assert result.timed_out
    release.set()
    await run.ended.wait()
    assert run.status is RunStatus.CANCELLED
    types = await session.event_types()
    assert EventType.CANCEL_TIMEOUT in types
    assert types[-1] is EventType.RUN_CANCELLED


async def test_a_run_that_is_ending_is_not_cancelled_any_more() -> None:
    async def quick(run: Run) -> None:
        async with conclude(run.journal, run.finish):
            pass

    queue = scheduler()
    run = await a_run(Session(), quick)
    queue.enqueue(run)
    await run.ended.wait()
    assert (await queue.cancel(run)).status is RunStatus.COMPLETED


@pytest.mark.parametrize("outcome", [Outcome(EndReason.COMPLETED), Outcome(EndReason.MAX_TURNS)])
def test_a_runs_status_is_that_of_its_outcome(outcome: Outcome) -> None:
    assert outcome.status.is_terminal


class SlowHistory:
    """A history that is read when a test says so, or cannot be read."""

    def __init__(self, failure: StorageError | None = None) -> None:
        self.is_asked, self.may_answer = asyncio.Event(), asyncio.Event()
        self._failure = failure

    async def resume(self, journal: Journal) -> ResumePoint | None:
        self.is_asked.set()
        await self.may_answer.wait()
        if self._failure is not None:
            raise self._failure
        return None


async def a_queue_with_a_parked_run(history: SlowHistory) -> tuple[Scheduler, Work, Run, Run]:
    """A scheduler in which a run that has waited for an answer is behind another one."""
    work, session = Work(), Session()
    queue = scheduler()
    first, second = [await a_run(session, work.execute) for _ in range(2)]
    second.is_continued, second.history = True, history
    for run in (first, second):
        queue.enqueue(run)
    await asyncio.sleep(0)
    return queue, work, first, second


async def test_a_run_that_is_lost_while_it_is_cancelled_in_the_queue_leaves_it_once() -> None:
    history = SlowHistory()
    queue, work, first, second = await a_queue_with_a_parked_run(history)
    cancelling = asyncio.create_task(queue.cancel(second))
    await history.is_asked.wait()
    assert await queue.abandon(second, StorageError(ErrorCode.SESSION_ACTIVE, "another has it"))
    history.may_answer.set()
    await cancelling
    assert second.phase is Phase.LEFT
    work.gate(first).set()
    await first.ended.wait()
    assert not queue.is_busy("s1")


async def test_a_parked_run_whose_history_cannot_be_read_is_not_cancelled() -> None:
    history = SlowHistory(StorageError(ErrorCode.STORAGE_ERROR, "no disk"))
    history.may_answer.set()
    queue, work, first, second = await a_queue_with_a_parked_run(history)
    with pytest.raises(StorageError, match="no disk"):
        await queue.cancel(second)
    assert (second.phase, second.status) == (Phase.PARKED, RunStatus.WAITING)
    assert second.ended.is_set()
    work.gate(first).set()
    await first.ended.wait()
    assert not queue.is_busy("s1")
