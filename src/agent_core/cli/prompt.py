"""Asks on the terminal whether a call may run. Whatever is no clear yes is a no."""

import asyncio
import re
import shlex
from collections.abc import Sequence
from functools import partial

from agent_core.cli.layout import cells
from agent_core.cli.lines import AT_ONCE_S, InputLines
from agent_core.cli.terminal import Style, Terminal
from agent_core.permissions.questions import UnattendedError
from agent_core.permissions.request import THIS_CALL_ONLY
from agent_core.text import plural, shortened, visible
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
    Decision.DENY: "denied",
}
_KEYS = {
    "y": Decision.ALLOW_ONCE,
    "a": Decision.ALLOW_FOR_SESSION,
    "n": Decision.DENY,
}
_HELP = {
    "y": "allow this call",
    "a": 'allow it, and all else that "a covers" names, until the session ends',
    "n": "deny this call",
    "e": "deny it, with a reason that the model reads",
    "v": "page through the whole diff",
    "w": "show the rule, and add it to rules.toml, for all sessions",
}
_CUT = re.compile(r"… (\d+) more lines?")
"""How a diff ends that was cut when it was made."""
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
_LONGEST_VALUE = 4000
_MOST_DIFF_LINES = 200
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

    async def __call__(self, request: PermissionRequest) -> PermissionDecision:
        """Show the request and get an answer: a key of a person, or a line of a pipe or file.

        Raises:
            UnattendedError: the input has ended.
        """
        if self._lines.is_terminal:
            async with self._turn:
                return await self._ask_at_rest(request)
        async with self._turn, self._terminal.question_at_rest(self._lines, request.tool_name):
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
            elif self._echoes:
                self._terminal.line(_CONFIRMATIONS[decision])
            return _answered(decision)

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
        """Show what is asked for, without asking."""
        self._show_facts(request)
        self._show_diff(_diff_of(request), most=_MOST_DIFF_LINES)

    async def _ask_person(self, request: PermissionRequest) -> PermissionDecision:
        terminal = self._terminal
        if terminal.can_draw:  # set off from what happened before
            terminal.line("")
        rule = str(request.metadata.get("rule") or "")
        diff = _diff_of(request)
        scope = _scope_beside_target(request)
        is_remembered = scope != THIS_CALL_ONLY
        covers = terminal.wrap(f"  a covers: {scope}")
        choices = ["y once", *["a for the session"] * is_remembered, "n no", "e no, with a reason"]
        choices += ["v the diff"] * bool(diff) + ["w always, by a rule"] * bool(rule) + ["? help"]
        menu = [f"  {line}" for line in _folded(choices, terminal.width - 2)]
        # The head of the question stays on the screen: it says what is to be done.
        frame = self._rows([*self._show_facts(request), *covers, *menu]) + 3
        rows = max(terminal.rows - frame, _LEAST_ROWS)
        self._show_diff(diff, most=self._count_fitting(diff, rows))
        for line in covers:
            terminal.line(line)
        while True:
            pressed = await self._press("> ", menu)
            key = pressed.strip().casefold()
            if decision := _KEYS.get(key) or _ANSWERS.get(key):
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
            if key == "w" and rule:
                if await self._agrees_to(rule):
                    terminal.line("allowed; adding the rule to rules.toml")
                    return _answered(Decision.ALLOW_ONCE, always=True)
                terminal.leave_line()
            elif key == "v" and diff:
                await self._page(diff)
            elif key == "?":
                terminal.line(_explain(choices))
            else:
                terminal.line("that is none of the keys:", Style.WARN)

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

    async def _agrees_to(self, rule: str) -> bool:
        """Show what would be added to the file of rules, and ask whether it should be."""
        self._terminal.line("  +++ rules.toml", Style.DIM)
        for line in rule.splitlines():
            self._terminal.line(f"  +{line}", Style.GOOD)
        self._terminal.line("  y add it, and allow this call   any other key goes back")
        return (await self._press("> ")).strip().casefold() == "y"

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

    def _show_facts(self, request: PermissionRequest) -> list[str]:
        """Say what is asked for, and return the lines."""
        danger = ", dangerous" if request.dangerous else ""
        title = f"{request.tool_name} asks for permission ({request.permission}{danger})"
        facts = [
            f"  {name}: {shortened(visible(value, one_line=True), _LONGEST_VALUE)}"
            for name, value in request_facts(request)
        ]
        head = self._terminal.wrap(title)
        lines = [line for fact in facts for line in self._terminal.wrap(fact)]
        for line in head:
            self._terminal.line(line, Style.BOLD)
        for line in lines:
            self._terminal.line(line)
        return [*head, *lines]

    def _show_diff(self, diff: Sequence[str], *, most: int) -> None:
        for line in diff[:most]:
            self._show_change(line)
        if len(diff) > most:
            hidden = _count_hidden(diff, most)
            self._terminal.line(f"    … {plural(hidden, 'more line')} not shown", Style.WARN)

    def _rows(self, lines: Sequence[str]) -> int:
        """How much of the screen they take."""
        return sum(max(-(-cells(visible(line)) // self._terminal.width), 1) for line in lines)

    def _count_fitting(self, diff: Sequence[str], rows: int) -> int:
        """How many lines of a diff fit, one at least."""
        for count, line in enumerate(diff):
            rows -= self._rows([f"{_INDENT}{shortened(line, _LONGEST_VALUE)}"])
            if rows < 0:
                return max(count, 1)
        return len(diff)

    def _show_change(self, line: str) -> None:
        style = {"+": Style.GOOD, "-": Style.BAD}.get(line[:1], Style.DIM)
        self._terminal.line(f"{_INDENT}{shortened(line, _LONGEST_VALUE)}", style)


def _is_text(pressed: str, *, settle_s: float) -> bool:
    """Return whether keys at a question belong to a text: several letters, or one over a draft."""
    text = "".join(pressed.split())
    return text.isprintable() and (len(text) > 1 or (bool(text) and settle_s > AT_ONCE_S))


def _explain(choices: Sequence[str]) -> str:
    """What the keys of a question do; of the diff and of a rule only where it has them."""
    absent = {"v", "w"} - {choice[0] for choice in choices}
    lines = [f"  {key}  {what}" for key, what in _HELP.items() if key not in absent]
    return "\n".join([*lines, "  1, 2, 3 are y, a, n; Ctrl-C ends the run"])


def _answered(
    decision: Decision, reason: str | None = None, *, always: bool = False
) -> PermissionDecision:
    metadata = {"decided_by": "terminal"} | ({"always": True} if always else {})
    return PermissionDecision(decision=decision, reason=reason, metadata=metadata)


def _scope_beside_target(request: PermissionRequest) -> str:
    """What an answer for the session covers, where the target and its folder are shown above."""
    scope = request.target_scope or THIS_CALL_ONLY
    exactly = f" as exactly: {request.metadata.get('target')} in {shlex.quote(request.cwd)}"
    if scope.endswith(exactly):
        scope = f"{scope.removesuffix(exactly)}, with exactly these words and in this folder"
    return visible(scope, one_line=True)


def _diff_of(request: PermissionRequest) -> list[str]:
    return str(request.metadata.get("diff") or "").splitlines()


def _count_hidden(diff: Sequence[str], shown: int) -> int:
    """How many lines follow those that are shown, with those that the diff was cut by."""
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
    """What an answer means; None is the end of the input."""
    return _ANSWERS.get((line or "").strip().casefold(), Decision.DENY)


def is_answer(line: str) -> bool:
    """Whether a line is one of the answers to a question."""
    return line.strip().casefold() in _ANSWERS


def request_facts(request: PermissionRequest) -> list[tuple[str, str]]:
    """What a person needs to know to decide, most important first."""
    metadata = request.metadata
    reason = str(metadata.get("reason") or "")
    target = str(metadata.get("target") or "")
    agent = request.agent_role
    if request.parent_run_id:
        agent += f" {request.agent_id}, child of run {request.parent_run_id}"
    hook = request.hook_summary or {}
    facts = [
        ("target", target),
        ("reason", _REASONS.get(reason, reason)),
        ("paths", ", ".join(metadata.get("places") or ())),
        ("asked by", str(metadata.get("asked_by") or "")),
        ("host", request.network_host or ""),
        ("arguments", "" if request.args_summary == target else request.args_summary),
        ("in", request.cwd),
        ("sandbox", str(metadata.get("sandbox") or "")),
        ("environment", request.env_summary),
        ("agent", agent),
        # Of a hook that let the call pass; empty if it gave no reason.
        ("hook", f"{hook.get('command')}: {hook['reason']}" if hook.get("reason") else ""),
    ]
    return [(name, value) for name, value in facts if value]
