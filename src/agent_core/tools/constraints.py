"""Whether the constraints of a type can hold for its values.

Pydantic takes every constraint for every type. One that it has no place for is tried on each
value, and a value that does not take it raises a TypeError: with each call, not when the type is
compiled.
"""

from collections.abc import Iterator, Mapping
from decimal import Decimal
from functools import partial
from typing import Any, cast

from pydantic.errors import PydanticInvalidForJsonSchema

_PYDANTIC = "pydantic._internal."
_MISFIT = "Unable to apply constraint"
_SAMPLES: Mapping[str, object] = {
    "bool": True,
    "bytes": b"a",
    "decimal": Decimal(1),
    "dict": {},
    "float": 1.0,
    "frozenset": frozenset[Any](),
    "int": 1,
    "list": [],
    "none": None,
    "set": set[Any](),
    "str": "a",
    "tuple": (),
    "typed-dict": {},
}
"""A value of each type of which it is known how its values behave."""


def check_constraint(schema: Mapping[str, Any]) -> None:
    """Make sure that a constraint which is tried on values can hold for all choices of its type.

    Args:
        schema: a node of pydantic's core schema, of the type `function-after` or `chain`.

    Raises:
        PydanticInvalidForJsonSchema: it cannot; the constraint and the type are named.
    """
    if schema["type"] == "chain":
        first, *steps = cast("list[dict[str, Any]]", schema["steps"])
        constraint = _as_text if any(_is_pydantics(_function(step)) for step in steps) else None
    else:
        first, constraint = schema["schema"], _function(schema)
        if not (isinstance(constraint, partial) and _is_pydantics(constraint)):
            return
    for sample in _samples(first) if constraint else ():
        _try(constraint, sample)


def is_misfit(error: TypeError) -> bool:
    """Whether the error says that a value does not take a constraint."""
    return str(error).startswith(_MISFIT)


def _function(schema: Mapping[str, Any]) -> Any:
    return schema.get("function", {}).get("function")


def _is_pydantics(function: Any) -> bool:
    inner = cast("partial[Any]", function).func if isinstance(function, partial) else function
    return str(getattr(inner, "__module__", "")).startswith(_PYDANTIC)


def _as_text(sample: object) -> None:
    if not isinstance(sample, str):
        raise TypeError


def _try(constraint: Any, sample: object) -> None:
    try:
        constraint(sample)
    except TypeError:
        names = ", ".join(getattr(constraint, "keywords", ["a constraint of texts"]))
        kind = type(sample).__name__
        message = f"{names} cannot hold for a value of type {kind}"
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
