"""The two output streams: nothing written to them can act on a terminal, or crash the program."""

import errno
import shutil
from collections.abc import Mapping
from enum import StrEnum
from typing import TextIO

from agent_core.redaction.visible import visible


class Style(StrEnum):
    """How a line on standard error looks, where colours are welcome."""

    PLAIN = ""
    DIM = "\x1b[2m"
    BOLD = "\x1b[1m"
    GOOD = "\x1b[32m"
    BAD = "\x1b[31m"
    WARN = "\x1b[33m"


_RESET = "\x1b[0m"
_GONE = {errno.EPIPE, errno.EIO, errno.EBADF}  # no reader, no terminal, no file


class OutputClosedError(Exception):
    """Standard output takes no more text.

    Attributes:
        is_gone: the reader went away, which is no error; otherwise, say, the disk is full.
    """

    def __init__(self, reason: str, *, is_gone: bool) -> None:
        super().__init__(reason)
        self.is_gone = is_gone


class Terminal:
    """Writes the answer to `out` and everything else, line by line, to `err`."""

    def __init__(self, out: TextIO, err: TextIO, *, environ: Mapping[str, str]) -> None:
        self._out = out
        self._err: TextIO | None = err
        self._is_mid_line = False
        self._held_return = False
        self._is_asking = False
        self._below = 0
        plain = bool(environ.get("NO_COLOR")) or environ.get("TERM") == "dumb"
        self._colours = _is_tty(err) and not plain
        self._shares_screen = _is_tty(out) and _is_tty(err)
        self.is_watched = _is_tty(err)
        self.can_draw = self.is_watched and environ.get("TERM") != "dumb"
        self._width = shutil.get_terminal_size().columns if _is_tty(err) else 200

    @property
    def width(self) -> int:
        """Columns a line may take; never so few that nothing fits."""
        return max(self._width, 20)

    def text(self, text: str) -> None:
        r"""Write a piece of the answer. A `\r` waits for the next piece, which may begin with `\n`.

        Raises:
            OutputClosedError: it cannot be written.
        """
        if self._held_return:
            text = "\r" + text
        self._held_return = text.endswith("\r")
        shown = visible(text.removesuffix("\r"), zero_width=False)
        if shown:
            self._is_mid_line = not shown.endswith("\n")
            self._write(shown)

    def end_text(self) -> None:
        """End the line, if the answer has not done so.

        Raises:
            OutputClosedError: it cannot be written.
        """
        self._held_return = False
        if self._is_mid_line:
            self._is_mid_line = False
            self._write("\n")

    def show_below(self, picture: str) -> None:
        """Show lines below all that was written; the next thing written takes their place.

        `picture` must be fit for a terminal and no wider than one. Nothing is shown in the
        middle of a line or of a question.
        """
        if self._is_asking or (self._shares_screen and self._is_mid_line):
            return
        self._take_below_away()
        lines = picture.splitlines()[: max(shutil.get_terminal_size().lines - 2, 0)]
        if lines and self.can_draw:
            self._note("".join(f"{line}\n" for line in lines))
            self._below = len(lines)

    def _take_below_away(self) -> None:
        if self._below:
            up, self._below = self._below, 0
            self._note(f"\x1b[{up}A\r\x1b[J")

    def line(self, text: str, style: Style = Style.PLAIN) -> None:
        """Write lines to standard error; if nobody takes them, they are dropped."""
        self._is_asking = False
        self._note(self._styled(visible(text), style) + "\n")

    def leave_line(self) -> None:
        """Make what comes next begin on a new line: the cursor may stand behind a question, a
        piece of the answer, or the `^C` that a terminal shows.
        """
        if self._shares_screen and self._is_mid_line:
            return  # the next line does that by itself
        if self._is_asking or self._is_mid_line or self.is_watched:
            self._is_asking = False
            self._note("\n")

    def ask(self, text: str) -> None:
        """Write the end of a question: the cursor stays behind it."""
        self._note(visible(text))
        self._is_asking = True

    def _note(self, text: str) -> None:
        if self._err is None:
            return
        self._take_below_away()
        try:
            if self._shares_screen and self._is_mid_line:
                self._is_mid_line = False
                text = "\n" + text
            self._err.write(text)
            self._err.flush()
        except (OSError, ValueError):
            self._err = None

    def _write(self, text: str) -> None:
        if self._shares_screen:
            self._take_below_away()
        try:
            self._out.write(text)
            self._out.flush()
        except OSError as error:
            reason = error.strerror or str(error)
            raise OutputClosedError(reason, is_gone=error.errno in _GONE) from None
        except ValueError as error:  # the file object was closed
            raise OutputClosedError(str(error), is_gone=True) from None

    def _styled(self, text: str, style: Style) -> str:
        if not self._colours or style is Style.PLAIN:
            return text
        return f"{style.value}{text}{_RESET}"


def _is_tty(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:
        return False
