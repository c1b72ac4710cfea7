"""Makes text fit a screen: asks for its size, measures text, cuts it, and breaks lines."""

import os
import re
import shutil
from collections.abc import Sequence
from typing import TextIO, TypeVar

from msgspec import Struct

from agent_core.text import visible

Look = TypeVar("Look")


class Signs(Struct, frozen=True):
    """Signs of the screen, in the letters that a stream can write."""

    call: str = "●"
    more: str = "…"
    bar: str = "│"
    spinner: str = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


SIGNS = Signs()
ASCII_SIGNS = Signs(call="*", more="...", bar="|", spinner="|/-\\")


_LOOK = re.compile(r"\x1b\[[0-9;]*m")


def window_size(stream: TextIO) -> os.terminal_size:
    """Return the size of the window in which a stream is shown.

    Its terminal is asked, because an exported `COLUMNS` may be of another window or of another
    time. Where no terminal answers, the environment may say it; else it is 80 by 24.
    """
    try:
        size = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):  # no terminal
        size = os.terminal_size((0, 0))
    return size if size.columns and size.lines else shutil.get_terminal_size()


def rows_of(line: str, width: int) -> int:
    """Return how many rows of a window a line takes, its colours aside."""
    return max(-(-cells(_LOOK.sub("", line)) // max(width, 1)), 1)


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
    if indent := text[: len(text) - len(body)]:
        return [indent + line for line in wrapped(body, room - len(indent), breaks=breaks)]
    lines, line = list[str](), ""
    for word in text.split(" "):
        joined = f"{line} {word}" if line else word
        if cells(joined) <= room:
            line = joined
            continue
        lines += [line] if line else []
        while breaks and cells(word) > room:
            piece = _beginning(word, room)
            lines.append(piece)
            word = word[len(piece) :]
        line = word
    return [*lines, line] if line or not lines else lines


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
    lines, at = list[list[tuple[str, Look]]](), 0
    for number, line in enumerate(wrapped(whole, room, breaks=False)):
        body = line[indent:] if number else line
        at = whole.index(body, at)
        pieces, start = list[tuple[str, Look]](), 0
        for text, look in parts:
            piece = text[max(at - start, 0) : max(at + len(body) - start, 0)]
            pieces += [(piece, look)] if piece else []
            start += len(text)
        lines.append([(line[: len(line) - len(body)], plain), *pieces] if number else pieces)
        at += len(body)
    return lines


def _beginning(text: str, room: int) -> str:
    used = 0
    for index, character in enumerate(text):
        used += cells(character)
        if used > room and index:
            return text[:index]
    return text
