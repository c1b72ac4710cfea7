"""The conversation of a run as `archive/` keeps it: one form, whatever the engine was.

A line is a message: `role` (user, assistant, tool), `created_at`, and `content`, a list of blocks:

- `{"type": "text" | "reasoning", "text"}`
- `{"type": "tool_call", "tool_call_id", "name", "arguments"}`, which are text if the model sent no
  JSON object
- `{"type": "tool_result", "tool_call_id", "name", "is_error", "content"}`: for the model;
  results have the order of their calls
"""

from collections.abc import Iterable, Sequence
from typing import Any

from agent_core.types import (
    JsonBlock,
    Node,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
)

CONVERSATION = "conversation.jsonl"
"""The name of the conversation in the archive."""


def message(role: str, created_at: str, *content: dict[str, Any]) -> dict[str, Any]:
    """Build a message."""
    return {"role": role, "created_at": created_at, "content": list(content)}


def text_block(text: str, kind: str = "text") -> dict[str, Any]:
    """Build a block of text or reasoning."""
    return {"type": kind, "text": text}


def call_block(call_id: str, name: str, arguments: object) -> dict[str, Any]:
    """Build a block for a call."""
    return {"type": "tool_call", "tool_call_id": call_id, "name": name, "arguments": arguments}


def result_block(call_id: str, name: str, content: object, *, is_error: bool) -> dict[str, Any]:
    """Build a block for the result of a call."""
    facts = {"type": "tool_result", "tool_call_id": call_id, "name": name}
    return {**facts, "is_error": is_error, "content": content}


def messages_of(nodes: Iterable[Node]) -> list[dict[str, Any]]:
    """Convert a path of agent_core's loop to messages."""
    found = [
        message(
            node.role.value,
            node.created_at.isoformat(timespec="microseconds"),
            *(_block_of(block) for block in node.content),
        )
        for node in nodes
    ]
    return in_call_order(found)


def in_call_order(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages, with the results of each turn in the order of its calls."""
    ordered: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    calls: list[str] = []

    def place(one: dict[str, Any]) -> int:
        call_id = one["content"][0]["tool_call_id"] if one["content"] else ""
        return calls.index(call_id) if call_id in calls else len(calls)

    for one in messages:
        if one["role"] == "tool":
            results.append(one)
            continue
        ordered += sorted(results, key=place)
        results = []
        calls = [block["tool_call_id"] for block in one["content"] if block["type"] == "tool_call"]
        ordered.append(one)
    return [*ordered, *sorted(results, key=place)]


def _block_of(block: Any) -> dict[str, Any]:
    match block:
        case TextBlock(text=text):
            return text_block(text)
        case ReasoningBlock(text=text):
            return text_block(text, "reasoning")
        case ToolCallBlock(tool_call_id=call_id, name=name):
            return call_block(
                call_id, name, block.metadata.get("invalid_arguments", block.arguments)
            )
        case ToolResultBlock(tool_call_id=call_id, is_error=is_error):
            contents = [
                one.data if isinstance(one, JsonBlock) else one.model_dump(mode="json")
                for one in block.content
            ]
            content: object = contents[0] if len(contents) == 1 else contents
            if block.error is not None and not contents:
                content = {"code": block.error.code, "message": block.error.message}
            name = str(block.metadata.get("tool_name", ""))
            return result_block(call_id, name, content, is_error=is_error)
        case _:
            return block.model_dump(mode="json")
