"""What errors say to people at a terminal, and to people who write programs."""

from agent_core.storage.rows import session_not_found
from agent_core.text import without_code


def test_an_error_that_recommends_a_command_also_says_how_code_does_it() -> None:
    message = session_not_found("s1").message
    assert "(in code: list_sessions())" in message
    assert without_code(message) == "there is no session s1; `sessions list` shows them all"
