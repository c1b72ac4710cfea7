"""Giving a Task up while workers work on it, and what leases do when clocks jump."""

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path

import pytest

from agent_core.errors import ErrorCode, ToolError
from agent_core.tasks.commands import RunEnding
from agent_core.types import EventLevel
from task_boards import Caller, Desk, created, desk_in, statuses, step


@pytest.fixture
async def desk(project: Path) -> AsyncGenerator[Desk]:
    async with desk_in(project) as open_desk:
        yield open_desk


class Stubborn:
    """A run that ends its step, or not, but never stops."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def stop(self, run_id: str) -> None:
        self.asked.set()
        await asyncio.Event().wait()


class Obedient:
    """A run that ends when asked, and whose end closes its step, as any run's does."""

    def __init__(self, worker: Caller, desk: Desk) -> None:
        self.worker = worker
        self.desk = desk

    async def stop(self, run_id: str) -> None:
        await self.desk.board.run_ended(run_id, RunEnding.CANCELLED, self.worker.actor)


async def claimed(desk: Desk) -> Caller:
    await created(desk, step("s1"), step("s2"))
    worker = desk.worker("run_a")
    await worker.call("claim_step", task_id="t1", step_id="s1")
    return worker


async def test_k15_a_worker_that_does_not_stop_is_not_waited_for_long(desk: Desk) -> None:
    await claimed(desk)
    orchestrator = desk.orchestrator(stopper=Stubborn())
    answer = await asyncio.wait_for(orchestrator.call("cancel", task_id="t1"), 5)
    assert answer["task"]["status"] == "cancelled"
    late = [note for note in desk.notes.events if note[0].value == "child_agent_cancel_timeout"]
    ((_, payload, level),) = late
    assert payload == {"child_run_id": "run_a", "task_id": "t1"}
    assert level is EventLevel.WARNING


async def test_k15_a_worker_that_cannot_be_asked_to_stop_holds_nothing_up(desk: Desk) -> None:
    await claimed(desk)

    class Unreachable:
        async def stop(self, run_id: str) -> None:
            raise ToolError(ErrorCode.WORKER_NOT_AVAILABLE, "gone")

    answer = await desk.orchestrator(stopper=Unreachable()).call("cancel", task_id="t1")
    assert answer["task"]["status"] == "cancelled"


async def test_k10_a_worker_stopped_with_its_task_does_not_fail_its_step(desk: Desk) -> None:
    worker = await claimed(desk)
    orchestrator = desk.orchestrator(stopper=Obedient(worker, desk))
    await orchestrator.call("cancel", task_id="t1")
    assert "task_step_failed" not in desk.types()
    assert desk.types()[-3:] == ["task_step_cancelled", "task_step_cancelled", "task_cancelled"]


async def test_a_worker_may_finish_while_it_is_asked_to_stop(desk: Desk) -> None:
    worker = await claimed(desk)

    class Finishing:
        async def stop(self, run_id: str) -> None:
            await worker.call("update_step", task_id="t1", step_id="s1", status="completed")

    orchestrator = desk.orchestrator(stopper=Finishing())
    answer = await orchestrator.call("cancel", task_id="t1")
    assert answer["task"]["step_counts"] == {"cancelled": 1, "completed": 1}


async def test_nothing_is_claimed_while_a_task_is_given_up(desk: Desk) -> None:
    await claimed(desk)
    stubborn = Stubborn()
    orchestrator = desk.orchestrator(stopper=stubborn)
    ending = asyncio.create_task(orchestrator.call("fail", task_id="t1"))
    await stubborn.asked.wait()
    with pytest.raises(ToolError) as refused:
        await desk.worker("run_b").call("claim_step", task_id="t1", step_id="s2")
    assert refused.value.code is ErrorCode.TASK_NOT_DISPATCHABLE
    with pytest.raises(ToolError) as refused:
        await orchestrator.call("cancel", task_id="t1")
    assert refused.value.code is ErrorCode.TASK_NOT_DISPATCHABLE
    await ending


async def test_an_end_that_is_cancelled_leaves_the_task_usable(desk: Desk) -> None:
    worker = await claimed(desk)
    stubborn = Stubborn()
    ending = asyncio.create_task(desk.orchestrator(stopper=stubborn).call("fail", task_id="t1"))
    await stubborn.asked.wait()
    assert await desk.board.run_ended("run_a", RunEnding.CANCELLED, worker.actor) is None
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert desk.lines()[-1]["payload"]["reason"] == "worker_cancelled"
    answer = await desk.orchestrator().call("get", task_id="t1", include_terminal_steps=True)
    assert (answer["status"], statuses(answer)) == ("running", {"s1": "failed", "s2": "ready"})
    await desk.worker("run_b").call("claim_step", task_id="t1", step_id="s2")


async def test_a_task_can_be_given_up_while_it_is_blocked(desk: Desk) -> None:
    orchestrator = await created(desk, step("s1"))
    block = {"op": "update_task", "status": "blocked"}
    await orchestrator.call("update", task_id="t1", operations=[block])
    assert (await orchestrator.call("fail", task_id="t1"))["task"]["status"] == "failed"


@pytest.mark.parametrize("days", [-10, 10])
async def test_r6_a_clock_that_jumps_ends_no_lease(desk: Desk, days: int) -> None:
    await claimed(desk)
    desk.clock.wall += timedelta(days=days)
    desk.clock.seconds += 299
    answer = await desk.orchestrator().call("get", task_id="t1")
    assert statuses(answer)["s1"] == "claimed"
    desk.clock.seconds += 2
    answer = await desk.orchestrator().call("get", task_id="t1")
    assert statuses(answer)["s1"] == "ready"


async def test_k9_resuming_with_a_live_claim_writes_nothing(project: Path) -> None:
    async with desk_in(project) as desk:
        await claimed(desk)
        path = desk.folder / "work.wal.jsonl"
    before, written = path.read_bytes(), path.stat().st_mtime_ns
    desk.clock.pass_(200)
    async with desk_in(project, desk.clock) as later:
        orchestrator = later.orchestrator()
        assert statuses(await orchestrator.call("get", task_id="t1"))["s1"] == "claimed"
        assert (path.read_bytes(), path.stat().st_mtime_ns) == (before, written)
        later.clock.pass_(101)
        assert statuses(await orchestrator.call("get", task_id="t1"))["s1"] == "ready"


async def test_k9_a_lease_that_ran_out_meanwhile_ends_at_resume(project: Path) -> None:
    async with desk_in(project) as desk:
        await claimed(desk)
    desk.clock.pass_(301)
    async with desk_in(project, desk.clock) as later:
        assert later.types()[-2:] == ["task_step_lease_expired", "task_step_ready"]


async def test_r6_a_clock_set_back_between_processes_holds_no_lease_for_days(
    project: Path,
) -> None:
    async with desk_in(project) as desk:
        await claimed(desk)
    desk.clock.wall -= timedelta(days=10)
    async with desk_in(project, desk.clock) as later:
        later.clock.pass_(301)
        answer = await later.orchestrator().call("get", task_id="t1")
        assert statuses(answer)["s1"] == "ready"


async def test_a_run_without_a_claim_has_lost_none(desk: Desk) -> None:
    await claimed(desk)
    assert not desk.board.has_lost_claim("run_a")
    assert not desk.board.has_lost_claim("run_b")
    held = desk.board.claimed_by("run_a")
    assert held is not None
    assert (held.task_id, held.step.step_id, held.is_held) == ("t1", "s1", True)


async def test_a_worker_whose_task_ended_has_lost_its_claim(desk: Desk) -> None:
    await claimed(desk)
    await desk.orchestrator().call("cancel", task_id="t1")
    assert desk.board.has_lost_claim("run_a")
