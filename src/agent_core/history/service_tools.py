"""The tools that a service has used for a reply, and its sources, as lines for people."""

from collections.abc import Iterable

from agent_core.text import plural, short_line
from agent_core.types import CitationBlock, ProviderToolBlock
from agent_core.types.event_details import ProviderToolUse, Source

_MOST_SOURCES = 30


def use_line(use: ProviderToolBlock | ProviderToolUse) -> str:
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


def source_lines(cited: Iterable[CitationBlock | Source]) -> list[str]:
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
