"""Tools as classes, and tools by name: offered to the runs of a cycle or called directly."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from inspect import iscoroutinefunction
from pathlib import Path
from types import FunctionType
from typing import Any, Self, cast

from agcore.declarations import read_as_attributes
from agcore.llm import RunTools
from agcore.tools.error import InvalidArgumentsError, ToolError, ToolExecutionError, tool_error_from
from agcore.tools.permissions import PermissionChecker, PermissionConfig
from agent_core.aio import is_cancelled
from agent_core.api.arguments import checks_arguments
from agent_core.errors import (
    ArgumentError,
    ConfigError,
    ErrorCode,
    PermissionDeniedError,
    ToolError as CoreToolError,
)
from agent_core.text import kind_of
from agent_core.text.json_text import JsonSchema
from agent_core.tools import Tool, Toolbox, ToolContext, ToolReturn, tool_from
from agent_core.tools.base import Concurrency, run_in_time
from agent_core.tools.decorator import FunctionTool, tool as function_tool
from agent_core.tools.deps import check_deps
from agent_core.tools.limits import ResultLimiter
from agent_core.tools.registry import Handler, TakenNames, check_own_name, taken_message
from agent_core.tools.results import OpenCall
from agent_core.tools.values import text_of
from agent_core.types import (
    JsonBlock,
    RunIdentity,
    TextBlock,
    ToolCall,
    ToolDefinition,
    ToolPermission,
    ToolResult,
    new_id,
)

TIMEOUT_S = 120.0
"""Seconds one call may take, by default."""

RESULT_LIMIT_BYTES = 65_536
"""Bytes of one result, by default; a longer result loses its middle."""


class BaseTool(ABC):
    """A tool that a model may call, written as a class.

        class Weather(BaseTool):
            name = "get_weather"
            description = "The weather in a city."

            def parameters(self) -> JsonSchema:
                return {"type": "object", "properties": {"city": {"type": "string"}}}

            async def execute(self, arguments: dict[str, Any], context: ToolContext) -> ToolReturn:
                return {"city": arguments["city"], "temperature": 22}

    Attributes:
        name: letters, digits, `_`, `-` and dots. Like the two below it may be written as a method,
            `def name(self)`.
        description: tells the model about it.
        permission: `readonly` if it changes nothing; rules for asking depend on it.
    """

    name: str
    description: str = ""
    permission: ToolPermission = ToolPermission.WRITE

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        error = partial(ToolExecutionError, cls.__name__)
        read_as_attributes(cls, "name", "description", "permission", error=error)

    def parameters(self) -> JsonSchema:
        """Return the JSON Schema of the arguments, an object; by default there are none."""
        return {"type": "object", "properties": {}}

    @abstractmethod
    async def execute(self, arguments: dict[str, Any], context: ToolContext) -> ToolReturn:
        """Run the tool. `arguments` fit the schema; the result must be convertible to JSON.

        Raises:
            ToolError: it failed; any other exception becomes `ToolError.ExecutionFailed`.
        """

    def definition(self) -> ToolDefinition:
        """Return the definition that the model sees."""
        return ToolDefinition(
            name=self.name,
            description=self.description,
            input_schema=self.parameters(),
            permission=self.permission,
        )

    @cached_property
    def engine_tool(self) -> Tool:
        """The tool as the engine's kind; its schema is compiled once, at the first call."""
        return tool_from(self.definition(), self.execute)


AnyTool = BaseTool | Tool
"""A tool written as a class, or one of the engine's."""

ToolEntry = AnyTool
"""A tool as `ToolRegistry.register` takes it, by the name that it has in AG Core."""


def make_tool(given: object) -> AnyTool:
    """Return a tool unchanged; build one from a function, or from a definition with its handler.

    Raises:
        ArgumentError: it is not a tool, or a model cannot call it.
    """
    match given:
        case BaseTool() | Tool():
            return given
        case type() if issubclass(given, BaseTool):
            message = f"{given.__name__} is a class; give a tool, {given.__name__}()"
            raise ArgumentError(message, "tools")
        case (ToolDefinition() as definition, handler) if callable(handler):  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
            return tool_from(definition, cast("Handler", handler))
        case _ if callable(given):
            return function_tool(given)
        case _:
            message = f"{kind_of(given)} is not a tool; give a function, a tool or a name"
            if hasattr(type(given), "as_tool"):
                message += "; an agent's as_tool() is one"
            raise ArgumentError(message, "tools")


@dataclass(frozen=True, slots=True)
class ToolInvocation:
    """A call to be made."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """The end of one of several calls: a value or an error."""

    name: str
    value: Any = None
    error: ToolError | None = None

    @property
    def is_error(self) -> bool:
        """True if the call failed; `error` is the reason then."""
        return self.error is not None

    def unwrap(self) -> Any:
        """Return the value.

        Raises:
            ToolError: the call failed.
        """
        if self.error is not None:
            raise self.error
        return self.value


@checks_arguments(but=("register", "invoke"), constructor=True)
class ToolRegistry:
    """The tools of an agent. Takes `BaseTool`s and the engine's tools alike.

    The engine runs a model's calls: readers in parallel, each writer alone. After a failed write,
    the later calls are answered without being run.

    Args:
        tools: the first tools.
        permissions: lists and rules, or a checker made of them; all tools are allowed by default.
        timeout_s: the longest time that one call may take, in seconds, unless its tool has a limit
            of its own; a call of another agent has the limits of that agent instead.
        result_limit_bytes: the largest size of one result.
        session_id: the session that the context of a call names.

    Raises:
        ArgumentError: the session id is empty, or the time limit is not above 0.
    """

    def __init__(
        self,
        tools: Iterable[AnyTool] = (),
        *,
        permissions: PermissionChecker | PermissionConfig | None = None,
        timeout_s: float = TIMEOUT_S,
        result_limit_bytes: int = RESULT_LIMIT_BYTES,
        session_id: str = "agcore",
    ) -> None:
        self._registered: dict[str, AnyTool] = {}
        self._tools: dict[str, Tool] = {}
        if permissions is None or isinstance(permissions, PermissionConfig):
            permissions = PermissionChecker(permissions)
        self._permissions = permissions
        self._timeout_s = _checked_timeout(timeout_s)
        self._result_limit = result_limit_bytes
        if not session_id.strip():
            raise _no_session_id()
        self._session_id = session_id
        self._results = ResultLimiter(None, limit_bytes=result_limit_bytes)
        for tool in tools:
            self.register(tool)

    def register(self, tool: AnyTool) -> None:
        """Add a tool.

        Raises:
            ToolError: `ExecutionFailed`, with the code `validation_error`; it is no tool, its name
                is taken, or one that only tools of the engine or of a server can have, or its class
                is not written as a tool's.
        """
        made = _engine_tool(tool)
        if isinstance(tool, BaseTool | FunctionTool):
            try:
                check_own_name(made.name)
            except ConfigError as error:
                raise _refusal(made.name, error.message) from error
        if (other := TakenNames(self._tools).find(made.name)) is not None:
            raise _refusal(made.name, taken_message(made.name, other))
        self._tools[made.name] = made
        self._registered[made.name] = tool

    def learn(self, secrets: Mapping[str, str]) -> None:
        """Keep these values out of the user's questions about calls."""
        self._permissions.learn(secrets)

    def get(self, name: str) -> AnyTool | None:
        """Return the tool of that name, as it was registered."""
        return self._registered.get(name)

    def tools(self) -> list[AnyTool]:
        """Return every tool, as it was registered."""
        return list(self._registered.values())

    def list_tools(self) -> list[str]:
        """Return every name, sorted."""
        return sorted(self._registered)

    def definitions(self) -> list[ToolDefinition]:
        """Return the definitions of the tools that may be called, sorted by name."""
        return [
            self._tools[name].definition
            for name in self.list_tools()
            if self._permissions.is_listed(name)
        ]

    def only(self, names: Collection[str]) -> Self:
        """Return a registry with only the named ones of these tools."""
        return self._with(name for name in self._registered if name in names)

    def plus(self, tools: Iterable[AnyTool]) -> Self:
        """Return a registry with these tools and more.

        Raises:
            ToolError: a name is taken.
        """
        return self._with(self._registered, tools)

    def for_session(
        self,
        session_id: str,
        names: Collection[str] | None = None,
        *,
        more: Iterable[AnyTool] = (),
    ) -> Self:
        """Return a registry of these tools, or of the named ones, and more, for one session.

        Raises:
            ToolError: a name is taken.
        """
        if not session_id.strip():
            raise _no_session_id()
        kept = [name for name in self._registered if names is None or name in names]
        return self._with(kept, more, session_id=session_id)

    def for_run(self) -> RunTools:
        """Return the tools in their current state, for a run of a cycle."""
        return RunTools(
            tools=[self._callable(tool) for tool in self._tools.values()],
            definitions=self.definitions(),
            guard=self._permissions,
            results=self._results,
            session_id=self._session_id,
        )

    async def invoke(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        timeout_s: float | None = None,
        deps: object = None,
    ) -> Any:
        """Call a tool and return its answer as a plain value.

        Args:
            name: of the tool.
            arguments: the arguments of the call.
            timeout_s: how long it may take, in seconds above 0; by default the tool's own limit, or
                else the registry's.
            deps: available to the tool as `ToolContext.deps`.

        Raises:
            ToolError: of the kind that fits; a tool that answers with an error has failed.
        """
        if not isinstance(cast("object", name), str):
            raise InvalidArgumentsError(str(name), f"name must be a text, not {kind_of(name)}")
        if timeout_s is not None and not isinstance(cast("object", timeout_s), int | float):
            message = f"timeout_s must be a number or None, not {kind_of(timeout_s)}"
            raise InvalidArgumentsError(name, message)
        if not isinstance(cast("object", arguments), Mapping):
            what = kind_of(arguments)
            raise InvalidArgumentsError(name, f"the arguments of {name} are {what}; pass a dict")
        call = ToolCall(tool_call_id=new_id("call"), name=name, arguments=dict(arguments))
        run = RunIdentity(session_id=self._session_id, agent_id="agcore", run_id=new_id("run"))
        task = asyncio.current_task()
        writer = self._results.writer(run, call)
        try:
            if name in self._tools:
                self._permissions.check(name)
            with OpenCall(lambda _: None, writer, lambda: is_cancelled(task)) as opened:
                tool, parsed = Toolbox(self._tools.values()).resolve(call)
                check_deps([tool], deps)
                context = ToolContext(
                    run=run,
                    tool_call_id=call.tool_call_id,
                    project_dir=Path.cwd(),
                    progress=opened.progress,
                    artifact=opened.artifact,
                    is_cancelled=opened.is_cancelled,
                    deps=deps,
                )
                limit = None if timeout_s is None else _checked_timeout(timeout_s)
                action = await tool.prepare(parsed, context)
                await self._permissions.require(
                    call, tool.definition, action.access, run, _NullJournal()
                )
                limit = limit or tool.timeout_s or self._timeout_s
                returned = await run_in_time(tool, action.run, limit)
            result = (await self._results.limit(returned, run, call, tool=tool)).result
        except ConfigError as error:
            raise ToolExecutionError(name, error.message) from error
        except (CoreToolError, PermissionDeniedError) as error:
            known = tool_error_from(name, error)
            raise known from (None if known is error else error)
        except BaseException as error:  # an exception that would end the program ends only the call
            if isinstance(error, asyncio.CancelledError) and is_cancelled(task):
                raise
            raise ToolExecutionError(name, f"{name} failed: {text_of(error)}") from error
        if not result.is_error:
            return _value(result)
        reason = result.error.message if result.error else str(_value(result))
        raise ToolExecutionError(name, reason)

    async def invoke_all(
        self,
        invocations: Sequence[ToolInvocation],
        timeout_s: float | None = None,
        *,
        deps: object = None,
    ) -> list[ToolOutcome]:
        """Make several calls at once, and return an outcome for each, in order.

        The caller must know that they may run in parallel.

        Args:
            invocations: the calls.
            timeout_s: how long each may take, in seconds above 0; by default the limit of its tool,
                or else the registry's.
            deps: available to the tools as `ToolContext.deps`.
        """

        async def outcome(wanted: ToolInvocation) -> ToolOutcome:
            try:
                value = await self.invoke(
                    wanted.name, wanted.arguments, timeout_s=timeout_s, deps=deps
                )
            except ToolError as error:
                return ToolOutcome(wanted.name, error=error)
            return ToolOutcome(wanted.name, value)

        return await asyncio.gather(*map(outcome, invocations))

    def _callable(self, tool: Tool) -> Tool:
        """Return the tool with its time limit; a denied tool refuses before it sees a call."""

        def refuse(_arguments: Mapping[str, Any]) -> Any:
            self._permissions.check(tool.name)

        if not self._permissions.is_listed(tool.name):
            return replace(tool, parse=refuse)
        if tool.concurrency is Concurrency.AGENT:  # it has limits of its own
            return tool
        return replace(tool, timeout_s=tool.timeout_s or self._timeout_s)

    def _with(
        self, names: Iterable[str], more: Iterable[AnyTool] = (), *, session_id: str | None = None
    ) -> Self:
        """Return a registry with the named ones of these tools, and more.

        Raises:
            ToolError: a name is taken.
        """
        names, made = list(names), copy(self)
        made.__dict__.update(
            _registered={name: self._registered[name] for name in names},
            _tools={name: self._tools[name] for name in names},
            _session_id=self._session_id if session_id is None else session_id,
        )
        for tool in more:
            made.register(tool)
        return made


def _engine_tool(given: object) -> Tool:
    """Return a tool as the engine's kind.

    Raises:
        ToolError: `ExecutionFailed`; it is no tool, or its class is not written as a tool's.
    """
    if isinstance(given, Tool):
        return given
    if not isinstance(given, BaseTool):
        what = str(getattr(given, "__name__", type(given).__name__))
        match given:
            case type():
                cure = f"register an object of the class, {what}()"
            case FunctionType():
                cure = "wrap it with `agcore.tools.tool`"
            case _:
                cure = "derive its class from BaseTool"
        shown = what if isinstance(given, type | FunctionType) else kind_of(given)
        raise _refusal(what, f"{shown} is no tool; {cure}")
    if "engine_tool" in vars(given):  # it was checked before
        return given.engine_tool
    what = type(given).__name__
    if not isinstance(getattr(given, "name", None), str):
        raise _refusal(what, f"{what} has no name; set `name` in its class")
    schema: Any = None
    with suppress(TypeError):  # it is no method, or takes arguments
        schema = None if iscoroutinefunction(given.parameters) else given.parameters()
    if not isinstance(schema, dict):
        cure = "write `def parameters(self)` that returns the JSON Schema of its arguments"
        raise _refusal(given.name, f"{what}.parameters gives no schema; {cure}")
    try:
        return given.engine_tool
    except ArgumentError as error:
        reason = f"{what}.{error.details['option']} does not fit: {error.message}"
        raise _refusal(given.name, reason) from error
    except ConfigError as error:
        raise _refusal(given.name, error.message) from error


def _refusal(name: str, reason: str) -> ToolExecutionError:
    """Return the error for a tool that cannot be registered."""
    error = ToolExecutionError(name, reason, details={"option": "tool"})
    error.code, error.retryable = ErrorCode.VALIDATION_ERROR, False
    return error


class _NullJournal:
    """Records no questions and answers."""

    def note(self, *_what: object, **_more: object) -> None:
        """Record nothing."""

    async def commit(self) -> None:
        """Do nothing."""


def _no_session_id() -> ArgumentError:
    return ArgumentError("the session id is empty; leave it out", "session_id")


def _checked_timeout(timeout_s: float) -> float:
    """Return a time limit, if calls can end within it.

    Raises:
        ArgumentError: it is 0, negative or NaN.
    """
    if timeout_s > 0:
        return timeout_s
    message = f"timeout_s is {timeout_s:g}; give seconds above 0, or leave it out for the default"
    raise ArgumentError(message, "timeout_s")


def _value(result: ToolResult) -> Any:
    """Return the answer as a plain value: JSON as it is, text as text, several blocks as a list."""
    values: list[Any] = []
    for block in result.content:
        match block:
            case TextBlock(text=text):
                values.append(text)
            case JsonBlock(data=data):
                values.append(data)
            case _:
                values.append(block.model_dump(mode="json"))
    return values[0] if len(values) == 1 else values or None
