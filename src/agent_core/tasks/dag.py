"""One Task in memory, with the indexes that keep every question about it cheap.

A Task may have ten thousand steps and each change touches a few of them, so the graph is changed
in place, and only by `apply`; everybody else reads. Steps themselves are frozen: one that was
handed out never changes.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Iterator
from heapq import merge

from agent_core.errors import ErrorCode, TaskError
from agent_core.tasks.model import (
    CLAIMS,
    Claim,
    Step,
    StepStatus,
    Task,
    TaskDocument,
    TaskStatus,
)
from agent_core.types import EventType

_ACTIVE = (StepStatus.READY, *CLAIMS)


class Dag:
    """A Task and its steps.

    Attributes:
        task: the Task without its steps.
        marked: claimed steps whose content was changed after their dispatch.
        reasons: why a step is blocked, failed, cancelled or open again.
        claims: the claim of each run that ever claimed a step here, at most one a run.
        announced: what the last `task_updated` did to steps and the Task, in the order in which
            lines of its own say it again; empty as soon as another line follows.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.marked: set[str] = set()
        self.reasons: dict[str, str] = {}
        self.claims: dict[str, Claim] = {}
        self.announced: deque[tuple[str | None, EventType]] = deque()
        self._steps: dict[str, Step] = {}
        self._places: dict[str, int] = {}
        self._ids: dict[int, str] = {}
        self._next_place = 0
        self._listed: dict[StepStatus, list[int]] = {status: [] for status in StepStatus}
        self._roots: list[int] = []
        self._dependents: dict[str, set[str]] = {}
        self._missing: dict[str, int] = {}
        self._open_required = 0
        self._last_token = 0
        self._last_claims: dict[str, int] = {}

    # reading

    def find(self, step_id: str) -> Step | None:
        """The step, if there is one."""
        return self._steps.get(step_id)

    def step(self, step_id: str) -> Step:
        """The step.

        Raises:
            TaskError: `step_not_found`.
        """
        if (step := self._steps.get(step_id)) is None:
            raise unknown_step(self.task.task_id, step_id)
        return step

    def steps(self, *statuses: StepStatus) -> Iterator[Step]:
        """Steps with one of these statuses (all, if none is given), in order of creation."""
        places = merge(*(self._listed[status] for status in statuses or StepStatus))
        return (self._steps[self._ids[place]] for place in places)

    def roots(self) -> Iterator[str]:
        """The ids of steps that depend on nothing, in order of creation."""
        return (self._ids[place] for place in self._roots)

    def count(self, *statuses: StepStatus) -> int:
        """How many steps have one of these statuses (all, if none is given)."""
        return sum(len(self._listed[status]) for status in set(statuses or StepStatus))

    def counts(self) -> dict[str, int]:
        """How many steps there are of each status that occurs."""
        return {status.value: len(places) for status, places in self._listed.items() if places}

    def dependents(self, step_id: str) -> list[str]:
        """The steps that wait for this one, in order of creation."""
        return sorted(self._dependents.get(step_id, ()), key=self._places.__getitem__)

    def has_dependents(self, step_id: str) -> bool:
        """Some step waits for this one."""
        return step_id in self._dependents

    def waits_for(self, step_id: str) -> int:
        """How many of a step's dependencies are not completed."""
        return self._missing[step_id]

    @property
    def next_token(self) -> int:
        """The fencing token of the next claim."""
        return self._last_token + 1

    def accepts_token(self, token: int | None) -> bool:
        """The token is later than all before; claims of old logs have none."""
        return token is None or token > self._last_token

    def has_later_claim(self, run_id: str) -> bool:
        """Another run has claimed the step of this run's claim after it."""
        mine = self.claims[run_id]
        return self._last_claims[mine.step_id] > mine.token

    @property
    def is_active(self) -> bool:
        """A step is ready, claimed or running."""
        return self.count(*_ACTIVE) > 0

    @property
    def is_completable(self) -> bool:
        """Nothing stands in the way of completing the Task."""
        over = self.task.status.is_terminal
        return not over and self._open_required == 0 and self.count(*CLAIMS) == 0

    @property
    def is_stalled(self) -> bool:
        """Without the orchestrator nothing will ever move again."""
        status = self.task.status
        waits_for_nobody = status.is_terminal or status is TaskStatus.BLOCKED
        return not (waits_for_nobody or self.is_active or self.is_completable)

    def document(self) -> TaskDocument:
        """The whole Task as data."""
        steps = tuple(self.steps())
        return TaskDocument(**dict(self.task), root_step_ids=tuple(self.roots()), steps=steps)

    # changing: for `apply` alone

    def put(self, step: Step) -> None:
        """Add a step, or replace the one with its id."""
        step_id, old = step.step_id, self._steps.get(step.step_id)
        if old is None:
            place = self._places[step_id] = self._next_place
            self._ids[place] = step_id
            self._next_place += 1
            self._link(step)
        else:
            place = self._places[step_id]
            self._take_off(old, place)
            if old.depends_on_step_ids != step.depends_on_step_ids:
                self._unlink(old, place)
                self._link(step)
        insort(self._listed[step.status], place)
        self._open_required += _is_open_required(step)
        self._steps[step_id] = step
        self._tell_dependents(step_id, was=_is_completed(old), now=_is_completed(step))

    def remove(self, step_id: str) -> None:
        """Remove a step; links of others to it stay, for a step that may take its id."""
        step = self._steps.pop(step_id)
        place = self._places.pop(step_id)
        self._take_off(step, place)
        del self._ids[place], self._missing[step_id]
        self._unlink(step, place)
        self.marked.discard(step_id)
        self.reasons.pop(step_id, None)

    def remember_claim(self, run_id: str, claim: Claim) -> None:
        """Note who claimed what, for ever."""
        self.claims[run_id] = claim
        self._last_claims[claim.step_id] = claim.token
        self._last_token = max(self._last_token, claim.token)

    def _take_off(self, step: Step, place: int) -> None:
        places = self._listed[step.status]
        del places[bisect_left(places, place)]
        self._open_required -= _is_open_required(step)

    def _link(self, step: Step) -> None:
        for dependency in step.depends_on_step_ids:
            self._dependents.setdefault(dependency, set()).add(step.step_id)
        if not step.depends_on_step_ids:
            insort(self._roots, self._places[step.step_id])
        done = (_is_completed(self._steps.get(each)) for each in step.depends_on_step_ids)
        self._missing[step.step_id] = sum(not is_done for is_done in done)

    def _unlink(self, step: Step, place: int) -> None:
        if not step.depends_on_step_ids:
            del self._roots[bisect_left(self._roots, place)]
        for dependency in step.depends_on_step_ids:
            waiting = self._dependents[dependency]
            waiting.discard(step.step_id)
            if not waiting:
                del self._dependents[dependency]

    def _tell_dependents(self, step_id: str, *, was: bool, now: bool) -> None:
        if was != now:
            for dependent in self._dependents.get(step_id, ()):
                self._missing[dependent] += -1 if now else 1


def unknown_step(task_id: str, step_id: str) -> TaskError:
    """The error for a step id that the Task does not have."""
    message = f"Task {task_id} has no step {step_id}; agent.task_get lists its steps"
    return TaskError(ErrorCode.STEP_NOT_FOUND, message, details={"step_id": step_id})


def without_repeats(step_ids: Iterable[str]) -> tuple[str, ...]:
    """The ids in their order, each once."""
    return tuple(dict.fromkeys(step_ids))


def _is_completed(step: Step | None) -> bool:
    return step is not None and step.status is StepStatus.COMPLETED


def _is_open_required(step: Step) -> bool:
    return step.required and step.status is not StepStatus.COMPLETED
