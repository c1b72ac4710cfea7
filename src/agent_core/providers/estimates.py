"""Estimates the tokens of messages and tools before a service has counted them.

The estimate is one token for four UTF-8 bytes.
"""

from collections.abc import Iterable

from pydantic_core import PydanticSerializationError, to_json

from agent_core.providers.requests import IdentityCache
from agent_core.text import BYTES_PER_TOKEN, estimate_text
from agent_core.types import (
    ArtifactRefBlock,
    CitationBlock,
    ContentBlock,
    ImageBlock,
    JsonBlock,
    ModelMessage,
    ModelRequest,
    ProviderToolBlock,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolDefinition,
    ToolResultBlock,
)

MESSAGE_TOKENS = 4
"""Tokens of a message in addition to its content: its role and its separators."""
IMAGE_TOKENS = 1200
"""Tokens of an image. Providers charge by pixels, which are not known here; this is a photo at
common settings.
"""
DOCUMENT_CHARS_PER_TOKEN = 50
"""Characters of base64 per token: a page of a PDF is about 75 KB of it, and about 1,500 tokens."""


def json_bytes(value: object) -> bytes:
    """Write any value as JSON; a value without a JSON form is written as its `repr`."""
    try:
        return to_json(value)
    except (PydanticSerializationError, ValueError, RecursionError):
        pass
    try:
        return repr(value).encode("utf-8", "replace")
    except (ValueError, RecursionError):
        return f"({type(value).__name__})".encode()


def estimate_blocks(blocks: Iterable[ContentBlock]) -> int:
    """Return the tokens of one message with this content, as for `Draft.token_count`."""
    total = MESSAGE_TOKENS
    waiting = list(blocks)
    for block in waiting:  # grows by the content of results
        match block:
            case TextBlock(text=text) | ReasoningBlock(text=text):
                total += estimate_text(text)
            case ToolCallBlock():
                total += MESSAGE_TOKENS + estimate_text(block.name)
                total -= -len(json_bytes(block.arguments)) // BYTES_PER_TOKEN
            case ToolResultBlock():
                total += MESSAGE_TOKENS
                total += estimate_text(block.error.message) if block.error else 0
                waiting.extend(block.content)
            case JsonBlock():
                total += estimate_text(block.summary or "")
                total -= -len(json_bytes(block.data)) // BYTES_PER_TOKEN
            case ArtifactRefBlock():
                total += estimate_text(block.artifact_id) + estimate_text(block.summary or "")
            case ProviderToolBlock() | CitationBlock():  # goes back whole
                total += len(json_bytes(block.metadata)) // BYTES_PER_TOKEN
            case ImageBlock():
                size = len(block.data or "") if block.is_document else 0
                total += max(IMAGE_TOKENS, size // DOCUMENT_CHARS_PER_TOKEN)
    return total


def estimate_tools(tools: Iterable[ToolDefinition]) -> int:
    """Return the tokens of the tool definitions in a request."""
    return sum(
        MESSAGE_TOKENS
        + estimate_text(tool.name)
        + estimate_text(tool.description)
        - (-len(json_bytes(tool.input_schema)) // BYTES_PER_TOKEN)
        for tool in tools
    )


class PromptEstimates:
    """Estimates the prompts of requests; each message or tool is estimated only once."""

    def __init__(self) -> None:
        self._messages: IdentityCache[ModelMessage, int] = IdentityCache()
        self._tools: IdentityCache[ToolDefinition, int] = IdentityCache()

    def prompt(self, request: ModelRequest) -> int:
        """Return the tokens of the system prompt, the messages and the tools of a request."""
        total = 0
        for block in request.system:
            total += block.token_count or estimate_text(block.content)
        total += sum(self._messages.get_all(request.messages, _message_tokens))
        return total + sum(self._tools.get_all(request.tools, _tool_tokens))


def _message_tokens(message: ModelMessage) -> int:
    return estimate_blocks(message.content)


def _tool_tokens(tool: ToolDefinition) -> int:
    return estimate_tools([tool])
