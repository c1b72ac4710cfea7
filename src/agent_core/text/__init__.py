"""Pure functions on text that several packages use."""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

Clean = Callable[[str], str]
"""Takes out of a text whatever is, or looks like, a secret."""

BYTES_PER_TOKEN = 4
_JOINERS = "\u200c\u200d"
"""Characters that some scripts and emoji need between others."""
_LONGEST_LINE = 500
_LONGEST_GIST = 200


def one_line(text: str) -> str:
    """Return `text` without line breaks and control characters: a list entry stays one line."""
    joined = " ".join(text.split())
    return joined if joined.isprintable() else "".join(c for c in joined if c.isprintable())


def short_line(text: str, limit: int) -> str:
    """Return `text` on one line of at most `limit` characters; `…` follows the last whole word.

    A long word, such as a path, is cut inside.
    """
    line = " ".join(text[: 4 * limit].split())
    if len(line) <= limit:
        return line
    words = line[:limit].rpartition(" ")[0]
    return f"{words if len(words) > 3 * limit // 4 else line[: limit - 1]}…"


def gist_of_arguments(arguments: Mapping[str, Any]) -> str:
    """Return the subject of a call on one line: its command, its path, or its first text."""
    argv: object = arguments.get("argv")
    if isinstance(argv, list):
        given = " ".join(map(str, cast("list[object]", argv)))
    else:
        texts = (arguments.get("path"), *arguments.values())
        given = next((text for text in texts if isinstance(text, str)), "")
    return short_line(given, _LONGEST_GIST)


def first_words(text: str, limit: int = 80) -> str:
    """Return the first words of `text`, at most `limit` characters on one line: a title."""
    line = _printable_line(text, kept=_JOINERS)
    if len(line) <= limit:
        return line
    words, _, _ = line[:limit].rpartition(" ")
    return f"{words if len(words) > limit // 2 else line[: limit - 1]}…"


def bounded_line(text: str) -> str:
    """Return at most 500 characters of foreign text on one line, without control characters."""
    line = _printable_line(text[: _LONGEST_LINE * 4])
    return line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}…"


def _printable_line(text: str, *, kept: str = "") -> str:
    """Return the words of `text`; characters that cannot be printed separate words."""
    line = " ".join(text.split())
    if line.isprintable():  # true of most; avoids a step for each character
        return line
    shown = (char if char.isprintable() or char in kept else " " for char in text)
    return " ".join("".join(shown).split())


def join_surrogates(text: str) -> str:
    """Return `text` with split surrogate pairs joined; a lone half becomes U+FFFD."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def estimate_text(text: str) -> int:
    """Estimate the tokens of a text: its UTF-8 bytes, four to a token."""
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    return -(-size // BYTES_PER_TOKEN)


def fit_lines(lines: Iterable[str], room: int) -> str:
    """Join as many whole lines as fit into `room` tokens; a last line counts the missing ones."""
    kept: list[str] = []
    missing = 0
    for line in filter(str.strip, lines):
        room -= estimate_text(line) + 1 if not missing else 0
        if missing or room < 0:
            missing += 1
        else:
            kept.append(line)
    if missing:
        kept.append(f"- (truncated: {missing} more are not listed)")
    return "\n".join(kept)


def nearest(word: str, known: Iterable[str], prefix: str = "") -> str:
    """Return ` (did you mean …?)` with the nearest known word, or an empty string.

    A word of the same letters is nearer than one with a letter less: `modle` is `model`.
    """
    from difflib import get_close_matches  # noqa: PLC0415 - only for names that are wrong

    matches = get_close_matches(word, list(known), n=5, cutoff=0.6)
    swapped = (match for match in matches if sorted(match) == sorted(word))
    match = next(swapped, next(iter(matches), None))
    return f" (did you mean {prefix}{match}?)" if match is not None else ""


def listed(names: Sequence[str], most: int = 5) -> str:
    """Return names with commas, at most so many, and how many there are beyond them."""
    more = [f"{len(names) - most:,} more"] if len(names) > most else []
    return ", ".join([*names[:most], *more])


def plural(count: int, one: str, many: str = "") -> str:
    """Return a number with its noun: `1 file`, `1,000 files`."""
    return f"{count:,} {noun(count, one, many)}"


def noun(count: int, one: str, many: str = "") -> str:
    """Return the noun for a number; `many` if the plural is not `one` with an s."""
    return one if count == 1 else many or f"{one}s"


_SOUNDS_OPEN = r"[AEFHILMNORSX](?![a-z])|(?!uni|use|eu|one)[aeiou]"
"""Beginnings of words that are spoken with a vowel: letters that are spelled, and vowels."""


def with_article(word: str) -> str:
    """Return a word, such as the name of a type, with its indefinite article."""
    return f"{'an' if re.match(_SOUNDS_OPEN, word, re.IGNORECASE) else 'a'} {word}"


def common_start(one: Sequence[str], other: Sequence[str]) -> int:
    """Return how many characters of texts, or lines of lists, both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))


def readable_name(path: str) -> str:
    """Return a path as text for storing and showing; bytes that are not UTF-8 are escaped."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def kind_of(value: object) -> str:
    """Return the type of a value with its article, such as `an int`."""
    return "None" if value is None else with_article(type(value).__name__)


def shown_value(value: object) -> str:
    """Return a wrong value for a message, without secrets; an address is only called one."""
    if isinstance(value, str):
        return "an address" if "://" in value else quoted(value)
    return _without_secrets(repr(value))[:80]


def not_a_list(name: str, given: object) -> str:
    """Return the message for an argument that must be a list, and shows how to write one."""
    kind, cure = kind_of(given), ""
    if isinstance(given, str):
        cure = f"; write {name}=[{'…' if '://' in given else quoted(given, 40)}]"
    elif not isinstance(given, int | float | bytes | Mapping | None):
        cure = f"; write {name}=[…]"
    return f"{name} must be a list, not {kind}{cure}"


def utf8_size(text: str) -> int:
    """Return the bytes of the text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def shorten_text(text: str, limit_bytes: int) -> str:
    """Return `text`, or its beginning and end in about `limit_bytes`, with a note of the gap."""
    if utf8_size(text) <= limit_bytes:
        return text
    raw = text.encode("utf-8", "replace")
    head = raw[: int(limit_bytes * 2 / 3)].decode(errors="ignore")
    tail = raw[len(raw) - int(limit_bytes / 3) :].decode(errors="ignore")
    left_out = len(raw) - len(head.encode()) - len(tail.encode())
    return f"{head}\n[… {left_out} {noun(left_out, 'byte')} left out …]\n{tail}"


def shown_id(name: str) -> str:
    """Return an id for a message, without secrets, and in quotes if it is blank."""
    return _without_secrets(name) if name.strip() else repr(name)


def quoted(text: str, most: int = 80) -> str:
    """Return a text of any origin in quotes, for a message: one safe line, visibly cut.

    What looks like a key or a password is replaced.

    Args:
        text: what was typed, or sent.
        most: characters that are shown; `…` follows them if there are more.
    """
    text = _without_secrets(text)
    cut = text if len(text) <= most else f"{text[:most]}…"
    return visible(repr(cut), one_line=True)


def _without_secrets(text: str) -> str:
    from agent_core.secret_shapes import without_secrets  # noqa: PLC0415 - for messages of errors

    return without_secrets(text)


def shorten_name(name: object) -> str:
    """Return a name of any origin, cut to 200 characters."""
    name = name if isinstance(name, str) else repr(name)
    return name if len(name) <= 200 else f"{name[:200]}…"


_CONTROLS = (
    r"\x1b(?:"
    r"\[[0-?]*[ -/]*[@-~]"  # colours, movements
    r"|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\|$)"  # titles, links, the clipboard
    r"|[ -/]+[0-~]|[0-OQ-WYZ\\`-~])"
)


def printed(text: str) -> str:
    """Return `text` as a screen finally shows it.

    Control sequences are removed, and of lines written over each other the last one stays.
    """
    if "\x1b" in text:
        text = re.sub(_CONTROLS, "", text)
    if "\r" in text:
        lines = text.replace("\r\n", "\n").split("\n")
        text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines)
    return text


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
# Compiled when first needed: this takes longer than the rest of the module.
_TERMINAL = f"[{_ACTS}{_DECEIVES}]"
_EVERYTHING = f"[{_ACTS}{_DECEIVES}{_HIDES}]"
_ONE_LINE = rf"[\n\t{_ACTS}{_DECEIVES}{_HIDES}]"
_SHORT = {"\n": r"\n", "\t": r"\t", "\r": r"\r"}


def visible(text: str, *, zero_width: bool = True, one_line: bool = False) -> str:
    r"""Spell out every deceiving character of `text`; the same object if there is none.

    Args:
        text: any text; `\r\n` counts as a newline.
        zero_width: spell out invisible characters too. Leave them in prose: some scripts and emoji
          need joiners.
        one_line: spell out tabs and newlines too.
    """
    if "\r\n" in text and not one_line:
        text = text.replace("\r\n", "\n")
    if text.isascii() and text.isprintable():
        return text
    pattern = re.compile(_ONE_LINE if one_line else _EVERYTHING if zero_width else _TERMINAL)
    return pattern.sub(_escape, text) if pattern.search(text) else text


def visible_line(text: str) -> str:
    """Return the words of `text` on one line, with every deceiving character spelled out."""
    return visible(" ".join(text.split()), one_line=True)


def shortened(text: str, limit: int) -> str:
    """Return `text`, or its first `limit` characters and the number of missing ones."""
    cut = len(text) - limit
    return text if cut <= 0 else f"{text[:limit]}… (+{cut} {noun(cut, 'character')})"


_IN_CODE = r"\s*\(in code: (?:[^()]|\([^()]*\))*\)"


def without_code(message: str) -> str:
    """Return a message without `(in code: …)`, the parts that only say how programs do it."""
    return re.sub(_IN_CODE, "", message) if "(in code: " in message else message


def lines_of_diff(diff: str) -> list[str]:
    """Return the lines of a unified diff as people are shown them, without their ends."""
    return [line.removesuffix("\r") for line in diff.removesuffix("\n").split("\n") if diff]


def _escape(found: re.Match[str]) -> str:
    character = found[0]
    if character in _SHORT:
        return _SHORT[character]
    code = ord(character)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
