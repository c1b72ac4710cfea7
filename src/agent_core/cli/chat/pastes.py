"""Keeps large pasted texts, of which the input shows a short name."""

import re
from collections.abc import Mapping

from agent_core.types import ImageBlock

_LARGE_LINES = 12
_LARGE_CHARS = 1500
_NAME = re.compile(r"\[(?:pasted text|earlier paste) \d+: \d+ (?:lines|characters)\]")


class Pastes:
    """Large pastes of a conversation and of the input history, by the name shown for each.

    The names of a conversation are numbered as they are pasted. A text that an entry of the history
    has brought along gets another name, so that no name ever means two texts.
    """

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._earlier: dict[str, str] = {}
        self._images: dict[str, ImageBlock] = {}

    def attach(self, name: str, size: str, image: ImageBlock) -> str:
        """Keep an image, and return what the input shows for it."""
        shown, number = f"[image {name} {size}]", 1
        while self._images.get(shown, image) != image:
            number += 1
            shown = f"[image {name} ({number}) {size}]"
        self._images[shown] = image
        return shown

    def images_in(self, shown: str) -> list[ImageBlock]:
        """Return the images that an input shows, in their order."""
        places = sorted((shown.find(name), name) for name in self._images if name in shown)
        return [self._images[name] for _, name in places]

    def names_in(self, shown: str) -> list[str]:
        """Return the names that an input has for pasted texts and images."""
        return [*self.named_in(shown), *(name for name in self._images if name in shown)]

    def image_before(self, before: str) -> str:
        """Return what the input shows for the image before the cursor; empty if there is none."""
        return next(filter(before.endswith, self._images), "")

    def fold(self, text: str) -> str:
        """Return what the input shows for a pasted text: its name if it is large."""
        lines = text.count("\n") + 1
        if lines <= _LARGE_LINES and len(text) <= _LARGE_CHARS:
            return text
        name = f"[pasted text {len(self._texts) - len(self._earlier) + 1}: {_size(text)}]"
        self._texts[name] = text
        return name

    def unfold(self, shown: str) -> str:
        """Return the text that is sent, with the pasted texts in place of their names."""
        return _NAME.sub(lambda found: self._texts.get(found[0], found[0]), shown)

    def is_paste(self, shown: str) -> bool:
        """Return whether an input shows nothing but the name of a paste."""
        return shown in self._texts

    def named_in(self, shown: str) -> dict[str, str]:
        """Return the pasted texts that an input shows, by their names."""
        names = _NAME.findall(shown)
        return {name: self._texts[name] for name in names if name in self._texts}

    def refold(self, text: str, shown: str) -> tuple[str, set[str]]:
        """Return a text with the names of the pastes that an input showed, where they are in it.

        Of a paste that was changed, the lines with an `@` are returned, too.
        """
        changed: set[str] = set()
        for name, pasted in self.named_in(shown).items():
            if pasted in text:
                text = text.replace(pasted, name)
            else:
                changed.update(line.strip() for line in pasted.split("\n") if "@" in line)
        return text, changed

    def restore(self, shown: str, named: Mapping[str, str]) -> str | None:
        """Return an entry of the history as the input shows it now; None if a text is missing."""
        if any(name not in named for name in _NAME.findall(shown)):
            return None
        return _NAME.sub(lambda found: self._name_earlier(named[found[0]]), shown)

    def _name_earlier(self, text: str) -> str:
        name = self._earlier.get(text)
        if name is None:
            name = f"[earlier paste {len(self._earlier) + 1}: {_size(text)}]"
            self._earlier[text] = name
            self._texts[name] = text
        return name


def _size(text: str) -> str:
    lines = text.count("\n") + 1
    return f"{lines} lines" if lines > 1 else f"{len(text)} characters"
