"""Schemas of arguments: small for the model, strict for the caller.

Built-in and `@tool` tools have a pydantic type, from which the schema is made; MCP, declarative
and registered tools bring a raw JSON Schema, which is checked with `jsonschema`. Either way a call
that does not fit is one `validation_error` with JSON paths.
"""

import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from functools import cache, cached_property
from itertools import islice
from typing import Any, Self, cast

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from agent_core.assets import load_schemas
from agent_core.errors import ErrorCode, ToolError
from agent_core.text.json_text import JsonSchema
from agent_core.tools.json_schema import (
    BoundedValidator,
    CheckTooSlowError,
    SchemaUnusableError,
    check_arguments_schema,
)

Json = dict[str, Any]

_MAX_REPORTED = 5
_MAX_COUNTED = 50
_MAX_MESSAGE = 300
_MAX_NAME = 100
_MAX_STEPS = 20
_IDENTIFIER = r"[A-Za-z_][A-Za-z0-9_]*\Z"
_OPENERS = {
    *("additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames"),
    *("allOf", "anyOf", "oneOf", "if", "dependentSchemas", "$ref", "$dynamicRef"),
}
"""Words with which a schema itself describes the other properties of an object."""


class Arguments(BaseModel):
    """Base of the argument types of built-in tools: unknown is an error, null means absent."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, given: object) -> object:
        if not isinstance(given, dict):
            return given
        if None not in cast("Json", given).values():
            return cast("Json", given)
        required = {name for name, field in cls.model_fields.items() if field.is_required()}
        return without_nulls(cast("Json", given), keep=required)


def without_nulls(given: Mapping[str, Any], *, keep: Iterable[str] = ()) -> Json:
    """`given` without the arguments that are null, except those named in `keep`."""
    return {name: value for name, value in given.items() if value is not None or name in keep}


@cache
def model_schema(model: type[BaseModel]) -> Json:
    """The small schema of an argument model. Callers share it and must not change it."""
    return small_schema(model.model_json_schema())


def shown_schema(model: type[BaseModel]) -> Json:
    """Return the schema of a built-in tool's arguments that a model is shown.

    Limits, defaults and the closed list of names are left to the check, which reports faults:
    they would cost tokens in every request. Callers share it and must not change it.
    """
    return load_schemas().get(full_name(model)) or build_shown_schema(model)


def build_shown_schema(model: type[BaseModel]) -> Json:
    """Build the schema that a model is shown from the type itself, which builds its validator."""
    return _shown(model_schema(model))


def full_name(model: type[BaseModel]) -> str:
    """Return the name of a type with its module."""
    return f"{model.__module__}.{model.__qualname__}"


_CHECKED = frozenset((
    "minLength", "minItems", "minimum", "exclusiveMinimum", "maximum", "gt", "ge",
    "additionalProperties", "default", "description",
))  # fmt: skip


def _shown(schema: Json) -> Json:
    shown = {key: value for key, value in schema.items() if key not in _CHECKED}
    if "properties" in shown:  # an object's description is its docstring, which the tool has
        shown["properties"] = {name: _shown(item) for name, item in shown["properties"].items()}
    elif "description" in schema:
        shown["description"] = schema["description"]
    if "items" in shown:
        shown["items"] = _shown(shown["items"])
    return shown


def small_schema(schema: JsonSchema) -> Json:
    """Return `schema` without the parts that cost tokens and carry no information.

    Titles go, `$ref` is put in place unless it is recursive, and an optional property loses its
    "or null" unless its default is something else: leaving it out means the same.
    """
    definitions = cast("Json", schema.get("$defs", {}))
    body = {key: value for key, value in schema.items() if key != "$defs"}
    small = _small(body, definitions, ())
    recursive = sorted(_references(small))
    left = {name: _small(definitions[name], definitions, (name,)) for name in recursive}
    return small | {"$defs": left} if left else small


def _small(schema: Any, definitions: Json, within: tuple[str, ...]) -> Any:
    if not isinstance(schema, dict):
        return schema
    node = cast("Json", schema)
    name = str(node.get("$ref", "")).removeprefix("#/$defs/")
    if name in definitions and name not in within:
        rest = {key: value for key, value in node.items() if key != "$ref"}
        return _small(definitions[name] | rest, definitions, (*within, name))
    small: Json = {}
    for key, value in node.items():
        match key:
            case "properties" | "patternProperties" | "dependentSchemas":
                members = cast("Json", value)
                small[key] = {n: _small(item, definitions, within) for n, item in members.items()}
            case "anyOf" | "oneOf" | "allOf" | "prefixItems":
                small[key] = [_small(item, definitions, within) for item in value]
            case "items" | "additionalProperties" | "not" | "contains":
                small[key] = _small(value, definitions, within)
            case _:
                small[key] = value
    if isinstance(small.get("title"), str):
        del small["title"]
    if properties := cast("Json", small.get("properties", {})):
        required = cast("list[str]", small.get("required", []))
        small["properties"] = {
            name: item if name in required else _without_null(item)
            for name, item in properties.items()
        }
    return small


def _without_null(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    node = dict(cast("Json", schema))
    if node.get("default") is not None:
        return node
    node.pop("default", None)
    choices = cast("list[Json]", node.get("anyOf", []))
    kept = [choice for choice in choices if choice != {"type": "null"}]
    if len(kept) == len(choices):
        return node
    rest = {key: value for key, value in node.items() if key != "anyOf"}
    return kept[0] | rest if len(kept) == 1 else rest | {"anyOf": kept}


def _references(schema: Any) -> set[str]:
    """The names of definitions that are still referred to."""
    parts = cast("list[Any]", schema) if isinstance(schema, list) else []
    found = set[str]()
    if isinstance(schema, dict):
        node = cast("Json", schema)
        parts = list(node.values())
        reference = str(node.get("$ref", ""))
        found = {reference.removeprefix("#/$defs/")} - {reference}
    return found.union(*map(_references, parts))


def read_arguments(tool: str, model: type[BaseModel], arguments: Mapping[str, Any]) -> BaseModel:
    """Convert raw arguments to the tool's argument model.

    Raises:
        ToolError: `validation_error`: they do not fit.
    """
    try:
        return model.model_validate(dict(arguments))
    except (ValidationError, RecursionError) as error:
        raise misfit(tool, error) from error


class SchemaCheck:
    """A check of raw arguments against a raw JSON Schema; compiled when first used.

    A schema that lists its properties and does not mention others allows no others.

    Args:
        tool: its name.
        schema: of its arguments.
        fills_in: absent arguments get the defaults of the schema.
    """

    def __init__(self, tool: str, schema: JsonSchema, *, fills_in: bool = False) -> None:
        self._tool = tool
        self._schema = dict(schema)
        self._fills_in = fills_in

    def compile(self) -> Self:
        """Return the same check, its schema known to be usable.

        Raises:
            ToolError: `schema_error`; it is not, or a default does not fit it.
        """
        validator = self._validator
        try:
            defaults: Json = self._filled({}, [self._schema]) if self._fills_in else {}
        except RecursionError as error:
            raise self._unusable(SchemaUnusableError("a default contains itself")) from error
        below = _properties(self._holding([self._schema]), {}) if defaults else {}
        for name, default in defaults.items():
            if not all(validator.takes(default, part) for part in below[name]):
                reason = SchemaUnusableError(f"the default of {name} does not fit it")
                raise self._unusable(reason)
        return self

    def __call__(self, arguments: Mapping[str, Any]) -> Json:
        """Return the arguments, optional nulls left out.

        Raises:
            ToolError: `validation_error` if they do not fit, `schema_error` if the schema itself
                cannot be used (it is broken, or refers to another document).
        """
        try:
            nulls = [name for name, value in arguments.items() if value is None]
            given = without_nulls(arguments, keep=[*filter(self._takes_null, nulls)])
            given = self._filled(given, [self._schema]) if self._fills_in else given
            failures = list(islice(self._validator.errors(given), _MAX_COUNTED))
        except RecursionError as error:
            raise misfit(self._tool, error) from error
        except CheckTooSlowError as error:
            raise _refusal(self._tool, [((), "they take too long to check")]) from error
        except ToolError:
            raise
        except Exception as error:
            raise self._unusable(error) from error
        if failures:
            raise _refusal(self._tool, [(each.absolute_path, each.message) for each in failures])
        return given

    @cached_property
    def _validator(self) -> BoundedValidator:
        schema = self._schema
        if "properties" in schema and not _OPENERS & schema.keys():
            schema = schema | {"additionalProperties": False}
        try:
            validator = BoundedValidator(schema)
            check_arguments_schema(schema)
        except SchemaUnusableError as error:
            raise self._unusable(error) from error
        return validator

    def _filled(self, value: Any, schemas: Iterable[object]) -> Any:
        """Return a value with the defaults of its schemas in place of absent properties."""
        parts = self._holding(schemas)
        if isinstance(value, list):
            items = [part.get("items") for part in parts]
            return [self._filled(each, items) for each in cast("list[Any]", value)]
        if not isinstance(value, dict):
            return value
        filled = dict(cast("Json", value))
        for name, below in _properties(parts, filled).items():
            if name not in filled:
                found = (part.get("default") for part in self._holding(below))
                default = next((each for each in found if each is not None), None)
                if default is None:
                    continue
                filled[name] = deepcopy(default)
            filled[name] = self._filled(filled[name], below)
        return filled

    def _holding(self, schemas: Iterable[object]) -> list[Json]:
        """Return the schemas, with their references and `allOf`: a value meets them all."""
        pending, found = list(schemas), dict[int, Json]()
        for each in pending:  # it grows meanwhile
            if not isinstance(each, dict) or id(cast("Json", each)) in found:
                continue
            node = found[id(cast("Json", each))] = cast("Json", each)
            if isinstance(reference := node.get("$ref"), str):
                pending.append(self._validator.find(reference))
            pending += cast("list[object]", node.get("allOf", []))
        return [*found.values()]

    def _takes_null(self, name: str) -> bool:
        schema = self._schema.get("properties", {}).get(name)
        return name in self._schema.get("required", []) or (
            isinstance(schema, dict) and self._validator.takes(None, cast("Json", schema))
        )

    def _unusable(self, error: Exception) -> ToolError:
        reason = _shorten(str(error).partition("\n")[0])
        message = f"the input schema of {self._tool} cannot be used: {reason}"
        return ToolError(ErrorCode.SCHEMA_ERROR, message)


def _properties(schemas: Iterable[Json], value: Mapping[str, Any]) -> dict[str, list[Json]]:
    """Return the schemas of each property that is listed, or that the value has besides."""
    found: dict[str, list[Json]] = {}
    for schema in schemas:
        listed = cast("Json", schema.get("properties", {}))
        below = [*listed.items()]
        if "patternProperties" not in schema:
            others = schema.get("additionalProperties")
            below += [(name, others) for name in value if name not in listed]
        for name, part in below:
            if isinstance(part, dict):
                found.setdefault(name, []).append(cast("Json", part))
    return found


def misfit(tool: str, error: ValidationError | RecursionError | TypeError) -> ToolError:
    """The refusal of arguments that do not fit."""
    if isinstance(error, ValidationError):
        failures = error.errors(include_url=False, include_context=False, include_input=False)
        return _refusal(tool, [(failure["loc"], failure["msg"]) for failure in failures])
    reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
    return _refusal(tool, [((), reason)])


def _refusal(tool: str, failures: list[tuple[Iterable[int | str], str]]) -> ToolError:
    reported = [
        {"path": json_path(place), "message": _shorten(message)}
        for place, message in failures[:_MAX_REPORTED]
    ]
    lines = "; ".join(f"{failure['path']}: {failure['message']}" for failure in reported)
    left = len(failures) - _MAX_REPORTED
    more = f" (and {left} more)" if left > 0 else ""
    return ToolError(
        ErrorCode.VALIDATION_ERROR,
        f"the arguments of {tool} do not fit: {lines}{more}",
        details={"path": reported[0]["path"], "errors": reported},
    )


def json_path(parts: Iterable[int | str]) -> str:
    """`("edits", 0, "old")` as `$.edits[0].old`."""
    path = "$"
    for count, part in enumerate(parts):
        if count == _MAX_STEPS:
            return f"{path}…"
        name = f"{part[:_MAX_NAME]}…" if isinstance(part, str) and len(part) > _MAX_NAME else part
        is_plain = isinstance(name, str) and re.match(_IDENTIFIER, name)
        path += f".{name}" if is_plain else f"[{name!r}]"
    return path


def _shorten(message: str) -> str:
    return message if len(message) <= _MAX_MESSAGE else message[:_MAX_MESSAGE] + "…"
