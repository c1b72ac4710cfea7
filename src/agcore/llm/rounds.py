"""One round of tool calls: which of them have begun, and what they were answered so far."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Protocol, runtime_checkable

from agcore.llm.answered import INTERRUPTED
from agent_core.errors import ErrorCode
from agent_core.types import ErrorPayload, ToolCall, ToolDefinition, ToolResult

NOT_BEGUN = "not run: the turn was stopped before this call began"


class ToolRound:
    """The calls of one reply. Whatever ends the round, each of them has an answer.

    Attributes:
        calls: in the model's order.
    """

    def __init__(self, calls: Sequence[ToolCall]) -> None:
        self.calls = calls
        self._begun: set[int] = set()
        self._results: dict[int, ToolResult] = {}

    @property
    def has_begun(self) -> bool:
        """Some call may have had an effect, or was answered."""
        return bool(self._begun or self._results)

    def begin(self, index: int) -> None:
        """Note that this call is made from now on."""
        self._begun.add(index)

    def answer(self, index: int, result: ToolResult) -> None:
        """Note what this call was answered."""
        self._results[index] = result

    def results(self) -> list[ToolResult]:
        """One result for each call, in order: its own, or what is known of it."""
        return [self._results.get(at) or self._stopped(at) for at in range(len(self.calls))]

    def _stopped(self, index: int) -> ToolResult:
        call, began = self.calls[index], index in self._begun
        reason = "interrupted_effect_unknown" if began else "interrupted_before_start"
        return ToolResult(
            tool_call_id=call.tool_call_id,
            tool_name=call.name,
            is_error=True,
            error=ErrorPayload(
                type="ToolError",
                code=ErrorCode.CANCELLED,
                message=INTERRUPTED if began else NOT_BEGUN,
                details={"reason": reason},
            ),
            metadata={"reason": reason},
        )


class ToolRunner(Protocol):
    """Runs the tools a model asks for; `agcore.tools.ToolRegistry` is one."""

    def definitions(self) -> Sequence[ToolDefinition]:
        """What the model is offered."""
        ...

    async def answer(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
        """Run the calls: one result for each, in order. A tool that fails is a result too."""
        ...


@runtime_checkable
class StepwiseToolRunner(Protocol):
    """A runner that says which call it makes next, and keeps what is done when it is stopped."""

    def run(self, calls: ToolRound) -> AsyncGenerator[ToolCall]:
        """Run the calls, noting each in the round; yields each one before it begins.

        A call that is answered without being made is not among those.
        """
        ...


async def steps(runner: ToolRunner, calls: ToolRound) -> AsyncGenerator[ToolCall]:
    """Run the calls with any runner; yields those that begin."""
    if isinstance(runner, StepwiseToolRunner):
        async with aclosing(runner.run(calls)) as begun:
            async for call in begun:
                yield call
        return
    for call in calls.calls:
        yield call
    for index in range(len(calls.calls)):
        calls.begin(index)
    for index, result in enumerate(await runner.answer(calls.calls)):
        calls.answer(index, result)
