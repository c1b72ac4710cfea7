"""Lines of a report on standard output: styled and fitted to a terminal, plain elsewhere."""

import os
import sys
from collections.abc import Mapping, Sequence

from agent_core.cli.layout import cells, fitted, window_size, wrapped, wrapped_parts
from agent_core.cli.streams import is_gone
from agent_core.cli.terminal import OutputClosedError, Style
from agent_core.text import visible
from agent_core.types import SessionMatch, SessionRecord, SessionSummary

_RESET = "\x1b[0m"
_NO_WIDTH = 10_000

_STATUS_STYLES = {
    "completed": Style.GOOD,
    "failed": Style.BAD,
    "cancelled": Style.WARN,
    "waiting": Style.WARN,
}

Piece = str | tuple[str, Style]


class Sheet:
    """Writes lines whose content cannot act on the terminal.

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
        columns = window_size(sys.stdout).columns if self.is_screen else _NO_WIDTH
        self.width = max(columns, 20)

    def line(self, *pieces: Piece, cut: bool = False) -> None:
        """Write one line of pieces; on a terminal it is broken between words, or `cut`.

        Raises:
            OutputClosedError: it cannot be written.
        """
        parts = [(piece, Style.PLAIN) if isinstance(piece, str) else piece for piece in pieces]
        parts = [(visible(s, zero_width=False).replace("\n", " "), look) for s, look in parts]
        lines = [parts]
        if self.is_screen and cut:
            lines = [_cut(parts, self.width - 1)]
        elif self.is_screen and sum(cells(text) for text, _ in parts) > self.width:
            lines = wrapped_parts(parts, self.width - 1, plain=Style.PLAIN)
        for line in lines:
            shown = "".join(self._styled(text, look) for text, look in line)
            write_output(shown.rstrip() + "\n")

    def _styled(self, text: str, style: Style) -> str:
        has_style = self._has_colours and style is not Style.PLAIN
        return f"{style.value}{text}{_RESET}" if has_style and text else text

    def block(self, text: str, *, indent: str, style: Style = Style.PLAIN, first: str = "") -> None:
        """Write text of several lines, wrapped on a terminal, behind an indent.

        `first` replaces the first line's indent.

        Raises:
            OutputClosedError: it cannot be written.
        """
        lead = first or indent
        for line in visible(text, zero_width=False).rstrip("\n").split("\n"):
            room = max(self.width - len(indent) - 1, 10)
            for piece in wrapped(line, room) if self.is_screen else [line]:
                self.line(lead, (piece, style))
                lead = indent


def _cut(parts: Sequence[tuple[str, Style]], room: int) -> list[tuple[str, Style]]:
    """Return the beginning of a line that fits."""
    kept: list[tuple[str, Style]] = []
    for text, style in parts:
        shown = text if cells(text) <= room else fitted(text, room)
        room -= cells(shown)
        kept.append((shown, style))
    return kept


def write_output(text: str) -> None:
    """Write text that is safe for a terminal to standard output.

    Raises:
        OutputClosedError: it cannot be written.
    """
    try:
        sys.stdout.write(text)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputClosedError(reason, is_gone=is_gone(error)) from None
    except ValueError as error:
        raise OutputClosedError(str(error), is_gone=True) from None


def title_of(session: SessionSummary | SessionRecord | SessionMatch) -> str:
    """Return the title, or a replacement for it."""
    return session.title or "(no title)"


def status_of(summary: SessionSummary) -> str:
    """Return the status of the last run of a session."""
    return "waiting" if summary.is_waiting else str(summary.status or "new")


def style_of(status: str) -> Style:
    """Return the style for the status of a run."""
    return _STATUS_STYLES.get(status, Style.PLAIN)
