"""An async runtime for tool-using agents.

    from agent_core import AgentRuntime

    async with AgentRuntime(project_dir=".") as runtime:
        handle = await runtime.start("What does this project do?")
        async for event in handle.events():
            print(event.event_type)
        print(handle.status, handle.error or handle.result_text)

Names are imported when they are first used, so that `import agent_core` itself costs nothing.
"""

TYPE_CHECKING = False  # type checkers know the name, and `typing` is slow to import

if TYPE_CHECKING:
    from agent_core.api import AgentRuntime, RunError, RunHandle, RunResult, Session
    from agent_core.api.pages import Pages
    from agent_core.api.tasks import Tasks
    from agent_core.api.worker import Worker
    from agent_core.budgets.pool import BudgetPool
    from agent_core.config.models import Config, ModelConfig
    from agent_core.errors import (
        AgentCoreError,
        ArgumentError,
        ConfigError,
        ErrorCode,
        PermissionDeniedError,
        ProviderError,
        SchemaError,
        StorageError,
        TaskError,
        ToolError,
        ToolRetry,
    )
    from agent_core.extensions import AskModel, Extension, ExtensionContext, GuardStop, RunTool
    from agent_core.loop.guards import (
        GuardContext,
        on_answer,
        on_message,
        on_tool_call,
        on_tool_result,
    )
    from agent_core.loop.options import Agent, AnyAgent, AnyModel, RunOptions
    from agent_core.mcp.toolsets import McpHttp, McpStdio
    from agent_core.permissions import PermissionCallback
    from agent_core.providers.base import ProviderAdapter, ProviderRegistry
    from agent_core.tasks.log_format import TaskEvent
    from agent_core.tasks.model import TaskDocument, TaskStatus, TaskStep, TaskStepStatus
    from agent_core.tools.base import OfferContext, Tool, ToolContext, ToolReturn
    from agent_core.tools.decorator import tool
    from agent_core.tools.registry import ToolRegistry
    from agent_core.tools.toolsets import AnyTool, Toolset
    from agent_core.types import (
        AgentDefinition,
        ArtifactRefBlock,
        Budget,
        CancelResult,
        CitationBlock,
        CleanupResult,
        ContentBlock,
        Decision,
        DeleteSessionResult,
        EndReason,
        ErrorPayload,
        EventType,
        FileChange,
        ImageBlock,
        InspectResult,
        JsonBlock,
        ModelCompleted,
        ModelEvent,
        ModelFailed,
        ModelMessage,
        ModelReasoningDelta,
        ModelRequest,
        ModelRetry,
        ModelStarted,
        ModelTextDelta,
        Node,
        Page,
        PermissionDecision,
        PermissionRequest,
        ProviderToolBlock,
        ReasoningBlock,
        ReplayResult,
        Role,
        RunMode,
        RunReport,
        RunStatus,
        RuntimeEvent,
        SessionPage,
        StopReason,
        SwitchResult,
        SystemBlock,
        TextBlock,
        ToolCall,
        ToolCallBlock,
        ToolCallDelta,
        ToolDefinition,
        ToolPermission,
        ToolResult,
        ToolResultBlock,
        UndoState,
        Usage,
        UserMessage,
        WorkspaceDiff,
    )
else:
    from agent_core.loading import lazy_names

_HOMES = {
    **dict.fromkeys(
        ("AgentRuntime", "RunError", "RunHandle", "RunResult", "Session"), "agent_core.api"
    ),
    **dict.fromkeys(("Config", "ModelConfig"), "agent_core.config.models"),
    "Pages": "agent_core.api.pages",
    "Tasks": "agent_core.api.tasks",
    "TaskEvent": "agent_core.tasks.log_format",
    **dict.fromkeys(
        ("TaskDocument", "TaskStatus", "TaskStep", "TaskStepStatus"), "agent_core.tasks.model"
    ),
    "Worker": "agent_core.api.worker",
    "BudgetPool": "agent_core.budgets.pool",
    **dict.fromkeys(("Agent", "AnyAgent", "AnyModel", "RunOptions"), "agent_core.loop.options"),
    "PermissionCallback": "agent_core.permissions",
    **dict.fromkeys(
        ("GuardContext", "on_answer", "on_message", "on_tool_call", "on_tool_result"),
        "agent_core.loop.guards",
    ),
    **dict.fromkeys(
        ("AskModel", "Extension", "ExtensionContext", "GuardStop", "RunTool"),
        "agent_core.extensions",
    ),
    **dict.fromkeys(
        (
            *("AgentCoreError", "ArgumentError", "ConfigError", "ErrorCode"),
            "PermissionDeniedError",
            *("ProviderError", "SchemaError", "StorageError", "TaskError", "ToolError"),
            "ToolRetry",
        ),
        "agent_core.errors",
    ),
    **dict.fromkeys(("ProviderAdapter", "ProviderRegistry"), "agent_core.providers.base"),
    **dict.fromkeys(("OfferContext", "Tool", "ToolContext", "ToolReturn"), "agent_core.tools.base"),
    "tool": "agent_core.tools.decorator",
    "ToolRegistry": "agent_core.tools.registry",
    **dict.fromkeys(("AnyTool", "Toolset"), "agent_core.tools.toolsets"),
    **dict.fromkeys(("McpHttp", "McpStdio"), "agent_core.mcp.toolsets"),
}

__all__ = [
    "Agent",
    "AgentCoreError",
    "AgentDefinition",
    "AgentRuntime",
    "AnyAgent",
    "AnyModel",
    "AnyTool",
    "ArgumentError",
    "ArtifactRefBlock",
    "AskModel",
    "Budget",
    "BudgetPool",
    "CancelResult",
    "CitationBlock",
    "CleanupResult",
    "Config",
    "ConfigError",
    "ContentBlock",
    "Decision",
    "DeleteSessionResult",
    "EndReason",
    "ErrorCode",
    "ErrorPayload",
    "EventType",
    "Extension",
    "ExtensionContext",
    "FileChange",
    "GuardContext",
    "GuardStop",
    "ImageBlock",
    "InspectResult",
    "JsonBlock",
    "McpHttp",
    "McpStdio",
    "ModelCompleted",
    "ModelConfig",
    "ModelEvent",
    "ModelFailed",
    "ModelMessage",
    "ModelReasoningDelta",
    "ModelRequest",
    "ModelRetry",
    "ModelStarted",
    "ModelTextDelta",
    "Node",
    "OfferContext",
    "Page",
    "Pages",
    "PermissionCallback",
    "PermissionDecision",
    "PermissionDeniedError",
    "PermissionRequest",
    "ProviderAdapter",
    "ProviderError",
    "ProviderRegistry",
    "ProviderToolBlock",
    "ReasoningBlock",
    "ReplayResult",
    "Role",
    "RunError",
    "RunHandle",
    "RunMode",
    "RunOptions",
    "RunReport",
    "RunResult",
    "RunStatus",
    "RunTool",
    "RuntimeEvent",
    "SchemaError",
    "Session",
    "SessionPage",
    "StopReason",
    "StorageError",
    "SwitchResult",
    "SystemBlock",
    "TaskDocument",
    "TaskError",
    "TaskEvent",
    "TaskStatus",
    "TaskStep",
    "TaskStepStatus",
    "Tasks",
    "TextBlock",
    "Tool",
    "ToolCall",
    "ToolCallBlock",
    "ToolCallDelta",
    "ToolContext",
    "ToolDefinition",
    "ToolError",
    "ToolPermission",
    "ToolRegistry",
    "ToolResult",
    "ToolResultBlock",
    "ToolRetry",
    "ToolReturn",
    "Toolset",
    "UndoState",
    "Usage",
    "UserMessage",
    "Worker",
    "WorkspaceDiff",
    "on_answer",
    "on_message",
    "on_tool_call",
    "on_tool_result",
    "tool",
]


if not TYPE_CHECKING:  # hidden from type checkers, which would accept any name otherwise
    __getattr__ = lazy_names(__name__, dict.fromkeys(__all__, "agent_core.types") | _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
