"""Asks on the terminal whether a call may run. Whatever is no clear yes is a no."""

import asyncio
from collections.abc import Mapping
from typing import Any

from agent_core.cli.lines import Lines
from agent_core.cli.terminal import Style, Terminal
from agent_core.redaction.visible import shortened, visible
from agent_core.types import Decision, PermissionDecision, PermissionRequest

_ANSWERS = {
    "1": Decision.ALLOW_ONCE,
    "allow once": Decision.ALLOW_ONCE,
    "2": Decision.ALLOW_FOR_SESSION,
    "allow for session": Decision.ALLOW_FOR_SESSION,
    "3": Decision.DENY,
    "deny": Decision.DENY,
}
_SAID = {
    Decision.ALLOW_ONCE: "allowed once",
    Decision.ALLOW_FOR_SESSION: "allowed for the session",
    Decision.DENY: "denied",
}
_REASONS = {
    "sensitive": "this is a sensitive path",
    "outside_roots": "this is outside the project and the allowed folders",
    "program_home": "this belongs to the program itself",
}
_LONGEST_VALUE = 4000
_MOST_DIFF_LINES = 200


class TerminalPrompt:
    """The permission callback of the command line; one question at a time."""

    def __init__(self, terminal: Terminal, lines: Lines, *, echoes: bool) -> None:
        """Ask on `terminal` and read from `lines`.

        `echoes` repeats the answer, for input that nobody sees being typed.
        """
        self._terminal = terminal
        self._lines = lines
        self._echoes = echoes
        self._turn = asyncio.Lock()

    async def __call__(self, request: PermissionRequest) -> PermissionDecision:
        """Show the request and read one line."""
        async with self._turn:
            self._lines.forget_typed_ahead()
            self._show(request)
            line = await self._lines.next()
            decision = decision_of(line)
            if line is None:
                self._terminal.line("no answer: denied", Style.WARN)
            elif self._echoes:
                self._terminal.line(_SAID[decision])
            reason = "nobody answered" if line is None else None
            return PermissionDecision(decision=decision, reason=reason)

    def _show(self, request: PermissionRequest) -> None:
        danger = ", dangerous" if request.dangerous else ""
        title = f"{request.tool_name} asks for permission ({request.permission}{danger})"
        self._terminal.line(title, Style.BOLD)
        for name, value in facts_of(request):
            shown = shortened(visible(value, one_line=True), _LONGEST_VALUE)
            self._terminal.line(f"  {name}: {shown}")
        if diff := request.metadata.get("diff"):
            self._show_diff(str(diff))
        scope = request.target_scope or "this call only"
        shown = visible(f"  1 allow once   2 allow for session ({scope})   3 deny", one_line=True)
        self._terminal.line(shown)
        self._terminal.ask("> ")

    def _show_diff(self, diff: str) -> None:
        lines = diff.splitlines()
        for line in lines[:_MOST_DIFF_LINES]:
            added, removed = line.startswith("+"), line.startswith("-")
            style = Style.GOOD if added else Style.BAD if removed else Style.DIM
            self._terminal.line(f"    {shortened(line, _LONGEST_VALUE)}", style)
        if (more := len(lines) - _MOST_DIFF_LINES) > 0:
            self._terminal.line(f"    … {more} more lines are not shown", Style.WARN)


def decision_of(line: str | None) -> Decision:
    """What an answer means; None is the end of the input."""
    return _ANSWERS.get((line or "").strip().casefold(), Decision.DENY)


def facts_of(request: PermissionRequest) -> list[tuple[str, str]]:
    """What a person needs to know to decide, most important first."""
    metadata = request.metadata
    reason = str(metadata.get("reason") or "")
    agent = request.agent_role
    if request.parent_run_id:
        agent += f" {request.agent_id}, child of run {request.parent_run_id}"
    facts = [
        ("target", str(metadata.get("target") or "")),
        ("reason", _REASONS.get(reason, reason)),
        ("paths", ", ".join(metadata.get("places") or ())),
        ("host", request.network_host or ""),
        ("arguments", request.args_summary),
        ("in", request.cwd),
        ("environment", request.env_summary),
        ("agent", agent),
        ("hook", _hook_line(request.hook_summary or {})),
    ]
    return [(name, value) for name, value in facts if value]


def _hook_line(summary: Mapping[str, Any]) -> str:
    """What a hook that let the call pass had to say; nothing if it gave no reason."""
    reason = summary.get("reason")
    return f"{summary.get('command')}: {reason}" if reason else ""
