"""What the story of a session says of a call."""

from agent_core.cli.history import CallEntry
from agent_core.types import ToolCallBlock


def test_a_call_cancelled_at_its_question_is_named_as_it_was_asked_for() -> None:
    call = ToolCallBlock(tool_call_id="c1", name="code.run_command", arguments={})
    called = CallEntry(call, "node_1", outcome="failed", ended={"code": "cancelled"})
    scope = "code.run_command: /usr/bin/make as exactly: make check in /p"
    called.questions.append({"target_scope": scope, "args_summary": "make check"})
    assert (called.word, called.summary) == ("cancelled", "make check")
