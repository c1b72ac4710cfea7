"""Calls that run: their titles with the time so far, and the last lines that they have printed."""

from collections import deque
from collections.abc import Iterator, Sequence
from time import monotonic

from msgspec import Struct, field

from agent_core.cli.layout import Signs, fitted
from agent_core.cli.render import label_of, summary_of
from agent_core.cli.terminal import Style, Terminal
from agent_core.events.projection import Call
from agent_core.history.figures import format_elapsed
from agent_core.text import plural
from agent_core.types.event_details import ToolOutput

_MOST_CALLS = 8
_MOST_LINES = 5
"""Lines of output that are shown, of all calls that run."""
_KEPT_LINES = 2_000


class RunningCall(Struct):
    """A call that runs.

    Attributes:
        call: the call.
        since: when it began.
        progress: the last line with which it has reported where it is.
        printed: the lines of its output so far, the last ones if there are many.
        unfinished: the line that it is printing.
        count: how many lines it has printed.
    """

    call: Call
    since: float = field(default_factory=monotonic)
    progress: str = ""
    printed: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT_LINES))
    unfinished: str = ""
    count: int = 0

    def take(self, output: ToolOutput) -> Sequence[str]:
        """Keep the output, and return its new lines; one line replaces the missed ones."""
        *lines, self.unfinished = output.text.split("\n")
        before = output.lines - len(lines)
        new = lines[max(self.count - before, 0) :]
        if before > self.count:
            new.insert(0, f"[{plural(before - self.count, 'line')} left out]")
        self.count = max(self.count, output.lines)
        self.printed.extend(new)
        return new

    def last_lines(self, most: int) -> Sequence[str]:
        """Return the end of its output."""
        lines = [*self.printed, self.unfinished] if self.unfinished else self.printed
        return list(lines)[-most:] if most else []


def draw_calls(
    calls: Sequence[RunningCall], terminal: Terminal, signs: Signs, spinner: str, *, followed: str
) -> Iterator[str]:
    """Yield the lines that show the calls, each fit for the terminal.

    Args:
        calls: in the order of their start.
        terminal: shows them.
        signs: the signs to use.
        spinner: its present state.
        followed: id of a call whose finished lines are printed as they come.
    """
    room, now = terminal.width - 1, monotonic()
    each = max(_MOST_LINES // max(len(calls), 1), 1)
    for running in calls[:_MOST_CALLS]:
        call, took = running.call, f" {format_elapsed(now - running.since)}"
        title = fitted(f"{label_of(call)} {summary_of(call)}", room - 2 - len(took), signs)
        yield f"{spinner} {title}{terminal.styled(took, Style.DIM)}"
        if running.progress:
            yield terminal.styled(fitted(f"  {running.progress}", room, signs), Style.DIM)
        is_followed = call.call_id == followed
        for line in [running.unfinished] if is_followed else running.last_lines(each):
            text = fitted(line.expandtabs(4), room - 4, signs)
            yield terminal.styled(f"  {signs.bar} {text}", Style.DIM)
    if len(calls) > _MOST_CALLS:
        yield f"  {signs.more} {plural(len(calls) - _MOST_CALLS, 'more call')}"
