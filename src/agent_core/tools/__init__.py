"""Tools: what a model may do, how a call is checked, and the built-in tools."""

from agent_core.tools.base import Action, Concurrency, Tool, ToolContext, ToolOutput, ToolReturn
from agent_core.tools.decorator import FunctionTool, tool
from agent_core.tools.registry import Toolbox, ToolRegistry, tool_from
from agent_core.tools.results import wrap

__all__ = [
    "Action",
    "Concurrency",
    "FunctionTool",
    "Tool",
    "ToolContext",
    "ToolOutput",
    "ToolRegistry",
    "ToolReturn",
    "Toolbox",
    "tool",
    "tool_from",
    "wrap",
]
