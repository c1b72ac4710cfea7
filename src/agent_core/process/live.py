"""The last output of a program while it runs, for people who watch."""

import asyncio
import re
from codecs import getincrementaldecoder
from collections.abc import Callable
from typing import Self

from agent_core.text import printed

Show = Callable[[str, int], object]
"""Takes the last output as a screen would show it, and how many lines have been finished so far."""

_WINDOW = 16_384
"""Bytes of the last output that are read: more than is shown, so that no secret is cut in two."""
_EVERY_S = 0.25
_UNFINISHED = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b]*\x1b?|[ -/]+)?\Z")
_Decoder = getincrementaldecoder("utf-8")


class LiveOutput:
    """Shows the last output of a program at most four times a second, however much there is.

    The lines of its streams are joined in the order in which they are finished. A program that ends
    at once shows nothing.

    Args:
        show: is called in the event loop.
    """

    def __init__(self, show: Show) -> None:
        self._show = show
        self._lines = bytearray()
        self._count = 0
        self._unfinished = bytearray()
        self._due: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_failure: object) -> None:
        if self._due is not None:
            self._due.cancel()

    def beside(self, keep: Callable[[bytes], object]) -> Callable[[bytes], None]:
        """Return a function that takes the pieces of one stream, and hands them on to `keep`."""
        rest = bytearray()

        def take(piece: bytes) -> None:
            keep(piece)
            end = piece.rfind(b"\n") + 1
            if end:
                self._count += piece.count(b"\n")
                self._lines += rest + piece[max(end - _WINDOW, 0) : end]
                rest.clear()
            rest.extend(piece[max(end, len(piece) - _WINDOW) :])
            for kept in (self._lines, rest):
                if len(kept) > 4 * _WINDOW:
                    del kept[:-_WINDOW]
            self._unfinished = rest
            if self._due is None:
                self._due = asyncio.get_running_loop().call_later(_EVERY_S, self._show_now)

        return take

    def _show_now(self) -> None:
        self._due = None
        lines, unfinished = self._lines[-_WINDOW:], self._unfinished[-_WINDOW:]
        if len(self._lines) > _WINDOW:  # it begins within a line
            del lines[: lines.find(b"\n") + 1]
        text = _Decoder("replace").decode(bytes(lines + unfinished))
        self._show(printed(_UNFINISHED.sub("", text)), self._count)
