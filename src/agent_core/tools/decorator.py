"""`@tool`: a typed function becomes a tool. Schema and validation come from its signature."""

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Annotated, Any, Generic, NotRequired, ParamSpec, TypeVar, cast, overload

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, JsonSchemaWarningKind
from pydantic_core.core_schema import AfterValidatorFunctionSchema, ChainSchema

# typing.TypedDict of Python 3.11 keeps too little for pydantic to read.
from typing_extensions import TypedDict

from agent_core.errors import ConfigError, ErrorCode
from agent_core.tools.base import Action, Tool, ToolContext, concurrency_of
from agent_core.tools.constraints import check_constraint, is_misfit
from agent_core.tools.docstrings import docstring_of
from agent_core.tools.handler import call, is_generator, plain_access, plain_function
from agent_core.tools.schema import Json, misfit, small_schema, without_nulls
from agent_core.tools.signatures import Parameter, UnfitError, parameters_of, returns_generator
from agent_core.types import ToolDefinition, ToolPermission

_SHOWN = 100

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionTool(Tool, Generic[P, R]):
    """A tool made of a function, which can still be called as one."""

    function: Callable[P, R]
    parameters: tuple[Parameter, ...] = ()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        late = [each for each in self.parameters if each.has_field_default]
        if not late:
            return self.function(*args, **kwargs)
        given = inspect.signature(self.function).bind(*args, **kwargs)
        for each in late:
            given.arguments.setdefault(each.name, each.value())
        given.apply_defaults()
        return self.function(*given.args, **given.kwargs)


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

    Parameters become the input schema, with pydantic models and `Field(…)`, as a default or in
    `Annotated`; a parameter annotated `ToolContext` is filled in and not shown, and so is what a
    `functools.partial` has filled by name. The docstring's text is the description, and what it
    says of the parameters (Google, NumPy or Sphinx style) describes them.

    Args:
        function: given when the decorator is used without parentheses.
        name: the canonical name; the function's own by default.
        description: instead of the docstring's text.
        permission: `readonly` or `write`; a write asks the user before each call.
        tags: for hooks and permissions; `dangerous` and `network` always ask.

    Raises:
        ConfigError: `validation_error`; it is a generator, or a parameter, which is named, cannot
            be filled by name or has no form in JSON Schema.
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
        except TypeError as error:
            if not is_misfit(error):
                raise  # a validator of the tool's own broke
            raise misfit(tool_name, error) from error


def _function_tool(
    function: Callable[P, R],
    name: str | None,
    description: str | None,
    permission: ToolPermission | str,
    tags: Iterable[str],
) -> FunctionTool[P, R]:
    own_name = _own_name(function)
    try:
        shown, context_names = _read(function)
        doc = docstring_of(_documented(function))
        described = tuple(
            replace(each, description=doc.arguments.get(each.name, "")) for each in shown
        )
        signature = _signature(own_name, described)
    except UnfitError as error:
        message = f"{own_name}() cannot be a tool: {error}"
        raise ConfigError(ErrorCode.VALIDATION_ERROR, message) from error
    try:
        definition = ToolDefinition(
            name=own_name if name is None else name,
            description=doc.text if description is None else description,
            input_schema=signature.schema,
            permission=ToolPermission(permission),
            tags=set(tags),
        )
    except ValueError as error:
        message = f"{own_name}() cannot be a tool: {_first_fault(error)}"
        raise ConfigError(ErrorCode.VALIDATION_ERROR, message) from error
    late = [each for each in described if each.has_field_default]

    async def prepare(arguments: Json, context: ToolContext) -> Action:
        filled = {each.name: each.value() for each in late if each.name not in arguments}
        injected = dict.fromkeys(context_names, context)
        return Action(
            access=plain_access(definition, arguments),
            run=partial(call, function, **arguments, **filled, **injected),
        )

    return FunctionTool(
        definition=definition,
        parse=partial(signature.check, definition.name),
        prepare=prepare,
        lane=concurrency_of(definition),
        function=function,
        parameters=described,
    )


def _first_fault(error: ValueError) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False, include_context=False)[0]
    place = ".".join(map(str, first["loc"]))
    return f"its {place} {str(first['input'])[:_SHOWN]!r} does not fit: {first['msg']}"


def _read(function: Callable[..., Any]) -> tuple[tuple[Parameter, ...], tuple[str, ...]]:
    """The parameters that a model fills, and the names of those that get the context.

    Raises:
        UnfitError: the function cannot be a tool.
    """
    if not callable(function):
        kind = type(cast("object", function)).__name__
        raise UnfitError(f"it is a {kind}; decorate a function, or make it of a bound method")
    if is_generator(function):
        raise UnfitError("it is a generator; return a list of what it gives")
    if returns_generator(function):
        raise UnfitError("it says that it returns a generator or an iterator; return a list")
    found = list(parameters_of(function))
    shown = tuple(each for each in found if not each.takes_context)
    return shown, tuple(each.name for each in found if each.takes_context)


def _own_name(function: Callable[..., Any]) -> str:
    inner = plain_function(function)
    return str(getattr(inner, "__name__", type(inner).__name__))


def _documented(function: Callable[..., Any]) -> object:
    """What carries the docstring: the function inside of a partial, or an object's `__call__`."""
    inner = plain_function(function)
    if inspect.isroutine(inner) or isinstance(inner, type):
        return inner
    own = getattr(type(inner), "__call__", None)  # noqa: B004 - its own, not whether there is one
    return own if getattr(own, "__doc__", None) else inner


def _signature(name: str, parameters: tuple[Parameter, ...]) -> Signature:
    try:
        hash(parameters)
    except TypeError:  # an annotation that cannot be hashed: compiled anew each time
        return _compiled.__wrapped__(name, parameters)
    return _compiled(name, parameters)


@lru_cache(maxsize=512)
def _compiled(name: str, parameters: tuple[Parameter, ...]) -> Signature:
    """The parameters compiled.

    Raises:
        UnfitError: one of them has no form in JSON Schema; it is named.
    """
    try:
        return _compile(name, parameters)
    except Exception as error:
        raise UnfitError(_reason(name, parameters, error)) from error


def _reason(name: str, parameters: tuple[Parameter, ...], error: Exception) -> str:
    for parameter in parameters:
        try:
            _compile(name, (parameter,))
        except Exception as own:  # noqa: BLE001 - pydantic and the types of others raise anything
            return f"{parameter.name}: {str(own).partition(chr(10))[0]}"
    return str(error).partition("\n")[0]


def _compile(name: str, parameters: tuple[Parameter, ...]) -> Signature:
    fields: dict[str, Any] = {}
    for parameter in parameters:
        described = parameter.hint
        if parameter.description and not _has_description(parameter.hint):
            described = Annotated[parameter.hint, Field(description=parameter.description)]
        fields[parameter.name] = described if parameter.required else NotRequired[described]
    shape = cast("Any", TypedDict)(name, fields)
    shape.__pydantic_config__ = ConfigDict(extra="forbid")
    adapter = cast("TypeAdapter[Json]", TypeAdapter(shape))
    schema = small_schema(adapter.json_schema(schema_generator=_WholeSchema))
    for parameter in parameters:
        if parameter.shown_default is not None:
            default = json.loads(parameter.shown_default)
            schema["properties"][parameter.name].setdefault("default", default)
    schema.setdefault("properties", {})
    required = frozenset(parameter.name for parameter in parameters if parameter.required)
    return Signature(adapter, schema, required)


def _has_description(hint: Any) -> bool:
    parts = getattr(hint, "__metadata__", ())
    return any(isinstance(part, FieldInfo) and part.description for part in parts)


class _WholeSchema(GenerateJsonSchema):
    """A schema that says all of a type, or none.

    No choice of a union is left out silently, and no constraint stands where it cannot hold.
    """

    def function_after_schema(self, schema: AfterValidatorFunctionSchema) -> JsonSchemaValue:
        """What is checked after the type."""
        check_constraint(schema)
        return super().function_after_schema(schema)

    def chain_schema(self, schema: ChainSchema) -> JsonSchemaValue:
        """What is checked one after the other."""
        check_constraint(schema)
        return super().chain_schema(schema)

    def emit_warning(self, kind: JsonSchemaWarningKind, detail: str) -> None:
        """Refuse what would be left out; a default that JSON has no form for is not shown."""
        if kind == "skipped-choice":
            raise PydanticInvalidForJsonSchema(detail)
