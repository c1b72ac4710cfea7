"""One Task in memory, indexed so that every question about it is cheap, and edits of its graph.

A Task may have ten thousand steps, and each change touches a few of them.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from heapq import merge
from typing import Any, assert_never

from agent_core.errors import ErrorCode, TaskError
from agent_core.tasks.model import (
    CLAIMS,
    NO_CLAIM,
    OPEN,
    AddStep,
    CancelStep,
    ChangeDependency,
    DeleteStep,
    NewStep,
    Operation,
    Payload,
    ReopenStep,
    StepCancelled,
    StepClaim,
    StepFields,
    StepReopened,
    Task,
    TaskStatus,
    TaskStep,
    TaskStepStatus,
    UpdateStep,
    UpdateTask,
    WorkerEnding,
    not_cancellable,
    step_error,
    task_error,
)
from agent_core.text.json_text import JsonObject
from agent_core.types import EventType


class Dag:
    """A Task and its steps. Changed in place, only by `apply`; the steps themselves are frozen.

    Attributes:
        task: the Task without its steps.
        marked: claimed steps whose content was changed after their dispatch.
        reasons: the reason why a step is blocked, failed, cancelled or open again.
        claims: the claim of each run that ever claimed a step here, at most one per run.
        expired: the end of the lease of each run whose claim was taken back.
        announced: the effects of the last `task_updated` on steps and the Task, in the order in
            which separate lines repeat them; empty as soon as another line follows.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.marked: set[str] = set()
        self.reasons: dict[str, str] = {}
        self.claims: dict[str, StepClaim] = {}
        self.expired: dict[str, datetime] = {}
        self.announced: deque[tuple[str | None, EventType]] = deque()
        self._steps: dict[str, TaskStep] = {}
        self._positions: dict[str, int] = {}
        self._ids: dict[int, str] = {}
        self._next_position = 0
        self._listed: dict[TaskStepStatus, list[int]] = {status: [] for status in TaskStepStatus}
        self._roots: list[int] = []
        self._dependents: dict[str, set[str]] = {}
        self._missing: dict[str, int] = {}
        self._open_required = 0
        self._last_token = 0
        self._last_claims: dict[str, int] = {}

    # reading

    def find(self, step_id: str) -> TaskStep | None:
        """Return the step, or None."""
        return self._steps.get(step_id)

    def step(self, step_id: str) -> TaskStep:
        """Return the step, or raise `step_not_found`."""
        if (step := self._steps.get(step_id)) is None:
            raise _unknown_step(self.task.task_id, step_id)
        return step

    def held_by(self, run_id: str) -> TaskStep | None:
        """Return the step whose claim a run holds now."""
        claim = self.claims.get(run_id)
        step = None if claim is None else self.find(claim.step_id)
        return step if step is not None and step.is_held_by(run_id) else None

    def steps(self, *statuses: TaskStepStatus) -> Iterator[TaskStep]:
        """Return steps with one of these statuses (all, if none is given), in order of creation."""
        positions = merge(*(self._listed[status] for status in statuses or TaskStepStatus))
        return (self._steps[self._ids[position]] for position in positions)

    def roots(self) -> Iterator[str]:
        """Return the ids of steps that depend on nothing, in order of creation."""
        return (self._ids[position] for position in self._roots)

    def count(self, *statuses: TaskStepStatus) -> int:
        """Return the number of steps with one of these statuses (all, if none is given)."""
        return sum(len(self._listed[status]) for status in set(statuses or TaskStepStatus))

    def counts(self) -> dict[str, int]:
        """Return the number of steps of each status that occurs."""
        return {status.value: len(listed) for status, listed in self._listed.items() if listed}

    def dependents(self, step_id: str) -> list[str]:
        """Return the ids of the steps that wait for this one, in order of creation."""
        return sorted(self._dependents.get(step_id, ()), key=self._positions.__getitem__)

    def has_dependents(self, step_id: str) -> bool:
        """Return whether some step waits for this one."""
        return step_id in self._dependents

    def has_pending_dependents(self, step_id: str) -> bool:
        """Return whether a pending step waits for this one itself."""
        behind = self._dependents.get(step_id, ())
        return any(self._steps[each].status is TaskStepStatus.PENDING for each in behind)

    def waits_for(self, step_id: str) -> int:
        """Return the number of a step's dependencies that are not completed."""
        return self._missing[step_id]

    def explain(self, step: TaskStep) -> str:
        """Return the reason for a step's state, with the error of a worker's run that has failed.

        Empty if none was given.
        """
        reason = self.reasons.get(step.step_id, "")
        if reason != WorkerEnding.FAILED or not step.result_summary:
            return reason
        error = step.result_summary.rpartition("\n\n")[2]
        return f"{reason}: {error}"

    def obstacles(self, step_id: str) -> list[TaskStep]:
        """Return the failed and cancelled steps for which a pending step waits, even indirectly."""
        found: list[TaskStep] = []
        seen, waiting = {step_id}, [step_id]
        while waiting:
            step = self._steps[waiting.pop()]
            if step.status in _DEAD:
                found.append(step)
            elif step.status is TaskStepStatus.PENDING:
                above = [each for each in step.depends_on_step_ids if each not in seen]
                seen.update(above)
                waiting += above
        return [step for step in found if step.step_id != step_id]

    def stranded(self, step_ids: Iterable[str]) -> list[str]:
        """Return pending steps that wait, even indirectly, for a failed or cancelled step.

        Only these steps and the steps that wait for them are looked at. The answer is in order of
        creation.
        """
        steps = [self._steps[each] for each in step_ids if each in self._steps]
        waiting = [step.step_id for step in steps if step.status in _DEAD]
        found = {
            step.step_id
            for step in steps
            if step.status is TaskStepStatus.PENDING and self.obstacles(step.step_id)
        }
        waiting += found
        while waiting:
            behind = self._dependents.get(waiting.pop(), set()) - found
            pending = [s for s in behind if self._steps[s].status is TaskStepStatus.PENDING]
            found.update(pending)
            waiting += pending
        return sorted(found, key=self._positions.__getitem__)

    @property
    def next_token(self) -> int:
        """The fencing token of the next claim."""
        return self._last_token + 1

    def accepts_token(self, token: int | None) -> bool:
        """Return whether the token is later than all before; claims of old logs have none."""
        return token is None or token > self._last_token

    def has_later_claim(self, run_id: str) -> bool:
        """Return whether another run has claimed this run's step after it."""
        mine = self.claims[run_id]
        return self._last_claims[mine.step_id] > mine.token

    @property
    def is_active(self) -> bool:
        """Return whether a step is ready, claimed or running."""
        return self.count(TaskStepStatus.READY, *CLAIMS) > 0

    @property
    def is_completable(self) -> bool:
        """Return whether the Task can be completed now."""
        is_open = not self.task.status.is_terminal
        return is_open and self._open_required == 0 and self.count(*CLAIMS) == 0

    @property
    def is_stalled(self) -> bool:
        """Return whether only the orchestrator can make the Task continue."""
        status = self.task.status
        rests = status.is_terminal or status is TaskStatus.BLOCKED
        return not (rests or self.is_active or self.is_completable)

    # changing: for `apply` alone

    def put(self, step: TaskStep) -> None:
        """Add a step, or replace the one with its id."""
        step_id, old = step.step_id, self._steps.get(step.step_id)
        if old is None:
            position = self._positions[step_id] = self._next_position
            self._ids[position] = step_id
            self._next_position += 1
            self._link(step)
        else:
            position = self._positions[step_id]
            self._unlist(old, position)
            if old.depends_on_step_ids != step.depends_on_step_ids:
                self._unlink(old, position)
                self._link(step)
        insort(self._listed[step.status], position)
        self._open_required += _is_open_required(step)
        self._steps[step_id] = step
        if _is_completed(old) != _is_completed(step):
            for dependent in self._dependents.get(step_id, ()):
                self._missing[dependent] += -1 if _is_completed(step) else 1

    def remove(self, step_id: str) -> None:
        """Remove a step; other steps' links to it stay, for a step that may take its id."""
        step = self._steps.pop(step_id)
        position = self._positions.pop(step_id)
        self._unlist(step, position)
        del self._ids[position], self._missing[step_id]
        self._unlink(step, position)
        self.marked.discard(step_id)
        self.reasons.pop(step_id, None)

    def add_claim(self, run_id: str, claim: StepClaim) -> None:
        """Record the claim of a run; it is never removed."""
        self.claims[run_id] = claim
        self._last_claims[claim.step_id] = claim.token
        self._last_token = max(self._last_token, claim.token)

    def _unlist(self, step: TaskStep, position: int) -> None:
        positions = self._listed[step.status]
        del positions[bisect_left(positions, position)]
        self._open_required -= _is_open_required(step)

    def _link(self, step: TaskStep) -> None:
        for dependency in step.depends_on_step_ids:
            self._dependents.setdefault(dependency, set()).add(step.step_id)
        if not step.depends_on_step_ids:
            insort(self._roots, self._positions[step.step_id])
        done = (_is_completed(self._steps.get(each)) for each in step.depends_on_step_ids)
        self._missing[step.step_id] = sum(not is_done for is_done in done)

    def _unlink(self, step: TaskStep, position: int) -> None:
        if not step.depends_on_step_ids:
            del self._roots[bisect_left(self._roots, position)]
        for dependency in step.depends_on_step_ids:
            waiting = self._dependents[dependency]
            waiting.discard(step.step_id)
            if not waiting:
                del self._dependents[dependency]


_DEAD = {TaskStepStatus.FAILED, TaskStepStatus.CANCELLED}


def find_cycle(starts: Iterable[str], follow: Callable[[str], Iterable[str]]) -> list[str]:
    """Return a cycle that can be reached from `starts`, or an empty list.

    The search is depth-first and enters every node once. The first node of the answer is also its
    last.
    """
    done: set[str] = set()
    for start in starts:
        if start in done:
            continue
        on_path = {start: None}
        walk = [iter(follow(start))]
        while walk:
            node = next(walk[-1], None)
            if node is None:
                walk.pop()
                done.add(on_path.popitem()[0])
            elif node in on_path:
                path = list(on_path)
                return [*path[path.index(node) :], node]
            elif node not in done:
                on_path[node] = None
                walk.append(iter(follow(node)))
    return []


class GraphEdit:
    """The result of a list of operations on a Task, while the Task itself is not changed.

    Deciding and replaying both use this, so that a log can only hold what was allowed.

    Attributes:
        task: the Task after the operations so far.
        changed: the steps that are new or different, by id.
        removed: the ids of steps that existed before and no longer do.
        marked: claimed or running steps whose content was changed.
        reasons: the reasons given, by step id; None removes an earlier one.
    """

    def __init__(self, dag: Dag, at: datetime) -> None:
        self.task = dag.task
        self.changed: dict[str, TaskStep] = {}
        self.removed: set[str] = set()
        self.marked: dict[str, None] = {}
        self.reasons: dict[str, str | None] = {}
        self._dag = dag
        self._at = at
        self._rewired: set[str] = set()
        self._outcomes: dict[str, list[Payload]] = {}

    def run(self, operations: Iterable[Operation]) -> "GraphEdit":
        """Apply every operation, then check the result and update readiness.

        Raises:
            TaskError: an operation is not allowed, or the resulting graph is invalid.
        """
        for operation in operations:
            self._apply(operation)
        self._check_links()
        # A cycle needs a new link, and a step that depends on the step with that link: a step that
        # is only added at the end of a long chain does not need a walk along the chain.
        wanted = {d for s in self._rewired for d in self.changed[s].depends_on_step_ids}
        starts = [s for s in self._rewired if s in wanted or self._dag.has_dependents(s)]
        if cycle := find_cycle(starts, lambda s: self._step(s).depends_on_step_ids):
            message = f"steps would wait for each other: {' → '.join(cycle)}"
            raise task_error(ErrorCode.DEPENDENCY_CYCLE, message, cycle=cycle)
        for step in list(self.changed.values()):
            if step.status is TaskStepStatus.READY and not self._is_free(step):
                self._put(step, status=TaskStepStatus.PENDING)
        return self

    def freed(self) -> list[TaskStep]:
        """Return pending steps whose dependencies are all completed."""
        steps = self.changed.values()
        return [s for s in steps if s.status is TaskStepStatus.PENDING and self._is_free(s)]

    def outcomes(self) -> Iterator[tuple[str, Payload]]:
        """Yield a payload for each time a step was cancelled or reopened."""
        return ((step_id, each) for step_id, all_ in self._outcomes.items() for each in all_)

    def counts(self) -> dict[str, int]:
        """Return the number of steps of each status after the operations."""
        counts = self._dag.counts()
        for step_id in {*self.changed, *self.removed}:
            if old := self._dag.find(step_id):
                counts[old.status] = counts.get(old.status, 0) - 1
        for step in self.changed.values():
            counts[step.status] = counts.get(step.status, 0) + 1
        return {status: count for status, count in counts.items() if count}

    def _find(self, step_id: str) -> TaskStep | None:
        if step_id in self.changed:
            return self.changed[step_id]
        return None if step_id in self.removed else self._dag.find(step_id)

    def _step(self, step_id: str) -> TaskStep:
        if (step := self._find(step_id)) is None:
            raise _unknown_step(self.task.task_id, step_id)
        return step

    def _put(self, step: TaskStep, **update: Any) -> None:
        self.changed[step.step_id] = step.model_copy(update={**update, "updated_at": self._at})

    def _is_free(self, step: TaskStep) -> bool:
        return all(_is_completed(self._find(each)) for each in step.depends_on_step_ids)

    def _apply(self, operation: Operation) -> None:
        match operation:
            case UpdateTask():
                self._update_task(operation)
            case AddStep(step=new):
                self._add(new)
            case UpdateStep(step_id=step_id, fields=fields):
                self._update(self._step(step_id), fields)
            case DeleteStep(step_id=step_id):
                self._delete(self._step(step_id))
            case ChangeDependency(step_id=step_id):
                self._change_link(self._step(step_id), operation)
            case CancelStep(step_id=step_id, reason=reason):
                self._cancel(self._step(step_id), reason)
            case ReopenStep(step_id=step_id, reason=reason):
                self._reopen(self._step(step_id), reason)
            case _:
                assert_never(operation)

    def _update_task(self, wanted: UpdateTask) -> None:
        update: JsonObject = wanted.model_dump(include={"title", "summary"}, exclude_none=True)
        if wanted.status == "blocked":
            update["status"] = TaskStatus.BLOCKED
        elif wanted.status == "pending":
            if self.task.status is TaskStatus.RUNNING:
                message = f"Task {self.task.task_id} is running; only a blocked Task is reopened"
                raise task_error(ErrorCode.VALIDATION_ERROR, message)
            update["status"] = TaskStatus.PENDING
        self.task = self.task.model_copy(update=update)

    def _add(self, new: NewStep) -> None:
        if self._find(new.step_id) is not None:
            message = f"Task {self.task.task_id} already has a step {new.step_id}; take another id"
            raise task_error(ErrorCode.VALIDATION_ERROR, message, step_id=new.step_id)
        fields: dict[str, Any] = dict(new) | {
            "depends_on_step_ids": tuple(dict.fromkeys(new.depends_on_step_ids)),
            "worker_pool_id": new.worker_pool_id or None,
        }
        self.changed[new.step_id] = TaskStep(**fields, updated_at=self._at)
        self._rewired.add(new.step_id)

    def _update(self, step: TaskStep, fields: StepFields) -> None:
        update: dict[str, Any] = fields.model_dump(exclude_none=True)
        if step.status is TaskStepStatus.COMPLETED and update.keys() - {"title", "summary"}:
            raise _refuse(step, "only its title and summary can still change")
        depends_on = update.pop("depends_on_step_ids", None)
        if "worker_pool_id" in update:
            update["worker_pool_id"] = update["worker_pool_id"] or None
        self._put(step, **update)
        if depends_on is not None:
            self._rewire(self.changed[step.step_id], depends_on)
        self._mark(step)

    def _delete(self, step: TaskStep) -> None:
        if step.status not in {*OPEN, TaskStepStatus.CANCELLED}:
            raise _refuse(step, "only pending, ready and cancelled steps can be deleted")
        step_id = step.step_id
        self.changed.pop(step_id, None)
        self.marked.pop(step_id, None)
        self.reasons.pop(step_id, None)
        self._rewired.discard(step_id)
        self._outcomes.pop(step_id, None)
        if self._dag.find(step_id) is not None:
            self.removed.add(step_id)

    def _change_link(self, step: TaskStep, link: ChangeDependency) -> None:
        other, depends_on = link.depends_on_step_id, step.depends_on_step_ids
        if link.op == "add_dependency":
            self._rewire(step, (*depends_on, other))
        elif other in depends_on:
            self._rewire(step, (each for each in depends_on if each != other))
        else:
            message = f"step {step.step_id} does not depend on {other}"
            raise task_error(
                ErrorCode.VALIDATION_ERROR,
                message,
                step_id=step.step_id,
                depends_on_step_ids=depends_on[:50],
            )

    def _rewire(self, step: TaskStep, depends_on: Iterable[str]) -> None:
        if step.status is TaskStepStatus.COMPLETED:
            raise _refuse(step, "its dependencies can no longer change")
        self._put(step, depends_on_step_ids=tuple(dict.fromkeys(depends_on)))
        self._rewired.add(step.step_id)
        self._mark(step)

    def _mark(self, step: TaskStep) -> None:
        if step.status.is_claim:
            self.marked[step.step_id] = None

    def _cancel(self, step: TaskStep, reason: str | None) -> None:
        if step.status not in OPEN:
            raise not_cancellable(step)
        payload = StepCancelled(
            previous_status=step.status, reason=reason, result_summary=step.result_summary
        )
        self._put(step, status=TaskStepStatus.CANCELLED)
        self._add_outcome(step, payload, reason)

    def _reopen(self, step: TaskStep, reason: str | None) -> None:
        if step.status not in {TaskStepStatus.BLOCKED, TaskStepStatus.FAILED}:
            raise _refuse(step, "only blocked and failed steps can be reopened")
        payload = StepReopened(previous_status=step.status, reason=reason)
        self._put(step, status=TaskStepStatus.PENDING, **NO_CLAIM)
        self._add_outcome(step, payload, reason)

    def _add_outcome(self, step: TaskStep, payload: Payload, reason: str | None) -> None:
        self._outcomes.setdefault(step.step_id, []).append(payload)
        self.reasons[step.step_id] = reason

    def _check_links(self) -> None:
        task_id = self.task.task_id
        for step_id in self._rewired:
            for other in self.changed[step_id].depends_on_step_ids:
                if self._find(other) is None:
                    if other in self.removed:
                        raise _has_dependents(other, [step_id])
                    message = (
                        f"step {step_id} depends on {other}, but Task {task_id} has no step {other}"
                    )
                    raise task_error(ErrorCode.STEP_NOT_FOUND, message, step_id=other)
        for step_id in self.removed - self.changed.keys():
            found = ((each, self._find(each)) for each in self._dag.dependents(step_id))
            left = [each for each, step in found if step and step_id in step.depends_on_step_ids]
            if left:
                raise _has_dependents(step_id, left)


def _is_completed(step: TaskStep | None) -> bool:
    return step is not None and step.status is TaskStepStatus.COMPLETED


def _is_open_required(step: TaskStep) -> bool:
    return step.required and step.status is not TaskStepStatus.COMPLETED


def _unknown_step(task_id: str, step_id: str) -> TaskError:
    message = f"Task {task_id} has no step {step_id}; agent.task_get lists its steps"
    return task_error(ErrorCode.STEP_NOT_FOUND, message, step_id=step_id)


def _refuse(step: TaskStep, rule: str) -> TaskError:
    return step_error(ErrorCode.VALIDATION_ERROR, step, f": {rule}")


def _has_dependents(step_id: str, dependents: list[str]) -> TaskError:
    message = f"step {step_id} cannot be deleted, these depend on it: {', '.join(dependents[:10])}"
    return task_error(
        ErrorCode.STEP_HAS_DEPENDENTS, message, step_id=step_id, dependent_step_ids=dependents[:50]
    )
