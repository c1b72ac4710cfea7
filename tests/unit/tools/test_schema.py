"""Schemas are small for the model and strict for the caller."""

from functools import partial
from typing import Any, Literal

import pytest
from pydantic import Field

from agent_core.errors import ErrorCode, ToolError
from agent_core.tools.schema import Arguments, json_path, model_schema, read_arguments
from agent_core.tools.schema_check import SchemaCheck
from tables import together


class Edit(Arguments):
    old: str
    new: str = ""
    title: str | None = None


class Change(Arguments):
    """What the docstring says."""

    path: str = Field(description="Where.")
    edits: list[Edit] | None = None
    mode: Literal["a", "b"] = "a"


class Tree(Arguments):
    children: list["Tree"] = Field(default_factory=list["Tree"])


def test_a_model_schema_has_no_titles_no_references_and_no_optional_nulls() -> None:
    edit = {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "old": {"type": "string"},
            "new": {"type": "string", "default": ""},
            "title": {"type": "string"},
        },
        "required": ["old"],
    }
    assert model_schema(Change) == {
        "type": "object",
        "description": "What the docstring says.",
        "additionalProperties": False,
        "properties": {
            "path": {"type": "string", "description": "Where."},
            "edits": {"type": "array", "items": edit},
            "mode": {"type": "string", "enum": ["a", "b"], "default": "a"},
        },
        "required": ["path"],
    }


def test_a_recursive_schema_keeps_its_reference_and_definition() -> None:
    schema = model_schema(Tree)
    assert set(schema["$defs"]) == {"Tree"}
    reference = schema["$defs"]["Tree"]["properties"]["children"]["items"]
    assert reference == {"$ref": "#/$defs/Tree"}


def test_null_means_absent_at_every_level_and_only_where_it_is_optional() -> None:
    check = partial(read_arguments, "t", Change)
    arguments = {"path": "a", "mode": None, "edits": [{"old": "x", "new": None}]}
    assert check(arguments) == Change(path="a", edits=[Edit(old="x")])
    with pytest.raises(ToolError) as refusal:
        check({"path": None})
    assert refusal.value.code is ErrorCode.VALIDATION_ERROR


def test_unknown_and_wrong_arguments_are_refused_with_their_json_path() -> None:
    with pytest.raises(ToolError) as refusal:
        read_arguments("t", Change, {"path": "a", "edits": [{"old": 3}], "extra": 1})
    assert refusal.value.code is ErrorCode.VALIDATION_ERROR
    assert refusal.value.details["path"] == "$.edits[0].old"
    assert [error["path"] for error in refusal.value.details["errors"]] == [
        "$.edits[0].old",
        "$.extra",
    ]


PORTS: dict[str, Any] = {
    "type": "object",
    "properties": {"port": {"type": "integer"}, "host": {"type": "string"}},
    "required": ["port"],
}


def test_a_raw_schema_is_checked_and_its_failures_have_paths() -> None:
    check = SchemaCheck("net", PORTS)
    assert check({"port": 1, "host": None}) == {"port": 1}
    with pytest.raises(ToolError) as refusal:
        check({"port": "x", "nope": 1})
    assert refusal.value.code is ErrorCode.VALIDATION_ERROR
    assert "$.port" in {error["path"] for error in refusal.value.details["errors"]}
    assert "nope" in str(refusal.value)


OPEN: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"anything": 1}),
    ({"type": "object"}, {"anything": 1}),
    (PORTS | {"additionalProperties": True}, {"port": 1, "anything": 1}),
    (PORTS | {"patternProperties": {"^x-": {}}}, {"port": 1, "x-a": 1}),
    ({"type": "object", "properties": {"a": {"type": ["string", "null"]}}}, {"a": None}),
]


@together(("schema", "arguments"), OPEN)
def test_a_schema_that_is_open_stays_open(
    schema: dict[str, Any], arguments: dict[str, Any]
) -> None:
    assert SchemaCheck("t", schema)(arguments) == arguments


def test_a_schema_that_refers_elsewhere_is_an_error_and_fetches_nothing() -> None:
    check = SchemaCheck("t", {"properties": {"a": {"$ref": "http://127.0.0.1:9/schema.json"}}})
    with pytest.raises(ToolError) as refusal:
        check({"a": 1})
    assert refusal.value.code is ErrorCode.SCHEMA_ERROR


def test_a_broken_schema_is_an_error_of_the_schema() -> None:
    with pytest.raises(ToolError) as refusal:
        SchemaCheck("t", {"type": "obj"})({})
    assert refusal.value.code is ErrorCode.SCHEMA_ERROR


def test_arguments_nested_too_deeply_are_refused_not_fatal() -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    recursive = {
        "type": "object",
        "$defs": {"tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
        "properties": {"a": {"$ref": "#/$defs/tree"}},
    }
    with pytest.raises(ToolError) as refusal:
        SchemaCheck("t", recursive)({"a": deep})
    assert refusal.value.code is ErrorCode.VALIDATION_ERROR


def test_messages_are_bounded() -> None:
    with pytest.raises(ToolError) as refusal:
        SchemaCheck("t", PORTS)({"port": "x" * 1_000_000})
    assert len(str(refusal.value)) < 2000


def test_json_paths_quote_what_is_not_a_name() -> None:
    assert json_path(("a", 0, "b-c")) == "$.a[0]['b-c']"
