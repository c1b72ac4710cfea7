"""The conversation tree: nodes that were written, and drafts that were not yet."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from agent_core.types.common import Frozen, SafeId, UtcDatetime
from agent_core.types.content import ContentBlock, TextBlock, ToolCallBlock, ToolResultBlock


class Role(StrEnum):
    """Who speaks. System text is not a node: it is composed anew for every request."""

    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class NodeType(StrEnum):
    """What kind of conversation item a node is. All but `message` are put there by core."""

    MESSAGE = "message"
    SKILL_CONTEXT = "skill_context"
    MEMORY_CONTEXT = "memory_context"
    INSTRUCTION_CONTEXT = "instruction_context"
    COMPACTION = "compaction"
    CHILD_RESULT = "child_result"
    PLAN_INSTRUCTION = "plan_instruction"
    TASK_INSTRUCTION = "task_instruction"
    TASK_BOARD = "task_board"
    SYSTEM_NOTE = "system_note"


@dataclass(frozen=True, slots=True)
class Draft:
    """A conversation item that has not been written down yet."""

    role: Role
    content: Sequence[ContentBlock]
    node_type: NodeType = NodeType.MESSAGE
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    token_count: int = 0

    @property
    def text(self) -> str:
        """Its text blocks, joined."""
        return "".join(block.text for block in self.content if isinstance(block, TextBlock))


class Node(Frozen):
    """A written conversation item: a draft with a place in the tree.

    `node_seq` is the session's order of writing, from 1; it is 0 while the write is under way.
    `token_count` is core's own estimate of what the content costs in a request.
    """

    node_id: SafeId
    session_id: SafeId
    node_seq: int
    parent_id: SafeId | None
    agent_id: SafeId
    run_id: SafeId | None
    role: Role
    node_type: NodeType = NodeType.MESSAGE
    content: list[ContentBlock]
    metadata: dict[str, Any] = {}
    token_count: int = 0
    created_at: UtcDatetime

    @property
    def is_partial(self) -> bool:
        """Cut off before its end: kept for people, never sent to a model again."""
        metadata = self.metadata
        return bool(metadata.get("partial") or metadata.get("aborted") or metadata.get("failed"))

    @property
    def calls(self) -> list[ToolCallBlock]:
        """The tool calls this node asks for."""
        return [block for block in self.content if isinstance(block, ToolCallBlock)]

    @property
    def results(self) -> list[ToolResultBlock]:
        """The tool results this node holds."""
        return [block for block in self.content if isinstance(block, ToolResultBlock)]

    @property
    def text(self) -> str:
        """Its text blocks, joined."""
        return "".join(block.text for block in self.content if isinstance(block, TextBlock))


def user_text(text: str, node_type: NodeType = NodeType.MESSAGE, **metadata: Any) -> Draft:
    """A draft that says `text` in the user's role."""
    return Draft(Role.USER, (TextBlock(text=text),), node_type, metadata)
