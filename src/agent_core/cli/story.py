"""`soong-agent sessions show`: the whole story of a session."""

from collections.abc import Mapping
from typing import Any

from agent_core.api import AgentRuntime
from agent_core.cli.figures import format_cost, format_duration, format_tokens, format_usage
from agent_core.cli.history import (
    CallEntry,
    Exchange,
    History,
    MessageEntry,
    NoteEntry,
    read_history,
    result_text,
    spoken,
    verdict,
)
from agent_core.cli.layout import fitted
from agent_core.cli.render import LINES_OF_DIFF, CallLayout
from agent_core.cli.sheet import Sheet, style_of, title_of
from agent_core.cli.terminal import Clean, Style, Terminal
from agent_core.cli.view import ANSWER
from agent_core.runtime.background import read_background_usage
from agent_core.text import plural, short_line, shortened, shown_json, visible
from agent_core.types import EventLevel, Node, NodeType, Role, RunRecord, RunStatus, Usage

_LONGEST_MESSAGE = 400
_LONGEST_LINE = 200
_TEXTS = ("diff", "output")
_STYLES = {"good": Style.GOOD, "fair": Style.WARN, "bad": Style.BAD}
_EFFECT_UNKNOWN = "the process died while it ran: its effect is unknown"


async def show_session(
    runtime: AgentRuntime,
    session_id: str,
    terminal: Terminal,
    clean: Clean,
    *,
    run_id: str | None = None,
    last: int | None = None,
    is_full: bool = False,
) -> None:
    """Show a session, one run of it, or its last runs; `is_full` shortens nothing.

    Raises:
        StorageError: `session_not_found`, `run_not_found`.
    """
    history = await read_history(runtime, session_id, run_id=run_id, last=last)
    story = _Story(Sheet(), clean, history, is_full=is_full)
    story.head()
    for exchange in history.exchanges:
        story.exchange(exchange)
    for question in await runtime.approvals(session_id):
        request_id, name = question.request_id, visible(question.tool_name, one_line=True)
        story.sheet.line(f"[{question.run_id}] asks for {name}: {ANSWER % request_id}")
    if run_id is None and last is None:
        usage: dict[str, Usage] = {}
        for exchange in history.exchanges:
            if exchange.run is not None:
                usage["runs"] = usage.get("runs", Usage()).plus(exchange.run.usage)
        for purpose, cost in {**usage, **read_background_usage(history.session.metadata)}.items():
            line = f"tokens of {visible(purpose, one_line=True)}: {format_usage(cost)}"
            terminal.line(line, Style.DIM)


class _Story:
    """Writes exchanges line by line."""

    def __init__(self, sheet: Sheet, clean: Clean, history: History, *, is_full: bool) -> None:
        self.sheet = sheet
        self._clean = clean
        self._history = history
        self._is_full = is_full

    def head(self) -> None:
        """Write the facts of the session."""
        session = self._history.session
        self.sheet.line((self._clean(title_of(session)), Style.BOLD))
        origin = session.parent_session_id
        forked = f" · forked from {origin}" if origin else ""
        self.sheet.line((f"{session.session_id} · {self._clean(session.cwd)}{forked}", Style.DIM))

    def exchange(self, exchange: Exchange, indent: str = "") -> None:
        """Write a run, with the runs of its children."""
        self.sheet.line()
        self._begin(exchange, indent)
        run = exchange.run
        if run is not None and run.prompt is not None and run.status is not RunStatus.WAITING:
            text = self._text(exchange.prompt)  # no model has seen it
            self.sheet.block(
                text, indent=f"{indent}  ", first=f"{indent}[{run.run_id}] user, {run.status}: "
            )
        for entry in exchange.entries:
            match entry:
                case MessageEntry(node=node):
                    self._message(node, indent)
                case CallEntry():
                    self._call(entry, f"{indent}  ")
                case NoteEntry(text=text, level=level):
                    style = Style.DIM if level is EventLevel.INFO else Style.WARN
                    self.sheet.block(
                        self._text(text), indent=f"{indent}    ", style=style, first=f"{indent}  - "
                    )
        for child in exchange.children:
            self.exchange(child, f"{indent}    ")
        if run is not None:
            self._end(run, exchange.failure, indent)

    def _begin(self, exchange: Exchange, indent: str) -> None:
        run = exchange.run
        if run is None:
            is_fork = self._history.session.parent_session_id is not None
            what = "copied from the session it was forked from" if is_fork else "outside of any run"
            self.sheet.line((f"{indent}-- {what}", Style.DIM))
            return
        who = ""
        if run.parent_run_id is not None:
            agent = exchange.agent
            kind = agent.agent_definition_id or agent.agent_type if agent is not None else "agent"
            who = f" · child {kind}"
        spent = " · ".join(
            (
                plural(run.turn_count, "turn"),
                f"{format_tokens(run.usage.total_tokens)} tokens",
                format_cost(run.usage),
            )
        )
        self.sheet.line(
            (
                f"{indent}-- {run.run_id}{who} · {run.created_at.astimezone():%Y-%m-%d %H:%M} · ",
                Style.DIM,
            ),
            (str(run.status), style_of(run.status)),
            (f" · {spent}", Style.DIM),
            (" · not on the active path" if self._history.is_beside(exchange) else "", Style.WARN),
        )

    def _end(self, run: RunRecord, failure: str, indent: str) -> None:
        if failure:
            text = self._text(failure)
            self.sheet.block(
                text, indent=f"{indent}    ", style=Style.BAD, first=f"{indent}  failed: "
            )
        elif run.status is RunStatus.CANCELLED:
            reason = f" ({run.end_reason})" if run.end_reason else ""
            self.sheet.line((f"{indent}  cancelled{reason}", Style.WARN))
        elif run.status is RunStatus.FAILED:
            reason = str(run.metadata.get("reason") or run.end_reason or "no reason is known")
            self.sheet.line((f"{indent}  failed: {reason}", Style.BAD))

    def _message(self, node: Node, indent: str) -> None:
        name = f"{indent}[{node.node_id}] "
        if node.node_type is NodeType.COMPACTION:
            self.sheet.line(f"{name}(summary of what came before)")
            if self._is_full:
                self.sheet.block(self._text(node.text), indent=f"{indent}    ", style=Style.DIM)
            return
        if node.node_type is not NodeType.MESSAGE:
            what = node.node_type.replace("_", " ")
            gist = short_line(self._clean(node.text), 100)
            self.sheet.line((f"{name}({what}) {gist}", Style.DIM), cut=True)
            return
        text = self._text(spoken(node))
        if node.is_partial:
            text = f"{text} (cut off)".strip()
        if text:
            style = Style.BOLD if node.role is Role.USER else Style.PLAIN
            self.sheet.block(text, indent=f"{indent}  ", style=style, first=f"{name}{node.role}: ")

    def _call(self, call: CallEntry, indent: str) -> None:
        self._call_line(call, indent)
        inner = f"{indent}        "
        for answer in call.answers:
            self._answer(answer, inner)
        if call.why:
            self.sheet.block(self._text(call.why), indent=inner, style=Style.BAD)
        if call.outcome == "interrupted":
            self.sheet.line(inner, (_EFFECT_UNKNOWN, Style.BAD))
        if self._is_full:
            given = self._clean(shown_json(call.call.arguments))
            self.sheet.block(given, indent=inner, style=Style.DIM, first=f"{inner}given: ")
        self._left(call, inner)
        for child in call.children:
            self.exchange(child, f"{indent}    ")

    def _call_line(self, call: CallEntry, indent: str) -> None:
        """Write the title, the outcome and the duration of a call."""
        ended = call.ended
        took = ended.get("duration_ms")
        times = [] if took is None else [format_duration(took)]
        if waited := ended.get("waited_ms"):
            times.append(f"waited {format_duration(waited)} for the answer")
        duration = f"  ({', '.join(times)})" if times else ""
        summary = short_line(self._clean(call.summary), _LONGEST_LINE)
        said = f"{call.call.name} {summary}"
        if self.sheet.is_screen:
            said = fitted(said, max(self.sheet.width - len(indent) - len(duration) - 10, 12))
        self.sheet.line(
            indent,
            (f"{call.word:<7} ", _STYLES[call.quality]),
            said,
            (duration, Style.DIM),
            cut=True,
        )

    def _left(self, call: CallEntry, inner: str) -> None:
        """Write the changes of a call, and the end of its output."""
        ended = {
            **call.ended,
            **{key: self._clean(str(call.ended.get(key) or "")) for key in _TEXTS},
        }
        layout = CallLayout(self.sheet.width - len(inner) - 1)
        lines = [*layout.diff(ended, most=None if self._is_full else LINES_OF_DIFF)]
        if not (self._is_full and call.result is not None):
            lines += layout.output(ended, is_failure=call.is_bad)
        for line in lines:
            self.sheet.line(inner, *line, cut=True)
        if self._is_full and call.result is not None:
            self.sheet.block(self._clean(result_text(call.result)), indent=inner, style=Style.DIM)

    def _answer(self, answer: Mapping[str, Any], inner: str) -> None:
        style = Style.BAD if answer.get("decision") == "deny" else Style.DIM
        self.sheet.block(self._text(verdict(answer)), indent=inner, style=style)

    def _text(self, text: str) -> str:
        clean = self._clean(text.strip())
        return clean if self._is_full else shortened(clean, _LONGEST_MESSAGE)
