"""Checks of raw arguments against the raw JSON Schema of a tool."""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from functools import cached_property
from itertools import islice
from typing import Any, Self, cast

from agent_core.errors import ErrorCode, ToolError
from agent_core.text.json_text import JsonSchema
from agent_core.tools.json_schema import (
    BoundedValidator,
    CheckTooSlowError,
    SchemaUnusableError,
    check_arguments_schema,
)
from agent_core.tools.schema import Json, misfit, refusal, shorten, without_nulls

_MAX_COUNTED = 50
_OPENERS = {
    *("additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames"),
    *("allOf", "anyOf", "oneOf", "if", "dependentSchemas", "$ref", "$dynamicRef"),
}
"""Words with which a schema itself describes the other properties of an object."""


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
            raise refusal(self._tool, [((), "they take too long to check")]) from error
        except ToolError:
            raise
        except Exception as error:
            raise self._unusable(error) from error
        if failures:
            raise refusal(self._tool, [(each.absolute_path, each.message) for each in failures])
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
        reason = shorten(str(error).partition("\n")[0])
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
