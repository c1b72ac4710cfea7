"""Results: an answer taken apart, checked against a shape, and never an exception."""

from typing import Any

import pytest

from agent_core.agents.report import build_report


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
    assert as_json('{"n": 1}', output={"n": 1})["metadata"] == {"output": {"n": 1}}
    assert as_json('{"n": 1}')["metadata"] == {}
