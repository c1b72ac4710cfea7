import pytest

from agent_core.compact import summary_of
from agent_core.errors import SchemaError


@pytest.mark.parametrize(
    "text",
    [
        '{"summary": "## Goal\\nx"}',
        '```json\n{"summary": "## Goal\\nx", "more": [1]}\n```',
        "## Goal\nx",
        "  ## Goal\nx\n",
        '{"summary": "## Goal\nx"}',
        '{"summary": "## Goal\\nx',
        '{"summary": "## Goal\\nx"',
    ],
)
def test_a_summary_is_found_in_what_models_really_answer(text: str) -> None:
    assert summary_of(text) == "## Goal\nx"


@pytest.mark.parametrize(
    "text", ["", "  ", '{"summary": ""}', '{"summary": 3}', "{}", '{"a": "b"}']
)
def test_an_answer_without_a_summary_is_refused(text: str) -> None:
    with pytest.raises(SchemaError):
        summary_of(text)
