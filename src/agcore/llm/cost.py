"""What the calls so far have cost."""

from agcore.llm.types import Usage
from agent_core.types import Usage as CoreUsage


class CostTracker:
    """A running sum of usage."""

    def __init__(self) -> None:
        self._total = Usage()
        self._calls = 0

    def add(self, usage: CoreUsage) -> None:
        """Count one more call."""
        self._total = self._total.plus(usage)
        self._calls += 1

    def total(self) -> Usage:
        """The tokens of all calls."""
        return self._total

    @property
    def calls(self) -> int:
        """How many calls were counted."""
        return self._calls

    def reset(self) -> None:
        """Start at nothing again."""
        self._total = Usage()
        self._calls = 0
