"""What became of a call: a result of bounded size, a plain value, or an error as data."""

from dataclasses import dataclass
from typing import Any

from agcore.tools.errors import ToolError
from agent_core.providers.failures import error_payload
from agent_core.providers.jsontext import dump_text
from agent_core.types import (
    ContentBlock,
    ImageBlock,
    JsonBlock,
    TextBlock,
    ToolCall,
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


def bounded(result: ToolResult, limit_bytes: int) -> ToolResult:
    """The result with every block in its share of the limit; the same object if it fits."""
    share = limit_bytes // max(1, len(result.content))
    content = [_bounded_block(block, share) for block in result.content]
    is_same = all(new is old for new, old in zip(content, result.content, strict=True))
    return result if is_same else result.model_copy(update={"content": content})


def value_of(result: ToolResult) -> Any:
    """The answer as a plain value: JSON as it is, text as text, several blocks as a list."""
    values = [_plain(block) for block in result.content]
    return values[0] if len(values) == 1 else values or None


def failed(call: ToolCall, error: ToolError) -> ToolResult:
    """The error as the answer to a call, for the model to read."""
    return ToolResult(
        tool_call_id=call.tool_call_id,
        tool_name=call.name,
        is_error=True,
        error=error_payload(error),
    )


def _bounded_block(block: ContentBlock, limit: int) -> ContentBlock:
    match block:
        case TextBlock(text=text):
            cut = _cut(text, limit)
            return block if cut is text else TextBlock(text=cut)
        case JsonBlock(data=data):
            text = dump_text(data)
            cut = _cut(text, limit)
            return block if cut is text else TextBlock(text=cut)
        case ImageBlock(data=str(data)) if len(data) > limit:
            return TextBlock(text=f"[an image of {len(data)} bytes is left out]")
        case _:
            return block


def _cut(text: str, limit: int) -> str:
    """Beginning and end of a text that is too long, with a word about what is missing."""
    raw = text.encode("utf-8", "replace")
    if len(raw) <= limit:
        return text
    head = raw[: limit * 2 // 3].decode(errors="ignore")
    tail = raw[len(raw) - limit // 3 :].decode(errors="ignore")
    return f"{head}\n[… {len(raw) - limit} bytes left out …]\n{tail}"


def _plain(block: ContentBlock) -> Any:
    match block:
        case TextBlock(text=text):
            return text
        case JsonBlock(data=data):
            return data
        case _:
            return block.model_dump(mode="json")
