"""The `<task_board>` block: the state of a run's Tasks in few tokens."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain

from agent_core.tasks.graph import Dag
from agent_core.tasks.log_store import OpenTask
from agent_core.tasks.model import Change, Step, StepStatus, TaskScope

_MAX_TITLE = 120
_BYTES_PER_TOKEN = 4
_RESERVE = 48
"""Tokens kept for the line that counts what was left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardLimits:
    """How much of the board is shown: its tokens, and how many changes of the last minutes."""

    tokens: int = 1200
    changes: int = 20
    minutes: int = 30


def estimate_tokens(text: str) -> int:
    """A quick guess: a token is four bytes."""
    return -(-len(text.encode()) // _BYTES_PER_TOKEN)


def board_text(
    tasks: Sequence[OpenTask],
    *,
    now: datetime,
    agent_id: str,
    scope: TaskScope | None = None,
    limits: BoardLimits | None = None,
    estimate: Callable[[str], int] = estimate_tokens,
) -> str:
    """The block's content; empty if there is no active Task, or no room.

    Blocked and running steps first, then the agent's own claims and those of others, then ready
    steps, then recent changes. What does not fit is counted by status.
    """
    limits = limits or BoardLimits()
    if scope is not None:
        tasks = [task for task in tasks if task.dag.task.task_id == scope.task_id]
    lines = chain(
        ((None, _headline(task.dag)) for task in tasks),
        _steps(tasks, agent_id, scope),
        (("recent changes", line) for line in _recent(tasks, now, scope, limits)),
    )
    return _fitted(lines, limits.tokens, estimate)


_Line = tuple[str | None, str]
"""What a line is counted as when it is left out, and the line."""


def _fitted(lines: Iterable[_Line], budget: int, estimate: Callable[[str], int]) -> str:
    shown: list[str] = []
    left_out: dict[str, int] = {}
    room = budget - _RESERVE
    for kind, line in lines:
        room -= estimate(line + "\n") if not left_out else 0
        if left_out or room < 0:
            name = kind or "Tasks"
            left_out[name] = left_out.get(name, 0) + 1
        else:
            shown.append(line)
    if left_out:
        shown.append("not shown: " + ", ".join(f"{n} {name}" for name, n in left_out.items()))
    text = "\n".join(shown)
    return text if estimate(text) <= budget else ""


def _headline(dag: Dag) -> str:
    task = dag.task
    counts = ", ".join(f"{count} {status}" for status, count in dag.counts().items())
    state = "; stalled" if dag.is_stalled else "; can be completed" if dag.is_completable else ""
    return f"Task {task.task_id} ({task.status}{state}): {_short(task.title)} [{counts or 'empty'}]"


def _steps(tasks: Sequence[OpenTask], agent_id: str, scope: TaskScope | None) -> Iterator[_Line]:
    for statuses in ((StepStatus.BLOCKED,), (StepStatus.RUNNING,)):
        yield from _lines(tasks, scope, statuses)
    yield from _lines(tasks, scope, (StepStatus.CLAIMED,), lambda s: _is_own(s, agent_id))
    yield from _lines(tasks, scope, (StepStatus.CLAIMED,), lambda s: not _is_own(s, agent_id))
    yield from _lines(tasks, scope, (StepStatus.READY,))


def _lines(
    tasks: Sequence[OpenTask],
    scope: TaskScope | None,
    statuses: tuple[StepStatus, ...],
    wanted: Callable[[Step], bool] | None = None,
) -> Iterator[_Line]:
    for task in tasks:
        for step in task.dag.steps(*statuses):
            if (wanted is None or wanted(step)) and (scope is None or scope.allows(step.step_id)):
                yield step.status.value, _line(task.dag, step)


def _is_own(step: Step, agent_id: str) -> bool:
    return step.claimed_by_agent_id == agent_id


def _line(dag: Dag, step: Step) -> str:
    parts = [f"{step.status} {dag.task.task_id}/{step.step_id}"]
    if title := _short(step.title):
        parts.append(title)
    if step.status.is_claim:
        parts.append(f"by {step.claimed_by_agent_id}")
    if reason := dag.reasons.get(step.step_id):
        parts.append(f"reason: {_short(reason)}")
    return " · ".join(parts)


def _recent(
    tasks: Sequence[OpenTask], now: datetime, scope: TaskScope | None, limits: BoardLimits
) -> Iterator[str]:
    """The last changes, the latest first."""
    since = now - timedelta(minutes=limits.minutes)
    found = [
        (change.at, task.dag.task.task_id, change)
        for task in tasks
        for change in task.recent
        if change.at >= since and _concerns(change, scope)
    ]
    found.sort(key=lambda entry: entry[0])
    found.reverse()  # of the same instant too, what came last comes first
    for at, task_id, change in found[: limits.changes]:
        place = task_id if change.step_id is None else f"{task_id}/{change.step_id}"
        yield f"{at:%H:%M:%S} {place} {change.event_type}"


def _concerns(change: Change, scope: TaskScope | None) -> bool:
    return scope is None or change.step_id is None or scope.allows(change.step_id)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_TITLE else line[: _MAX_TITLE - 1] + "…"
