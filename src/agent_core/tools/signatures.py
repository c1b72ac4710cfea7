"""What a function's signature says: the parameters a model fills, their types and defaults."""

import collections.abc
import copy
import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, Union, cast, get_args, get_origin, get_type_hints

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined, to_jsonable_python

from agent_core.tools.base import ToolContext
from agent_core.tools.handler import plain_function

_LONGEST_DEFAULT = 1_000
_GENERATORS = {
    *(collections.abc.Generator, collections.abc.AsyncGenerator),
    *(collections.abc.Iterator, collections.abc.AsyncIterator),
}
_PACKAGE = "agent_core.tools."


class UnfitError(Exception):
    """Why a function cannot be a tool, as one clause."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument as the model sees it.

    Attributes:
        name: as in the signature.
        hint: its type with all constraints; a default of a `Field` is taken out of it.
        required: the model has to give it.
        shown_default: the default as JSON text, if it has a form in JSON that is worth showing.
        description: from the docstring.
        takes_context: it is filled in with the `ToolContext`, and not shown.
        has_field_default: its default stands in a `Field`, so that Python does not fill it in.
        value: makes the default of a `Field`.
    """

    name: str
    hint: Any
    required: bool
    shown_default: str | None = None
    description: str = ""
    takes_context: bool = False
    has_field_default: bool = False
    value: Callable[[], Any] = field(default=NoneType, compare=False)


def parameters_of(function: Callable[..., Any]) -> Iterator[Parameter]:
    """The parameters of a function in order, those that a `partial` fills by name left out.

    Raises:
        UnfitError: one of them cannot be filled by name, or its annotation cannot be read.
    """
    bound = _bound_names(function)
    names = _Names(function)
    for place, parameter in enumerate(_signature(function).parameters.values()):
        if parameter.name in bound:
            continue
        _check_kind(parameter, is_first=place == 0)
        yield _parameter(parameter, names.hint(parameter))


def returns_generator(function: Callable[..., Any]) -> bool:
    """Whether the annotation of the result says that it is a generator or an iterator."""
    annotation = _signature(function).return_annotation
    try:
        hint = _Names(function).evaluated("return", annotation)
    except Exception:  # noqa: BLE001 - what a tool returns needs no annotation that can be read
        return False
    return (get_origin(hint) or hint) in _GENERATORS


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise UnfitError(f"its signature cannot be read ({error})") from error


def _bound_names(function: Callable[..., Any]) -> set[str]:
    bound: set[str] = set()
    while isinstance(function, partial):
        known = cast("partial[Any]", function)
        bound |= known.keywords.keys()
        function = known.func
    return bound


def _check_kind(parameter: inspect.Parameter, *, is_first: bool) -> None:
    name = parameter.name
    match parameter.kind:
        case parameter.VAR_POSITIONAL | parameter.VAR_KEYWORD:
            raise UnfitError(f"{parameter} takes arguments without names; name each of them")
        case parameter.POSITIONAL_ONLY:
            raise UnfitError(f"{name} is positional-only; remove the / behind it")
        case _:
            pass
    if is_first and name in {"self", "cls"} and parameter.annotation is parameter.empty:
        raise UnfitError(f"{name} is unfilled; make the tool of the bound method instead")


class _Names:
    """Where the names in a function's annotations are looked up."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._globals = _globals_of(function)
        self._locals = _names_where_called(self._globals)

    def hint(self, parameter: inspect.Parameter) -> Any:
        annotation = parameter.annotation
        if annotation is parameter.empty:
            return Any
        try:
            return self.evaluated(parameter.name, annotation)
        except Exception as error:
            what = f"the annotation of {parameter.name} cannot be read"
            raise UnfitError(f"{what} ({type(error).__name__}: {error})") from error

    def evaluated(self, name: str, annotation: object) -> Any:
        holder = SimpleNamespace(__annotations__={name: annotation})
        hints = get_type_hints(holder, self._globals, self._locals, include_extras=True)
        return hints[name]


def _globals_of(function: Callable[..., Any]) -> dict[str, Any]:
    inner = plain_function(function)
    if isinstance(inner, type):
        inner = cast("Any", inner).__init__
    elif not hasattr(inner, "__globals__"):
        inner = getattr(type(inner), "__call__", inner)  # noqa: B004 - its own
    return getattr(inspect.unwrap(inner), "__globals__", {})


def _names_where_called(function_globals: Mapping[str, Any]) -> dict[str, Any]:
    """The local names where the tool is made, if the function is of the same module.

    An annotation that is text may name a class of the function around it.
    """
    frame = inspect.currentframe()
    while frame and str(frame.f_globals.get("__name__", "")).startswith(_PACKAGE):
        frame = frame.f_back
    if frame is None or frame.f_globals is not function_globals:
        return {}
    return {} if frame.f_locals is frame.f_globals else dict(frame.f_locals)


def _parameter(parameter: inspect.Parameter, hint: Any) -> Parameter:
    name, default = parameter.name, parameter.default
    if _is_context(hint):
        return Parameter(name=name, hint=ToolContext, required=False, takes_context=True)
    fields = [part for part in getattr(hint, "__metadata__", ()) if isinstance(part, FieldInfo)]
    if isinstance(default, FieldInfo):
        fields, hint = [*fields, default], Annotated[hint, default]
        default = parameter.empty
    if not fields:
        is_required = default is parameter.empty
        shown = None if is_required else _shown(default)
        return Parameter(name=name, hint=hint, required=is_required, shown_default=shown)
    base, *metadata = get_args(hint)
    made = Parameter(
        name=name,
        hint=Annotated[base, *(_without_default(part) for part in metadata)],
        required=default is parameter.empty,
        shown_default=None if default is parameter.empty else _shown(default),
    )
    for info in fields:
        _check_field(name, info)
    return made if default is not parameter.empty else _with_field_default(made, fields)


def _is_context(hint: Any) -> bool:
    origin = get_origin(hint)
    if origin is Annotated:
        return _is_context(get_args(hint)[0])
    if origin in {Union, UnionType}:
        return any(_is_context(each) for each in get_args(hint))
    return hint is ToolContext


def _check_field(name: str, info: FieldInfo) -> None:
    if info.alias or info.validation_alias or info.serialization_alias:
        raise UnfitError(f"{name} has an alias; give the parameter that name instead")
    factory = info.default_factory
    if factory is not None and info.default_factory_takes_validated_data:
        raise UnfitError(f"the default_factory of {name} takes arguments; use one that takes none")


def _with_field_default(made: Parameter, fields: list[FieldInfo]) -> Parameter:
    """With the default of the last `Field` that has one."""
    for info in reversed(fields):
        if info.default_factory is not None:
            factory = cast("Callable[[], Any]", info.default_factory)
            return replace(made, required=False, has_field_default=True, value=factory)
        default = info.default
        if default is not PydanticUndefined and default is not ...:
            return replace(
                made,
                required=False,
                shown_default=_shown(default),
                has_field_default=True,
                value=partial(copy.deepcopy, default),
            )
    return made


def _without_default(part: Any) -> Any:
    """A `Field` with its constraints only; the default is filled in beside pydantic."""
    if not isinstance(part, FieldInfo):
        return part
    bare = copy.copy(part)
    bare.default, bare.default_factory = PydanticUndefined, None
    known = cast("dict[str, Any]", getattr(part, "_attributes_set", {}))
    kept = {key: value for key, value in known.items() if key not in {"default", "default_factory"}}
    bare._attributes_set = kept  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    return bare


def _shown(default: object) -> str | None:
    """The default as JSON; None for null, for what JSON has no form for, and for what is long."""
    if default is None or isinstance(default, set | frozenset | collections.abc.Iterator):
        return None
    try:
        text = json.dumps(to_jsonable_python(default), allow_nan=False)
    except (ValueError, TypeError, RecursionError):
        return None
    return text if len(text) <= _LONGEST_DEFAULT else None
