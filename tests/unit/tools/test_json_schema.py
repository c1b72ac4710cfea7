"""A schema that could not be used is refused when its tool is registered; a check always ends."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from jsonschema import Draft7Validator, Draft202012Validator, SchemaError

from agent_core.errors import ConfigError, ErrorCode, ToolError
from agent_core.mcp.discovery import read_tool
from agent_core.tools import ToolContext, ToolRegistry
from agent_core.tools.base import OutputMisfitError
from agent_core.tools.output import ExpectedOutput
from agent_core.tools.schema_check import SchemaCheck
from agent_core.types import ToolDefinition
from sweeps import examples
from tables import together


async def handler(arguments: dict[str, Any], context: ToolContext) -> None: ...


def registered(schema: dict[str, Any]) -> ToolDefinition:
    registry = ToolRegistry()
    registry.register(ToolDefinition(name="t", description="t", input_schema=schema), handler)
    made = registry.get("t")
    assert made is not None
    return made.definition


def of(schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}}


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


def endless() -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": {}}
    schema["properties"]["a"] = schema
    return schema


REFUSED: dict[str, dict[str, Any]] = {
    "a type that is none": of({"type": "strnig"}),
    "a type inside": of({"type": "array", "items": {"type": "str"}}),
    "a root that is no object": {"type": "string"},
    "a root of two types": {"type": ["object", "null"]},
    "a root without an object": {"type": "array", "items": {}},
    "a remote reference": of({"$ref": "https://example.com/schema.json"}),
    "a file": of({"$ref": "file:///etc/passwd"}),
    "a reference to nothing": of({"$ref": "#/$defs/missing"}),
    "a reference to an anchor that is not there": of({"$ref": "#missing"}),
    "a reference that is no text": of({"$ref": 7}),
    "a reference to a broken schema in a place of its own": {
        **of({"$ref": "#/x-parts/b"}),
        "x-parts": {"b": {"type": "strnig"}},
    },
    "a reference to a broken schema in a value": {
        **of({"anyOf": [{"enum": [{"type": "strnig"}]}, {"$ref": "#/properties/a/anyOf/0/enum/0"}]})
    },
    "a reference to a broken schema behind another": {
        **of({"$ref": "#/x-parts/b"}),
        "x-parts": {"b": {"$ref": "#/x-parts/c"}, "c": {"required": True}},
    },
    "a reference to a list": {**of({"$ref": "#/required"}), "required": ["a"]},
    "a reference to a number": {**of({"$ref": "#/minProperties"}), "minProperties": 1},
    "a reference to a text": {**of({"$ref": "#/description"}), "description": "x"},
    "a circle": of({"$ref": "#/properties/a"}),
    "a circle of two": {
        **of({"$ref": "#/$defs/b"}),
        "$defs": {"b": {"allOf": [{"$ref": "#/$defs/c"}]}, "c": {"$ref": "#/$defs/b"}},
    },
    "a circle through the root": {**of({}), "anyOf": [{"$ref": "#"}]},
    "an unknown dialect": {"$schema": "https://example.com/own", **of({})},
    "a dialect that is no text": {"$schema": 7, **of({})},
    "a nesting without end": endless(),
    "deep": of(deep(5_000)),
    "enormous": of({"enum": ["x" * 100] * 10_000}),
    "required that is no list": {**of({}), "required": "a"},
    "required as a flag": of({"type": "string", "required": True}),
    "required of what there is not": {**of({}), "required": ["b"]},
    "required twice": {**of({}), "required": ["a", "a"]},
    "properties that are no table": {"type": "object", "properties": ["a"]},
    "a property that is no schema": of("string"),
    "a pattern that cannot be read": of({"type": "string", "pattern": "(["}),
    "a name pattern that cannot be read": {"type": "object", "patternProperties": {"([": {}}},
    "a pattern without measure": of({"type": "string", "pattern": "a" * 10_000}),
    "NaN": of({"type": "number", "minimum": float("nan")}),
    "infinity": of({"type": "number", "maximum": float("inf")}),
    "a set": of({"enum": {1, 2}}),
    "an object of Python": of({"default": object()}),
    "half a character": of({"description": "\ud800"}),
    "a name that is no text": {"type": "object", "properties": {1: {}}},
    "a negative length": of({"type": "string", "maxLength": -1}),
    "an empty choice": of({"anyOf": []}),
}


@together("kind", REFUSED)
def test_a_schema_that_cannot_be_used_is_refused_when_registered(kind: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        registered(REFUSED[kind])
    assert refusal.value.code is ErrorCode.VALIDATION_ERROR
    assert refusal.value.message.startswith("the input schema of t cannot be used: ")
    assert len(refusal.value.message) < 1_000


@together("kind", REFUSED)
def test_a_server_s_tool_with_such_a_schema_is_left_out(kind: str) -> None:
    assert read_tool("t", "t", REFUSED[kind], is_readonly=True).fault


ADMITTED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing": ({}, {"x": 1}),
    "an open object": ({"type": "object"}, {"x": 1}),
    "a boolean": (of(True), {"a": 1}),
    "a recursive type": (
        {
            **of({"$ref": "#/$defs/tree"}),
            "$defs": {"tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
        },
        {"a": [[[]]]},
    ),
    "an anchor": (
        {**of({"$ref": "#word"}), "$defs": {"w": {"$anchor": "word", "type": "string"}}},
        {"a": "x"},
    ),
    "an older dialect": (
        {"$schema": "http://json-schema.org/draft-07/schema#", **of({"type": "integer"})},
        {"a": 1},
    ),
    "a dialect without its sign": (
        {"$schema": "https://json-schema.org/draft-07/schema", **of({"type": "integer"})},
        {"a": 1},
    ),
    "the newest dialect": (
        {"$schema": "https://json-schema.org/draft/2020-12/schema", **of({"const": None})},
        {"a": None},
    ),
    "a look ahead": (of({"type": "string", "pattern": r"^(?!\.)\p{L}+$"}), {"a": "Größe"}),
    "patterns of names": (
        {"type": "object", "patternProperties": {"^x-": {"type": "integer"}}},
        {"x-a": 1},
    ),
    "what is not evaluated": (
        {
            "type": "object",
            "patternProperties": {"^x-": {}},
            "unevaluatedProperties": False,
        },
        {"x-a": 1},
    ),
    "different items": (of({"uniqueItems": True}), {"a": [1, True, "1", [1], {"b": 1}]}),
}


@together("kind", ADMITTED)
def test_the_whole_standard_may_be_used(kind: str) -> None:
    schema, arguments = ADMITTED[kind]
    assert registered(schema).input_schema["type"] == "object"
    assert "properties" in registered(schema).input_schema
    assert SchemaCheck("t", schema)(arguments) == arguments


STRICT: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (of({"type": "string", "pattern": "^a+$"}), {"a": "b"}),
    ({"type": "object", "patternProperties": {"^x-": {"type": "integer"}}}, {"x-a": "b"}),
    (
        {"type": "object", "patternProperties": {"^x-": {}}, "additionalProperties": False},
        {"y": 1},
    ),
    ({"type": "object", "additionalProperties": {"type": "integer"}}, {"y": "b"}),
    (of({"uniqueItems": True}), {"a": [{"b": 1, "c": [1.0]}, {"c": [1], "b": 1.0}]}),
]


@together(("schema", "arguments"), STRICT)
def test_what_does_not_fit_is_refused(schema: dict[str, Any], arguments: dict[str, Any]) -> None:
    with pytest.raises(ToolError) as refusal:
        SchemaCheck("t", schema)(arguments)
    assert refusal.value.code is ErrorCode.VALIDATION_ERROR


def _doubling() -> dict[str, Any]:
    names = {
        f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} if n < 40 else {} for n in range(41)
    }
    return {**of({"$ref": "#/$defs/d0"}), "$defs": names}


SLOW: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a pattern": (of({"type": "string", "pattern": "^(a+)+$"}), {"a": "a" * 40 + "b"}),
    "many stars": (of({"type": "string", "pattern": "a*" * 20 + "c"}), {"a": "a" * 5_000}),
    "a pattern of names": (
        {"type": "object", "patternProperties": {"^(a|aa)+$": {}}},
        {"a" * 100 + "b": 1},
    ),
    "additional names": (
        {
            "type": "object",
            "patternProperties": {"^(a+)+$": {}},
            "additionalProperties": False,
        },
        {"a" * 40 + "b": 1},
    ),
    "names": (
        {"type": "object", "propertyNames": {"pattern": "^(a+)+$"}},
        {"a" * 40 + "b": 1},
    ),
    "references that double": (_doubling(), {"a": 1}),
}


@pytest.mark.parametrize("kind", SLOW)
def test_a_check_that_would_take_years_ends_in_time(kind: str) -> None:
    schema, arguments = SLOW[kind]
    registered(schema)
    started = time.thread_time()
    with pytest.raises(ToolError) as refusal:
        SchemaCheck("t", schema)(arguments)
    assert time.thread_time() - started < 5
    assert refusal.value.code is ErrorCode.VALIDATION_ERROR
    assert len(refusal.value.message) < 1_000


def test_many_items_are_compared_in_time() -> None:
    items = [{"n": n, "t": "x"} for n in range(20_000)]
    assert SchemaCheck("t", of({"uniqueItems": True}))({"a": items}) == {"a": items}


def test_names_and_values_of_a_megabyte_are_not_repeated() -> None:
    schema: dict[str, Any] = {**of({"type": "integer"}), "required": ["a"]}
    for arguments in (
        {"a": "x" * 1_000_000},
        {"a": 1, "n" * 1_000_000: 1},
        {"a": 1, **{f"{n}" * 1_000: 1 for n in range(1_000)}},
    ):
        with pytest.raises(ToolError) as refusal:
            SchemaCheck("t", schema)(arguments)
        assert len(json.dumps(refusal.value.details)) + len(refusal.value.message) < 5_000


@together("kind", ["a circle", "a remote reference", "a type that is none", "NaN"])
def test_an_expected_answer_has_a_schema_of_the_same_kind(kind: str) -> None:
    with pytest.raises(ConfigError, match="output_type cannot be used") as refusal:
        ExpectedOutput(REFUSED[kind])
    assert refusal.value.code is ErrorCode.VALIDATION_ERROR


def test_an_answer_that_takes_years_to_check_is_a_fault() -> None:
    schema, answer = SLOW["references that double"]
    with pytest.raises(OutputMisfitError, match="too long"):
        ExpectedOutput(schema).read([json.dumps(answer)])


def test_an_expected_answer_may_be_of_any_type(tmp_path: Path) -> None:
    assert ExpectedOutput({"type": "array"}).read(["[1]"]) == [1]


_WORDS = ["type", "title", "default", "enum", "minimum", "maxLength", "uniqueItems", "required",
          "properties", "items", "additionalProperties", "anyOf", "examples", "$ref", "pattern",
          "not", "$defs", "x-own", "$schema"]  # fmt: skip
_JSON = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-2, 2), st.just(0.5),
        st.sampled_from(["object", "string", "array", "", "nothing", "#", "[",
                         "http://json-schema.org/draft-07/schema#"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(_WORDS), inner, max_size=3)
    ),
    max_leaves=12,
)  # fmt: skip


def is_admitted(schema: dict[str, Any]) -> bool:
    try:
        SchemaCheck("t", schema).compile()
    except ToolError:
        return False
    return True


@pytest.mark.long
@settings(max_examples=examples(400), deadline=None)
@given(st.dictionaries(st.sampled_from(_WORDS), _JSON, max_size=3))
def test_only_schemas_of_their_dialect_are_admitted(parts: dict[str, Any]) -> None:
    schema = {"type": "object", **parts}
    if is_admitted(schema):
        dialect = Draft7Validator if "$schema" in schema else Draft202012Validator
        try:
            dialect.check_schema(schema, format_checker=None)  # pyright: ignore[reportArgumentType]
        except SchemaError as error:
            pytest.fail(f"{schema}: {error.message}")


def test_plain_schemas_are_admitted_without_the_schema_checker() -> None:
    """It takes a tenth of a second to import, and 1.5 ms for each schema."""
    program = """
import sys
from agent_core.mcp.discovery import read_tool
tags = {"type": "array", "items": {"enum": ["a", "b"]}, "default": [], "title": "Tags"}
schema = {"type": "object", "properties": {"tags": tags, "n": {"anyOf": [{"type": "integer"}]}},
          "required": ["n"], "$schema": "http://json-schema.org/draft-07/schema#"}
for number in range(1000):
    assert not read_tool(f"tool_{number}", "does", schema, is_readonly=True).fault
print(sorted({"jsonschema", "referencing"} & set(sys.modules)))
"""
    done = subprocess.run(  # noqa: S603 - our own interpreter and text
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
