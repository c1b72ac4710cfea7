"""The findings of `doctor` on a screen and in a pipe."""

import sys
from io import StringIO

import pytest

from agent_core.cli.findings import Finding, show_findings
from agent_core.cli.terminal import Terminal

LONG = "more questions than daily work needs, and more words than a line of a terminal takes"
FINDINGS = [
    Finding("permissions", "remark", LONG, f"for daily work: {LONG}"),
    Finding("ripgrep", "ok", f"it is\n/a/{'long/' * 20}path"),
]


class Screen(StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def shown(stream: StringIO, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(sys, "stdout", stream)
    show_findings(FINDINGS, Terminal(stream, stream, environ={"TERM": "xterm"}), as_json=False)
    return stream.getvalue().splitlines()


def test_findings_break_between_words_below_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(Screen(), monkeypatch)
    assert lines[0].startswith("remark  permissions    more questions")
    assert all(line[:23].isspace() for line in lines[1:] if not line.startswith("ok"))
    assert [line for line in lines if len(line) > 80] == [f"{'':<23}/a/{'long/' * 20}path"]
    assert " ".join(" ".join(lines).split()).count(LONG) == 2


def test_a_program_gets_each_finding_on_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    first, cure, *_ = shown(StringIO(), monkeypatch)
    assert first.endswith(LONG)
    assert cure.endswith(LONG)
