"""Describes events in words, and calls line by line, for any width and any colours."""

import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from agent_core.cli.figures import format_duration
from agent_core.cli.layout import SIGNS, Signs, cells, fitted, wrapped
from agent_core.cli.terminal import Part, Style
from agent_core.text import plural, printed, shortened, visible

LINES_OF_SUCCESS = 5
"""So many of the last lines of a command are shown where it has succeeded."""
LINES_OF_FAILURE = 15
LINES_OF_DIFF = 40

_LONGEST_MESSAGE = 2000
_LEAST_SUMMARY = 12
_LEAST_SAID = 8
_HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")
_QUIET = ("read", "search")
_NAMING = ("name", "worker_id", "agent_definition_id", "server_id", "step_id", "to", "child_run_id")

Line = list[Part]


class Call(Struct, frozen=True):
    """A call that runs.

    Attributes:
        name: of the tool.
        summary: its arguments in short.
        kind: kind of tool, in the words of the events.
        has_shown_diff: the question about it has shown its diff.
        confined: its confinement in words; empty without a sandbox.
    """

    name: str
    summary: str = ""
    kind: str = "other"
    has_shown_diff: bool = False
    confined: str = ""

    @property
    def box(self) -> str:
        """Return `sandboxed` or `outside the sandbox`; empty without a sandbox."""
        if not self.confined:
            return ""
        return "outside the sandbox" if self.confined.startswith("off") else "sandboxed"

    @property
    def is_quiet(self) -> bool:
        """It only looks: a line at its end is enough."""
        return self.kind in _QUIET


class CallLayout(Struct, frozen=True):
    """Layout of calls.

    Attributes:
        width: columns that a line may take.
        signs: the signs to use.
    """

    width: int
    signs: Signs = SIGNS

    def end(self, call: Call, event: str, payload: Mapping[str, Any]) -> Iterator[Line]:
        """Yield the lines of a call that has ended: its title, its outcome and its effects."""
        yield from self.headline(call, event, payload)
        yield from self._why(event, payload)
        yield from self.output(payload, is_failure=outcome(event, payload)[1] is Style.BAD)
        if not call.has_shown_diff:
            yield from self.diff(payload)

    def headline(self, call: Call, event: str, payload: Mapping[str, Any]) -> Iterator[Line]:
        """Yield the title and the outcome of a call that has ended."""
        words, style = outcome(event, payload)
        words = "" if words == "ok" and call.is_quiet else words
        facts = list(filter(None, [words, _took(event, payload), call.box]))
        dot = " · " if self.signs is SIGNS else " - "
        said = dot.join(facts)
        sign: Part = (f"{self.signs.call} ", style)
        room, taken = self.width - 2, max(len(said), _LEAST_SAID) + 2
        whole = cells(call.name) + 1 + cells(_plain(call.summary)) + taken
        fits = cells(call.name) + _LEAST_SUMMARY + taken <= room
        look = Style.DIM if style is Style.GOOD else style
        if whole <= room or (fits and call.is_quiet):
            yield [sign, *self._title(call, room - taken), (f"  {said}", look)]
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

    def plain_end(self, call: Call, event: str, payload: Mapping[str, Any]) -> Iterator[Line]:
        """Return the line of a call that has ended, for a screen that cannot draw."""
        words, style = outcome(event, payload)
        line = f"> {self._named(call)}" if call.is_quiet else f"  {call.name}"
        line += f" {words or 'ok'}"
        if took := _took(event, payload):
            line += f" ({took})"
        line += f", {call.box}" if call.box else ""
        if message := _reason(event, payload):
            line += f": {shortened(message, _LONGEST_MESSAGE)}".replace("\n", "\n      ")
        yield [(line, style)]
        yield from self.output(payload, is_failure=style is Style.BAD)
        if not call.has_shown_diff:
            yield from self.diff(payload)

    def _named(self, call: Call) -> str:
        return (
            call.name if call.summary in ("", call.name) else f"{call.name} {_plain(call.summary)}"
        )

    def _title(self, call: Call, room: int) -> Line:
        summary = "" if call.summary == call.name else _plain(call.summary)
        name = fitted(call.name, room, self.signs)
        left = room - cells(name) - 1
        title: Line = [(name, Style.BOLD)]
        return (
            [*title, (f" {fitted(summary, left, self.signs)}", Style.PLAIN)] if summary else title
        )

    def _why(self, event: str, payload: Mapping[str, Any]) -> Iterator[Line]:
        if message := _reason(event, payload):
            for line in shortened(message, _LONGEST_MESSAGE).splitlines():
                for part in wrapped(visible(line), self.width - 4):
                    yield [(f"    {part}", Style.PLAIN)]
        blocked = payload.get("blocked_by_sandbox") or ()
        for place in blocked:
            line = f"  blocked by the sandbox: {_plain(str(place))}"
            yield [(fitted(line, self.width, self.signs), Style.WARN)]

    def output(self, payload: Mapping[str, Any], *, is_failure: bool) -> Iterator[Line]:
        """The last lines of a command, and how many there are before them."""
        lines = printed(str(payload.get("output") or "")).splitlines()
        most = LINES_OF_FAILURE if is_failure else LINES_OF_SUCCESS
        shown = lines[-most:]
        hidden = int(payload.get("output_hidden_lines") or 0) + len(lines) - len(shown)
        if hidden or payload.get("output_truncated"):
            count = plural(hidden, "line")
            if payload.get("output_truncated"):
                count = f"more than {count}"
            yield [(f"  {self.signs.more} {count} before these", Style.DIM)]
        look = Style.PLAIN if is_failure else Style.DIM
        for line in shown:
            text = fitted(line.expandtabs(4), self.width - 4, self.signs)
            yield [(f"  {self.signs.bar} ", Style.DIM), (text, look)]

    def diff(
        self, payload: Mapping[str, Any], *, most: int | None = LINES_OF_DIFF
    ) -> Iterator[Line]:
        """Yield the numbered changes of a call, at most `most` lines; None: all known ones."""
        lines = str(payload.get("diff") or "").splitlines()
        rows = list(_numbered(lines))
        hidden = int(payload.get("diff_hidden_lines") or 0) + len(rows[most:] if most else ())
        digits = len(str(max((number for number, *_ in rows), default=0)))
        for number, sign, text in rows[:most]:
            look = {"+": Style.GOOD, "-": Style.BAD}.get(sign, Style.DIM)
            shown = fitted(text.expandtabs(4), self.width - digits - 5, self.signs)
            place = f"{number:>{digits}}" if number else " " * digits
            yield [(f"  {place} ", Style.DIM), (f"{sign} {shown}".rstrip(), look)]
        if hidden:
            count = plural(hidden, "more line")
            yield [(f"  {self.signs.more} {count} of the diff", Style.DIM)]


def name_of(payload: Mapping[str, Any]) -> str:
    """Return the name of the subject of an event; empty if it has none."""
    return next((str(payload[key]) for key in _NAMING if payload.get(key)), "")


def reason_of(payload: Mapping[str, Any]) -> str:
    """Return the reason of a failure, as its event has it."""
    error = payload.get("error")
    if isinstance(error, Mapping):
        return reason_of(error)  # pyright: ignore[reportUnknownArgumentType]
    parts = [payload.get("code"), payload.get("message") or error or payload.get("reason")]
    return ": ".join(str(part) for part in parts if part)


def outcome(event: str, payload: Mapping[str, Any]) -> tuple[str, Style]:
    """Return the outcome of a call in words, and their style."""
    code = str(payload.get("code") or "")
    if event == "tool_denied":
        return "denied", Style.BAD
    if code == "timeout":
        return "timed out", Style.BAD
    if code == "cancelled":
        return ("cancelled" if "duration_ms" in payload else "not run"), Style.WARN
    exit_code = payload.get("exit_code")
    if isinstance(exit_code, int):
        killed = f", killed by {_signal(exit_code)}" if _signal(exit_code) else ""
        return f"exit code {exit_code}{killed}", Style.BAD if exit_code else Style.GOOD
    if event == "tool_failed":
        return f"failed: {code}" if code else "failed", Style.BAD
    return "" if "diff" in payload else "ok", Style.GOOD


def _reason(event: str, payload: Mapping[str, Any]) -> str:
    """Return why a call failed, without the words of its outcome."""
    if event == "tool_completed":
        return ""
    return str(payload.get("message") or "").removeprefix(f"{outcome(event, payload)[0]}: ")


def _took(event: str, payload: Mapping[str, Any]) -> str:
    """Return the duration of a call as text, if it has done anything."""
    took = payload.get("duration_ms")
    if not isinstance(took, int | float) or payload.get("code") == "cancelled":
        return ""
    return "" if event == "tool_denied" else format_duration(took)


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
        if hunk := _HUNK.match(line):
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
        else:
            yield new, " ", line[1:]
            old, new = old + 1, new + 1


def _plain(text: str) -> str:
    return visible(text, one_line=True)
