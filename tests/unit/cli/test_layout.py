"""Lines break between words at the width of the window, whatever `COLUMNS` says."""

import ast
import fcntl
import os
import pty
import struct
import termios
from collections.abc import Generator
from io import StringIO
from pathlib import Path

import pytest

import agent_core.cli
import kgent
from agent_core.cli.layout import rows_of, window_size, wrapped_parts
from agent_core.cli.terminal import Style, Terminal
from tables import together


class Screen(StringIO):
    """A stream that a terminal shows, whose text is kept."""

    encoding = "utf-8"

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return True


@pytest.fixture
def screen() -> Generator[Screen]:
    ours, theirs = pty.openpty()
    yield Screen(theirs)
    os.close(ours)
    os.close(theirs)


def resize(screen: Screen, columns: int) -> None:
    size = struct.pack("HHHH", 24, columns, 0, 0)
    fcntl.ioctl(screen.fileno(), termios.TIOCSWINSZ, size)


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_the_window_is_asked_and_not_the_environment(
    screen: Screen, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", "33")
    resize(screen, columns)
    assert window_size(screen).columns == columns
    terminal = Terminal(screen, screen, environ={})
    sentence = "  error: " + "words of several lengths, and " * 8
    terminal.line(sentence, Style.BAD)
    lines = screen.getvalue().replace("\x1b[31m", "").replace("\x1b[0m", "").splitlines()
    assert " ".join("".join(lines).split()) == " ".join(sentence.split())
    assert all(len(line) < columns and line.startswith("  ") for line in lines)


def test_without_a_terminal_the_environment_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "33")
    assert window_size(StringIO()).columns == 33
    monkeypatch.delenv("COLUMNS")


def test_a_command_stays_on_one_line(screen: Screen) -> None:
    resize(screen, 40)
    terminal = Terminal(screen, screen, environ={"NO_COLOR": "1"})
    command = "soong-agent chat --path /a/rather/long/path --session-id s1"
    terminal.command("to continue there:", command)
    assert screen.getvalue() == f"to continue there:\n{command}\n"


def test_pieces_keep_their_looks_where_a_line_breaks() -> None:
    parts = [("  one two ", "a"), ("three four", "b"), (" five", "a")]
    assert wrapped_parts(parts, 12, plain="") == [
        [("  one two", "a")],
        [("  ", ""), ("three four", "b")],
        [("  ", ""), ("five", "a")],
    ]


@together(("line", "rows"), [("", 1), ("x" * 80, 2), ("x" * 81, 3), ("\x1b[2m加加\x1b[0m", 1)])
def test_rows_are_counted_at_the_width_of_the_window(line: str, rows: int) -> None:
    assert rows_of(line, 40) == rows


@pytest.mark.long
def test_one_function_gives_the_size_of_the_window() -> None:
    folders = [Path(str(package.__file__)).parent for package in (agent_core.cli, kgent)]
    for file in (file for folder in folders for file in folder.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            is_asked = isinstance(node, ast.Attribute) and node.attr == "get_terminal_size"
            assert not is_asked or file.name == "layout.py", file
