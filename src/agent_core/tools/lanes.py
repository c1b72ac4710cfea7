"""How the calls of one turn follow one another: readers together, writers alone."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from agent_core.errors import ErrorCode
from agent_core.tools.base import Concurrency
from agent_core.types import ErrorPayload, ToolCall, ToolResult

_JOINS: Mapping[Concurrency, frozenset[Concurrency]] = {
    Concurrency.READ: frozenset({Concurrency.READ}),
    Concurrency.AGENT: frozenset({Concurrency.AGENT, Concurrency.END}),
    Concurrency.WAIT: frozenset({Concurrency.WAIT, Concurrency.END}),
    Concurrency.END: frozenset({Concurrency.END}),
    Concurrency.TASK: frozenset(),
    Concurrency.WRITE: frozenset(),
}
"""Which calls run side by side with the one right before them."""


def batches(
    calls: Iterable[ToolCall], lane_of: Callable[[ToolCall], Concurrency]
) -> Iterator[tuple[Concurrency, list[ToolCall]]]:
    """The calls in order, those that may run side by side in one batch."""
    batch: list[ToolCall] = []
    first = last = Concurrency.READ
    for call in calls:
        lane = lane_of(call)
        if batch and lane not in _JOINS[last]:
            yield first, batch
            batch = []
        first = first if batch else lane
        batch.append(call)
        last = lane
    if batch:
        yield first, batch


def ends_turn(lane: Concurrency, result: ToolResult) -> bool:
    """Whether the later calls of the turn must not run, because they count on this one."""
    return lane is Concurrency.WRITE and result.is_error


def not_run(call: ToolCall) -> ToolResult:
    """The answer to a call that came after a write that failed."""
    reason = "previous_write_failed"
    return ToolResult(
        tool_call_id=call.tool_call_id,
        tool_name=call.name,
        is_error=True,
        error=ErrorPayload(
            type="ToolError",
            code=ErrorCode.CANCELLED,
            message="not run: an earlier write of this turn failed, and this call was planned"
            " after it",
            details={"reason": reason},
        ),
        metadata={"reason": reason},
    )
