"""The rules of JSON Schema that could take for ever, in forms that end, and the clock for all."""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, cast

import orjson

CHECK_SECONDS = 0.5
"""Processor time that one check may take; patterns and nested choices can ask for years."""

_LONGEST_SHOWN = 300
_MOST_SHOWN = 3

Rule = Callable[[Any, Any, Any, Any], Iterable[Any] | None]
"""A rule gets the validator, the rule's value, the instance and the schema; it gives errors."""


class CheckTooSlowError(Exception):
    """A check was given up: it would have taken too long."""


class Clock:
    """The time that a check has left; processor time, so that a busy machine is no excuse."""

    def __init__(self) -> None:
        self._end = math.inf

    def start(self) -> None:
        """Begin a check."""
        self._end = time.thread_time() + CHECK_SECONDS

    def left(self) -> float:
        """Seconds.

        Raises:
            CheckTooSlowError: there are none.
        """
        left = self._end - time.thread_time()
        if left <= 0:
            raise CheckTooSlowError("the check takes too long")
        return left

    def found(self, pattern: str, text: str) -> bool:
        """Whether the pattern is found in the text.

        Raises:
            CheckTooSlowError: there is no telling in time.
        """
        import regex  # noqa: PLC0415 - only schemas with patterns need it

        try:
            return regex.search(pattern, text, timeout=min(self.left(), CHECK_SECONDS)) is not None
        except TimeoutError:
            raise CheckTooSlowError("the check takes too long") from None


def timed(rule: Rule, clock: Clock) -> Rule:
    """The rule, given up when the time is over."""

    def check(validator: Any, value: Any, instance: Any, schema: Any) -> Iterable[Any] | None:
        clock.left()
        return rule(validator, value, instance, schema)

    return check


def own_rules(dialect: Any, clock: Clock) -> dict[str, Rule]:
    """The rules that a dialect knows and that no look at the clock in between could end."""
    own: dict[str, Rule] = {
        "pattern": partial(_pattern, clock),
        "patternProperties": partial(_pattern_properties, clock),
        "additionalProperties": partial(_additional_properties, clock),
        "uniqueItems": _unique_items,
    }
    return {name: rule for name, rule in own.items() if name in dialect.VALIDATORS}


def _error(message: str) -> Exception:
    from jsonschema import ValidationError  # noqa: PLC0415 - a tenth of a second

    return cast("Exception", ValidationError(message))


def _pattern(clock: Clock, validator: Any, value: str, instance: Any, _: Any) -> Iterator[Any]:
    if validator.is_type(instance, "string") and not clock.found(value, instance):
        yield _error(f"{instance[:_LONGEST_SHOWN]!r} does not match {value!r}")


def _pattern_properties(
    clock: Clock, validator: Any, value: dict[str, Any], instance: Any, _: Any
) -> Iterator[Any]:
    if not validator.is_type(instance, "object"):
        return
    for name, part in value.items():
        for key, item in instance.items():
            if clock.found(name, key):
                yield from validator.descend(item, part, path=key, schema_path=name)


def _additional_properties(
    clock: Clock, validator: Any, value: Any, instance: Any, schema: dict[str, Any]
) -> Iterator[Any]:
    if not validator.is_type(instance, "object"):
        return
    known = schema.get("properties", {})
    patterns = list(schema.get("patternProperties", {}))
    extras = [key for key in instance if key not in known]
    extras = [key for key in extras if not any(clock.found(name, key) for name in patterns)]
    if isinstance(value, dict):
        for key in extras:
            yield from validator.descend(instance[key], value, path=key)
    elif value is False and extras:
        yield _error(_unexpected(extras))


def _unexpected(names: list[str]) -> str:
    shown = ", ".join(repr(name[:_LONGEST_SHOWN]) for name in names[:_MOST_SHOWN])
    left = len(names) - _MOST_SHOWN
    more = f" and {left} more" if left > 0 else ""
    verb = "was" if len(names) == 1 else "were"
    return f"Additional properties are not allowed ({shown}{more} {verb} unexpected)"


def _unique_items(validator: Any, value: Any, instance: Any, _: Any) -> Iterator[Any]:
    if value is True and validator.is_type(instance, "array"):
        sort = orjson.OPT_SORT_KEYS
        seen = {orjson.dumps(_canonical(item), option=sort) for item in instance}
        if len(seen) < len(instance):
            yield _error("the items are not all different")


def _canonical(value: Any) -> Any:
    """Equal numbers in one form, as JSON Schema compares them."""
    if isinstance(value, dict):
        table = cast("dict[str, Any]", value)
        return {key: _canonical(item) for key, item in table.items()}
    if isinstance(value, list):
        return [_canonical(item) for item in cast("list[Any]", value)]
    return int(value) if isinstance(value, float) and value.is_integer() else value
