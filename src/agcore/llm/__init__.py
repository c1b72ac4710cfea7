"""Models: how they are asked, what they answer, what it costs, and what may go wrong."""

from agcore.llm.adapter import AdapterProvider
from agcore.llm.cleaning import HoldsSecrets
from agcore.llm.compact import CompactConfig
from agcore.llm.cost import CostTracker
from agcore.llm.cycle import CycleConfig, LlmCycle
from agcore.llm.errors import LlmError, RequestBlockedError, ToolTurnLimitError
from agcore.llm.hooks import Hook, HookContext, HookEvent, HookExecutor, HookResult
from agcore.llm.mock import MockProvider, tool_call_reply
from agcore.llm.provider import LlmProvider, ProviderRegistry
from agcore.llm.rounds import StepwiseToolRunner, ToolRound, ToolRunner
from agcore.llm.stream import (
    AssistantTextDelta,
    CostUpdate,
    Error,
    StreamEvent,
    ToolExecutionCompleted,
    ToolExecutionStarted,
    TurnComplete,
)
from agcore.llm.types import (
    ChatChunk,
    ChatMessage,
    ChatRequest,
    ChatResponse,
    ChatRole,
    FinishReason,
    ToolCallChunk,
    Usage,
)
from agent_core.config.models import ModelConfig, RetryConfig
from agent_core.types import ToolCall, ToolDefinition, ToolResult

__all__ = [
    "AdapterProvider",
    "AssistantTextDelta",
    "ChatChunk",
    "ChatMessage",
    "ChatRequest",
    "ChatResponse",
    "ChatRole",
    "CompactConfig",
    "CostTracker",
    "CostUpdate",
    "CycleConfig",
    "Error",
    "FinishReason",
    "HoldsSecrets",
    "Hook",
    "HookContext",
    "HookEvent",
    "HookExecutor",
    "HookResult",
    "LlmCycle",
    "LlmError",
    "LlmProvider",
    "MockProvider",
    "ModelConfig",
    "ProviderRegistry",
    "RequestBlockedError",
    "RetryConfig",
    "StepwiseToolRunner",
    "StreamEvent",
    "ToolCall",
    "ToolCallChunk",
    "ToolDefinition",
    "ToolExecutionCompleted",
    "ToolExecutionStarted",
    "ToolResult",
    "ToolRound",
    "ToolRunner",
    "ToolTurnLimitError",
    "TurnComplete",
    "Usage",
    "tool_call_reply",
]
