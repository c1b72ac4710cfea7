"""Content blocks, and the nodes of the conversation tree that are made of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from agent_core.types.common import ErrorPayload, Frozen, SafeId, UtcDatetime


class TextBlock(Frozen):
    """Plain text."""

    type: Literal["text"] = "text"
    text: str


class JsonBlock(Frozen):
    """Structured data, usually a tool's answer."""

    type: Literal["json"] = "json"
    data: Any
    summary: str | None = None
    artifact_id: SafeId | None = None


class ToolCallBlock(Frozen):
    """The model asks for a tool. `name` is canonical (`code.read_file`)."""

    type: Literal["tool_call"] = "tool_call"
    tool_call_id: SafeId
    name: str
    arguments: dict[str, Any] = {}
    metadata: dict[str, Any] = {}


class ArtifactRefBlock(Frozen):
    """Something too large to stand in a message; the file is kept as an artifact."""

    type: Literal["artifact_ref"] = "artifact_ref"
    artifact_id: SafeId
    summary: str | None = None
    mime_type: str | None = None


class ReasoningBlock(Frozen):
    """A model's reasoning, returned unchanged to the provider that wrote it."""

    type: Literal["reasoning"] = "reasoning"
    text: str
    signature: str | None = None
    metadata: dict[str, Any] = {}


class ImageBlock(Frozen):
    """An image in a user message: base64 `data`, or the artifact that holds it."""

    type: Literal["image"] = "image"
    mime_type: str
    data: str | None = None
    artifact_id: SafeId | None = None

    @model_validator(mode="after")
    def _one_source(self) -> "ImageBlock":
        if (self.data is None) == (self.artifact_id is None):
            raise ValueError("an image needs exactly one of data and artifact_id")
        return self


class ToolResultBlock(Frozen):
    """The answer to one tool call; every call has exactly one."""

    type: Literal["tool_result"] = "tool_result"
    tool_call_id: SafeId
    is_error: bool = False
    content: list["ContentBlock"] = []
    error: ErrorPayload | None = None
    metadata: dict[str, Any] = {}


ContentBlock = Annotated[
    TextBlock
    | JsonBlock
    | ToolCallBlock
    | ToolResultBlock
    | ArtifactRefBlock
    | ReasoningBlock
    | ImageBlock,
    Field(discriminator="type"),
]
"""One part of a message or a result; `type` tells them apart."""


class UserMessage(Frozen):
    """A message from a caller to an agent."""

    content: str | list[ContentBlock]
    metadata: dict[str, Any] = {}


class Role(StrEnum):
    """The author of a node. System text is not a node: it is composed anew for every request."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFlags:
    """What is special about a conversation item; on disk, keys of its metadata.

    Attributes:
        partial: cut off before its end.
        aborted: a cancellation was why.
        failed: an error was why.
        synthetic: not written by the user, a model or a tool.
        abort_reason: why it was aborted.
        reason: the code of why core wrote it.
    """

    partial: bool = False
    aborted: bool = False
    failed: bool = False
    synthetic: bool = False
    abort_reason: str | None = None
    reason: str | None = None

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> Self:
        """The flags among the metadata."""
        return cls(**{key: metadata[key] for key in _FLAGS if key in metadata})

    def as_metadata(self) -> dict[str, Any]:
        """The flags that are set, as they are stored."""
        return {key: value for key in _FLAGS if (value := getattr(self, key))}


_FLAGS = tuple(flag.name for flag in fields(NodeFlags))
_NO_FLAGS = NodeFlags()


@dataclass(frozen=True, slots=True)
class Draft:
    """A conversation item that has not been written down yet."""

    role: Role
    content: Sequence[ContentBlock]
    node_type: NodeType = NodeType.MESSAGE
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    token_count: int = 0
    flags: NodeFlags = _NO_FLAGS

    @property
    def stored_metadata(self) -> dict[str, Any]:
        """The metadata with the flags among them."""
        return {**self.metadata, **self.flags.as_metadata()}

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
    def flags(self) -> NodeFlags:
        """What is special about it."""
        return NodeFlags.of(self.metadata) if self.metadata else _NO_FLAGS

    @property
    def is_partial(self) -> bool:
        """Cut off before its end: kept for people, never sent to a model again."""
        metadata = self.metadata  # asked of every node of a path, for every request
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
    """A draft of `text` in the user's role."""
    return Draft(Role.USER, (TextBlock(text=text),), node_type, metadata)
