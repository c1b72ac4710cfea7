"""Schemas of typed answers in the forms that services accept, and the mode of each service."""

from collections.abc import Mapping, Set as AbstractSet
from typing import Any, cast

from msgspec import Struct

from agent_core.providers.failures import Called
from agent_core.text.json_text import JsonSchema, JsonValue
from agent_core.types import FINAL_ANSWER, ModelRequest

_EVERYWHERE = frozenset(("type", "enum", "description"))
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid")
)
_DEFINITIONS = ("$defs", "definitions")
_SILENT = frozenset(
    ("title", "default", "examples", "discriminator", "deprecated", "$schema", "$id", "$comment")
)
"""Keywords that do not restrict values."""

_BEYOND = frozenset(
    ("allOf", "not", "if", "prefixItems", "patternProperties", "dependentSchemas", "contains")
)


class CannotSayError(Exception):
    """The schema has no form that the service is sure to enforce."""


class SchemaForm(Struct, frozen=True):
    """The part of JSON Schema that one service accepts; other keywords go into the description.

    Attributes:
        words: the accepted keywords beyond those that every service accepts.
        formats: the accepted formats of strings.
        requires_all: every property must be required; an optional one may be null instead.
    """

    words: AbstractSet[str]
    formats: AbstractSet[str] = _FORMATS
    requires_all: bool = False

    def of(self, schema: Mapping[str, JsonValue]) -> JsonSchema:
        """Convert a schema to this form.

        Raises:
            CannotSayError: it has no such form: an object with arbitrary property names, or a part
                without restrictions.
        """
        written = self._part({key: schema[key] for key in schema if key not in _DEFINITIONS})
        for key in _DEFINITIONS:
            if definitions := cast("JsonSchema", schema.get(key, {})):
                written[key] = {name: self._part(part) for name, part in definitions.items()}
        return written

    def _part(self, schema: Any) -> JsonSchema:
        if not isinstance(schema, dict) or not schema.keys() - _SILENT - {"description"}:
            raise CannotSayError
        node: JsonSchema = {k: v for k, v in cast("JsonSchema", schema).items() if k not in _SILENT}
        if "$ref" in node:  # alone: the service refuses other keywords beside it
            return {"$ref": node["$ref"]}
        if len(parts := node.get("allOf", [])) == 1:
            return self._part({**parts[0], **{k: v for k, v in node.items() if k != "allOf"}})
        if node.keys() & _BEYOND:
            raise CannotSayError
        if "const" in node and "const" not in self.words:
            node["enum"] = [node.pop("const")]
        written: JsonSchema = {}
        if choices := node.pop("anyOf", None) or node.pop("oneOf", None):
            written["anyOf"] = [self._part(choice) for choice in choices]
        if "items" in node:
            written["items"] = self._part(node.pop("items"))
        if node.get("type") == "object" or "properties" in node:
            written |= self._object(node)
        taken = _EVERYWHERE | self.words
        if node.get("format") not in self.formats:
            taken -= {"format"}
        written |= {word: value for word, value in node.items() if word in taken}
        if unsaid := [f"{word}: {value}" for word, value in node.items() if word not in taken]:
            about = f"{written.get('description', '')} ({', '.join(unsaid)})"
            written["description"] = about.strip()
        return written

    def _object(self, node: JsonSchema) -> JsonSchema:
        if node.pop("additionalProperties", False) is not False or "properties" not in node:
            raise CannotSayError
        properties: JsonSchema = node.pop("properties")
        required: list[str] = node.pop("required", [])
        written = {name: self._part(part) for name, part in properties.items()}
        if not self.requires_all:
            said = {"required": required} if required else {}
            return {"properties": written, "additionalProperties": False, **said}
        return {
            "properties": {
                name: part if name in required else _nullable(part)
                for name, part in written.items()
            },
            "additionalProperties": False,
            "required": list(properties),
        }


OPENAI_STRICT = SchemaForm(
    frozenset(("const", "format", "pattern", "minItems", "maxItems", *_NUMBERS)), requires_all=True
)
ANTHROPIC = SchemaForm(frozenset(("const", "format")), formats=_FORMATS | {"uri"})


def _nullable(part: JsonSchema) -> JsonSchema:
    kind = part.get("type")
    if isinstance(kind, str) and "enum" not in part and "const" not in part:
        return part if kind == "null" else {**part, "type": [kind, "null"]}
    return {"anyOf": [part, {"type": "null"}]}


def openai_format(request: ModelRequest) -> JsonSchema:
    """Return the `json_schema` of a request in OpenAI's protocols; strict where possible."""
    output = request.output
    if output is None:
        return {}
    said: JsonSchema = {"name": output.name}
    if output.description:
        said["description"] = output.description
    try:
        return {**said, "schema": OPENAI_STRICT.of(output.output_schema), "strict": True}
    except CannotSayError:
        return {**said, "schema": output.output_schema, "strict": False}


def has_other_tools(request: ModelRequest) -> bool:
    """Return whether a request offers tools other than the one that takes the answer."""
    return any(tool.name != FINAL_ANSWER for tool in request.tools)


def with_output_mode(request: ModelRequest, called: Called, *, is_native: bool) -> ModelRequest:
    """Request the typed answer in only one way: the service's own mode, or the tool.

    Raises:
        ProviderError: `unsupported_capability`; the request wants the service's mode, and there is
            none.
    """
    if request.output is None:
        return request
    if is_native:
        tools = [tool for tool in request.tools if tool.name != FINAL_ANSWER]
        return request.model_copy(update={"tools": tools})
    if request.output.mode == "native":
        raise called.unsupported(
            "native_output",
            f"{called.provider} cannot hold {called.model} to the schema of a typed answer; leave"
            ' output_mode at "auto", or use output_mode="tool"',
        )
    return request.model_copy(update={"output": None})
