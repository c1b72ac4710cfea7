"""A turn as a stream of events, and its answer as it arrives."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Generic

from agcore.agent.error import raise_as_agent_error
from agcore.llm import (
    AssistantTextDelta,
    CostUpdate,
    Error,
    StreamEvent,
    ToolExecutionStarted,
    TurnComplete,
)
from agent_core.aio import TaskStream
from agent_core.loop.options import asked_options
from agent_core.types import OutputT

if TYPE_CHECKING:
    from agent_core.tools.output import ExpectedOutput

_OF_OUTPUT = frozenset({"output_type", "output_mode", "output_retries"})


class AgentStream(TaskStream[StreamEvent], Generic[OutputT]):
    """The events of one turn; `TurnComplete` or `Error` is the last one.

    The turn begins with the first step. Leaving the stream early stops the turn: with `aclose`, by
    cancelling the reader, or by dropping the stream. The session can then be used again. A stream
    has one reader.

    Args:
        source: gives the events.
        settings: of the turn.

    Attributes:
        last: the last event, once it has been read: whether the turn has completed or failed.
    """

    def __init__(
        self, source: AsyncGenerator[StreamEvent], settings: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(source)
        self._settings = settings or {}
        self.last: TurnComplete | Error | None = None

    async def __anext__(self) -> StreamEvent:
        with raise_as_agent_error():
            event = await super().__anext__()
        if isinstance(event, TurnComplete | Error):
            self.last = event
        return event

    def partial_output(self) -> AsyncGenerator[OutputT]:
        """Yield the answer so far, whenever more of it is valid, and the complete answer last.

        Lists, dicts and TypedDicts grow as they arrive; a model or a dataclass appears once it has
        all its required fields; without an `output_type` the text is yielded. An incomplete answer
        is read like a complete one, but validators are only called for complete parts.

        It reads this stream. If the turn fails, the iteration ends, and `last` says why.

        Raises:
            AgentError: as this stream does.
        """
        return TaskStream(self._partial_output())

    async def _partial_output(self) -> AsyncGenerator[OutputT]:
        from agent_core.tools.prefixes import AnswerReader, PartialValues  # noqa: PLC0415

        values: PartialValues | None = None
        is_new = continues = False
        async with aclosing(self):
            async for event in self:
                if values is None:
                    values = PartialValues(AnswerReader(self._expected()))
                match event:
                    case AssistantTextDelta(text=text):
                        if is_new:
                            values.begin(continues=continues)
                            is_new = False
                        for value in values.add(text):
                            yield value
                    case CostUpdate():
                        is_new = continues = True  # it continues if no tool is called now
                    case ToolExecutionStarted():
                        continues = False
                    case TurnComplete(response=response):
                        is_text = self._expected() is None
                        for value in values.end(response.text if is_text else response.output):
                            yield value
                    case _:
                        pass

    def _expected(self) -> "ExpectedOutput | None":

        named = {name: self._settings[name] for name in _OF_OUTPUT & self._settings.keys()}
        return asked_options(None, named).expected()
