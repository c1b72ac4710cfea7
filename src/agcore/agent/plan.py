"""A plan: steps in order, each of which moves one way."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from agcore.agent.errors import AgentError, OtherAgentError
from agcore.llm import ChatResponse
from agent_core.types import new_id


class StepStatus(StrEnum):
    """Where a step is: pending, running, and then one of the three ends."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"

    @property
    def is_pending(self) -> bool:
        """Nothing has happened yet."""
        return self is StepStatus.PENDING

    @property
    def is_terminal(self) -> bool:
        """Nothing will happen any more."""
        return self in {StepStatus.COMPLETED, StepStatus.FAILED, StepStatus.SKIPPED}


_BEFORE = {
    StepStatus.RUNNING: {StepStatus.PENDING},
    StepStatus.COMPLETED: {StepStatus.RUNNING},
    StepStatus.FAILED: {StepStatus.RUNNING},
    StepStatus.SKIPPED: {StepStatus.PENDING, StepStatus.RUNNING},
}


class Step:
    """One step of a plan. A wrong move raises `AgentError.Other` and changes nothing."""

    def __init__(self, index: int, description: str) -> None:
        self.index = index
        self.description = description
        self._status = StepStatus.PENDING
        self._response: ChatResponse | None = None
        self._error: AgentError | None = None

    def __repr__(self) -> str:
        return f"Step({self.index}, {self.description!r}, {self._status.value})"

    @property
    def status(self) -> StepStatus:
        """Where it is."""
        return self._status

    @property
    def response(self) -> ChatResponse | None:
        """What it answered, once completed."""
        return self._response

    @property
    def error(self) -> AgentError | None:
        """Why it failed, once failed."""
        return self._error

    def start(self) -> None:
        """It runs now."""
        self._move(StepStatus.RUNNING)

    def complete(self, response: ChatResponse) -> None:
        """It is done."""
        self._move(StepStatus.COMPLETED)
        self._response = response

    def fail(self, error: AgentError) -> None:
        """It has failed."""
        self._move(StepStatus.FAILED)
        self._error = error

    def skip(self) -> None:
        """It is not to be done, or not to the end."""
        self._move(StepStatus.SKIPPED)

    def _move(self, to: StepStatus) -> None:
        if self._status not in _BEFORE[to]:
            raise OtherAgentError(
                f"step {self.index} is {self._status.value} and cannot become {to.value}"
            )
        self._status = to


@dataclass(frozen=True, slots=True)
class Plan:
    """A goal and the steps to it."""

    goal: str
    steps: Sequence[Step]
    plan_id: str = field(default_factory=lambda: new_id("plan"))

    @classmethod
    def of(cls, goal: str, descriptions: Sequence[str]) -> "Plan":
        """A plan with one pending step for each description."""
        return cls(goal, [Step(index, text) for index, text in enumerate(descriptions)])

    @property
    def is_complete(self) -> bool:
        """Nothing will happen any more in any step."""
        return all(step.status.is_terminal for step in self.steps)
