"""Tools: what a model may do, how a call is checked, and what the built-in ones do."""

from agent_core.tools.base import (
    Action,
    ArtifactWriter,
    Concurrency,
    Tool,
    ToolContext,
    ToolOutput,
    ToolReturn,
)
from agent_core.tools.decorator import FunctionTool, tool
from agent_core.tools.registry import Handler, Toolbox, ToolRegistry, apply_override, tool_from
from agent_core.tools.results import storable, storable_text, wrap

__all__ = [
    "Action",
    "ArtifactWriter",
    "Concurrency",
    "FunctionTool",
    "Handler",
    "Tool",
    "ToolContext",
    "ToolOutput",
    "ToolRegistry",
    "ToolReturn",
    "Toolbox",
    "apply_override",
    "storable",
    "storable_text",
    "tool",
    "tool_from",
    "wrap",
]
