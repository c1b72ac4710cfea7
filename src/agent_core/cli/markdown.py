"""Renders Markdown as it arrives: whatever is final once, the unfinished end again and again."""

import re
from collections.abc import Sequence
from itertools import accumulate
from time import monotonic

from agent_core.cli.layout import cells, cut_parts, spans_of, words_of
from agent_core.cli.markdown_layout import PARSER, Columns, Layout, Row
from agent_core.text import visible

_LONGEST_MESSAGE = 100_000
"""Characters that are laid out; the rest is shown as it is, since layout takes long."""
_LONGEST_CODE = 60_000
_LONGEST_BLOCK = 10_000
_LONGEST_KEPT = 8_000
"""Characters of a block of code of which lines are forgotten once they have been shown."""
_PAUSE_S = 0.1
_SHARE = 5
"""Reading unfinished text takes at most one part in this many of the time."""
_TAIL = 3
"""The unfinished end takes at most one part in this many of the window's rows."""
_LEAST_TAIL = 4
_LEAVES = {"fence", "code_block", "html_block", "hr", "inline"}
_OPEN = re.compile(r"(?<!\w)_+(?=\S|$)|\*+(?=\S|$)|~~(?=\S|$)|`|\[[^\]]*$|\]\([^)]*$")
"""The beginning of something in a line that may still end: looks, code, a link."""


class MarkdownStream:
    """One message: what is final is taken from it, and the rest can be looked at.

    A block is final once another one follows it; of a block that is taller than a part of the
    window, also the rows that nothing can change any more.

    Args:
        has_colours: looks are used; otherwise only the layout.
    """

    def __init__(self, *, has_colours: bool) -> None:
        self._has_colours = has_colours
        self._rest = ""
        self._held_return = ""
        self._room = _LONGEST_MESSAGE
        self._has_taken = False
        self._is_inside = False
        self._shown = 0  # characters of the laid-out rest that have been taken
        self._columns: Columns | None = None
        self._next_search = self._next_look = 0.0
        self._looked_at: tuple[int, list[str]] = (0, [])

    def feed(self, text: str) -> None:
        """Add a piece of any size."""
        text = self._held_return + text
        self._held_return = "\r" if text.endswith("\r") else ""
        self._rest += visible(text.removesuffix("\r"), zero_width=False)

    def take(self, width: int, rows: int) -> str:
        """Return what is final, laid out; it is no longer part of the rest.

        Args:
            width: columns of a line.
            rows: of the window.
        """
        began = monotonic()
        if began < self._next_search:
            return ""
        most = min(_LONGEST_CODE if _is_code(self._rest) else _LONGEST_BLOCK, max(self._room, 0))
        starts = _starts(self._rest) if "\n" in self._rest else []
        end = starts[-1] if starts else 0
        if len(self._rest) > most:
            end = self._rest.rfind("\n") + 1
        done, self._rest = self._rest[:end], self._rest[end:]
        taken = self._spaced(done, width) + self._settle(width, _tail_of(rows))
        if taken:
            self._next_look = 0.0
        self._next_search = monotonic() + max((monotonic() - began) * _SHARE, _PAUSE_S)
        return taken

    def peek(self, width: int, rows: int) -> list[str]:
        """Return the end of the rest as it was a moment ago, laid out; each line fits the width."""
        began = monotonic()
        if not self._rest.strip():
            return []
        if began < self._next_look and self._looked_at[0] == width:
            return self._looked_at[1]
        laid_out = self._rows(self._rest, width)
        if self._has_taken and not self._is_inside:
            laid_out.insert(0, Row())
        most = _tail_of(rows)
        tail = [part for row in laid_out[-most:] for part in _broken(row, width)][-most:]
        self._looked_at = width, self._lines(tail)
        self._next_look = monotonic() + (monotonic() - began) * _SHARE
        return self._looked_at[1]

    def finish(self, width: int) -> str:
        """Return all that is left, laid out."""
        rest, self._rest = self._rest + visible(self._held_return), ""
        self._held_return = ""
        return self._spaced(rest, width)

    def finish_plain(self, width: int) -> str:
        """Return all that is left, as it came."""
        rest = self._rest + visible(self._held_return)
        if self._is_inside:
            rows = self._rows(rest, width)
            rest = "\n".join("".join(text for text, _ in row.pieces) for row in rows)
        self._rest = self._held_return = ""
        return rest.strip("\n")

    def _spaced(self, text: str, width: int) -> str:
        """Lay out whole blocks, with an empty line before them if other text comes before."""
        if not text.strip():
            return ""
        rows = self._rows(text, width)
        if rows and self._has_taken and not self._is_inside and self._room > 0:
            rows.insert(0, Row())
        self._has_taken = True
        self._is_inside, self._shown, self._columns = False, 0, None
        self._room -= len(text)
        return "".join(f"{line}\n" for line in self._lines(rows))

    def _settle(self, width: int, most: int) -> str:
        """Take the rows of a tall block that nothing can change any more."""
        if not self._rest.strip() or len(self._rest) < most:
            return ""
        rows = self._rows(self._rest, width)
        if sum(_height(row, width) for row in rows) <= most:
            return ""
        text = self._rest[: _settled(self._rest)]
        layout = Layout(width, self._columns)
        layout.rows(text)
        if (columns := layout.fix()) != self._columns:
            self._columns = columns
            rows = self._rows(self._rest, width)
        settled = self._rows(text, width)
        pairs = enumerate(zip(rows, settled, strict=False))
        same = min(len(rows), len(settled))
        count = next((number for number, (row, other) in pairs if not row.equals(other)), same)
        return self._commit(rows, self._count_final(rows, count, most // 2, width))

    def _count_final(self, rows: Sequence[Row], count: int, kept: int, width: int) -> int:
        """Return how many settled rows to take, so that about this many rows are left."""
        left = sum(_height(row, width) for row in rows[count:])
        while count and left < kept:
            count -= 1
            left += _height(rows[count], width)
        while count and not (rows[count - 1].size and rows[count - 1].ends):
            count -= 1
        return count

    def _commit(self, rows: Sequence[Row], count: int) -> str:
        if not count:
            return ""
        final = [*rows[:count]]
        self._shown += sum(row.size for row in final)
        if self._has_taken and not self._is_inside:
            final.insert(0, Row())
        self._has_taken = self._is_inside = True
        self._forget_code()
        return "".join(f"{line}\n" for line in self._lines(final))

    def _forget_code(self) -> None:
        """Drop the shown lines of a long block of code from the rest."""
        if not _is_code(self._rest) or len(self._rest) < _LONGEST_KEPT:
            return
        head, *lines = self._rest.lstrip("\n").splitlines(keepends=True)
        forgotten = 0
        for number, line in enumerate(lines, 1):
            size = len("".join(line.split()))
            if not self._shown or size > self._shown:
                break
            if size:
                self._shown -= size
                forgotten = number
        self._room -= sum(map(len, lines[:forgotten]))
        self._rest = head + "".join(lines[forgotten:])

    def _rows(self, text: str, width: int) -> list[Row]:
        """Return the rows of a text behind what has been taken of it."""
        longest = _LONGEST_CODE if _is_code(text) else 2 * _LONGEST_BLOCK
        if len(text) > min(longest, self._room):
            rows = [Row([(line, "")], is_code=True) for line in text.removesuffix("\n").split("\n")]
        else:
            rows = Layout(width, self._columns).rows(text)
        if not (shown := self._shown):
            return rows
        for number, row in enumerate(rows):
            if shown < row.size:
                return [row.without(shown), *rows[number + 1 :]]
            shown -= row.size
            if not shown:
                return rows[number + 1 :]
        return []

    def _lines(self, rows: Sequence[Row]) -> list[str]:
        return [row.shown(has_colours=self._has_colours) for row in rows]


def _tail_of(rows: int) -> int:
    return max(rows // _TAIL, _LEAST_TAIL)


def _is_code(text: str) -> bool:
    return text.lstrip("\n").startswith(("```", "~~~"))


def _height(row: Row, width: int) -> int:
    wide = sum(cells(text) for text, _ in (*row.lead, *row.pieces))
    return max(-(-wide // width), 1)


def _broken(row: Row, width: int) -> list[Row]:
    """Return a row in parts that fit the width."""
    if _height(row, width) == 1:
        return [row]
    pieces = [*row.lead, *row.pieces]
    whole = "".join(text for text, _ in pieces)
    spans = spans_of(whole, width, breaks=True)
    return [Row(cut_parts(pieces, start, end), is_code=True) for start, end in spans]


def _starts(text: str) -> list[int]:
    """Return the starts of the second block and later ones, in characters."""
    tokens = PARSER.parse(text)
    numbers = [
        token.map[0] for token in tokens if not token.level and token.nesting >= 0 and token.map
    ]
    places = _places(text)
    return [places[number] for number in numbers[1:]]


def _places(text: str) -> list[int]:
    """Return where each line of a text begins."""
    return [0, *accumulate(len(line) + 1 for line in text.split("\n"))]


def _settled(text: str) -> int:
    """Return the length of the beginning of a text whose meaning no further text changes."""
    leaf, is_in_table = None, False
    for token in PARSER.parse(text):
        if token.type in {"table_open", "table_close"}:
            is_in_table = token.nesting > 0
        if token.type == "table_open" or (token.type in _LEAVES and not is_in_table):
            leaf = token
    if leaf is None or leaf.map is None:
        return 0
    start, last_line = _places(text)[leaf.map[0]], text.rfind("\n") + 1
    if leaf.type != "inline":
        return max(start, last_line)
    end = len(text)
    if "|" in text[max(last_line, start) :]:  # the next line may make a table of this one
        end = last_line
    ends = [start + first for first, _ in words_of(text[start:end])]
    step = 1
    while ends:
        (inline,) = PARSER.parseInline(text[start : ends[-1]])
        parts = [child for child in inline.children or () if child.type == "text"]
        if not any(_OPEN.search(part.content) for part in parts):
            return ends[-1]
        del ends[-step:]
        step *= 2
    return start
