"""A list to choose from: the newest entry is at the bottom, and typed letters narrow the list.

The state of the list is here, and its lines for any width. `pane` shows it above a filter where
a terminal can draw; `plain` prints it with numbers.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress

from msgspec import Struct

from agent_core.cli.layout import SIGNS, Signs, cells, fitted
from agent_core.errors import AgentCoreError
from agent_core.text import visible
from agent_core.text.folding import fold

_LEAST_ID = 4
_LEAST_TEXT = 24
"""Columns that facts leave to the text."""


class PickerEntry(Struct, frozen=True):
    """An entry of a list.

    Attributes:
        value: what taking it returns.
        text: names it.
        facts: more about it, each padded to the width of its column.
        words: further words by which it is found.
        is_current: it is in use now.
    """

    value: str
    text: str
    facts: Sequence[str] = ()
    words: str = ""
    is_current: bool = False


Pages = AsyncIterator[Sequence[PickerEntry]]
"""The entries, the newest first; pages are asked for as they are needed."""


class Picker:
    """The state of a list while a person chooses.

    Args:
        title: the question.
        pages: the entries.
        takes_other: a typed text that no entry has can be taken, too.

    Attributes:
        typed: the words that narrow the list.
        index: the number of the selected entry among the matching ones.
        is_complete: all pages have been read.
        problem: why no more pages can be read.
    """

    def __init__(self, title: str, pages: Pages, *, takes_other: bool = False) -> None:
        self.title = title
        self.typed: str = ""
        self.index = 0
        self.is_complete = False
        self.problem = ""
        self._pages = pages
        self._takes_other = takes_other
        self._known: dict[str, PickerEntry] = {}
        self._texts: list[str] = []
        self._matches: list[PickerEntry] = []
        self._first = 0
        self._rows = 0
        self._wants = asyncio.Event()

    @property
    def matches(self) -> Sequence[PickerEntry]:
        """Return the entries that have the typed words, the newest first."""
        return self._matches

    def narrow(self, typed: str) -> None:
        """Show the entries that have these words, in any case and order."""
        if typed != self.typed:
            self.typed, self.index, self._first = typed, 0, 0
            self._matches = self._select([*self._known.values()], self._texts)
            self._wants.set()

    def move(self, by: int) -> None:
        """Select an entry further up, or with a negative number further down."""
        self.index = max(min(self.index + by, len(self._matches) - 1), 0)
        self._wants.set()

    def chosen(self) -> str | None:
        """Return the value of the selected entry, else a typed text; None: there is neither."""
        if self._matches:
            return self._matches[self.index].value
        return self.typed.strip() or None if self._takes_other else None

    def named(self, typed: str) -> str | None:
        """Return the value that a typed line names: the beginning of an id, or a whole name."""
        found = [each for each in self._matches if _begins(each, typed)]
        exact = [each for each in found if typed in {each.value, each.text}]
        if len(found) == 1 or exact:
            return (exact or found)[0].value
        return typed if self._takes_other and not self._matches else None

    async def fill(self, changed: Callable[[], object]) -> None:
        """Read pages while they are needed: those in sight, and with a filter all of them."""
        try:
            async for page in self._pages:
                self._add(page)
                changed()
                while not self._needs_more:
                    self._wants.clear()
                    await self._wants.wait()
        except AgentCoreError as error:
            self.problem = error.message
        self.is_complete = True
        changed()

    async def have(self, count: int) -> None:
        """Read pages until `count` entries match, or there are no more."""
        with suppress(StopAsyncIteration):
            while len(self._matches) < count and not self.is_complete:
                self._add(await anext(self._pages))
            return
        self.is_complete = True

    def shown(self, rows: int) -> tuple[int, Sequence[PickerEntry]]:
        """Return the entries in sight, and the number of the first of them, which is the lowest."""
        if rows != self._rows:
            self._rows = rows
            self._wants.set()
        first = min(self._first, self.index)
        self._first = max(first, self.index - rows + 1, 0)
        return self._first, self._matches[self._first : self._first + rows]

    def hint(self) -> str:
        """Return a line about the keys and the number of entries."""
        more = "" if self.is_complete else "+"
        count = f"{len(self._matches):,}{more}"
        if self.problem:
            count += f" ({visible(self.problem, one_line=True)})"
        if self._matches or not self.is_complete:
            return f"Enter takes, Esc leaves | {count}"
        if self._takes_other and self.typed.strip():
            return "Enter takes what you typed, Esc leaves"
        return "nothing matches, Esc leaves" if self._known else "there is nothing, Esc leaves"

    @property
    def _needs_more(self) -> bool:
        is_near_end = self.index + 2 * self._rows >= len(self._matches)
        return bool(self.typed.strip()) or is_near_end

    def _add(self, page: Sequence[PickerEntry]) -> None:
        new = [choice for choice in page if choice.value not in self._known]
        self._known |= {choice.value: choice for choice in new}
        texts = [fold(f"{choice.text} {choice.value} {choice.words}") for choice in new]
        self._texts += texts
        self._matches += self._select(new, texts)

    def _select(self, choices: Sequence[PickerEntry], texts: Sequence[str]) -> list[PickerEntry]:
        words = fold(self.typed).split()
        return [
            choice
            for choice, text in zip(choices, texts, strict=True)
            if all(word in text for word in words)
        ]


def _begins(choice: PickerEntry, typed: str) -> bool:
    """Return whether a typed line is a choice's name, or enough of the beginning of its id."""
    ids = (choice.value, *choice.words.split())
    is_id = len(typed) >= _LEAST_ID and any(each.startswith(typed) for each in ids)
    return is_id or typed in {choice.value, choice.text}


def line_of(
    choice: PickerEntry, width: int, *, lead: str, facts: bool = True, signs: Signs = SIGNS
) -> str:
    """Return the line of an entry, at most so wide: facts are left out where room is short."""
    room = width - cells(lead)
    shown = ""
    for fact in choice.facts if facts else ():
        if cells(shown) + cells(fact) + 2 + _LEAST_TEXT > room:
            break
        shown += f"{fact}  "
    text = fitted(visible(choice.text, zero_width=False, one_line=True), room - cells(shown), signs)
    return f"{lead}{shown}{text}"


def numbered_lines(choices: Sequence[PickerEntry], width: int, signs: Signs = SIGNS) -> list[str]:
    """Return a numbered line for each entry; the newest is the last, and has the number 1."""
    digits = len(str(len(choices)))
    return [
        line_of(
            choice,
            width,
            lead=f"{number:>{digits}}{'*' if choice.is_current else ' '} ",
            signs=signs,
        )
        for number, choice in reversed([*enumerate(choices, 1)])
    ]
