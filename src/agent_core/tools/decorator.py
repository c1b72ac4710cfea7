"""`@tool`: a typed function becomes a tool. Schema and validation come from its signature."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import (
    Annotated,
    Any,
    Generic,
    NotRequired,
    ParamSpec,
    TypeVar,
    cast,
    get_type_hints,
    overload,
)

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

# typing.TypedDict of Python 3.11 keeps too little for pydantic to read.
from typing_extensions import TypedDict

from agent_core.errors import ConfigError, ErrorCode
from agent_core.tools.base import Action, Tool, ToolContext
from agent_core.tools.docstrings import docstring_of
from agent_core.tools.handler import call, lane_of, plain_access
from agent_core.tools.schema import Json, misfit, small_schema, without_nulls
from agent_core.types import ToolDefinition, ToolPermission

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionTool(Tool, Generic[P, R]):
    """A tool made of a function, which can still be called as one."""

    function: Callable[P, R]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)


@overload
def tool(function: Callable[P, R], /) -> FunctionTool[P, R]: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    permission: ToolPermission | str = ToolPermission.WRITE,
    tags: Iterable[str] = (),
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    permission: ToolPermission | str = ToolPermission.WRITE,
    tags: Iterable[str] = (),
) -> Any:
    """Make a tool of a function, async or plain (a plain one runs in a thread).

    Parameters become the input schema, pydantic models and `Annotated[…, Field(…)]` included; a
    parameter annotated `ToolContext` is filled in and not shown. The docstring's text is the
    description, its `Args` describe the parameters.

    Args:
        function: given when the decorator is used without parentheses.
        name: the canonical name; the function's own by default.
        description: instead of the docstring's text.
        permission: `readonly` or `write`; a write asks the user before each call.
        tags: for hooks and permissions; `dangerous` and `network` always ask.

    Raises:
        ConfigError: `validation_error`; the signature cannot be a set of named arguments.
    """
    if function is None:
        return partial(
            _function_tool,
            name=name,
            description=description,
            permission=permission,
            tags=tags,
        )
    return _function_tool(function, name, description, permission, tags)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument as the model sees it. `default` is shown in the schema if JSON has it."""

    name: str
    hint: Any
    required: bool
    default: str | int | float | bool | None = None
    description: str = ""


@dataclass(frozen=True, slots=True)
class Signature:
    """The arguments of a function, compiled."""

    adapter: TypeAdapter[Json]
    schema: Json
    required: frozenset[str]

    def check(self, tool_name: str, arguments: Mapping[str, Any]) -> Json:
        try:
            given = without_nulls(arguments, keep=self.required)
            return self.adapter.validate_python(given)
        except (ValidationError, RecursionError) as error:
            raise misfit(tool_name, error) from error


def _function_tool(
    function: Callable[P, R],
    name: str | None,
    description: str | None,
    permission: ToolPermission | str,
    tags: Iterable[str],
) -> FunctionTool[P, R]:
    own_name = str(getattr(function, "__name__", type(function).__name__))
    doc = docstring_of(function)
    context_name, parameters = _parameters(function, own_name, doc.arguments)
    signature = _signature(own_name, parameters)
    definition = ToolDefinition(
        name=name or own_name,
        description=doc.text if description is None else description,
        input_schema=signature.schema,
        permission=ToolPermission(permission),
        tags=set(tags),
    )

    async def prepare(arguments: Json, context: ToolContext) -> Action:
        injected = {context_name: context} if context_name else {}
        return Action(
            access=plain_access(definition, arguments),
            run=partial(call, function, **arguments, **injected),
        )

    return FunctionTool(
        definition=definition,
        parse=partial(signature.check, definition.name),
        prepare=prepare,
        lane=lane_of(definition),
        function=function,
    )


def _parameters(
    function: Callable[..., Any], name: str, described: Mapping[str, str]
) -> tuple[str | None, tuple[Parameter, ...]]:
    """The name of the context parameter, if there is one, and all others in order."""
    hints = _hints(function, name)
    context_name: str | None = None
    parameters: list[Parameter] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}:
            raise _unfit(name, f"{parameter} has no name a caller could use; give it one")
        hint = hints.get(parameter.name, Any)
        if hint is ToolContext:
            context_name = parameter.name
            continue
        default = parameter.default
        parameters.append(
            Parameter(
                name=parameter.name,
                hint=hint,
                required=default is parameter.empty,
                default=default if isinstance(default, str | int | float) else None,
                description=described.get(parameter.name, ""),
            )
        )
    return context_name, tuple(parameters)


def _hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    target = function if hasattr(function, "__code__") else getattr(function, "__call__", function)  # noqa: B004
    try:
        return get_type_hints(target, include_extras=True)
    except (NameError, TypeError) as error:
        raise _unfit(name, f"its annotations cannot be read ({error})") from error


def _signature(name: str, parameters: tuple[Parameter, ...]) -> Signature:
    try:
        return _compiled(name, parameters)
    except TypeError:  # an annotation that cannot be hashed: compiled anew each time
        return _compiled.__wrapped__(name, parameters)


@lru_cache(maxsize=512, typed=True)
def _compiled(name: str, parameters: tuple[Parameter, ...]) -> Signature:
    fields: dict[str, Any] = {}
    for parameter in parameters:
        described = parameter.hint
        if parameter.description:
            described = Annotated[described, Field(description=parameter.description)]
        fields[parameter.name] = described if parameter.required else NotRequired[described]
    shape = cast("Any", TypedDict)(name, fields)
    shape.__pydantic_config__ = ConfigDict(extra="forbid")
    try:
        adapter = cast("TypeAdapter[Json]", TypeAdapter(shape))
        schema = small_schema(adapter.json_schema())
    except PydanticUserError as error:
        raise _unfit(name, str(error).partition("\n")[0]) from error
    for parameter in parameters:
        if parameter.default is not None:
            schema["properties"][parameter.name].setdefault("default", parameter.default)
    schema.setdefault("properties", {})
    required = frozenset(parameter.name for parameter in parameters if parameter.required)
    return Signature(adapter, schema, required)


def _unfit(name: str, reason: str) -> ConfigError:
    return ConfigError(ErrorCode.VALIDATION_ERROR, f"{name}() cannot be a tool: {reason}")
