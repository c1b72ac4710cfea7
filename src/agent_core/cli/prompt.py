"""Asks on the terminal whether a call may run. Whatever is no clear yes is a no."""

import asyncio
import re
import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain

from msgspec import Struct

from agent_core.cli.layout import cells, wrapped
from agent_core.cli.lines import AT_ONCE_S, InputLines
from agent_core.cli.terminal import Style, Terminal
from agent_core.permissions.questions import (
    BY_SESSION,
    NOBODY,
    UnattendedError,
    covered_by,
)
from agent_core.permissions.request import (
    THIS_CALL_ONLY,
    UNTIL_END,
    coverage_of,
    coverage_of_rule,
    rule_of,
    wide_of,
)
from agent_core.text import lines_of_diff, plural, shortened, visible
from agent_core.types import Decision, PermissionDecision, PermissionRequest

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
_KEYS = {
    "y": Decision.ALLOW_ONCE,
    "a": Decision.ALLOW_FOR_SESSION,
    "n": Decision.DENY,
}
_WIDE_KEYS = {
    Decision.ALLOW_READS: ("r", "all that only reads"),
    Decision.ALLOW_EDITS: ("d", "all edits"),
}
_HELP = {
    "y": "allow this call",
    "a": 'allow it, and all else that "a covers" names, until the session ends',
    "r": 'allow it, and all else that "r covers" names: commands that only read',
    "d": 'allow it, and all else that "d covers" names: edits of ordinary files',
    "n": "deny this call",
    "e": "deny it, with a reason that the model reads",
    "v": "page through the whole question: what was left out above, and the diff",
    "w": "show the rules that would allow it in all sessions, and add one to rules.toml",
}
_CUT = re.compile(r"… (\d+) more lines?")
"""Last line of a diff that was cut when it was made."""
_REASONS = {
    "sensitive": "this is a sensitive path",
    "outside_roots": "this is outside the project and the allowed folders",
    "program_home": "this belongs to the program itself",
    "outside_sandbox": "this runs outside of the sandbox",
}
_STRAY = (
    "denied: that is not an answer (1, 2 or 3), and no more answers are read; for content in"
    ' standard input use -, as in: soong-agent run "…" -'
)
_NO_ANSWER = "the line that was read is not an answer"
_LONGEST_VALUE = 4000
_ENDS_SHOWN = 2
_LONG_WORD_ROWS = 3
_LEAST_ROWS = 6
_INDENT = "    "


class TypedOnError(Exception):
    """A text was typed at a question that is no answer to it.

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
    """

    def __init__(
        self,
        terminal: Terminal,
        lines: InputLines,
        *,
        echoes: bool,
        turn: asyncio.Lock | None = None,
    ) -> None:
        self._terminal = terminal
        self._lines = lines
        self._echoes = echoes
        self.unanswered: list[PermissionRequest] = []
        self._turn = turn or asyncio.Lock()
        self._waiting: list[PermissionRequest] = []
        self._given_before: dict[str, PermissionDecision] = {}
        self._count_asked = 0

    async def __call__(self, request: PermissionRequest) -> PermissionDecision:
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

    async def _ask_line(self, request: PermissionRequest) -> PermissionDecision:
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
                self._terminal.line(_STRAY, Style.WARN)
                self._lines.end()
                self.unanswered.append(request)
                metadata = {"decided_by": NOBODY}
                return PermissionDecision(decision=decision, reason=_NO_ANSWER, metadata=metadata)
            if self._echoes:
                self._terminal.line(_CONFIRMATIONS[decision])
            return _answered(decision)

    def _settle(self, request: PermissionRequest, answer: PermissionDecision) -> None:
        """Give the same answer to the questions that wait for their turn and are covered by it."""
        if (coverage := coverage_of(request, answer.decision)) is None:
            return
        for other in self._waiting:
            is_of_session = other.session_id == request.session_id
            if is_of_session and coverage_of(other, answer.decision) == coverage:
                self._given_before[other.request_id] = PermissionDecision(
                    decision=answer.decision,
                    reason=covered_by(request.request_id),
                    metadata={"decided_by": BY_SESSION},
                )

    async def _ask_at_rest(self, request: PermissionRequest) -> PermissionDecision:
        """Ask a person who types nothing else; a text that is no answer returns to its line."""
        while True:
            async with self._terminal.question_at_rest(self._lines, request.tool_name):
                typed = self._lines.take_typed()
                if typed and self._terminal.give_back(typed):
                    continue
                try:
                    return await self._ask_person(request)
                except TypedOnError as error:
                    self._terminal.leave_line()
                    self._terminal.give_back(error.text)
                except asyncio.CancelledError:  # answered elsewhere, or the run is cancelled
                    self._terminal.line("no longer asked", Style.WARN)
                    raise

    def show(self, request: PermissionRequest) -> None:
        """Show all that is asked for, without asking."""
        self._show_title(request)
        for line in fact_lines(request):
            for part in self._terminal.wrap(line):
                self._terminal.line(part)
        for line in _diff_of(request):
            self._show_change(line)

    async def _ask_person(self, request: PermissionRequest) -> PermissionDecision:
        terminal = self._terminal
        if terminal.can_draw:  # separate it from earlier output
            terminal.line("")
        rules = _rules_of(request)
        is_remembered = _scope_beside_target(request) != THIS_CALL_ONLY
        choices = ["y once", *["a for the session"] * is_remembered]
        wide = _wide_of(request)
        choices += [f"{key} {what}" for key, what, _ in wide.values()]
        choices += ["n no", "e no, with a reason"]
        choices += ["w always, by a rule"] * bool(rules) + ["? help"]
        whole = self._show_question(request, choices)
        menu = self._menu(choices)
        while True:
            pressed = await self._press("> ", menu)
            key = pressed.strip().casefold()
            wider = next((each for each, (known, *_) in wide.items() if known == key), None)
            if decision := wider or _KEYS.get(key) or _ANSWERS.get(key):
                shown = decision
                if decision is Decision.ALLOW_FOR_SESSION and not is_remembered:
                    shown = Decision.ALLOW_ONCE
                terminal.line(_CONFIRMATIONS[shown])
                return _answered(decision)
            if key == "e":
                ask = partial(terminal.ask, "why not? ")
                reason = self._given(await self._lines.answer(ask)).strip()
                terminal.line(_CONFIRMATIONS[Decision.DENY])
                return _answered(Decision.DENY, reason or None)
            if self._terminal.keeps_text and _is_text(pressed, settle_s=self._lines.settle_s):
                raise TypedOnError(pressed)
            terminal.leave_line()
            if key == "w" and rules:
                if (chosen := await self._choose_rule(rules)) is not None:
                    said = _CONFIRMATIONS[chosen] if chosen in _WIDE_KEYS else "allowed"
                    terminal.line(f"{said}; adding the rule to rules.toml")
                    return _answered(chosen, always=True)
                terminal.leave_line()
            elif key == "v" and whole:
                await self._page(whole)
            elif key == "?":
                terminal.line(_explain(choices))
            else:
                terminal.line("that is none of the keys:", Style.WARN)

    def _show_question(self, request: PermissionRequest, choices: list[str]) -> list[str]:
        """Show as much of a question as fits, with its head; return all of it, if there is more.

        If there is more, or a diff, a choice to show it is added.
        """
        terminal, diff = self._terminal, _diff_of(request)
        see = "v the diff" if diff else "v the whole"
        head = self._show_title(request)
        frame = self._rows([*head, *self._menu([*choices, see])]) + 3
        room = max(terminal.rows - frame - (_LEAST_ROWS if diff else 0), _LEAST_ROWS)
        covers = [f"  a covers: {_scope_beside_target(request)}"]
        covers += [f"  {key} covers: {what}" for key, _, what in _wide_of(request).values()]
        blocks = [*fact_blocks(request), covers]
        parts = [[part for line in block for part in self._broken(line)] for block in blocks]
        shown = _cut(parts, room)
        for line in chain.from_iterable(shown[:-1]):
            terminal.line(line)
        rows = room - sum(map(len, shown)) + _LEAST_ROWS
        self._show_diff(diff, most=self._count_fitting(diff, max(rows, _LEAST_ROWS)))
        for line in shown[-1]:
            terminal.line(line)
        left_out: list[str] = []
        if shown != parts:  # pages are indented
            every = chain.from_iterable(blocks)
            left_out = [part for line in every for part in self._broken(line, indent=len(_INDENT))]
        if whole := [*left_out, *diff]:
            choices.insert(choices.index("e no, with a reason") + 1, see)
        return whole

    def _menu(self, choices: Sequence[str]) -> list[str]:
        return [f"  {line}" for line in _folded(choices, self._terminal.width - 2)]

    async def _press(self, question: str, menu: Sequence[str] = ()) -> str:
        """A key alone where the terminal can, a key and Enter elsewhere."""

        def ask() -> None:
            for line in menu:
                self._terminal.line(line)
            self._terminal.ask(question)

        return self._given(await self._lines.answer(ask, is_key=self._terminal.can_draw))

    def _given(self, answer: str | None) -> str:
        if answer is None:
            self._terminal.line("no answer", Style.WARN)
            raise UnattendedError
        return answer

    async def _choose_rule(self, rules: Mapping[str, "_OfferedRule"]) -> Decision | None:
        """Show the rule that each key would add to the file, and return the chosen answer."""
        terminal = self._terminal
        for key, offered in rules.items():
            title = f"  +++ rules.toml, {key} adds it" if len(rules) > 1 else "  +++ rules.toml"
            terminal.line(title, Style.DIM)
            for line in offered.text.splitlines():
                terminal.line(f"  +{line}", Style.GOOD)
            for part in terminal.wrap(f"  {offered.covers}"):
                terminal.line(part)
        choices = [f"{key} {offered.what}" for key, offered in rules.items()]
        for line in _folded([*choices, "any other key goes back"], terminal.width - 2):
            terminal.line(f"  {line}")
        chosen = rules.get((await self._press("> ")).strip().casefold())
        return chosen and chosen.decision

    async def _page(self, diff: Sequence[str]) -> None:
        rows, start = max(self._terminal.rows - 2, _LEAST_ROWS), 0
        while start < len(diff):
            end = start + self._count_fitting(diff[start:], rows)
            for line in diff[start:end]:
                self._show_change(line)
            if (left := _count_hidden(diff, end)) == 0 or end >= len(diff):
                return
            key = (
                (await self._press(f"{plural(left, 'more line')}: q ends, any other key goes on "))
                .strip()
                .casefold()
            )
            self._terminal.leave_line()
            if key == "q":
                return
            start = end

    def _show_title(self, request: PermissionRequest) -> list[str]:
        """Say which tool asks, and return the lines."""
        danger = ", dangerous" if request.dangerous else ""
        title = f"{request.tool_name} asks for permission ({request.permission}{danger})"
        if (total := self._count_asked + len(self._waiting)) > 1:
            title += f", {self._count_asked + 1} of {total}"
        head = self._terminal.wrap(title)
        for line in head:
            self._terminal.line(line, Style.BOLD)
        return head

    def _broken(self, line: str, *, indent: int = 0) -> list[str]:
        """Return the lines that a fact takes on the screen; words of several lines are broken."""
        room = self._terminal.width - 1 - indent
        parts = wrapped(line, room, breaks=False)
        if any(cells(part) > _LONG_WORD_ROWS * room for part in parts):
            parts = wrapped(line, room)
        return parts

    def _show_diff(self, diff: Sequence[str], *, most: int) -> None:
        for line in diff[:most]:
            self._show_change(shortened(line, _LONGEST_VALUE))
        if len(diff) > most:
            hidden = plural(_count_hidden(diff, most), "more line")
            self._terminal.line(f"    … {hidden} not shown, v shows the whole", Style.WARN)

    def _rows(self, lines: Sequence[str]) -> int:
        """Return the rows of the screen that lines take."""
        return sum(max(-(-cells(visible(line)) // self._terminal.width), 1) for line in lines)

    def _count_fitting(self, diff: Sequence[str], rows: int) -> int:
        """Return how many lines of a diff fit, one at least."""
        for count, line in enumerate(diff):
            rows -= self._rows([f"{_INDENT}{shortened(line, _LONGEST_VALUE)}"])
            if rows < 0:
                return max(count, 1)
        return len(diff)

    def _show_change(self, line: str) -> None:
        style = {"+": Style.GOOD, "-": Style.BAD}.get(line[:1], Style.DIM)
        self._terminal.line(f"{_INDENT}{line}", style)


def _is_text(pressed: str, *, settle_s: float) -> bool:
    """Return whether keys at a question belong to a text: several letters, or one over a draft."""
    text = "".join(pressed.split())
    return text.isprintable() and (len(text) > 1 or (bool(text) and settle_s > AT_ONCE_S))


def _explain(choices: Sequence[str]) -> str:
    """Explain the keys of a question; diff and rule keys only if it has them."""
    absent = {"r", "d", "v", "w"} - {choice[0] for choice in choices}
    lines = [f"  {key}  {what}" for key, what in _HELP.items() if key not in absent]
    return "\n".join([*lines, "  1, 2, 3 are y, a, n; Ctrl-C ends the run"])


def _answered(
    decision: Decision, reason: str | None = None, *, always: bool = False
) -> PermissionDecision:
    metadata = {"decided_by": "terminal"} | ({"always": True} if always else {})
    return PermissionDecision(decision=decision, reason=reason, metadata=metadata)


def _scope_beside_target(request: PermissionRequest) -> str:
    """Return the coverage of an answer for the session, since target and folder are shown above."""
    scope = request.target_scope or THIS_CALL_ONLY
    exactly = f" as exactly: {request.metadata.get('target')} in {shlex.quote(request.cwd)}"
    if scope.endswith(exactly):
        scope = f"{scope.removesuffix(exactly)}, with exactly these words and in this folder"
    return visible(scope, one_line=True)


def _wide_of(request: PermissionRequest) -> dict[Decision, tuple[str, str, str]]:
    """Return the wider answer that a question takes: its key, its name, its coverage."""
    offered = wide_of(request)
    if offered is None or offered[0] not in _WIDE_KEYS:
        return {}
    decision, covers = offered
    key, name = _WIDE_KEYS[decision]
    return {decision: (key, name, visible(covers, one_line=True))}


class _OfferedRule(Struct, frozen=True):
    """A rule that a question offers to save: its text, its key, and its coverage in words."""

    decision: Decision
    text: str
    what: str
    covers: str


def _rules_of(request: PermissionRequest) -> dict[str, _OfferedRule]:
    """Return the rules that a question offers to save, by their keys."""
    rules: dict[str, _OfferedRule] = {}
    if text := rule_of(request, Decision.ALLOW_ONCE):
        what = "add it, and allow this call"
        covers = f"in every session: {coverage_of_rule(text)}"
        rules["y"] = _OfferedRule(Decision.ALLOW_ONCE, text, what, covers)
    for decision, (key, name, covers) in _wide_of(request).items():
        if text := rule_of(request, decision):
            covers = f"in every session: {covers.removesuffix(UNTIL_END)}"
            rules[key] = _OfferedRule(decision, text, f"add it, and allow {name}", covers)
    return rules


def _cut(parts: Sequence[Sequence[str]], most: int) -> list[list[str]]:
    """Return the parts in about so many lines: of the longest, the beginning and the end."""
    shown = [[*part] for part in parts]
    for part in sorted(shown, key=len, reverse=True):
        over = sum(map(len, shown)) - most
        kept = max(len(part) - over - 1, 2 * _ENDS_SHOWN)
        if over <= 0 or kept >= len(part) - 1:
            break
        left = plural(len(part) - kept, "line")
        part[kept - _ENDS_SHOWN : -_ENDS_SHOWN] = [f"    … {left} not shown, v shows the whole"]
    return shown


def _diff_of(request: PermissionRequest) -> list[str]:
    return lines_of_diff(str(request.metadata.get("diff") or ""))


def _count_hidden(diff: Sequence[str], shown: int) -> int:
    """Return the number of lines after the shown ones, including those cut from the diff."""
    cut = _CUT.match(diff[-1])
    return max(len(diff) - shown, 0) - bool(cut) + (int(cut[1]) if cut else 0)


def _folded(words: Sequence[str], width: int) -> list[str]:
    """The words, as many on each line as fit."""
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + 3 + len(word) <= width:
            lines[-1] += f"   {word}"
        else:
            lines.append(word)
    return lines


def parse_decision(line: str | None) -> Decision:
    """Return the decision of an answer; None is the end of the input."""
    return _ANSWERS.get((line or "").strip().casefold(), Decision.DENY)


def is_answer(line: str) -> bool:
    """Return whether a line is one of the answers to a question."""
    return line.strip().casefold() in _ANSWERS


def fact_blocks(request: PermissionRequest) -> list[list[str]]:
    """Return the lines of each fact; further lines are marked, and cannot pass for another fact."""
    blocks: list[list[str]] = []
    for name, value in request_facts(request):
        first, *rest = (visible(line, one_line=True) for line in value.split("\n"))
        blocks.append([f"  {name}: {first}", *(f"    | {line}" for line in rest)])
    return blocks


def fact_lines(request: PermissionRequest) -> list[str]:
    """Return all facts as lines."""
    return [*chain.from_iterable(fact_blocks(request))]


def request_facts(request: PermissionRequest) -> list[tuple[str, str]]:
    """Return the facts a person needs to decide, most important first."""
    metadata = request.metadata
    reason = str(metadata.get("reason") or "")
    target = str(metadata.get("target") or "")
    agent = request.agent_role
    if request.parent_run_id:
        definition = metadata.get("agent_definition")
        agent += f" {definition}," if definition else ""
        agent += f" {request.agent_id}, child of run {request.parent_run_id}"
    hook = request.hook_summary or {}
    facts = [
        ("target", str(metadata.get("lines") or target)),
        ("reason", _REASONS.get(reason, reason)),
        ("paths", ", ".join(metadata.get("places") or ())),
        ("asked by", str(metadata.get("asked_by") or "")),
        ("host", request.network_host or ""),
        ("arguments", "" if request.args_summary == target else request.args_summary),
        ("in", request.cwd),
        ("sandbox", str(metadata.get("sandbox") or "")),
        ("environment", request.env_summary),
        ("agent", agent),
        ("its task", str(metadata.get("agent_task") or "")),
        # Of a hook or an extension that let the call pass; empty if it gave no reason.
        ("hook", ": ".join(_texts_of(hook, "command", "reason")) if hook.get("reason") else ""),
    ]
    return [(name, value) for name, value in facts if value]


def _texts_of(summary: Mapping[str, object], *keys: str) -> list[str]:
    return [str(summary[key]) for key in keys if summary.get(key)]
