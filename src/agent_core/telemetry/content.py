"""Messages as the conventions write them into attributes: JSON, and without secrets."""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from agent_core.types import (
    ArtifactRefBlock,
    ContentBlock,
    ImageBlock,
    JsonBlock,
    ModelCompleted,
    ModelRequest,
    ReasoningBlock,
    StopReason,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
)

Clean = Callable[[Any], Any]
"""Takes secrets out of text, or of data as JSON has it."""

FINISH_REASONS = {
    StopReason.END_TURN: "stop",
    StopReason.STOP_SEQUENCE: "stop",
    StopReason.TOOL_USE: "tool_call",
    StopReason.MAX_TOKENS: "length",
    StopReason.CONTENT_FILTER: "content_filter",
    StopReason.ERROR: "error",
}
"""Why a model stopped, in the conventions' words."""


def encode(value: Any, clean: Clean) -> str:
    """The value as JSON, without secrets."""
    return json.dumps(clean(value), ensure_ascii=False, default=str)


def system_parts(request: ModelRequest) -> list[dict[str, Any]]:
    """The system prompt of a request."""
    return [{"type": "text", "content": block.content} for block in request.system]


def input_messages(request: ModelRequest) -> list[dict[str, Any]]:
    """The conversation that a request sends."""
    return [
        {"role": message.role, "parts": parts_of(message.content)} for message in request.messages
    ]


def output_messages(reply: ModelCompleted) -> list[dict[str, Any]]:
    """What the model has answered."""
    parts = parts_of(reply.content)
    shown = {part.get("id") for part in parts if part["type"] == "tool_call"}
    missing = [call for call in reply.tool_calls if call.tool_call_id not in shown]
    parts += [_call(call.tool_call_id, call.name, call.arguments) for call in missing]
    reason = FINISH_REASONS[reply.stop_reason]
    return [{"role": "assistant", "parts": parts, "finish_reason": reason}]


def tool_definitions(request: ModelRequest) -> list[dict[str, Any]]:
    """The tools that a request offers."""
    return [
        {
            "type": "function",
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.input_schema,
        }
        for tool in request.tools
    ]


def parts_of(content: Iterable[ContentBlock]) -> list[dict[str, Any]]:
    """The blocks of a message as parts."""
    return [_part(block) for block in content]


def result_of(content: Sequence[ContentBlock]) -> Any:
    """What a call has answered: its data, its text, or the parts of both."""
    match content:
        case [JsonBlock(data=data)]:
            return data
        case [TextBlock(text=text)]:
            return text
        case _:
            return parts_of(content)


def _part(block: ContentBlock) -> dict[str, Any]:
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
        case ImageBlock(mime_type=mime_type):  # a picture is no text to search, and too large
            return {"type": "image", "mime_type": mime_type}
        case ArtifactRefBlock():
            return {"type": "artifact", "id": block.artifact_id, "mime_type": block.mime_type}


def _call(call_id: str, name: str, arguments: Any) -> dict[str, Any]:
    return {"type": "tool_call", "id": call_id, "name": name, "arguments": arguments}
