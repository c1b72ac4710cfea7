"""What `agent.task_update` may do to a graph, and what it may not."""

from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_core.errors import ErrorCode, TaskError, ToolError
from agent_core.types import AgentRole
from task_boards import Caller, Desk, created, desk_in, statuses, step


@pytest.fixture
async def desk(project: Path) -> AsyncGenerator[Desk]:
    async with desk_in(project) as open_desk:
        yield open_desk


async def update(orchestrator: Caller, *operations: dict[str, Any]) -> dict[str, Any]:
    return await orchestrator.call("update", task_id="t1", operations=list(operations))


async def put(desk: Desk, step_id: str, status: str | None) -> None:
    """Bring a ready step into this state by the hand of a worker."""
    worker = desk.worker(f"run_{step_id}")
    await worker.call("claim_step", task_id="t1", step_id=step_id)
    if status:
        await worker.call("update_step", task_id="t1", step_id=step_id, status=status)


async def test_operations_see_what_came_before_them(desk: Desk) -> None:
    orchestrator = await created(desk, step("s1"))
    answer = await update(
        orchestrator,
        {"op": "add_step", "step": step("s3", "s2")},
        {"op": "add_step", "step": step("s2", "s1")},
        {"op": "update_step", "step_id": "s2", "fields": {"title": "two", "required": False}},
        {"op": "update_task", "title": "renamed", "summary": "all new"},
    )
    assert answer["task"]["title"] == "renamed"
    assert answer["task"]["root_step_ids"] == ["s1"]
    seen = await orchestrator.call("get", task_id="t1")
    assert [each["step_id"] for each in seen["steps"]] == ["s1", "s3", "s2"]
    assert statuses(seen) == {"s1": "ready", "s3": "pending", "s2": "pending"}
    assert desk.lines()[-1]["payload"]["task_summary"] == {
        "title": "renamed",
        "status": "running",
        "step_counts": {"ready": 1, "pending": 2},
    }


async def test_a_refused_operation_takes_the_others_with_it(desk: Desk) -> None:
    orchestrator = await created(desk, step("s1"))
    before = desk.lines()
    with pytest.raises(ToolError):
        await update(
            orchestrator,
            {"op": "add_step", "step": step("s2")},
            {"op": "cancel_step", "step_id": "nowhere"},
        )
    assert desk.lines() == before
    assert statuses(await orchestrator.call("get", task_id="t1")) == {"s1": "ready"}


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "rename_step", "step_id": "s1"},
        {"op": "cancel_step", "step_id": "s1", "why": "x"},
        {"op": "update_step", "step_id": "s1", "fields": {"status": "completed"}},
        {"op": "update_step", "step_id": "s1", "fields": {"result_summary": "x"}},
        {"op": "add_step", "step": {"step_id": "s1"}},
        {"op": "add_step", "step": {"step_id": "S 2"}},
        {"op": "update_task", "status": "completed"},
        {"op": "update_task", "title": "lone \ud800 surrogate"},
        {"op": "remove_dependency", "step_id": "s1", "depends_on_step_id": "s2"},
        {"op": "reopen_step", "step_id": "s1"},
        {"step_id": "s1"},
    ],
)
async def test_unknown_words_are_refused(desk: Desk, operation: dict[str, Any]) -> None:
    orchestrator = await created(desk, step("s1"), step("s2"))
    before = desk.lines()
    with pytest.raises(ToolError) as refused:
        await update(orchestrator, operation)
    assert refused.value.code is ErrorCode.VALIDATION_ERROR
    assert desk.lines() == before


async def test_nothing_to_do_is_no_update(desk: Desk) -> None:
    orchestrator = await created(desk, step("s1"))
    with pytest.raises(ToolError) as refused:
        await update(orchestrator)
    assert refused.value.code is ErrorCode.VALIDATION_ERROR


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "update_step", "step_id": "s9", "fields": {}},
        {"op": "delete_step", "step_id": "s9"},
        {"op": "add_dependency", "step_id": "s9", "depends_on_step_id": "s1"},
        {"op": "add_dependency", "step_id": "s1", "depends_on_step_id": "s9"},
        {"op": "add_step", "step": {"step_id": "s2", "depends_on_step_ids": ["s9"]}},
        {"op": "cancel_step", "step_id": "s9"},
        {"op": "reopen_step", "step_id": "s9"},
    ],
)
async def test_an_unknown_step_is_named(desk: Desk, operation: dict[str, Any]) -> None:
    orchestrator = await created(desk, step("s1"))
    with pytest.raises(ToolError, match="s9") as refused:
        await update(orchestrator, operation)
    assert refused.value.code is ErrorCode.STEP_NOT_FOUND


async def test_readiness_follows_the_graph_both_ways(desk: Desk) -> None:
    orchestrator = await created(desk, step("s1"), step("s2"))
    link = {"step_id": "s2", "depends_on_step_id": "s1"}
    await update(orchestrator, {"op": "add_dependency", **link})
    assert statuses(await orchestrator.call("get", task_id="t1"))["s2"] == "pending"
    assert desk.types()[-1] == "task_updated"
    await update(orchestrator, {"op": "remove_dependency", **link})
    assert statuses(await orchestrator.call("get", task_id="t1"))["s2"] == "ready"
    assert desk.types()[-2:] == ["task_updated", "task_step_ready"]


async def test_a_claimed_step_keeps_its_claim_when_it_has_to_wait(desk: Desk) -> None:
    orchestrator = await created(desk, step("s1"), step("s2"))
    await put(desk, "s2", None)
    await update(
        orchestrator, {"op": "add_dependency", "step_id": "s2", "depends_on_step_id": "s1"}
    )
    assert statuses(await orchestrator.call("get", task_id="t1"))["s2"] == "claimed"
    desk.clock.pass_(301)
    assert statuses(await orchestrator.call("get", task_id="t1"))["s2"] == "pending"
    assert desk.types()[-1] == "task_step_lease_expired"


@pytest.mark.parametrize("status", [None, "running", "blocked", "completed", "failed"])
async def test_only_idle_steps_are_deleted(desk: Desk, status: str | None) -> None:
    orchestrator = await created(desk, step("s1"))
    await put(desk, "s1", status)
    with pytest.raises(ToolError) as refused:
        await update(orchestrator, {"op": "delete_step", "step_id": "s1"})
    assert refused.value.code is ErrorCode.VALIDATION_ERROR


async def test_a_cancelled_step_can_go_and_its_id_be_used_anew(desk: Desk) -> None:
    orchestrator = await created(desk, step("s1"), step("s2"))
    await update(
        orchestrator,
        {"op": "cancel_step", "step_id": "s1", "reason": "useless"},
        {"op": "delete_step", "step_id": "s1"},
        {"op": "add_step", "step": step("s1", "s2", title="another")},
    )
    assert "task_step_cancelled" not in desk.types()
    answer = await orchestrator.call("get", task_id="t1")
    assert [each["step_id"] for each in answer["steps"]] == ["s2", "s1"]
    assert statuses(answer) == {"s2": "ready", "s1": "pending"}


async def test_cancelled_and_completed_steps_never_come_back(desk: Desk) -> None:
    orchestrator = await created(desk, step("s1"), step("s2"))
    await put(desk, "s1", "completed")
    await update(orchestrator, {"op": "cancel_step", "step_id": "s2"})
    for step_id in ("s1", "s2"):
        with pytest.raises(ToolError) as refused:
            await update(orchestrator, {"op": "reopen_step", "step_id": step_id})
        assert refused.value.code is ErrorCode.VALIDATION_ERROR


async def test_of_a_completed_step_only_the_words_change(desk: Desk) -> None:
    orchestrator = await created(desk, step("s1"), step("s2"))
    await put(desk, "s1", "completed")
    words = {"title": "t", "summary": "s"}
    await update(orchestrator, {"op": "update_step", "step_id": "s1", "fields": words})
    for change in (
        {"op": "update_step", "step_id": "s1", "fields": {"required": False}},
        {"op": "add_dependency", "step_id": "s1", "depends_on_step_id": "s2"},
    ):
        with pytest.raises(ToolError) as refused:
            await update(orchestrator, change)
        assert refused.value.code is ErrorCode.VALIDATION_ERROR
    report = {"step_id": "s1", "result_summary": "other"}
    with pytest.raises(ToolError) as late:
        await orchestrator.call("update_step", task_id="t1", **report)
    assert late.value.code is ErrorCode.NO_STEP_CLAIMED


@pytest.mark.parametrize("status", ["blocked", "failed"])
async def test_a_reopened_step_is_ready_for_another_run(desk: Desk, status: str) -> None:
    orchestrator = await created(desk, step("s1"))
    await put(desk, "s1", status)
    await update(orchestrator, {"op": "reopen_step", "step_id": "s1", "reason": "again"})
    line = next(each for each in desk.lines() if each["event_type"] == "task_step_reopened")
    assert line["payload"] == {"previous_status": status, "status": "pending", "reason": "again"}
    (shown,) = (await orchestrator.call("get", task_id="t1"))["steps"]
    assert shown["status"] == "ready"
    assert "claimed_by_run_id" not in shown
    await desk.worker("run_b").call("claim_step", task_id="t1", step_id="s1")


async def test_a_step_leaves_its_pool(desk: Desk) -> None:
    orchestrator = await created(desk, step("s1", worker_pool_id="gpu"))
    fields = {"worker_pool_id": ""}
    await update(orchestrator, {"op": "update_step", "step_id": "s1", "fields": fields})
    (shown,) = (await orchestrator.call("get", task_id="t1"))["steps"]
    assert "worker_pool_id" not in shown


async def test_a_blocked_task_starts_nothing_and_takes_what_runs(desk: Desk) -> None:
    orchestrator = await created(desk, step("s1"), step("s2", "s1"), step("s3"))
    worker = desk.worker("run_a")
    await worker.call("claim_step", task_id="t1", step_id="s1")
    await update(orchestrator, {"op": "update_task", "status": "blocked"})
    assert desk.types()[-1] == "task_updated"
    with pytest.raises(ToolError) as refused:
        await desk.worker("run_b").call("claim_step", task_id="t1", step_id="s3")
    assert refused.value.code is ErrorCode.TASK_NOT_DISPATCHABLE
    with pytest.raises(ToolError) as refused:
        await desk.board.require_dispatchable("t1", None, orchestrator.actor)
    assert refused.value.code is ErrorCode.TASK_NOT_DISPATCHABLE
    await worker.call("update_step", task_id="t1", step_id="s1", status="completed")
    blocked = await orchestrator.call("get", task_id="t1")
    assert blocked["status"] == "blocked"
    assert statuses(blocked) == {"s2": "ready", "s3": "ready"}

    answer = await update(orchestrator, {"op": "update_task", "status": "pending"})
    assert answer["task"]["status"] == "running"
    assert desk.types()[-3:] == ["task_updated", "task_reopened", "task_running"]
    await desk.board.require_dispatchable("t1", None, orchestrator.actor)


async def test_a_blocked_task_stays_blocked_when_replayed(project: Path) -> None:
    async with desk_in(project) as desk:
        orchestrator = await created(desk, step("s1"))
        await update(orchestrator, {"op": "update_task", "status": "blocked"})
    async with desk_in(project) as desk:
        assert (await desk.orchestrator().call("get", task_id="t1"))["status"] == "blocked"


async def test_a_running_task_cannot_be_set_back(desk: Desk) -> None:
    orchestrator = await created(desk, step("s1"))
    with pytest.raises(ToolError) as refused:
        await update(orchestrator, {"op": "update_task", "status": "pending"})
    assert refused.value.code is ErrorCode.VALIDATION_ERROR


async def test_an_empty_task_starts_with_its_first_ready_step(desk: Desk) -> None:
    orchestrator = await created(desk)
    assert (await orchestrator.call("get", task_id="t1"))["status"] == "pending"
    answer = await update(orchestrator, {"op": "add_step", "step": step("s1")})
    assert answer["task"]["status"] == "running"
    assert desk.types() == ["task_created", "task_updated", "task_step_ready", "task_running"]


async def test_a_dispatch_names_steps_that_exist(desk: Desk) -> None:
    orchestrator = await created(desk, step("s1"), step("s2", "s1"))
    board, by = desk.board, orchestrator.actor
    await board.require_dispatchable("t1", ["s2"], by)
    for step_ids in ([], ["s1", "s9"]):
        with pytest.raises(ToolError) as refused:
            await board.require_dispatchable("t1", step_ids, by)
        assert refused.value.code is ErrorCode.VALIDATION_ERROR


async def test_an_orchestrator_reports_only_on_steps_that_a_run_holds(desk: Desk) -> None:
    orchestrator = await created(desk, step("s1"), step("s2"), step("s3"))
    with pytest.raises(ToolError) as refused:
        await orchestrator.call("update_step", task_id="t1", step_id="s1", status="completed")
    assert refused.value.code is ErrorCode.NO_STEP_CLAIMED
    await put(desk, "s2", None)
    failed = {"status": "failed", "reason": "the worker is gone"}
    answer = await orchestrator.call("update_step", task_id="t1", step_id="s2", **failed)
    assert answer["step"]["reason"] == "the worker is gone"
    answer = await orchestrator.call("update_step", task_id="t1", step_id="s3", status="cancelled")
    assert answer["step"]["status"] == "cancelled"


async def test_progress_while_starting_is_two_lines(desk: Desk) -> None:
    await created(desk, step("s1"))
    worker = desk.worker("run_a")
    await worker.call("claim_step", task_id="t1", step_id="s1")
    said = {"status": "running", "result_summary": "half", "artifact_ids": ["art_1"]}
    await worker.call("update_step", task_id="t1", step_id="s1", **said)
    assert desk.types()[-2:] == ["task_step_started", "task_step_updated"]
    answer = await worker.call("update_step", task_id="t1", step_id="s1", status="completed")
    assert (answer["step"]["result_summary"], answer["step"]["artifact_ids"]) == ("half", ["art_1"])


async def test_a_worker_reports_only_on_its_own_step(desk: Desk) -> None:
    await created(desk, step("s1"), step("s2"))
    await put(desk, "s2", None)
    worker = desk.worker("run_a")
    for step_id in ("s1", "s2"):
        with pytest.raises(ToolError) as refused:
            await worker.call("update_step", task_id="t1", step_id=step_id, status="completed")
        assert refused.value.code is ErrorCode.PERMISSION_DENIED
        assert refused.value.details["reason"] == "not_claimed"


async def test_a_worker_asking_for_ready_steps_gets_five(desk: Desk) -> None:
    orchestrator = await created(desk, *[step(f"s{n}") for n in range(9)])
    worker = desk.worker("run_a")
    answer = await worker.call("query_steps", task_id="t1", statuses=["ready"])
    assert list(statuses(answer)) == [f"s{n}" for n in range(5)]
    assert (answer["has_more"], answer["next_offset"]) == (True, 5)
    answer = await worker.call("query_steps", task_id="t1", statuses=["ready"], offset=5)
    assert list(statuses(answer)) == [f"s{n}" for n in range(5, 9)]
    assert not answer["has_more"]
    assert len((await orchestrator.call("query_steps", task_id="t1"))["steps"]) == 9


async def test_queries_filter_by_status_pool_and_agent(desk: Desk) -> None:
    orchestrator = await created(desk, step("s1"), step("s2", worker_pool_id="gpu"), step("s3"))
    await put(desk, "s1", "completed")
    await put(desk, "s3", None)

    async def found(**query: Any) -> list[str]:
        return list(statuses(await orchestrator.call("query_steps", task_id="t1", **query)))

    assert await found() == ["s2", "s3"]
    assert await found(include_terminal_steps=True) == ["s1", "s2", "s3"]
    assert await found(statuses=["completed", "claimed", "claimed"]) == ["s1", "s3"]
    assert await found(worker_pool_id="gpu") == ["s2"]
    assert await found(claimed_by_agent_id="agent_s3") == ["s3"]


async def test_a_large_task_is_answered_in_part(desk: Desk) -> None:
    answer = await desk.orchestrator().call(
        "create", task_id="t1", wal_name="work", steps=[step(f"s{n}") for n in range(150)]
    )
    assert len(answer["wal_event_ids"]) == 50
    assert answer["wal_event_count"] == 152
    answer = await desk.orchestrator().call("get", task_id="t1")
    assert (len(answer["steps"]), answer["steps_left_out"]) == (100, 50)


async def test_lists_filter_by_status(desk: Desk) -> None:
    orchestrator = await created(desk, step("s1"))
    await created(desk, task_id="t2")
    await created(desk, task_id="t3")
    await orchestrator.call("cancel", task_id="t3")

    async def listed(**query: Any) -> list[str]:
        return [task["task_id"] for task in (await orchestrator.call("list", **query))["tasks"]]

    assert await listed() == ["t2", "t1"]
    assert await listed(status="running") == ["t1"]
    assert await listed(status="cancelled") == ["t3"]
    assert await listed(include_terminal=True) == ["t2", "t1", "t3"]


async def test_null_is_absent_at_every_depth(desk: Desk) -> None:
    orchestrator = desk.orchestrator()
    nulls = {"title": None, "summary": None, "worker_pool_id": None, "required": None}
    await orchestrator.call(
        "create", task_id="t1", wal_name="work", summary=None, steps=[{"step_id": "s1"} | nulls]
    )
    await update(orchestrator, {"op": "update_step", "step_id": "s1", "fields": nulls})
    assert statuses(await orchestrator.call("query_steps", task_id="t1", limit=None)) == {
        "s1": "ready"
    }


async def test_the_template_becomes_part_of_the_conversation(desk: Desk) -> None:
    output = await desk.orchestrator().returned("template", goal="bake bread")
    (draft,) = output.adds
    assert draft.node_type.value == "task_instruction"
    assert draft.metadata["template_id"] == "template.task_dag.default"
    assert draft.metadata["template_version"]
    assert "bake bread" in draft.content[0].text


async def test_a_secret_in_an_id_or_in_a_logs_name_is_refused_before_anything_is_written(
    project: Path,
) -> None:
    async with desk_in(project, secrets={"MY_KEY": "hunter2"}) as desk:
        orchestrator = desk.orchestrator()
        good = {"task_id": "t1", "wal_name": "work", "steps": [step("s1")]}
        for bad in (
            {"task_id": "hunter2"},
            {"wal_name": "a-hunter2"},
            {"steps": [step("hunter2")]},
        ):
            with pytest.raises(TaskError) as refused:
                await orchestrator.call("create", **{**good, **bad})
            assert refused.value.code is ErrorCode.VALIDATION_ERROR
            assert "hunter2" not in refused.value.message
        assert not list(desk.folder.glob("*"))
        await orchestrator.call("create", **good)
        assert "task_created" in desk.types()


async def test_only_orchestrators_have_tasks_without_a_scope(desk: Desk) -> None:
    main = replace(desk.orchestrator(), role=AgentRole.MAIN)
    with pytest.raises(ToolError) as refused:
        await main.call("list")
    assert refused.value.code is ErrorCode.PERMISSION_DENIED


async def test_an_ended_log_that_was_damaged_is_listed_as_such(desk: Desk) -> None:
    orchestrator = await created(desk, step("s1"))
    await orchestrator.call("cancel", task_id="t1")
    path = desk.folder / "work.wal.jsonl"
    path.write_bytes(b"?" + path.read_bytes())
    (listed,) = (await orchestrator.call("list", include_terminal=True))["tasks"]
    assert listed["task_id"] == "t1"
    assert listed["error"]["code"] == "task_wal_unavailable"
    assert listed["error"]["details"]["line"] == 1
