"""The languages in which sessions and the console are shown to people.

Every text is written in English where it is used; a language has a table of its own words.
"""

import re
from collections.abc import Mapping
from functools import cache

from msgspec import Struct

from agent_core.text import plural


class Language(Struct, frozen=True):
    """A language: `say("fork here")` returns a text in it.

    Attributes:
        code: as for `<html lang>`.
        words: its words for the English ones; empty for English.
    """

    code: str
    words: Mapping[str, str] = {}

    def __call__(self, text: str, /, **values: object) -> str:
        """Return a text in this language; `{name}` in it becomes a value."""
        found = self.words.get(text, text)
        return found.format(**values) if values else found

    def error(self, message: str, code: str | None) -> str:
        """Return an error for people: the engine's English message, after words for its code."""
        words = self.words.get(f"error {code}")
        return f"{words}: {message}" if words else message

    def count(self, number: int, noun: str) -> str:
        """Return a number with its noun, which is an English word in the singular."""
        if not self.words:
            return plural(number, noun)
        return self.words.get(f"{{}} {noun}", f"{{}} {noun}").format(f"{number:,}")


ENGLISH = Language("en")

_PART = r"\s*([a-zA-Z]{1,8}|\*)(-[a-zA-Z0-9-]*)?\s*(?:;\s*q=([01](?:\.\d{0,3})?))?\s*"
_MOST_PARTS = 20


def language_of(accepted: str) -> Language:
    """Return the language that an `Accept-Language` header asks for; English without another."""
    best, weight = "en", 0.0
    for part in accepted[:1000].split(",")[:_MOST_PARTS]:
        if (found := re.fullmatch(_PART, part)) is None:
            continue
        code, given = found[1].lower(), float(found[3] or 1)
        if given > weight and code in {"en", "zh", "*"}:
            best, weight = ("en" if code == "*" else code), given
    return ENGLISH if best == "en" else _chinese()


@cache
def _chinese() -> Language:
    from agent_core.text.chinese import CHINESE  # noqa: PLC0415 - for few readers

    return Language("zh", CHINESE)
