"""Operations on a Task, applied in order to a copy of what they touch and checked as a whole."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, assert_never

from agent_core.errors import ErrorCode, TaskError
from agent_core.tasks.changes import Payload, StepCancelled, StepReopened
from agent_core.tasks.cycles import find_cycle
from agent_core.tasks.dag import Dag, unknown_step, without_repeats
from agent_core.tasks.model import Step, StepStatus, TaskStatus
from agent_core.tasks.operations import (
    AddDependency,
    AddStep,
    CancelStep,
    DeleteStep,
    NewStep,
    Operation,
    RemoveDependency,
    ReopenStep,
    StepFields,
    UpdateStep,
    UpdateTask,
)

_OPEN = (StepStatus.PENDING, StepStatus.READY)
_DELETABLE = (*_OPEN, StepStatus.CANCELLED)
_REOPENABLE = (StepStatus.BLOCKED, StepStatus.FAILED)


class Edit:
    """What a list of operations makes of a Task, while the Task itself stays as it is.

    Deciding and replaying both go through here, so that a log can only say what was allowed.

    Attributes:
        task: the Task after the operations so far.
        changed: the steps that are new or different, by id.
        removed: the ids of steps that were there before and are not any more.
        marked: claimed or running steps whose content was changed.
        reasons: why, where a reason was given; None forgets an earlier one.
    """

    def __init__(self, dag: Dag, at: datetime) -> None:
        self.task = dag.task
        self.changed: dict[str, Step] = {}
        self.removed: set[str] = set()
        self.marked: dict[str, None] = {}
        self.reasons: dict[str, str | None] = {}
        self._dag = dag
        self._at = at
        self._rewired: set[str] = set()
        self._outcomes: dict[str, list[Payload]] = {}

    def run(self, operations: Iterable[Operation]) -> "Edit":
        """Apply every operation, then check the whole and bring readiness up to date.

        Raises:
            TaskError: an operation is not allowed, or the graph would not hold together.
        """
        for operation in operations:
            self._apply(operation)
        self._check_links()
        self._check_cycles()
        for step_id in list(self.changed):
            step = self.changed[step_id]
            if step.status is StepStatus.READY and not self._is_free(step):
                self._put(step, status=StepStatus.PENDING)
        return self

    def freed(self) -> list[Step]:
        """Pending steps that nothing holds back any more."""
        steps = self.changed.values()
        return [s for s in steps if s.status is StepStatus.PENDING and self._is_free(s)]

    def outcomes(self) -> Iterator[tuple[str, Payload]]:
        """A payload for each time a step was cancelled or reopened."""
        return ((step_id, each) for step_id, all_ in self._outcomes.items() for each in all_)

    def counts(self) -> dict[str, int]:
        """How many steps of each status there are now."""
        counts = self._dag.counts()
        for step_id in {*self.changed, *self.removed}:
            if old := self._dag.find(step_id):
                counts[old.status] = counts.get(old.status, 0) - 1
        for step in self.changed.values():
            counts[step.status] = counts.get(step.status, 0) + 1
        return {status: count for status, count in counts.items() if count}

    def _find(self, step_id: str) -> Step | None:
        if step_id in self.changed:
            return self.changed[step_id]
        return None if step_id in self.removed else self._dag.find(step_id)

    def _step(self, step_id: str) -> Step:
        if (step := self._find(step_id)) is None:
            raise unknown_step(self.task.task_id, step_id)
        return step

    def _put(self, step: Step, **update: Any) -> None:
        self.changed[step.step_id] = step.model_copy(update={**update, "updated_at": self._at})

    def _apply(self, operation: Operation) -> None:
        match operation:
            case UpdateTask():
                self._update_task(operation)
            case AddStep(step=step):
                self._add(step)
            case UpdateStep(step_id=step_id, fields=fields):
                self._update(self._step(step_id), fields)
            case DeleteStep(step_id=step_id):
                self._delete(self._step(step_id))
            case AddDependency() | RemoveDependency():
                self._change_link(self._step(operation.step_id), operation)
            case CancelStep(step_id=step_id, reason=reason):
                self._cancel(self._step(step_id), reason)
            case ReopenStep(step_id=step_id, reason=reason):
                self._reopen(self._step(step_id), reason)
            case _:
                assert_never(operation)

    def _update_task(self, wanted: UpdateTask) -> None:
        update: dict[str, Any] = wanted.model_dump(include={"title", "summary"}, exclude_none=True)
        if wanted.status == "blocked":
            update["status"] = TaskStatus.BLOCKED
        elif wanted.status == "pending":
            if self.task.status is TaskStatus.RUNNING:
                message = f"Task {self.task.task_id} is running; only a blocked Task is reopened"
                raise TaskError(ErrorCode.VALIDATION_ERROR, message)
            update["status"] = TaskStatus.PENDING
        self.task = self.task.model_copy(update=update)

    def _add(self, new: NewStep) -> None:
        if self._find(new.step_id) is not None:
            message = f"Task {self.task.task_id} already has a step {new.step_id}; take another id"
            raise TaskError(ErrorCode.VALIDATION_ERROR, message, details={"step_id": new.step_id})
        self.changed[new.step_id] = Step(
            step_id=new.step_id,
            title=new.title,
            summary=new.summary,
            depends_on_step_ids=without_repeats(new.depends_on_step_ids),
            required=new.required,
            worker_pool_id=new.worker_pool_id or None,
            updated_at=self._at,
        )
        self._rewired.add(new.step_id)

    def _update(self, step: Step, fields: StepFields) -> None:
        update: dict[str, Any] = fields.model_dump(exclude_none=True)
        if step.status is StepStatus.COMPLETED and update.keys() - {"title", "summary"}:
            raise _frozen(step, "only its title and summary can still change")
        depends_on = update.pop("depends_on_step_ids", None)
        if "worker_pool_id" in update:
            update["worker_pool_id"] = update["worker_pool_id"] or None
        self._put(step, **update)
        if depends_on is not None:
            self._rewire(self.changed[step.step_id], depends_on)
        self._mark(step)

    def _delete(self, step: Step) -> None:
        if step.status not in _DELETABLE:
            raise _frozen(step, "only pending, ready and cancelled steps can be deleted")
        step_id = step.step_id
        self.changed.pop(step_id, None)
        self.marked.pop(step_id, None)
        self.reasons.pop(step_id, None)
        self._rewired.discard(step_id)
        self._outcomes.pop(step_id, None)
        if self._dag.find(step_id) is not None:
            self.removed.add(step_id)

    def _change_link(self, step: Step, link: AddDependency | RemoveDependency) -> None:
        other, depends_on = link.depends_on_step_id, step.depends_on_step_ids
        if link.op == "add_dependency":
            self._rewire(step, (*depends_on, other))
        elif other in depends_on:
            self._rewire(step, (each for each in depends_on if each != other))
        else:
            message = f"step {step.step_id} does not depend on {other}"
            details = {"step_id": step.step_id, "depends_on_step_ids": depends_on[:50]}
            raise TaskError(ErrorCode.VALIDATION_ERROR, message, details=details)

    def _rewire(self, step: Step, depends_on: Iterable[str]) -> None:
        if step.status is StepStatus.COMPLETED:
            raise _frozen(step, "its dependencies can no longer change")
        self._put(step, depends_on_step_ids=without_repeats(depends_on))
        self._rewired.add(step.step_id)
        self._mark(step)

    def _mark(self, step: Step) -> None:
        if step.status.is_claim:
            self.marked[step.step_id] = None

    def _cancel(self, step: Step, reason: str | None) -> None:
        if step.status not in _OPEN:
            raise not_cancellable(step)
        payload = StepCancelled(
            previous_status=step.status, reason=reason, result_summary=step.result_summary
        )
        self._put(step, status=StepStatus.CANCELLED)
        self._note(step, payload, reason)

    def _reopen(self, step: Step, reason: str | None) -> None:
        if step.status not in _REOPENABLE:
            raise _frozen(step, "only blocked and failed steps can be reopened")
        claim = {"claimed_by_agent_id": None, "claimed_by_run_id": None, "lease_expires_at": None}
        self._put(step, status=StepStatus.PENDING, **claim)
        self._note(step, StepReopened(previous_status=step.status, reason=reason), reason)

    def _note(self, step: Step, payload: Payload, reason: str | None) -> None:
        self._outcomes.setdefault(step.step_id, []).append(payload)
        self.reasons[step.step_id] = reason

    def _is_free(self, step: Step) -> bool:
        return all(
            (other := self._find(each)) is not None and other.status is StepStatus.COMPLETED
            for each in step.depends_on_step_ids
        )

    def _check_links(self) -> None:
        for step_id in self._rewired:
            for other in self.changed[step_id].depends_on_step_ids:
                if self._find(other) is None:
                    self._refuse_link(step_id, other)
        for step_id in self.removed - self.changed.keys():
            left = [d for d in self._dag.dependents(step_id) if self._depends(d, step_id)]
            if left:
                raise _has_dependents(step_id, left)

    def _refuse_link(self, step_id: str, other: str) -> None:
        if other in self.removed:
            raise _has_dependents(other, [step_id])
        message = (
            f"step {step_id} depends on {other}, but Task {self.task.task_id} has no step {other}"
        )
        raise TaskError(ErrorCode.STEP_NOT_FOUND, message, details={"step_id": other})

    def _depends(self, step_id: str, other: str) -> bool:
        step = self._find(step_id)
        return step is not None and other in step.depends_on_step_ids

    def _check_cycles(self) -> None:
        # A cycle needs a new link, and somebody who depends on the step that has it: a step
        # that is only added at the end of a long chain is not worth a walk along the chain.
        wanted = {d for s in self._rewired for d in self.changed[s].depends_on_step_ids}
        starts = [s for s in self._rewired if s in wanted or self._dag.has_dependents(s)]
        if cycle := find_cycle(starts, lambda s: self._step(s).depends_on_step_ids):
            message = f"steps would wait for each other: {' → '.join(cycle)}"
            raise TaskError(ErrorCode.DEPENDENCY_CYCLE, message, details={"cycle": cycle})


def not_cancellable(step: Step) -> TaskError:
    """The error for cancelling a step that is not simply waiting."""
    message = (
        f"step {step.step_id} is {step.status}; only pending and ready steps can be cancelled, "
        "agent.task_cancel ends the whole Task"
    )
    details = {"step_id": step.step_id, "status": step.status.value}
    return TaskError(ErrorCode.STEP_NOT_CANCELLABLE, message, details=details)


def _frozen(step: Step, rule: str) -> TaskError:
    details = {"step_id": step.step_id, "status": step.status.value}
    message = f"step {step.step_id} is {step.status}: {rule}"
    return TaskError(ErrorCode.VALIDATION_ERROR, message, details=details)


def _has_dependents(step_id: str, dependents: list[str]) -> TaskError:
    shown = ", ".join(dependents[:10])
    message = f"step {step_id} cannot be deleted, these depend on it: {shown}"
    details = {"step_id": step_id, "dependent_step_ids": dependents[:50]}
    return TaskError(ErrorCode.STEP_HAS_DEPENDENTS, message, details=details)
