"""Finds the files that a message names behind an `@`."""

import re
from collections.abc import Callable, Iterator
from typing import TypeVar

FoundT = TypeVar("FoundT")
_LONGEST = 400
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
    "\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
    "\uac00-\ud7af"  # Hangul: a particle follows its noun without a space
)
"""Scripts in which a word follows another without a space."""
_LETTER = rf"[^\W{_UNSPACED}]"
_START = rf"(?<!{_LETTER})(?<![.+%/@])@"
"""An `@` that begins a mention: not one inside an address or a path."""
_MENTION = re.compile(rf'{_START}(?:"(?P<quoted>[^"\n]+)"|(?P<plain>[^\s"]+))')
_UNFINISHED = re.compile(rf'{_START}(?:"(?P<quoted>[^"\n]*)|(?P<plain>[^\s"]*))$')
_CONTINUES = re.compile(rf"{_LETTER}|/|[.\-_+~@#$%=&](?:{_LETTER}|/)")
"""The beginning of a rest that belongs to the name before it: `.bak` behind `lamp.py`."""
_PATH = re.compile(r"[\w./\-+~#$%=&\\]*")
"""A name that leads to nothing, up to the punctuation behind it."""
_RESOURCE = re.compile(r"[A-Za-z0-9_-]{1,64}:(?!\d)")


def find_mentions(
    text: str, look_up: Callable[[str], FoundT | None]
) -> Iterator[tuple[str, FoundT | None]]:
    """Yield what a text names behind an `@`: the name, and what `look_up` returns for it.

    The longest beginning that names something counts: `@lamp.py:12` may name `lamp.py`. A name that
    leads to nothing is yielded with None.
    """
    at = 0
    while found := _MENTION.search(text, at):
        at = found.end()
        if found["quoted"]:
            yield found["quoted"], look_up(found["quoted"])
            continue
        written = found["plain"][:_LONGEST]
        ends = (end for end in range(len(written), 0, -1) if not _CONTINUES.match(written, end))
        for end in ends:
            if (place := look_up(written[:end])) is not None:
                at = found.start("plain") + end
                yield written[:end], place
                break
        else:
            name = "".join(_PATH.findall(written)[:1]).rstrip(".")
            at = found.start("plain") + len(name)
            if name and not _RESOURCE.match(written):
                yield name, None


def unfinished_mention(before: str) -> tuple[int, str] | None:
    """Return where the path under the cursor begins and what of it is typed; None: there is none.

    Args:
        before: the text before the cursor.
    """
    found = _UNFINISHED.search(before)
    if found is None:
        return None
    typed = found["quoted"] if found["plain"] is None else found["plain"]
    return found.start() + 1, typed
