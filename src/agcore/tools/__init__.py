"""Tools: definitions, permissions, calls and results."""

from agcore.tools.error import ToolError
from agcore.tools.mcp import McpClient, open_toolset
from agcore.tools.permissions import Permission, PermissionChecker, PermissionConfig
from agcore.tools.registry import (
    AnyTool,
    BaseTool,
    ToolEntry,
    ToolInvocation,
    ToolOutcome,
    ToolRegistry,
    make_tool,
)
from agent_core.tools import Tool, ToolContext, ToolReturn, tool
from agent_core.tools.toolsets import Toolset

__all__ = [
    "AnyTool",
    "BaseTool",
    "McpClient",
    "Permission",
    "PermissionChecker",
    "PermissionConfig",
    "Tool",
    "ToolContext",
    "ToolEntry",
    "ToolError",
    "ToolInvocation",
    "ToolOutcome",
    "ToolRegistry",
    "ToolReturn",
    "Toolset",
    "make_tool",
    "open_toolset",
    "tool",
]
