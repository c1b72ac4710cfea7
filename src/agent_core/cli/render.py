"""Lays out calls line by line, for any width and any colours."""

import re
import signal
from collections.abc import Iterator, Sequence

from msgspec import Struct

from agent_core.cli.layout import SIGNS, Signs, cells, fitted, split_row, wrapped
from agent_core.cli.terminal import Part, Style
from agent_core.errors import describe_error
from agent_core.events.projection import Call
from agent_core.history.figures import format_duration
from agent_core.history.words import denial
from agent_core.text import lines_of_diff, plural, printed, shortened, visible
from agent_core.types import EFFECT_UNKNOWN, NEVER_BEGAN
from agent_core.types.event_details import ToolCompleted, ToolDenied, ToolEnded, ToolFailed

LINES_OF_SUCCESS = 5
"""So many of the last lines of a command are shown where it has succeeded."""
LINES_OF_FAILURE = 15
LINES_OF_DIFF = 40

_LONGEST_MESSAGE = 2000
_LONGEST_CHANGE = 400
"""Columns of a changed line; what a window cannot show of it is on further rows."""
_LEAST_ROOM = 8
_LONG_LOOK_MS = 2_000
"""Milliseconds from which on the duration of a read or a search is shown."""
_LEAST_SUMMARY = 12
_LEAST_SAID = 8
_HUNK = r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@"
_QUIET = ("read", "search")

Line = list[Part]


class CallLayout(Struct, frozen=True):
    """Layout of calls.

    Attributes:
        width: columns that a line may take.
        signs: the signs to use.
    """

    width: int
    signs: Signs = SIGNS

    def end(self, call: Call) -> Iterator[Line]:
        """Yield the lines of a call that has ended: its title, its outcome and its effects."""
        yield from self.headline(call)
        yield from self._why(call)
        yield from self._remarks(call.end)
        yield from self.output(call.end, is_failure=outcome(call)[1] is Style.BAD)
        yield from self.diff(call.end)

    def headline(self, call: Call) -> Iterator[Line]:
        """Yield the title and the outcome of a call that has ended."""
        words, style = outcome(call)
        words = "" if words == "ok" and is_quiet(call) else words
        facts = list(filter(None, [words, _took(call), _box(call)]))
        dot = " · " if self.signs is SIGNS else " - "
        said = dot.join(facts)
        sign: Part = (f"{self.signs.call} ", style)
        room, taken = self.width - 2, max(len(said), _LEAST_SAID) + 2
        name = cells(label_of(call))
        whole = name + 1 + cells(summary_of(call)) + taken
        fits = name + _LEAST_SUMMARY + taken <= room
        look = Style.DIM if style is Style.GOOD else style
        if whole <= room or (fits and is_quiet(call)):
            end: list[Part] = [(f"  {said}", look)] if said else []
            yield [sign, *self._title(call, room - taken), *end]
            return
        yield [sign, *self._title(call, room)]
        line = ""
        for fact in facts:
            joined = f"{line}{dot}{fact}" if line else fact
            if line and len(f"{line}{dot}") + max(len(fact), _LEAST_SAID) > room:
                yield [(f"  {line}", look)]
                joined = fact
            line = joined
        if line:
            yield [(f"  {line}", look)]

    def plain_head(self, call: Call) -> Line:
        """Return the line of a call that begins, for a screen that cannot draw."""
        return [(fitted(f"> {self._named(call)}", self.width, self.signs), Style.BOLD)]

    def plain_end(self, call: Call) -> Iterator[Line]:
        """Return the line of a call that has ended, for a screen that cannot draw."""
        words, style = outcome(call)
        has_begun = call.started is not None and not is_quiet(call)
        line = f"  {label_of(call)}" if has_begun else f"> {self._named(call)}"
        line += f" {words or 'ok'}"
        if took := _took(call):
            line += f" ({took})"
        if box := _box(call):
            line += f", {box}"
        if message := _reason(call):
            line += f": {shortened(message, _LONGEST_MESSAGE)}".replace("\n", "\n      ")
        yield [(line, style)]
        yield from self.output(call.end, is_failure=style is Style.BAD)
        if _shows_diff(call):
            yield from self.diff(call.end)

    def _named(self, call: Call) -> str:
        summary = summary_of(call)
        return f"{label_of(call)} {summary}" if summary else label_of(call)

    def _title(self, call: Call, room: int) -> Line:
        name = fitted(label_of(call), room, self.signs)
        title: Line = [(name, Style.BOLD)]
        if summary := summary_of(call):
            left = room - cells(name) - 1
            title.append((f" {fitted(summary, left, self.signs)}", Style.PLAIN))
        return title

    def _why(self, call: Call) -> Iterator[Line]:
        if message := _reason(call):
            for line in shortened(message, _LONGEST_MESSAGE).splitlines():
                for part in wrapped(visible(line), self.width - 4):
                    yield [(f"    {part}", Style.PLAIN)]

    def _remarks(self, ended: ToolEnded) -> Iterator[Line]:
        """Yield what the sandbox has refused, and what else happened around a command."""
        blocked = (f"blocked by the sandbox: {place}" for place in ended.blocked_by_sandbox)
        for remark in (*blocked, *ended.remarks):
            line = f"  {visible(remark, one_line=True)}"
            yield [(fitted(line, self.width, self.signs), Style.WARN)]

    def output(self, ended: ToolEnded, *, is_failure: bool) -> Iterator[Line]:
        """Yield the last lines of a command, and how many there are before them."""
        lines = printed(ended.output).splitlines()
        most = LINES_OF_FAILURE if is_failure else LINES_OF_SUCCESS
        shown = lines[-most:]
        hidden = ended.output_hidden_lines + len(lines) - len(shown)
        if hidden or ended.output_truncated:
            count = plural(hidden, "line")
            if ended.output_truncated:
                count = f"more than {count}"
            yield [(f"  {self.signs.more} {count} before these", Style.DIM)]
        look = Style.PLAIN if is_failure else Style.DIM
        for line in shown:
            text = fitted(line.expandtabs(4), self.width - 4, self.signs)
            yield [(f"  {self.signs.bar} ", Style.DIM), (text, look)]

    def diff(self, ended: ToolEnded, *, most: int | None = LINES_OF_DIFF) -> Iterator[Line]:
        """Yield the numbered changes of a call, at most `most` lines; None: all known ones."""
        yield from self.changes(ended.diff or "", hidden=ended.diff_hidden_lines, most=most)

    def changes(self, diff: str, *, hidden: int = 0, most: int | None) -> Iterator[Line]:
        """Yield the numbered lines of a diff, which `hidden` more follow."""
        rows = list(_numbered(lines_of_diff(diff)))
        hidden += len(rows[most:] if most else ())
        digits = len(str(max((number for number, *_ in rows), default=0)))
        for number, sign, text in rows[:most]:
            look = {"+": Style.GOOD, "-": Style.BAD}.get(sign, Style.DIM)
            room = max(self.width - digits - 5, _LEAST_ROOM)
            place = f"{number:>{digits}}" if number else " " * digits
            most_cells = _LONGEST_CHANGE if sign in {"+", "-"} else room
            left = fitted(text.expandtabs(4), max(room, most_cells), self.signs)
            while True:
                shown, left = split_row(left, room)
                yield [(f"  {place} ", Style.DIM), (f"{sign} {shown}".rstrip(), look)]
                if not left:
                    break
                place, sign = " " * digits, " "
        if hidden:
            count = plural(hidden, "more line")
            yield [(f"  {self.signs.more} {count} of the diff", Style.DIM)]


def count_numbered(diff: str) -> int:
    """Return how many lines a diff has, however many rows of a window each takes."""
    return sum(1 for _ in _numbered(lines_of_diff(diff)))


def label_of(call: Call) -> str:
    """Return the name of the tool, behind the child that calls it."""
    name = visible(call.name, one_line=True)
    return f"{visible(call.caller, one_line=True)}: {name}" if call.caller else name


def summary_of(call: Call) -> str:
    """Return the subject of a call; empty if it is the name of the tool."""
    return "" if call.summary == call.name else visible(call.summary, one_line=True)


def is_quiet(call: Call) -> bool:
    """Return whether a call only looks: a line at its end is enough."""
    return call.kind in _QUIET


def outcome(call: Call) -> tuple[str, Style]:
    """Return the outcome of a call in words, and their style."""
    ended = call.end
    if isinstance(ended, ToolDenied):
        return denial(call)[0], Style.BAD
    if ended.code == "timeout":
        return "timed out", Style.BAD
    if ended.reason == EFFECT_UNKNOWN:
        return "unknown", Style.WARN
    if ended.code == "cancelled":
        never_began = ended.duration_ms is None or ended.message == NEVER_BEGAN
        return ("not run" if never_began else "cancelled"), Style.WARN
    if ended.exit_code is not None:
        name = _signal(ended.exit_code)
        killed = f", killed by {name}" if name else ""
        return f"exit code {ended.exit_code}{killed}", Style.BAD if ended.exit_code else Style.GOOD
    if isinstance(ended, ToolFailed):
        return "failed", Style.BAD
    return ended.found or ("ok" if ended.diff is None else ""), Style.GOOD


def _box(call: Call) -> str:
    """Return `sandboxed` or `outside the sandbox`; empty without a sandbox."""
    confined = call.started.confined if call.started is not None else ""
    if not confined:
        return ""
    return "outside the sandbox" if confined.startswith("off") else "sandboxed"


def _shows_diff(call: Call) -> bool:
    """Return whether its diff is still to be shown, where a question stays as it was asked."""
    return all(answer.decided_by != "terminal" for answer in call.answers)


def _reason(call: Call) -> str:
    """Return why a call failed, without the words of its outcome."""
    ended = call.end
    if isinstance(ended, ToolCompleted) or ended.message == NEVER_BEGAN:
        return ""
    if isinstance(ended, ToolDenied):
        return denial(call)[1]
    reason = (ended.message or "").removeprefix(f"{outcome(call)[0]}: ")
    return describe_error(reason, "") if reason else ""


def _took(call: Call) -> str:
    """Return the duration of a call as text, if it has done anything; of a look, if it was long."""
    took = call.end.duration_ms
    has_run = call.end.code != "cancelled" and not isinstance(call.end, ToolDenied)
    if took is None or not has_run or (is_quiet(call) and took < _LONG_LOOK_MS):
        return ""
    return format_duration(took)


def _signal(exit_code: int) -> str:
    """Return the name of the signal that ended a program, by the exit code of a shell."""
    try:
        return signal.Signals(exit_code - 128).name if exit_code > 128 else ""
    except ValueError:
        return ""


def _numbered(lines: Sequence[str]) -> Iterator[tuple[int, str, str]]:
    """The lines of a unified diff with their numbers in the file, of the new one if it has them."""
    old = new = 0
    for line in lines:
        if hunk := re.match(_HUNK, line):
            if new:
                yield 0, " ", "…"
            old, new = int(hunk[1]), int(hunk[2])
        elif not new and not old and line.startswith(("--- ", "+++ ")):
            continue
        elif line.startswith("-"):
            yield old, "-", line[1:]
            old += 1
        elif line.startswith("+"):
            yield new, "+", line[1:]
            new += 1
        elif line.startswith("\\"):  # the line before has no end
            yield 0, "\\", line[2:]
        else:
            yield new, " ", line[1:]
            old, new = old + 1, new + 1
