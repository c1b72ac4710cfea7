"""The reply of a run as items: texts and thoughts, one after the other.

Calls of tools are the agent's own: they are shown as thoughts.
"""

from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from typing import Any

from msgspec import Struct, field

from agent_core.aio import TaskStream
from agent_core.api import RunHandle
from agent_core.frontends import parts
from agent_core.providers import jsontext
from agent_core.text import shortened
from agent_core.text.json_text import JsonValue
from agent_core.types import RunStatus

_SHOWN = 500
"""Characters that are shown of the arguments of a call, and of why it failed."""


class Begins(Struct, frozen=True):
    """An item begins: a text, or with `is_thought` a thought."""

    is_thought: bool


class Grows(Struct, frozen=True):
    """More of the item under way."""

    text: str


class Cites(Struct, frozen=True):
    """A source of the text under way, which is whole."""

    url: str
    title: str


class Ends(Struct, frozen=True):
    """The item under way is whole."""


Change = Begins | Grows | Cites | Ends | parts.Ended
"""A change of the reply; the last one is the end of the run."""


def read_items(handle: RunHandle[Any], *, is_typed: bool) -> AsyncGenerator[Change]:
    """Yield the changes of a run's reply; it may be left at any point.

    Args:
        handle: the run.
        is_typed: the answer has a type: only the final one is a text, because earlier ones may not
            have been accepted.
    """
    return TaskStream(_items(parts.read_parts(handle, holds_run=False), _Reader(is_typed=is_typed)))


async def _items(source: AsyncGenerator[parts.Part], reader: "_Reader") -> AsyncGenerator[Change]:
    async with aclosing(source) as found:
        async for part in found:
            for change in reader.read(part):
                yield change


class _Reader:
    def __init__(self, *, is_typed: bool) -> None:
        self._is_typed = is_typed
        self._has_text = False
        self._ends_later = False
        self._sources: list[Cites] = []
        self._asked: list[parts.Question] = []

    def read(self, part: parts.Part) -> Iterator[Change]:
        """Yield the changes that a part makes."""
        if isinstance(part, parts.SourceFound):
            self._sources.append(Cites(part.url, part.title))
            return
        if self._ends_later:
            yield from self._end_text()
        match part:
            case parts.TextBegins() | parts.TextGrows() | parts.TextEnds():
                if part.is_reasoning or not self._is_typed:
                    yield from self._read_text(part)
            case parts.CallMade(_, name, arguments):
                yield from _thought(_call(name, arguments))
            case parts.CallEnded(is_error=True, text=text):
                yield from _thought(f"→ {shortened(text, _SHOWN)}")
            case parts.Waits(question):
                yield from _thought(f"{_waiting(question)} …")
            case parts.Question():
                self._asked.append(part)
            case parts.Ended():
                yield from self._end(part)
            case _:
                pass

    def _read_text(
        self, part: parts.TextBegins | parts.TextGrows | parts.TextEnds
    ) -> Iterator[Change]:
        match part:
            case parts.TextBegins(_, is_reasoning):
                yield Begins(is_reasoning)
            case parts.TextGrows(text=text):
                yield Grows(text)
            case parts.TextEnds(is_reasoning=True):
                yield Ends()
            case parts.TextEnds():
                self._has_text = self._ends_later = True  # its sources may follow

    def _end_text(self) -> Iterator[Change]:
        yield from self._sources
        yield Ends()
        self._sources, self._ends_later = [], False

    def _end(self, ended: parts.Ended) -> Iterator[Change]:
        text = "" if self._has_text else ended.text
        if ended.status is RunStatus.WAITING:
            asked = "\n".join(map(_waiting, self._asked))
            text = f"{asked}\n\nAnswer it, and then ask for the outcome."
        if text and ended.status in {RunStatus.COMPLETED, RunStatus.WAITING}:
            yield Begins(is_thought=False)
            yield Grows(text)
            yield from self._end_text()
        yield ended


class Item(Struct):
    """A whole item of a reply."""

    is_thought: bool
    text: str = ""
    sources: list[Cites] = field(default_factory=list[Cites])


async def read_reply(handle: RunHandle[Any], *, is_typed: bool) -> tuple[list[Item], parts.Ended]:
    """Return the whole reply of a run, and its end.

    Args:
        handle: the run.
        is_typed: as for `read_items`.
    """
    items: list[Item] = []
    ended = parts.Ended(RunStatus.CANCELLED)
    async with aclosing(read_items(handle, is_typed=is_typed)) as changes:
        async for change in changes:
            match change:
                case Begins(is_thought):
                    items.append(Item(is_thought))
                case Grows(text):
                    items[-1].text += text
                case Cites():
                    items[-1].sources.append(change)
                case parts.Ended():
                    ended = change
                case _:
                    pass
    texts = [item for item in items if not item.is_thought]
    if texts and ended.text and ended.status is RunStatus.COMPLETED:
        texts[-1].text = ended.text  # a guard may have replaced it
    return items, ended


def _thought(text: str) -> Iterator[Change]:
    yield Begins(is_thought=True)
    yield Grows(text)
    yield Ends()


def _call(name: str, arguments: Mapping[str, JsonValue]) -> str:
    return f"{name} {shortened(jsontext.dump_text(dict(arguments)), _SHOWN)}"


def _waiting(question: parts.Question) -> str:
    what = f"{question.tool_name} {question.summary}".strip()
    return f"This run waits for the answer to the question {question.request_id}: {what}"
