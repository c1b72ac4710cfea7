"""The tools that a service has used for a reply, and its sources, as lines for people."""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from agent_core.text import plural, short_line

_MOST_SOURCES = 30


class Use(Protocol):
    """A use of a tool that the service runs itself, or its result."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def arguments(self) -> Mapping[str, Any]:
        """Its arguments, as the model has given them."""
        ...

    @property
    def result(self) -> str | None:
        """Its findings or output, if they are known here."""
        ...


class Cited(Protocol):
    """A source of a reply."""

    @property
    def url(self) -> str:
        """Its address."""
        ...

    @property
    def title(self) -> str:
        """Its title, or an empty text."""
        ...


def use_line(use: Use) -> str:
    """Return a use of a tool, or its result, on one line."""
    asked = " ".join(filter(None, map(_plain, use.arguments.values())))
    line = f"{use.name}: {short_line(asked, 200)}" if asked else use.name
    if use.result is None:
        return line
    found = use.result.splitlines()
    if not found:
        return line
    more = f" (+{plural(len(found) - 1, 'line')})" if len(found) > 1 else ""
    return f"{line} → {short_line(found[0], 200)}{more}"


def source_lines(cited: Iterable[Cited]) -> list[str]:
    """Return the sources of a reply, each once."""
    found = dict.fromkeys((each.title, each.url) for each in cited)
    lines = [
        f"{short_line(title, 200)} {short_line(url, 500)}".strip()
        for title, url in [*found][:_MOST_SOURCES]
    ]
    if (more := len(found) - _MOST_SOURCES) > 0:
        lines.append(f"… (+{more} more)")
    return lines


def _plain(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(str(each) for each in value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return value if isinstance(value, str) else ""
