"""The JSON Schema of a parameter's type, refused where it would be incomplete.

Pydantic takes every constraint for every type. One that it has no place for is tried on each
value, and a value that does not take it raises a TypeError: with each call, not when the type is
compiled.
"""

from collections.abc import Iterator, Mapping
from decimal import Decimal
from functools import partial
from typing import Any, cast

from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, JsonSchemaWarningKind
from pydantic_core.core_schema import AfterValidatorFunctionSchema, ChainSchema

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


class CompleteJsonSchema(GenerateJsonSchema):
    """A complete schema of a type, or none.

    No choice of a union is left out silently, and no constraint stands where it cannot hold for
    all choices of its type.
    """

    def function_after_schema(self, schema: AfterValidatorFunctionSchema) -> JsonSchemaValue:
        """What is checked after the type."""
        constraint = _function(schema)
        if isinstance(constraint, partial) and _is_pydantics(constraint):
            for sample in _samples(schema["schema"]):
                _try(constraint, sample)
        return super().function_after_schema(schema)

    def chain_schema(self, schema: ChainSchema) -> JsonSchemaValue:
        """What is checked one after the other."""
        first, *steps = schema["steps"]
        if any(_is_pydantics(_function(step)) for step in steps):
            for sample in _samples(first):
                _try(_require_text, sample)
        return super().chain_schema(schema)

    def emit_warning(self, kind: JsonSchemaWarningKind, detail: str) -> None:
        """Refuse what would be left out; a default that JSON has no form for is not shown."""
        if kind == "skipped-choice":
            raise PydanticInvalidForJsonSchema(detail)


def is_misfit(error: TypeError) -> bool:
    """Whether a value was refused by a constraint that has no meaning for its type."""
    return str(error).startswith("Unable to apply constraint")


def _function(schema: Mapping[str, Any]) -> Any:
    return schema.get("function", {}).get("function")


def _is_pydantics(function: Any) -> bool:
    inner = cast("partial[Any]", function).func if isinstance(function, partial) else function
    return str(getattr(inner, "__module__", "")).startswith("pydantic._internal.")


def _require_text(sample: object) -> None:
    if not isinstance(sample, str):
        raise TypeError


def _try(constraint: Any, sample: object) -> None:
    try:
        constraint(sample)
    except TypeError:
        names = ", ".join(getattr(constraint, "keywords", ["a constraint of texts"]))
        message = f"{names} cannot hold for a value of type {type(sample).__name__}"
        raise PydanticInvalidForJsonSchema(message) from None
    except Exception:  # noqa: BLE001 - the sample does not fit, but the constraint can be checked
        return


def _samples(schema: Mapping[str, Any]) -> Iterator[object]:
    """Values that a type can have; none for a type of which that is not known."""
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
