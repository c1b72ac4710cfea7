"""What the story of a session says of a call."""

from agent_core.events.projection import Call
from agent_core.history.words import outcome_word
from agent_core.types import ToolCallBlock
from agent_core.types.event_details import PermissionRequested, ToolFailed


def test_a_call_cancelled_at_its_question_is_named_as_it_was_asked_for() -> None:
    block = ToolCallBlock(tool_call_id="c1", name="code.run_command", arguments={})
    call = Call(name=block.name, block=block, ended=ToolFailed(code="cancelled"))
    scope = "code.run_command: /usr/bin/make as exactly: make check in /p"
    call.questions.append(PermissionRequested(target_scope=scope, args_summary="make check"))
    assert (outcome_word(call), call.summary) == ("cancelled", "make check")
