"""A conversation as text for somebody who was not there: the compact agent reads, it does not act.

The nodes themselves would not do: some services refuse tool calls in a request without tools,
and a model that sees a conversation wants to continue it.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence

from agent_core.compact.cut import is_in_view
from agent_core.types import (
    ArtifactRefBlock,
    ContentBlock,
    ImageBlock,
    JsonBlock,
    Node,
    NodeType,
    ReasoningBlock,
    Role,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
)

_CALL_CHARS = 600
_RESULT_CHARS = 1600
_ATTACHED = {
    NodeType.SKILL_CONTEXT: "name",
    NodeType.MEMORY_CONTEXT: "ids",
    NodeType.INSTRUCTION_CONTEXT: "path",
    NodeType.PLAN_INSTRUCTION: "template_id",
    NodeType.TASK_INSTRUCTION: "template_id",
}
"""What stays in view anyway: its name is enough."""


def transcript(nodes: Iterable[Node]) -> list[str]:
    """Each node in view as a paragraph; long calls and results lose their middle."""
    return [text for node in nodes if is_in_view(node) and (text := _paragraph(node))]


def pieces(paragraphs: Sequence[str], room: int, estimate: Callable[[str], int]) -> list[str]:
    """Join paragraphs to texts of at most `room` tokens; one that is longer is taken apart."""
    joined: list[str] = []
    current: list[str] = []
    left = room
    for paragraph in _short_enough(paragraphs, room, estimate):
        cost = estimate(paragraph) + 1
        if cost > left and current:
            joined.append("\n\n".join(current))
            current, left = [], room
        current.append(paragraph)
        left -= cost
    if current:
        joined.append("\n\n".join(current))
    return joined


def _short_enough(
    paragraphs: Iterable[str], room: int, estimate: Callable[[str], int]
) -> Iterator[str]:
    for paragraph in paragraphs:
        cost = estimate(paragraph) + 1
        size = max(len(paragraph) * room // (cost + 1), 1) if cost > room else len(paragraph)
        for start in range(0, len(paragraph), size):
            yield paragraph[start : start + size]


def _paragraph(node: Node) -> str:
    if node.node_type in _ATTACHED:
        name = node.metadata.get(_ATTACHED[node.node_type], "")
        return f"[{node.node_type}] {name}"
    said = "\n".join(filter(None, map(_said, node.content)))
    if not said or node.role is Role.TOOL:
        return said
    speaker = node.role.value if node.node_type is NodeType.MESSAGE else node.node_type.value
    return f"[{speaker}]\n{said}"


def _said(block: ContentBlock) -> str:
    match block:
        case TextBlock(text=text):
            return text.strip()
        case ToolCallBlock():
            arguments = json.dumps(block.arguments, ensure_ascii=False, default=str)
            return f"[call {block.name}] {_middle_cut(arguments, _CALL_CHARS)}"
        case ToolResultBlock():
            return _result(block)
        case ReasoningBlock():
            return ""
        case JsonBlock() | ArtifactRefBlock() | ImageBlock():
            return _shown(block)


def _shown(block: JsonBlock | ArtifactRefBlock | ImageBlock) -> str:
    match block:
        case JsonBlock(data=data):
            return json.dumps(data, ensure_ascii=False, default=str)
        case ArtifactRefBlock():
            return f"[artifact {block.artifact_id}] {block.summary or ''}".rstrip()
        case ImageBlock():
            return "[image]"


def _result(block: ToolResultBlock) -> str:
    name = block.metadata.get("tool_name", "")
    said = "\n".join(filter(None, map(_said, block.content)))
    if block.error is not None:
        said = f"{block.error.code}: {block.error.message}\n{said}".strip()
    state = "failed" if block.is_error else "result"
    return f"[{state} {name}] {_middle_cut(said, _RESULT_CHARS)}"


def _middle_cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    head, tail = limit * 2 // 3, limit // 3
    return f"{text[:head]}\n[… {len(text) - head - tail} characters …]\n{text[-tail:]}"
