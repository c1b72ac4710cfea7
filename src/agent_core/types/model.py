"""The protocol between core and models: requests and events, without any vendor's types."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from agent_core.text.json_text import JsonSchema
from agent_core.types.content import ContentBlock, ErrorPayload, Frozen, Role, Usage
from agent_core.types.options import OutputMode, ReasoningEffort
from agent_core.types.tools import ToolCall, ToolDefinition


class SystemBlock(Frozen):
    """One piece of the system prompt. Static blocks come first and never change during a run."""

    block_id: str
    source: str
    content: str
    priority: int = 0
    dynamic: bool = False
    token_count: int = 0
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])


class ModelMessage(Frozen):
    """One message of a request.

    A `tool` message holds the results of all calls of the assistant message before it, in the order
    of the calls. Messages of one conversation are the same objects in every turn, so that an
    adapter can reuse what it derived from them.
    """

    role: Role
    content: list[ContentBlock]
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])

    if TYPE_CHECKING:  # string values are accepted, too

        def __init__(
            self,
            *,
            role: Role | Literal["user", "assistant", "tool"],
            content: Sequence[ContentBlock],
            metadata: dict[str, Any] = ...,
        ) -> None: ...


EFFECT_UNKNOWN = "interrupted_effect_unknown"
"""Metadata value of a call's result: its process died before the call ended."""

NEVER_BEGAN = "the run was cancelled before this call began; it had no effect"
"""Message of a call that was not made because its run was cancelled."""

FINAL_ANSWER = "final_answer"
"""The tool that a model calls with its typed answer, if the service has no mode for that.

Also metadata of a reply that has made this call.
"""
REFUSED_CALL = "refused_call"
"""Metadata of a call that the service could not parse; `invalid_reason` has its words."""

STOP_WORDS = "stop_words"
"""Key of what a service says about a filter or a refusal, in the metadata of the reply."""

HELD_ANSWER = "held_answer"
"""Metadata of a reply whose final answer came with other calls, and counts once they are made."""


class OutputFormat(Frozen):
    """The required form of a run's answer, as part of a request.

    Attributes:
        name: name of the answer's type.
        description: description of the answer.
        output_schema: a JSON Schema, always of an object.
        mode: `native` requests the service's own schema mode, `tool` the tool `final_answer`;
            `auto` includes the tool for services without such a mode.
    """

    name: str
    description: str = ""
    output_schema: JsonSchema
    mode: OutputMode = "auto"


class ModelRequest(Frozen):
    """Everything a provider needs for one reply.

    `provider_options` is keyed by provider; an adapter refuses unknown keys. `tool_choice` is
    `auto`, `none`, `required` or the canonical name of one tool. An adapter that constrains its
    service to the schema of `output` omits the tool `final_answer`; an adapter that ignores
    `output` offers it like the others. `provider_tools` are tools that the service runs itself. If
    the service does not support one of these, `temperature` or `seed`, the adapter omits it.
    `reasoning`, `stop` and `max_output_tokens` apply, or the request is refused.
    """

    model: str
    system: list[SystemBlock] = []
    messages: list[ModelMessage]
    tools: list[ToolDefinition] = []
    tool_choice: str | None = None
    output: OutputFormat | None = None
    provider_tools: list[str] = []
    temperature: float | None = None
    seed: int | None = None
    reasoning: ReasoningEffort | None = None
    max_output_tokens: int | None = None
    stop: list[str] = []
    provider_options: dict[str, Any] = Field(default_factory=dict[str, Any])
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])


class StopReason(StrEnum):
    """The reason why a model stopped."""

    END_TURN = "end_turn"
    TOOL_USE = "tool_use"
    MAX_TOKENS = "max_tokens"
    STOP_SEQUENCE = "stop_sequence"
    CONTENT_FILTER = "content_filter"
    ERROR = "error"


StopWord = Literal["end_turn", "tool_use", "max_tokens", "stop_sequence", "content_filter", "error"]
"""`StopReason` as string values."""


class ModelStarted(Frozen):
    """A call is about to be made: always the first event, before anything is sent.

    `native_output` means that the service is constrained to the schema of the request's `output`.
    `left_out` has the tools that the service is not told of, each with the reason, once in a run.
    """

    type: Literal["model_started"] = "model_started"
    provider: str
    model: str
    native_output: bool = False
    left_out: Mapping[str, str] = {}


class ModelTextDelta(Frozen):
    """More of the answer: all text of one network read."""

    type: Literal["model_text_delta"] = "model_text_delta"
    text: str


class ModelReasoningDelta(Frozen):
    """More of the model's reasoning."""

    type: Literal["model_reasoning_delta"] = "model_reasoning_delta"
    text: str


class ToolCallDelta(Frozen):
    """A piece of a tool call, for display only; never executed."""

    type: Literal["tool_call_delta"] = "tool_call_delta"
    tool_call_id: str
    name: str
    arguments_fragment: str


class ModelRetry(Frozen):
    """A failed attempt, numbered `attempt`; the next one starts in `delay_ms`."""

    type: Literal["model_retry"] = "model_retry"
    attempt: int
    delay_ms: int
    error: ErrorPayload


class ModelCompleted(Frozen):
    """A finished reply. `content` has every block in order, `tool_calls` the complete calls."""

    type: Literal["model_completed"] = "model_completed"
    content: list[ContentBlock] = []
    tool_calls: list[ToolCall] = []
    usage: Usage = Field(default_factory=Usage)
    stop_reason: StopReason = StopReason.END_TURN
    raw_stop_reason: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            type: Literal["model_completed"] = ...,  # noqa: A002 - the field's name
            content: Sequence[ContentBlock] = ...,
            tool_calls: Sequence[ToolCall] = ...,
            usage: Usage = ...,
            stop_reason: StopReason | StopWord = ...,
            raw_stop_reason: str | None = ...,
            metadata: dict[str, Any] = ...,
        ) -> None: ...


class ModelFailed(Frozen):
    """A call that has finally failed; text that arrived before was already shown."""

    type: Literal["model_failed"] = "model_failed"
    error: ErrorPayload


ModelEvent = Annotated[
    ModelStarted
    | ModelTextDelta
    | ModelReasoningDelta
    | ToolCallDelta
    | ModelRetry
    | ModelCompleted
    | ModelFailed,
    Field(discriminator="type"),
]
"""An event of a provider's stream; `ModelCompleted` or `ModelFailed` is always the last."""
