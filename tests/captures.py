"""Runs a command in a real pseudo-terminal, and compares its screen with an approved file.

    scene = record(["soong-agent", "run", "hi"], columns=40, keys=[Key("> ", "y")], env=home.env())
    assert "all tests pass" in scene.text
    scene.check("run-hi-40")

`scene.check(name)` compares with `tests/captures/<name>.txt`: what stands on the screen and above
it, each line after `|`, and below a line its looks after `:`, a letter for each cell. What differs
from run to run (times, ids, temporary folders) is replaced before. `make captures` writes the files
anew: read what changed before you commit it.
"""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from difflib import unified_diff
from io import StringIO
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyte
import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

import on_terminal
from agent_core.cli.pictures import _SVG

FOLDER = Path(__file__).with_name("captures")
REWRITE = "SOONG_AGENT_REWRITE_CAPTURES"
_LOOKS = re.compile(r"\x1b\[[0-9;]*m")
_COLOURS = {
    "black": "k",
    "red": "r",
    "green": "g",
    "brown": "y",
    "blue": "b",
    "magenta": "m",
    "cyan": "c",
    "white": "w",
}
_HUES = {letter: name for name, letter in {**_COLOURS, "yellow": "y"}.items()}
_STYLES = {
    **_HUES,
    **{letter.upper(): f"bold {name}" for letter, name in _HUES.items()},
    " ": "",
    "?": "",
    "*": "bold",
    ".": "dim",
    "_": "underline",
    "/": "italic",
    "%": "reverse",
}
_CHANGING: Sequence[tuple[str, str]] = (
    (r"\b(sess|run|req|agent|node|evt|call|task|step|grant)_[0-9a-f]{8,}", r"\1_ID"),
    (r"\b\d+(\.\d+)? (ms|s)\b", "N s"),
    (r"\b\d+ m \d+ s\b", "N s"),
    (r"(?<=http://127\.0\.0\.1:)\d{5}\b", "10000"),
    (r"\bnow {6}|\b\d min ago", "N min ago"),
    ("[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏]", "⠿"),
)


@dataclass(frozen=True)
class Shown:
    """A pattern that the lines on the screen match.

    A terminal is sent only what differs from the last screen: a number whose first digits stay
    is never written whole.
    """

    pattern: str


@dataclass(frozen=True)
class Key:
    """Keys that are typed once `after` was written behind the last ones, or a call made then."""

    after: str | re.Pattern[str] | Shown
    keys: str | Callable[[], object] = ""


class Screen(pyte.HistoryScreen):
    """Keeps dim text apart: as blinking, for the library knows that alone, and we never use it."""

    def select_graphic_rendition(self, *attributes: int, **more: Any) -> None:
        known: list[int] = []
        for each in attributes:
            known += [22, 25] if each == 22 else [5] if each == 2 else [each]
        super().select_graphic_rendition(*known, **more)


def _look(cell: Any) -> str:
    name = str(cell.fg).removeprefix("bright")
    letter = _COLOURS.get(name, " " if name == "default" else "?")
    if cell.reverse:
        return "%"
    if cell.blink:  # dim
        return "." if letter == " " else letter
    if cell.bold:
        return "*" if letter == " " else letter.upper()
    if letter == " " and (cell.underscore or cell.italics):
        return "_" if cell.underscore else "/"
    return letter


@dataclass
class Recording:
    """What a terminal has shown when the command ended, or was left.

    Attributes:
        lines: all of it, the part that has scrolled off included.
        looks: a letter for each cell: r g y b m c are colours, in capitals bold; * is bold, . dim,
            _ underlined, / italic, % reversed.
        raw: the bytes that the command has written.
        code: its exit code; None if it was still running and was ended.
    """

    lines: list[str]
    looks: list[str]
    raw: bytes
    code: int | None
    replaced: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def text(self) -> str:
        """The lines as one text."""
        return "\n".join(self.lines)

    def check(self, name: str) -> None:
        """Compare with the approved file of that name, or write it where captures are rewritten."""
        shown = self._shown()
        file = FOLDER / f"{name}.txt"
        if os.environ.get(REWRITE):
            file.write_text(shown, encoding="utf-8")
        approved = file.read_text(encoding="utf-8") if file.exists() else "(there is no such file)"
        if shown != approved:
            lines = unified_diff(approved.splitlines(), shown.splitlines(), "approved", "shown")
            difference = "\n".join(lines)
            pytest.fail(f"{file.name} differs; `make captures` writes it anew\n{difference}")

    def svg(self, typed: str, *, title: str) -> str:
        """A picture of the terminal, below the command that was typed."""
        texts = [Text(typed, "bold"), Text("")]
        for line, look in zip(self.lines, self.looks, strict=True):
            changes = [(re.escape(old), new) for old, new in self.replaced.items()]
            line, look = _replace(line, look.ljust(len(line))[: len(line)], changes)
            parts = groupby(zip(line, look, strict=True), key=itemgetter(1))
            pieces = [("".join(each for each, _ in part), _STYLES[kind]) for kind, part in parts]
            texts.append(Text.assemble(*pieces))
        width = max(map(cell_len, (text.plain for text in texts))) + 1
        console = Console(file=StringIO(), width=width, record=True, force_terminal=True)
        for text in texts:
            console.print(text, highlight=False, soft_wrap=True)
        return console.export_svg(title=title, code_format=_SVG)

    def _shown(self) -> str:
        parts: list[str] = []
        for line, look in zip(self.lines, self.looks, strict=True):
            text, look = self._settled(line, look.ljust(len(line)))
            parts.append(f"|{text}".rstrip())
            if look.strip():
                parts.append(f":{look.rstrip()}")
        return "\n".join(parts) + "\n"

    def _settled(self, line: str, look: str) -> tuple[str, str]:
        """A line and its looks without what differs from run to run."""
        changing = [(re.escape(old), new) for old, new in self.replaced.items()]
        return _replace(line, look, [*changing, *_CHANGING])


def _replace(line: str, look: str, changes: Sequence[tuple[str, str]]) -> tuple[str, str]:
    for pattern, new in changes:
        while (found := re.search(pattern, line)) and found[0] != found.expand(new):
            start, end = found.span()
            fresh = found.expand(new)
            line = line[:start] + fresh + line[end:]
            look = look[:start] + look[start] * len(fresh) + look[end:]
    return line, look


def open_terminal(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path | None = None,
    columns: int = 80,
    rows: int = 40,
    typed: str = "",
) -> tuple[int, subprocess.Popen[bytes]]:
    """Start a command in a terminal of its own, in which this was typed before it began.

    Returns our side of the terminal, and the process.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    if typed:
        os.write(ours, typed.encode())
    child = subprocess.Popen(  # noqa: S603 - our own commands
        [sys.executable, on_terminal.__file__, *argv],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=cwd,
        env={"TERM": "xterm-256color", **env},
        start_new_session=True,
    )
    os.close(theirs)
    return ours, child


def record(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path | None = None,
    columns: int = 80,
    rows: int = 40,
    keys: Sequence[Key] = (),
    replaced: Mapping[str, str] | None = None,
    leave: bool = False,
    seconds: float = 60,
) -> Recording:
    """Run a command in a terminal of its own to its end; with `leave`, to the last of `keys`.

    Raises:
        AssertionError: what a key waits for did not come, or the command did not end in time.
    """
    session = open_session(argv, env=env, cwd=cwd, columns=columns, rows=rows, seconds=seconds)
    with closing(session):
        for key in keys:
            session.wait_for(key.after)
            if callable(key.keys):
                key.keys()
            elif key.keys:
                session.type(key.keys)
        if not leave:
            session.wait_for_end()
        recording = session.recording()
    recording.code = None if leave else session.code
    recording.replaced |= replaced or {}
    return recording


def open_session(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path | None = None,
    columns: int = 80,
    rows: int = 40,
    seconds: float = 60,
) -> "Session":
    """Start a command in a terminal of its own, to type into and read from."""
    ours, child = open_terminal(argv, env=env, cwd=cwd, columns=columns, rows=rows)
    return Session(ours, child, columns=columns, rows=rows, ends_at=time.monotonic() + seconds)


class Session:
    """A command in a terminal."""

    def __init__(
        self,
        terminal: int,
        child: subprocess.Popen[bytes],
        *,
        columns: int,
        rows: int,
        ends_at: float,
    ) -> None:
        self._terminal = terminal
        self._child = child
        self._screen: Any = Screen(columns, rows, history=10_000, ratio=0.5)
        self._stream: Any = pyte.ByteStream(self._screen)
        self.ends_at = ends_at
        self._raw = bytearray()
        self._seen = 0

    def type(self, keys: str) -> None:
        """Type keys."""
        self._seen = len(self._raw)
        os.write(self._terminal, keys.encode())

    def wait_for(self, text: str | re.Pattern[str] | Shown) -> None:
        """Return when the text has been written after the last key, or is on the screen."""
        while not self._has(text):
            assert self._read(), f"the command ended before {text!r} came:\n{self._shown()}"

    def _has(self, text: str | re.Pattern[str] | Shown) -> bool:
        if isinstance(text, Shown):
            return re.search(text.pattern, "\n".join(self._screen.display)) is not None
        written = _LOOKS.sub("", self._raw[self._seen :].decode(errors="replace"))
        return text in written if isinstance(text, str) else text.search(written) is not None

    def wait_for_end(self) -> int:
        """Return the exit code when the command has ended and all of it has been read."""
        while self._read():
            pass
        return self._child.wait(max(self.ends_at - time.monotonic(), 1))

    def close(self) -> None:
        """Close the terminal, and kill the command if it still runs."""
        if self._child.poll() is None:
            self._child.send_signal(signal.SIGKILL)
        self._child.wait()
        os.close(self._terminal)

    @property
    def code(self) -> int | None:
        """Return the exit code; None while the command runs."""
        return self._child.poll()

    @property
    def screen(self) -> str:
        """Return the lines on the screen now, those that have scrolled off left out."""
        return "\n".join(line.rstrip() for line in self._screen.display).rstrip()

    def recording(self) -> Recording:
        """What the terminal has shown so far."""
        rows = [
            *self._screen.history.top,
            *(self._screen.buffer[n] for n in range(self._screen.lines)),
        ]
        lines, looks = list[str](), list[str]()
        for row in rows:
            cells = [row[column] for column in range(self._screen.columns)]
            lines.append("".join(cell.data for cell in cells).rstrip())
            looks.append("".join(_look(cell) * len(cell.data) for cell in cells).rstrip())
        while lines and not lines[-1] and not looks[-1]:
            lines.pop()
            looks.pop()
        return Recording(lines, looks, bytes(self._raw), None)

    def _read(self) -> bool:
        """Take what comes next; False: nothing comes any more."""
        left = self.ends_at - time.monotonic()
        ready = select.select([self._terminal], [], [], max(left, 0))[0]
        assert ready, f"nothing arrived in time:\n{self._shown()}"
        try:
            piece = os.read(self._terminal, 65536)
        except OSError:  # the other side is closed
            return False
        self._raw += piece
        self._stream.feed(piece)
        return bool(piece)

    def _shown(self) -> str:
        return "\n".join(self.recording().lines[-60:])
