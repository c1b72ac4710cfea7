"""The parts of an agent that a session needs."""

from collections.abc import Callable, Collection, Iterable
from typing import Any, Generic

from typing_extensions import TypeVar

from agcore.agent.error import AgentConfigError, raise_as_agent_error
from agcore.agent.runtime import RuntimeBundle
from agcore.llm import AgentSettings, TurnSettings
from agcore.tools import AnyTool, Toolset, make_tool
from agent_core.tools.registry import Handler
from agent_core.types import OutputT, ToolDefinition

DepsT = TypeVar("DepsT", default=None)
"""The type of `ToolContext.deps` in the tools of an agent."""


Usable = (
    str | AnyTool | Toolset | ToolDefinition | tuple[ToolDefinition, Handler] | Callable[..., Any]
)
"""A name or a definition of a known tool, a tool, a toolset, a function to make a tool of, or a
definition with its handler."""


class RunSettings(AgentSettings, total=False):
    """Options of one run of an agent."""

    instructions: str | None
    tools: Collection[Usable] | None


class SessionSettings(TurnSettings, total=False):
    """Options of one turn of a session."""

    tools: Collection[Usable] | None


class AgentSpec(Generic[DepsT, OutputT]):
    """An agent's name, tools and answer type.

    Attributes:
        name: for people and for notices.
        system_prompt: describes the role to the model; None for an agent that only has tools.
        tools: functions, tools, toolsets, and names of tools of its bundle; None means all tools
            of the bundle.
        output_type: the type of its answers, or their JSON Schema; None is text.
        settings: options of its turns, on top of the bundle's configuration.
    """

    name: str = "agent"
    system_prompt: str | None = None
    tools: Collection[Usable] | None = None
    output_type: Any = None
    settings: AgentSettings = {}

    def tool_definitions(self, bundle: RuntimeBundle) -> list[ToolDefinition]:
        """Return the tools of a bundle that the model may call."""
        offered = bundle.tool_registry.definitions()
        named = None if self.tools is None else named_tools(self.tools)
        return [tool for tool in offered if named is None or tool.name in named]


def own_tools(given: Iterable[Usable]) -> list[AnyTool]:
    """Return the tools in `given`, functions made into tools, without names and toolsets.

    Raises:
        AgentError: `Config`; a function cannot be a tool.
    """
    others = str | Toolset | ToolDefinition
    with raise_as_agent_error():
        return [make_tool(each) for each in given if not isinstance(each, others)]


def toolsets_of(given: Iterable[Usable]) -> list[Toolset]:
    """Return the toolsets in `given`."""
    return [each for each in given if isinstance(each, Toolset)]


def named_tools(given: Iterable[Usable]) -> list[str]:
    """Return the names of known tools in `given`, which holds names, definitions and other tools.

    Raises:
        AgentError: `Config`; `given` is one name instead of a list.
    """
    if isinstance(given, str):
        raise AgentConfigError(f"`tools` is a list; write [{given!r}]")
    named = [each for each in given if isinstance(each, str | ToolDefinition)]
    return [each if isinstance(each, str) else each.name for each in named]
