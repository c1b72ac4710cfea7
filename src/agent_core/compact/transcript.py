"""A conversation as text, for a model that reads it and does not take part in it.

The nodes themselves would not work: some services refuse tool calls in a request without tools, and
a model that sees a conversation wants to continue it.
"""

import json
from collections.abc import Iterable, Iterator, Sequence

from agent_core.compact.cut import is_in_view
from agent_core.text import estimate_text, shorten_text
from agent_core.types import (
    WORDS,
    ArtifactRefBlock,
    ContentBlock,
    ImageBlock,
    JsonBlock,
    Node,
    NodeType,
    Role,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    is_user_message,
)

_CALL_BYTES = 600
_RESULT_BYTES = 1600
_STATE = {True: "failed", False: "result"}
_ATTACHED = {
    NodeType.SKILL_CONTEXT: "name",
    NodeType.MEMORY_CONTEXT: "ids",
    NodeType.TOOL_CONTEXT: "name",
    NodeType.INSTRUCTION_CONTEXT: "path",
    NodeType.PLAN_INSTRUCTION: "template_id",
    NodeType.TASK_INSTRUCTION: "template_id",
}
"""Nodes that stay in view anyway, so that their name is enough."""

_RECALL = "internal.recall_memory"
"""Its results are attached to the run that may see them, and are left out of summaries."""


def render_transcript(nodes: Iterable[Node]) -> list[str]:
    """Render each node in view as a paragraph; long calls and results lose their middle."""
    return [text for node in nodes if is_in_view(node) and (text := _render_node(node))]


def split_transcript(paragraphs: Sequence[str], room: int) -> list[str]:
    """Join paragraphs to texts of at most `room` tokens; a longer paragraph is split."""
    joined: list[str] = []
    current: list[str] = []
    left = room
    for paragraph in _split_long(paragraphs, room):
        cost = estimate_text(paragraph) + 1
        if cost > left and current:
            joined.append("\n\n".join(current))
            current, left = [], room
        current.append(paragraph)
        left -= cost
    if current:
        joined.append("\n\n".join(current))
    return joined


def _split_long(paragraphs: Iterable[str], room: int) -> Iterator[str]:
    for paragraph in paragraphs:
        cost = estimate_text(paragraph) + 1
        size = max(len(paragraph) * room // (cost + 1), 1) if cost > room else len(paragraph)
        for start in range(0, len(paragraph), size):
            yield paragraph[start : start + size]


def _render_node(node: Node) -> str:
    if node.node_type in _ATTACHED:
        name = node.metadata.get(_ATTACHED[node.node_type])
        return f"[{node.node_type}] {name}" if name else ""
    text = "\n".join(filter(None, map(_render_block, node.content)))
    if not text or node.role is Role.TOOL:
        return text
    if is_user_message(node) and WORDS in node.metadata:  # the rest is not marked in the text
        return f"[user]\n{node.words}\n\n[content that came with it]\n{text}"
    speaker = node.role.value if node.node_type is NodeType.MESSAGE else node.node_type.value
    return f"[{speaker}]\n{text}"


def _render_block(block: ContentBlock) -> str:
    text = ""
    match block:
        case TextBlock():
            text = block.text.strip()
        case ToolCallBlock(name=name, arguments=arguments):
            text = f"[call {name}] {shorten_text(_to_json(arguments), _CALL_BYTES)}"
        case ToolResultBlock(content=content):
            text = "\n".join(filter(None, map(_render_block, content)))
            if block.error is not None:
                text = f"{block.error.code}: {block.error.message}\n{text}".strip()
            state, name = block.is_error, block.metadata.get("tool_name", "")
            if name == _RECALL and not block.is_error:
                text = ""
            text = f"[{_STATE[state]} {name}] {shorten_text(text, _RESULT_BYTES)}".rstrip()
        case JsonBlock(data=data):
            text = _to_json(data)
        case ArtifactRefBlock(artifact_id=artifact_id, summary=summary):
            text = f"[artifact {artifact_id}] {summary or ''}".rstrip()
        case ImageBlock():
            text = "[image]"
        case _:  # reasoning is not part of the conversation
            pass
    return text


def _to_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
