"""What became of a call: a result of bounded size, a plain value, or an error as data."""

from dataclasses import dataclass
from typing import Any

from agcore.tools.errors import ToolError
from agent_core.types import (
    ContentBlock,
    JsonBlock,
    TextBlock,
    ToolResult,
)

RESULT_LIMIT_BYTES = 65_536
"""Bytes of one result, by default; what is beyond the limit is cut out of the middle."""


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """How one of several calls ended: with a value, or with an error."""

    name: str
    value: Any = None
    error: ToolError | None = None

    @property
    def is_error(self) -> bool:
        """Whether the call failed; `error` then says why."""
        return self.error is not None

    def unwrap(self) -> Any:
        """The value.

        Raises:
            ToolError: there is none, because the call failed.
        """
        if self.error is not None:
            raise self.error
        return self.value


def value_of(result: ToolResult) -> Any:
    """The answer as a plain value: JSON as it is, text as text, several blocks as a list."""
    values = [_plain(block) for block in result.content]
    return values[0] if len(values) == 1 else values or None


def _plain(block: ContentBlock) -> Any:
    match block:
        case TextBlock(text=text):
            return text
        case JsonBlock(data=data):
            return data
        case _:
            return block.model_dump(mode="json")
