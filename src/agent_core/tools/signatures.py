"""What a function's signature declares: the parameters a model fills, their types and defaults."""

import collections.abc
import copy
import inspect
import json
from collections.abc import Callable, Iterator
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
        has_field_default: its default is that of a `Field`, so that Python does not fill it in.
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
    inner, bound = function, set[str]()
    while isinstance(inner, partial):
        known = cast("partial[Any]", inner)
        bound |= known.keywords.keys()
        inner = known.func
    scope = _scope_of(function)
    for place, parameter in enumerate(_signature(function).parameters.values()):
        if parameter.name in bound:
            continue
        _check_kind(parameter, is_first=place == 0)
        hint: Any = Any
        if parameter.annotation is not parameter.empty:
            try:
                hint = _evaluate(parameter.annotation, scope)
            except Exception as error:
                what = f"the annotation of {parameter.name} cannot be read"
                raise UnfitError(f"{what} ({type(error).__name__}: {error})") from error
        yield _parameter(parameter, hint)


def returns_generator(function: Callable[..., Any]) -> bool:
    """Whether the annotation declares the result to be a generator or an iterator."""
    annotation = _signature(function).return_annotation
    try:
        hint = _evaluate(annotation, _scope_of(function))
    except Exception:  # noqa: BLE001 - what a tool returns needs no annotation that can be read
        return False
    return (get_origin(hint) or hint) in _GENERATORS


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise UnfitError(f"its signature cannot be read ({error})") from error


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


def _evaluate(annotation: object, scope: tuple[dict[str, Any], dict[str, Any]]) -> Any:
    holder = SimpleNamespace(__annotations__={"it": annotation})
    return get_type_hints(holder, *scope, include_extras=True)["it"]


def _scope_of(function: Callable[..., Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Where the names in a function's annotations are looked up: its globals, and local names.

    The local names are those where the tool is made, if the function is of the same module: an
    annotation that is text may name a class of the function around it.
    """
    inner = plain_function(function)
    if isinstance(inner, type):
        inner = cast("Any", inner).__init__
    elif not hasattr(inner, "__globals__"):
        inner = getattr(type(inner), "__call__", inner)  # noqa: B004 - its own
    names: dict[str, Any] = getattr(inspect.unwrap(inner), "__globals__", {})
    frame = inspect.currentframe()
    while frame and str(frame.f_globals.get("__name__", "")).startswith(_PACKAGE):
        frame = frame.f_back
    if frame is None or frame.f_globals is not names or frame.f_locals is frame.f_globals:
        return names, {}
    return names, dict(frame.f_locals)


def _parameter(parameter: inspect.Parameter, hint: Any) -> Parameter:
    name, default = parameter.name, parameter.default
    if _is_context(hint):
        return Parameter(name=name, hint=ToolContext, required=False, takes_context=True)
    fields = [part for part in getattr(hint, "__metadata__", ()) if isinstance(part, FieldInfo)]
    if isinstance(default, FieldInfo):
        fields, hint = [*fields, default], Annotated[hint, default]
        default = parameter.empty
    for info in fields:
        if info.alias or info.validation_alias or info.serialization_alias:
            raise UnfitError(f"{name} has an alias; give the parameter that name instead")
        if info.default_factory is not None and info.default_factory_takes_validated_data:
            what = f"the default_factory of {name} takes arguments"
            raise UnfitError(f"{what}; use one that takes none")
    if fields:
        base, *metadata = get_args(hint)
        hint = Annotated[base, *(_without_default(part) for part in metadata)]
    if default is not parameter.empty:
        return Parameter(name=name, hint=hint, required=False, shown_default=_shown(default))
    return _with_field_default(Parameter(name=name, hint=hint, required=True), fields)


def _is_context(hint: Any) -> bool:
    origin = get_origin(hint)
    if origin is Annotated:
        return _is_context(get_args(hint)[0])
    if origin in {Union, UnionType}:
        return any(_is_context(each) for each in get_args(hint))
    return hint is ToolContext


def _with_field_default(parameter: Parameter, fields: list[FieldInfo]) -> Parameter:
    """With the default of the last `Field` that has one."""
    for info in reversed(fields):
        if info.default_factory is not None:
            factory = cast("Callable[[], Any]", info.default_factory)
            return replace(parameter, required=False, has_field_default=True, value=factory)
        default = info.default
        if default is not PydanticUndefined and default is not ...:
            return replace(
                parameter,
                required=False,
                shown_default=_shown(default),
                has_field_default=True,
                value=partial(copy.deepcopy, default),
            )
    return parameter


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
