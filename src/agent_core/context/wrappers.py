"""Core's own additions to a conversation, as a model reads them: a user message in a wrapper.

What stands inside is data, whoever wrote it. It is never raised to system level, and it cannot
close its wrapper.
"""

import re
from collections.abc import Iterable
from html import escape
from typing import Any, cast

from agent_core.text import json_bytes
from agent_core.types import (
    ArtifactRefBlock,
    ContentBlock,
    JsonBlock,
    ModelMessage,
    Node,
    NodeType,
    Role,
    TextBlock,
)

_TAGS = {
    NodeType.SKILL_CONTEXT: "skill",
    NodeType.MEMORY_CONTEXT: "memory",
    NodeType.TASK_BOARD: "task_board",
    NodeType.COMPACTION: "compaction_summary",
    NodeType.CHILD_RESULT: "child_result",
    NodeType.PLAN_INSTRUCTION: "plan_instruction",
    NodeType.TASK_INSTRUCTION: "task_instruction",
    NodeType.SYSTEM_NOTE: "system_note",
    NodeType.INSTRUCTION_CONTEXT: "instructions",
}
_ATTRIBUTES = {
    NodeType.SKILL_CONTEXT: ("name",),
    NodeType.MEMORY_CONTEXT: ("ids", "categories"),
    NodeType.INSTRUCTION_CONTEXT: ("path",),
}
_CLOSING = re.compile(r"<(?=\s*/\s*(?:" + "|".join(_TAGS.values()) + r")\b)", re.IGNORECASE)


def wrap(node_type: NodeType, text: str, **attributes: Any) -> str:
    """Put `text` between the tags of its type; lists become comma-separated values."""
    tag = _TAGS[node_type]
    named = "".join(f' {key}="{_value(value)}"' for key, value in attributes.items())
    return f"<{tag}{named}>\n{_CLOSING.sub('&lt;', text.strip())}\n</{tag}>"


def wrap_node(node: Node) -> str:
    """The text of a node of an inner type, in its wrapper."""
    names = _ATTRIBUTES.get(node.node_type, ())
    attributes = {name: node.metadata.get(name, "") for name in names}
    return wrap(node.node_type, plain_text(node.content), **attributes)


def synthetic_message(node: Node) -> ModelMessage:
    """A node of an inner type as the model gets it, marked as not written by the user."""
    return ModelMessage(
        role=Role.USER,
        content=[TextBlock(text=wrap_node(node))],
        metadata={
            "synthetic": True,
            "source_type": node.node_type.value,
            "node_id": node.node_id,
        },
    )


def board_message(text: str) -> ModelMessage:
    """The task board as it stands now: it follows the history and is no part of it."""
    return ModelMessage(
        role=Role.USER,
        content=[TextBlock(text=wrap(NodeType.TASK_BOARD, text))],
        metadata={"synthetic": True, "source_type": NodeType.TASK_BOARD.value},
    )


def kept_message(text: str) -> ModelMessage:
    """What must not be lost, before a history whose oldest exchanges are left out."""
    metadata = {"synthetic": True, "source_type": "kept"}
    return ModelMessage(role=Role.USER, content=[TextBlock(text=text)], metadata=metadata)


def plain_text(blocks: Iterable[ContentBlock]) -> str:
    """What of a content can be read as text; pictures and calls cannot."""
    parts: list[str] = []
    for block in blocks:
        match block:
            case TextBlock(text=text):
                parts.append(text)
            case JsonBlock(data=data):
                parts.append(json_bytes(data).decode("utf-8", "replace"))
            case ArtifactRefBlock():
                parts.append(f"[artifact {block.artifact_id}: {block.summary or 'no summary'}]")
            case _:
                pass
    return "\n".join(parts)


def _value(value: Any) -> str:
    shown = ",".join(map(str, cast("list[Any]", value))) if isinstance(value, list) else str(value)
    return escape(" ".join(shown.split()))
