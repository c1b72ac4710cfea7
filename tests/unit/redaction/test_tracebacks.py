"""Failures in the log: text that every log and terminal can take, without secrets, bounded."""

import logging

import pytest

from agent_core.redaction import log_failure

logger = logging.getLogger("test")


def test_a_logged_failure_holds_no_secret_and_nothing_that_acts_on_a_terminal(
    caplog: pytest.LogCaptureFixture,
) -> None:
    error = ValueError("my-secret \x1b]52;c;aGk=\x07 half \ud800 end\0")
    log_failure(
        logger, "it broke", error=error, clean=lambda text: text.replace("my-secret", "[redacted]")
    )
    (line,) = caplog.messages
    assert "[redacted] \\x1b]52;c;aGk=\\x07 half \\ud800 end\\x00" in line
    assert line.encode()


def test_a_logged_failure_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    log_failure(logger, "it broke", error=ValueError("x" * 1_000_000), clean=str)
    (line,) = caplog.messages
    assert len(line) < 25_000
