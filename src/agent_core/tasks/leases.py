"""Measures the leases on claimed steps.

The log has the wall time at which a lease ends; this process measures it by the monotonic clock. A
lease read from a log lasts at most its full length from then on, however the wall clock has jumped.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from math import inf

from agent_core.tasks.log_store import OpenTask
from agent_core.tasks.model import CLAIMS, TaskStep

IsWorking = Callable[[str], bool]
"""Tells whether a run has open work in this process: a tool call, with all that it waits for."""

_ENDED = -1.0
"""Deadline of a lease that had ended when its holder's next call began."""

_RENEWALS = 3
"""Times that open work renews a lease within the time of one lease."""


class StepLeases:
    """The leases on the claimed steps of a session's Tasks.

    A lease does not end while its holder has open work, unless it had ended before that began.

    Args:
        duration: the time that a lease lasts.
        is_working: tells whether a run has open work.
        now: returns the wall time, for what is written.
        monotonic: returns the time in seconds, for what is measured.
    """

    def __init__(
        self,
        duration: timedelta,
        *,
        is_working: IsWorking,
        now: Callable[[], datetime],
        monotonic: Callable[[], float],
    ) -> None:
        self._duration = duration
        self._is_working = is_working
        self._now = now
        self._monotonic = monotonic

    @property
    def renewal_s(self) -> float:
        """The time in seconds between two renewals of a lease by open work."""
        return self._duration.total_seconds() / _RENEWALS

    def next_end(self) -> datetime:
        """Return when a lease that begins now ends."""
        return self._now() + self._duration

    def begin(self, task: OpenTask, step_id: str) -> None:
        """Begin the lease on a step, or begin it again."""
        task.deadlines[step_id] = self._monotonic() + self._duration.total_seconds()

    def end_if_over(self, task: OpenTask, step_id: str) -> bool:
        """Return whether the time of a lease is over; if so, no work keeps it alive any longer."""
        if task.deadlines.get(step_id, inf) > self._monotonic():
            return False
        task.deadlines[step_id] = _ENDED
        return True

    def has_ended(self, task: OpenTask, step_id: str) -> bool:
        """Return whether a lease was found to be over when its holder's next call began."""
        return task.deadlines.get(step_id) == _ENDED

    def has_open_work(self, task: OpenTask, step: TaskStep) -> bool:
        """Return whether open work of its holder keeps the lease on a step alive."""
        run_id = step.claimed_by_run_id
        is_alive = not self.has_ended(task, step.step_id)
        return is_alive and run_id is not None and self._is_working(run_id)

    def is_written(self, step: TaskStep) -> bool:
        """Return whether the end in the log is about the end of a lease that begins now."""
        written = step.lease_expires_at
        return written is not None and abs(self.next_end() - written) <= self._duration / 10

    def expired(self, task: OpenTask) -> list[str]:
        """Return the steps whose leases are over; begin to measure leases read from a log."""
        over: list[str] = []
        for step in task.dag.steps(*CLAIMS):
            if step.step_id not in task.deadlines:
                now = self._now()
                left = min(max((step.lease_expires_at or now) - now, timedelta()), self._duration)
                task.deadlines[step.step_id] = self._monotonic() + left.total_seconds()
            if self.has_open_work(task, step):
                self.begin(task, step.step_id)
            elif task.deadlines[step.step_id] <= self._monotonic():
                over.append(step.step_id)
        return over
