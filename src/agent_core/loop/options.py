"""The options of one run."""

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypedDict, Unpack, cast, overload

from pydantic import ValidationError
from typing_extensions import TypeAliasType, TypeVar

from agent_core.callbacks import callback_problem, check_callback
from agent_core.config.models import ModelConfig, as_model
from agent_core.errors import AgentCoreError, ErrorCode, ToolError
from agent_core.extensions import Extension, ExtensionContext, Extensions
from agent_core.loop.option_checks import (
    checked_extensions,
    checked_guards,
    checked_metadata,
    checked_validators,
    hint_at_option,
    listed,
    made_tool,
    made_tools,
    malformed_option,
    tool_name,
)
from agent_core.providers.base import ProviderAdapter
from agent_core.text import kind_of
from agent_core.tools.base import Concurrency, Tool, ToolContext
from agent_core.tools.registry import check_own_name
from agent_core.tools.toolsets import AnyTool
from agent_core.types import (
    AgentDefinition,
    Budget,
    OutputMode,
    OutputT,
    PermissionMode,
    ReasoningEffort,
    StoredOptions,
)
from agent_core.types.budget import SharedBudget
from agent_core.types.fields import misfit
from agent_core.types.values import Value

if TYPE_CHECKING:
    from typing_extensions import TypeForm

    from agent_core.loop.guards import RunGuard
    from agent_core.loop.validators import OutputValidator
    from agent_core.tools.output import ExpectedOutput

EVERY_TOOL = "(every tool)"
"""Stored among the tools of a run continued with handed-over ones: it has all known tools too."""

AnyModel = str | ModelConfig | ProviderAdapter
"""`provider:name`, a `ModelConfig`, or an adapter that the program creates and closes."""

_NAME = r"[A-Za-z0-9_-]{1,64}"
_SHOWN = 200

JsonSchema = Mapping[str, Any]

_OutputT = TypeVar("_OutputT")
_OutputFunction = TypeAliasType(
    "_OutputFunction", "Callable[..., Awaitable[_OutputT] | _OutputT]", type_params=(_OutputT,)
)
Outputs = TypeAliasType(
    "Outputs",
    "_OutputFunction[_OutputT] | Sequence[TypeForm[_OutputT] | _OutputFunction[_OutputT]]",
    type_params=(_OutputT,),
)
"""A function that returns the output, or a list of types and functions."""

OutputType = TypeAliasType(
    "OutputType", "TypeForm[_OutputT] | Outputs[_OutputT]", type_params=(_OutputT,)
)
"""A type, or a function that returns the output, or a list of them.

Signatures have an overload for types alone: mypy does not read `A | None` as a type in a union.
"""

AnyOutput = JsonSchema | Callable[..., Any] | list[Any]
"""An output whose type no checker infers: by a JSON Schema, or written in another way."""

Instructions = str | Callable[[ExtensionContext], str | Awaitable[str | None] | None]
"""A text, or a function, async or not, that returns one for a run; `context.deps` is its `deps`."""


_Own = TypeVar("_Own")
_Handed = TypeVar("_Handed")


class AnyAgent(Protocol[OutputT]):
    """An `Agent`, or an agent of the toolkit."""

    @property
    def engine_agent(self) -> "Agent[OutputT]":
        """The agent as a value of the engine."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class RunOptions(Value, Generic[OutputT]):
    """Options of one run. They never permit what the configuration forbids.

    Attributes:
        instructions: added to the system prompt of this run; a text, or a function of a context
            with `run` and `deps`, async or not, that is called once, when the run is requested.
        model: `provider:name`, the name of a `[model_overrides]` table, a `ModelConfig`, or an
            adapter; the configured one by default.
        tools: the only tools of the run: names of known tools, functions, and tools made with
            `@tool`. None leaves the choice to the configuration; `()` means no tools. Children, and
            an orchestrator's workers, get no other working tools either.
        disabled_tools: names of tools that the run and its children must not have.
        output_type: the type of the answer, or its JSON Schema; or a function, async or not, whose
            parameters are the answer and whose return value is the output; or a list of types and
            functions, of which the model chooses one. Functions are not stored.
        output_mode: how a typed answer is requested.
        output_retries: how often an answer that does not validate goes back to the model.
        output_validators: functions of the value of the answer, or of it and a context with `run`
            and `deps`, async or not: they return the value, or another one, or raise `ToolRetry` to
            send the answer back to the model. They are not stored.
        deps: any object; available to tools as `ToolContext.deps`. It is not stored.
        budget: the spending limit of the run, including its children; or a `BudgetPool` that any
            number of runs of this process share, which is not stored; or `pool.share(…)`, for both.
        max_turns: the maximum number of model turns; not more than the configuration allows.
        provider_tools: tools that the service of the model runs itself, such as `web_search`; None
            leaves the choice to the configuration, `()` is none. They apply to children, too.
        permission_mode: `plan` denies calls that could change something, `accept-edits` writes
            project files without asking; None is `ask`, which follows the settings. It also applies
            to children.
        temperature: the temperature of its model calls; omitted if the service or model does not
            accept one. Also applies to children, unless their definition names a model.
        seed: the seed of its model calls, in the same way.
        stop: texts at which a reply ends; a service without stop sequences refuses the call.
        reasoning: how much the model reasons: `none`, `low`, `medium` or `high`. Also applies to
            children, unless their definition names a model.
        max_output_tokens: the largest number of tokens of one reply.
        memory: the scope of its memory: `user:<id>` is this user's, `shared` belongs to everybody
            who uses the home, or to the tenant; with `off`, or False, the run recalls nothing, and
            nothing from it is remembered. None is the runtime's default.
        guards: inspect the message, tool calls and the answer; they are not stored.
        extensions: add behaviour to the run and its children, inside those of the runtime; they
            are not stored.
        agent: the agent of the run: an `Agent`, or the id of a definition or of an agent of the
            runtime. What the run does not set itself is the agent's.
        agents: agents that the model may start; they are not stored.
        handoffs: agents that the model may hand the conversation to; they are not stored.
        history: the conversation before the message, for a new session: nodes of this package,
            messages of OpenAI's or Anthropic's API, or a mixture. Its system messages come before
            `instructions`.
        metadata: the caller's own JSON data, stored with the run.
    """

    instructions: Instructions | None = None
    model: AnyModel | None = None
    tools: Sequence[AnyTool] | None = None
    disabled_tools: Sequence[str] = ()
    output_type: "OutputType[OutputT] | JsonSchema | None" = None
    output_mode: OutputMode = "auto"
    output_retries: int = 2
    output_validators: "Sequence[OutputValidator]" = ()
    deps: Any = None
    budget: Budget | SharedBudget | None = None
    max_turns: int | None = None
    provider_tools: Sequence[str] | None = None
    permission_mode: PermissionMode | None = None
    temperature: float | None = None
    seed: int | None = None
    stop: Sequence[str] = ()
    reasoning: ReasoningEffort | None = None
    max_output_tokens: int | None = None
    memory: str | bool | None = None
    guards: "Sequence[RunGuard]" = ()
    extensions: Sequence[Extension] = ()
    agent: "AnyAgent[OutputT] | str | None" = None
    agents: "Sequence[AnyAgent[Any]]" = ()
    handoffs: "Sequence[AnyAgent[Any]]" = ()
    history: Sequence[Any] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])

    if TYPE_CHECKING:  # the answer to a JSON Schema is of any type

        @overload
        def __init__(self, **fields: "Unpack[_TypedFields[OutputT]]") -> None: ...

        @overload
        def __init__(
            self, *, output_type: "TypeForm[OutputT]", **fields: "Unpack[_FieldsAlone]"
        ) -> None: ...

        @overload
        def __init__(
            self, *, output_type: "Outputs[OutputT]", **fields: "Unpack[_FieldsAlone]"
        ) -> None: ...

        @overload
        def __init__(
            self: "RunOptions[Any]",
            *,
            output_type: AnyOutput | None = None,
            **fields: "Unpack[RunFields]",
        ) -> None: ...

        def __init__(self, **fields: Any) -> None: ...

    def expected(self) -> "ExpectedOutput | None":
        """Return the required form of the answer; None for plain text.

        Raises:
            ArgumentError: `output_type` has no form in JSON Schema.
        """
        if self.output_type is None or self.output_type is str:
            return None
        # The type reader is only loaded for callers who name a type.
        from agent_core.tools.output import expected_output  # noqa: PLC0415

        return expected_output(self.output_type, mode=self.output_mode, retries=self.output_retries)

    @property
    def text(self) -> str:
        """The instructions, which are text once the run is requested."""
        return self.instructions if isinstance(self.instructions, str) else ""

    def model_settings(self) -> dict[str, Any]:
        """Return the settings of the model that the run replaces, by their names there."""
        return {name: value for name in _SETTINGS if (value := getattr(self, name)) is not None}

    def sampling(self) -> dict[str, Any]:
        """Return the seed and the texts at which replies stop, if the run has any."""
        seed = {} if self.seed is None else {"seed": self.seed}
        return {**seed, "stop": list(self.stop)} if self.stop else seed

    def for_child(self) -> "RunOptions":
        """Return the options that also apply to children."""
        return RunOptions(
            model=self.model,
            temperature=self.temperature,
            seed=self.seed,
            reasoning=self.reasoning,
            tools=self.tools,
            disabled_tools=self.disabled_tools,
            provider_tools=self.provider_tools,
            max_turns=self.max_turns,
            deps=self.deps,
            memory=self.memory,
            guards=[guard for guard in self.guards if guard.point in _CHILD_GUARDS],
            extensions=self.extensions,
        )

    def offers(self, name: str, *, is_free: bool = False) -> bool:
        """Return whether the run may have this tool; if `is_free`, `tools` does not restrict it."""
        if name in self.disabled_tools:
            return False
        if is_free or self.tools is None:
            return True
        names = [*map(tool_name, self.tools)]
        return name in names or EVERY_TOOL in names


class _SharedFields(TypedDict, total=False):
    """The fields that runs and agents share."""

    model: AnyModel | None
    tools: Sequence[AnyTool] | None
    disabled_tools: Sequence[str]
    output_mode: OutputMode
    output_retries: int
    output_validators: "Sequence[OutputValidator]"
    max_turns: int | None
    provider_tools: Sequence[str] | None
    temperature: float | None
    seed: int | None
    stop: Sequence[str]
    reasoning: ReasoningEffort | None
    max_output_tokens: int | None
    guards: "Sequence[RunGuard]"
    extensions: Sequence[Extension]
    agents: "Sequence[AnyAgent[Any]]"


class _AgentFields(_SharedFields, total=False):
    """The keywords of `Agent`, except `output_type` and `handoffs`."""

    description: str
    budget: Budget | None


class _OwnFields(_SharedFields, total=False):
    """The keywords of `start` and `run` that say nothing about the type of the answer."""

    instructions: Instructions | None
    deps: Any
    budget: Budget | SharedBudget | None
    permission_mode: PermissionMode | None
    memory: str | bool | None
    history: Sequence[Any]
    metadata: Mapping[str, Any]


class _FieldsAlone(_OwnFields, total=False):
    """The fields of `RunOptions` without `output_type` and `handoffs`."""

    agent: "AnyAgent[Any] | str | None"


class _TypedFields(_OwnFields, Generic[OutputT], total=False):
    """The fields of options whose answer is text, or what their agent answers."""

    output_type: None
    agent: "AnyAgent[OutputT] | None"


class RunFields(_FieldsAlone, total=False):
    """The fields of `RunOptions` as keywords of `start` and `run`, except `output_type`."""

    handoffs: "Sequence[AnyAgent[Any]]"


class PlacementFields(TypedDict, total=False):
    """Place of execution of a run, as keywords of `start` and `run` with a Postgres database.

    `here`: in this process, after earlier runs of the session; always the case
    if sessions are in a file. `place` is where the session's files are, `host:<id>` or
    `snapshot`; `tenant` owns the session; `queue` selects the workers; `queue_timeout_s` is how
    long a run of this process waits for its turn. With `questions_wait` the worker asks
    whatever its `[permissions] unattended` says: a question waits until another process answers it.
    """

    here: bool | None
    place: str | None
    tenant: str | None
    queue: str | None
    queue_timeout_s: float | None
    questions_wait: bool | None


class AnswerFields(TypedDict, total=False):
    """The keywords of `answer`, except `output_type`: a waiting run may need some of them here."""

    arguments: Mapping[str, Any] | None
    always: bool
    tools: Sequence[AnyTool] | None
    deps: Any
    guards: "Sequence[RunGuard]"
    extensions: Sequence[Extension]
    agents: "Sequence[AnyAgent[Any]]"
    handoffs: "Sequence[AnyAgent[Any]]"
    output_validators: "Sequence[OutputValidator]"
    model: AnyModel | None
    budget: SharedBudget | None


class SignedAnswerFields(AnswerFields, total=False):
    """The keywords of `AgentRuntime.answer`, which also takes who has answered, and where."""

    decided_by: str
    decider: str | None


class StartFields(RunFields, PlacementFields, total=False):
    """The keywords of `start` and `run`, except `output_type`."""


class OutputStartFields(_FieldsAlone, PlacementFields, total=False):
    """The keywords of a run whose answer has the type that `output_type` says."""


class TypedStartFields(_TypedFields[OutputT], PlacementFields, Generic[OutputT], total=False):
    """The keywords of a run whose answer is text, or has the type of its agent."""


NO_OPTIONS = RunOptions()
"""A run without options."""

_CHILD_GUARDS = frozenset({"tool_call", "tool_result"})

OF_OTHER_MODEL: Mapping[str, Any] = {"temperature": None, "seed": None, "reasoning": None}
"""Options of a parent that do not apply to a child with a model of its own."""

_SETTINGS = ("temperature", "reasoning", "max_output_tokens")
"""Options that replace settings of the model."""
_NAMES = tuple(each.name for each in fields(RunOptions))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Agent(Value, Generic[OutputT]):
    """An agent: a name, instructions, a model, tools, an answer type and limits.

    It is a value: the main agent of a run (`run(agent=…)`), an agent that others may start
    (`agents=[…]`) or hand the conversation to (`handoffs=[…]`), or a tool (`as_tool`).

    Attributes:
        name: its definition id; letters, digits, `_` and `-`.
        instructions: its role, for its system prompt: a text, or a function of a context with `run`
            and `deps`, async or not.
        description: tells other models what it is for.
        model: as for a run; by default that of the run that starts it.
        tools: the only tools it has, as for a run. They need not be among the tools of the run that
            starts it, whose permissions, `disabled_tools` and budget still apply. None:
            those of that run; `()`: none.
        disabled_tools: names of tools that it must not have.
        output_type, output_mode, output_retries, output_validators: the type of its answer, as for
            a run.
        max_turns: the maximum number of its model turns; by default that of the run that starts it.
        budget: its spending limit; a child gets at most its share of what its parent has left.
        temperature, seed, stop, reasoning, max_output_tokens: as for a run.
        provider_tools: as for a run.
        guards, extensions: as for a run, beside those of the run that starts it.
        agents: agents that it may start itself, down to `[agents] max_depth`.
        handoffs: agents that it may hand the conversation to, if it leads the run.

    Raises:
        ArgumentError: a field cannot be used; `details["option"]` names it.
    """

    name: str
    instructions: Instructions | None = None
    _: KW_ONLY
    description: str = ""
    model: AnyModel | None = None
    tools: Sequence[AnyTool] | None = None
    disabled_tools: Sequence[str] = ()
    output_type: "OutputType[OutputT] | JsonSchema | None" = None
    output_mode: OutputMode = "auto"
    output_retries: int = 2
    output_validators: "Sequence[OutputValidator]" = ()
    max_turns: int | None = None
    budget: Budget | None = None
    temperature: float | None = None
    seed: int | None = None
    stop: Sequence[str] = ()
    reasoning: ReasoningEffort | None = None
    max_output_tokens: int | None = None
    provider_tools: Sequence[str] | None = None
    guards: "Sequence[RunGuard]" = ()
    extensions: Sequence[Extension] = ()
    agents: Sequence[AnyAgent[Any]] = ()
    handoffs: Sequence[AnyAgent[Any]] = ()

    if TYPE_CHECKING:

        @overload
        def __init__(
            self,
            name: str,
            instructions: Instructions | None = None,
            *,
            output_type: None = None,
            **fields: "Unpack[_AgentFields]",
        ) -> None: ...

        @overload
        def __init__(
            self,
            name: str,
            instructions: Instructions | None = None,
            *,
            output_type: "TypeForm[OutputT]",
            **fields: "Unpack[_AgentFields]",
        ) -> None: ...

        @overload
        def __init__(
            self,
            name: str,
            instructions: Instructions | None = None,
            *,
            output_type: "Outputs[OutputT]",
            **fields: "Unpack[_AgentFields]",
        ) -> None: ...

        @overload
        def __init__(
            self: "Agent[str | _Handed]",
            name: str,
            instructions: Instructions | None = None,
            *,
            output_type: None = None,
            handoffs: "Sequence[AnyAgent[_Handed]]",
            **fields: "Unpack[_AgentFields]",
        ) -> None: ...

        @overload
        def __init__(
            self: "Agent[_Own | _Handed]",
            name: str,
            instructions: Instructions | None = None,
            *,
            output_type: "OutputType[_Own]",
            handoffs: "Sequence[AnyAgent[_Handed]]",
            **fields: "Unpack[_AgentFields]",
        ) -> None: ...

        @overload
        def __init__(
            self: "Agent[Any]",
            name: str,
            instructions: Instructions | None = None,
            *,
            output_type: AnyOutput | None = None,
            handoffs: "Sequence[AnyAgent[Any]]" = (),
            **fields: "Unpack[_AgentFields]",
        ) -> None: ...

        def __init__(
            self, name: str, instructions: Instructions | None = None, **fields: Any
        ) -> None: ...

    def __post_init__(self) -> None:
        """Check the agent.

        Raises:
            ArgumentError: names the field.
        """
        if not isinstance(self.name, str) or not re.fullmatch(_NAME, self.name):  # pyright: ignore[reportUnnecessaryIsInstance] - typed by users
            reason = f"of an agent is 1 to 64 letters, digits, _ and -, not {self.name!r}"
            raise malformed_option("name", reason)
        if not isinstance(self.instructions, str):
            check_callback("instructions", self.instructions, "context")
        options = self.options
        if options.budget is not self.budget:
            object.__setattr__(self, "budget", options.budget)
        checked_agents("agents", self.agents)
        checked_agents("handoffs", self.handoffs)

    @property
    def engine_agent(self) -> "Agent[OutputT]":
        """The agent itself."""
        return self

    @property
    def options(self) -> RunOptions[Any]:
        """The options of a run of this agent, without its instructions.

        Raises:
            AgentCoreError, ConfigError: as for the options of a run.
        """
        names = [*AGENT_OPTIONS, "guards", "extensions"]
        given = {name: getattr(self, name) for name in names}
        changed = {n: each for n, each in given.items() if each != getattr(NO_OPTIONS, n)}
        return asked_options(None, changed)

    def as_tool(self, name: str | None = None, description: str | None = None) -> Tool:
        """Return a tool with which another agent asks this one, by one text: its `message`.

        Each call is a child run of the run that calls. It needs no permission of its own; the
        calls that the child makes do.

        Args:
            name: of the tool; the agent's by default.
            description: tells the calling model about it; by default the agent's.

        Raises:
            ArgumentError: a tool cannot have that name.
        """
        from agent_core.tools.decorator import tool  # noqa: PLC0415 - few agents are tools

        said = description or self.description
        about = f"Ask the agent {self.name}. It knows nothing but the message, and answers it."

        @tool(name=name or self.name, description=said or about, readonly=True)
        async def ask(message: str, context: ToolContext[Any]) -> Any:
            if context.ask_agent is None:
                reason = "agents can only be asked in a run of a runtime"
                raise ToolError(ErrorCode.TOOL_NOT_AVAILABLE, reason)
            return await context.ask_agent(self, message, context)

        check_own_name(ask.name)
        return replace(ask, concurrency=Concurrency.AGENT, asks=self)

    def definition(self, text: str = "") -> AgentDefinition:
        """Return the agent as a definition, with the text of its instructions."""
        return AgentDefinition(
            agent_definition_id=self.name,
            name=self.name,
            description=self.description or _first_line(self.instructions),
            body=text,
        )


AGENT_OPTIONS = frozenset(each.name for each in fields(RunOptions)).intersection(
    each.name for each in fields(Agent)
) - {"instructions", "guards", "extensions", "agents", "handoffs"}
"""Options of a run that an agent has, too."""


def _first_line(instructions: Instructions | None) -> str:
    text = instructions.strip() if isinstance(instructions, str) else ""
    return text.partition("\n")[0][:_SHOWN]


def checked_agents(option: str, given: object) -> list[Agent[Any]]:
    """Return agents as values of the engine.

    Raises:
        ArgumentError: one is something else, or two have the same name.
    """
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise malformed_option(option, f"must be a list of agents, not {kind_of(given)}")
    found: dict[str, Agent[Any]] = {}
    for each in cast("Sequence[object]", given):
        agent = checked_agent(option, each)
        if agent.name in found and found[agent.name] is not agent:
            raise malformed_option(option, f"holds two agents named {agent.name}; rename one")
        found[agent.name] = agent
    return list(found.values())


def checked_agent(option: str, given: object) -> Agent[Any]:
    """Return an agent as a value of the engine.

    Raises:
        ArgumentError: it is something else.
    """
    if not isinstance(given, type) and hasattr(type(given), "engine_agent"):
        return cast("AnyAgent[Any]", given).engine_agent
    what = given.__name__ if isinstance(given, type) else kind_of(given)
    raise malformed_option(option, f"holds {what}; an agent is an Agent(name, instructions, …)")


def with_checked_agents(options: RunOptions[Any]) -> RunOptions[Any]:
    """Return options with their agents as values of the engine.

    Raises:
        ArgumentError: one is something else.
    """
    agent = options.agent
    if agent is not None and not isinstance(agent, str):
        agent = checked_agent("agent", agent)
    return replace(
        options,
        agent=agent,
        agents=checked_agents("agents", options.agents),
        handoffs=checked_agents("handoffs", options.handoffs),
    )


def asked_options(options: object, given: Mapping[str, Any]) -> RunOptions[Any]:
    """Merge the options with those passed as keywords, and validate them all.

    Functions among `tools` are converted to tools.

    Raises:
        ArgumentError: names the field: it is unknown, given twice, or
            invalid.
        ArgumentError: a function cannot be a tool.
    """
    if options is None:
        options = NO_OPTIONS
    elif not isinstance(options, RunOptions):
        raise malformed_option("options", f"must be a RunOptions, not {kind_of(options)}")
    asked = cast("RunOptions[Any]", options)
    given = {  # None stands for the default
        name: value
        for name, value in given.items()
        if value is not None or getattr(NO_OPTIONS, name, None) is None
    }
    for name in given:
        if name not in _NAMES:
            hint = hint_at_option(name, [*_NAMES, "session_id"])
            raise malformed_option(name, f"is not an option of a run{hint}")
        before = getattr(asked, name)
        if before is not getattr(NO_OPTIONS, name) and not (name == "metadata" and not before):
            raise malformed_option(
                name, "is given twice, in the options and as a keyword; remove one"
            )
    asked = replace(asked, **given)
    if asked.tools:
        asked = replace(asked, tools=made_tools(asked.tools))
    if asked.history:
        from agent_core.context.given_messages import read_history  # noqa: PLC0415 - few have one

        asked = replace(asked, history=cast("Any", read_history(asked.history)))
    if asked.agent is not None or asked.agents or asked.handoffs:
        asked = with_checked_agents(asked)
    stored = stored_options(asked)
    budget = asked.budget if "budget" in stored.needs_caller else stored.budget
    return replace(asked, budget=budget, memory=stored.memory)


def stored_options(options: RunOptions[Any]) -> StoredOptions:
    """Return the part of the options that is stored with the run.

    Raises:
        ArgumentError: a field is invalid; the error names it.
    """
    tools = None if options.tools is None else listed("tools", options.tools)
    if callable(options.instructions) and (
        problem := callback_problem(options.instructions, "context")
    ):
        raise malformed_option("instructions", problem)
    model: object = as_model(options.model)
    if not (model is None or isinstance(model, str | ModelConfig)):
        reason = f"must be 'provider:name', a ModelConfig or an adapter, not {kind_of(model)}"
        raise malformed_option("model", reason)
    own_tools = options.provider_tools
    guards = checked_guards(options.guards)
    extensions = checked_extensions(listed("extensions", options.extensions))
    budget = options.budget
    live = {
        "budget": isinstance(budget, SharedBudget),
        "deps": options.deps is not None,
        "guards": bool(guards),
        "extensions": bool(extensions),
        "model": isinstance(model, ModelConfig) and model.adapter is not None,
        "tools": any(not isinstance(tool, str) for tool in tools or ()),
        "agents": bool(options.agents),
        "handoffs": bool(options.handoffs),
        "output_validators": bool(
            options.output_validators and checked_validators(options.output_validators)
        ),
    }
    agent = options.agent
    values = {
        "agent": agent.engine_agent.name if agent and not isinstance(agent, str) else agent,
        "instructions": None if callable(options.instructions) else options.instructions,
        "model": model.model_dump(exclude_unset=True) if isinstance(model, ModelConfig) else model,
        "tools": None if tools is None else [tool_name(tool) for tool in tools],
        "disabled_tools": listed("disabled_tools", options.disabled_tools),
        "output_mode": options.output_mode,
        "output_retries": options.output_retries,
        "budget": options.budget.own
        if isinstance(options.budget, SharedBudget)
        else options.budget,
        "max_turns": options.max_turns,
        "provider_tools": own_tools if own_tools is None else listed("provider_tools", own_tools),
        "permission_mode": options.permission_mode,
        "temperature": options.temperature,
        "seed": options.seed,
        "stop": listed("stop", options.stop),
        "reasoning": options.reasoning,
        "max_output_tokens": options.max_output_tokens,
        "memory": options.memory,
        "needs_caller": [name for name, is_needed in live.items() if is_needed],
        "metadata": checked_metadata(options.metadata),
    }
    try:
        stored = StoredOptions.model_validate(values, strict=True)
    except ValidationError as error:
        raise misfit(error, StoredOptions, values, owner="") from None
    if (expected := options.expected()) is None:
        return stored
    needs_caller = [*stored.needs_caller, *(["output_type"] if expected.functions else [])]
    return stored.model_copy(
        update={
            "output_schema": expected.schema,
            "output_name": expected.name,
            "needs_caller": needs_caller,
        }
    )


async def with_instructions(options: RunOptions[Any], context: ExtensionContext) -> RunOptions[Any]:
    """Return the options with the text that a function among them returns as the instructions.

    Raises:
        AgentCoreError: `validation_error`: the function failed, or returned no text.
    """
    write = options.instructions
    if write is None or isinstance(write, str):
        return options
    try:
        text = write(context)
        if inspect.isawaitable(text):
            text = await text
    except AgentCoreError:
        raise
    except Exception as error:
        raise malformed_option(
            "instructions", f"failed: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(text, str | None):  # pyright: ignore[reportUnnecessaryIsInstance] - a program's
        raise malformed_option("instructions", f"returned {kind_of(text)}, not a text")
    return replace(options, instructions=text)


def with_contributions(options: RunOptions[Any], extensions: Extensions) -> RunOptions[Any]:
    """Return the options with the instructions and tools that extensions contribute.

    Raises:
        AgentCoreError: an extension failed, or one of its tools cannot be a tool.
    """
    texts, tools = extensions.instructions(), extensions.tools()
    if texts:
        own = [options.text] if options.text else []
        options = replace(options, instructions="\n\n".join([*own, *texts]))
    if tools:
        known = [EVERY_TOOL] if options.tools is None else options.tools
        made = [made_tool(each, at) for at, each in enumerate(tools)]
        options = replace(options, tools=[*known, *made])
    return options
