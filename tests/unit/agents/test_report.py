"""Results: an answer taken apart, checked against a shape, and never an exception."""

from typing import Any

import pytest

from agent_core.agents.report import ExpectedOutput, build_report, parse_answer
from agent_core.errors import ErrorCode, ToolError

OBJECT = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def as_json(text: str, **more: Any) -> dict[str, Any]:
    return build_report(text, [], status="completed", metadata={}, **more)


@pytest.mark.parametrize(
    "text", ["plain words", "", "[1, 2]", '{"findings": ["a"]}', '{"summary": 3}', "{" * 2000]
)
def test_what_has_not_the_form_of_a_result_is_the_summary(text: str) -> None:
    assert as_json(text) == {
        "status": "completed",
        "summary": text,
        "findings": [],
        "artifacts": [],
        "proposed_actions": [],
        "metadata": {},
    }


def test_parts_that_are_no_lists_become_lists_of_one() -> None:
    found = as_json('{"summary": "s", "findings": {"a": 1}, "artifacts": [1, "art_1", "art_1"]}')
    assert found["findings"] == [{"a": 1}]
    assert found["artifacts"] == ["art_1"]


def test_a_step_is_named_only_where_there_is_one() -> None:
    assert "step_id" not in as_json("x")
    assert as_json("x", step_id="s1")["step_id"] == "s1"


def test_the_answer_itself_is_kept_where_a_shape_was_asked_for() -> None:
    assert as_json('{"n": 1}', has_shape=True)["metadata"] == {"output": {"n": 1}}
    assert as_json('{"n": 1}')["metadata"] == {}


@pytest.mark.parametrize(
    "text", ['{"n": 1}', '```json\n{"n": 1}\n```', '```\n{"n": 1}```', ' {"n": 1}\n']
)
def test_an_answer_fits_with_or_without_a_fence(text: str) -> None:
    assert ExpectedOutput(OBJECT).faults(text) == []
    assert parse_answer(text) == {"n": 1}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("words", "not JSON"),
        ('{"n": "1"}', "$.n"),
        ("{}", "n"),
        ("[" * 100_000, "JSON"),
        ('{"n": ' + "9" * 5000 + "}", "JSON"),
        ('Here it is: {"n": 1}', "not JSON"),
    ],
)
def test_a_misfit_is_named_by_its_place(text: str, said: str) -> None:
    (fault, *_) = ExpectedOutput(OBJECT).faults(text)
    assert said in fault


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nonsense"},
        {"$ref": "https://example.invalid/schema"},
        {"properties": {"a": {"pattern": "("}}},
    ],
)
def test_a_schema_that_cannot_be_used_is_an_argument_that_does_not_fit(
    schema: dict[str, Any],
) -> None:
    with pytest.raises(ToolError, match="expected_output_schema") as caught:
        ExpectedOutput(schema).faults('{"a": "b"}')
    assert caught.value.code is ErrorCode.VALIDATION_ERROR
    assert caught.value.details["path"] == "$.expected_output_schema"
