"""Writes words as a line for a shell."""

import re
import shlex
from collections.abc import Iterable

_REPLACED = r"[$`!]"
"""What a shell replaces in double quotes; `shlex` reads it otherwise, with or without escapes."""

_ESCAPED = r'"|\\(?=["\\\n]|\Z)'
_BACKSLASHED = r"\\\g<0>"


def command_line(words: Iterable[str]) -> str:
    """Return the line that a shell reads as these words, quoted as a person would."""
    return " ".join(map(_quoted, words))


def _quoted(word: str) -> str:
    if "'" not in word or re.search(_REPLACED, word):
        return shlex.quote(word)
    return f'"{re.sub(_ESCAPED, _BACKSLASHED, word)}"'
