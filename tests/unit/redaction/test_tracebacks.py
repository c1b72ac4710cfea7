"""Failures in the log: text that every log and terminal can take, without secrets, bounded."""

import logging
import re
from pathlib import Path

import pytest

import agent_core
from agent_core.redaction import log_failure

logger = logging.getLogger("test")
PACKAGES = ("agent_core", "agcore", "kgent")


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


def test_a_failure_without_a_redactor_of_its_own_is_cleaned_by_shape(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log_failure(logger, "it broke", error=ValueError("postgres://ada:hunter2@db"))
    (record,) = caplog.records
    assert record.exc_info is None
    assert "postgres://ada:[redacted:password]@db" in record.message


def test_no_module_logs_a_traceback_as_it_is() -> None:
    source = Path(agent_core.__file__).parent.parent
    raw = re.compile(r"\bexc_info=|\blogger\.exception\(")
    modules = [file for name in PACKAGES for file in (source / name).rglob("*.py")]
    assert len(modules) > 500
    assert [str(file) for file in modules if raw.search(file.read_text())] == []
