"""The acceptance cases of Tasks, through the tools a model calls."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from agent_core.errors import ErrorCode, ToolError
from agent_core.tasks.log_format import read_log
from agent_core.tasks.model import TaskScope, Update, WorkerEnding
from task_boards import Desk, Stops, created, desk_in, statuses, step


@pytest.fixture
async def desk(project: Path) -> AsyncGenerator[Desk]:
    async with desk_in(project) as open_desk:
        yield open_desk


async def test_k1_a_task_is_created_with_its_log(desk: Desk) -> None:
    orchestrator = desk.orchestrator()
    answer = await orchestrator.call(
        "create", task_id="t1", wal_name="work.wal.jsonl", steps=[step("s1"), step("s2", "s1")]
    )
    path = desk.folder / "work.wal.jsonl"
    assert answer["task"]["wal_path"] == str(path)
    assert answer["task"]["step_counts"] == {"pending": 1, "ready": 1}
    assert answer["task"]["status"] == "running"
    assert answer["wal_event_ids"] == [line["event_id"] for line in desk.lines()]
    assert desk.types() == ["task_created", "task_step_ready", "task_running"]
    assert [line["wal_seq"] for line in desk.lines()] == [1, 2, 3]
    first = desk.lines()[0]
    assert first["actor_agent_id"] == "agent_o"
    assert first["actor_run_id"] == "run_o"
    assert first["payload"]["task"]["root_step_ids"] == ["s1"]
    assert "step_id" not in first
    assert path.stat().st_mode & 0o777 == 0o600
    assert desk.folder.stat().st_mode & 0o777 == 0o700
    assert desk.notes.types == ["task_created", "task_step_ready", "task_running"]


async def test_k2_an_active_task_keeps_its_id_to_itself(desk: Desk) -> None:
    orchestrator = await created(desk, step("s1"))
    with pytest.raises(ToolError) as refused:
        await orchestrator.call("create", task_id="t1", wal_name="other", steps=[])
    assert refused.value.code is ErrorCode.VALIDATION_ERROR
    assert [path.name for path in desk.folder.iterdir()] == ["work.wal.jsonl"]


async def test_k2_an_ended_task_gives_its_id_back(desk: Desk) -> None:
    orchestrator = await created(desk, step("s1"))
    await orchestrator.call("cancel", task_id="t1")
    await orchestrator.call("create", task_id="t1", wal_name="second", steps=[step("s9")])
    assert statuses(await orchestrator.call("get", task_id="t1")) == {"s9": "ready"}


async def test_k2_an_existing_log_is_never_taken(desk: Desk) -> None:
    orchestrator = await created(desk, step("s1"))
    before = desk.lines()
    with pytest.raises(ToolError) as refused:
        await orchestrator.call("create", task_id="t2", wal_name="work", steps=[])
    assert refused.value.code is ErrorCode.PATH_CONFLICT
    assert desk.lines() == before


async def test_k3_a_cycle_changes_nothing_and_is_shown(desk: Desk) -> None:
    orchestrator = await created(desk, step("s1"), step("s2", "s1"), step("s3", "s2"))
    before = desk.lines()
    with pytest.raises(ToolError) as refused:
        await orchestrator.call(
            "update",
            task_id="t1",
            operations=[
                {"op": "update_task", "title": "other"},
                {"op": "add_dependency", "step_id": "s1", "depends_on_step_id": "s3"},
            ],
        )
    assert refused.value.code is ErrorCode.DEPENDENCY_CYCLE
    cycle = refused.value.details["cycle"]
    assert cycle[0] == cycle[-1]
    assert set(cycle) == {"s1", "s2", "s3"}
    assert desk.lines() == before
    assert (await orchestrator.call("get", task_id="t1"))["title"] == "T"


async def test_k3_a_task_is_not_created_with_a_cycle(desk: Desk) -> None:
    with pytest.raises(ToolError) as refused:
        await created(desk, step("s1", "s1"))
    assert refused.value.details["cycle"] == ["s1", "s1"]
    assert not desk.folder.exists()


async def test_k4_a_step_becomes_ready_when_all_it_waits_for_is_completed(desk: Desk) -> None:
    await created(desk, step("s1"), step("s2"), step("s3", "s1", "s2"))
    for step_id in ("s1", "s2"):
        worker = desk.worker(f"run_{step_id}")
        await worker.call("claim_step", task_id="t1", step_id=step_id)
        answer = await worker.call("update_step", task_id="t1", step_id=step_id, status="completed")
        expected = {"s1": {"pending": 1}, "s2": {"ready": 1}}[step_id]
        assert answer["task"]["step_counts"].items() >= expected.items()
    last = desk.lines()[-1]
    assert (last["event_type"], last["step_id"]) == ("task_step_ready", "s3")
    assert last["payload"] == {
        "previous_status": "pending",
        "status": "ready",
        "depends_on_step_ids": ["s1", "s2"],
    }


async def test_k4_a_cancelled_dependency_does_not_count_as_done(desk: Desk) -> None:
    orchestrator = await created(desk, step("s1"), step("s2", "s1"))
    cancel = {"op": "cancel_step", "step_id": "s1"}
    await orchestrator.call("update", task_id="t1", operations=[cancel])
    answer = await orchestrator.call("get", task_id="t1")
    assert statuses(answer) == {"s2": "pending"}
    assert answer["diagnostics"] == {"stalled": True, "completeable": False}


async def test_k5_one_of_two_claims_wins(desk: Desk) -> None:
    await created(desk, step("s1"))
    workers = [desk.worker("run_a"), desk.worker("run_b")]
    results = await asyncio.gather(
        *(worker.result("claim_step", task_id="t1", step_id="s1") for worker in workers)
    )
    won, lost = results
    assert won.error is None
    assert lost.error is not None
    assert lost.error.code is ErrorCode.STEP_ALREADY_CLAIMED
    assert not lost.is_error
    assert desk.types().count("task_step_claimed") == 1
    assert desk.notes.types.count("task_step_claim_skipped") == 1


async def test_k6_a_claimed_step_is_started_by_its_own_line(desk: Desk) -> None:
    await created(desk, step("s1"))
    worker = desk.worker("run_a")
    await worker.call("claim_step", task_id="t1", step_id="s1")
    answer = await worker.call("update_step", task_id="t1", step_id="s1", status="running")
    assert answer["step"]["status"] == "running"
    assert desk.types()[-1] == "task_step_started"
    assert "task_step_updated" not in desk.types()
    assert desk.notes.types[-1] == "task_step_started"


async def test_k7_a_claimed_step_can_be_completed_at_once(desk: Desk) -> None:
    await created(desk, step("s1"))
    worker = desk.worker("run_a")
    await worker.call("claim_step", task_id="t1", step_id="s1")
    done = {"status": "completed", "result_summary": "done", "artifact_ids": ["art_1"]}
    await worker.call("update_step", task_id="t1", step_id="s1", **done)
    assert desk.lines()[-1]["payload"] == {
        "previous_status": "claimed",
        "result_summary": "done",
        "artifact_ids": ["art_1"],
    }


async def test_k8_a_blocked_step_has_no_holder(desk: Desk) -> None:
    orchestrator = await created(desk, step("s1"))
    worker = desk.worker("run_a")
    await worker.call("claim_step", task_id="t1", step_id="s1")
    blocked = {"status": "blocked", "reason": "no key"}
    await worker.call("update_step", task_id="t1", step_id="s1", **blocked)
    (shown,) = (await orchestrator.call("get", task_id="t1"))["steps"]
    assert shown["status"] == "blocked"
    assert shown["reason"] == "no key"
    assert not shown.keys() & {"claimed_by_agent_id", "claimed_by_run_id", "lease_expires_at"}
    assert not desk.board.has_lost_claim("run_a")

    reopen = {"op": "reopen_step", "step_id": "s1", "reason": "key is there"}
    await orchestrator.call("update", task_id="t1", operations=[reopen])
    assert desk.types()[-3:] == ["task_updated", "task_step_reopened", "task_step_ready"]


async def test_k9_an_expired_lease_makes_a_step_ready_again(desk: Desk) -> None:
    orchestrator = await created(desk, step("s1"))
    worker = desk.worker("run_a")
    await worker.call("claim_step", task_id="t1", step_id="s1")
    desk.clock.pass_(299)
    assert statuses(await orchestrator.call("get", task_id="t1")) == {"s1": "claimed"}
    desk.clock.pass_(2)
    answer = await orchestrator.call("query_steps", task_id="t1")
    assert statuses(answer) == {"s1": "ready"}
    assert desk.types()[-2:] == ["task_step_lease_expired", "task_step_ready"]
    expired = desk.lines()[-2]["payload"]
    assert expired["claimed_by_run_id"] == "run_a"
    assert expired["expired_at"].startswith("2026-03-01T12:05:00")
    assert desk.board.has_lost_claim("run_a")


async def test_k9_only_a_sign_of_life_of_the_holder_renews_a_lease(desk: Desk) -> None:
    orchestrator = await created(desk, step("s1"))
    worker = desk.worker("run_a")
    await worker.call("claim_step", task_id="t1", step_id="s1")
    desk.clock.pass_(200)
    await worker.call("update_step", task_id="t1", step_id="s1")
    desk.clock.pass_(200)
    note = {"result_summary": "go on"}
    answer = await orchestrator.call("update_step", task_id="t1", step_id="s1", **note)
    assert answer["step"]["status"] == "claimed"
    desk.clock.pass_(101)
    assert statuses(await orchestrator.call("get", task_id="t1")) == {"s1": "ready"}


async def test_k9_a_later_claim_has_a_larger_token(desk: Desk) -> None:
    await created(desk, step("s1"))
    for run_id in ("run_a", "run_b"):
        await desk.worker(run_id).call("claim_step", task_id="t1", step_id="s1")
        desk.clock.pass_(301)
    claims = [line for line in desk.lines() if line["event_type"] == "task_step_claimed"]
    assert [claim["payload"]["fencing_token"] for claim in claims] == [1, 2]


async def test_k9_a_stale_worker_writes_nothing(desk: Desk) -> None:
    await created(desk, step("s1"))
    stale, fresh = desk.worker("run_a"), desk.worker("run_b")
    await stale.call("claim_step", task_id="t1", step_id="s1")
    desk.clock.pass_(301)
    await fresh.call("claim_step", task_id="t1", step_id="s1")
    before = desk.lines()
    with pytest.raises(ToolError) as refused:
        await stale.call("update_step", task_id="t1", step_id="s1", status="completed")
    assert refused.value.code is ErrorCode.PERMISSION_DENIED
    assert refused.value.details["reason"] == "claim_lost"
    assert desk.lines() == before
    assert desk.board.has_lost_claim("run_a")
    assert not desk.board.has_lost_claim("run_b")


@pytest.mark.parametrize("ending", list(WorkerEnding))
async def test_k10_a_run_that_ends_fails_its_open_step(desk: Desk, ending: WorkerEnding) -> None:
    await created(desk, step("s1"))
    worker = desk.worker("run_a")
    await worker.call("claim_step", task_id="t1", step_id="s1")
    await desk.board.run_ended("run_a", ending, worker.actor)
    last = desk.lines()[-1]
    assert last["event_type"] == "task_step_failed"
    assert last["payload"]["reason"] == ending.value


async def test_k10_a_run_that_closed_its_step_leaves_it_alone(desk: Desk) -> None:
    await created(desk, step("s1"))
    worker = desk.worker("run_a")
    await worker.call("claim_step", task_id="t1", step_id="s1")
    await worker.call("update_step", task_id="t1", step_id="s1", status="completed")
    before = desk.lines()
    assert await desk.board.run_ended("run_a", WorkerEnding.FINISHED, worker.actor) is None
    assert desk.lines() == before


async def test_k11_the_orchestrator_changes_a_running_step(desk: Desk) -> None:
    orchestrator = await created(desk, step("s1"), step("s2"))
    worker = desk.worker("run_a")
    await worker.call("claim_step", task_id="t1", step_id="s1")
    await worker.call("update_step", task_id="t1", step_id="s1", status="running")
    fields = {"title": "new", "summary": "words", "depends_on_step_ids": ["s2"]}
    change = {"op": "update_step", "step_id": "s1", "fields": fields}
    await orchestrator.call("update", task_id="t1", operations=[change])
    line = desk.lines()[-1]
    assert line["event_type"] == "task_updated"
    assert line["payload"]["updated_after_dispatch_step_ids"] == ["s1"]
    assert line["payload"]["operations"] == [change]
    shown = (await orchestrator.call("get", task_id="t1"))["steps"][0]
    assert shown["status"] == "running"
    assert shown["title"] == "new"
    assert shown["metadata"] == {"updated_after_dispatch": True}


async def test_k12_a_worker_has_no_tool_and_no_argument_for_content(desk: Desk) -> None:
    await created(desk, step("s1"))
    worker = desk.worker("run_a")
    await worker.call("claim_step", task_id="t1", step_id="s1")
    before = desk.lines()
    assert sorted(worker.tools) == [
        "agent.task_claim_step",
        "agent.task_get",
        "agent.task_query_steps",
        "agent.task_update_step",
    ]
    with pytest.raises(ToolError) as unknown:
        await worker.call("update_step", task_id="t1", step_id="s1", title="mine")
    assert unknown.value.code is ErrorCode.VALIDATION_ERROR
    with pytest.raises(ToolError) as denied:
        await desk.board.change("t1", Update([]), worker.actor)
    assert denied.value.code is ErrorCode.PERMISSION_DENIED
    assert desk.lines() == before


async def test_k13_a_step_others_wait_for_is_not_deleted(desk: Desk) -> None:
    orchestrator = await created(desk, step("s1"), step("s2", "s1"))
    delete = {"op": "delete_step", "step_id": "s1"}
    with pytest.raises(ToolError) as refused:
        await orchestrator.call("update", task_id="t1", operations=[delete])
    assert refused.value.code is ErrorCode.STEP_HAS_DEPENDENTS
    assert refused.value.details["dependent_step_ids"] == ["s2"]
    free = {"op": "remove_dependency", "step_id": "s2", "depends_on_step_id": "s1"}
    await orchestrator.call("update", task_id="t1", operations=[delete, free])
    assert statuses(await orchestrator.call("get", task_id="t1")) == {"s2": "ready"}


@pytest.mark.parametrize("status", ["claimed", "running"])
async def test_k14_a_step_a_run_works_on_is_not_cancelled(desk: Desk, status: str) -> None:
    orchestrator = await created(desk, step("s1"))
    worker = desk.worker("run_a")
    await worker.call("claim_step", task_id="t1", step_id="s1")
    if status == "running":
        await worker.call("update_step", task_id="t1", step_id="s1", status="running")
    before = desk.lines()
    cancel = {"op": "cancel_step", "step_id": "s1"}
    with pytest.raises(ToolError) as refused:
        await orchestrator.call("update", task_id="t1", operations=[cancel])
    assert refused.value.code is ErrorCode.STEP_NOT_CANCELLABLE
    with pytest.raises(ToolError) as refused:
        await orchestrator.call("update_step", task_id="t1", step_id="s1", status="cancelled")
    assert refused.value.code is ErrorCode.STEP_NOT_CANCELLABLE
    assert desk.lines() == before


async def five_states(desk: Desk) -> None:
    """s1 claimed, s2 running, s3 ready, s4 pending, s5 blocked, s6 completed."""
    waiting = step("s4", "s3")
    await created(desk, step("s1"), step("s2"), step("s3"), waiting, step("s5"), step("s6"))
    states = {"s1": None, "s2": "running", "s5": "blocked", "s6": "completed"}
    for step_id, status in states.items():
        worker = desk.worker(f"run_{step_id}")
        await worker.call("claim_step", task_id="t1", step_id=step_id)
        if status:
            await worker.call("update_step", task_id="t1", step_id=step_id, status=status)


async def test_k15_cancelling_a_task_cancels_all_that_is_unfinished(desk: Desk) -> None:
    await five_states(desk)
    stops = Stops()
    orchestrator = desk.orchestrator(stop_run=stops.stop)
    before = len(desk.lines())
    answer = await orchestrator.call("cancel", task_id="t1", reason="changed my mind")
    assert sorted(stops.run_ids) == ["run_s1", "run_s2"]
    assert answer["task"]["step_counts"] == {"cancelled": 5, "completed": 1}
    written = desk.lines()[before:]
    assert [line["event_type"] for line in written] == [
        *["task_step_cancelled"] * 5,
        "task_cancelled",
    ]
    assert {line["payload"]["reason"] for line in written[:-1]} == {"task_cancelled"}
    assert written[-1]["payload"] == {
        "reason": "changed my mind",
        "cancelled_step_ids": ["s1", "s2", "s3", "s4", "s5"],
    }
    assert desk.board.has_lost_claim("run_s1")
    assert desk.board.has_lost_claim("run_s6"), "its step was done, but its Task is over"


async def test_k16_failing_a_task_fails_all_that_is_unfinished(desk: Desk) -> None:
    await five_states(desk)
    stops = Stops()
    orchestrator = desk.orchestrator(stop_run=stops.stop)
    before = len(desk.lines())
    answer = await orchestrator.call("fail", task_id="t1", reason="no way")
    assert sorted(stops.run_ids) == ["run_s1", "run_s2"]
    assert answer["task"]["step_counts"] == {"failed": 5, "completed": 1}
    written = desk.lines()[before:]
    assert [line["event_type"] for line in written] == [*["task_step_failed"] * 5, "task_failed"]
    assert {line["payload"]["reason"] for line in written[:-1]} == {"task_failed"}
    assert written[-1]["payload"]["failed_step_ids"] == ["s1", "s2", "s3", "s4", "s5"]


async def test_k17_completing_a_task_cancels_optional_steps(desk: Desk) -> None:
    optional = {"required": False}
    orchestrator = await created(
        desk, step("s1"), step("s2", **optional), step("s3", "s2", **optional)
    )
    with pytest.raises(ToolError) as refused:
        await orchestrator.call("complete", task_id="t1")
    assert refused.value.code is ErrorCode.TASK_NOT_COMPLETABLE
    assert refused.value.details == {"required_step_ids": ["s1"], "claimed_step_ids": []}
    worker = desk.worker("run_a")
    await worker.call("claim_step", task_id="t1", step_id="s1")
    await worker.call("update_step", task_id="t1", step_id="s1", status="completed")
    assert (await orchestrator.call("get", task_id="t1"))["diagnostics"]["completeable"]
    before = len(desk.lines())
    answer = await orchestrator.call("complete", task_id="t1", result_summary="all good")
    assert answer["task"]["status"] == "completed"
    written = desk.lines()[before:]
    assert [(line["event_type"], line.get("step_id")) for line in written] == [
        ("task_step_cancelled", "s2"),
        ("task_step_cancelled", "s3"),
        ("task_completed", None),
    ]
    assert written[-1]["payload"] == {
        "result_summary": "all good",
        "cancelled_optional_step_ids": ["s2", "s3"],
    }


async def test_k17_an_optional_step_a_run_works_on_keeps_a_task_open(desk: Desk) -> None:
    orchestrator = await created(desk, step("s1", required=False))
    await desk.worker("run_a").call("claim_step", task_id="t1", step_id="s1")
    with pytest.raises(ToolError) as refused:
        await orchestrator.call("complete", task_id="t1")
    assert refused.value.details["claimed_step_ids"] == ["s1"]


@pytest.mark.parametrize("end", ["fail", "cancel"])
async def test_k18_an_ended_task_takes_nothing_more(desk: Desk, end: str) -> None:
    orchestrator = await created(desk, step("s1"), step("s2"))
    worker = desk.worker("run_a")
    await worker.call("claim_step", task_id="t1", step_id="s1")
    await orchestrator.call(end, task_id="t1")
    before = desk.lines()
    for caller, name, more in (
        (worker, "update_step", {"step_id": "s1", "status": "completed"}),
        (desk.worker("run_b"), "claim_step", {"step_id": "s2"}),
        (orchestrator, "update", {"operations": [{"op": "update_task", "title": "x"}]}),
        (orchestrator, "complete", {}),
        (orchestrator, "fail", {}),
        (orchestrator, "cancel", {}),
    ):
        with pytest.raises(ToolError) as refused:
            await caller.call(name, task_id="t1", **more)
        assert refused.value.code is ErrorCode.TASK_TERMINAL
    assert await desk.board.run_ended("run_a", WorkerEnding.CANCELLED, worker.actor) is None
    assert desk.lines() == before


async def test_k19_ended_tasks_are_listed_page_by_page_newest_first(
    desk: Desk, project: Path
) -> None:
    orchestrator = desk.orchestrator()
    for number in range(7):
        await created(desk, step("s1"), task_id=f"t{number}")
        await orchestrator.call("cancel", task_id=f"t{number}")
    assert (await orchestrator.call("list"))["tasks"] == []
    page = {"include_terminal": True, "limit": 3}
    seen: list[str] = []
    more = {"offset": 0}
    while more:
        answer = await orchestrator.call("list", **page, **more)
        assert len(answer["tasks"]) <= 3
        seen += [task["task_id"] for task in answer["tasks"]]
        more = {"offset": answer["next_offset"]} if answer["has_more"] else {}
    assert seen == [f"t{number}" for number in reversed(range(7))]
    async with desk_in(project, desk.clock) as later:
        answer = await later.orchestrator().call("list", **page)
        assert [task["task_id"] for task in answer["tasks"]] == seen[:3]


async def test_k19_a_page_reads_no_more_logs_than_it_shows(desk: Desk) -> None:
    orchestrator = desk.orchestrator()
    for number in range(4):
        await created(desk, step("s1"), task_id=f"t{number}")
        await orchestrator.call("cancel", task_id=f"t{number}")
    for number in range(2):  # the oldest cannot even be opened
        (desk.folder / f"t{number}.wal.jsonl".replace("t1", "work")).unlink()
    answer = await orchestrator.call("list", include_terminal=True, limit=2)
    assert [task["status"] for task in answer["tasks"]] == ["cancelled", "cancelled"]


async def test_k20_a_replayed_task_is_the_same_task(project: Path) -> None:
    async with desk_in(project) as desk:
        await five_states(desk)
        before = await desk.orchestrator().call("get", task_id="t1", include_terminal_steps=True)
        log = (desk.folder / "work.wal.jsonl").read_bytes()
    async with desk_in(project, desk.clock) as later:
        after = await later.orchestrator().call("get", task_id="t1", include_terminal_steps=True)
        assert after == before
        assert (desk.folder / "work.wal.jsonl").read_bytes() == log
        assert later.notes.types == ["task_wal_replayed"]
        refusal = later.worker("run_s1").call("claim_step", task_id="t1", step_id="s3")
        with pytest.raises(ToolError) as refused:
            await refusal
        assert refused.value.code is ErrorCode.STEP_ALREADY_CLAIMED_BY_RUN
    replayed = read_log(log).dag
    assert replayed is not None
    assert replayed.next_token == 5


async def test_j6_a_worker_sees_and_claims_only_its_allowed_steps(desk: Desk) -> None:
    await created(desk, step("s1"), step("s2"), step("s3", worker_pool_id="other"))
    scope = TaskScope("t1", frozenset({"s2", "s3"}), "pool")
    worker = desk.worker("run_a", scope)
    assert statuses(await worker.call("query_steps", task_id="t1")) == {
        "s2": "ready",
        "s3": "ready",
    }
    seen = await worker.call("get", task_id="t1")
    assert statuses(seen) == {"s2": "ready", "s3": "ready"}
    assert seen["step_counts"] == {"ready": 2}
    for task_id, step_id in (("t1", "s1"), ("t1", "s3"), ("t2", "s2")):
        with pytest.raises(ToolError) as refused:
            await worker.call("claim_step", task_id=task_id, step_id=step_id)
        assert refused.value.code is ErrorCode.PERMISSION_DENIED
    await worker.call("claim_step", task_id="t1", step_id="s2")


async def test_j8_claiming_what_is_not_ready_writes_nothing(desk: Desk) -> None:
    await created(desk, step("s1"), step("s2", "s1"))
    before = desk.lines()
    with pytest.raises(ToolError) as refused:
        await desk.worker("run_a").call("claim_step", task_id="t1", step_id="s2")
    assert refused.value.code is ErrorCode.STEP_NOT_READY
    assert refused.value.details["waits_for"] == ["s1"]
    assert desk.lines() == before
    assert desk.board.step_held_by("run_a") is None


async def test_j9_a_run_claims_one_step(desk: Desk) -> None:
    await created(desk, step("s1"), step("s2"))
    worker = desk.worker("run_a")
    await worker.call("claim_step", task_id="t1", step_id="s1")
    await worker.call("update_step", task_id="t1", step_id="s1", status="completed")
    with pytest.raises(ToolError) as refused:
        await worker.call("claim_step", task_id="t1", step_id="s2")
    assert refused.value.code is ErrorCode.STEP_ALREADY_CLAIMED_BY_RUN
