"""Makes a tool of a definition and a handler, and calls handlers, async or plain."""

import inspect
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import cache, partial
from typing import Any, cast

import orjson

from agent_core.errors import ConfigError, ErrorCode, ToolError
from agent_core.tools.base import (
    Action,
    Concurrency,
    Prepare,
    Tool,
    ToolContext,
    ToolReturn,
    concurrency_of,
)
from agent_core.tools.json_schema import whole_schema
from agent_core.tools.results import storable
from agent_core.tools.schema import Arguments, SchemaCheck, model_check, model_schema
from agent_core.tools.threads import in_own_thread
from agent_core.types import Access, ToolDefinition, ToolPermission

Handler = Callable[[dict[str, Any], ToolContext], Awaitable[ToolReturn] | ToolReturn]
"""What `register` takes. A plain function runs in a thread of its own."""

ALWAYS_ASKS = frozenset({"dangerous", "network"})
"""Tags that ask even where the tool only reads."""

_MAX_SUMMARY = 4000


def tool_from(definition: ToolDefinition, handler: Handler) -> Tool:
    """Make a tool of a raw definition and what handles its calls.

    Raises:
        ConfigError: `validation_error`; the handler cannot be called as one, or the input schema
            cannot be used.
    """
    problem = None
    if not callable(handler):
        problem = f"it is a {type(handler).__name__}, which cannot be called"
    elif is_generator(handler):
        problem = "it is a generator; return a list of what it gives"
    else:
        try:
            inspect.signature(handler).bind({}, None)
        except TypeError as error:
            problem = f"it is called with (arguments, context), and {error}"
        except ValueError:  # a builtin without a signature
            pass
    if problem is not None:
        message = f"the handler of {definition.name} cannot be used: {problem}"
        raise ConfigError(ErrorCode.VALIDATION_ERROR, message)
    check = SchemaCheck(definition.name, definition.input_schema)
    try:
        check.compile()
    except ToolError as error:
        details = {"tool_name": definition.name}
        raise ConfigError(ErrorCode.VALIDATION_ERROR, error.message, details=details) from error
    whole = whole_schema(definition.input_schema)
    definition = definition.model_copy(update={"input_schema": whole})

    async def prepare(arguments: dict[str, Any], context: ToolContext) -> Action:
        access = plain_access(definition, arguments)
        return Action(access, partial(call, handler, arguments, context))

    return Tool(definition, check, prepare, concurrency_of(definition))


def model_tool(
    name: str,
    description: str,
    arguments: type[Arguments],
    prepare: Prepare,
    *,
    permission: ToolPermission = ToolPermission.READONLY,
    tags: Collection[str] = ("internal", "readonly"),
    concurrency: Concurrency | None = None,
    keeps_own_limits: bool = False,
    is_side_effect_free: bool = False,
) -> Tool:
    """Make a tool of the program's own, whose arguments are a model that `prepare` takes.

    The concurrency follows from the permission where none is given.
    """
    definition = _definition(name, description, arguments, permission, frozenset(tags))
    return Tool(
        definition=definition,
        parse=model_check(name, arguments),
        prepare=prepare,
        concurrency=concurrency or concurrency_of(definition),
        keeps_own_limits=keeps_own_limits,
        is_side_effect_free=is_side_effect_free,
    )


@cache
def _definition(
    name: str,
    description: str,
    arguments: type[Arguments],
    permission: ToolPermission,
    tags: frozenset[str],
) -> ToolDefinition:
    """One object for all runs: what is made of a definition is kept by identity."""
    schema = {key: value for key, value in model_schema(arguments).items() if key != "description"}
    return ToolDefinition(
        name=name,
        description=description,
        input_schema=schema,
        permission=permission,
        tags=set(tags),
    )


def plain_access(definition: ToolDefinition, arguments: Mapping[str, Any]) -> Access:
    """What is known of a call whose effects are not: it asks unless it only reads."""
    line = orjson.dumps(storable(arguments)).decode()
    cut = len(line) - _MAX_SUMMARY
    writes = definition.permission is ToolPermission.WRITE
    return Access(
        asks=writes or not ALWAYS_ASKS.isdisjoint(definition.tags),
        summary=line if cut <= 0 else f"{line[:_MAX_SUMMARY]}… (+{cut} characters)",
        dangerous="dangerous" in definition.tags,
    )


async def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call an async or a plain function; a plain one does not hold up the event loop.

    Raises:
        ToolError: `internal_error`; it returned a generator.
    """
    if is_async(function):
        result = await function(*args, **kwargs)
    else:
        result = await in_own_thread(partial(function, *args, **kwargs))
        if inspect.isawaitable(result):
            result = await result
    if inspect.isgenerator(result) or inspect.isasyncgen(result) or inspect.iscoroutine(result):
        if not inspect.isasyncgen(result):
            result.close()
        message = f"the tool returned a {type(result).__name__}; it has to return what that gives"
        raise ToolError(ErrorCode.INTERNAL_ERROR, f"{message}, for example as a list")
    return result


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling the function makes a coroutine: it is one, or an object that is one."""
    return any(map(inspect.iscoroutinefunction, _inner_functions(function)))


def is_generator(function: Callable[..., Any]) -> bool:
    """Whether calling the function makes a generator, as far as can be seen without calling it."""
    inner = _inner_functions(function)
    candidates = [*inner, *map(inspect.unwrap, inner)]
    return any(
        inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each) for each in candidates
    )


def _inner_functions(function: Callable[..., Any]) -> list[Callable[..., Any]]:
    inner = plain_function(function)
    own = getattr(type(inner), "__call__", None)  # noqa: B004 - its own, not whether there is one
    return [inner] if own is None else [inner, own]


def plain_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function inside of `functools.partial` objects."""
    while isinstance(function, partial):
        function = cast("partial[Any]", function).func
    return function
