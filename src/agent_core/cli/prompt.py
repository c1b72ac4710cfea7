"""Asks on the terminal whether a call may run. Whatever is no clear yes is a no."""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from msgspec import Struct

from agent_core.cli.layout import ASCII_SIGNS, SIGNS, cells, fitted
from agent_core.cli.lines import ESCAPE, REST_S, InputLines
from agent_core.cli.question import (
    Choice,
    OfferedRule,
    choices_of,
    fact_lines,
    help_lines,
    is_remembered,
    risk_of,
    rows_of,
    rules_of,
    what_lines,
    where_line,
)
from agent_core.cli.terminal import Style, Terminal
from agent_core.permissions.answers import BY_SESSION, NOBODY, UnattendedError, covered_by
from agent_core.permissions.request import THIS_CALL_ONLY, WIDE_DECISIONS, coverage_of
from agent_core.text import lines_of_diff, plural, shortened, visible
from agent_core.types import Decision

if TYPE_CHECKING:
    from agent_core.types import PermissionDecision, PermissionRequest

_ANSWERS = {
    "1": Decision.ALLOW_ONCE,
    "allow once": Decision.ALLOW_ONCE,
    "2": Decision.ALLOW_FOR_SESSION,
    "allow for session": Decision.ALLOW_FOR_SESSION,
    "3": Decision.DENY,
    "deny": Decision.DENY,
}
_CONFIRMATIONS = {
    Decision.ALLOW_ONCE: "allowed once",
    Decision.ALLOW_FOR_SESSION: "allowed for the session",
    Decision.ALLOW_READS: "allowed, with every command that only reads",
    Decision.ALLOW_EDITS: "allowed, with every edit",
    Decision.DENY: "denied",
}
_CUT = r"… (\d+) more lines?"
"""Last line of a diff that was cut when it was made."""
_STRAY = (
    "denied: that is not an answer (1, 2 or 3), and no more answers are read; for content in"
    ' standard input use -, as in: soong-agent run "…" -'
)
_STRAY_LETTER = (
    "denied: letters are keys for a terminal; on standard input, write 1 to allow once,"
    " 2 to allow for the session, 3 to deny. No more answers are read"
)
_NO_ANSWER = "the line that was read is not 1, 2 or 3"
_LETTERS = frozenset(("a", "allow", "n", "no", "y", "yes"))
_LONGEST_VALUE = 4000
_ENDS_SHOWN = 2
_LEAST_ROWS = 6
_INDENT = "    "
_PROMPT = " > "


class _Line(Struct, frozen=True):
    """A line of a question, and the rows that it takes on the screen."""

    rows: Sequence[str]
    style: Style = Style.PLAIN


class TypedOnError(Exception):
    """A text was typed at a question that is not an answer to it.

    Attributes:
        text: the text.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class TerminalPrompt:
    """The permission callback of the command line; one question at a time.

    Attributes:
        unanswered: the requests that could not be put to anyone, or got no answer that is one.

    Args:
        terminal: where to ask.
        lines: where to read from.
        echoes: repeat the answer, for input that is not seen being typed.
        turn: shared with whatever else asks there.
        cancel: cancels the run that asks, for Escape; returns whether there was one.
    """

    def __init__(
        self,
        terminal: Terminal,
        lines: InputLines,
        *,
        echoes: bool,
        turn: asyncio.Lock | None = None,
        cancel: Callable[[], bool] | None = None,
    ) -> None:
        self._terminal = terminal
        self._cancel = cancel
        self._lines = lines
        self._echoes = echoes
        self.unanswered: list[PermissionRequest] = []
        self._turn = turn or asyncio.Lock()
        self._waiting: list[PermissionRequest] = []
        self._given_before: dict[str, PermissionDecision] = {}
        self._count_asked = 0

    async def __call__(self, request: "PermissionRequest") -> "PermissionDecision":
        """Show the request and get an answer: a key of a person, or a line of a pipe or file.

        Raises:
            UnattendedError: the input has ended.
        """
        self._waiting.append(request)
        try:
            async with self._turn:
                if given := self._given_before.pop(request.request_id, None):
                    return given  # by an answer to another question, which covers this one
                ask = self._ask_at_rest if self._lines.is_terminal else self._ask_line
                answer = await ask(request)
                self._count_asked += 1
        finally:
            self._waiting.remove(request)
            if not self._waiting:
                self._count_asked = 0
        self._settle(request, answer)
        return answer

    async def _ask_line(self, request: "PermissionRequest") -> "PermissionDecision":
        """Ask for a line of a pipe or a file.

        Raises:
            UnattendedError: the input has ended.
        """
        async with self._terminal.question_at_rest(self._lines, request.tool_name):
            self.show(request)
            scope = request.target_scope or THIS_CALL_ONLY
            choices = f"  1 allow once   2 allow for session ({scope})   3 deny"
            self._terminal.line(visible(choices, one_line=True))
            self._terminal.ask("> ")
            line = await self._lines.next()
            if line is None:
                self.unanswered.append(request)
            decision = parse_decision(self._given(line))
            if line and line.strip() and not is_answer(line):
                is_letter = line.strip().casefold() in _LETTERS
                self._terminal.line(_STRAY_LETTER if is_letter else _STRAY, Style.WARN)
                self._lines.end()
                self.unanswered.append(request)
                return _answered(decision, _NO_ANSWER, by=NOBODY)
            if self._echoes:
                self._terminal.line(_CONFIRMATIONS[decision])
            return _answered(decision)

    def _settle(self, request: "PermissionRequest", answer: "PermissionDecision") -> None:
        """Give the same answer to the questions that wait for their turn and are covered by it."""
        if (coverage := coverage_of(request, answer.decision)) is None:
            return
        for other in self._waiting:
            is_of_session = other.session_id == request.session_id
            if is_of_session and coverage_of(other, answer.decision) == coverage:
                reason = covered_by(request.request_id)
                given = _answered(answer.decision, reason, by=BY_SESSION)
                self._given_before[other.request_id] = given

    async def _ask_at_rest(self, request: "PermissionRequest") -> "PermissionDecision":
        """Ask a person who types nothing else; a text that is no answer returns to its line."""
        while True:
            async with self._terminal.question_at_rest(self._lines, request.tool_name):
                typed = self._lines.take_typed()
                if typed and self._terminal.give_back(typed):
                    continue
                self._terminal.begin_question()
                try:
                    return await self._ask_person(request)
                except TypedOnError as error:
                    self._end(request)
                    self._terminal.give_back(error.text)
                except asyncio.CancelledError:  # answered elsewhere, or the run is cancelled
                    if not self._terminal.end_question():
                        self._terminal.line("no longer asked", Style.WARN)
                    raise

    def _end(self, request: "PermissionRequest", said: str = "", style: Style = Style.DIM) -> None:
        """Take the question off the screen, and leave a line with its subject and the answer.

        Where the screen cannot be drawn on, the question stays, and the answer follows the keys.
        """
        terminal = self._terminal
        if not terminal.end_question():
            terminal.line(said, style) if said else terminal.leave_line()
        elif said:
            signs = SIGNS if terminal.has_signs else ASCII_SIGNS
            first, *more = what_lines(request)
            room = max(terminal.width - cells(said) - 4, terminal.width // 2)
            subject = fitted(f"{first} {signs.more}" if more else first, room, signs)
            terminal.parts((subject, Style.BOLD), (f"  {said}", style))

    def show(self, request: "PermissionRequest") -> None:
        """Show all that is asked for, without asking."""
        title = f"{request.tool_name} asks for permission ({risk_of(request)})"
        if (total := self._count_asked + len(self._waiting)) > 1:
            title += f", {self._count_asked + 1} of {total}"
        self._show([_Line(self._rows([title]), Style.BOLD)])
        self._show([_Line(self._rows(fact_lines(request))), *self._diff_lines(request)])

    async def _ask_person(self, request: "PermissionRequest") -> "PermissionDecision":
        terminal = self._terminal
        rules, choices = rules_of(request), choices_of(request)
        shown, whole = self._question_lines(request, choices)
        if terminal.can_draw:  # separate it from earlier output
            shown.insert(0, _Line([""]))
        by_key = _decisions(request, choices)
        menu = self._menu(choices)
        while True:
            pressed = await self._press(menu, shown)
            shown = []
            key = pressed.strip().casefold()
            if decision := by_key.get(key):
                meant = decision
                if decision is Decision.ALLOW_FOR_SESSION and not is_remembered(request):
                    meant = Decision.ALLOW_ONCE
                self._end(request, _CONFIRMATIONS[meant], _style_of(meant))
                return _answered(decision)
            if key == "e":
                if (reason := await self._ask_reason()) is not None:
                    self._end(request, _CONFIRMATIONS[Decision.DENY], _style_of(Decision.DENY))
                    return _answered(Decision.DENY, reason or None)
                continue
            if self._terminal.keeps_text and _is_text(pressed, settle_s=self._lines.settle_s):
                raise TypedOnError(pressed)
            terminal.leave_line()
            await self._heed_escape(key)
            if key == "w" and rules:
                if (chosen := await self._choose_rule(rules)) is not None:
                    said = _CONFIRMATIONS[chosen] if chosen in WIDE_DECISIONS else "allowed"
                    self._end(request, f"{said}; adding the rule to rules.toml")
                    return _answered(chosen, always=True)
                terminal.leave_line()
            elif key == "v" and whole:
                shown = await self._page(whole)
            elif key == "?":
                rows = self._rows(help_lines(request, choices, may_cancel=self._cancel is not None))
                shown = await self._page([_Line([row]) for row in rows])
            else:
                shown = [_Line(["that is not one of the keys:"], Style.WARN)]

    async def _ask_reason(self) -> str | None:
        """Return the reason for a denial; None: the person went back to the question."""
        terminal, lines = self._terminal, self._lines
        ask = partial(terminal.ask, "why not? ")
        if not terminal.can_draw:
            return self._given(await lines.answer(ask)).strip()
        terminal.leave_line()
        reason = self._given(await lines.edit(ask, terminal.retype))
        if reason != ESCAPE:
            return reason.strip()
        terminal.leave_line()
        return None

    def _question_lines(
        self, request: "PermissionRequest", choices: list[Choice]
    ) -> tuple[list[_Line], list[_Line]]:
        """Return as much of a question as fits, and all of what does not fit, for `v`.

        If something does not fit, the choice to show it is added.
        """
        terminal, diff = self._terminal, self._diff_lines(request)
        view = Choice("v", "view")
        menu = self._menu([*choices, view])
        room = max(terminal.rows - len(menu) - 2 - (_LEAST_ROWS if diff else 0), _LEAST_ROWS)
        what, where = what_lines(request), where_line(request)
        if (total := self._count_asked + len(self._waiting)) > 1:
            what[0] = f"({self._count_asked + 1} of {total}) {what[0]}"
        parts = [self._rows(what), self._rows([where] if where else [])]
        cut = _cut(parts, room)
        styled = zip(cut, (Style.BOLD, Style.WARN), strict=True)
        shown = [_Line([row], style) for rows, style in styled for row in rows]
        fitting = _count_fitting(diff, max(room - len(shown), 0) + _LEAST_ROWS)
        shown += diff[:fitting]
        if len(diff) > fitting:
            hidden = plural(_count_hidden(diff, fitting), "more line")
            shown.append(_Line([f"    … {hidden} not shown, v shows the whole"], Style.WARN))
        left_out = chain.from_iterable(parts) if cut != parts else ()
        whole = [*(_Line([row]) for row in left_out), *(diff if len(diff) > fitting else ())]
        if whole:
            choices.insert(-1, view)
        return shown, whole

    def _menu(self, choices: Sequence[Choice]) -> list[str]:
        """Return the lines of the keys, which begin at the left edge, as no other line does."""
        between = "  " if self._terminal.can_draw else "; "  # for screen readers
        words = [f"{choice.key} {choice.label}" for choice in choices]
        return _folded(words, self._terminal.width - len(_PROMPT) - 1, between)

    async def _press(self, menu: Sequence[str], before: Sequence[_Line] = ()) -> str:
        """Show lines and the keys; return a key alone where the terminal can, else a line.

        A key counts as soon as the first of the lines is on the screen.
        """
        terminal, is_again = self._terminal, False

        def ask() -> None:
            nonlocal is_again
            if is_again:  # the shell has written since
                terminal.begin_question()
            is_again = True
            self._show(before)
            if terminal.question_rows() + len(menu) > terminal.rows:  # this stays, as it is
                terminal.begin_question()
            *lines, last = menu
            for line in lines:
                terminal.line(line)
            terminal.ask(f"{last}{_PROMPT}")

        return self._given(await self._lines.answer(ask, is_key=self._terminal.can_draw))

    async def _heed_escape(self, key: str) -> None:
        """Cancel the run if the key is Escape, and wait until it withdraws the question."""
        if key == ESCAPE and self._cancel is not None and self._cancel():
            await asyncio.Event().wait()

    def _given(self, answer: str | None) -> str:
        if answer is None:
            self._terminal.line("no answer", Style.WARN)
            raise UnattendedError
        return answer

    async def _choose_rule(self, rules: Mapping[str, OfferedRule]) -> Decision | None:
        """Show the rule that each key would add to the file, and return the chosen answer."""
        shown: list[_Line] = []
        for key, offered in rules.items():
            title = f"  +++ rules.toml, {key} adds it" if len(rules) > 1 else "  +++ rules.toml"
            added = [f"  +{line}" for line in offered.text.splitlines()]
            shown += [
                _Line([title], Style.DIM),
                _Line(self._rows(added), Style.GOOD),
                _Line(self._rows([f"  {offered.covers}"])),
            ]
        choices = [f"{key} {offered.what}" for key, offered in rules.items()]
        room = self._terminal.width - len(_PROMPT) - 1
        menu = _folded([*choices, "any other key goes back"], room)
        chosen = rules.get((await self._press(menu, shown)).strip().casefold())
        return chosen and chosen.decision

    async def _page(self, lines: Sequence[_Line]) -> Sequence[_Line]:
        """Show lines, a screen at a time; return the last screen's, which are not shown yet."""
        room, start = max(self._terminal.rows - 2, _LEAST_ROWS), 0
        while True:
            end = start + _count_fitting(lines[start:], room)
            if (left := _count_hidden(lines, end)) == 0 or end >= len(lines):
                return lines[start:]
            menu = [f"{plural(left, 'more line')}:", "q ends,", "any other key continues"]
            menu = _folded(menu, self._terminal.width - len(_PROMPT) - 1, " ")
            key = (await self._press(menu, lines[start:end])).strip().casefold()
            self._terminal.leave_line()
            if key in {"q", ESCAPE}:
                return []
            start = end

    def _show(self, lines: Sequence[_Line]) -> None:
        for line in lines:
            for row in line.rows:
                self._terminal.line(row, line.style)

    def _rows(self, lines: Sequence[str]) -> list[str]:
        width = self._terminal.width if self._terminal.is_watched else None
        return [row for line in lines for row in rows_of(line, width)]

    def _diff_lines(self, request: "PermissionRequest") -> list[_Line]:
        """Return the lines of the diff of a question."""
        lines: list[_Line] = []
        for line in lines_of_diff(str(request.metadata.get("diff") or "")):
            style = {"+": Style.GOOD, "-": Style.BAD}.get(line[:1], Style.DIM)
            shown = f"{_INDENT}{shortened(line, _LONGEST_VALUE)}"
            lines.append(_Line(self._rows([shown]), style))
        return lines


def _is_text(pressed: str, *, settle_s: float) -> bool:
    """Return whether keys at a question belong to a text: several letters, or one over a draft."""
    text = "".join(pressed.split())
    return text.isprintable() and (len(text) > 1 or (bool(text) and settle_s >= REST_S))


def _decisions(request: "PermissionRequest", choices: Sequence[Choice]) -> dict[str, Decision]:
    """Return what each key and word decides for a person at a terminal."""
    decisions = _ANSWERS | {choice.key: choice.decision for choice in choices if choice.decision}
    if not is_remembered(request):
        decisions["a"] = Decision.ALLOW_FOR_SESSION  # of this call only
        del decisions["2"]  # of two choices, the second looks like the denial
    return decisions


def _style_of(decision: Decision) -> Style:
    return Style.WARN if decision is Decision.DENY else Style.DIM


def _answered(
    decision: Decision, reason: str | None = None, *, by: str = "terminal", always: bool = False
) -> "PermissionDecision":
    from agent_core.types import PermissionDecision  # noqa: PLC0415 - many runs ask nothing

    metadata = {"decided_by": by} | ({"always": True} if always else {})
    return PermissionDecision(decision=decision, reason=reason, metadata=metadata)


def _cut(parts: Sequence[Sequence[str]], most: int) -> list[list[str]]:
    """Return the parts, shortened to about this many lines: long ones lose their middle."""
    shown = [[*part] for part in parts]
    for part in sorted(shown, key=len, reverse=True):
        over = sum(map(len, shown)) - most
        kept = max(len(part) - over - 1, 2 * _ENDS_SHOWN)
        if over <= 0 or kept >= len(part) - 1:
            break
        left = plural(len(part) - kept, "line")
        part[kept - _ENDS_SHOWN : -_ENDS_SHOWN] = [f"    … {left} not shown, v shows the whole"]
    return shown


def _count_hidden(lines: Sequence[_Line], shown: int) -> int:
    """Return the number of lines after the shown ones, including those cut from a diff."""
    cut = re.match(_CUT, lines[-1].rows[0].strip())
    return max(len(lines) - shown, 0) - bool(cut) + (int(cut[1]) if cut else 0)


def _count_fitting(lines: Sequence[_Line], rows: int) -> int:
    """Return how many lines fit, one at least."""
    for count, line in enumerate(lines):
        rows -= len(line.rows)
        if rows < 0:
            return max(count, 1)
    return len(lines)


def _folded(words: Sequence[str], width: int, between: str = "   ") -> list[str]:
    """The words, as many on each line as fit."""
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + len(between) + len(word) <= width:
            lines[-1] += f"{between}{word}"
        else:
            lines.append(word)
    return lines


def parse_decision(line: str | None) -> Decision:
    """Return the decision of an answer; None is the end of the input."""
    return _ANSWERS.get((line or "").strip().casefold(), Decision.DENY)


def is_answer(line: str) -> bool:
    """Return whether a line is one of the answers to a question."""
    return line.strip().casefold() in _ANSWERS
