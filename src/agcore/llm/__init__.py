"""Models: how they are called, what they answer, what it costs, and what may go wrong."""

from agcore.errors import LlmError, RequestBlockedError, ToolTurnLimitError
from agcore.llm.context import CompactConfig
from agcore.llm.cycle import CycleConfig, LlmCycle, RunTools, ToolRunner
from agcore.llm.history import ChatRedactor
from agcore.llm.hooks import Hook, HookContext, HookEvent, HookExecutor, HookResult
from agcore.llm.providers import (
    AdapterProvider,
    LlmProvider,
    MockProvider,
    ProviderRegistry,
    SecretSource,
    tool_call_reply,
)
from agcore.llm.types import (
    AssistantTextDelta,
    CallSettings,
    ChatChunk,
    ChatMessage,
    ChatRequest,
    ChatResponse,
    ChatRole,
    CostTracker,
    CostUpdate,
    Error,
    FinishReason,
    Prompt,
    StreamEvent,
    ToolCallChunk,
    ToolExecutionCompleted,
    ToolExecutionStarted,
    TurnComplete,
    TurnSettings,
)
from agent_core.config.models import ModelConfig, RetryConfig
from agent_core.types import ToolCall, ToolDefinition, ToolResult, Usage

__all__ = [
    "AdapterProvider",
    "AssistantTextDelta",
    "CallSettings",
    "ChatChunk",
    "ChatMessage",
    "ChatRedactor",
    "ChatRequest",
    "ChatResponse",
    "ChatRole",
    "CompactConfig",
    "CostTracker",
    "CostUpdate",
    "CycleConfig",
    "Error",
    "FinishReason",
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
    "Prompt",
    "ProviderRegistry",
    "RequestBlockedError",
    "RetryConfig",
    "RunTools",
    "SecretSource",
    "StreamEvent",
    "ToolCall",
    "ToolCallChunk",
    "ToolDefinition",
    "ToolExecutionCompleted",
    "ToolExecutionStarted",
    "ToolResult",
    "ToolRunner",
    "ToolTurnLimitError",
    "TurnComplete",
    "TurnSettings",
    "Usage",
    "tool_call_reply",
]
