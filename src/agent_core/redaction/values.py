"""Finds the values of configured secrets in all spellings, and makes invisible text visible."""

import json
import re
from collections.abc import Iterator, Mapping
from urllib.parse import quote, quote_plus

SHORTEST_SECRET = 4
"""Shorter values are left alone: replacing every `a` would destroy the text and hide nothing."""

_PERCENT = re.compile(r"%[0-9A-F]{2}")
_CUT_BEHIND = re.compile(r"(?:\n|\\n)?(?:\u2026|\\u2026| ?\[\.\.\. omitted)")
_CUT_BEFORE = re.compile(r"\u2026(?:\n|\\n)?\Z")
_LONGEST_CUT = len("\u2026\\n")
_SHORTEST_LINE = 16
"""What may be a secret in a line of its own: a part of a private key."""

_UNSAFE_IN_KIND = re.compile(r"[^A-Za-z0-9_.-]+")


def marker(kind: str) -> str:
    """What stands in place of a secret."""
    return f"[redacted:{kind}]"


class SecretValues:
    """Secret values as a set of strings to look for.

    A value is found as it is, without surrounding white space, JSON-escaped once or twice, as a
    Python literal, and URL-quoted; of one with several lines also each long line. Where a text was
    cut, which a `…` shows, what is left is found too: the beginning of a value before the cut,
    its end behind it. Base64, other encodings and other parts of a value are not found.
    """

    def __init__(self, kinds: Mapping[str, str], *, encoding: str | None = None) -> None:
        """Take `value -> kind`; the kind is shown in place of the value.

        With `encoding`, the text to be searched is bytes read as Latin-1, and the values are
        looked for as they are in that encoding.
        """
        self._markers: dict[str, str] = {}
        for value, kind in kinds.items():
            shown = marker(_UNSAFE_IN_KIND.sub("_", kind))
            if len(value.strip()) < SHORTEST_SECRET:
                continue
            spellings = (form for part in _parts(value.strip()) for form in _spellings(part))
            for form in spellings:
                form = (
                    form.encode(encoding, "surrogateescape").decode("latin-1") if encoding else form
                )
                self._markers.setdefault(form, shown)
        self._forms = sorted(self._markers, key=len, reverse=True)
        self._longest = len(self._forms[0]) if self._forms else 0
        self._pattern = re.compile("|".join(map(re.escape, self._forms)))
        self._first = re.compile("|".join(sorted({re.escape(form[0]) for form in self._forms})))

    def replace(self, text: str) -> str:
        """`text` without the values; the same object if there are none in it."""
        for form in self._forms:
            if form in text:
                text = self._pattern.sub(lambda found: self._markers[found[0]], text)
                break
        if "\u2026" not in text and "[... omitted" not in text:
            return text
        out: list[str] = []
        done = 0
        for start, end, shown in sorted(self._find_fragments(text)):
            if start >= done:
                out += text[done:start], shown
                done = end
        return "".join((*out, text[done:])) if out else text

    def _find_fragments(self, text: str) -> Iterator[tuple[int, int, str]]:
        """What a cut has left of a value, at least four characters: start, end, marker."""
        for form, shown in self._markers.items():
            for at in _found(form[:SHORTEST_SECRET], text):
                end = at + _common_length(form, text[at : at + len(form)])
                if _CUT_BEHIND.match(text, end):
                    yield at, end, shown
            for at in _found(form[-SHORTEST_SECRET:], text):
                end = at + SHORTEST_SECRET
                start = end - _common_length(form[::-1], text[max(0, end - len(form)) : end][::-1])
                if _CUT_BEFORE.search(text[max(0, start - _LONGEST_CUT) : start]):
                    yield start, end, shown

    def settle(self, text: str) -> tuple[str, str]:
        """Split `text`, whose continuation is unknown, into a part to show and the rest to hold.

        The first is what no continuation can change, with the values replaced; the second is a
        tail that may be the beginning of a value.
        """
        if not self._forms:
            return text, ""
        out: list[str] = []
        done = 0
        while True:
            hold = self._open_tail(text, done)
            found = self._pattern.search(text, done)
            if found is None or found.start() >= hold:
                out.append(text[done:hold])
                return "".join(out), text[hold:]
            out += text[done : found.start()], self._markers[found[0]]
            done = found.end()

    def _open_tail(self, text: str, start: int) -> int:
        """Where the earliest unfinished value could begin; the end of `text` if nowhere."""
        # The last `longest` characters: a tail as long as that is a whole value, not a beginning.
        for found in self._first.finditer(text, max(start, len(text) - self._longest + 1)):
            tail = text[found.start() :]
            if any(len(form) > len(tail) and form.startswith(tail) for form in self._forms):
                return found.start()
        return len(text)


def _parts(value: str) -> Iterator[str]:
    """A value, and its long lines: tools show lines one by one."""
    yield value
    lines = value.split("\n")
    if len(lines) > 1:
        shown = (line.strip() for line in lines)
        yield from (line for line in shown if len(line) >= _SHORTEST_LINE and line[0] != "-")


def _found(piece: str, text: str) -> Iterator[int]:
    return (found.start() for found in re.finditer(re.escape(piece), text))


def _common_length(one: str, other: str) -> int:
    """How many characters both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))


def _spellings(value: str) -> set[str]:
    escaped = {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    quoted = {
        quote(value, safe="", errors="replace"),
        quote(value, errors="replace"),
        quote_plus(value, errors="replace"),
    }
    return {
        value,
        repr(value)[1:-1],
        *escaped,
        *(json.dumps(each)[1:-1] for each in escaped),
        *quoted,
        *(_PERCENT.sub(lambda code: code[0].lower(), each) for each in quoted),
    }


_ACTS = r"\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and newline, DEL, C1
_DECEIVES = (
    r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # bidirectional controls
    r"\u2028\u2029\u206a-\u206f\ufff9-\ufffb"  # separators, deprecated and annotation controls
    r"\ud800-\udfff"  # lone surrogates: no encoding can write them
    r"\U000e0000-\U000e01ef"  # tags and further variation selectors: invisible text
)
_HIDES = (
    r"\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f"  # soft hyphen, joiners, fillers
    r"\u200b-\u200d\u2060-\u2064\u3164\ufeff\uffa0"  # zero width
)
_TERMINAL = re.compile(f"[{_ACTS}{_DECEIVES}]")
_EVERYTHING = re.compile(f"[{_ACTS}{_DECEIVES}{_HIDES}]")
_ONE_LINE = re.compile(rf"[\n\t{_ACTS}{_DECEIVES}{_HIDES}]")
_SHORT = {"\n": r"\n", "\t": r"\t", "\r": r"\r"}


def visible(text: str, *, zero_width: bool = True, one_line: bool = False) -> str:
    r"""`text` with every deceiving character spelled out; the same object if there is none.

    Args:
        text: anything; `\r\n` counts as a newline.
        zero_width: spell out invisible characters too. Leave them in prose: some scripts and
            emoji need joiners.
        one_line: spell out tabs and newlines too.
    """
    if "\r\n" in text and not one_line:
        text = text.replace("\r\n", "\n")
    pattern = _ONE_LINE if one_line else _EVERYTHING if zero_width else _TERMINAL
    return pattern.sub(_escape, text) if pattern.search(text) else text


def shortened(text: str, limit: int) -> str:
    """`text` if it has at most `limit` characters, else its beginning and how much is missing."""
    cut = len(text) - limit
    return text if cut <= 0 else f"{text[:limit]}… (+{cut} characters)"


def _escape(found: re.Match[str]) -> str:
    character = found[0]
    if character in _SHORT:
        return _SHORT[character]
    code = ord(character)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
