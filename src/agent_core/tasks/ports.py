"""What a board asks of the world: a clock, somebody to tell, somebody who stops runs."""

import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Protocol

from agent_core.types import EventLevel, EventType, utc_now


class Clock(Protocol):
    """Wall time stamps and crosses processes; monotonic time alone measures leases."""

    def now(self) -> datetime:
        """The time, aware, in UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds that never jump."""
        ...


class SystemClock:
    """The real clock."""

    def now(self) -> datetime:
        return utc_now()

    def monotonic(self) -> float:
        return time.monotonic()


class TaskJournal(Protocol):
    """Where a run's events go; `agent_core.events.Journal` is one."""

    def note(
        self,
        event_type: EventType,
        payload: Mapping[str, Any] | None = None,
        *,
        level: EventLevel = EventLevel.INFO,
    ) -> None:
        """Record that something happened."""
        ...


class RunStopper(Protocol):
    """Stops worker runs when their Task ends."""

    async def stop(self, run_id: str) -> None:
        """Ask a run to stop and return when it has; at once, if there is no such run here.

        The board bounds the waiting, and cancels this call when it has waited long enough; the
        request itself then stands.
        """
        ...


class NoRuns:
    """For a session without workers: there is nothing to stop."""

    async def stop(self, run_id: str) -> None:
        """Return at once."""
