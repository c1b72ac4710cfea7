"""How many tokens something costs: a quick local guess, corrected by what providers report.

The provider's usage is the record; the guess decides budgets before a request is sent. It counts
UTF-8 bytes, four to a token, and `TokenScale` learns per model how far off that is.
"""

from collections.abc import Iterable
from typing import Any

from agent_core.context.texts import json_bytes
from agent_core.types import (
    ArtifactRefBlock,
    ContentBlock,
    ImageBlock,
    JsonBlock,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolDefinition,
    ToolResultBlock,
)

BYTES_PER_TOKEN = 4
MESSAGE_TOKENS = 4
"""What a message costs beside its content: its role and its separators."""
IMAGE_TOKENS = 1200
"""Providers charge by pixels, which are not known here; this is a photo at common settings."""

_LEAST_RATIO, _MOST_RATIO = 0.5, 4.0
_WORTH_LEARNING = 200
_NEW_WEIGHT = 0.3
_MARGIN = 1.05


def estimate_text(text: str) -> int:
    """Tokens of a text."""
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    return -(-size // BYTES_PER_TOKEN)


def estimate_json(value: Any) -> int:
    """Tokens of a value written as JSON."""
    return -(-len(json_bytes(value)) // BYTES_PER_TOKEN)


def estimate_blocks(blocks: Iterable[ContentBlock]) -> int:
    """Tokens of one message with this content: what `Draft.token_count` is meant to hold."""
    return MESSAGE_TOKENS + sum(map(_estimate_block, blocks))


def estimate_tools(tools: Iterable[ToolDefinition]) -> int:
    """Tokens of the tool definitions in a request."""
    return sum(
        MESSAGE_TOKENS
        + estimate_text(tool.name)
        + estimate_text(tool.description)
        + estimate_json(tool.input_schema)
        for tool in tools
    )


def _estimate_block(block: ContentBlock) -> int:
    match block:
        case TextBlock(text=text) | ReasoningBlock(text=text):
            return estimate_text(text)
        case ToolCallBlock():
            return MESSAGE_TOKENS + estimate_text(block.name) + estimate_json(block.arguments)
        case ToolResultBlock():
            error = estimate_text(block.error.message) if block.error else 0
            return MESSAGE_TOKENS + error + sum(map(_estimate_block, block.content))
        case JsonBlock():
            return estimate_json(block.data) + estimate_text(block.summary or "")
        case ArtifactRefBlock():
            return estimate_text(block.artifact_id) + estimate_text(block.summary or "")
        case ImageBlock():
            return IMAGE_TOKENS


class TokenScale:
    """How many real tokens one estimated token is, per model; shared by all runs of a runtime."""

    def __init__(self) -> None:
        self._ratios: dict[str, float] = {}

    def of(self, model: str) -> float:
        """The factor to multiply an estimate with; 1.0 for a model never observed."""
        return self._ratios.get(model, 1.0)

    def observe(self, model: str, estimated: int, reported: int) -> None:
        """Learn from one answer.

        Args:
            model: the model's name.
            estimated: the request's `use.estimated` from the ContextBuildReport.
            reported: all prompt tokens the provider counted, cached ones included. Requests too
                small to say anything, and providers that report nothing, are ignored.
        """
        if estimated < _WORTH_LEARNING or reported <= 0:
            return
        ratio = _clamped(reported / estimated)
        known = self._ratios.get(model)
        self._ratios[model] = ratio if known is None else known + _NEW_WEIGHT * (ratio - known)

    def exceeded(self, model: str, estimated: int, limit: int) -> None:
        """Learn that a request was refused as too long: it had more than `limit` tokens."""
        if estimated > 0:
            least = _clamped(_MARGIN * limit / estimated)
            self._ratios[model] = max(self.of(model), least)


def _clamped(ratio: float) -> float:
    return min(max(ratio, _LEAST_RATIO), _MOST_RATIO)
