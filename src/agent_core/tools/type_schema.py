"""The JSON Schema of a Python type, complete or refused."""

import sys
from collections.abc import Iterator, Mapping
from decimal import Decimal
from functools import partial
from types import UnionType
from typing import (
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

from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, JsonSchemaWarningKind
from pydantic_core.core_schema import (
    AfterValidatorFunctionSchema,
    ChainSchema,
    IsSubclassSchema,
)

# typing.TypedDict of Python 3.11 keeps too little for pydantic to read.
from typing_extensions import TypedDict

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


def with_readable_typed_dicts(hint: Any) -> Any:
    """Return the type with each `typing.TypedDict` replaced by one that pydantic can read.

    Before Python 3.12, `typing.TypedDict` keeps too little.
    """
    return hint if sys.version_info >= (3, 12) else _readable(hint, {})


def _readable(hint: Any, made: dict[Any, Any]) -> Any:
    """The type; `made` has the forms of the TypedDicts that it is in, which it may contain."""
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
        """A class, which no JSON is."""
        raise PydanticInvalidForJsonSchema("a class has no form in JSON")

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
