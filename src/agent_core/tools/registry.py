"""Makes tools of definitions and handlers, and knows which there are and which a run may use."""

import asyncio
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache, cached_property, partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

import orjson

from agent_core.assets import load_schemas
from agent_core.callbacks import callback_problem
from agent_core.errors import ArgumentError, ErrorCode, ToolError
from agent_core.text import shorten_name, shortened
from agent_core.tools.base import (
    Action,
    AskAgent,
    Concurrency,
    Handover,
    Prepare,
    Tool,
    ToolContext,
    ToolReturn,
    concurrency_of,
)
from agent_core.tools.callables import is_generator
from agent_core.tools.results import call
from agent_core.tools.schema import Arguments, read_arguments, shown_schema
from agent_core.tools.values import storable_facts
from agent_core.types import (
    FINAL_ANSWER,
    REFUSED_CALL,
    Access,
    RunIdentity,
    ToolCall,
    ToolCallBlock,
    ToolDefinition,
    ToolKind,
    ToolPermission,
)

if TYPE_CHECKING:
    from agent_core.config.models import ToolOverrideConfig
    from agent_core.tools.output import ExpectedOutput

Handler = Callable[[dict[str, Any], ToolContext], Awaitable[ToolReturn] | ToolReturn]
"""Function that `register` accepts. A plain function runs in a thread of its own."""

ALWAYS_ASKS = frozenset({"dangerous", "network"})
"""Tags that ask even where the tool only reads."""

_MAX_SUMMARY = 1_000_000


def tool_from(definition: ToolDefinition, handler: Handler) -> Tool:
    """Make a tool of a raw definition and the function that handles its calls.

    Raises:
        ArgumentError: the handler cannot be called as one, or the input schema
            cannot be used.
    """
    problem = callback_problem(handler, "arguments", "context")
    if problem is not None:
        problem = f"it {problem}"
    elif is_generator(handler):
        problem = "it is a generator; return a list of what it gives"
    else:
        from agent_core.tools.signatures import (  # noqa: PLC0415 - it needs this module
            UnfitError,
            require_writable_return,
        )

        try:
            require_writable_return(handler, inspect.signature(handler))
        except UnfitError as error:
            problem = str(error)
        except ValueError:  # a builtin without a signature
            pass
    if problem is not None:
        message = f"the handler of {definition.name} cannot be used: {problem}"
        raise ArgumentError(message, "handler")
    from agent_core.tools.json_schema import whole_schema  # noqa: PLC0415 - few runs need them
    from agent_core.tools.schema_check import SchemaCheck  # noqa: PLC0415

    check = SchemaCheck(definition.name, definition.input_schema)
    try:
        check.compile()
    except ToolError as error:
        details = {"tool_name": definition.name}
        raise ArgumentError(error.message, "definition", details) from error
    whole = whole_schema(definition.input_schema)
    definition = definition.model_copy(update={"input_schema": whole})

    async def prepare(arguments: dict[str, Any], context: ToolContext) -> Action:
        access = plain_access(definition, arguments)
        return Action(access, partial(call, handler, arguments, context))

    return Tool(definition, check, prepare, concurrency_of(definition))


def model_tool(
    name: str,
    arguments: type[Arguments],
    prepare: Prepare,
    *,
    permission: ToolPermission = ToolPermission.READONLY,
    tags: Collection[str] = ("internal", "readonly"),
    concurrency: Concurrency | None = None,
    keeps_own_limits: bool = False,
    is_side_effect_free: bool = False,
    kind: ToolKind = "other",
) -> Tool:
    """Make a built-in tool from a model of its arguments, which `prepare` takes.

    The docstring of `arguments` is the tool's description. The concurrency follows from the
    permission if it is not given.
    """
    definition = _definition(name, arguments, permission, frozenset(tags))
    return Tool(
        definition=definition,
        parse=partial(read_arguments, name, arguments),
        prepare=prepare,
        concurrency=concurrency or concurrency_of(definition),
        keeps_own_limits=keeps_own_limits,
        is_side_effect_free=is_side_effect_free,
        kind=kind,
    )


def packaged_tool(key: str, find: Callable[[], Callable[[], Tool]]) -> Tool:
    """Return a built-in tool as the package describes it; what does its work is made when called.

    Args:
        key: of its description in the package's file of schemas.
        find: returns the function that makes the tool itself, before its first call.
    """
    definition, facts = _packaged(key)
    made: list[Tool] = []

    def parse(arguments: Mapping[str, Any]) -> object:
        if not made:
            make = find()
            made.append(make())
        return made[0].parse(arguments)

    async def prepare(arguments: object, context: ToolContext) -> Action:
        if not made:  # something else has read the arguments
            make = find()
            made.append(make())
        return await made[0].prepare(arguments, context)

    return Tool(definition, parse, prepare, **facts)


@cache
def _packaged(key: str) -> tuple[ToolDefinition, Mapping[str, Any]]:
    """Return one definition object for all runs, and the other fields of the tool."""
    schemas = load_schemas()
    facts = cast("dict[str, Any]", {**schemas[key]})
    definition = ToolDefinition.of_checked(
        name=key.partition(" ")[0],
        description=facts.pop("description"),
        input_schema=schemas[facts.pop("arguments")],
        permission=ToolPermission(facts.pop("permission")),
        tags=set(facts.pop("tags")),
        metadata={},
    )
    return definition, facts | {"concurrency": Concurrency(facts["concurrency"])}


def model_definition(
    name: str,
    arguments: type[Arguments],
    *,
    permission: ToolPermission = ToolPermission.READONLY,
    tags: Collection[str] = ("internal", "readonly"),
) -> ToolDefinition:
    """The definition of the tool that `model_tool` makes of the same."""
    return _definition(name, arguments, permission, frozenset(tags))


@cache
def _definition(
    name: str, arguments: type[Arguments], permission: ToolPermission, tags: frozenset[str]
) -> ToolDefinition:
    """Return one definition object for all runs; work done with it is cached by identity."""
    return ToolDefinition.of_checked(
        name=name,
        description=inspect.cleandoc(arguments.__doc__ or ""),
        input_schema=shown_schema(arguments),
        permission=permission,
        tags=set(tags),
        metadata={},
    )


def plain_access(definition: ToolDefinition, arguments: Mapping[str, Any]) -> Access:
    """Return the access of a call whose effects are unknown: it asks unless it only reads."""
    line = orjson.dumps(storable_facts(arguments)).decode()
    writes = definition.permission is ToolPermission.WRITE
    return Access(
        asks=writes or not ALWAYS_ASKS.isdisjoint(definition.tags),
        summary=shortened(line, _MAX_SUMMARY),
        dangerous="dangerous" in definition.tags,
    )


_MAX_NAMED = 40

RESERVED = ("mcp.", "code.", "agent.", "internal.")
"""Prefixes of the program's own tools and of servers' tools."""


def spelling(name: str) -> str:
    """Return a name as it is the same for all that a model or a provider may confuse with it."""
    return name.casefold().replace(".", "__").replace("__", ".")


class TakenNames:
    """The names of tools that are taken, whatever their spelling.

    Args:
        names: of tools.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._owners = {spelling(each): f"the tool {each}" for each in names}

    def find(self, name: str) -> str | None:
        """Return what has the name, such as `the tool search`; None if nothing does."""
        return self._owners.get(spelling(name))

    def take(self, name: str, owner: str | None = None) -> str | None:
        """Take a name, for a tool or for `owner`; return what has it already, if anything does."""
        if (other := self.find(name)) is None:
            self._owners[spelling(name)] = owner or f"the tool {name}"
        return other


def check_own_name(name: str) -> None:
    """Refuse a name for a tool of the caller or of the user that the program would use itself.

    A name counts in every spelling that becomes the same for a provider, where `.` is `__`.

    Raises:
        ArgumentError: names the tool.
    """
    if spelling(name).startswith(RESERVED):
        raise ArgumentError(
            f"{name} cannot be the name of a tool: names that begin with {', '.join(RESERVED)} are"
            " the program's; choose another one",
            "name",
            {"tool_name": name},
        )


def taken_message(name: str, other: str) -> str:
    """Return the message for a tool whose name something else has already."""
    if other == f"the tool {name}":
        return f"there is already a tool named {name}; give one of them another name"
    return f"the tool {name} has the name of {other}; rename one of them"


class ToolRegistry:
    """The caller's own tools, by canonical name."""

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        for each in tools:
            self.register(each)

    @overload
    def register(self, tool: Tool, /) -> None: ...

    @overload
    def register(self, definition: ToolDefinition, handler: Handler, /) -> None: ...

    def register(self, tool: Tool | ToolDefinition, handler: Handler | None = None, /) -> None:
        """Add a tool: one made with `@tool`, or a definition and its handler.

        The handler gets `(arguments, context)`: the checked arguments as a dict and a
        `ToolContext`; it may be async or plain.

        Raises:
            ArgumentError: the name is taken or is one of the program's, or the
                handler is missing.
        """
        if not isinstance(tool, Tool):
            if handler is None:
                message = f"the tool {tool.name} has a definition but no handler"
                raise ArgumentError(message, "handler")
            tool = tool_from(tool, handler)
        check_own_name(tool.name)
        if (other := TakenNames(self._tools).find(tool.name)) is not None:
            message = taken_message(tool.name, other)
            raise ArgumentError(message, "tool", {"tool_name": tool.name})
        self._tools[tool.name] = tool

    def get(self, name: str) -> Tool | None:
        """The tool of that canonical name."""
        return self._tools.get(name)

    def __iter__(self) -> Iterator[Tool]:
        return iter(tuple(self._tools.values()))

    def __len__(self) -> int:
        return len(self._tools)

    def __contains__(self, name: object) -> bool:
        return name in self._tools


AnyCall = TypeVar("AnyCall", bound=ToolCall | ToolCallBlock)

Renew = Callable[[], Awaitable[Iterable[Tool] | None]]
"""Return all tools of a run if they have changed since the last call, else None."""


_OF_OFFER = ("names", "definitions")
"""Properties of a toolbox that are read once for each offer."""


class Toolbox:
    """The effective tools of one run: the hard boundary of what it can see and do.

    Args:
        tools: what the run begins with.
        renew: asked before every turn; without it the tools stay as they are.
        deps: what the tools find at `ToolContext.deps`.
        run: the run that has the tools; needed for tools that are not offered to every run.
        ask_agent: starts children for tools made of agents, if the run can.
        expected: what the answer of the run has to be; None for plain text. The model is offered
            its tool with the other tools.

    Attributes:
        may_end_run: whether the call of a tool may end the run.
        handover: lets the run continue under another agent, if there are any.
        checks: the validators of the answer, if there are any.
        limits_retries: whether a tool limits how often it may be called again.
    """

    def __init__(
        self,
        tools: Iterable[Tool] = (),
        *,
        renew: Renew | None = None,
        deps: Any = None,
        expected: "ExpectedOutput | None" = None,
        run: RunIdentity | None = None,
        ask_agent: AskAgent | None = None,
    ) -> None:
        self.deps = deps
        self.ask_agent = ask_agent
        self.expected = expected
        self._run = run
        self._renew = renew
        self.take(tools)

    handover: Handover | None = None
    checks: Any = None

    @cached_property
    def at_work(self) -> Counter[str]:
        """The number of calls of each tool with a limit of retries that are being made."""
        return Counter()

    @cached_property
    def work_changed(self) -> asyncio.Condition:
        """Notified after each of these calls."""
        return asyncio.Condition()

    def take(self, tools: Iterable[Tool]) -> None:
        """Have these tools from now on."""
        self._all = self._tools = dict[str, Tool]()
        self._selects = self.may_end_run = self.limits_retries = False
        for each in tools:
            self._all[each.name] = each
            if each.is_enabled is not None or each.prepare_offer is not None:
                self._selects = True
            if each.ends_run:
                self.may_end_run = True
            if each.max_retries is not None:
                self.limits_retries = True
        if self.expected is not None and FINAL_ANSWER in self._tools:
            message = (
                f"a run with an output_type answers with the tool {FINAL_ANSWER}; rename yours"
            )
            raise ArgumentError(message, "tools")
        for known in _OF_OFFER:
            self.__dict__.pop(known, None)

    def catalog(self, room: int) -> str:  # noqa: ARG002 - subclasses use it
        """Return the list of deferred tools: empty, since this toolbox defers none."""
        return ""

    @property
    def may_change(self) -> bool:
        """Return whether the tools on offer may differ between turns."""
        return self._selects or self._renew is not None

    async def refresh(self) -> None:
        """Take changed tools, and select those to offer: the next turn offers the current ones.

        Raises:
            AgentCoreError: the function of a tool that selects it has failed.
        """
        if self._renew is not None and (tools := await self._renew()) is not None:
            self.take(tools)
        if self._selects:
            from agent_core.tools.offers import select_offered  # noqa: PLC0415 - few tools need it

            offered = await select_offered(self._all, self._tools, self._run, self.deps)
            if offered != self._tools:
                self._tools = offered
                for known in _OF_OFFER:
                    self.__dict__.pop(known, None)

    def offered(self) -> Iterable[Tool]:
        """Return the tools whose definitions are part of every request."""
        return self._tools.values()

    def unwrap(self, call: AnyCall) -> AnyCall:
        """The call that is meant, where one tool calls others."""
        return call

    @cached_property
    def names(self) -> frozenset[str]:
        """The canonical names."""
        return frozenset(self._tools)

    @cached_property
    def definitions(self) -> tuple[ToolDefinition, ...]:
        """Return the definitions shown to the model, by name: the same bytes in every turn."""
        definitions = [tool.definition for tool in self.offered()]
        if self.expected is not None and self.expected.tool is not None:
            definitions.append(self.expected.tool)
        return tuple(sorted(definitions, key=attrgetter("name")))

    def get(self, name: str) -> Tool | None:
        """The tool of that canonical name, if this run may use it."""
        return self._tools.get(name)

    def resolve(self, call: ToolCall) -> tuple[Tool, Any]:
        """The tool a call means, and its arguments, checked and parsed.

        Raises:
            ToolError: `tool_not_available`, or `validation_error` with the JSON path in
                `details.path`.
        """
        if REFUSED_CALL in call.metadata:
            raise ToolError(
                ErrorCode.VALIDATION_ERROR,
                "this call could not be read, and nothing was run; send it again, with an offered "
                f"tool and a JSON object as its arguments. {call.metadata['invalid_reason']}. It "
                f"was: {_cut(call)}",
                details={"path": "$"},
            )
        found = self._tools.get(call.name)
        if found is None:
            import difflib  # noqa: PLC0415 - only for names that are wrong

            near = difflib.get_close_matches(call.name[:200], self._tools, n=3)
            names = sorted(self._tools)[:_MAX_NAMED]
            hint = f"there are: {', '.join(names)}" if names else "this run has no tools"
            hint = f"did you mean {' or '.join(near)}?" if near else hint
            shown = shorten_name(call.name)
            raise ToolError(
                ErrorCode.TOOL_NOT_AVAILABLE,
                f"there is no tool {shown} here; {hint}",
                details={"tool_name": shown},
            )
        if "invalid_arguments" in call.metadata:
            raise ToolError(
                ErrorCode.VALIDATION_ERROR,
                f"the arguments of {call.name} are not a JSON object; send one. They were: "
                f"{_cut(call)}",
                details={"path": "$"},
            )
        return found, found.parse(call.arguments)

    def concurrency(self, call: ToolCall | ToolCallBlock) -> Concurrency:
        """Return how a call is ordered. A call of an unknown tool has no effect: it only reads."""
        found = self._tools.get(self.unwrap(call).name)
        return found.concurrency if found else Concurrency.READ

    def __iter__(self) -> Iterator[Tool]:
        """Iterate over all tools of the run, including those not offered now."""
        return iter(self._all.values())

    def __len__(self) -> int:
        return len(self._all)


def _cut(call: ToolCall) -> str:
    """Return the beginning of arguments that could not be read."""
    sent = str(call.metadata["invalid_arguments"])
    return sent if len(sent) <= 500 else sent[:500] + "…"


def apply_override(tool: Tool, override: "ToolOverrideConfig") -> Tool:
    """The tool with another permission or other tags, as the user's configuration wants it.

    A permission of `readonly` lets calls through unasked unless they ask for a reason of their
    own (a sensitive path, a place outside the roots); `write` asks every time.
    """
    if override.permission is None and override.tags is None:
        return tool
    tags = tool.definition.tags if override.tags is None else set(override.tags)
    keeps_permission = override.permission is None
    permission = ToolPermission(override.permission or tool.definition.permission)
    definition = tool.definition.model_copy(update={"permission": permission, "tags": tags})
    is_dangerous = "dangerous" in (override.tags or ())
    writes = permission is ToolPermission.WRITE

    async def prepare(arguments: Any, context: ToolContext) -> Action:
        action = await tool.prepare(arguments, context)
        access = action.access
        asks = access.asks if keeps_permission else writes or access.reason is not None
        access = replace(
            access, asks=asks or is_dangerous, dangerous=access.dangerous or is_dangerous
        )
        return replace(action, access=access)

    concurrency = tool.concurrency if keeps_permission else concurrency_of(definition)
    return replace(tool, definition=definition, prepare=prepare, concurrency=concurrency)
