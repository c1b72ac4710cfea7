"""A tool from a definition and a function: registered, declarative-like, or decorated."""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, cast

import orjson

from agent_core.errors import ConfigError, ErrorCode, ToolError
from agent_core.tools.base import Action, Tool, ToolContext, ToolReturn, concurrency_of
from agent_core.tools.json_schema import whole_schema
from agent_core.tools.results import storable
from agent_core.tools.schema import SchemaCheck
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
    _checked(definition.name, handler)
    check = SchemaCheck(definition.name, definition.input_schema)
    try:
        check.compiled()
    except ToolError as error:
        details = {"tool_name": definition.name}
        raise ConfigError(ErrorCode.VALIDATION_ERROR, error.message, details=details) from error
    whole = whole_schema(definition.input_schema)
    definition = definition.model_copy(update={"input_schema": whole})

    async def prepare(arguments: dict[str, Any], context: ToolContext) -> Action:
        return Action(
            access=plain_access(definition, arguments),
            run=partial(call, handler, arguments, context),
        )

    return Tool(
        definition=definition,
        parse=check,
        prepare=prepare,
        lane=concurrency_of(definition),
    )


def plain_access(definition: ToolDefinition, arguments: Mapping[str, Any]) -> Access:
    """What is known of a call whose effects are not: it asks unless it only reads."""
    writes = definition.permission is ToolPermission.WRITE
    return Access(
        asks=writes or not ALWAYS_ASKS.isdisjoint(definition.tags),
        summary=summary_of(arguments),
        dangerous="dangerous" in definition.tags,
    )


def summary_of(arguments: Mapping[str, Any]) -> str:
    """The arguments on one line, as JSON; what is cut off is counted."""
    line = orjson.dumps(storable(arguments)).decode()
    cut = len(line) - _MAX_SUMMARY
    return line if cut <= 0 else f"{line[:_MAX_SUMMARY]}… (+{cut} characters)"


async def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function of either colour; a plain one does not hold up the event loop.

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
    inner = plain_function(function)
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(
        getattr(type(inner), "__call__", None)  # noqa: B004 - its own, not whether there is one
    )


def is_generator(function: Callable[..., Any]) -> bool:
    """Whether calling the function makes a generator, as far as can be seen without calling it."""
    inner = plain_function(function)
    candidates = [inner, getattr(type(inner), "__call__", None)]  # noqa: B004 - as above
    candidates += [inspect.unwrap(each) for each in candidates if each is not None]
    return any(
        inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each) for each in candidates
    )


def plain_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function inside of `functools.partial` objects."""
    while isinstance(function, partial):
        function = cast("partial[Any]", function).func
    return function


def _checked(name: str, handler: Handler) -> None:
    """Make sure that a handler can be called as one.

    Raises:
        ConfigError: `validation_error`; it cannot.
    """
    if not callable(handler):
        raise _unfit(name, f"it is a {type(handler).__name__}, which cannot be called")
    if is_generator(handler):
        raise _unfit(name, "it is a generator; return a list of what it gives")
    try:
        inspect.signature(handler).bind({}, None)
    except TypeError as error:
        raise _unfit(name, f"it is called with (arguments, context), and {error}") from error
    except ValueError:  # a builtin without a signature
        return


def _unfit(name: str, reason: str) -> ConfigError:
    return ConfigError(
        ErrorCode.VALIDATION_ERROR, f"the handler of {name} cannot be used: {reason}"
    )
