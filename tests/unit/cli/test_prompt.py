"""What an answer means, and what a question tells."""

import os
from io import StringIO

import pytest

from agent_core.cli.prompt import InputLines, TerminalPrompt, parse_decision, request_facts
from agent_core.cli.terminal import Terminal
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
    assert parse_decision(line) is decision


def request() -> PermissionRequest:
    return PermissionRequest(
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


def test_a_question_without_details_shows_no_empty_lines() -> None:
    assert request_facts(request()) == [("arguments", "{}"), ("in", "/p"), ("agent", "main")]


def test_a_question_names_the_places_that_are_its_reason() -> None:
    metadata = {"reason": "outside_roots", "places": ["/etc/passwd", "/x"]}
    facts = dict(request_facts(request().model_copy(update={"metadata": metadata})))
    assert facts["paths"] == "/etc/passwd, /x"
    assert "outside the project" in facts["reason"]


@pytest.mark.parametrize(
    ("scope", "shown"), [("/usr/bin/echo in /p", "/usr/bin/echo in /p"), (None, "this call only")]
)
async def test_a_question_says_what_an_answer_for_the_session_covers(
    scope: str | None, shown: str
) -> None:
    told = StringIO()
    terminal = Terminal(StringIO(), told, environ={})
    reading, writing = os.pipe()
    try:
        os.write(writing, b"3\n")
        prompt = TerminalPrompt(terminal, InputLines(reading), echoes=False)
        await prompt(request().model_copy(update={"target_scope": scope}))
    finally:
        os.close(writing)
        os.close(reading)
    assert f"2 allow for session ({shown})" in told.getvalue()
