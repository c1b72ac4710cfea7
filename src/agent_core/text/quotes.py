"""Tells what people write in a message from what they quote in it: a log, a file, a mail."""

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from unicodedata import category

QUOTED = "[…]"
"""Stands for a quoted part."""

_FENCE = r" {0,3}(`{3,}(?=[^`]*\Z)|~{3,})"
_LIST_ITEM = r"\s*(?:[-*+\u2022\u2013\u2014\u2192]|\(?[^\W_]{1,3}[.)\u3001\uff09]|\[[ xX]?\])\s"
_QUOTED_LINE = r" {0,3}>"
_LEADS_IN = (":", "?", "\uff1a", "\uff1f")
_MOST_LINES = 12
"""A paragraph of more lines is a paste, unless it is a list; the chat folds as many."""
_LEAST_LINES = 2
_TIME = r"\d+[-:./][\d:./TZ,+-]*\Z"
"""A date, a time or an address."""
_BRACKETS = "[](){}<>|$%+=\\"
_MOST_JUDGED = 200
_LEAST_LETTERS = 0.75
"""Share of letters in what is not blank of a line: prose has more, the output of programs less."""


def without_quotes(text: str, *, pastes: bool = True) -> str:
    """Return `text` with `[…]` for every part that its author quotes.

    Quoted are fenced blocks, lines that begin with `>`, and paragraphs that were pasted. A
    paragraph was pasted if it has more than twelve lines and is no list, or if it has at least two
    and most of them are the output of a program: no items of a list, and they begin with a bracket
    or a time, or less than three quarters of their signs are letters. A first line that ends with a
    colon or a question mark is not part of it; one line is enough after that.
    With `pastes` false, only fenced blocks and lines that begin with `>` are quoted.
    """
    if "\n" not in text and not re.match(_QUOTED_LINE, text):  # as most messages are
        return text
    parts: list[str] = []
    for is_quoted, lines in groupby(
        _judge(text.splitlines(), pastes=pastes), lambda judged: judged[0]
    ):
        if is_quoted:
            parts.append(QUOTED)
        else:
            parts += [line for _, line in lines]
    return "\n".join(parts)


def _judge(lines: Sequence[str], *, pastes: bool) -> Iterator[tuple[bool, str]]:
    """Yield whether each line is quoted, and the line."""
    fence, paragraph = "", list[str]()
    for line in lines:
        opening = re.match(_FENCE, line)
        if fence:
            yield True, line
            is_end = opening and opening[1].startswith(fence) and not line.strip(f" {fence[0]}")
            fence = "" if is_end else fence
            continue
        if not (opening or not line.strip() or re.match(_QUOTED_LINE, line)):
            paragraph.append(line)
            continue
        yield from _judge_paragraph(paragraph, pastes=pastes)
        paragraph.clear()
        fence = opening[1] if opening else ""
        yield bool(opening or line.strip()), line
    yield from _judge_paragraph(paragraph, pastes=pastes)


def _judge_paragraph(lines: Sequence[str], *, pastes: bool) -> Iterator[tuple[bool, str]]:
    if not pastes:
        yield from ((False, line) for line in lines)
        return
    least = _LEAST_LINES
    if lines and lines[0].rstrip().endswith(_LEADS_IN):
        yield False, lines[0]
        lines, least = lines[1:], 1
    others = [line for line in lines if not re.match(_LIST_ITEM, line)]
    is_pasted = 2 * len(others) > len(lines) >= least and (
        len(lines) > _MOST_LINES or 2 * sum(map(_is_output, others)) > len(lines)
    )
    yield from ((is_pasted, line) for line in lines)


def _is_output(line: str) -> bool:
    """Return whether a line that is not blank looks as if a program has written it."""
    begin = line.lstrip()[:_MOST_JUDGED]
    first = begin.split(maxsplit=1)[0]
    if first[0] in _BRACKETS or re.match(_TIME, first):
        return True
    signs = [sign for sign in begin if not (sign.isspace() or sign == "`")]
    letters = sum(category(sign)[0] in "LM" for sign in signs)
    return letters < _LEAST_LETTERS * len(signs)
