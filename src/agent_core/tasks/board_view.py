"""The `<task_board>` block: the state of a run's Tasks in few tokens."""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import chain, islice

from msgspec import Struct

from agent_core.tasks.graph import Dag
from agent_core.tasks.log_store import OpenTask
from agent_core.tasks.model import TaskScope, TaskStepStatus, shown_time
from agent_core.text import estimate_text, short_line

_MAX_TITLE = 120
_MAX_IDS = 10
_MAX_SEARCHES = 20
"""Steps for which the board names the steps behind them: a search takes time in a large Task."""
_RESERVE = 48
"""Tokens reserved for the line that counts what was left out."""


class BoardLimits(Struct, frozen=True, kw_only=True):
    """Limits of the board: tokens, number of recent changes, and their greatest age in minutes."""

    tokens: int = 1200
    changes: int = 20
    minutes: int = 30


def render_board(
    tasks: Sequence[OpenTask],
    *,
    now: datetime,
    agent_id: str,
    scope: TaskScope | None = None,
    limits: BoardLimits | None = None,
) -> str:
    """Return the block's content; empty if there is no active Task, or no room.

    Blocked and failed steps come first, then running ones, the agent's own claims, others' claims
    and ready steps, then recent changes. A cancelled step is shown if others wait for it. Lines
    that do not fit are counted by status.
    """
    limits = limits or BoardLimits()
    if scope is not None:
        tasks = [task for task in tasks if task.dag.task.task_id == scope.task_id]
    lines = chain(
        (("Tasks", _headline(task.dag)) for task in tasks),
        _step_lines(tasks, now, agent_id, scope),
        (("recent changes", line) for line in _recent_lines(tasks, now, scope, limits)),
    )
    shown: list[str] = []
    left_out: Counter[str] = Counter()
    room = limits.tokens - _RESERVE
    for kind, line in lines:
        room -= estimate_text(line + "\n") if not left_out else 0
        if left_out or room < 0:
            left_out[kind] += 1
        else:
            shown.append(line)
    if left_out:
        shown.append("not shown: " + ", ".join(f"{n} {kind}" for kind, n in left_out.items()))
    text = "\n".join(shown)
    return text if estimate_text(text) <= limits.tokens else ""


def _headline(dag: Dag) -> str:
    task = dag.task
    counts = ", ".join(f"{count} {status}" for status, count in dag.counts().items())
    state = "; stalled" if dag.is_stalled else "; can be completed" if dag.is_completable else ""
    title = short_line(task.title, _MAX_TITLE)
    return f"Task {task.task_id} ({task.status}{state}): {title} [{counts or 'empty'}]"


def _step_lines(
    tasks: Sequence[OpenTask], now: datetime, agent_id: str, scope: TaskScope | None
) -> Iterator[tuple[str, str]]:
    """Yield lines of steps, each after the kind as which it is counted if it is left out."""
    claimed, searches = TaskStepStatus.CLAIMED, 0
    for status, is_own in (
        (TaskStepStatus.BLOCKED, None),
        (TaskStepStatus.FAILED, None),
        (TaskStepStatus.CANCELLED, None),
        (TaskStepStatus.RUNNING, None),
        (claimed, True),
        (claimed, False),
        (TaskStepStatus.READY, None),
    ):
        for dag, step in ((task.dag, step) for task in tasks for step in task.dag.steps(status)):
            if is_own not in {None, step.claimed_by_agent_id == agent_id}:
                continue
            if scope is not None and not scope.allows(step.step_id):
                continue
            is_in_the_way = step.status.is_terminal and dag.has_pending_dependents(step.step_id)
            if step.status is TaskStepStatus.CANCELLED and not is_in_the_way:
                continue
            stranded: list[str] = []
            if is_in_the_way and searches < _MAX_SEARCHES:
                searches += 1
                stranded = [s for s in dag.stranded([step.step_id]) if not scope or scope.allows(s)]
            parts = [f"{step.status} {dag.task.task_id}/{step.step_id}"]
            if title := short_line(step.title, _MAX_TITLE):
                parts.append(title)
            if step.status.is_claim:
                parts.append(f"by {step.claimed_by_agent_id}")
            if step.has_ended_lease(now):
                parts.append(f"lease ended at {shown_time(step.lease_expires_at)}")
            if reason := dag.explain(step):
                parts.append(f"reason: {short_line(reason, _MAX_TITLE)}")
            if stranded:
                more = f" and {len(stranded) - _MAX_IDS} more" if len(stranded) > _MAX_IDS else ""
                parts.append(f"stranded behind it: {', '.join(stranded[:_MAX_IDS])}{more}")
            yield status.value, " · ".join(parts)


def _recent_lines(
    tasks: Sequence[OpenTask], now: datetime, scope: TaskScope | None, limits: BoardLimits
) -> Iterator[str]:
    """Yield the last changes, the latest first."""
    since = now - timedelta(minutes=limits.minutes)
    found = [
        (change.at, task.dag.task.task_id, change)
        for task in tasks
        for change in task.recent
        if change.at >= since
        and (scope is None or change.step_id is None or scope.allows(change.step_id))
    ]
    found.sort(key=lambda entry: entry[0])
    found.reverse()  # for equal times too, the later one comes first
    lines: dict[str, datetime] = {}  # each with its latest time: leases are renewed many times
    for at, task_id, change in found:
        place = task_id if change.step_id is None else f"{task_id}/{change.step_id}"
        lines.setdefault(f"{place} {change.event_type}", at)
    for line, at in islice(lines.items(), limits.changes):
        yield f"{at:%H:%M:%S} {line}"
