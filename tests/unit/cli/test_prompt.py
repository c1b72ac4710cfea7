"""What an answer means, and what a question tells."""

import pytest

from agent_core.cli.prompt import decision_of, facts_of
from agent_core.types import Decision, PermissionRequest, ToolPermission


@pytest.mark.parametrize(
    ("line", "decision"),
    [
        ("1", Decision.ALLOW_ONCE),
        ("allow once", Decision.ALLOW_ONCE),
        ("  ALLOW ONCE\t", Decision.ALLOW_ONCE),
        ("2", Decision.ALLOW_FOR_SESSION),
        ("Allow for session", Decision.ALLOW_FOR_SESSION),
        ("3", Decision.DENY),
        ("deny", Decision.DENY),
        ("", Decision.DENY),
        ("yes", Decision.DENY),
        ("allow", Decision.DENY),
        ("1 2", Decision.DENY),
        ("\u0661", Decision.DENY),
        (None, Decision.DENY),
    ],
)
def test_h7_only_the_listed_answers_allow(line: str | None, decision: Decision) -> None:
    assert decision_of(line) is decision


def test_a_question_without_details_shows_no_empty_lines() -> None:
    request = PermissionRequest(
        request_id="req_1",
        session_id="sess_1",
        agent_id="agent_1",
        run_id="run_1",
        agent_role="main",
        tool_name="x",
        permission=ToolPermission.WRITE,
        args_summary="{}",
        cwd="/p",
    )
    assert facts_of(request) == [("arguments", "{}"), ("in", "/p"), ("agent", "main")]
