"""From the signature of a function, or a type, to the schema that a model gets.

A schema is complete or refused. Parameters have types, defaults and descriptions; three styles of
docstrings are read: Google (`Args:`), NumPy (`Parameters` underlined) and Sphinx (`:param x:`).
"""

import collections.abc
import copy
import inspect
import json
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from decimal import Decimal
from functools import lru_cache, partial
from itertools import pairwise
from types import FunctionType, NoneType, SimpleNamespace, UnionType
from typing import (
    Annotated,
    Any,
    NotRequired,
    Required,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from msgspec import Struct
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, JsonSchemaWarningKind
from pydantic_core import PydanticUndefined, to_jsonable_python
from pydantic_core.core_schema import (
    AfterValidatorFunctionSchema,
    ChainSchema,
    IsSubclassSchema,
)

# typing.TypedDict of Python 3.11 keeps too little for pydantic to read.
from typing_extensions import TypedDict

from agent_core.text import kind_of
from agent_core.tools.base import ToolContext
from agent_core.tools.callables import is_generator, plain_function
from agent_core.tools.schema import Json, misfit, small_schema, without_nulls
from agent_core.tools.values import may_be_written

_LONGEST_DEFAULT = 1_000
_MAKERS = (threading.Lock, threading.RLock)
"""Before Python 3.13 these are functions, although annotations use them as types."""
_PACKAGE = "agent_core.tools."
_COMMON = "Returns?|Yields?|Raises|Examples?|Notes?|Attributes|Warnings?|See Also|References"
_SECTION = rf"(Args|Arguments|Parameters|Params|{_COMMON}):\s*$"
_TITLE = rf"(Parameters|Other Parameters|{_COMMON})\s*$"
_UNDERLINE = r"-{3,}\s*$"
_NUMPY_ARGUMENT = re.compile(r"\*{0,2}(\w+)(?:\s*:.*)?()$")
_FIELD = r":(\w+)(?:\s+(?:[^:]*\s)?\*{0,2}(\w+))?:\s*(.*)$"
_FIELDS = frozenset({"param", "parameter", "arg", "argument", "key", "keyword"})
_OTHER_FIELDS = frozenset({"type", "return", "returns", "rtype", "raise", "raises", "yield"})
_ARGUMENT = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_ARGUMENT_SECTIONS = frozenset({"Args", "Arguments", "Parameters", "Params"})


_SAMPLES: Mapping[str, object] = {
    "bool": True,
    "bytes": b"a",
    "decimal": Decimal(1),
    "dict": {},
    "float": 1.0,
    "int": 1,
    "frozenset": frozenset[Any](),
    "list": [],
    "none": None,
    "set": set[Any](),
    "str": "a",
    "tuple": (),
    "typed-dict": {},
}
"""A value of each type of which it is known how its values behave."""


class UnfitError(Exception):
    """A function cannot be a tool; the text gives the reason as one clause."""


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
        deps_types: the types that its annotation allows for `ToolContext.deps`.
        has_field_default: its default comes from a `Field`, so Python does not fill it in.
        defaults_to_none: its default is None.
        value: makes the default of a `Field`.
    """

    name: str
    hint: Any
    required: bool
    shown_default: str | None = None
    description: str = ""
    takes_context: bool = False
    deps_types: tuple[Any, ...] = ()
    has_field_default: bool = False
    defaults_to_none: bool = False
    value: Callable[[], Any] = field(default=NoneType, compare=False)


def read_parameters(
    function: Callable[..., Any], descriptions: Mapping[str, str], *, returns_json: bool = True
) -> list[Parameter]:
    """Read the parameters that a model or the context fills, in order.

    Parameters that a `partial` fills by name are left out. What the function returns has to have a
    form in JSON, if `returns_json`.

    Raises:
        UnfitError: the function cannot be a tool, or one of them cannot be filled by name, or its
            annotation cannot be read.
    """
    if not callable(function):
        kind = kind_of(function)
        raise UnfitError(f"it is {kind}; decorate a function, or make it of a bound method")
    if is_generator(function):
        raise UnfitError("it is a generator; return a list of what it gives")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise UnfitError(f"its signature cannot be read ({error})") from error
    if returns_json:
        require_writable_return(function, signature)
    scope = _scope_of(function)
    inner, bound = function, set[str]()
    while isinstance(inner, partial):
        known = cast("partial[Any]", inner)
        bound |= known.keywords.keys()
        inner = known.func
    return [
        _read_parameter(parameter, place == 0, scope, descriptions.get(parameter.name, ""))
        for place, parameter in enumerate(signature.parameters.values())
        if parameter.name not in bound
    ]


Scope = tuple[dict[str, Any], dict[str, Any]]
"""Global and local names that an annotation may use."""


def require_writable_return(function: Callable[..., Any], signature: inspect.Signature) -> None:
    """Refuse a function whose return annotation names a type that JSON can never express.

    Raises:
        UnfitError: it does.
    """
    if signature.return_annotation is signature.empty:
        return
    try:
        returned = _evaluate(signature.return_annotation, _scope_of(function))
    except Exception:  # noqa: BLE001 - a return annotation need not be readable
        return
    misfit = _find_unwritable(returned)
    if misfit is None:
        return
    if issubclass(misfit, collections.abc.Iterator | collections.abc.AsyncIterable):
        raise UnfitError("it says that it returns a generator or an iterator; return a list")
    raise UnfitError(
        f"it says that it returns {misfit.__name__}, which JSON cannot express; return text, bytes,"
        " a dict, a list, a model or a dataclass"
    )


def _find_unwritable(hint: Any) -> type[Any] | None:
    """Return the class because of which no value of an annotated type can be written."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _find_unwritable(arguments[0])
    if origin in {Union, UnionType}:  # one writable choice is enough; null alone says nothing
        found = [_find_unwritable(each) for each in arguments if each is not NoneType]
        return found[0] if found and None not in found else None
    kind: Any = hint if origin is None else origin
    if kind in _MAKERS:
        return type(kind())
    if hasattr(kind, "__supertype__"):
        return _find_unwritable(kind.__supertype__)
    if hasattr(kind, "__value__"):  # of a `type` statement
        return _find_unwritable(kind.__value__)
    if not isinstance(kind, type):
        return None
    kind = cast("type[Any]", kind)
    if kind is cast("Any", collections.abc.Callable):
        return FunctionType
    if issubclass(kind, collections.abc.Awaitable):  # it is awaited
        return _find_unwritable(arguments[-1]) if arguments else None
    if not may_be_written(kind):
        return kind
    if is_dataclass(kind) or not issubclass(kind, collections.abc.Iterable):
        return None
    inside = [_find_unwritable(each) for each in arguments if each is not Ellipsis]
    if issubclass(kind, tuple) and None in inside:
        return None
    return next(filter(None, inside), None)


_CONTEXTS = frozenset({"context", "ctx"})
"""Names that functions give to the context, which the model must not be asked for."""


def _read_parameter(
    parameter: inspect.Parameter,
    is_first: bool,
    scope: Scope,
    description: str,
) -> Parameter:
    name, default = parameter.name, parameter.default
    if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
        raise UnfitError(f"{parameter} takes arguments without names; name each of them")
    if parameter.kind is parameter.POSITIONAL_ONLY:
        raise UnfitError(f"{name} is positional-only; remove the / after it")
    hint: Any = Any
    if parameter.annotation is not parameter.empty:
        try:
            hint = _evaluate(parameter.annotation, scope)
        except Exception as error:
            what = f"the annotation of {name} cannot be read"
            raise UnfitError(f"{what} ({type(error).__name__}: {error})") from error
    elif is_first and name in {"self", "cls"}:
        raise UnfitError(f"{name} is unfilled; make the tool of the bound method instead")
    elif name in _CONTEXTS:
        cure = f"write {name}: ToolContext, or a type such as {name}: str if the model fills it in"
        raise UnfitError(f"{name} has no annotation; {cure}")
    if _is_context(hint):
        return Parameter(
            name=name,
            hint=ToolContext,
            required=False,
            takes_context=True,
            deps_types=tuple(_deps_of(hint)),
        )
    hint = with_readable_typed_dicts(hint)
    fields = [part for part in getattr(hint, "__metadata__", ()) if isinstance(part, FieldInfo)]
    if isinstance(default, FieldInfo):
        fields, hint = [*fields, default], Annotated[hint, default]
        default = parameter.empty
    hint = _without_defaults(name, hint, fields)
    build = partial(Parameter, name=name, hint=hint, description=description)
    if default is not parameter.empty:
        shown = _default_as_json(default)
        return build(required=False, shown_default=shown, defaults_to_none=default is None)
    for info in reversed(fields):  # the last `Field` that has a default
        if not info.is_required():
            return build(
                required=False,
                shown_default=None if info.default_factory else _default_as_json(info.default),
                has_field_default=True,
                defaults_to_none=info.default is None and info.default_factory is None,
                value=partial(info.get_default, call_default_factory=True),
            )
    return build(required=True)


def _without_defaults(name: str, hint: Any, fields: Sequence[FieldInfo]) -> Any:
    """Keep only the constraints of each `Field`; the default is filled in separately."""
    for info in fields:
        if info.alias or info.validation_alias or info.serialization_alias:
            raise UnfitError(f"{name} has an alias; give the parameter that name instead")
        if info.default_factory is not None and info.default_factory_takes_validated_data:
            what = f"the default_factory of {name} takes arguments"
            raise UnfitError(f"{what}; use one that takes none")
    if not fields:
        return hint
    base, *metadata = get_args(hint)
    for place, part in enumerate(metadata):
        if isinstance(part, FieldInfo):
            bare = copy.copy(part)
            bare.default, bare.default_factory = PydanticUndefined, None
            known = cast("dict[str, Any]", getattr(part, "_attributes_set", {}))
            kept = known.keys() - {"default", "default_factory"}
            attributes = {key: known[key] for key in known if key in kept}
            bare._attributes_set = attributes  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
            metadata[place] = bare
    return Annotated[base, *metadata]


def _evaluate(annotation: object, scope: Scope) -> Any:
    holder = SimpleNamespace(__annotations__={"it": annotation})
    return get_type_hints(holder, *scope, include_extras=True)["it"]


def _scope_of(function: Callable[..., Any]) -> Scope:
    """Return the globals and local names in which a function's annotations are looked up.

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


def _is_context(hint: Any) -> bool:
    origin = get_origin(hint)
    if origin is Annotated:
        return _is_context(get_args(hint)[0])
    if origin in {Union, UnionType}:
        return any(_is_context(each) for each in get_args(hint))
    return (origin or hint) is ToolContext


def _deps_of(hint: Any) -> Iterator[Any]:
    """Yield the classes of the dependencies that an annotation of the context names."""
    if get_origin(hint) is ToolContext:
        yield get_args(hint)[0]
    else:
        for part in get_args(hint):
            yield from _deps_of(part)


def _default_as_json(default: object) -> str | None:
    """Return the default as JSON; None for null, a long default, or one JSON cannot express."""
    if default is None or isinstance(default, set | frozenset | collections.abc.Iterator):
        return None
    try:
        text = json.dumps(to_jsonable_python(default), allow_nan=False)
    except (ValueError, TypeError, RecursionError):
        return None
    return text if len(text) <= _LONGEST_DEFAULT else None


class Docstring(Struct, frozen=True):
    """The text before the first section, and the description of each argument."""

    text: str
    arguments: dict[str, str]


def docstring_of(function: object) -> Docstring:
    """Read a function's docstring. One without sections is all text."""
    doc = getattr(function, "__doc__", None)
    lines = inspect.cleandoc(doc if isinstance(doc, str) else "").splitlines()
    if any((match := re.match(_FIELD, line)) and match[1] in _FIELDS for line in lines):
        return _read_sphinx(lines)
    pairs = enumerate(pairwise(lines))
    titles = [
        n for n, (line, below) in pairs if re.match(_TITLE, line) and re.match(_UNDERLINE, below)
    ]
    starts = titles or [number for number, line in enumerate(lines) if re.match(_SECTION, line)]
    arguments: dict[str, str] = {}
    for start, end in pairwise([*starts, len(lines)]):
        title, body = lines[start].rstrip().rstrip(":"), lines[start + 1 : end]
        if titles and title.endswith("Parameters"):
            arguments |= _read_entries(body[1:], _NUMPY_ARGUMENT, margin=0)
        elif not titles and title in _ARGUMENT_SECTIONS:
            margin = next((_indent(line) for line in body if line.strip()), 0)
            arguments |= _read_entries(body, _ARGUMENT, margin=margin)
    return Docstring("\n".join(lines[: starts[0]] if starts else lines).strip(), arguments)


def _read_sphinx(lines: Iterable[str]) -> Docstring:
    """Read fields, which begin at the margin; indented lines continue the field above."""
    text: list[str] = []
    found: dict[str, list[str]] = {}
    current: list[str] = text
    for line in lines:
        entry = re.match(_FIELD, line)
        if entry and entry[1] in _FIELDS and entry[2]:
            current = found.setdefault(entry[2], [])
            current.append(entry[3])
        elif entry and entry[1] in _OTHER_FIELDS:
            current = []
        else:
            current.append(line if current is text else line.strip())
    arguments = {name: " ".join(filter(None, parts)) for name, parts in found.items()}
    return Docstring("\n".join(text).strip(), arguments)


def _read_entries(lines: Iterable[str], entry: re.Pattern[str], *, margin: int) -> dict[str, str]:
    """Read entries, which begin at the margin; deeper lines continue the entry above."""
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for line in filter(str.strip, lines):
        match = entry.match(line.strip()) if _indent(line) == margin else None
        if match:
            current = found.setdefault(match[1], [])
        current.append(match[2] if match else line.strip())
    return {name: " ".join(filter(None, parts)).strip() for name, parts in found.items()}


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


class Signature(Struct, frozen=True):
    """The arguments of a function, compiled."""

    adapter: TypeAdapter[Json]
    schema: Json
    required: frozenset[str]
    may_be_null: frozenset[str]

    def check(self, tool_name: str, arguments: Mapping[str, Any]) -> Json:
        """Return the arguments as the function takes them.

        Raises:
            ToolError: `validation_error`; they do not fit.
        """
        try:
            return self._checked(arguments)
        except (ValidationError, RecursionError) as error:
            raise misfit(tool_name, error) from error
        except TypeError as error:
            if not str(error).startswith("Unable to apply constraint"):
                raise  # a validator of the tool's own broke
            raise misfit(tool_name, error) from error

    def _checked(self, arguments: Mapping[str, Any]) -> Json:
        """Return the arguments as the function takes them.

        A null for a parameter with another default is passed on if the type takes it; otherwise it
        means that the argument is absent.
        """
        given = without_nulls(arguments, keep=self.may_be_null)
        try:
            return self.adapter.validate_python(given)
        except ValidationError as error:
            nulls = {name for name, value in given.items() if value is None} - self.required
            if not nulls:
                raise
            places = (each["loc"] for each in error.errors(include_url=False, include_input=False))
            absent = nulls.intersection(place[0] for place in places if place)
            return self.adapter.validate_python(without_nulls(given, keep=given.keys() - absent))


def compile_signature(name: str, parameters: tuple[Parameter, ...]) -> Signature:
    """Compile the parameters, once for all functions of one shape.

    Raises:
        UnfitError: one of them has no form in JSON Schema; it is named.
    """
    try:
        try:
            hash(parameters)
        except TypeError:  # an annotation that cannot be hashed: compiled each time
            return _compile_anew(name, parameters)
        return _compile_once(name, parameters)
    except Exception as error:
        reason = _first_line(error)
        for parameter in parameters:
            try:
                _compile_anew(name, (parameter,))
            except Exception as own:  # noqa: BLE001 - pydantic and foreign types raise anything
                reason = f"{parameter.name}: {_first_line(own)}"
                break
        raise UnfitError(reason) from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def signature_type(name: str, parameters: Sequence[Parameter]) -> Any:
    """Return the arguments that a model gives as a type: a dict with no other keys."""
    fields: dict[str, Any] = {}
    for parameter in parameters:
        hint, metadata = parameter.hint, getattr(parameter.hint, "__metadata__", ())
        is_described = any(isinstance(part, FieldInfo) and part.description for part in metadata)
        if parameter.description and not is_described:
            hint = Annotated[parameter.hint, Field(description=parameter.description)]
        if parameter.shown_default is not None:
            default = {"default": json.loads(parameter.shown_default)}
            hint = Annotated[hint, Field(json_schema_extra=default)]
        fields[parameter.name] = hint if parameter.required else NotRequired[hint]
    shape = cast("Any", TypedDict)(name, fields)
    shape.__pydantic_config__ = ConfigDict(extra="forbid")
    return shape


def _compile_anew(name: str, parameters: tuple[Parameter, ...]) -> Signature:
    shape = signature_type(name, parameters)
    adapter = cast("TypeAdapter[Json]", TypeAdapter(shape))
    schema = type_schema(adapter)
    schema.setdefault("properties", {})
    for parameter in parameters:
        if parameter.shown_default is not None:
            default = json.loads(parameter.shown_default)
            schema["properties"][parameter.name].setdefault("default", default)
    required = frozenset(parameter.name for parameter in parameters if parameter.required)
    may_be_null = frozenset(each.name for each in parameters if not each.defaults_to_none)
    return Signature(adapter, schema, required, may_be_null)


_compile_once = lru_cache(maxsize=512)(_compile_anew)


def type_schema(adapter: TypeAdapter[Any]) -> Json:
    """Return the small schema of a type, complete.

    Raises:
        PydanticInvalidForJsonSchema: a part of JSON cannot express it Schema.
    """
    return small_schema(adapter.json_schema(schema_generator=CompleteJsonSchema))


def with_readable_typed_dicts(hint: Any) -> Any:
    """Return the type with each `typing.TypedDict` replaced by one that pydantic can read.

    Before Python 3.12, `typing.TypedDict` keeps too little.
    """
    return hint if sys.version_info >= (3, 12) else _readable(hint, {})


def _readable(hint: Any, made: dict[Any, Any]) -> Any:
    """Return the type; `made` has the forms of the TypedDicts around it, which may recur in it."""
    if is_typeddict(hint) and type(hint).__module__ == "typing":
        if hint in made:
            return made[hint]
        made[hint] = form = cast("Any", TypedDict)(hint.__name__, {})
        form.__doc__ = hint.__doc__
        if config := getattr(hint, "__pydantic_config__", None):
            form.__pydantic_config__ = config
        for name, part in get_type_hints(hint, include_extras=True).items():
            origin = get_origin(part)
            inner = get_args(part)[0] if origin in {Required, NotRequired} else part
            is_needed = name in hint.__required_keys__
            is_needed = origin is Required if origin in {Required, NotRequired} else is_needed
            readable = _readable(inner, made)
            form.__annotations__[name] = Required[readable] if is_needed else NotRequired[readable]
        return form
    parts = get_args(hint)
    readable_parts = tuple(_readable(part, made) for part in parts)
    if all(new is old for new, old in zip(readable_parts, parts, strict=True)):
        return hint
    origin: Any = get_origin(hint)
    if origin in {Union, UnionType}:
        return Union[readable_parts]  # noqa: UP007 - of a tuple
    return hint.copy_with(readable_parts) if hasattr(hint, "copy_with") else origin[readable_parts]


class CompleteJsonSchema(GenerateJsonSchema):
    """Makes the complete schema of a type, or fails.

    Pydantic accepts every constraint for every type. A constraint that its schema has no place for
    is tried on each value, and raises a TypeError if the value does not support it: with each call,
    not when the type is compiled. This class refuses such types, so that no choice of a union is
    left out silently, and every constraint holds for all choices of its type.
    """

    def function_after_schema(self, schema: AfterValidatorFunctionSchema) -> JsonSchemaValue:
        """Return the schema of a type with a check after it."""
        constraint = _function(schema)
        if isinstance(constraint, partial) and _is_pydantics(constraint):
            for sample in _samples(schema["schema"]):
                try:
                    constraint(sample)
                except Exception as error:  # noqa: BLE001 - others say that it can be checked
                    if isinstance(error, TypeError):
                        names = ", ".join(constraint.keywords)
                        raise _unfit_constraint(names, sample) from None
        return super().function_after_schema(schema)

    def chain_schema(self, schema: ChainSchema) -> JsonSchemaValue:
        """Return the schema of checks that run one after the other."""
        first, *steps = schema["steps"]
        if any(_is_pydantics(_function(step)) for step in steps):
            for sample in _samples(first):
                if not isinstance(sample, str):
                    raise _unfit_constraint("a constraint of texts", sample)
        return super().chain_schema(schema)

    def is_subclass_schema(self, schema: IsSubclassSchema) -> JsonSchemaValue:  # noqa: ARG002
        """Refuse a class, which no JSON is."""
        raise PydanticInvalidForJsonSchema("JSON cannot express a class")

    def emit_warning(self, kind: JsonSchemaWarningKind, detail: str) -> None:
        """Refuse a type that would be incomplete; hide a default that JSON cannot express."""
        if kind == "skipped-choice":
            raise PydanticInvalidForJsonSchema(detail)


def _unfit_constraint(names: str, sample: object) -> PydanticInvalidForJsonSchema:
    message = f"{names} cannot hold for a value of type {type(sample).__name__}"
    return PydanticInvalidForJsonSchema(message)


def _function(schema: Mapping[str, Any]) -> Any:
    return schema.get("function", {}).get("function")


def _is_pydantics(function: Any) -> bool:
    inner = cast("partial[Any]", function).func if isinstance(function, partial) else function
    return str(getattr(inner, "__module__", "")).startswith("pydantic._internal.")


def _samples(schema: Mapping[str, Any]) -> Iterator[object]:
    """Return values that a type can have; none for an unknown type."""
    match schema["type"]:
        case "literal":
            yield from schema["expected"]
        case "enum":
            yield from schema["members"]
        case "union":
            for choice in cast("list[Any]", schema["choices"]):
                part = cast("tuple[Any, str]", choice)[0] if isinstance(choice, tuple) else choice
                yield from _samples(part)
        case "function-after" if _is_pydantics(_function(schema)):
            yield from _samples(schema["schema"])
        case kind if kind in _SAMPLES:
            yield _SAMPLES[kind]
        case _:
            return
