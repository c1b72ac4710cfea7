"""Terminals that cut lines off in a narrower window are known, also under another one."""

from agent_core.cli.layout import reflows
from tables import together


@together(
    ("environ", "expected"),
    [
        ({"TERM": "xterm-256color"}, True),
        ({"TERM": "xterm", "XTERM_VERSION": "XTerm(390)"}, False),
        ({"TERM": "xterm", "XTERM_VERSION": "XTerm(390)", "VTE_VERSION": "7600"}, True),
        ({"TERM": "tmux", "XTERM_VERSION": "XTerm(390)", "TMUX": "s,1,0"}, True),
        ({"TERM": "screen", "STY": "1.pts"}, False),
        ({"TERM": "linux"}, False),
        ({}, True),
    ],
)
def test_terminals_say_who_they_are(environ: dict[str, str], *, expected: bool) -> None:
    assert reflows(environ) is expected
