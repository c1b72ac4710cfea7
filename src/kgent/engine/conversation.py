"""Conversion between the path of agent_core's loop and the conversation of the archive."""

from collections.abc import Iterable, Sequence
from typing import Any, cast

from agent_core.events.journal import build_node
from agent_core.providers.estimates import estimate_blocks
from agent_core.redaction import Redactor
from agent_core.redaction.redactor import JournalRedactor
from agent_core.text.json_text import JsonObject, table
from agent_core.types import (
    EFFECT_UNKNOWN,
    OPAQUE,
    ContentBlock,
    Draft,
    JsonBlock,
    Node,
    ReasoningBlock,
    Role,
    RunIdentity,
    TextBlock,
    ToolCall,
    ToolCallBlock,
    ToolResultBlock,
)
from kgent.records.conversation import (
    INTERRUPTED,
    ArchivedBlock,
    ArchivedCall,
    ArchivedMessage,
    call_block,
    message,
    open_calls,
    result_block,
    text_block,
)

_INVALID = ("invalid_arguments", "invalid_reason")
_RETURNED = (OPAQUE, "redacted_thinking", "raw_tool_call_id")
"""Metadata of blocks that the provider needs when the conversation is continued."""


def messages_of(nodes: Iterable[Node]) -> list[ArchivedMessage]:
    """Convert a path of agent_core's loop to messages."""
    return [
        message(
            node.role.value,
            node.created_at.isoformat(timespec="microseconds"),
            *(_block_of(block) for block in node.content),
            is_cut_off=node.is_partial and node.role is Role.ASSISTANT,
        )
        for node in nodes
    ]


def _block_of(block: Any) -> ArchivedBlock:
    match block:
        case TextBlock(text=text):
            return text_block(text)
        case ReasoningBlock(text=text, signature=signature, metadata=metadata):
            data: JsonObject = {"signature": signature} if signature else {}
            if signature or any(metadata.get(key) for key in _RETURNED):
                data |= {"metadata": metadata}
            return text_block(text, "reasoning", provider_data=data)
        case ToolCallBlock(tool_call_id=call_id, name=name, metadata=metadata):
            arguments = metadata.get("invalid_arguments", block.arguments)
            kept = {key: value for key, value in metadata.items() if key not in _INVALID}
            data = {"metadata": kept} if any(kept.get(key) for key in _RETURNED) else {}
            return call_block(call_id, name, arguments, provider_data=data)
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


def nodes_of(messages: Sequence[ArchivedMessage], run: RunIdentity) -> list[Node]:
    """Convert the messages of earlier attempts to a path, without replies that were cut off."""
    path: list[Node] = []
    for one in messages:
        if one.get("cut_off"):
            continue
        content = [found for block in one["content"] if (found := _read_block(block)) is not None]
        if not content:
            continue
        name = one["content"][0].get("name")
        draft = Draft(Role(one["role"]), content, metadata={"tool_name": name} if name else {})
        path.append(
            build_node(
                draft,
                JournalRedactor(Redactor({})),  # no secret has reached the archive
                estimate_blocks,
                session_id=run.session_id,
                agent_id=run.agent_id,
                run_id=run.run_id,
                parent_id=path[-1].node_id if path else None,
            )
        )
    return path


def _read_block(block: ArchivedBlock) -> ContentBlock | None:
    data = block.get("provider_data") or {}
    match block:
        case {"type": "text", "text": str() as text}:
            return TextBlock(text=text)
        case {"type": "reasoning", "text": str() as text} if data:
            return ReasoningBlock(
                text=text, signature=data.get("signature"), metadata=data.get("metadata") or {}
            )
        case {"type": "tool_call"}:
            call = read_call(block)
            return ToolCallBlock(
                tool_call_id=call.tool_call_id,
                name=call.name,
                arguments=call.arguments,
                metadata=call.metadata,
            )
        case {"type": "tool_result", "tool_call_id": call_id, "content": content}:
            metadata: dict[str, Any] = {"tool_name": block.get("name", "")}
            is_error = bool(block.get("is_error"))
            if is_error and _code_of(content) == INTERRUPTED:
                metadata["reason"] = EFFECT_UNKNOWN
            return ToolResultBlock(
                tool_call_id=call_id,
                is_error=is_error,
                content=[JsonBlock(data=content)],
                metadata=metadata,
            )
        case _:
            return None


def read_call(block: ArchivedCall) -> ToolCall:
    """Convert a block of a call."""
    data = block.get("provider_data") or {}
    metadata, arguments = dict(data.get("metadata") or {}), block["arguments"]
    if not isinstance(arguments, dict):
        metadata, arguments = metadata | {"invalid_arguments": arguments}, {}
    return ToolCall(
        tool_call_id=block["tool_call_id"],
        name=block["name"],
        arguments=cast("dict[str, Any]", arguments),
        metadata=metadata,
    )


def calls_to_make(messages: Sequence[ArchivedMessage]) -> list[ToolCall]:
    """Return the calls of the conversation that have no result."""
    return [read_call(block) for block in open_calls(messages)]


def _code_of(content: object) -> object:
    return table(table(content).get("error")).get("code")
