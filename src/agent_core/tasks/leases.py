"""How long a claim holds: written as wall time, measured by the monotonic clock.

A clock that is set back or forward, or a machine that sleeps, neither ends a lease early nor lets
one hold for longer than its length.
"""

from datetime import datetime, timedelta

from agent_core.tasks.model import CLAIMS, Step
from agent_core.tasks.ports import Clock
from agent_core.tasks.shelf import OpenTask


class Leases:
    """The leases of all claims of a board; each lasts `length` from its last sign of life."""

    def __init__(self, clock: Clock, length: timedelta) -> None:
        self._clock = clock
        self._length = length

    def end_of_new(self) -> datetime:
        """When a lease that begins now will have run out."""
        return self._clock.now() + self._length

    def begin(self, task: OpenTask, step_id: str) -> None:
        """The step was claimed, or its holder gave a sign of life."""
        task.deadlines[step_id] = self._clock.monotonic() + self._length.total_seconds()

    def expired(self, task: OpenTask) -> list[str]:
        """The claimed steps whose lease has run out."""
        now = self._clock.monotonic()
        return [step.step_id for step in task.dag.steps(*CLAIMS) if self._end(task, step) <= now]

    def _end(self, task: OpenTask, step: Step) -> float:
        """A lease found in a log goes on from here, whatever the wall clock has done meanwhile."""
        if step.step_id not in task.deadlines:
            now = self._clock.now()
            left = min(max((step.lease_expires_at or now) - now, timedelta()), self._length)
            task.deadlines[step.step_id] = self._clock.monotonic() + left.total_seconds()
        return task.deadlines[step.step_id]
