"""Asks on the terminal whether a call may run. Whatever is no clear yes is a no."""

import asyncio
import contextlib
import os
import termios

from agent_core.cli.terminal import Style, Terminal
from agent_core.permissions.questions import UnattendedError
from agent_core.text import shortened, visible
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
_REASONS = {
    "sensitive": "this is a sensitive path",
    "outside_roots": "this is outside the project and the allowed folders",
    "program_home": "this belongs to the program itself",
    "outside_sandbox": "this runs outside of the sandbox",
}
_LONGEST_LINE = 65_536
_LONGEST_VALUE = 4000
_MOST_DIFF_LINES = 200


class InputLines:
    """The lines of a descriptor, read without a thread: a terminal, a pipe, or a file.

    The descriptor keeps its mode: a terminal is shared with the output, and making it
    non-blocking for one makes it so for both.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._buffer = bytearray()
        self._ended = False

    def forget_typed_ahead(self) -> None:
        """Drop what was typed at a terminal before the question was on the screen.

        Lines that come through a pipe or from a file were meant as answers and are kept.
        """
        with contextlib.suppress(OSError, termios.error):
            if os.isatty(self._descriptor):
                termios.tcflush(self._descriptor, termios.TCIFLUSH)
                self._buffer.clear()

    async def next(self) -> str | None:
        """The next line without its end, or None if there is none any more."""
        while b"\n" not in self._buffer and not self._ended:
            try:
                await self._wait_readable()
                piece = os.read(self._descriptor, 4096)
            except OSError:  # closed, or a terminal that is gone
                piece = b""
            self._ended = not piece
            self._buffer += piece
            if len(self._buffer) > _LONGEST_LINE:  # no answer is so long; keep memory bounded
                del self._buffer[_LONGEST_LINE:]
                self._ended = True
        if not self._buffer:
            return None
        line, _, rest = bytes(self._buffer).partition(b"\n")
        self._buffer[:] = rest
        return line.decode(errors="replace")

    async def _wait_readable(self) -> None:
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        try:
            loop.add_reader(self._descriptor, ready.set)
        except (OSError, ValueError):
            return  # a plain file or `/dev/null`: always readable, reading never waits
        try:
            await ready.wait()
        finally:
            loop.remove_reader(self._descriptor)


class TerminalPrompt:
    """The permission callback of the command line; one question at a time.

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
        self._turn = turn or asyncio.Lock()

    async def __call__(self, request: PermissionRequest) -> PermissionDecision:
        """Show the request and read one line.

        Raises:
            UnattendedError: the input has ended.
        """
        async with self._turn:
            self._lines.forget_typed_ahead()
            self._show(request)
            line = await self._lines.next()
            if line is None:
                self._terminal.line("no answer", Style.WARN)
                raise UnattendedError
            decision = parse_decision(line)
            if self._echoes:
                self._terminal.line(_CONFIRMATIONS[decision])
            return PermissionDecision(decision=decision, metadata={"decided_by": "terminal"})

    def _show(self, request: PermissionRequest) -> None:
        terminal = self._terminal
        danger = ", dangerous" if request.dangerous else ""
        title = f"{request.tool_name} asks for permission ({request.permission}{danger})"
        terminal.line(title, Style.BOLD)
        for name, value in request_facts(request):
            terminal.line(f"  {name}: {shortened(visible(value, one_line=True), _LONGEST_VALUE)}")
        diff = str(request.metadata.get("diff") or "").splitlines()
        for line in diff[:_MOST_DIFF_LINES]:
            style = {"+": Style.GOOD, "-": Style.BAD}.get(line[:1], Style.DIM)
            terminal.line(f"    {shortened(line, _LONGEST_VALUE)}", style)
        if (more := len(diff) - _MOST_DIFF_LINES) > 0:
            terminal.line(f"    … {more} more lines are not shown", Style.WARN)
        scope = request.target_scope or "this call only"
        choices = f"  1 allow once   2 allow for session ({scope})   3 deny"
        terminal.line(visible(choices, one_line=True))
        terminal.ask("> ")


def parse_decision(line: str | None) -> Decision:
    """What an answer means; None is the end of the input."""
    return _ANSWERS.get((line or "").strip().casefold(), Decision.DENY)


def request_facts(request: PermissionRequest) -> list[tuple[str, str]]:
    """What a person needs to know to decide, most important first."""
    metadata = request.metadata
    reason = str(metadata.get("reason") or "")
    agent = request.agent_role
    if request.parent_run_id:
        agent += f" {request.agent_id}, child of run {request.parent_run_id}"
    hook = request.hook_summary or {}
    facts = [
        ("target", str(metadata.get("target") or "")),
        ("reason", _REASONS.get(reason, reason)),
        ("paths", ", ".join(metadata.get("places") or ())),
        ("host", request.network_host or ""),
        ("arguments", request.args_summary),
        ("in", request.cwd),
        ("sandbox", str(metadata.get("sandbox") or "")),
        ("environment", request.env_summary),
        ("agent", agent),
        # Of a hook that let the call pass; empty if it gave no reason.
        ("hook", f"{hook.get('command')}: {hook['reason']}" if hook.get("reason") else ""),
    ]
    return [(name, value) for name, value in facts if value]
