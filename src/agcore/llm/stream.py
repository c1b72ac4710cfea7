"""What somebody who watches a turn gets to see."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agcore.llm.errors import LlmError
from agcore.llm.types import ChatResponse, FinishReason, Usage
from agent_core.types import ToolResult


@dataclass(frozen=True, slots=True)
class AssistantTextDelta:
    """More of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolExecutionStarted:
    """A tool the model asked for begins to run."""

    tool_call_id: str
    tool_name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolExecutionCompleted:
    """A tool has answered, or failed: `result.is_error`."""

    tool_call_id: str
    tool_name: str
    result: ToolResult


@dataclass(frozen=True, slots=True)
class CostUpdate:
    """One model call is over. `usage` is its own, `total` that of the whole cycle."""

    usage: Usage
    total: Usage


@dataclass(frozen=True, slots=True)
class TurnComplete:
    """The turn has ended well; always the last event then."""

    reason: FinishReason | None
    response: ChatResponse


@dataclass(frozen=True, slots=True)
class Error:
    """The turn has failed; always the last event then."""

    message: str
    error: LlmError


StreamEvent = (
    AssistantTextDelta
    | ToolExecutionStarted
    | ToolExecutionCompleted
    | CostUpdate
    | TurnComplete
    | Error
)
"""What a streamed submission yields; `TurnComplete` or `Error` ends it."""
