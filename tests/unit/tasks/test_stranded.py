"""Steps that wait for a failed or cancelled step: who is told, and what is shown."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from agent_core.cli.pictures import summary_lines
from agent_core.errors import ErrorCode, ToolError
from agent_core.tasks.board_view import BoardLimits, render_board
from agent_core.tasks.model import TaskScope, WorkerEnding
from task_boards import Caller, Desk, created, desk_in, step


@pytest.fixture
async def desk(project: Path) -> AsyncGenerator[Desk]:
    async with desk_in(project) as open_desk:
        yield open_desk


async def chain(desk: Desk) -> Caller:
    """Two chains, s1 to s3 and s4 to s5."""
    return await created(
        desk, step("s1"), step("s2", "s1"), step("s3", "s2"), step("s4"), step("s5", "s4")
    )


async def fail(desk: Desk, step_id: str, scope: TaskScope | None = None) -> dict[str, Any]:
    worker = desk.worker(f"run_{step_id}", scope)
    await worker.call("claim_step", task_id="t1", step_id=step_id)
    said = {"status": "failed", "reason": "no\nkey"}
    return await worker.call("update_step", task_id="t1", step_id=step_id, **said)


async def update(desk: Desk, *operations: dict[str, Any]) -> dict[str, Any]:
    return await desk.orchestrator().call("update", task_id="t1", operations=list(operations))


def shown(desk: Desk) -> str:
    limits = BoardLimits(changes=0)
    return render_board(
        desk.board.active(), now=desk.clock.now(), agent_id="agent_o", limits=limits
    )


async def test_an_update_names_the_steps_that_it_strands(desk: Desk) -> None:
    await chain(desk)
    cancelled = await update(desk, {"op": "cancel_step", "step_id": "s1"})
    assert cancelled["stranded_step_ids"] == ["s2", "s3"]
    other = await update(desk, {"op": "update_step", "step_id": "s4", "fields": {"title": "x"}})
    assert "stranded_step_ids" not in other, "only what this update strands"
    added = await update(desk, {"op": "add_step", "step": step("s6", "s3")})
    assert added["stranded_step_ids"] == ["s6"]
    linked = {"op": "add_dependency", "step_id": "s5", "depends_on_step_id": "s1"}
    assert (await update(desk, linked))["stranded_step_ids"] == ["s5"]


async def test_a_task_with_stranded_steps_names_the_way_to_complete_it(desk: Desk) -> None:
    orchestrator = await created(
        desk, step("s1"), step("s2", "s1"), step("s3"), step("s4"), step("s5", "s4")
    )
    await fail(desk, "s1")
    await update(desk, {"op": "cancel_step", "step_id": "s3"})
    with pytest.raises(ToolError) as refused:
        await orchestrator.call("complete", task_id="t1")
    message = refused.value.message
    assert (
        "s1 (failed: no key), s2 (pending, waits for s1), s3 (cancelled), s4 (ready), " in message
    )
    assert "s5 (pending, waits for s4)" in message
    for way in ("reopen_step", "remove_dependency", '"fields": {"required": false}'):
        assert way in message
    fields = {"required": False}
    names = ("s1", "s2", "s3", "s4", "s5")
    given_up = [{"op": "update_step", "step_id": name, "fields": fields} for name in names]
    await update(desk, *given_up)
    ended = await orchestrator.call("complete", task_id="t1")
    assert ended["task"]["status"] == "completed"


async def test_the_hint_about_stranded_steps_leads_to_a_task_that_can_be_completed(
    desk: Desk,
) -> None:
    await chain(desk)
    hint = (await fail(desk, "s1"))["stranded_hint"]
    assert "reopen" in hint
    assert "remove_dependency" in hint
    assert 'update_step with "fields": {"required": false}' in hint
    assert "cannot complete the Task" in hint


async def test_a_failed_step_names_the_steps_behind_it_that_its_worker_may_see(desk: Desk) -> None:
    await chain(desk)
    assert (await fail(desk, "s1"))["stranded_step_ids"] == ["s2", "s3"]
    limited = await fail(desk, "s4", TaskScope("t1", frozenset({"s4"})))
    assert "stranded_step_ids" not in limited
    reopened = await update(desk, {"op": "reopen_step", "step_id": "s1"})
    assert "stranded_step_ids" not in reopened
    ended = await desk.orchestrator().call("fail", task_id="t1")
    assert "stranded_step_ids" not in ended, "nothing waits in a Task that is over"


async def test_the_outcome_of_a_run_names_what_its_open_step_strands(desk: Desk) -> None:
    orchestrator = await chain(desk)
    worker = desk.worker("run_a")
    await worker.call("claim_step", task_id="t1", step_id="s1")
    await desk.board.run_ended("run_a", WorkerEnding.FINISHED, worker.actor)
    outcome = await desk.board.outcome("run_a", orchestrator.actor)
    assert outcome is not None
    assert list(outcome.stranded) == ["s2", "s3"]


async def test_a_step_that_is_not_ready_says_what_it_waits_for(desk: Desk) -> None:
    await chain(desk)
    await fail(desk, "s1")
    for step_id, facts in {
        "s2": [{"step_id": "s1", "status": "failed", "reason": "no\nkey"}],
        "s3": [
            {"step_id": "s2", "status": "pending"},
            {"step_id": "s1", "status": "failed", "reason": "no\nkey"},
        ],
    }.items():
        with pytest.raises(ToolError) as refused:
            await desk.worker(f"run_{step_id}").call("claim_step", task_id="t1", step_id=step_id)
        assert refused.value.code is ErrorCode.STEP_NOT_READY
        assert refused.value.details["dependencies"] == facts
        assert "s1 (failed: no key)" in refused.value.message
        assert "only the orchestrator" in refused.value.message
    with pytest.raises(ToolError) as refused:
        await desk.worker("run_z").call("claim_step", task_id="t1", step_id="s1")
    assert "step s1 is failed, not ready: no key" in refused.value.message


async def test_the_board_shows_failed_steps_after_the_blocked_ones(desk: Desk) -> None:
    await chain(desk)
    blocked = desk.worker("run_b")
    await fail(desk, "s1")
    await blocked.call("claim_step", task_id="t1", step_id="s4")
    await blocked.call("update_step", task_id="t1", step_id="s4", status="blocked", reason="ask")
    lines = shown(desk).splitlines()
    assert lines[1:] == [
        "blocked t1/s4 · reason: ask",
        "failed t1/s1 · reason: no key · stranded behind it: s2, s3",
    ]


async def test_the_board_shows_why_a_workers_run_has_failed(desk: Desk) -> None:
    await chain(desk)
    worker = desk.worker("run_a")
    await worker.call("claim_step", task_id="t1", step_id="s1")
    await worker.call("update_step", task_id="t1", step_id="s1", result_summary="half\n\ndone")
    error = "provider_error: no luck"
    await desk.board.run_ended("run_a", WorkerEnding.FAILED, worker.actor, error=error)
    assert "failed t1/s1 · reason: worker_failed: provider_error: no luck · stranded" in shown(desk)


async def test_the_board_shows_a_cancelled_step_only_if_others_wait_for_it(desk: Desk) -> None:
    await chain(desk)
    gone = [{"op": "cancel_step", "step_id": each} for each in ("s4", "s5", "s1")]
    await update(desk, *gone)
    assert shown(desk).splitlines()[1:] == ["cancelled t1/s1 · stranded behind it: s2, s3"]


async def test_the_board_tells_an_ended_lease_from_a_live_one(desk: Desk) -> None:
    await chain(desk)
    worker = desk.worker("run_a")
    await worker.call("claim_step", task_id="t1", step_id="s1")
    assert "lease" not in shown(desk)
    desk.clock.pass_(301)
    assert "claimed t1/s1 · by agent_a · lease ended at 2026-03-01T12:05:00Z" in shown(desk)


async def test_a_picture_tells_an_ended_lease_and_what_keeps_a_step_from_beginning(
    desk: Desk,
) -> None:
    await chain(desk)  # written in the past: the lease of a claim has ended
    await fail(desk, "s1")
    await desk.worker("run_a").call("claim_step", task_id="t1", step_id="s4")
    dag = await desk.board.get("t1", desk.orchestrator().actor)
    lines = [line.strip() for line in summary_lines(dag, clean=str)]
    assert lines[1:] == [
        "failed    s1 · no key",
        "pending   s2 · cannot begin: s1 (failed)",
        "pending   s3 · cannot begin: s1 (failed)",
        "claimed   s4 · by agent_a · lease ended at 2026-03-01T12:05:00Z",
        "pending   s5",
    ]
