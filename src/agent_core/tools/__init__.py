"""Tools: what a model may do, how a call is checked, and the built-in tools.

The decorator is loaded when it is first used: a program without functions as tools needs none.
"""

from typing import TYPE_CHECKING

from agent_core.loading import lazy_names
from agent_core.tools.base import Action, Concurrency, Tool, ToolAnswer, ToolContext, ToolReturn
from agent_core.tools.registry import Toolbox, ToolRegistry, tool_from
from agent_core.tools.results import wrap

if TYPE_CHECKING:
    from agent_core.tools.decorator import FunctionTool, tool

__all__ = [
    "Action",
    "Concurrency",
    "FunctionTool",
    "Tool",
    "ToolAnswer",
    "ToolContext",
    "ToolRegistry",
    "ToolReturn",
    "Toolbox",
    "tool",
    "tool_from",
    "wrap",
]

if not TYPE_CHECKING:  # a checker would take any name for one of these
    __getattr__ = lazy_names(
        __name__, dict.fromkeys(("FunctionTool", "tool"), "agent_core.tools.decorator")
    )
