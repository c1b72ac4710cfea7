"""Schemas of arguments: small for the model, strict for the caller.

Built-in and `@tool` tools have a pydantic type, from which the schema is made; MCP, declarative
and registered tools bring a raw JSON Schema: see `schema_check`. Either way a call that does not
fit is one `validation_error` with JSON paths.
"""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from agent_core.assets import load_schemas
from agent_core.errors import ErrorCode, ToolError
from agent_core.text.json_text import JsonSchema

Json = dict[str, Any]

_MAX_REPORTED = 5
_MAX_MESSAGE = 300
_MAX_NAME = 100
_MAX_STEPS = 20
_IDENTIFIER = r"[A-Za-z_][A-Za-z0-9_]*\Z"


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


def misfit(tool: str, error: ValidationError | RecursionError | TypeError) -> ToolError:
    """The refusal of arguments that do not fit."""
    if isinstance(error, ValidationError):
        failures = error.errors(include_url=False, include_context=False, include_input=False)
        return refusal(tool, [(failure["loc"], failure["msg"]) for failure in failures])
    reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
    return refusal(tool, [((), reason)])


def refusal(tool: str, failures: list[tuple[Iterable[int | str], str]]) -> ToolError:
    """Return the error for a call whose arguments do not fit.

    Args:
        tool: its name.
        failures: where each fault is, as the steps of a JSON path, and what it is.
    """
    reported = [
        {"path": json_path(place), "message": shorten(message)}
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


def shorten(message: str) -> str:
    """Return the beginning of a message that may be long."""
    return message if len(message) <= _MAX_MESSAGE else message[:_MAX_MESSAGE] + "…"
