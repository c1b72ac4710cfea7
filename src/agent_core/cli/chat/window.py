"""Draws the content of a session's context window."""

from collections.abc import Iterator

from agent_core.cli.terminal import Style, Terminal
from agent_core.types import ContextReport
from agent_core.types.memory_scopes import MEMORY_SHARED

_BAR = 30
_NAMES = 14
_MOVED = {
    "static_system": "the system prompt",
    "tools": "the list of tools",
    "dynamic_system": "instructions, catalogs, date or folder",
    "history": "the conversation, which was summarised or continued from another message",
}


def show_context(report: ContextReport, terminal: Terminal) -> None:
    """Show each segment with its tokens, and the last change of the cached prefix."""
    window = max(report.window, 1)
    share = 100 * report.used / window
    terminal.line(
        f"{report.model}: about {report.used:,} of {window:,} tokens ({share:.0f} %)", Style.BOLD
    )
    rows = [(segment.name, segment.tokens) for segment in report.segments]
    rows += [("free", report.free), ("reserve", report.reserve)]
    room = max(min(_BAR, terminal.width - _NAMES - 18), 0)
    for name, tokens in rows:
        cells = round(room * tokens / window) or bool(tokens)
        bar = ("█" if terminal.has_signs else "#") * min(cells, room)
        style = Style.DIM if name in {"free", "reserve"} else Style.PLAIN
        terminal.line(
            f"  {name:<{_NAMES}}{tokens:>8,} {100 * tokens / window:>4.0f} % {bar}", style
        )
    for line in _cache_lines(report):
        for part in terminal.wrap(line):
            terminal.line(part, Style.DIM)


def _cache_lines(report: ContextReport) -> Iterator[str]:
    if not report.segments:
        yield "nothing has been sent yet"
        return
    if report.memory != MEMORY_SHARED:
        yield f"memory: {report.memory}"
    if report.last_input_tokens:
        cached, whole = report.last_cached_tokens, report.last_input_tokens
        yield f"last request: {whole:,} tokens, {cached:,} of them from the cache"
    change = report.last_change
    if change is None:
        yield "the cached prefix has not changed in the last requests"
        return
    part = _MOVED.get(change.part, change.part)
    when = f"{change.created_at.astimezone():%H:%M:%S}"
    yield f"the cached prefix last changed at {when}, in turn {change.turn} of {change.run_id}:"
    yield f"  {part} changed"
