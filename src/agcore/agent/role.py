"""What a session has to know of an agent."""

from collections.abc import Callable, Collection
from typing import Any, Generic

from typing_extensions import TypeVar

from agcore.agent.bundle import RuntimeBundle
from agcore.errors import raise_as_agent_error
from agcore.llm import AgentSettings
from agcore.tools import AnyTool, Toolset, make_tool
from agent_core.types import OutputT, ToolDefinition

DepsT = TypeVar("DepsT", default=None)
"""What the tools of an agent find at `ToolContext.deps`."""


Usable = str | AnyTool | Toolset | Callable[..., Any]
"""A name of a tool, a tool, a toolset, or a function to make a tool of."""


class Role(Generic[DepsT, OutputT]):
    """Who an agent is, which tools it may use, and what its answers are.

    Attributes:
        name: for people and for notices.
        system_prompt: describes the role to the model; None for an agent of tools alone.
        tools: what it may use: functions, tools, toolsets, and names of tools of the bundle it
            works in; None means all of the bundle's.
        output_type: the type of its answers, or their JSON Schema; None is text.
        settings: what its turns do differently from the bundle's configuration.
    """

    name: str = "agent"
    system_prompt: str | None = None
    tools: Collection[Usable] | None = None
    output_type: Any = None
    settings: AgentSettings = {}

    def own_tools(self) -> list[AnyTool]:
        """The tools that it brings along, made of functions where it has such.

        Raises:
            AgentError: `Config`; a function cannot be a tool.
        """
        with raise_as_agent_error():
            return [
                make_tool(each) for each in self.tools or () if not isinstance(each, str | Toolset)
            ]

    def toolsets(self) -> list[Toolset]:
        """The toolsets that it brings along."""
        return [each for each in self.tools or () if isinstance(each, Toolset)]

    def tool_definitions(self, bundle: RuntimeBundle) -> list[ToolDefinition]:
        """What the model is offered of a bundle's tools; it cannot call others of them either."""
        offered = bundle.tool_registry.definitions()
        return [tool for tool in offered if self.tools is None or tool.name in self.tools]
