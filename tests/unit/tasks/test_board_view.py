"""What an agent sees of its Tasks, within a budget."""

from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path

import pytest

from agent_core.tasks.board_view import BoardLimits, render_board
from agent_core.tasks.model import TaskScope
from agent_core.text import estimate_text
from task_boards import Desk, created, desk_in, step


@pytest.fixture
async def desk(project: Path) -> AsyncGenerator[Desk]:
    async with desk_in(project) as open_desk:
        yield open_desk


def text(desk: Desk, *, scope: TaskScope | None = None, **limits: int) -> str:
    return render_board(
        desk.board.active(),
        now=desk.clock.now(),
        agent_id="agent_mine",
        scope=scope,
        limits=BoardLimits(**limits),
    )


async def busy(desk: Desk) -> None:
    """s1 ready, s2 claimed by me, s3 claimed by another, s4 running, s5 blocked."""
    await created(desk, *[step(f"s{n}", title=f"Step {n}") for n in range(1, 6)])
    states = {"s2": ("run_mine", None), "s3": ("run_b", None), "s4": ("run_c", "running")}
    for step_id, (run_id, status) in {**states, "s5": ("run_d", "blocked")}.items():
        worker = desk.worker(run_id)
        await worker.call("claim_step", task_id="t1", step_id=step_id)
        if status:
            said = {"status": status, "reason": "no\nkey"}
            await worker.call("update_step", task_id="t1", step_id=step_id, **said)


async def test_what_needs_attention_comes_first(desk: Desk) -> None:
    await busy(desk)
    lines = text(desk, changes=2).splitlines()
    assert lines[0] == "Task t1 (running): T [1 ready, 2 claimed, 1 running, 1 blocked]"
    assert lines[1:6] == [
        "blocked t1/s5 · Step 5 · reason: no key",
        "running t1/s4 · Step 4 · by agent_c",
        "claimed t1/s2 · Step 2 · by agent_mine",
        "claimed t1/s3 · Step 3 · by agent_b",
        "ready t1/s1 · Step 1",
    ]
    assert [line.split(" ", 1)[1] for line in lines[6:]] == [
        "t1/s5 task_step_blocked",
        "t1/s5 task_step_claimed",
    ]


async def test_what_is_cut_is_counted_by_status(desk: Desk) -> None:
    await busy(desk)
    for tokens in range(400):
        shown = text(desk, tokens=tokens, changes=3)
        assert estimate_text(shown) <= tokens
        if not shown:
            continue
        *lines, last = shown.splitlines()
        if last.startswith("not shown: "):
            counts = [int(part.split()[0]) for part in last[len("not shown: ") :].split(", ")]
            assert sum(counts) + len(lines) == 1 + 5 + 3
    assert "not shown: 1 claimed, 1 ready, 3 recent changes" in {
        text(desk, tokens=tokens, changes=3).splitlines()[-1]
        for tokens in range(100, 200)
        if text(desk, tokens=tokens, changes=3)
    }


async def test_old_changes_are_not_recent(desk: Desk) -> None:
    await busy(desk)
    assert "task_created" in text(desk)
    desk.clock.wall += timedelta(minutes=31)
    assert "task_created" not in text(desk)
    assert "task_created" in text(desk, minutes=40)


async def test_recent_changes_survive_a_restart(desk: Desk, project: Path) -> None:
    await busy(desk)
    before = text(desk)
    await desk.board.close()
    async with desk_in(project, desk.clock) as later:
        assert text(later) == before


async def test_a_worker_sees_its_own_part(desk: Desk) -> None:
    await busy(desk)
    await created(desk, step("x1"), task_id="t2")
    shown = text(desk, scope=TaskScope("t1", frozenset({"s1"})))
    assert "t2" not in shown
    assert "s1" in shown
    assert "s5" not in shown


async def test_a_finished_board_is_empty(desk: Desk) -> None:
    orchestrator = await created(desk, step("s1"))
    await orchestrator.call("cancel", task_id="t1")
    assert text(desk) == ""


async def test_a_stalled_task_says_so(desk: Desk) -> None:
    orchestrator = await created(desk, step("s1"), step("s2", "s1"))
    cancel = {"op": "cancel_step", "step_id": "s1"}
    await orchestrator.call("update", task_id="t1", operations=[cancel])
    assert "Task t1 (running; stalled)" in text(desk)
