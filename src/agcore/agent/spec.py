"""The parts of an agent that a session needs."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import iscoroutinefunction, signature
from typing import TYPE_CHECKING, Any, Generic, cast

from typing_extensions import TypeVar

from agcore.agent.error import AgentConfigError, raise_as_agent_error
from agcore.agent.runtime import RuntimeBundle
from agcore.declarations import read_as_attributes
from agcore.llm import AgentSettings, TurnSettings
from agcore.tools import AnyTool, BaseTool, Tool, Toolset, make_tool
from agent_core.errors import ArgumentError
from agent_core.text import kind_of, not_a_list, with_article
from agent_core.tools.registry import Handler
from agent_core.tools.toolsets import TOOLS_ARE
from agent_core.types import OutputT, ToolDefinition

if TYPE_CHECKING:
    from agent_core.loop.options import Instructions

DepsT = TypeVar("DepsT", default=None)
"""The type of `ToolContext.deps` in the tools of an agent."""


Usable = (
    str | AnyTool | Toolset | ToolDefinition | tuple[ToolDefinition, Handler] | Callable[..., Any]
)
"""A name or a definition of a known tool, a tool, a toolset, a function to make a tool of, or a
definition with its handler."""


_USABLE = (str, BaseTool, Tool, Toolset, ToolDefinition, tuple)


class RunSettings(AgentSettings, total=False):
    """Options of one run of an agent.

    `history` is the conversation before the message, for a session that keeps none: messages of
    this package, of OpenAI's or Anthropic's interface, or nodes of the engine.
    """

    instructions: "Instructions | None"
    tools: Collection[Usable] | None
    history: Sequence[Any]


class TurnArgs(RunSettings, Generic[DepsT], total=False):
    """Keywords of the runs of a session; `deps` is the object at `ToolContext.deps`."""

    deps: DepsT | None


class SessionSettings(TurnSettings, total=False):
    """Options of one turn of a session."""

    tools: Collection[Usable] | None
    history: Sequence[Any]


class AgentSpec(Generic[DepsT, OutputT]):
    """An agent's name, tools and answer type.

    Attributes:
        name: for people and for notices. A subclass may write `def name(self)` instead.
        system_prompt: describes the role to the model; None for an agent that only has tools. A
            subclass may write `def system_prompt(self)` instead; it is called every turn.
        written_instructions: a function that writes more of the system prompt for every turn.
        tools: functions, tools, toolsets, and names of tools of its bundle; None means all tools
            of the bundle.
        output_type: the type of its answers, or their JSON Schema; None is text.
        deps_type: the type of the `deps` that its runs need; None: of any type, or none.
        settings: options of its turns, on top of the bundle's configuration.
    """

    name: str = "agent"
    system_prompt: str | None = None
    written_instructions: "Instructions | None" = None
    tools: Collection[Usable] | None = None
    output_type: Any = None
    deps_type: Any = None
    settings: AgentSettings = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        read_as_attributes(cls, "name", "system_prompt", error=AgentConfigError)

    def tool_definitions(self, bundle: RuntimeBundle) -> list[ToolDefinition]:
        """Return the tools of a bundle that the model may call."""
        offered = bundle.tool_registry.definitions()
        if self.tools is None:
            return offered
        named = read_tools(self.tools).names
        return [tool for tool in offered if tool.name in named]


def check_parts(agent: Any, bundle: Any) -> None:
    """Check that agent and bundle are what a session expects, however a class is written.

    Raises:
        AgentError: `Config`; one is not, with the cure.
    """
    if not isinstance(bundle, RuntimeBundle):
        message = f"{kind_of(bundle)} is not a bundle; AgentBuilder().….build() makes one"
        raise AgentConfigError(message)
    if isinstance(agent, type):
        raise AgentConfigError(f"{agent.__name__} is a class; pass an agent, {agent.__name__}()")
    kind = type(agent).__name__
    name, prompt = getattr(agent, "name", None), getattr(agent, "system_prompt", None)
    if AgentSpec not in type(agent).__mro__:
        raise AgentConfigError(
            f"{with_article(kind)} is not an agent; derive the class from agcore.Agent"
        )
    if not isinstance(name, str):
        raise AgentConfigError(
            f"the name of {with_article(kind)} is not text; set `name` in its class"
        )
    if not isinstance(prompt, str | None):
        message = f"the system prompt of {with_article(kind)} is neither text nor None"
        raise AgentConfigError(f"{message}; set `system_prompt` in its class")
    own = getattr(agent.tool_definitions, "__func__", None)
    if own is AgentSpec[Any, Any].tool_definitions:
        return
    cure = "write `def tool_definitions(self, bundle)`, without async"
    try:
        signature(agent.tool_definitions).bind(bundle)
    except TypeError as error:
        message = f"{kind}.tool_definitions cannot be called with the bundle: {error}"
        raise AgentConfigError(f"{message}; {cure}") from error
    if iscoroutinefunction(agent.tool_definitions):
        raise AgentConfigError(f"{kind}.tool_definitions is not awaited; {cure}")
    offered: object = agent.tool_definitions(bundle)
    if not isinstance(offered, Sequence) or not all(
        isinstance(each, ToolDefinition) for each in cast("Sequence[object]", offered)
    ):
        message = f"{kind}.tool_definitions returns no list of ToolDefinition; select some of"
        raise AgentConfigError(f"{message} `bundle.tool_registry.definitions()`")


@dataclass(frozen=True, slots=True)
class GivenTools:
    """The `tools` of an agent or a run, by kind.

    Attributes:
        names: of tools that are known without being given.
        own: tools, with functions made into tools.
        toolsets: to be opened.
    """

    names: list[str] = field(default_factory=list[str])
    own: list[AnyTool] = field(default_factory=list[AnyTool])
    toolsets: list[Toolset] = field(default_factory=list[Toolset])


def check_tools(given: object) -> None:
    """Check that tools are a list of what may be a tool, without making tools of functions.

    Raises:
        AgentError: `Config`; the message shows what is accepted.
    """
    if given is None:
        return
    with raise_as_agent_error():
        if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
            raise ArgumentError(not_a_list("tools", cast("object", given)), "tools")
        if not isinstance(given, Collection):
            return
        for at, each in enumerate(cast("Collection[object]", given)):
            if not isinstance(each, _USABLE) and not callable(each):
                message = f"tools[{at}] is {kind_of(each)}; {TOOLS_ARE}"
                if hasattr(type(each), "as_tool"):
                    message += "; an agent's as_tool() is one"
                raise ArgumentError(message, "tools")


def read_tools(given: Iterable[Usable] | None) -> GivenTools:
    """Return tools by kind.

    Raises:
        AgentError: `Config`; a function cannot be a tool, or `given` is one tool instead of a list.
    """
    check_tools(given)
    found = GivenTools()
    for each in given or ():
        match each:
            case str() | ToolDefinition():
                found.names.append(each if isinstance(each, str) else each.name)
            case Toolset():
                found.toolsets.append(each)
            case _:
                with raise_as_agent_error():
                    found.own.append(make_tool(each))
    return found
