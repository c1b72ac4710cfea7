"""Models: requests and replies, their costs, and their errors."""

from agcore.llm.compact import CompactConfig
from agcore.llm.cycle import CycleConfig, LlmCycle, RunTools, ToolRunner
from agcore.llm.error import LlmError, RequestBlockedError, ToolTurnLimitError
from agcore.llm.history import ChatRedactor
from agcore.llm.hooks import Hook, HookContext, HookEvent, HookExecutor, HookResult
from agcore.llm.provider import (
    AdapterProvider,
    LlmProvider,
    MockProvider,
    ProviderRegistry,
    SecretSource,
    tool_call_reply,
)
from agcore.llm.stream import (
    AssistantTextDelta,
    ChatChunk,
    CostUpdate,
    Error,
    StreamEvent,
    ToolCallChunk,
    ToolExecutionCompleted,
    ToolExecutionStarted,
    TurnComplete,
)
from agcore.llm.types import (
    AgentSettings,
    CallSettings,
    ChatMessage,
    ChatRequest,
    ChatResponse,
    ChatRole,
    ContentField,
    CostTracker,
    FinishReason,
    OpenaiChatMessage,
    Prompt,
    RequestSettings,
    TurnSettings,
)
from agent_core.config.models import ModelConfig, RetryConfig
from agent_core.types import ToolCall, ToolDefinition, ToolResult, Usage

__all__ = [
    "AdapterProvider",
    "AgentSettings",
    "AssistantTextDelta",
    "CallSettings",
    "ChatChunk",
    "ChatMessage",
    "ChatRedactor",
    "ChatRequest",
    "ChatResponse",
    "ChatRole",
    "CompactConfig",
    "ContentField",
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
    "OpenaiChatMessage",
    "Prompt",
    "ProviderRegistry",
    "RequestBlockedError",
    "RequestSettings",
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
