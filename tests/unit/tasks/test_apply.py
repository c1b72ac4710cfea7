"""A history that no board would have written is not replayed."""

from datetime import UTC, datetime

import pytest

from agent_core.errors import AgentCoreError, ErrorCode
from agent_core.tasks.apply import apply, replay
from agent_core.tasks.changes import (
    Change,
    Payload,
    StepReady,
    TaskCancelled,
    TaskRunning,
    TaskUpdated,
)
from agent_core.tasks.cycles import find_cycle
from agent_core.tasks.dag import Dag
from agent_core.tasks.decide import decide_creation
from agent_core.tasks.model import StepStatus, Task, TaskStatus
from agent_core.tasks.operations import DeleteStep, NewStep

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def a_task() -> tuple[Dag, list[Change]]:
    task = Task(
        task_id="t1",
        wal_path="t1.wal.jsonl",
        created_by_agent_id="agent_o",
        created_by_run_id="run_o",
        created_at=NOW,
        updated_at=NOW,
    )
    steps = [NewStep(step_id="s1"), NewStep(step_id="s2", depends_on_step_ids=("s1",))]
    changes = decide_creation(task, steps)
    dag = replay(changes)
    assert dag is not None
    return dag, changes


def test_an_empty_history_is_no_task() -> None:
    assert replay([]) is None


@pytest.mark.parametrize(
    ("payload", "step_id"),
    [
        (TaskRunning(previous_status=TaskStatus.PENDING), "s1"),
        (StepReady(previous_status=StepStatus.PENDING), None),
        (StepReady(previous_status=StepStatus.PENDING), "s9"),
        (TaskUpdated(operations=(DeleteStep(op="delete_step", step_id="s1"),)), None),
    ],
)
def test_a_change_that_does_not_fit_is_refused(payload: Payload, step_id: str | None) -> None:
    dag, _ = a_task()
    with pytest.raises(AgentCoreError):
        apply(dag, Change(NOW, payload, step_id))


def test_a_history_begins_with_its_creation_and_has_only_one() -> None:
    dag, changes = a_task()
    with pytest.raises(AgentCoreError, match="begins with"):
        apply(None, changes[1])
    with pytest.raises(AgentCoreError, match="created once"):
        apply(dag, changes[0])


def test_nothing_follows_an_end() -> None:
    dag, _ = a_task()
    apply(dag, Change(NOW, TaskCancelled()))
    with pytest.raises(AgentCoreError, match="nothing follows") as refused:
        apply(dag, Change(NOW, TaskRunning(previous_status=TaskStatus.PENDING)))
    assert refused.value.code is ErrorCode.SCHEMA_ERROR


def test_a_cycle_is_found_in_a_graph_deeper_than_the_stack() -> None:
    deep = 50_000
    links = {str(number): [str(number + 1)] for number in range(deep)}
    assert find_cycle(["0"], lambda node: links.get(node, [])) == []
    links[str(deep)] = [str(deep - 2)]
    assert find_cycle(["0"], lambda node: links.get(node, [])) == [
        str(deep - 2),
        str(deep - 1),
        str(deep),
        str(deep - 2),
    ]


def test_a_diamond_is_no_cycle() -> None:
    links = {"d": ["b", "c"], "b": ["a"], "c": ["a"], "a": []}
    assert find_cycle(links, lambda node: links[node]) == []
