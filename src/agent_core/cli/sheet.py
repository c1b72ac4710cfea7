"""Lines of a report on standard output: styled and fitted to a terminal, plain elsewhere."""

import errno
import os
import shutil
import sys
import textwrap
from collections.abc import Mapping
from datetime import datetime

from rich.cells import cell_len, set_cell_size

from agent_core.cli.terminal import OutputClosedError, Style
from agent_core.text import visible
from agent_core.types import SessionSummary, Usage, utc_now

_RESET = "\x1b[0m"
_GONE = {errno.EPIPE, errno.EIO, errno.EBADF}
_NO_WIDTH = 10_000

_STATUS_STYLES = {
    "completed": Style.GOOD,
    "failed": Style.BAD,
    "cancelled": Style.WARN,
    "waiting": Style.WARN,
}

Piece = str | tuple[str, Style]


class Sheet:
    """Writes lines; what is in them cannot act on the terminal.

    Attributes:
        is_screen: the lines are read on a terminal, whose `width` they fit.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        try:
            self.is_screen = sys.stdout.isatty()
        except ValueError:
            self.is_screen = False
        plain = bool(environ.get("NO_COLOR")) or environ.get("TERM") == "dumb"
        self._has_colours = self.is_screen and not plain
        columns = shutil.get_terminal_size().columns if self.is_screen else _NO_WIDTH
        self.width = max(columns, 20)

    def line(self, *pieces: Piece, cut: bool = False) -> None:
        """Write one line of pieces; `cut` leaves out what does not fit.

        Raises:
            OutputClosedError: it cannot be written.
        """
        room = self.width - 1 if self.is_screen and cut else _NO_WIDTH * 1000
        shown: list[str] = []
        for piece in pieces:
            text, style = (piece, Style.PLAIN) if isinstance(piece, str) else piece
            text = visible(text, zero_width=False).replace("\n", " ")
            if cell_len(text) > room:
                text = fitted(text, room)
            room -= cell_len(text)
            has_style = self._has_colours and style is not Style.PLAIN
            shown.append(f"{style.value}{text}{_RESET}" if has_style and text else text)
        self._write("".join(shown).rstrip() + "\n")

    def block(self, text: str, *, indent: str, style: Style = Style.PLAIN, first: str = "") -> None:
        """Write text of several lines, wrapped on a terminal, behind an indent.

        `first` stands in the place of the first line's indent.

        Raises:
            OutputClosedError: it cannot be written.
        """
        lead = first or indent
        for line in visible(text, zero_width=False).rstrip("\n").split("\n"):
            pieces = [line]
            if self.is_screen and cell_len(line) > self.width - len(indent) - 1:
                pieces = textwrap.wrap(
                    line,
                    max(self.width - len(indent) - 1, 10),
                    replace_whitespace=False,
                    drop_whitespace=False,
                )
            for piece in pieces or [""]:
                self.line(lead, (piece, style))
                lead = indent

    def _write(self, text: str) -> None:
        try:
            sys.stdout.write(text)
        except OSError as error:
            reason = error.strerror or str(error)
            raise OutputClosedError(reason, is_gone=error.errno in _GONE) from None
        except ValueError as error:
            raise OutputClosedError(str(error), is_gone=True) from None


def fitted(text: str, room: int) -> str:
    """Text of at most so many columns, marked where it is cut."""
    if cell_len(text) <= room:
        return text
    return f"{set_cell_size(text, room - 1).rstrip()}…" if room > 1 else ""


def short_title(summary: SessionSummary) -> str:
    """The title, or what stands for it."""
    return summary.title or "(no title)"


def status_of(summary: SessionSummary) -> str:
    """How the last run of a session has ended, or is."""
    return "waiting" if summary.is_waiting else str(summary.status or "new")


def style_of(status: str) -> Style:
    """How the status of a run looks."""
    return _STATUS_STYLES.get(status, Style.PLAIN)


def format_tokens(count: int) -> str:
    """Tokens in few characters."""
    for size, letter in ((1_000_000_000, "G"), (1_000_000, "M"), (10_000, "k")):
        if count >= size:
            unit = 1_000 if letter == "k" else size
            return f"{count / unit:.1f}{letter}"
    return f"{count:,}"


def format_cost(usage: Usage) -> str:
    """What it has cost; one that is not known is not 0."""
    if usage.cost is None:
        return "cost unknown" if usage.total_tokens or usage.is_estimated else "$0"
    return f"${usage.cost:,.{2 if usage.cost >= 1 else 4 if usage.cost >= 0.01 else 6}f}"


def format_age(moment: datetime) -> str:
    """How long ago that was."""
    minutes = int((utc_now() - moment).total_seconds() // 60)
    if minutes < 1:
        return "now"
    if minutes < 60:
        return f"{minutes} min ago"
    if minutes < 48 * 60:
        return f"{minutes // 60} h ago"
    days = minutes // 1440
    return f"{days} d ago" if days < 30 else f"{moment.astimezone():%Y-%m-%d}"


def format_duration(milliseconds: float) -> str:
    """A time in few characters."""
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms"
    seconds = milliseconds / 1000
    return f"{seconds:.1f} s" if seconds < 60 else f"{int(seconds // 60)} min {seconds % 60:.0f} s"


def plural(count: int, noun: str) -> str:
    """A number with its noun."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
