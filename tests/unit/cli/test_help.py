"""What `--help` says, of every command and of every action of one."""

import re

import pytest

from agent_core.cli.command import execute


def collect_help(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, str]:
    """The help of a command, and of all that it lists, by their names."""
    assert execute([*words, "--help"]) == 0
    text = capsys.readouterr().out
    found = {" ".join(words): text}
    listed = re.search(r"^positional arguments:\n  (?:command|action)\n((?:    .*\n)+)", text, re.M)
    for name in re.findall(r"^    (\w+)", listed[1], re.M) if listed else ():
        found |= collect_help(capsys, *words, name)
    return found


def test_every_help_says_what_the_command_is_for_and_fits_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = collect_help(capsys)
    assert {"permissions explain", "workspace diff", "sessions fork", "undo"} <= shown.keys()
    for name, text in shown.items():
        paragraphs = text.split("\n\n")
        assert paragraphs[0].startswith("usage: "), name
        assert re.match(r"[A-Z].*\.$", paragraphs[1], re.DOTALL), name
        assert max(map(len, text.splitlines())) <= 80, name
