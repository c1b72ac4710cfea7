"""JSON as text: for programs, and for people."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

if TYPE_CHECKING:
    JsonValue: TypeAlias = (
        bool | int | float | str | Sequence["JsonValue"] | Mapping[str, "JsonValue"] | None
    )
else:  # what validates values at run time does not follow an alias that names itself
    JsonValue = Any

JsonObject: TypeAlias = dict[str, JsonValue]
"""A JSON object: what a service sends or accepts, a body, a line of a protocol."""

JsonSchema: TypeAlias = dict[str, Any]
"""A JSON schema, or an object inside one; its keywords decide what their values are."""


def strict_json(
    value: object, *, default: Callable[[Any], object] | None = None, **layout: Any
) -> str:
    """Return the JSON text of a value; numbers that JSON does not have become null.

    Args:
        value: of plain types, and of types that `default` replaces by plain ones.
        default: as for `json.dumps`.
        layout: other arguments of `json.dumps`.

    Raises:
        TypeError: a part of JSON cannot express it.
        ValueError: it contains itself.
        RecursionError: it is nested too deeply, or contains itself.
    """
    try:
        return json.dumps(value, default=default, allow_nan=False, **layout)
    except ValueError:
        return json.dumps(_finite(value, default), allow_nan=False, **layout)


def _finite(value: object, default: Callable[[Any], object] | None) -> object:
    match value:
        case None | str() | bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else None
        case dict():
            items = cast("dict[object, object]", value).items()
            return {key: _finite(item, default) for key, item in items}
        case list() | tuple():
            return [_finite(item, default) for item in cast("list[object]", value)]
        case _:
            return value if default is None else _finite(default(value), default)


def shown_json(value: object, *, indent: int | None = None) -> str:
    """Return `value` as readable JSON; a note if it is nested too deeply."""
    try:
        return json.dumps(value, ensure_ascii=False, indent=indent, default=str)
    except RecursionError:
        return "(nested too deeply to be shown)"


def table(value: Any) -> JsonObject:
    """Return the value if it is a JSON object, else an empty one."""
    return value if value.__class__ is dict else {}


def tables(value: Any) -> list[JsonObject]:
    """Return the JSON objects in the value if it is an array, else nothing."""
    return [each for each in array(value) if each.__class__ is dict]


def unique_names(pairs: list[tuple[str, Any]]) -> JsonObject:
    """Return the object with these members; the `object_pairs_hook` of a strict `json.loads`.

    Raises:
        ValueError: a name is given twice.
    """
    found: JsonObject = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{json.dumps(name[:80])} is given twice in one object")
        found[name] = value
    return found


def array(value: Any) -> list[Any]:
    """Return the value if it is a JSON array, else an empty one."""
    return value if value.__class__ is list else []
