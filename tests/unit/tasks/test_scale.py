"""Ten thousand steps cost ten times what a thousand cost: measured as ratios of CPU time."""

import gc
from collections.abc import Callable
from datetime import UTC, datetime
from time import process_time

import pytest

from agent_core.tasks.apply import apply
from agent_core.tasks.graph import Dag
from agent_core.tasks.log_format import Stamp, encode, read_log
from agent_core.tasks.model import (
    AddStep,
    ClaimStep,
    Command,
    NewStep,
    Report,
    ReportStep,
    Task,
    TaskChange,
    TaskScope,
    TaskStepStatus,
    Update,
)
from agent_core.tasks.rules import decide, decide_creation
from agent_core.tasks.tools import select_steps, summarise_task, take_page
from sweeps import is_whole, paired

NOW = datetime(2026, 3, 1, tzinfo=UTC)
STAMP = Stamp(session_id="sess_1", task_id="t1", agent_id="agent_o", run_id="run_o")
SMALL, LARGE = (1000, 10_000) if is_whole() else (300, 3000)
LINEAR = LARGE / SMALL
TOLERANCE = 5
"""Caches, collectors and busy machines make large things dearer; a square, ten times dearer."""

TASK = Task(
    task_id="t1",
    wal_path="t1.wal.jsonl",
    created_by_agent_id="agent_o",
    created_by_run_id="run_o",
    created_at=NOW,
    updated_at=NOW,
)
Shape = Callable[[int], tuple[str, ...]]
SHAPES: dict[str, Shape] = {
    "chain": lambda number: (f"s{number - 1}",) if number else (),
    "star": lambda number: ("s0",) if number else (),
}


def steps(count: int, shape: Shape) -> list[NewStep]:
    return [
        NewStep(step_id=f"s{number}", depends_on_step_ids=shape(number)) for number in range(count)
    ]


def built(changes: list[TaskChange]) -> Dag:
    dag = apply(None, changes[0])
    for change in changes[1:]:
        apply(dag, change)
    return dag


def create_at_once(count: int, shape: Shape) -> None:
    changes = decide_creation(TASK, steps(count, shape))
    log = b"".join(
        encode(change, STAMP, wal_seq=number, event_id="evt_1")
        for number, change in enumerate(changes, 1)
    )
    assert read_log(log).lines == len(changes)


def grow_step_by_step(count: int, shape: Shape) -> None:
    dag = built(decide_creation(TASK, ()))
    for new in steps(count, shape):
        for change in decide(dag, Update([AddStep(op="add_step", step=new)]), NOW):
            apply(dag, change)
    assert dag.count() == count


def work_off(count: int, shape: Shape) -> None:
    """Every step is found by a query, claimed and completed, and everything is written down."""
    dag = built(decide_creation(TASK, steps(count, shape)))
    scope = TaskScope("t1")
    lines: list[bytes] = []

    def do(command: Command) -> None:
        for change in decide(dag, command, NOW):
            lines.append(encode(change, STAMP, wal_seq=len(lines) + 1, event_id="evt_1"))
            apply(dag, change)

    for number in range(count):
        ((step, *_), _) = take_page(
            select_steps(dag, scope, (TaskStepStatus.READY,)), limit=5, offset=0
        )
        run_id = f"run_{number}"
        do(ClaimStep(step.step_id, "agent_w", run_id, NOW))
        done = Report(step_id=step.step_id, status=TaskStepStatus.COMPLETED)
        do(ReportStep(done, run_id, NOW))
        assert summarise_task(dag)["diagnostics"]["stalled"] is False
    assert dag.is_completable


def cost(work: Callable[[int, Shape], None], count: int, shape: Shape) -> float:
    # What else is alive in this process decides how long the collector takes, so it has to wait.
    gc.disable()
    try:
        start = process_time()
        work(count, shape)
        return process_time() - start
    finally:
        gc.enable()


@pytest.mark.long
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("work", "shape"), paired([create_at_once, grow_step_by_step, work_off], SHAPES)
)
def test_ten_times_the_steps_cost_about_ten_times_as_much(
    work: Callable[[int, Shape], None], shape: str
) -> None:
    work(10, SHAPES[shape])
    small = min(cost(work, SMALL, SHAPES[shape]) for _ in range(3))
    ratio = min(cost(work, LARGE, SHAPES[shape]) for _ in range(2)) / small
    assert ratio < LINEAR * TOLERANCE, f"{work.__name__} of a {shape}: {ratio:.1f} times"
