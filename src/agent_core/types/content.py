"""Content blocks: what a message is made of, for every provider alike."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from agent_core.types.common import ErrorPayload, Frozen, SafeId


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
"""One part of a message or a result; `type` says which."""


class UserMessage(Frozen):
    """What a caller says to an agent."""

    content: str | list[ContentBlock]
    metadata: dict[str, Any] = {}
