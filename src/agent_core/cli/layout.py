"""Makes text fit a screen: asks for its size, measures text, cuts it, and breaks lines."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TextIO, TypeVar
from unicodedata import category

from agent_core.text import shortened, visible, without_code

Look = TypeVar("Look")


class Signs(NamedTuple):
    """Signs of the screen, in the letters that a stream can write."""

    call: str = "●"
    more: str = "…"
    bar: str = "│"
    spinner: str = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


SIGNS = Signs()
ASCII_SIGNS = Signs(call="*", more="...", bar="|", spinner="|/-\\")


_LONGEST_ERROR = 2000
_LOOK = r"\x1b\[[0-9;]*m"
_WORD = r"[^ ]+"
_WIDE = 2
_JOINER = "\u200d"
_SKIN_TONES = "\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff"


def shown_error(message: str) -> str:
    """Return the message of an error for a person, without its hints for programs.

    Messages quote files and servers: none of their lines may look like one of ours.
    """
    return shortened(without_code(message), _LONGEST_ERROR).replace("\n", "\n      ")


def window_size(stream: TextIO) -> os.terminal_size:
    """Return the size of the window in which a stream is shown.

    Its terminal is asked, because an exported `COLUMNS` may be of another window or of another
    time. Where no terminal answers, the environment may say it; else it is 80 by 24.
    """
    try:
        size = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):  # no terminal
        size = os.terminal_size((0, 0))
    if size.columns and size.lines:
        return size
    return os.terminal_size((_stated("COLUMNS", 80), _stated("LINES", 24)))


def _stated(name: str, default: int) -> int:
    """Return a size that the environment states."""
    value = os.environ.get(name, "")
    return int(value) if value.isdecimal() and int(value) else default


def reflows(environ: Mapping[str, str]) -> bool:
    """Return whether a terminal wraps its lines anew when its window becomes narrower.

    Most do. Those that cut the lines off say who they are: the Linux console, GNU screen, and
    xterm itself, but for a terminal that was started from one.
    """
    if environ.get("TMUX") or environ.get("VTE_VERSION") or environ.get("TERM_PROGRAM"):
        return True
    is_cutting = environ.get("STY") or environ.get("XTERM_VERSION")
    return not is_cutting and environ.get("TERM") != "linux"


def rows_of(line: str, width: int) -> int:
    """Return how many rows of a window a line takes, its colours aside."""
    text, width = re.sub(_LOOK, "", line), max(width, 1)
    if text.isascii() or cells(text) <= width:
        return max(-(-cells(text) // width), 1)
    rows, used = 1, 0
    for character in text:
        wide = cells(character)
        if used + wide > width:  # no letter is cut in two
            rows, used = rows + 1, 0
        used += wide
    return rows


def cells(text: str) -> int:
    """Return the columns that a text takes: letters of some scripts take two."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # noqa: PLC0415 - few lines need it

    return cell_len(text)


def fitted(text: str, room: int, signs: Signs = SIGNS) -> str:
    """The beginning of a line that fits, marked where it is cut; fit for a terminal."""
    if room < len(signs.more):
        return ""
    text = visible(text[: room * 4], zero_width=False)
    if cells(text) <= room:
        return text
    room -= len(signs.more)
    kept, used = 0, 0
    for kept, character in enumerate(text):  # noqa: B007 - the text is cut where the loop stops
        used += cells(character)
        if used > room:
            break
    return f"{text[:kept].rstrip()}{signs.more}"


def wrapped(text: str, room: int, *, breaks: bool = True) -> list[str]:
    """The words of a text, as many on each line as fit; `breaks`: a longer word is broken."""
    body = text.lstrip(" ")
    indent = text[: len(text) - len(body)]
    return [indent + body[a:b] for a, b in spans_of(body, room - len(indent), breaks=breaks)]


def spans_of(text: str, room: int, *, breaks: bool = False) -> list[tuple[int, int]]:
    """Return where each line of a text begins and ends, with as many words as fit.

    A word that is wider than a line has a line of its own; with `breaks` it is broken.
    """
    lines, start, end = list[tuple[int, int]](), -1, 0
    for first, last in words_of(text):
        if start >= 0 and cells(text[start:last]) <= room:
            end = last
            continue
        if start >= 0:
            lines.append((start, end))
        start, end = first, last
        while breaks and end - start > 1 and cells(text[start:end]) > room:
            cut = start + len(_beginning(text[start:end], room))
            if cut == end:
                break
            lines.append((start, cut))
            start = cut
    return [*lines, (start, end)] if start >= 0 else [(0, 0)]


def words_of(text: str) -> Iterator[tuple[int, int]]:
    """Yield the start and the end of each piece of a text within which no line breaks.

    That is a word; in scripts without spaces it is a letter, with the punctuation beside it.
    """
    for found in re.finditer(_WORD, text):
        start, word = found.start(), found[0]
        if word.isascii():
            yield found.span()
            continue
        for index in range(1, len(word)):
            if _may_break(word[index - 1], word[index]):
                yield start, found.start() + index
                start = found.start() + index
        yield start, found.end()


def _may_break(before: str, after: str) -> bool:
    """Return whether a line may end between two letters of a word."""
    if cells(before) < _WIDE and cells(after) < _WIDE:
        return False
    if cells(after) == 0 or before == _JOINER or after in _SKIN_TONES:
        return False
    return category(before) not in {"Ps", "Pi"} and category(after) not in {"Pe", "Pf", "Po"}


def split_row(text: str, room: int) -> tuple[str, str]:
    """Return what of a text fits a row, and the rest: cut behind a blank, if there is one."""
    piece = _beginning(text, room)
    blank = piece.rstrip(" ").rfind(" ") + 1
    if len(piece) < len(text) and text[len(piece)] != " " and piece[:blank].strip():
        piece = piece if piece.endswith(" ") else piece[:blank]
    return piece, text[len(piece) :]


def wrapped_parts(
    parts: Sequence[tuple[str, Look]], room: int, *, plain: Look
) -> list[list[tuple[str, Look]]]:
    """Break a line of several looks between words; words that are too long stay whole."""
    whole = "".join(text for text, _ in parts)
    if cells(whole) <= room:
        return [list(parts)]
    indent = len(whole) - len(whole.lstrip(" "))
    lines = list[list[tuple[str, Look]]]()
    for start, end in spans_of(whole[indent:], room - indent):
        line = cut_parts(parts, start + indent if lines else 0, end + indent)
        lines.append([(" " * indent, plain), *line] if lines else line)
    return lines


def cut_parts(parts: Sequence[tuple[str, Look]], start: int, end: int) -> list[tuple[str, Look]]:
    """Return the pieces between two places of a line of several looks."""
    pieces, at = list[tuple[str, Look]](), 0
    for text, look in parts:
        piece = text[max(start - at, 0) : max(end - at, 0)]
        pieces += [(piece, look)] if piece else []
        at += len(text)
    return pieces


def _beginning(text: str, room: int) -> str:
    used = 0
    for index, character in enumerate(text):
        used += cells(character)
        if used > room and index:
            return text[:index]
    return text
