"""Tests of the library's agent, without a model."""

from library import Answer, Library, librarian

from agcore.llm import MockProvider, tool_call_reply


def test_it_looks_before_it_promises() -> None:
    answer = '{"title": "Emma", "can_borrow": false}'
    model = MockProvider([tool_call_reply("free_copies", title="Emma"), answer])

    result = librarian.run_sync("Can I have Emma?", deps=Library(copies={"Emma": 0}), model=model)

    assert result.output == Answer(title="Emma", can_borrow=False)
    assert "0" in str(model.requests[1].messages[-1].content)
