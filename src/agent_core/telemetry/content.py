"""Message contents as span attributes: JSON in the conventions' form, without secrets."""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from agent_core.telemetry import names
from agent_core.text.json_text import JsonObject
from agent_core.types import (
    ArtifactRefBlock,
    CitationBlock,
    ContentBlock,
    ImageBlock,
    JsonBlock,
    ModelCompleted,
    ModelRequest,
    ProviderToolBlock,
    ReasoningBlock,
    StopReason,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
)

Clean = Callable[[Any], Any]
"""Removes secrets from text, or from JSON-like data."""

FINISH_REASONS = {
    StopReason.END_TURN: "stop",
    StopReason.STOP_SEQUENCE: "stop",
    StopReason.TOOL_USE: "tool_call",
    StopReason.MAX_TOKENS: "length",
    StopReason.CONTENT_FILTER: "content_filter",
    StopReason.ERROR: "error",
}
"""Reasons why a model stopped, in the conventions' words."""


def encode(value: Any, clean: Clean) -> str:
    """Encode a value as JSON, without secrets."""
    return json.dumps(clean(value), ensure_ascii=False, default=str)


def sent(request: ModelRequest) -> JsonObject:
    """Return the contents of a request: the conversation, the system prompt, the tools."""
    messages = [{"role": each.role, "parts": parts_of(each.content)} for each in request.messages]
    facts: JsonObject = {names.INPUT_MESSAGES: messages}
    if request.system:
        facts[names.SYSTEM_INSTRUCTIONS] = [
            {"type": "text", "content": block.content} for block in request.system
        ]
    if request.tools:
        facts[names.TOOL_DEFINITIONS] = [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.input_schema,
            }
            for tool in request.tools
        ]
    return facts


def output_messages(reply: ModelCompleted) -> list[JsonObject]:
    """Return a model's reply as messages."""
    parts = parts_of(reply.content)
    shown = [part.get("id") for part in parts if part["type"] == "tool_call"]
    missing = [call for call in reply.tool_calls if call.tool_call_id not in shown]
    parts += [_call(call.tool_call_id, call.name, call.arguments) for call in missing]
    reason = FINISH_REASONS.get(reply.stop_reason, reply.stop_reason)
    return [{"role": "assistant", "parts": parts, "finish_reason": reason}]


def parts_of(content: Iterable[ContentBlock]) -> list[JsonObject]:
    """Return the blocks of a message as parts."""
    return [_part(block) for block in content]


def result_of(content: Sequence[ContentBlock]) -> Any:
    """Return the result of a call: its data, its text, or a list of parts."""
    match content:
        case [JsonBlock(data=data)]:
            return data
        case [TextBlock(text=text)]:
            return text
        case _:
            return parts_of(content)


def _part(block: ContentBlock) -> JsonObject:
    match block:
        case TextBlock(text=text):
            return {"type": "text", "content": text}
        case JsonBlock(data=data):
            return {"type": "text", "content": json.dumps(data, ensure_ascii=False, default=str)}
        case ReasoningBlock(text=text):
            return {"type": "reasoning", "content": text}
        case ToolCallBlock():
            return _call(block.tool_call_id, block.name, block.arguments)
        case ToolResultBlock():
            answer = result_of(block.content)
            if block.error is not None and not block.content:
                answer = {"code": block.error.code, "message": block.error.message}
            return {"type": "tool_call_response", "id": block.tool_call_id, "response": answer}
        case ImageBlock(mime_type=mime_type):  # neither searchable nor small
            return {"type": "image", "mime_type": mime_type}
        case ProviderToolBlock():
            return {"type": block.type, "name": block.name, "arguments": block.arguments}
        case CitationBlock():
            return {"type": block.type, "url": block.url, "title": block.title}
        case ArtifactRefBlock():
            return {"type": "artifact", "id": block.artifact_id, "mime_type": block.mime_type}


def _call(call_id: str, name: str, arguments: Any) -> JsonObject:
    return {"type": "tool_call", "id": call_id, "name": name, "arguments": arguments}
