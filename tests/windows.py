"""A window whose size changes while a command runs in it.

Two kinds of terminal are modelled: most wrap all lines anew when the width changes (`reflows`);
others cut off what no longer fits. The command is stopped while the size changes, so that what it
wrote before is shown at the width that it was written for.
"""

import contextlib
import fcntl
import os
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyte
from wcwidth import wcwidth

from captures import Screen, Session, open_terminal

_WRAPS = 7 << 5
"""The mode in which a terminal wraps long lines, as the library numbers it."""


class ReflowingScreen(Screen):
    """A screen that wraps its lines anew when its width changes."""

    buffer: Any

    def draw(self, data: str) -> None:
        for character in data:
            is_full = self.cursor.x + max(wcwidth(character), 0) > self.columns
            if is_full and _WRAPS in self.mode:
                row = self.buffer[self.cursor.y]
                self.buffer[self.cursor.y] = row
                row.continues = True
                self.cursor.x = self.columns
            super().draw(character)

    def erase_in_line(self, how: int = 0, private: bool = False) -> None:
        super().erase_in_line(how, private)
        self.buffer[self.cursor.y].continues = False

    def erase_in_display(self, how: int = 0, *args: Any, **kwargs: Any) -> None:
        super().erase_in_display(how, *args, **kwargs)
        for y in range(self.cursor.y if how == 0 else 0, self.lines):
            self.buffer[y].continues = False

    def resize(self, lines: int | None = None, columns: int | None = None) -> None:
        """Wrap every line anew; the cursor stays behind the same character."""
        rows = [*self.history.top, *(self.buffer[y] for y in range(self.lines))]
        at = len(self.history.top) + self.cursor.y
        used = [number for number, row in enumerate(rows) if _length(row)]
        rows = rows[: max([*used, at], default=0) + 1]
        self.lines, self.columns = lines or self.lines, columns or self.columns
        wrapped: list[Any] = []
        line: list[Any] = []
        cursor = 0, 0
        before = None
        for number, row in enumerate(rows):
            continues = getattr(row, "continues", False)
            if number == at:
                before = len(line) + self.cursor.x
            line += [row[x] for x in range(_length(row))]
            if continues and number + 1 < len(rows):
                continue
            parts = _parts(line, self.columns)
            if before is not None:
                y, x = divmod(before, self.columns)
                parts += [[] for _ in range(y + 1 - len(parts))]
                cursor = len(wrapped) + y, x
                before = None
            for index, part in enumerate(parts):
                fresh: Any = type(rows[0])(self.default_char)
                fresh.update(enumerate(part))
                fresh.continues = index + 1 < len(parts)
                wrapped.append(fresh)
            line = []
        above = max(len(wrapped) - self.lines, 0)
        self.history.top.clear()
        self.history.top.extend(wrapped[:above])
        self.buffer.clear()
        self.buffer.update(enumerate(wrapped[above:]))
        self.cursor.y, self.cursor.x = cursor[0] - above, cursor[1]
        self.set_margins()
        self.dirty.update(range(self.lines))


def _length(row: Any) -> int:
    """Return where the last character of a row ends that is no blank."""
    return max((x + 1 for x, cell in row.items() if cell.data != " " or cell.reverse), default=0)


def _parts(line: Sequence[Any], columns: int) -> list[list[Any]]:
    parts: list[list[Any]] = [[]]
    for number, cell in enumerate(line):
        is_wide = number + 1 < len(line) and line[number + 1].data == ""
        if len(parts[-1]) + 1 + is_wide > columns:
            parts.append([])
        parts[-1].append(cell)
    return parts


class Window(Session):
    """A command in a window that can be resized."""

    def __init__(
        self, terminal: int, child: Any, *, reflows: bool, rows: int, columns: int
    ) -> None:
        super().__init__(terminal, child, columns=columns, rows=rows, ends_at=time.monotonic() + 30)
        if reflows:
            self._screen: Any = ReflowingScreen(columns, rows, history=10_000, ratio=0.5)
            self._stream: Any = pyte.ByteStream(self._screen)

    def resize(self, columns: int, rows: int | None = None, *, is_still: bool = False) -> None:
        """Change the size of the window.

        Args:
            columns, rows: of the window; None leaves its rows.
            is_still: the command writes nothing now, and need not be stopped.
        """
        rows = rows or self._screen.lines
        if not is_still:
            os.kill(self._child.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, self._child.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        while select.select([self._terminal], [], [], 0)[0]:
            self._read()
        self._screen.resize(rows, columns)
        self._seen = len(self._raw)
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, size)
        if not is_still:
            os.kill(self._child.pid, signal.SIGCONT)

    def settle(self) -> None:
        """Read what follows the last key or change of size, until nothing does but a spinner."""
        seen = len(self._raw)
        while len(self._raw) == self._seen or self._writes():
            self._read()
            if len(self._raw) > seen + 1_000:
                return

    def _writes(self) -> bool:
        """Return whether something comes; False once the command waits, and has waited a while."""
        while True:
            before = self._work()
            if select.select([self._terminal], [], [], 0.3)[0]:
                return True
            after = self._work()
            if before == after and "R" not in after:
                return False

    def _work(self) -> list[str]:
        """Return the state of each thread of the command, with the CPU time that it has used."""
        found: list[str] = []
        for thread in Path(f"/proc/{self._child.pid}/task").glob("*/stat"):
            with contextlib.suppress(OSError):
                fields = thread.read_text(encoding="ascii").rpartition(")")[2].split()
                found += [fields[0], *fields[11:13]]
        return found

    def wait_until(self, pattern: str) -> None:
        """Return when the lines match a pattern, also where one is wrapped."""
        while not any(re.search(pattern, by.join(self.lines)) for by in ("\n", "")):
            assert self._read(), f"the command ended before {pattern!r}:\n{self._shown()}"

    @property
    def lines(self) -> list[str]:
        """The lines in the window and above it."""
        return self.recording().lines


@contextlib.contextmanager
def open_window(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    reflows: bool,
    columns: int,
    rows: int = 24,
) -> Generator[Window]:
    """Run a command in a window; kill it afterwards if it still runs."""
    more = {} if reflows else {"XTERM_VERSION": "XTerm(400)"}
    ours, child = open_terminal(command, env={**env, **more}, cwd=cwd, columns=columns, rows=rows)
    try:
        yield Window(ours, child, reflows=reflows, rows=rows, columns=columns)
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGKILL)
        child.wait()
        os.close(ours)
