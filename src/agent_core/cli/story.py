"""`soong-agent sessions show`: the whole story of a session."""

from msgspec.structs import replace

from agent_core.api import AgentRuntime
from agent_core.cli.damage import warn_of_damage
from agent_core.cli.layout import fitted
from agent_core.cli.render import LINES_OF_DIFF, CallLayout
from agent_core.cli.sheet import Sheet, style_of, title_of
from agent_core.cli.terminal import Style, Terminal
from agent_core.cli.view import answer_hint
from agent_core.events.projection import Call
from agent_core.history.figures import format_cost, format_duration, format_tokens, format_usage
from agent_core.history.reading import (
    CallEntry,
    Exchange,
    History,
    HistoryWriter,
    MessageEntry,
    NoteEntry,
    read_history,
    result_text,
    spoken,
)
from agent_core.history.words import NOT_ACTIVE, SUMMARY, ending_of_run, outcome_word, remarks
from agent_core.runtime.background import read_background_usage
from agent_core.text import Clean, plural, short_line, shortened, visible
from agent_core.text.json_text import shown_json
from agent_core.types import EventLevel, NodeType, Role, RunStatus, Usage

_LONGEST_MESSAGE = 400
_LONGEST_LINE = 200


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
        story.write_exchange(exchange, "")
    for question in await runtime.approvals(session_id):
        name = visible(question.tool_name, one_line=True)
        story.sheet.line(f"[{question.run_id}] asks for {name}: {answer_hint(question)}")
    warn_of_damage(history.damaged, terminal, clean)
    if run_id is None and last is None:
        usage: dict[str, Usage] = {}
        for exchange in history.exchanges:
            if exchange.run is not None:
                usage["runs"] = usage.get("runs", Usage()).plus(exchange.run.usage)
        for purpose, cost in {**usage, **read_background_usage(history.session.metadata)}.items():
            line = f"tokens of {visible(purpose, one_line=True)}: {format_usage(cost)}"
            terminal.line(line, Style.DIM)


class _Story(HistoryWriter):
    """Writes exchanges line by line."""

    def __init__(self, sheet: Sheet, clean: Clean, history: History, *, is_full: bool) -> None:
        self.sheet = sheet
        self._clean = clean
        self._history = history
        self._is_full = is_full
        self._indents: list[str] = []

    def head(self) -> None:
        """Write the facts of the session."""
        session = self._history.session
        self.sheet.line((self._clean(title_of(session)), Style.BOLD))
        origin = session.parent_session_id
        forked = f" · forked from {origin}" if origin else ""
        self.sheet.line((f"{session.session_id} · {self._clean(session.cwd)}{forked}", Style.DIM))

    @property
    def _indent(self) -> str:
        return self._indents[-1]

    def begin(self, exchange: Exchange, place: str, *, in_call: bool) -> None:  # noqa: ARG002
        """Write the line of a run."""
        step = "      " if in_call else "    "
        self._indents.append(f"{self._indent}{step}" if self._indents else "")
        self.sheet.line()
        run, indent = exchange.run, self._indent
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
            (f" · {NOT_ACTIVE}" if self._history.is_beside(exchange) else "", Style.WARN),
        )

    def unseen(self, exchange: Exchange, prompt: str) -> None:
        """Write a prompt that no model has seen."""
        if (run := exchange.run) is not None:
            first = f"{self._indent}[{run.run_id}] user, {run.status}: "
            self._block(prompt, f"{self._indent}  ", first=first)

    def end(self, exchange: Exchange) -> None:
        """Write why a run did not complete, or against which objection it did."""
        indent, run = self._indents.pop(), exchange.run
        if run is None:
            return
        if failure := exchange.failure:
            self._block(failure, f"{indent}    ", style=Style.BAD, first=f"{indent}  failed: ")
        elif objection := str(run.metadata.get("stop_objection") or ""):
            first = f"{indent}  completed against an objection: "
            self._block(objection, f"{indent}    ", style=Style.WARN, first=first)
        elif ending := ending_of_run(run):
            style = Style.BAD if run.status is RunStatus.FAILED else Style.WARN
            self.sheet.line((f"{indent}  {ending}", style))

    def note(self, entry: NoteEntry) -> None:
        """Write a remark."""
        style = Style.DIM if entry.level is EventLevel.INFO else Style.WARN
        self._block(entry.text, f"{self._indent}    ", style=style, first=f"{self._indent}  - ")

    def message(self, entry: MessageEntry) -> None:
        """Write a message."""
        node, indent = entry.node, self._indent
        name = f"{indent}[{node.node_id}] "
        if node.node_type is NodeType.COMPACTION:
            self.sheet.line(f"{name}({SUMMARY})")
            if self._is_full:
                self._block(node.text, f"{indent}    ", style=Style.DIM)
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

    def begin_call(self, entry: CallEntry) -> None:
        """Write a call."""
        call = entry.call
        self._call_line(call, f"{self._indent}  ")
        inner = f"{self._indent}          "
        for text, is_bad in remarks(call):
            self._block(text, inner, style=Style.BAD if is_bad else Style.DIM)
        if self._is_full and call.block is not None:
            given = self._clean(shown_json(call.block.arguments))
            self.sheet.block(given, indent=inner, style=Style.DIM, first=f"{inner}given: ")
        self._left(call, inner)

    def _call_line(self, call: Call, indent: str) -> None:
        """Write the title, the outcome and the duration of a call."""
        took, waited = call.end.duration_ms, call.end.waited_ms
        times = [] if took is None else [format_duration(took)]
        if waited:
            times.append(f"waited {format_duration(waited)} for the answer")
        duration = f"  ({', '.join(times)})" if times else ""
        summary = short_line(self._clean(call.summary), _LONGEST_LINE)
        said = f"{call.name} {summary}"
        if self.sheet.is_screen:
            said = fitted(said, max(self.sheet.width - len(indent) - len(duration) - 10, 12))
        style = Style.BAD if call.is_bad else Style.GOOD if call.ended else Style.WARN
        self.sheet.line(
            indent, (f"{outcome_word(call):<7} ", style), said, (duration, Style.DIM), cut=True
        )

    def _left(self, call: Call, inner: str) -> None:
        """Write the changes of a call, and the end of its output."""
        end = call.end
        end = replace(end, diff=self._clean(end.diff or ""), output=self._clean(end.output))
        layout = CallLayout(self.sheet.width - len(inner) - 1)
        lines = [*layout.diff(end, most=None if self._is_full else LINES_OF_DIFF)]
        if not (self._is_full and call.result is not None):
            lines += layout.output(end, is_failure=call.is_bad)
        for line in lines:
            self.sheet.line(inner, *line, cut=True)
        if self._is_full and call.result is not None:
            self.sheet.block(self._clean(result_text(call.result)), indent=inner, style=Style.DIM)

    def _block(
        self, text: str, indent: str, *, style: Style = Style.PLAIN, first: str = ""
    ) -> None:
        self.sheet.block(self._text(text), indent=indent, style=style, first=first)

    def _text(self, text: str) -> str:
        clean = self._clean(text.strip())
        return clean if self._is_full else shortened(clean, _LONGEST_MESSAGE)
