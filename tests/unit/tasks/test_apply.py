"""A history that no board would have written is not replayed."""

from datetime import UTC, datetime

import pytest

from agent_core.errors import AgentCoreError, ErrorCode, SchemaError
from agent_core.tasks.apply import apply
from agent_core.tasks.graph import Dag, find_cycle
from agent_core.tasks.log_format import read_log
from agent_core.tasks.model import (
    AbortTask,
    DeleteStep,
    NewStep,
    Payload,
    StepBlocked,
    StepCancelled,
    StepClaimed,
    StepCompleted,
    StepFailed,
    StepLeaseExpired,
    StepReady,
    StepReopened,
    StepStarted,
    Task,
    TaskCancelled,
    TaskChange,
    TaskCompleted,
    TaskCreated,
    TaskFailed,
    TaskReopened,
    TaskRunning,
    TaskStatus,
    TaskStepStatus,
    TaskUpdated,
)
from agent_core.tasks.rules import decide, decide_creation
from tables import together

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def a_task() -> tuple[Dag, list[TaskChange]]:
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
    dag = apply(None, changes[0])
    for change in changes[1:]:
        apply(dag, change)
    return dag, changes


def claim(run_id: str, *, token: int | None) -> StepClaimed:
    return StepClaimed(
        previous_status=TaskStepStatus.READY,
        claimed_by_agent_id="agent_w",
        claimed_by_run_id=run_id,
        lease_expires_at=NOW,
        fencing_token=token,
    )


def test_an_empty_history_is_no_task() -> None:
    assert read_log(b"").dag is None


@together(
    ("payload", "step_id"),
    [
        (TaskRunning(previous_status=TaskStatus.PENDING), "s1"),
        (StepReady(previous_status=TaskStepStatus.PENDING), None),
        (StepReady(previous_status=TaskStepStatus.PENDING), "s9"),
        (TaskUpdated(operations=(DeleteStep(op="delete_step", step_id="s1"),)), None),
        (TaskUpdated(operations=(), updated_after_dispatch_step_ids=("s1",)), None),
        (TaskRunning(previous_status=TaskStatus.PENDING), None),
        (TaskReopened(previous_status=TaskStatus.BLOCKED), None),
        (TaskCompleted(), None),
        (TaskFailed(), None),
        (TaskCancelled(), None),
        (StepReady(previous_status=TaskStepStatus.PENDING), "s1"),
        (StepReady(previous_status=TaskStepStatus.PENDING), "s2"),
        (StepReopened(previous_status=TaskStepStatus.FAILED), "s1"),
        (StepStarted(previous_status=TaskStepStatus.CLAIMED, lease_expires_at=NOW), "s1"),
        (StepCompleted(previous_status=TaskStepStatus.CLAIMED), "s1"),
        (StepBlocked(previous_status=TaskStepStatus.READY), "s1"),
        (StepFailed(previous_status=TaskStepStatus.CLAIMED), "s1"),
        (StepCancelled(previous_status=TaskStepStatus.PENDING), "s1"),
        (claim("run_a", token=1), "s2"),
    ],
)
def test_a_change_that_does_not_fit_is_refused(payload: Payload, step_id: str | None) -> None:
    dag, _ = a_task()
    with pytest.raises(AgentCoreError):
        apply(dag, TaskChange(NOW, payload, step_id))


def test_a_history_begins_with_its_creation_and_has_only_one() -> None:
    dag, changes = a_task()
    with pytest.raises(AgentCoreError, match="begins with"):
        apply(None, changes[1])
    with pytest.raises(AgentCoreError, match="created once"):
        apply(dag, changes[0])


def test_nothing_follows_an_end() -> None:
    dag, _ = a_task()
    for change in decide(dag, AbortTask(TaskStatus.CANCELLED), NOW):
        apply(dag, change)
    with pytest.raises(AgentCoreError, match="nothing follows") as refused:
        apply(dag, TaskChange(NOW, TaskRunning(previous_status=TaskStatus.PENDING)))
    assert refused.value.code is ErrorCode.SCHEMA_ERROR


def test_fencing_tokens_only_grow_and_old_claims_without_one_count() -> None:
    dag, _ = a_task()
    apply(dag, TaskChange(NOW, claim("run_a", token=None), "s1"))
    assert dag.claims["run_a"].token == 1
    expired = StepLeaseExpired(
        previous_status=TaskStepStatus.CLAIMED,
        claimed_by_agent_id="agent_w",
        claimed_by_run_id="run_a",
        expired_at=NOW,
    )
    apply(dag, TaskChange(NOW, expired, "s1"))
    apply(dag, TaskChange(NOW, StepReady(previous_status=TaskStepStatus.PENDING), "s1"))
    for run_id, token in (("run_b", 1), ("run_a", 2)):
        with pytest.raises(AgentCoreError, match="task_step_claimed cannot be"):
            apply(dag, TaskChange(NOW, claim(run_id, token=token), "s1"))
    apply(dag, TaskChange(NOW, claim("run_b", token=2), "s1"))
    assert dag.has_later_claim("run_a")
    assert not dag.has_later_claim("run_b")


@together(
    "change",
    [
        {"status": "running"},
        {"root_step_ids": ("s1", "s2")},
        {"steps": ({"step_id": "s1", "updated_at": NOW},) * 2},
        {"steps": ({"step_id": "s1", "updated_at": NOW, "status": "ready"},)},
        {"steps": ({"step_id": "s1", "updated_at": NOW, "depends_on_step_ids": ("s9",)},)},
        {"steps": ({"step_id": "s1", "updated_at": NOW, "depends_on_step_ids": ("s1",)},)},
    ],
)
def test_a_task_is_created_whole_and_untouched(change: dict[str, object]) -> None:
    _, (first, *_) = a_task()
    assert isinstance(first.payload, TaskCreated)
    document = first.payload.task.model_dump() | change
    if "root_step_ids" not in change:
        del document["root_step_ids"]
    with pytest.raises(SchemaError):
        apply(None, TaskChange(NOW, TaskCreated.model_validate({"task": document})))


@pytest.mark.long
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
