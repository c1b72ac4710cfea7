"""Raw JSON Schemas: a check that a schema is usable, and validation that always ends.

A schema may come from a server, a file or a model. Admitted is plain JSON of bounded size that
its dialect's own schema describes, whose references lead to places in it and never in circles,
and whose patterns can be read. Everything else is refused before it is offered to a model.
"""

import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import Any, cast

import orjson

from agent_core.errors import PortableError
from agent_core.text import quoted, with_article
from agent_core.text.json_text import JsonSchema

MAX_SCHEMA_BYTES = 256 * 1024
MAX_SCHEMA_DEPTH = 64
MAX_PATTERN = 1_000
CHECK_SECONDS = 0.5
"""Processor time of one check, in seconds; patterns and nested choices could take years."""

_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_PLAIN_PATTERN = r"\^?[\w.\- /:@]*(\.\*|\.\+)?\$?"
_LONGEST_REASON = 300
_LONGEST_SHOWN = 300
_MOST_SHOWN = 3

Rule = Callable[[Any, Any, Any, Any], Iterable[Any] | None]
"""A rule gets the validator, the rule's value, the instance and the schema; it gives errors."""


class SchemaUnusableError(ValueError):
    """A schema cannot be used; the text gives the reason as one clause."""


class CheckTooSlowError(PortableError):
    """A check was given up: it would have taken too long."""

    def __init__(self) -> None:
        super().__init__("the check takes too long")


class BoundedValidator:
    """A compiled schema. A check that takes longer than `CHECK_SECONDS` is given up.

    The time is processor time: a busy machine fails no check. The rules that could take for ever
    by themselves have forms here that end.

    Raises:
        SchemaUnusableError: the schema is not admitted.
    """

    def __init__(self, schema: JsonSchema) -> None:
        _check_plain(schema, 0)
        try:
            size = len(orjson.dumps(schema))
        except TypeError as error:
            raise SchemaUnusableError(f"it is not plain JSON ({error})") from error
        if size > MAX_SCHEMA_BYTES:
            raise SchemaUnusableError(f"it is larger than {MAX_SCHEMA_BYTES:,} bytes")
        self._schema = dict(schema)
        self._end = math.inf
        try:
            if not _is_simple(self._schema, is_root=True):
                dialect = _dialect(self._schema)
                _check_form(self._schema, dialect, place="#")
                _check_graph(self._schema, dialect)
        except RecursionError:
            raise SchemaUnusableError("it is nested too deeply") from None

    @cached_property
    def _validator(self) -> Any:
        from jsonschema import validators  # noqa: PLC0415 - a tenth of a second
        from referencing import Registry  # noqa: PLC0415

        own: dict[str, Rule] = {
            "pattern": self._pattern,
            "patternProperties": self._pattern_properties,
            "additionalProperties": self._additional_properties,
            "uniqueItems": _unique_items,
        }
        dialect = _dialect(self._schema)
        known: dict[str, Rule] = dialect.VALIDATORS
        rules = {name: self._timed(own.get(name, rule)) for name, rule in known.items()}
        # An empty registry of its own: references to other documents are never fetched.
        return cast("Any", validators).extend(dialect, rules)(
            self._schema, registry=Registry[Any]()
        )

    def errors(self, value: Any, *, seconds: float = CHECK_SECONDS) -> Iterator[Any]:
        """Yield the faults of a value, for at most this processor time in seconds.

        Raises:
            CheckTooSlowError: the time is over.
            RecursionError: the value is nested too deeply.
        """
        self._end = time.thread_time() + seconds
        yield from self._validator.iter_errors(value)

    def takes(self, value: Any, schema: JsonSchema) -> bool:
        """Return whether a part of the schema accepts the value."""
        self._end = time.thread_time() + CHECK_SECONDS
        return self._validator.evolve(schema=schema).is_valid(value)

    def find(self, reference: str) -> object:
        """Return the part of the schema that a reference from its root leads to; None if none."""
        from referencing import Registry  # noqa: PLC0415 - for few
        from referencing.exceptions import Unresolvable  # noqa: PLC0415
        from referencing.jsonschema import specification_with  # noqa: PLC0415

        specification = specification_with(_dialect(self._schema).META_SCHEMA["$schema"])
        root = specification.create_resource(self._schema)
        try:
            return Registry[Any]().resolver_with_root(root).lookup(reference).contents
        except Unresolvable:  # it is relative to an `$id` inside the schema
            return None

    def _timed(self, rule: Rule) -> Rule:
        def check(validator: Any, value: Any, instance: Any, schema: Any) -> Iterable[Any] | None:
            self._time_left()
            return rule(validator, value, instance, schema)

        return check

    def _time_left(self) -> float:
        left = self._end - time.thread_time()
        if left <= 0:
            raise CheckTooSlowError
        return left

    def _finds(self, pattern: str, text: str) -> bool:
        import regex  # noqa: PLC0415 - only schemas with patterns need it

        try:
            timeout = min(self._time_left(), CHECK_SECONDS)
            return regex.search(pattern, text, timeout=timeout) is not None
        except TimeoutError:
            raise CheckTooSlowError from None

    def _pattern(self, validator: Any, value: str, instance: Any, _: Any) -> Iterator[Any]:
        if validator.is_type(instance, "string") and not self._finds(value, instance):
            yield _error(f"{instance[:_LONGEST_SHOWN]!r} does not match {value!r}")

    def _pattern_properties(
        self, validator: Any, value: dict[str, Any], instance: Any, _: Any
    ) -> Iterator[Any]:
        if not validator.is_type(instance, "object"):
            return
        for name, part in value.items():
            for key, item in instance.items():
                if self._finds(name, key):
                    yield from validator.descend(item, part, path=key, schema_path=name)

    def _additional_properties(
        self, validator: Any, value: Any, instance: Any, schema: JsonSchema
    ) -> Iterator[Any]:
        if not validator.is_type(instance, "object"):
            return
        patterns = list(schema.get("patternProperties", {}))
        extras = [key for key in instance if key not in schema.get("properties", {})]
        extras = [key for key in extras if not any(self._finds(name, key) for name in patterns)]
        if isinstance(value, dict):
            for key in extras:
                yield from validator.descend(instance[key], value, path=key)
        elif value is False and extras:
            shown = ", ".join(repr(name[:_LONGEST_SHOWN]) for name in extras[:_MOST_SHOWN])
            left = len(extras) - _MOST_SHOWN
            shown += f" and {left} more" if left > 0 else ""
            verb = "was" if len(extras) == 1 else "were"
            yield _error(f"Additional properties are not allowed ({shown} {verb} unexpected)")


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _is_number(value: object) -> bool:
    return type(value) in {int, float}


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_truth(value: object) -> bool:
    return isinstance(value, bool)


def _is_type(value: object) -> bool:
    return isinstance(value, str) and value in _TYPES


def _is_names(value: object) -> bool:
    names = cast("list[object]", value) if isinstance(value, list) else [None]
    return all(map(_is_text, names)) and len(set(names)) == len(names)


def _is_simple_or_truth(value: object) -> bool:
    return isinstance(value, bool) or _is_simple(value)


def _is_simple_list(value: object) -> bool:
    return isinstance(value, list) and value != [] and all(map(_is_simple, cast("Any", value)))


def _is_simple_table(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_simple, cast("Any", value).values()))


def _is_simple(value: object, *, is_root: bool = False) -> bool:
    """Return whether a schema uses only words that mean the same in every dialect, as most do.

    Checking one against the schema of its dialect takes a hundred times as long.
    """
    if not isinstance(value, dict):
        return False
    table = cast("dict[str, object]", value)
    return all(
        _SIMPLE[name](part)
        if name in _SIMPLE
        else is_root and name == "$schema" and part in _SIMPLE_DIALECTS
        for name, part in table.items()
    )


_TYPES = frozenset(("object", "array", "string", "integer", "number", "boolean", "null"))
_SIMPLE_DIALECTS = (
    "https://json-schema.org/draft/2020-12/schema",
    "http://json-schema.org/draft-07/schema",
    "http://json-schema.org/draft-07/schema#",
)
_SIMPLE: Mapping[str, Callable[[object], bool]] = {
    "type": _is_type,
    **dict.fromkeys(("title", "description", "format"), _is_text),
    **dict.fromkeys(("default", "const"), lambda _: True),
    **dict.fromkeys(("enum", "examples"), lambda value: isinstance(value, list)),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _is_number),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), _is_count),
    **dict.fromkeys(("uniqueItems", "deprecated"), _is_truth),
    "required": _is_names,
    "properties": _is_simple_table,
    "items": _is_simple,
    "additionalProperties": _is_simple_or_truth,
    **dict.fromkeys(("anyOf", "oneOf", "allOf"), _is_simple_list),
}
"""Words with the same meaning in these dialects and without references, and their values."""


def whole_schema(schema: JsonSchema) -> JsonSchema:
    """The schema of arguments as providers want it: they refuse one without these two words."""
    return {"type": "object", "properties": {}, **schema}


def check_arguments_schema(schema: JsonSchema) -> None:
    """Make sure that a schema can be met by named arguments.

    Raises:
        SchemaUnusableError: it does not describe an object, or requires a property that it forbids.
    """
    if schema.get("type", "object") != "object":
        raise SchemaUnusableError("its type is not 'object', and arguments always are one")
    properties, required = schema.get("properties"), schema.get("required")
    is_closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    if is_closed and isinstance(properties, dict) and isinstance(required, list):
        known = cast("JsonSchema", properties)
        for name in cast("list[str]", required):
            if name not in known:
                raise SchemaUnusableError(
                    f"it requires {name!r}, which is not one of its properties"
                )


def _check_plain(value: object, depth: int) -> None:
    if depth > MAX_SCHEMA_DEPTH:
        raise SchemaUnusableError(f"it is nested deeper than {MAX_SCHEMA_DEPTH} levels")
    parts: Iterable[object] = ()
    match value:
        case Mapping():
            table = cast("Mapping[object, object]", value)
            if odd := [key for key in table if not isinstance(key, str)]:
                raise SchemaUnusableError(f"it is not plain JSON: {odd[0]!r:.50} is no name")
            parts = table.values()
        case list():
            parts = cast("list[object]", value)
        case float() if not math.isfinite(value):
            raise SchemaUnusableError(f"it is not plain JSON: {value} is no number")
        case None | str() | int() | float():
            return
        case _:
            kind = type(value).__name__
            raise SchemaUnusableError(f"it is not plain JSON: it has {with_article(kind)} in it")
    for part in parts:
        _check_plain(part, depth + 1)


def _dialect(schema: JsonSchema) -> Any:
    from jsonschema import Draft202012Validator  # noqa: PLC0415
    from jsonschema.validators import validator_for  # noqa: PLC0415

    if "$schema" not in schema:
        return Draft202012Validator
    named = schema["$schema"]
    bare = named.removesuffix("#").partition("://")[2] if isinstance(named, str) else ""
    for address in (f"{scheme}://{bare}{end}" for scheme in ("http", "https") for end in ("", "#")):
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


def _check_graph(schema: JsonSchema, dialect: Any) -> None:
    """Follow every reference, check every pattern, and refuse circular references.

    A reference may lead to a place that is not a schema by itself, such as an example; its value
    must be a schema then.

    Raises:
        SchemaUnusableError: a reference, a pattern or a value is not valid.
    """
    from referencing import Registry, Resource  # noqa: PLC0415
    from referencing.exceptions import Unresolvable  # noqa: PLC0415
    from referencing.jsonschema import specification_with  # noqa: PLC0415

    specification = specification_with(dialect.META_SCHEMA["$schema"])
    root: Resource[Any] = specification.create_resource(schema)
    waiting: list[tuple[Any, Any]] = [(schema, Registry[Any]().resolver_with_root(root))]
    referred: list[tuple[str, Any]] = []
    nodes: dict[int, JsonSchema] = {}
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
        node = cast("JsonSchema", contents)
        nodes[id(node)] = node
        below[id(node)] = [id(part) for part in _applied_in_place(node)]
        parts = specification.create_resource(node).subresources()
        waiting += [(part.contents, resolver.in_subresource(part)) for part in parts]
        for reference in (node[key] for key in _REFERENCES if key in node):
            try:
                found = resolver.lookup(reference)
            except (Unresolvable, ValueError, TypeError, AttributeError) as error:
                message = f"it refers to {quoted(str(reference), 100)}, which is not in it"
                raise SchemaUnusableError(message) from error
            below[id(node)].append(id(found.contents))
            referred.append((reference, found))
    _check_patterns(nodes.values())
    try:
        TopologicalSorter(below).prepare()
    except CycleError:
        raise SchemaUnusableError("a $ref in it leads back to itself") from None


def _applied_in_place(node: JsonSchema) -> Iterator[object]:
    """The schemas that are applied to the very value that this one is applied to."""
    for key in ("allOf", "anyOf", "oneOf"):
        yield from cast("list[object]", node.get(key, []))
    yield from (node[key] for key in ("not", "if", "then", "else") if key in node)
    for key in ("dependentSchemas", "dependencies"):
        yield from cast("JsonSchema", node.get(key, {})).values()


def _check_patterns(nodes: Iterable[JsonSchema]) -> None:
    """Patterns have to compile; where names are matched by another library, they are plain."""
    known = list(nodes)
    must_be_plain = any("unevaluatedProperties" in node for node in known)
    for node in known:
        named = cast("JsonSchema", node.get("patternProperties", {}))
        if must_be_plain and not all(re.fullmatch(_PLAIN_PATTERN, each) for each in named):
            message = "it has unevaluatedProperties beside a pattern of names that is not plain"
            raise SchemaUnusableError(message)
        own = [node["pattern"]] if isinstance(node.get("pattern"), str) else []
        for pattern in (*named, *own):
            import regex  # noqa: PLC0415 - only schemas with patterns need it

            if len(pattern) > MAX_PATTERN:
                raise SchemaUnusableError(f"it has a pattern of more than {MAX_PATTERN} characters")
            try:
                regex.compile(pattern)
            except Exception as error:  # its parser may raise anything on foreign text
                reason = f"its pattern {quoted(pattern, 100)} cannot be read ({error})"
                raise SchemaUnusableError(reason[:_LONGEST_REASON]) from error


def _error(message: str) -> Exception:
    from jsonschema import ValidationError  # noqa: PLC0415 - a tenth of a second

    return cast("Exception", ValidationError(message))


def _unique_items(validator: Any, value: Any, instance: Any, _: Any) -> Iterator[Any]:
    if value is True and validator.is_type(instance, "array"):
        sort = orjson.OPT_SORT_KEYS
        if len({orjson.dumps(_canonical(item), option=sort) for item in instance}) < len(instance):
            yield _error("the items are not all different")


def _canonical(value: Any) -> Any:
    """Equal numbers in one form, as JSON Schema compares them."""
    if isinstance(value, dict):
        table = cast("dict[str, Any]", value)
        return {key: _canonical(item) for key, item in table.items()}
    if isinstance(value, list):
        return [_canonical(item) for item in cast("list[Any]", value)]
    return int(value) if isinstance(value, float) and value.is_integer() else value
