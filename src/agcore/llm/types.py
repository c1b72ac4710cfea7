"""Messages, requests and replies as everybody in the toolkit sees them.

A message is made of the engine's content blocks; what is added here are the two roles a request
may hold beside the conversation, `system` and `developer`, and a speaker's name.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from agent_core.types import (
    ContentBlock,
    Frozen,
    StopReason,
    TextBlock,
    ToolCall,
    ToolCallBlock,
    ToolDefinition,
    ToolResult,
    ToolResultBlock,
    Usage as CoreUsage,
)


class ChatRole(StrEnum):
    """Who speaks in a message."""

    SYSTEM = "system"
    DEVELOPER = "developer"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class ChatMessage(Frozen):
    """One message. `metadata` stays with us; a model never sees it."""

    role: ChatRole
    content: list[ContentBlock]
    name: str | None = None
    metadata: dict[str, Any] = {}

    @classmethod
    def system_text(cls, text: str) -> "ChatMessage":
        """A system message."""
        return cls(role=ChatRole.SYSTEM, content=[TextBlock(text=text)])

    @classmethod
    def developer_text(cls, text: str) -> "ChatMessage":
        """A developer message: like system, for services that tell them apart."""
        return cls(role=ChatRole.DEVELOPER, content=[TextBlock(text=text)])

    @classmethod
    def user_text(cls, text: str, **metadata: Any) -> "ChatMessage":
        """A user message."""
        return cls(role=ChatRole.USER, content=[TextBlock(text=text)], metadata=metadata)

    @classmethod
    def assistant_text(cls, text: str, tool_calls: Iterable[ToolCall] = ()) -> "ChatMessage":
        """What the model said, and the tools it asked for."""
        content: list[ContentBlock] = [TextBlock(text=text)] if text else []
        content += [
            ToolCallBlock(tool_call_id=c.tool_call_id, name=c.name, arguments=c.arguments)
            for c in tool_calls
        ]
        return cls(role=ChatRole.ASSISTANT, content=content)

    @classmethod
    def tool_text(cls, tool_call_id: str, text: str, *, is_error: bool = False) -> "ChatMessage":
        """The answer to one tool call, as text."""
        block = ToolResultBlock(
            tool_call_id=tool_call_id, content=[TextBlock(text=text)], is_error=is_error
        )
        return cls(role=ChatRole.TOOL, content=[block])

    @classmethod
    def tool_results(cls, results: Iterable[ToolResult]) -> "ChatMessage":
        """The answers to all calls of one assistant message, in the order of the calls."""
        blocks: list[ContentBlock] = [
            ToolResultBlock(
                tool_call_id=result.tool_call_id,
                is_error=result.is_error,
                content=result.content,
                error=result.error,
                metadata=result.metadata,
            )
            for result in results
        ]
        return cls(role=ChatRole.TOOL, content=blocks)

    @property
    def text(self) -> str:
        """Its text blocks, joined."""
        return "".join(block.text for block in self.content if isinstance(block, TextBlock))

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The tools it asks for."""
        return [
            ToolCall(
                tool_call_id=block.tool_call_id,
                name=block.name,
                arguments=block.arguments,
                metadata=block.metadata,
            )
            for block in self.content
            if isinstance(block, ToolCallBlock)
        ]


class Usage(CoreUsage):
    """Tokens, as the engine counts them, under the names many services use."""

    @classmethod
    def from_input_output(cls, input_tokens: int, output_tokens: int) -> "Usage":
        """Usage of a call that says no more than this."""
        return cls(
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            total_tokens=input_tokens + output_tokens,
        )

    @classmethod
    def of(cls, usage: CoreUsage) -> "Usage":
        """The same figures, from the engine."""
        return cls(**dict(usage))

    def plus(self, other: CoreUsage) -> "Usage":
        """The sum of both; the raw reports of single calls are not carried along."""
        return Usage.of(super().plus(other))

    @property
    def prompt_tokens(self) -> int:
        """What the model was given: `input_tokens`."""
        return self.input_tokens

    @property
    def completion_tokens(self) -> int:
        """What it wrote: `output_tokens`."""
        return self.output_tokens


class FinishReason(StrEnum):
    """Why a reply ended."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CONTENT_FILTER = "content_filter"

    @classmethod
    def of(cls, stop: StopReason) -> "FinishReason":
        """The engine's stop reason, told in four words."""
        match stop:
            case StopReason.MAX_TOKENS:
                return cls.LENGTH
            case StopReason.TOOL_USE:
                return cls.TOOL_CALLS
            case StopReason.CONTENT_FILTER:
                return cls.CONTENT_FILTER
            case StopReason.END_TURN | StopReason.STOP_SEQUENCE | StopReason.ERROR:
                return cls.STOP


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """Everything a provider needs for one reply.

    Attributes:
        messages: system and developer messages included, wherever they stand.
        tools: what the model may ask for.
        tool_choice: `auto`, `none`, `required`, or the name of one tool.
        model: None means the provider's own.
        provider_options: keyed by provider, as in `agent_core`.
    """

    messages: Sequence[ChatMessage]
    tools: Sequence[ToolDefinition] = ()
    tool_choice: str | None = None
    model: str | None = None
    temperature: float | None = None
    max_output_tokens: int | None = None
    stop: Sequence[str] = ()
    provider_options: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class ChatResponse:
    """A finished reply."""

    message: ChatMessage
    usage: Usage = field(default_factory=Usage)
    stop_reason: FinishReason | None = FinishReason.STOP

    @property
    def text(self) -> str:
        """What the model said."""
        return self.message.text

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The tools the model asks for."""
        return self.message.tool_calls


@dataclass(frozen=True, slots=True)
class ToolCallChunk:
    """A piece of a tool call. Pieces with the same index belong together.

    The id and the name come with the first piece, the arguments are JSON cut anywhere.
    """

    index: int
    tool_call_id: str | None = None
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class ChatChunk:
    """A piece of a reply while it streams in. The last one has the finish reason."""

    text: str = ""
    tool_calls: Sequence[ToolCallChunk] = ()
    usage: Usage | None = None
    finish_reason: FinishReason | None = None
