"""Raw JSON Schemas: which of them are admitted, and validation that always ends.

A schema may come from a server, a file or a model. Admitted is plain JSON of bounded size that
its dialect's own schema describes, whose references lead to places in it and never in circles,
and whose patterns can be read. Everything else is refused before it is offered to a model.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol, cast

import orjson

from agent_core.tools.schema_rules import Clock, own_rules, timed

MAX_SCHEMA_BYTES = 256 * 1024
MAX_SCHEMA_DEPTH = 64
MAX_PATTERN = 1_000

_IN_PLACE = ("allOf", "anyOf", "oneOf")
_IN_PLACE_ONE = ("not", "if", "then", "else")
_IN_PLACE_NAMED = ("dependentSchemas", "dependencies")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_PLAIN_PATTERN = re.compile(r"\^?[\w.\- /:@]*(\.\*|\.\+)?\$?")
_LONGEST_REASON = 300


class SchemaUnusableError(ValueError):
    """Why a schema is not admitted, as one clause."""


class Validator(Protocol):
    """What is used of a validator of `jsonschema`."""

    def iter_errors(self, instance: Any) -> Iterable[Any]:
        """What is wrong with a value."""
        ...

    def evolve(self, **changes: Any) -> "Validator":
        """The same for another schema."""
        ...

    def is_valid(self, instance: Any) -> bool:
        """Whether nothing is wrong."""
        ...


class BoundedValidator:
    """A compiled schema. A check that takes longer than `CHECK_SECONDS` is given up.

    Raises:
        SchemaUnusableError: the schema is not admitted.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        _check_plain(schema)
        try:
            self._clock = Clock()
            self._validator = _compiled(dict(schema), self._clock)
        except RecursionError:
            raise SchemaUnusableError("it is nested too deeply") from None

    def errors(self, value: Any) -> Iterator[Any]:
        """What is wrong with a value, one after another.

        Raises:
            CheckTooSlowError: there is no telling in time.
            RecursionError: the value is nested too deeply.
        """
        self._clock.start()
        yield from self._validator.iter_errors(value)

    def takes(self, value: Any, schema: Mapping[str, Any]) -> bool:
        """Whether a part of the schema takes the value."""
        self._clock.start()
        return self._validator.evolve(schema=schema).is_valid(value)


def whole_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of arguments as providers want it: they refuse one without these two words."""
    return {"type": "object", "properties": {}, **schema}


def check_arguments_schema(schema: Mapping[str, Any]) -> None:
    """Make sure that a schema can be met by named arguments.

    Raises:
        SchemaUnusableError: it is not of an object, or requires what it does not allow.
    """
    if schema.get("type", "object") != "object":
        raise SchemaUnusableError("its type is not 'object', and arguments always are one")
    properties, required = schema.get("properties"), schema.get("required")
    is_closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    if is_closed and isinstance(properties, dict) and isinstance(required, list):
        known = cast("dict[str, Any]", properties)
        missing = [name for name in cast("list[str]", required) if name not in known]
        if missing:
            raise SchemaUnusableError(f"it requires {missing[0]!r}, which is no property of it")


def _check_plain(schema: Mapping[str, Any]) -> None:
    _check_value(schema, 0)
    try:
        size = len(orjson.dumps(schema))
    except TypeError as error:
        raise SchemaUnusableError(f"it is not plain JSON ({error})") from error
    if size > MAX_SCHEMA_BYTES:
        raise SchemaUnusableError(f"it is larger than {MAX_SCHEMA_BYTES:,} bytes")


def _check_value(value: object, depth: int) -> None:
    if depth > MAX_SCHEMA_DEPTH:
        raise SchemaUnusableError(f"it is nested deeper than {MAX_SCHEMA_DEPTH} levels")
    match value:
        case Mapping():
            table = cast("Mapping[object, object]", value)
            if odd := [key for key in table if not isinstance(key, str)]:
                raise SchemaUnusableError(f"it is not plain JSON: {odd[0]!r:.50} is no name")
            _check_all(table.values(), depth + 1)
        case list():
            _check_all(cast("list[object]", value), depth + 1)
        case float() if not math.isfinite(value):
            raise SchemaUnusableError(f"it is not plain JSON: {value} is no number")
        case None | str() | int() | float():
            pass
        case _:
            kind = type(value).__name__
            raise SchemaUnusableError(f"it is not plain JSON: it has a {kind} in it")


def _check_all(values: Iterable[object], depth: int) -> None:
    for value in values:
        _check_value(value, depth)


def _compiled(schema: dict[str, Any], clock: Clock) -> Validator:
    from jsonschema import validators  # noqa: PLC0415 - a tenth of a second
    from referencing import Registry  # noqa: PLC0415

    dialect = _dialect(schema)
    _check_form(schema, dialect, place="#")
    _check_graph(schema, dialect)
    rules: dict[str, Any] = dialect.VALIDATORS | own_rules(dialect, clock)
    ending = {name: timed(rule, clock) for name, rule in rules.items()}
    bounded = cast("Any", validators).extend(dialect, ending)
    # An empty registry of its own: references to other documents are never fetched.
    return cast("Validator", bounded(schema, registry=Registry[Any]()))


def _dialect(schema: Mapping[str, Any]) -> Any:
    from jsonschema import Draft202012Validator  # noqa: PLC0415
    from jsonschema.validators import validator_for  # noqa: PLC0415

    if "$schema" not in schema:
        return Draft202012Validator
    named = schema["$schema"]
    if isinstance(named, str):
        bare = named.removesuffix("#").partition("://")[2]
        for address in (
            f"{scheme}://{bare}{end}" for scheme in ("http", "https") for end in ("", "#")
        ):
            found: Any = validator_for({"$schema": address}, default=cast("Any", None))
            if found is not None:
                return found
    raise SchemaUnusableError(f"its $schema is not known: {str(named)[:100]}")


def _check_form(schema: object, dialect: Any, *, place: str) -> None:
    """Make sure that a value is a schema of the dialect.

    Raises:
        SchemaUnusableError: it is not; the place of the fault is named, below `place`.
    """
    from jsonschema import SchemaError  # noqa: PLC0415

    try:
        dialect.check_schema(schema, format_checker=None)
    except SchemaError as error:
        below = "/".join([place, *map(str, error.absolute_path)])
        below = below if error.absolute_path else f"{place}/"
        message = str(error.message)[:_LONGEST_REASON]
        raise SchemaUnusableError(f"at {below}: {message}") from error


def _check_graph(schema: dict[str, Any], dialect: Any) -> None:
    """Follow every reference, look at every pattern, and make sure that nothing goes in circles.

    A reference may lead to a place that is no schema by itself, such as an example; what is there
    has to be one then.

    Raises:
        SchemaUnusableError: something is not as it has to be.
    """
    from referencing import Registry, Resource  # noqa: PLC0415
    from referencing.jsonschema import specification_with  # noqa: PLC0415

    specification = specification_with(dialect.META_SCHEMA["$schema"])
    root: Resource[Any] = specification.create_resource(schema)
    waiting: list[tuple[Any, Any]] = [(schema, Registry[Any]().resolver_with_root(root))]
    referred: list[tuple[str, Any]] = []
    nodes: dict[int, dict[str, Any]] = {}
    below: dict[int, list[int]] = {}
    while waiting or referred:
        if not waiting:
            reference, found = referred.pop()
            if id(found.contents) not in nodes:
                _check_form(found.contents, dialect, place=reference[:_LONGEST_REASON])
                waiting.append((found.contents, found.resolver))
            continue
        contents, resolver = waiting.pop()
        if not isinstance(contents, dict) or id(cast("object", contents)) in nodes:
            continue
        node = cast("dict[str, Any]", contents)
        nodes[id(node)] = node
        names = [node[key] for key in _REFERENCES if key in node]
        targets = [(str(name), _looked_up(resolver, name)) for name in names]
        referred += targets
        below[id(node)] = [id(target.contents) for _, target in targets]
        below[id(node)] += map(id, _applied_in_place(node))
        parts = specification.create_resource(node).subresources()
        waiting += [(part.contents, resolver.in_subresource(part)) for part in parts]
    _check_patterns(nodes.values())
    if _has_circle(below):
        raise SchemaUnusableError("a $ref in it leads back to itself")


def _looked_up(resolver: Any, reference: object) -> Any:
    from referencing.exceptions import Unresolvable  # noqa: PLC0415

    try:
        return resolver.lookup(reference)
    except (Unresolvable, ValueError, TypeError, AttributeError) as error:
        shown = str(reference)[:100]
        raise SchemaUnusableError(f"it refers to {shown!r}, which is not in it") from error


def _applied_in_place(node: Mapping[str, Any]) -> Iterator[object]:
    """The schemas that are applied to the very value that this one is applied to."""
    for key in _IN_PLACE:
        yield from cast("list[object]", node.get(key, []))
    for key in _IN_PLACE_ONE:
        if key in node:
            yield node[key]
    for key in _IN_PLACE_NAMED:
        yield from cast("dict[str, object]", node.get(key, {})).values()


def _has_circle(below: Mapping[int, list[int]]) -> bool:
    above = Counter(child for children in below.values() for child in children)
    free = [node for node in below if not above[node]]
    seen = 0
    while free:
        node = free.pop()
        seen += 1
        for child in below[node]:
            above[child] -= 1
            if not above[child] and child in below:
                free.append(child)
    return seen < len(below)


def _check_patterns(nodes: Iterable[Mapping[str, Any]]) -> None:
    """Patterns have to compile; where names are matched by another library, they are plain."""
    known = list(nodes)
    must_be_plain = any("unevaluatedProperties" in node for node in known)
    for node in known:
        named = cast("dict[str, Any]", node.get("patternProperties", {}))
        if must_be_plain and not all(map(_PLAIN_PATTERN.fullmatch, named)):
            message = "it has unevaluatedProperties beside a pattern of names that is not plain"
            raise SchemaUnusableError(message)
        own = [node["pattern"]] if isinstance(node.get("pattern"), str) else []
        for pattern in (*named, *own):
            _check_pattern(pattern)


def _check_pattern(pattern: str) -> None:
    import regex  # noqa: PLC0415 - only schemas with patterns need it

    if len(pattern) > MAX_PATTERN:
        raise SchemaUnusableError(f"it has a pattern of more than {MAX_PATTERN} characters")
    try:
        regex.compile(pattern)
    except Exception as error:  # what its parser makes of foreign text is its own affair
        reason = f"its pattern {pattern[:100]!r} cannot be read ({error})"
        raise SchemaUnusableError(reason[:_LONGEST_REASON]) from error
