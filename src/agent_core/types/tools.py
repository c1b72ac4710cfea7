"""Tools as data: what is offered to a model, what it asks for, what it gets back."""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from agent_core.types.common import ErrorPayload, Frozen, SafeId
from agent_core.types.content import ContentBlock

ToolName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.\-]{1,256}$")]
"""A canonical tool name: dotted, like `code.read_file` or `mcp.<server>.<tool>`."""


class ToolPermission(StrEnum):
    """Whether a tool only looks, or may change something."""

    READONLY = "readonly"
    WRITE = "write"


class ToolDefinition(Frozen):
    """A tool as the model sees it; `input_schema` is a JSON Schema of an object."""

    name: ToolName
    description: str
    input_schema: dict[str, Any] = Field(
        default_factory=lambda: {"type": "object", "properties": {}}
    )
    permission: ToolPermission = ToolPermission.WRITE
    tags: set[str] = set()
    metadata: dict[str, Any] = {}


class ToolCall(Frozen):
    """A complete call: the name is canonical, the arguments are parsed."""

    tool_call_id: SafeId
    name: str
    arguments: dict[str, Any] = {}
    metadata: dict[str, Any] = {}


class ToolResult(Frozen):
    """What a call answered. Core sets `tool_call_id` and `tool_name` itself."""

    tool_call_id: str = ""
    tool_name: str = ""
    content: list[ContentBlock] = []
    is_error: bool = False
    error: ErrorPayload | None = None
    metadata: dict[str, Any] = {}
