"""Whatever is asked of a Task in whatever order: no forbidden state, and the log says it all."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, seed, settings, strategies as st
from msgspec.structs import replace

from agent_core.errors import ToolError
from agent_core.tasks.apply import apply
from agent_core.tasks.graph import Dag, find_cycle
from agent_core.tasks.log_format import Stamp, encode, read_log
from agent_core.tasks.model import (
    CLAIMS,
    PAYLOADS,
    AbortTask,
    AddStep,
    CancelStep,
    ChangeDependency,
    ClaimStep,
    CloseRun,
    Command,
    Complete,
    DeleteStep,
    ExpireLeases,
    NewStep,
    ReopenStep,
    Report,
    ReportStep,
    StepFields,
    Task,
    TaskChange,
    TaskStatus,
    TaskStepStatus,
    Update,
    UpdateStep,
    UpdateTask,
    WorkerEnding,
)
from agent_core.tasks.rules import decide, decide_creation
from sweeps import examples

START = datetime(2026, 3, 1, tzinfo=UTC)
LEASE = START + timedelta(days=1)
READY, HOLDER, STUCK = "ready", "holder", "stuck"
"""Stand for a step that is ready, a run that holds one, and a blocked or failed step, when the
command comes.
"""
STAMP = Stamp(session_id="sess_1", task_id="t1", agent_id="agent_o", run_id="run_o")

step_ids = st.sampled_from([f"s{n}" for n in range(6)])
run_ids = st.sampled_from([f"run_{n}" for n in range(20)])
reasons = st.none() | st.just("because")
links = st.lists(step_ids, max_size=3).map(tuple)
new_steps = st.builds(NewStep, step_id=step_ids, depends_on_step_ids=links, required=st.booleans())
fields = st.builds(
    StepFields,
    title=st.none() | st.text(max_size=3),
    depends_on_step_ids=st.none() | links,
    required=st.none() | st.booleans(),
)
operations = st.one_of(
    st.builds(
        UpdateTask,
        op=st.just("update_task"),
        status=st.sampled_from([None, "blocked", "pending"]),
        title=st.none() | st.text(max_size=3),
    ),
    st.builds(AddStep, op=st.just("add_step"), step=new_steps),
    st.builds(UpdateStep, op=st.just("update_step"), step_id=step_ids, fields=fields),
    st.builds(DeleteStep, op=st.just("delete_step"), step_id=step_ids),
    st.builds(
        ChangeDependency,
        op=st.sampled_from(["add_dependency", "remove_dependency"]),
        step_id=step_ids,
        depends_on_step_id=step_ids,
    ),
    st.builds(CancelStep, op=st.just("cancel_step"), step_id=step_ids, reason=reasons),
    st.builds(ReopenStep, op=st.just("reopen_step"), step_id=step_ids, reason=reasons),
)
reports = st.builds(
    Report,
    step_id=step_ids,
    status=st.sampled_from(
        [
            None,
            TaskStepStatus.RUNNING,
            TaskStepStatus.BLOCKED,
            TaskStepStatus.COMPLETED,
            TaskStepStatus.COMPLETED,
            TaskStepStatus.FAILED,
            TaskStepStatus.CANCELLED,
        ]
    ),
    result_summary=st.none() | st.text(max_size=3),
    reason=reasons,
)
wild = st.one_of(
    st.builds(Update, st.lists(operations, min_size=1, max_size=4)),
    st.builds(ClaimStep, step_ids, st.just("agent_w"), run_ids, st.just(LEASE)),
    st.builds(ReportStep, reports, st.none() | run_ids, st.just(LEASE)),
    st.builds(CloseRun, run_ids, st.sampled_from(WorkerEnding)),
    st.builds(ExpireLeases, st.lists(step_ids, max_size=2, unique=True)),
)
"""Commands that often make no sense."""

apt = st.one_of(
    st.builds(ClaimStep, st.just(READY), st.just("agent_w"), run_ids, st.just(LEASE)),
    st.builds(ReportStep, reports, st.just(HOLDER), st.just(LEASE)),
    st.builds(CloseRun, st.just(HOLDER), st.sampled_from(WorkerEnding)),
    st.sampled_from(
        [
            Update((UpdateTask(op="update_task", status="blocked"),)),
            Update((UpdateTask(op="update_task", status="pending"),)),
            Update((ReopenStep(op="reopen_step", step_id=STUCK),)),
        ]
    ),
)
"""Commands that mean whatever is ready or held by then."""

small = apt | apt | wild
ends = st.one_of(
    st.just(Complete()),
    st.just(Complete("done")),
    st.builds(AbortTask, st.sampled_from([TaskStatus.FAILED, TaskStatus.CANCELLED]), reasons),
)


@st.composite
def graphs(draw: st.DrawFn) -> list[NewStep]:
    """Up to six steps that depend on earlier ones."""
    earlier: list[str] = []
    steps: list[NewStep] = []
    for number in range(draw(st.integers(1, 6))):
        chosen = draw(st.lists(st.sampled_from(earlier), max_size=2)) if earlier else []
        required = draw(st.booleans())
        new = NewStep(step_id=f"s{number}", depends_on_step_ids=tuple(chosen), required=required)
        earlier.append(new.step_id)
        steps.append(new)
    return steps


histories = st.tuples(
    graphs(), st.lists(small, min_size=15, max_size=40), st.lists(ends, max_size=3)
)


def snapshot(dag: Dag) -> dict[str, Any]:
    """Everything that can be seen of a Task."""
    steps = list(dag.steps())
    return {
        "task": dag.task,
        "steps": steps,
        "roots": list(dag.roots()),
        "marked": set(dag.marked),
        "reasons": dict(dag.reasons),
        "claims": dict(dag.claims),
        "token": dag.next_token,
        "counts": dag.counts(),
        "waits": {step.step_id: dag.waits_for(step.step_id) for step in steps},
        "dependents": {step.step_id: dag.dependents(step.step_id) for step in steps},
        "diagnostics": (dag.is_active, dag.is_completable, dag.is_stalled),
    }


def assert_indexes_hold(dag: Dag) -> None:
    steps = {step.step_id: step for step in dag.steps()}
    assert dag.counts() == Counter(step.status.value for step in steps.values())
    assert list(dag.roots()) == [s.step_id for s in steps.values() if not s.depends_on_step_ids]
    done = {step_id for step_id, s in steps.items() if s.status is TaskStepStatus.COMPLETED}
    for step_id, step in steps.items():
        assert dag.waits_for(step_id) == len(set(step.depends_on_step_ids) - done)
        waiting = [s.step_id for s in steps.values() if step_id in s.depends_on_step_ids]
        assert dag.dependents(step_id) == waiting
    unfinished = [s for s in steps.values() if s.required and s.step_id not in done]
    held = [s for s in steps.values() if s.status in CLAIMS]
    over = dag.task.status.is_terminal
    assert dag.is_completable is (not over and not unfinished and not held)


def assert_state_is_allowed(dag: Dag) -> None:
    steps = {step.step_id: step for step in dag.steps()}
    assert find_cycle(steps, lambda step_id: steps[step_id].depends_on_step_ids) == []
    for step in steps.values():
        if step.status is TaskStepStatus.READY:
            assert dag.waits_for(step.step_id) == 0
        if step.status is TaskStepStatus.PENDING:
            assert dag.waits_for(step.step_id) > 0
        assert (step.lease_expires_at is not None) is step.status.is_claim
        if step.status in {TaskStepStatus.PENDING, TaskStepStatus.READY, TaskStepStatus.BLOCKED}:
            assert step.claimed_by_run_id is None
        if step.status.is_claim:
            assert step.claimed_by_run_id in dag.claims
    if dag.task.status is TaskStatus.PENDING:
        assert not dag.is_active
    if dag.task.status.is_terminal:
        assert not dag.is_active
        assert TaskStepStatus.PENDING.value not in dag.counts()


def assert_nothing_came_back(before: Dag, after: Dag, command: Command) -> None:
    """Results of completed steps stay; cancelled ones stay cancelled, unless deleted."""
    for old in before.steps(TaskStepStatus.COMPLETED):
        new = after.step(old.step_id)
        words = {"title", "summary", "updated_at"}
        assert new.model_dump(exclude=words) == old.model_dump(exclude=words)
    for old in before.steps(TaskStepStatus.CANCELLED):
        new = after.find(old.step_id)
        assert isinstance(command, Update) or new is not None
        if new is not None and new.status is not TaskStepStatus.CANCELLED:
            assert isinstance(command, Update)
            assert any(op.op == "delete_step" for op in command.operations)
    assert after.next_token >= before.next_token


class History:
    """A Task as it lives, and its log."""

    def __init__(self, steps: list[NewStep]) -> None:
        task = Task(
            task_id="t1",
            wal_path="t1.wal.jsonl",
            created_by_agent_id="agent_o",
            created_by_run_id="run_o",
            created_at=START,
            updated_at=START,
        )
        self.now = START
        self.log = b""
        self.lines = 0
        self.seen: set[str] = set()
        self.commits: list[tuple[int, dict[str, Any]]] = []
        changes = decide_creation(task, steps)
        self.dag = apply(None, changes[0])
        self.write(changes, since=1)

    def write(self, changes: list[TaskChange], *, since: int = 0) -> None:
        self.seen.update(change.event_type.value for change in changes)
        for change in changes:
            self.lines += 1
            self.log += encode(change, STAMP, wal_seq=self.lines, event_id=f"evt_{self.lines}")
        for change in changes[since:]:
            apply(self.dag, change)
            assert_indexes_hold(self.dag)
        self.commits.append((len(self.log), snapshot(self.dag)))

    def resolved(self, command: Command) -> Command:
        """The command with the step and the run that it stands for."""
        held = next(self.dag.steps(*CLAIMS), None)
        run_id = (held and held.claimed_by_run_id) or "run_0"
        match command:
            case ClaimStep(step_id="ready"):
                step = next(self.dag.steps(TaskStepStatus.READY), None)
                return replace(command, step_id=step.step_id if step else "s0")
            case ReportStep(holder="holder", report=said):
                step_id = held.step_id if held else said.step_id
                return replace(command, holder=run_id, report=replace(said, step_id=step_id))
            case CloseRun(run_id="holder"):
                return replace(command, run_id=run_id)
            case Update(operations=(ReopenStep(step_id="stuck"),)):
                stuck = next(self.dag.steps(TaskStepStatus.BLOCKED, TaskStepStatus.FAILED), None)
                step_id = stuck.step_id if stuck else "s0"
                return Update((ReopenStep(op="reopen_step", step_id=step_id),))
            case _:
                return command

    def ask(self, command: Command) -> None:
        self.now += timedelta(seconds=1)
        command = self.resolved(command)
        before = snapshot(self.dag)
        earlier = read_log(self.log).dag
        assert earlier is not None
        try:
            changes = decide(self.dag, command, self.now)
        except ToolError:
            changes = []
        assert snapshot(self.dag) == before
        if changes:
            self.write(changes)
            assert_nothing_came_back(earlier, self.dag, command)


@pytest.mark.long
@settings(max_examples=examples(80), deadline=None)
@given(histories)
def test_no_history_reaches_a_forbidden_state_and_every_prefix_replays(
    history: tuple[list[NewStep], list[Command], list[Command]],
) -> None:
    steps, commands, last = history
    task = History(steps)
    assert_state_is_allowed(task.dag)
    for command in (*commands, *last):
        task.ask(command)
        assert_state_is_allowed(task.dag)
    for end, seen in task.commits:
        replayed = read_log(task.log[:end]).dag
        assert replayed is not None
        assert snapshot(replayed) == seen


@settings(max_examples=examples(40), deadline=None)
@given(histories)
def test_a_log_torn_between_the_lines_of_one_write_is_mended_at_resume(
    history: tuple[list[NewStep], list[Command], list[Command]],
) -> None:
    steps, commands, last = history
    task = History(steps)
    for command in (*commands, *last):
        task.ask(command)
    lines = task.log.splitlines(keepends=True)
    for count in range(1, len(lines) + 1):
        dag = read_log(b"".join(lines[:count])).dag
        assert dag is not None
        if not dag.task.status.is_terminal:
            for change in decide(dag, ExpireLeases((), may_promote=True), task.now):
                apply(dag, change)
        assert_indexes_hold(dag)
        assert_state_is_allowed(dag)


@pytest.mark.sweep
def test_random_histories_reach_every_kind_of_change() -> None:
    missing = {event_type.value for event_type in PAYLOADS}

    @settings(max_examples=60, deadline=None, database=None)
    @given(histories)
    def collect(history: tuple[list[NewStep], list[Command], list[Command]]) -> None:
        steps, commands, last = history
        task = History(steps)
        for command in (*commands, *last):
            task.ask(command)
        missing.difference_update(task.seen)

    for number in range(20):  # the seeds are fixed: the same histories in every run
        seed(number)(collect)()
        if not missing:
            break
    assert missing == set()
