"""Compares text as people read it: without case, and however its accents are composed."""

import json
import re
from bisect import bisect_right
from collections.abc import Iterable
from unicodedata import normalize

IOTA = "[\u0345\u1f80-\u1fff]"
"""Matches an iota below a letter, also as part of another character."""
ESCAPED = r"\\u(?!00[01])[0-9a-f]{4}"
"""Matches a JSON escape, except of a control character."""
_has_iota = re.compile(IOTA).search
_ESCAPES = re.compile(f"(?:{ESCAPED})+")


def fold(text: str) -> str:
    """Return text without case, as `str.casefold` does it, with its accents composed.

    It may change the length: `ß` becomes `ss`, and `İ` an `i` and a dot. All spellings that some
    file system takes for one name become the same.
    """
    if text.isascii():
        return text.lower()
    folded = text.casefold()
    if "\u03b9" in folded and _has_iota(text):
        # It is a letter now, and accents after it belong before it.
        folded = normalize("NFD", text).casefold()
    return normalize("NFC", folded)


def find_folded(text: str, words: Iterable[str]) -> int | None:
    """Return the place in `text` of the first of these folded words; None if any is missing."""
    folded = fold(text)
    places = [folded.find(word) for word in words]
    if -1 in places:
        return None
    place = min(places, default=0)
    if text.isascii():
        return place
    return bisect_right(range(len(text)), place, key=lambda end: len(fold(text[: end + 1])))


def fold_json(stored: str) -> str:
    """Return stored JSON text folded; if letters are escaped, add the text without the escapes.

    Earlier versions escaped all letters of a text with a lone surrogate or a huge number.
    """
    folded = fold(stored)
    if "\\u" not in folded:
        return folded
    shown, count = _ESCAPES.subn(lambda found: json.loads(f'"{found[0]}"'), folded)
    shown = shown.encode("utf-8", "backslashreplace").decode()
    return f"{folded}\n{fold(shown)}" if count else folded


def pattern_in_json(word: str) -> str:
    """Return a `LIKE` pattern, with `^` for escapes, of a folded word in folded JSON text."""
    stored = json.dumps(word, ensure_ascii=False)[1:-1]
    stored = stored.encode("utf-8", "backslashreplace").decode()
    plain = re.sub("[%_^]", lambda special: f"^{special[0]}", stored)
    return f"%{plain}%"
