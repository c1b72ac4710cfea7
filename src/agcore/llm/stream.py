"""Pieces of a streamed reply, and the events of a streamed submission."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agcore.llm.error import LlmError
from agcore.llm.types import ChatResponse, FinishReason
from agent_core.types import ToolResult, Usage


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


@dataclass(frozen=True, slots=True)
class AssistantTextDelta:
    """More of the answer; pieces that wait for a slow reader are joined."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolExecutionStarted:
    """A tool the model asked for begins to run."""

    tool_call_id: str
    tool_name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolExecutionCompleted:
    """A call has its result; `result.is_error` if it failed or was not run."""

    tool_call_id: str
    tool_name: str
    result: ToolResult


@dataclass(frozen=True, slots=True)
class CostUpdate:
    """One model call has ended: `usage` of the call, and `total` of the whole cycle."""

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
"""Events of a streamed submission; `TurnComplete` or `Error` is the last one."""
