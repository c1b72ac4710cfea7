"""Messages, requests and replies of the toolkit.

A message is made of the engine's content blocks. It adds the roles `system` and `developer`, which
the engine keeps apart from the conversation, and an author's name.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypedDict

from agent_core.api.arguments import checks_arguments
from agent_core.types import (
    NO_USAGE,
    Budget,
    ContentBlock,
    Frozen,
    ImageBlock,
    OutputFormat,
    OutputMode,
    ReasoningEffort,
    StopReason,
    TextBlock,
    ToolCall as ToolCall,
    ToolCallBlock,
    ToolDefinition as ToolDefinition,
    ToolResult as ToolResult,
    ToolResultBlock,
    Usage as Usage,
)
from agent_core.types.budget import SharedBudget
from agent_core.types.content import text_in

if TYPE_CHECKING:
    from agent_core.extensions import Extension
    from agent_core.loop.guards import RunGuard
    from agent_core.loop.options import Instructions
    from agent_core.loop.validators import OutputValidator


class ChatRole(StrEnum):
    """The role of a message's author."""

    SYSTEM = "system"
    DEVELOPER = "developer"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


Prompt = str | Sequence[TextBlock | ImageBlock]
"""A user's message: text, or texts and images."""


class ChatMessage(Frozen):
    """One message. `metadata` is never sent to a model."""

    role: ChatRole
    content: list[ContentBlock]
    name: str | None = None
    metadata: dict[str, Any] = {}

    @classmethod
    def system_text(cls, text: str) -> "ChatMessage":
        """Build a system message."""
        return cls(role=ChatRole.SYSTEM, content=[TextBlock(text=text)])

    @classmethod
    def developer_text(cls, text: str) -> "ChatMessage":
        """Build a developer message: like system, for services with both roles."""
        return cls(role=ChatRole.DEVELOPER, content=[TextBlock(text=text)])

    @classmethod
    def user_text(cls, text: str, **metadata: Any) -> "ChatMessage":
        """Build a user message."""
        return cls(role=ChatRole.USER, content=[TextBlock(text=text)], metadata=metadata)

    @classmethod
    def assistant_text(cls, text: str, tool_calls: Iterable[ToolCall] = ()) -> "ChatMessage":
        """Build a reply of the model: text, and the tools it calls."""
        content: list[ContentBlock] = [TextBlock(text=text)] if text else []
        content += [
            ToolCallBlock(tool_call_id=c.tool_call_id, name=c.name, arguments=c.arguments)
            for c in tool_calls
        ]
        return cls(role=ChatRole.ASSISTANT, content=content)

    @classmethod
    def tool_text(cls, tool_call_id: str, text: str, *, is_error: bool = False) -> "ChatMessage":
        """Build the answer to one tool call, as text."""
        block = ToolResultBlock(
            tool_call_id=tool_call_id, content=[TextBlock(text=text)], is_error=is_error
        )
        return cls(role=ChatRole.TOOL, content=[block])

    @classmethod
    def tool_results(cls, results: Iterable[ToolResult]) -> "ChatMessage":
        """Build the answers to all calls of an assistant message, in the order of the calls."""
        facts = (result.model_dump(exclude={"tool_name"}) for result in results)
        return cls(role=ChatRole.TOOL, content=[ToolResultBlock(**each) for each in facts])

    @property
    def text(self) -> str:
        """Its text blocks, joined."""
        return text_in(self.content)

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The tools it calls."""
        calls = (block for block in self.content if isinstance(block, ToolCallBlock))
        return [ToolCall(**block.model_dump(exclude={"type"})) for block in calls]


OpenaiChatMessage = ChatMessage
"""`ChatMessage`, by the name that it has in AG Core."""

ContentField = list[ContentBlock]
"""The content of a message: blocks of text, images, tool calls and their results."""


class FinishReason(StrEnum):
    """Reason why a reply ended."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CONTENT_FILTER = "content_filter"

    @classmethod
    def of(cls, stop: StopReason) -> "FinishReason":
        """Convert the engine's stop reason to one of the four."""
        match stop:
            case StopReason.MAX_TOKENS:
                return cls.LENGTH
            case StopReason.TOOL_USE:
                return cls.TOOL_CALLS
            case StopReason.CONTENT_FILTER:
                return cls.CONTENT_FILTER
            case StopReason.END_TURN | StopReason.STOP_SEQUENCE | StopReason.ERROR:
                return cls.STOP


@checks_arguments(constructor=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """The settings of a request, and of all requests of a cycle.

    Attributes:
        model: None means the provider's own.
        tool_choice: `auto`, `none`, `required`, or the name of one tool.
        stop: texts at which a reply ends.
        provider_options: keyed by provider, as in `agent_core`.

    Raises:
        ArgumentError: a setting has a wrong type.
    """

    model: str | None = None
    temperature: float | None = None
    seed: int | None = None
    reasoning: ReasoningEffort | None = None
    max_output_tokens: int | None = None
    tool_choice: str | None = None
    stop: Sequence[str] = ()
    provider_options: dict[str, Any] = field(default_factory=dict[str, Any])

    def by_name(self) -> dict[str, Any]:
        """Return the settings by their names."""
        return {name: getattr(self, name) for name in MODEL_SETTINGS}


MODEL_SETTINGS: Sequence[str] = tuple(ModelSettings.__dataclass_fields__)
"""Names of the settings, which the engine's requests use, too."""


@checks_arguments(constructor=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest(ModelSettings):
    """Everything a provider needs for one reply, beside the settings of `ModelSettings`.

    Attributes:
        messages: system and developer messages included, in any position.
        tools: the tools that the model may call.
        output: the form of a typed answer; None for text.
    """

    messages: Sequence[ChatMessage]
    tools: Sequence[ToolDefinition] = ()
    output: OutputFormat | None = None


class RequestSettings(TypedDict, total=False):
    """Settings that a request may change from its configuration; see `ChatRequest`."""

    temperature: float | None
    seed: int | None
    reasoning: ReasoningEffort | None
    max_output_tokens: int | None
    tool_choice: str | None
    stop: Sequence[str]
    provider_options: dict[str, Any]


class CallSettings(RequestSettings, total=False):
    """`RequestSettings`, with another model of the provider."""

    model: str | None


class AgentSettings(RequestSettings, total=False):
    """`RequestSettings`, with options of an agent's runs; see `agent_core.RunOptions`."""

    disabled_tools: Sequence[str]
    output_mode: OutputMode
    output_retries: int
    output_validators: "Sequence[OutputValidator]"
    budget: Budget | SharedBudget | None
    max_turns: int | None
    guards: "Sequence[RunGuard]"
    extensions: "Sequence[Extension]"
    metadata: Mapping[str, Any]


class TurnSettings(CallSettings, AgentSettings, total=False):
    """Settings and options that one submission may change."""

    instructions: "Instructions | None"
    output_type: Any
    deps: Any


@dataclass(frozen=True, slots=True)
class ChatResponse:
    """A finished reply.

    Attributes:
        message: the model's message.
        usage: tokens and cost of the call.
        stop_reason: the reason why the reply ended.
        output: the typed answer; None if no type was requested.
    """

    message: ChatMessage
    usage: Usage = field(default_factory=Usage)
    stop_reason: FinishReason | None = FinishReason.STOP
    output: Any = None

    @property
    def text(self) -> str:
        """The text of the reply."""
        return self.message.text

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The tools the model calls."""
        return self.message.tool_calls


class CostTracker:
    """A running sum of usage."""

    def __init__(self) -> None:
        self._total, self._calls = NO_USAGE, 0

    def add(self, usage: Usage) -> None:
        """Count one more call."""
        self._total = self._total.plus(usage)
        self._calls += 1

    def total(self) -> Usage:
        """Return the tokens of all calls."""
        return self._total

    @property
    def calls(self) -> int:
        """Number of counted calls."""
        return self._calls

    def reset(self) -> None:
        """Reset the sum to zero."""
        self._total, self._calls = NO_USAGE, 0
