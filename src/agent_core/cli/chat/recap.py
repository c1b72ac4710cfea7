"""The last exchanges of a session that is continued, as the conversation has shown them."""

from collections.abc import Sequence

from msgspec import Struct, field

from agent_core.api import AgentRuntime
from agent_core.cli.damage import warn_of_damage
from agent_core.cli.layout import ASCII_SIGNS, SIGNS
from agent_core.cli.render import CallLayout, label_of, summary_of
from agent_core.cli.terminal import Style, Terminal
from agent_core.errors import ErrorCode, StorageError, describe_error
from agent_core.events.projection import Call
from agent_core.history.reading import (
    CallEntry,
    Entry,
    History,
    MessageEntry,
    gist_of,
    read_recent,
    spoken,
)
from agent_core.history.words import ending_of_run
from agent_core.text import Clean, plural, shortened, visible
from agent_core.types import (
    ContextReport,
    DamagedRow,
    Node,
    NodeType,
    Role,
    RunRecord,
    RunStatus,
    SessionRecord,
    is_user_message,
)

_MOST_EVENTS = 300
_MOST_EXCHANGES = 3
_MOST_STEPS = 6
_LINES_OF_DIFF = 8
_LONGEST_QUESTION = 600
_LONGEST_NARRATION = 300
_LONGEST_REASON = 600
_LONGEST_ANSWER = 1_500
_LONGEST_LAST_ANSWER = 8_000


class Exchanged(Struct):
    """A message of the user, and the work on it.

    Attributes:
        message: of the user; None if it is further above than was read.
        entries: the replies, calls and remarks that follow it.
        run: the last one that worked on it.
    """

    message: Node | None
    entries: list[Entry] = field(default_factory=list[Entry])
    run: RunRecord | None = None


class Recap(Struct, frozen=True):
    """The end of a session.

    Attributes:
        exchanges: the last ones on the active path.
        is_whole: nothing is above them.
        damaged: the rows among them that are missing, or not whole.
        report: the use of the model's window; None if the session cannot continue from here.
        problem: why it cannot.
    """

    session: SessionRecord
    exchanges: Sequence[Exchanged]
    is_whole: bool
    damaged: Sequence[DamagedRow]
    report: ContextReport | None
    problem: str = ""


async def read_recap(runtime: AgentRuntime, session_id: str) -> Recap:
    """Read the end of a session, and how full the model's window is.

    Raises:
        StorageError: `session_not_found`.
    """
    report, problem = None, ""
    try:
        report = await runtime.context_report(session_id)
    except StorageError as error:  # of damaged rows, what can be read is shown
        is_damage = error.code in {ErrorCode.STORAGE_ERROR, ErrorCode.NODE_NOT_FOUND}
        if error.retryable or not is_damage:
            raise
        problem = error.message
    history = await read_recent(runtime, session_id, most_events=_MOST_EVENTS)
    found = _exchanges_of(history)
    shown = found[-_MOST_EXCHANGES:]
    first = shown[0].message if shown else None
    is_whole = not shown or (first is not None and first.parent_id is None)
    return Recap(history.session, shown, is_whole, history.damaged, report, problem)


def _exchanges_of(history: History) -> list[Exchanged]:
    """Return the exchanges on the active path, as far as it was read."""
    found: list[Exchanged] = []
    for exchange in history.exchanges:
        if not any(node.node_id in history.active for node in exchange.nodes):
            continue
        for entry in exchange.entries:
            node = entry.node if isinstance(entry, MessageEntry) else None
            if node is not None and node.node_id not in history.active and not node.is_partial:
                continue
            if node is not None and is_user_message(node):
                found.append(Exchanged(node))
                continue
            if not found:
                found.append(Exchanged(None))
            found[-1].entries.append(entry)
        if found:
            found[-1].run = exchange.run
    return found


class RecapWriter:
    """Writes exchanges as the live view does, in fewer lines.

    Args:
        terminal: shows them.
        clean: takes secrets out of shown text.
    """

    def __init__(self, terminal: Terminal, clean: Clean) -> None:
        self._terminal = terminal
        self._clean = clean
        signs = SIGNS if terminal.has_signs else ASCII_SIGNS
        self._layout = CallLayout(terminal.width - 1, signs)

    def write(self, recap: Recap, short_id: str) -> None:
        """Write the exchanges, and how to see what is above them."""
        if not recap.is_whole:
            command = f"soong-agent sessions show {short_id}"
            self._say(f"earlier messages: {command}", Style.DIM)
        for number, exchanged in enumerate(recap.exchanges, 1):
            self._exchange(exchanged, is_last=number == len(recap.exchanges))
        warn_of_damage(recap.damaged, self._terminal, self._clean)
        if recap.problem:
            cure = "/tree names messages before it, from which /switch continues"
            self._say(f"error: {self._clean(recap.problem)}. {cure}", Style.BAD)

    def _exchange(self, exchanged: Exchanged, *, is_last: bool) -> None:
        terminal = self._terminal
        terminal.line("")
        if exchanged.message is not None:
            self._question(exchanged.message)
        steps = [entry for entry in exchanged.entries if _is_step(entry)]
        answer = _answer_of(steps)
        if answer is not None:
            steps.pop()
        if exchanged.message is None:
            terminal.line("the beginning of this exchange is further above", Style.DIM)
        if len(steps) > _MOST_STEPS:
            more = plural(len(steps) - _MOST_STEPS, "earlier step")
            terminal.line(f"{self._layout.signs.more} {more}", Style.DIM)
        for step in steps[-_MOST_STEPS:]:
            match step:
                case CallEntry(call):
                    self._call(call)
                case MessageEntry(node):
                    self._narration(node)
                case _:
                    pass
        if answer is not None:
            if steps and terminal.can_draw:
                terminal.line("")
            self._answer(answer, _LONGEST_LAST_ANSWER if is_last else _LONGEST_ANSWER)
        self._end(exchanged.run)

    def _end(self, run: RunRecord | None) -> None:
        if run is not None and run.error is not None:
            why = shortened(
                self._clean(describe_error(run.error.message, run.error.code)), _LONGEST_REASON
            )
            self._say(f"error: {why}", Style.BAD)
        elif run is not None and (ending := ending_of_run(run)):
            style = Style.BAD if run.status is RunStatus.FAILED else Style.WARN
            self._say(shortened(self._clean(ending), _LONGEST_REASON), style)

    def _question(self, node: Node) -> None:
        words = gist_of(node).strip() or spoken(node)
        self._terminal.message(shortened(self._clean(words), _LONGEST_QUESTION))

    def _narration(self, node: Node) -> None:
        text = spoken(node).strip()
        if node.node_type is NodeType.COMPACTION:
            text = "the history up to here has been summarised"
        if node.is_partial:
            text = f"{text} (cut off)".strip()
        self._say(shortened(self._clean(text), _LONGEST_NARRATION), Style.DIM)

    def _call(self, call: Call) -> None:
        terminal, layout = self._terminal, self._layout
        if call.ended is None:
            named = f"{label_of(call)} {summary_of(call)} (not finished)"
            terminal.line(f"{layout.signs.call} {named}", Style.WARN)
            return
        if not terminal.can_draw:
            terminal.parts(*next(layout.plain_end(call)))
            return
        for line in layout.headline(call):
            terminal.parts(*line)
        for line in layout.diff(call.end, most=_LINES_OF_DIFF):
            terminal.parts(*line)

    def _answer(self, node: Node, longest: int) -> None:
        terminal = self._terminal
        text = shortened(self._clean(spoken(node)), longest)
        if terminal.can_draw and terminal.has_signs:
            from agent_core.cli.markdown import MarkdownStream  # noqa: PLC0415 - brings rich

            markdown = MarkdownStream(has_colours=terminal.has_colours)
            markdown.feed(text)
            terminal.block(markdown.finish(terminal.width - 1))
        else:
            terminal.text(text)
            terminal.end_text()

    def _say(self, text: str, style: Style) -> None:
        for line in self._terminal.wrap(visible(text)):
            self._terminal.line(line, style)


def _is_step(entry: Entry) -> bool:
    """Return whether something of an entry is shown."""
    match entry:
        case CallEntry():
            return True
        case MessageEntry(node) if node.node_type is NodeType.MESSAGE:
            return node.role is Role.ASSISTANT and bool(spoken(node).strip())
        case MessageEntry(node):
            return node.node_type is NodeType.COMPACTION
        case _:
            return False


def _answer_of(steps: Sequence[Entry]) -> Node | None:
    """Return the reply that ends an exchange; None if it has no complete one."""
    last = steps[-1] if steps else None
    if not isinstance(last, MessageEntry) or last.node.is_partial:
        return None
    node = last.node
    is_reply = node.role is Role.ASSISTANT and node.node_type is NodeType.MESSAGE
    return node if is_reply and not node.calls and node.text.strip() else None
