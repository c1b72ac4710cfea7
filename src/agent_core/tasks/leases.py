"""How long a claim holds: written as wall time, measured by the monotonic clock.

A clock that is set back or forward, or a machine that sleeps, neither ends a lease early nor lets
one hold for longer than its length.
"""

from datetime import datetime, timedelta

from agent_core.tasks.model import CLAIMS
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

    def take_over(self, task: OpenTask) -> None:
        """Go on with the leases found in a log, whatever the wall clock has done meanwhile."""
        now, monotonic = self._clock.now(), self._clock.monotonic()
        for step in task.dag.steps(*CLAIMS):
            left = (step.lease_expires_at or now) - now
            left = min(max(left, timedelta()), self._length)
            task.deadlines[step.step_id] = monotonic + left.total_seconds()

    def expired(self, task: OpenTask) -> list[str]:
        """The claimed steps whose lease has run out."""
        now = self._clock.monotonic()
        held = (step.step_id for step in task.dag.steps(*CLAIMS))
        return [step_id for step_id in held if task.deadlines.get(step_id, now) <= now]
