"""An empty argument is refused by every command, unless it is a text that may be empty."""

import argparse
from collections.abc import Iterator

import pytest

from agent_core.cli.arguments import build_parser, parse
from agent_core.cli.options import Parser
from sweeps import sampled
from tables import together

TEXTS = {"args", "instructions", "message", "reason", "words"}


def leaves(parser: Parser, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Parser]]:
    """Every command and action, with the words that name it."""
    if not parser.commands:
        yield path, parser
    for name, command in parser.commands.items():
        yield from leaves(command, (*path, name))


def lines() -> Iterator[tuple[str, ...]]:
    """A command line for every argument that takes a value; it ends where the value belongs."""
    for path, parser in leaves(build_parser()):
        before: list[str] = []
        for action in parser._actions:
            if action.dest in TEXTS or action.nargs == 0:
                continue
            if isinstance(action, argparse._SubParsersAction):
                continue
            if action.option_strings:
                yield *path, action.option_strings[0]
            else:
                yield *path, *before
                before.append(next(iter(action.choices or ["a"])))


LINES = sorted({*lines()})


def test_the_arguments_are_found() -> None:
    assert ("run", "--session-id") in LINES
    assert ("approvals", "answer") in LINES
    assert ("sessions", "export", "--html") in LINES
    assert len(LINES) > 100


@pytest.mark.long
@together("value", ["", " ", "\t\n"])
@together("line", sampled(LINES, keep=40), ids=" ".join)
def test_an_empty_value_is_refused(
    line: tuple[str, ...], value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        parse([*line, value])
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert "is a shell variable not set?" in said
    if line[-1].startswith("--"):
        assert f"argument {line[-1]}" in said


def test_an_empty_value_after_an_equals_sign_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["run", "--session-id=", "go"])
    assert "argument --session-id: the value is empty" in capsys.readouterr().err


@together(
    "line",
    [
        ["run", "--instructions", "", "go"],
        ["approvals", "answer", "req_1", "deny", "--reason", ""],
        ["permissions", "explain", "--args", "", "ls"],
        ["permissions", "explain", "grep", ""],
        ["sessions", "list", ""],
        ["sessions", "list"],
        ["sessions", "export", "--html"],
        ["sessions", "export", "s1", "--html"],
        ["sessions", "rename", "s1", ""],
        ["store", "check"],
        ["store", "migrate"],
        ["undo"],
        ["config", "show"],
    ],
    ids=" ".join,
)
def test_an_empty_text_and_a_value_left_out_are_not(line: list[str]) -> None:
    assert parse(line).command == line[0]


def test_an_empty_message_is_refused_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["run", ""])
    assert "the message is empty" in capsys.readouterr().err
