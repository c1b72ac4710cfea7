"""Giving a Task up while workers work on it, and what leases do when clocks jump."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from agent_core.errors import ErrorCode, TaskError, ToolError
from agent_core.tasks.log_store import TaskLog
from agent_core.tasks.model import WorkerEnding
from agent_core.types import EventLevel
from task_boards import Caller, Desk, Stops, created, desk_in, statuses, step


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
        await self.desk.board.run_ended(run_id, WorkerEnding.CANCELLED, self.worker.actor)


async def claimed(desk: Desk) -> Caller:
    await created(desk, step("s1"), step("s2"))
    worker = desk.worker("run_a")
    await worker.call("claim_step", task_id="t1", step_id="s1")
    return worker


async def test_k15_a_worker_that_does_not_stop_is_not_waited_for_long(desk: Desk) -> None:
    await claimed(desk)
    orchestrator = desk.orchestrator(stop_run=Stubborn().stop)
    answer = await asyncio.wait_for(orchestrator.call("cancel", task_id="t1"), 50)
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

    answer = await desk.orchestrator(stop_run=Unreachable().stop).call("cancel", task_id="t1")
    assert answer["task"]["status"] == "cancelled"


async def test_k10_a_worker_stopped_with_its_task_does_not_fail_its_step(desk: Desk) -> None:
    worker = await claimed(desk)
    orchestrator = desk.orchestrator(stop_run=Obedient(worker, desk).stop)
    await orchestrator.call("cancel", task_id="t1")
    assert "task_step_failed" not in desk.types()
    assert desk.types()[-3:] == ["task_step_cancelled", "task_step_cancelled", "task_cancelled"]


async def test_a_worker_may_finish_while_it_is_asked_to_stop(desk: Desk) -> None:
    worker = await claimed(desk)

    class Finishing:
        async def stop(self, run_id: str) -> None:
            await worker.call("update_step", task_id="t1", step_id="s1", status="completed")

    orchestrator = desk.orchestrator(stop_run=Finishing().stop)
    answer = await orchestrator.call("cancel", task_id="t1")
    assert answer["task"]["step_counts"] == {"cancelled": 1, "completed": 1}


async def test_nothing_is_claimed_while_a_task_is_given_up(desk: Desk) -> None:
    await claimed(desk)
    stubborn = Stubborn()
    orchestrator = desk.orchestrator(stop_run=stubborn.stop)
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
    ending = asyncio.create_task(
        desk.orchestrator(stop_run=stubborn.stop).call("fail", task_id="t1")
    )
    await stubborn.asked.wait()
    assert await desk.board.run_ended("run_a", WorkerEnding.CANCELLED, worker.actor) is None
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert desk.lines()[-1]["payload"]["reason"] == "cancelled"
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


async def test_an_open_call_keeps_a_lease_and_its_end_begins_a_new_one(desk: Desk) -> None:
    worker, orchestrator = await claimed(desk), desk.orchestrator()
    desk.at_work.add("run_a")
    desk.clock.pass_(10_000)
    desk.clock.wall += timedelta(days=10)
    assert statuses(await orchestrator.call("get", task_id="t1"))["s1"] == "claimed"
    desk.at_work.clear()
    await desk.board.end_call("run_a", worker.actor)
    assert desk.types()[-1] == "task_step_updated", "other processes see the new lease"
    desk.clock.pass_(299)
    assert statuses(await orchestrator.call("get", task_id="t1"))["s1"] == "claimed"
    desk.clock.pass_(2)
    assert statuses(await orchestrator.call("get", task_id="t1"))["s1"] == "ready"


async def test_a_call_left_open_in_an_earlier_run_keeps_its_lease(project: Path) -> None:
    async with desk_in(project) as desk:
        await claimed(desk)
    desk.clock.pass_(301)
    async with desk_in(project, desk.clock) as later:
        assert later.types()[-1] == "task_step_ready", "the holder is dead"
    async with desk_in(project, desk.clock) as desk:
        await desk.worker("run_b").call("claim_step", task_id="t1", step_id="s1")
        desk.at_work.add("run_b")
        desk.clock.pass_(301)
        query = await desk.orchestrator().call("query_steps", task_id="t1", statuses=["claimed"])
        assert statuses(query) == {"s1": "claimed"}


async def test_a_call_does_not_renew_a_lease_that_had_ended_before_it(desk: Desk) -> None:
    worker, orchestrator = await claimed(desk), desk.orchestrator()
    desk.clock.pass_(301)
    desk.at_work.add("run_a")
    await desk.board.begin_call("run_a", worker.actor)
    assert statuses(await orchestrator.call("get", task_id="t1"))["s1"] == "ready"
    await desk.board.begin_call("run_a", worker.actor)
    await desk.board.end_call("run_a", worker.actor)
    assert desk.types()[-1] == "task_step_ready"


async def test_a_call_that_begins_after_the_end_of_its_lease_has_lost_the_claim(desk: Desk) -> None:
    worker = await claimed(desk)
    desk.clock.pass_(301)
    desk.at_work.add("run_a")  # a slow model has answered with a call; nobody has looked meanwhile
    await desk.board.begin_call("run_a", worker.actor)
    assert desk.board.has_lost_claim("run_a")
    lost = desk.board.claim_lost("run_a", "refused").message
    assert "lease ended at 2026-03-01T12:05:00Z, and the step is ready" in lost
    other = await desk.worker("run_b").call("claim_step", task_id="t1", step_id="s1")
    assert other["step"]["claimed_by_run_id"] == "run_b"
    await desk.board.end_call("run_a", worker.actor)
    assert desk.board.has_lost_claim("run_a")
    assert not desk.board.has_lost_claim("run_b")


async def test_an_ended_lease_whose_end_cannot_be_written_is_lost(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise TaskError(ErrorCode.TASK_WAL_UNAVAILABLE, "no space left")

    worker = await claimed(desk)
    desk.clock.pass_(301)
    monkeypatch.setattr(TaskLog, "append", fail)
    await desk.board.begin_call("run_a", worker.actor)
    assert desk.board.has_lost_claim("run_a")
    assert "lease ended at" in desk.board.claim_lost("run_a", "refused").message


async def test_a_log_that_was_edited_meanwhile_keeps_its_holder_at_work(desk: Desk) -> None:
    worker = await claimed(desk)
    log = desk.folder / "work.wal.jsonl"
    log.write_bytes(log.read_bytes() + b"\n")
    for _ in range(2):  # the first one finds the change, the second one reads the log again
        with suppress(ToolError):
            block = [{"op": "update_task", "title": "other"}]
            await desk.orchestrator().call("update", task_id="t1", operations=block)
    await desk.board.begin_call("run_a", worker.actor)
    await desk.board.end_call("run_a", worker.actor)
    assert desk.board.step_held_by("run_a") == "s1"


async def test_short_calls_hardly_make_a_log_grow(desk: Desk) -> None:
    worker = await claimed(desk)
    before = len(desk.lines())
    for _ in range(20):
        desk.clock.pass_(1)
        await desk.board.end_call("run_a", worker.actor)
    assert len(desk.lines()) == before


async def test_answers_about_a_claim_name_its_run_and_the_end_of_its_lease(desk: Desk) -> None:
    worker = await claimed(desk)
    held = await desk.worker("run_b").result("claim_step", task_id="t1", step_id="s1")
    assert held.error is not None
    claim = held.error.details
    assert claim["claimed_by_run_id"] == "run_a"
    assert claim["lease_expires_at"].startswith("2026-03-01T12:05:00")
    assert "run_a" in held.error.message
    assert "2026-03-01T12:05:00Z" in held.error.message
    again = desk.worker("run_c")
    again.agent_id = "agent_a"
    own = await again.result("claim_step", task_id="t1", step_id="s1")
    assert own.error is not None
    assert "an earlier run of this worker, run_a" in own.error.message
    await lease_over(desk)
    with pytest.raises(ToolError) as refused:
        await worker.call("update_step", task_id="t1", step_id="s1", status="completed")
    assert refused.value.details["claimed_by_run_id"] == "run_b"
    assert refused.value.details["lease_expires_at"] > claim["lease_expires_at"]
    assert "lease ended at 2026-03-01T12:05:00Z, and run_b holds" in refused.value.message


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
    assert desk.board.step_held_by("run_a") == "s1"
    assert desk.board.step_held_by("run_b") is None


async def test_a_worker_whose_task_ended_has_lost_its_claim(desk: Desk) -> None:
    await claimed(desk)
    await desk.orchestrator().call("cancel", task_id="t1")
    assert desk.board.has_lost_claim("run_a")


async def lease_over(desk: Desk) -> None:
    desk.clock.pass_(301)
    await desk.worker("run_b").call("claim_step", task_id="t1", step_id="s1")


async def ended_by_hand(desk: Desk) -> None:
    await desk.orchestrator().call("update_step", task_id="t1", step_id="s1", status="failed")


async def opened_again(desk: Desk) -> None:
    await ended_by_hand(desk)
    reopen = [{"op": "reopen_step", "step_id": "s1"}]
    await desk.orchestrator().call("update", task_id="t1", operations=reopen)
    await desk.worker("run_b").call("claim_step", task_id="t1", step_id="s1")


async def task_over(desk: Desk) -> None:
    await desk.orchestrator().call("fail", task_id="t1")


@pytest.mark.parametrize(
    ("happen", "status", "reason"),
    [
        (lease_over, None, "permission_denied"),
        (ended_by_hand, "failed", "permission_denied"),
        (opened_again, None, "permission_denied"),
        (task_over, "failed", "task_terminal"),
    ],
)
async def test_a_lost_claim_is_reported_and_nothing_of_others_with_it(
    desk: Desk, happen: Callable[[Desk], Awaitable[None]], status: str | None, reason: str
) -> None:
    worker = await claimed(desk)
    await happen(desk)
    before = len(desk.lines())
    assert desk.board.has_lost_claim("run_a")
    with pytest.raises(ToolError) as refused:
        await worker.call("update_step", task_id="t1", step_id="s1", status="completed")
    assert refused.value.code == reason
    assert await desk.board.run_ended("run_a", WorkerEnding.FINISHED, worker.actor) is None
    assert len(desk.lines()) == before
    found = await desk.board.outcome("run_a", desk.orchestrator().actor)
    assert found is not None
    assert (found.step_id, found.is_lost) == ("s1", True)
    assert (found.step and found.step.status) == status


@pytest.mark.parametrize("status", ["blocked", "failed"])
async def test_a_worker_that_let_go_keeps_its_word_when_another_goes_on(
    desk: Desk, status: str
) -> None:
    worker = await claimed(desk)
    mine = {"status": status, "result_summary": "mine"}
    await worker.call("update_step", task_id="t1", step_id="s1", **mine)
    assert not desk.board.has_lost_claim("run_a")
    reopen = [{"op": "reopen_step", "step_id": "s1"}]
    await desk.orchestrator().call("update", task_id="t1", operations=reopen)
    assert desk.board.has_lost_claim("run_a"), "the step is not as it left it"
    other = desk.worker("run_b")
    await other.call("claim_step", task_id="t1", step_id="s1")
    theirs = {"status": "completed", "result_summary": "theirs"}
    await other.call("update_step", task_id="t1", step_id="s1", **theirs)
    found = await desk.board.outcome("run_a", desk.orchestrator().actor)
    assert found is not None
    assert found.step is not None
    assert (found.is_lost, found.step.status, found.step.result_summary) == (False, status, "mine")


async def test_claims_carry_a_number_that_only_grows(project: Path) -> None:
    async with desk_in(project) as desk:
        await claimed(desk)
        await lease_over(desk)
    async with desk_in(project, desk.clock) as later:
        await later.worker("run_c").call("claim_step", task_id="t1", step_id="s2")
        tokens = [line["payload"].get("fencing_token") for line in later.lines()]
    assert [token for token in tokens if token] == [1, 2, 3]


async def test_no_worker_is_admitted_to_a_task_that_is_blocked_or_over(desk: Desk) -> None:
    orchestrator = await created(desk, step("s1"))
    desk.board.admit("run_a", "t1")
    stops = Stops()
    block = [{"op": "update_task", "status": "blocked"}]
    await orchestrator.call("update", task_id="t1", operations=block)
    with pytest.raises(ToolError) as refused:
        desk.board.admit("run_b", "t1")
    assert refused.value.code is ErrorCode.TASK_NOT_DISPATCHABLE
    await desk.orchestrator(stop_run=stops.stop).call("cancel", task_id="t1")
    assert stops.run_ids == ["run_a"], "it was sent, though it has claimed nothing"
    assert desk.board.has_lost_claim("run_a")
    with pytest.raises(ToolError) as refused:
        desk.board.admit("run_b", "t1")
    assert refused.value.code is ErrorCode.TASK_NOT_DISPATCHABLE
