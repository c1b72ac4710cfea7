"""An agent, and how it runs without a bundle."""

import re
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import aclosing
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Generic, Unpack, cast, overload

from typing_extensions import TypeVar

from agcore.agent.builder import build_bundle
from agcore.agent.error import AgentConfigError, AgentError, raise_as_agent_error
from agcore.agent.runtime import AgentConfig
from agcore.agent.session import AgentSession
from agcore.agent.spec import (
    AgentSpec,
    DepsT,
    RunSettings,
    TurnArgs,
    Usable,
    check_tools,
    read_tools,
)
from agcore.agent.streams import AgentStream
from agcore.llm import (
    AdapterProvider,
    AgentSettings,
    HookExecutor,
    LlmProvider,
    ModelConfig,
    Prompt,
    StreamEvent,
)
from agcore.llm.calls import CallerRun, adapter_of
from agcore.llm.types import MODEL_SETTINGS, ModelSettings
from agcore.memory import ConversationMemory
from agcore.tools import (
    BaseTool,
    PermissionChecker,
    PermissionConfig,
    Tool,
    ToolContext,
    ToolRegistry,
    tool,
)
from agcore.tools.error import ToolExecutionError
from agent_core.aio.loops import SharedLoop, require_no_loop
from agent_core.api.arguments import checks_arguments
from agent_core.api.handles import RunResult
from agent_core.callbacks import check_callback
from agent_core.config.model_names import model_fields
from agent_core.config.models import named_model
from agent_core.errors import ArgumentError
from agent_core.keywords import lists_keywords
from agent_core.loop.option_checks import hint_at_option
from agent_core.loop.options import Agent as EngineAgent, asked_options
from agent_core.providers.base import ProviderAdapter
from agent_core.text import kind_of, with_article
from agent_core.tools.base import Concurrency
from agent_core.tools.deps import check_deps_type
from agent_core.tools.registry import check_own_name
from agent_core.types import OutputT

if TYPE_CHECKING:
    from typing_extensions import TypeForm

    from agent_core.loop.options import AnyOutput, Instructions, Outputs

_threads = SharedLoop("agcore")
"""The event loop of `Agent.run_sync`."""

Model = str | ModelConfig | ProviderAdapter | LlmProvider
"""`provider:name`, a model configuration, an adapter of the engine, or one of the toolkit."""

_Deps = TypeVar("_Deps", default=None)
_Asked = TypeVar("_Asked")


class AgentParts(AgentSettings, Generic[DepsT], total=False):
    """Keywords of an agent but `output_type`: its parts, and default options of its turns."""

    system_prompt: str | None
    model: Model | None
    tools: Collection[Usable] | None
    hooks: HookExecutor | None
    permissions: PermissionConfig | None
    config: AgentConfig | None
    deps_type: "TypeForm[DepsT] | None"


class AllAgentParts(AgentParts[DepsT], Generic[DepsT], total=False):
    """Keywords of an agent."""

    output_type: Any


_OF_ENGINE = {each.name for each in fields(EngineAgent)}
"""Settings that an agent of the engine has, too."""

_PARTS = AllAgentParts.__annotations__.keys() - AgentSettings.__annotations__.keys()
"""Keywords that are attributes, too."""


class RunArgs(TurnArgs[DepsT], Generic[DepsT], total=False):
    """Keywords of an agent's runs; the runs of a session lack the last three."""

    conversation: ConversationMemory | None
    session_id: str | None
    model: Model | None


@checks_arguments(but=("run", "run_sync", "stream"))
class Agent(AgentSpec[DepsT, OutputT]):
    """A name, instructions, a model, tools and an answer type.

        agent = Agent("shop", "You sell lamps.", model="openai:gpt-5", tools=[stock])
        print(agent.run_sync("How many lamps are there?").output)

    Without a model it works in the sessions of a `RuntimeBundle`. A subclass may define `name` and
    `system_prompt`, and select tools in `tool_definitions`.

    Args:
        name: for people and for notices.
        instructions: describe the role to the model, as its system prompt; None for an agent that
            only has tools. A function of a context with `run` and `deps`, async or not, is called
            for every turn.
        system_prompt: the older name of `instructions`.
        model: the model of its own runs. A model given by name or configuration is opened and
            closed with each run or session; the caller opens and closes an object.
        tools: functions, tools, toolsets, and names of tools of its bundle; None means all tools
            of the bundle. A toolset is opened for each run, or once for
            a session that is used as a context manager, and always closed.
        output_type: the type of its answers, or their JSON Schema; text by default.
        deps_type: the type of `deps`, also for type checkers: a run without such an object is
            refused before the model is called.
        hooks: hooks of its own runs.
        permissions: the tools that its own runs may call, and the callback that is asked.
        config: limits and settings of its own runs.
        settings: default options of every turn, on top of `config`.

    Raises:
        AgentError: `Config`; an argument cannot be used (`details["option"]` names it), or the
            class defines as a property what is passed here.
    """

    model: Model | None = None
    hooks: HookExecutor | None = None
    permissions: PermissionConfig | None = None
    config: AgentConfig | None = None

    @overload
    def __init__(
        self,
        name: str | None = None,
        instructions: "Instructions | None" = None,
        *,
        output_type: None = None,
        **parts: "Unpack[AgentParts[DepsT]]",
    ) -> None: ...

    @overload
    def __init__(
        self,
        name: str | None = None,
        instructions: "Instructions | None" = None,
        *,
        output_type: "TypeForm[OutputT]",
        **parts: "Unpack[AgentParts[DepsT]]",
    ) -> None: ...

    @overload
    def __init__(
        self,
        name: str | None = None,
        instructions: "Instructions | None" = None,
        *,
        output_type: "Outputs[OutputT]",
        **parts: "Unpack[AgentParts[DepsT]]",
    ) -> None: ...

    @overload
    def __init__(
        self: "Agent[_Deps, Any]",
        name: str | None = None,
        instructions: "Instructions | None" = None,
        *,
        output_type: "AnyOutput",
        **parts: "Unpack[AgentParts[_Deps]]",
    ) -> None: ...

    @lists_keywords(AllAgentParts)
    def __init__(
        self,
        name: str | None = None,
        instructions: "Instructions | None" = None,
        **settings: Any,
    ) -> None:
        given = {each: settings.pop(each, None) for each in _PARTS}
        known = AgentSettings.__annotations__.keys()
        if unknown := settings.keys() - known:
            wrong = min(unknown)
            hint = hint_at_option(wrong, {*known, *_PARTS})
            raise TypeError(f"Agent() got an unexpected keyword argument {wrong!r}{hint}")
        given |= {"name": name, "settings": settings or None}
        with raise_as_agent_error():
            _check_parts(instructions, given)
        if callable(instructions):
            given["written_instructions"] = instructions
        elif given["system_prompt"] is None:
            given["system_prompt"] = instructions
        for attribute, value in given.items():
            if value is None:  # a subclass may define its own
                continue
            try:
                setattr(self, attribute, value)
            except AttributeError as error:
                message = f"{type(self).__name__} defines {attribute} itself; do not pass another"
                raise AgentConfigError(message) from error

    def session(
        self,
        session_id: str | None = None,
        *,
        conversation: ConversationMemory | None = None,
        model: Model | None = None,
        caller: CallerRun | None = None,
    ) -> AgentSession[DepsT, OutputT]:
        """Open a conversation with this agent alone, as in `async with agent.session()`.

        Args:
            session_id: letters, digits, `_` and `-`; a new one by default.
            conversation: keeps the history; without it turns are independent.
            model: overrides the agent's.
            caller: the run whose tool call the session answers.

        Raises:
            AgentError: `Config`; there is no model, or it or the session id is invalid.
        """
        chosen = model if model is not None else self.model
        if chosen is None and caller is not None:
            chosen = caller.provider
        if chosen is None:
            message = f"the agent {self.name!r} has no model; give it one, such as openai:gpt-5"
            raise AgentConfigError(message)
        if named := read_tools(self.tools).names:
            message = (
                f"the agent {self.name!r} names the tool {named[0]!r}; only a bundle has tools"
            )
            raise AgentConfigError(f"{message} by name, so give it the tool itself")
        with raise_as_agent_error():
            provider = _open_provider(chosen)
        bundle = build_bundle(
            {
                "provider": provider,
                "hook_executor": self.hooks or HookExecutor(),
                "tool_registry": ToolRegistry(permissions=self.permissions),
                "secrets": {} if caller is None else {**caller.secrets},
                "config": self.config or AgentConfig(),
            }
        )
        session = AgentSession(self, session_id, bundle, conversation=conversation, caller=caller)
        if isinstance(chosen, str | ModelConfig):
            session.own_provider()
        return session

    @property
    def engine_agent(self) -> EngineAgent[OutputT]:
        """The agent as a value of `agent_core`, for runs and runtimes of that package.

        Raises:
            AgentError: `Config`; it has hooks, or names tools of a bundle.
        """
        if self.hooks is not None:
            message = f"the agent {self.name!r} has hooks, which only run in the toolkit"
            raise AgentConfigError(message)
        given_tools = read_tools(self.tools)
        if named := given_tools.names:
            message = f"the agent {self.name!r} names the tool {named[0]!r} of a bundle"
            raise AgentConfigError(f"{message}; give it the tool itself")
        given: dict[str, Any] = {
            name: value for name, value in self.settings.items() if name in _OF_ENGINE
        }
        if self.permissions is not None:
            checks = PermissionChecker(self.permissions)
            given["extensions"] = [*given.get("extensions", ()), checks]
        tools = [*given_tools.own, *given_tools.toolsets]
        with raise_as_agent_error():
            return EngineAgent(
                re.sub(r"[^A-Za-z0-9_-]+", "_", self.name).strip("_")[:64] or "agent",
                self.written_instructions or self.system_prompt,
                model=None if self.model is None else adapter_of(self.model),
                tools=[each.engine_tool if isinstance(each, BaseTool) else each for each in tools],
                output_type=self.output_type,
                **given,
            )

    def as_tool(
        self, name: str | None = None, description: str | None = None, *, max_depth: int = 3
    ) -> Tool:
        """Return a tool with which another agent asks this one; its only argument is `message`.

        Each call is a separate session. It also counts against the calling run's budget, and is
        cancelled with that run; its costs and spans belong to that run. Without its own model it
        uses the caller's. Its tools see the caller's `deps`, and obey the caller's rules, deny list
        and questions in addition to its own permissions.

        Args:
            name: the tool's name; by default the agent's, with `_` for characters that a name
                cannot have.
            description: tells the calling model about it.
            max_depth: how many agents may call one another in a row.

        Raises:
            AgentError: `Config`; the tool cannot have that name, or `max_depth` is below 1.
        """
        with raise_as_agent_error():
            _check_own_tool(name, max_depth)
        own_name = name or re.sub(r"[^A-Za-z0-9_-]+", "_", self.name).strip("_") or "agent"
        about = f"Ask the agent {self.name}. It knows nothing but the message, and answers it."

        async def ask(message: str, context: ToolContext[Any]) -> Any:
            options, caller = RunSettings(), context.ask_agent
            caller = caller if isinstance(caller, CallerRun) else None
            if caller is not None and caller.depth >= max_depth:
                reason = f"{max_depth} agents have called one another; answer without another one"
                raise ToolExecutionError(own_name, reason)
            if caller is not None and isinstance(caller.guard, PermissionChecker):
                asks = self.permissions is None or self.permissions.ask is None
                guard = caller.guard.of_child(asks=asks)
                options["extensions"] = [*self.settings.get("extensions", ()), guard]
            try:
                async with self.session(caller=caller) as session:
                    return (await session.run(message, deps=context.deps, **options)).output
            except AgentError as error:
                details = {**error.details, "code": error.code, "agent": self.name}
                raise ToolExecutionError(own_name, error.message, details=details) from error

        with raise_as_agent_error():
            check_own_name(own_name)
            # Read-only for permissions: asking changes nothing, and its tools ask for themselves.
            as_tool = tool(name=own_name, description=description or about, permission="readonly")
            return replace(as_tool(ask), concurrency=Concurrency.AGENT)

    @overload
    async def run(
        self, message: Prompt, *, output_type: None = None, **args: Unpack[RunArgs[DepsT]]
    ) -> RunResult[OutputT]: ...

    @overload
    async def run(
        self, message: Prompt, *, output_type: "TypeForm[_Asked]", **args: Unpack[RunArgs[DepsT]]
    ) -> RunResult[_Asked]: ...

    @overload
    async def run(
        self,
        message: Prompt,
        *,
        output_type: "Outputs[_Asked]",
        **args: Unpack[RunArgs[DepsT]],
    ) -> RunResult[_Asked]: ...

    @overload
    async def run(
        self, message: Prompt, *, output_type: "AnyOutput", **args: Unpack[RunArgs[DepsT]]
    ) -> RunResult[Any]: ...

    @lists_keywords(RunArgs)
    async def run(
        self, message: Prompt, *, output_type: Any = None, **args: Unpack[RunArgs[DepsT]]
    ) -> RunResult[Any]:
        """Answer one message, and return the result.

        Args:
            message: text, or texts and images.
            output_type: of this answer; overrides the agent's.
            deps: available to tools as `ToolContext.deps`.
            conversation: the history that the turn sees and extends.
            session_id: id of its session; a new one by default.
            model: overrides the agent's.
            args: options of this run; see `RunSettings`.

        Raises:
            AgentError: `Config`, `Llm`, `LimitExceeded`, `HookBlocked` or `Memory`; `code` is more
                specific.
        """
        session, given = self._session_for(args)
        async with session:
            return await session.run(message, output_type=output_type, **given)

    @overload
    def run_sync(
        self, message: Prompt, *, output_type: None = None, **args: Unpack[RunArgs[DepsT]]
    ) -> RunResult[OutputT]: ...

    @overload
    def run_sync(
        self, message: Prompt, *, output_type: "TypeForm[_Asked]", **args: Unpack[RunArgs[DepsT]]
    ) -> RunResult[_Asked]: ...

    @overload
    def run_sync(
        self,
        message: Prompt,
        *,
        output_type: "Outputs[_Asked]",
        **args: Unpack[RunArgs[DepsT]],
    ) -> RunResult[_Asked]: ...

    @overload
    def run_sync(
        self, message: Prompt, *, output_type: "AnyOutput", **args: Unpack[RunArgs[DepsT]]
    ) -> RunResult[Any]: ...

    @lists_keywords(RunArgs)
    def run_sync(
        self, message: Prompt, *, output_type: Any = None, **args: Unpack[RunArgs[DepsT]]
    ) -> RunResult[Any]:
        """`run`, for threads without an event loop; any number of them may call it at once.

        Simultaneous calls share one event loop, so their agents may share models, conversations and
        toolsets.

        Raises:
            AgentError: as for `run`; also `Config` if an event loop is running in this thread.
        """
        with raise_as_agent_error():
            require_no_loop("run_sync", "await agent.run(...)")
            return _threads.run(lambda: self.run(message, output_type=output_type, **args))

    @overload
    def stream(
        self, message: Prompt, *, output_type: None = None, **args: Unpack[RunArgs[DepsT]]
    ) -> AgentStream[OutputT]: ...

    @overload
    def stream(
        self, message: Prompt, *, output_type: "TypeForm[_Asked]", **args: Unpack[RunArgs[DepsT]]
    ) -> AgentStream[_Asked]: ...

    @overload
    def stream(
        self,
        message: Prompt,
        *,
        output_type: "Outputs[_Asked]",
        **args: Unpack[RunArgs[DepsT]],
    ) -> AgentStream[_Asked]: ...

    @overload
    def stream(
        self, message: Prompt, *, output_type: "AnyOutput", **args: Unpack[RunArgs[DepsT]]
    ) -> AgentStream[Any]: ...

    @lists_keywords(RunArgs)
    def stream(
        self, message: Prompt, *, output_type: Any = None, **args: Unpack[RunArgs[DepsT]]
    ) -> AgentStream[Any]:
        """`run` as a stream of events; `TurnComplete` or `Error` is the last event.

        Its `partial_output()` yields the answer as it arrives. Leaving it before its end, in any
        way, stops the run.

        Raises:
            AgentError: at the first step, `Config`, `LimitExceeded` or `HookBlocked`; `Memory`.
        """

        async def events() -> AsyncGenerator[StreamEvent]:
            session, given = self._session_for(args)
            async with session:
                turn = session.stream(message, output_type=output_type, **given)
                async with aclosing(turn):
                    async for event in turn:
                        yield event

        asked = {} if output_type is None else {"output_type": output_type}
        own = {"output_type": self.output_type, **self.settings}
        return AgentStream(events(), {**own, **args, **asked})

    def _session_for(
        self, args: RunArgs[DepsT]
    ) -> tuple[AgentSession[DepsT, OutputT], TurnArgs[DepsT]]:
        """Open the session of a run, and return it with the options of its turn."""
        given = args.copy()
        with raise_as_agent_error():
            session = self.session(
                given.pop("session_id", None),
                conversation=given.pop("conversation", None),
                model=given.pop("model", None),
            )
        return session, cast("TurnArgs[DepsT]", given)


def _check_own_tool(name: str | None, max_depth: int) -> None:
    """Check what an agent's tool is called, and how deep it may be nested.

    Raises:
        ArgumentError: the name is empty, or no call would be allowed.
    """
    if name is not None and not name.strip():
        raise ArgumentError("name is empty; leave it out for the agent's own name", "name")
    if max_depth < 1:
        message = f"max_depth is {max_depth}; give at least 1, the agent that calls the tool"
        raise ArgumentError(message, "max_depth")


_CLASSES: Mapping[str, type] = {
    "name": str,
    "system_prompt": str,
    "hooks": HookExecutor,
    "permissions": PermissionConfig,
    "config": AgentConfig,
}


def _check_parts(instructions: object, given: Mapping[str, Any]) -> None:
    """Check the arguments of an agent.

    Raises:
        ArgumentError: one cannot be used.
        AgentError: `Config`; a tool or the model cannot be used.
    """
    for name, kind in _CLASSES.items():
        value = given[name]
        if value is not None and not isinstance(value, kind):
            words = "a text" if kind is str else with_article(kind.__name__)
            raise ArgumentError(f"{name} must be {words}, not {kind_of(value)}", name)
    if given["name"] is not None and not given["name"].strip():
        message = "the name of an agent is empty; give it one, or leave it out for 'agent'"
        raise ArgumentError(message, "name")
    check_deps_type(given["deps_type"])
    if callable(instructions):
        check_callback("instructions", instructions, "context")
    elif not isinstance(instructions, str | None):
        message = f"instructions must be a text or a function, not {kind_of(instructions)}"
        raise ArgumentError(message, "instructions")
    check_tools(given["tools"])
    if (model := given["model"]) is not None:
        _check_model(model)
    settings: dict[str, Any] = given["settings"] or {}
    own = {name: settings[name] for name in settings if name in MODEL_SETTINGS}
    ModelSettings(**own)
    if others := {name: settings[name] for name in settings if name not in own}:
        asked_options(None, others)


def _check_model(model: object) -> None:
    """Check the form of a model.

    Raises:
        ArgumentError: it is no model.
    """
    if isinstance(model, str):
        try:
            model_fields(model)
        except ValueError as error:
            raise ArgumentError(f"model {error}", "model") from None
    elif isinstance(model, type) or not (
        isinstance(model, ModelConfig) or hasattr(model, "chat") or hasattr(model, "stream")
    ):
        what = f"the class {model.__name__}" if isinstance(model, type) else kind_of(model)
        message = "model must be 'provider:name', a ModelConfig, an adapter or an LlmProvider, not"
        raise ArgumentError(f"{message} {what}", "model")


def _open_provider(model: Model) -> LlmProvider:
    """Return the provider for a model, created if necessary but not connected yet.

    Raises:
        AgentError: `Config`; the string names no model.
        LlmError: the configuration names no known provider, or does not suit it.
    """
    with raise_as_agent_error():
        _check_model(model)
    if isinstance(model, str):
        model = cast("ModelConfig", named_model(model))
    if isinstance(model, ModelConfig):
        return AdapterProvider.open(model)
    if hasattr(model, "chat"):
        return cast("LlmProvider", model)
    adapter = cast("ProviderAdapter", model)
    return AdapterProvider(adapter, type(adapter).__name__)
