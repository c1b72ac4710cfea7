"""Shows a run as it happens: the answer while it is written, and the work done for it."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from agent_core.cli.layout import ASCII_SIGNS, SIGNS, Signs, fitted, shown_error
from agent_core.cli.render import CallLayout, Line, is_quiet, label_of, summary_of
from agent_core.cli.running import RunningCall, draw_calls
from agent_core.cli.terminal import OutputClosedError, Style, Terminal
from agent_core.errors import describe_error
from agent_core.events.projection import Call, PlacedEvent, Projection
from agent_core.history.figures import format_dollars, format_duration, format_elapsed, format_usage
from agent_core.history.service_tools import source_lines, use_line
from agent_core.history.words import (
    SPENDERS,
    event_line,
    is_trouble,
    kind_in_words,
    left_out_line,
    meaning_of,
    objection_line,
    queue_line,
    retry_line,
)
from agent_core.text import visible
from agent_core.types import (
    CLOSING_EVENTS,
    ErrorPayload,
    EventType,
    RuntimeEvent,
    StopReason,
    Usage,
)
from agent_core.types.event_details import (
    ChildCreated,
    ChildEnded,
    CompactEnded,
    Delta,
    ModelAsked,
    ModelGaveUp,
    ModelReplied,
    ModelRetried,
    ReasoningDelta,
    RunEnded,
    RunQueued,
    TextDelta,
    ToolEnded,
    ToolOutput,
    ToolProgress,
    ToolStarted,
)

if TYPE_CHECKING:
    from agent_core.api import AgentRuntime, RunHandle
    from agent_core.cli.markdown import MarkdownStream
    from agent_core.types import ApprovalRecord, PermissionRequest

_QUIET_S = 2.0
_TICK_S = 0.12
_REASONING_TAIL = 400

_MOST_QUESTIONS = 1_000
_IN_THE_SAME_WAY = " in the same way"


class _Reasoning(Struct):
    """Reasoning of the model before it answers."""

    since: float = field(default_factory=monotonic)
    characters: int = 0
    tail: str = ""

    def add(self, text: str) -> None:
        """Take a piece."""
        self.characters += len(text)
        self.tail = (self.tail + text)[-_REASONING_TAIL:]


class RunView:
    """Shows the events of one run.

    Text of the model is streamed if the answer and all other text share one screen; otherwise the
    answer waits until it is known to be one. Narration, which is text that tool calls follow, is
    dimmed, and not part of the answer.

    Args:
        terminal: shows the run.
    """

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._projection = Projection()
        self._tokens = Counter[str]()
        self._calls: dict[str, RunningCall] = {}
        self._followed = ""
        self._markdown: MarkdownStream | None = None
        self._streamed = False
        self._held: list[str] = []
        self._is_cut_off = False
        self._message: list[str] = []
        self._reasoning: _Reasoning | None = None
        self._doing: tuple[str, float] | None = None
        self._usage: Usage | None = None
        self._frame = 0
        self._is_below_call = False
        self._ticking: asyncio.TimerHandle | None = None
        self._waiting: list[RuntimeEvent] = []
        self._objection = ""
        self._retried = ModelRetried()
        self._last: Call | None = None

    def session(self, session_id: str) -> None:
        """Show the id of the session, which `--session-id` takes to continue it."""
        self._terminal.line(f"session {session_id}", Style.DIM)

    def event(self, event: RuntimeEvent) -> None:
        """Show one event, if it is worth showing; while a question is open, after its answer.

        Raises:
            OutputClosedError: the answer cannot be written.
        """
        if self._waiting or self._terminal.wait_for_answer(self._show_waiting):
            self._waiting.append(event)
        else:
            self._show(event)

    def child_event(self, event: RuntimeEvent) -> None:
        """Show one event of a child of the run: its calls, a line for each."""
        if isinstance(event.details, ToolStarted | ToolEnded):
            self.event(event)

    def _show_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        with suppress(OutputClosedError):  # the next write raises it again, to its caller
            for event in waiting:
                self._show(event)

    def _show(self, event: RuntimeEvent) -> None:
        placed = self._projection.take(event)
        match placed.details:
            case ReasoningDelta(text=text):
                self._reasoning = self._reasoning or _Reasoning()
                self._reasoning.add(text)
            case TextDelta(text=text, from_start=anew):
                self._end_reasoning()
                self._text(text, anew=anew)
            case ModelReplied() as reply:
                self._end_reasoning()
                self._count(reply.usage)
                self._is_cut_off = reply.stop_reason == StopReason.MAX_TOKENS
                self._end_message(is_narration=bool(reply.tool_calls))
                if reply.provider_tools or reply.citations:
                    self._show_service(reply)
            case ModelGaveUp():
                self._end_reasoning()
                self._end_message(is_narration=True)
            case ModelAsked() if self._held and not self._is_cut_off:
                self._narrate_held()  # that reply was sent back
            case ToolStarted() if placed.call is not None:
                self._begin_call(placed.call)
            case ToolProgress(text=text) if placed.call is not None:
                self._progress(placed.call, text)
            case ToolOutput() as output if placed.call is not None:
                self._take_output(placed.call, output)
            case ToolEnded() if placed.call is not None:
                self._end_call(placed.call)
            case _:
                self._other_event(placed)
        self._note_activity(placed.kind)
        if not isinstance(placed.details, Delta) or self._ticking is None:
            self._draw()  # else the clock draws streamed text

    def _text(self, text: str, *, anew: bool) -> None:
        terminal = self._terminal
        self._doing = "waiting for the model", monotonic() + _QUIET_S
        if anew:  # all that the message has until now
            self._message.clear()
            self._markdown = None
        self._message.append(text)
        if not terminal.streams_answer:
            terminal.require_reader()
        elif not self._lays_out:
            terminal.text(text)
        else:
            self._markdown = self._markdown or self._open_markdown()
            self._markdown.feed(text)
            if block := self._markdown.take(terminal.width - 1, terminal.rows):
                terminal.draw("run", [])
                self._leave_gap()
                terminal.block(block)
                self._draw()

    @property
    def _lays_out(self) -> bool:
        """Return whether Markdown is laid out; its signs are beyond ASCII."""
        return self._terminal.can_draw and self._terminal.has_signs

    def _open_markdown(self) -> "MarkdownStream":
        from agent_core.cli.markdown import MarkdownStream  # noqa: PLC0415 - brings rich

        return MarkdownStream(has_colours=self._terminal.has_colours)

    def _end_message(self, *, is_narration: bool) -> None:
        """Finish the text of one reply."""
        terminal, text = self._terminal, "".join(self._message)
        self._message.clear()
        if text and terminal.streams_answer:
            self._streamed = not is_narration
        if self._markdown is not None:
            stream, self._markdown = self._markdown, None
            terminal.draw("run", [])
            if is_narration:
                self._narrate(stream.finish_plain(terminal.width - 1))
            elif rest := stream.finish(terminal.width - 1):
                self._leave_gap()
                terminal.block(rest)
        elif terminal.streams_answer:
            terminal.end_text()
        elif is_narration:
            self._held.append(text)
            self._narrate_held()
        elif text:
            self._held.append(text)

    def _narrate_held(self) -> None:
        held = "".join(self._held)
        self._held.clear()
        self._narrate(held)

    def _narrate(self, text: str) -> None:
        if text := text.strip("\n"):
            self._leave_gap()
            for line in self._terminal.wrap(text):
                self._terminal.line(line, Style.DIM)

    def _leave_gap(self) -> None:
        """Set text off from the calls above it, where people read it."""
        if self._is_below_call and self._terminal.can_draw:
            self._terminal.line("")
        self._is_below_call = False

    def _end_reasoning(self) -> None:
        if self._reasoning is not None:
            thought, self._reasoning = self._reasoning, None
            took = format_duration((monotonic() - thought.since) * 1e3)
            size = f"{thought.characters:,} characters"
            self._terminal.line(f"reasoned for {took} ({size})", Style.DIM)

    def _show_service(self, reply: ModelReplied) -> None:
        """Show the tools that the service has used, and its sources."""
        for use in reply.provider_tools:
            self._say(use_line(use), Style.DIM)
        if reply.citations:
            self._say("sources:", Style.DIM)
            for line in source_lines(reply.citations):
                self._say(f"  {line}", Style.DIM)

    def _begin_call(self, call: Call) -> None:
        if not call.caller:
            self._narrate_held()  # text before a call is no answer
        self._calls[call.call_id] = RunningCall(call)
        if not (self._terminal.can_draw or is_quiet(call) or call.caller):
            self._print(self._layout.plain_head(call))

    def _progress(self, call: Call, text: str) -> None:
        text = visible(text, one_line=True)
        running = self._calls.get(call.call_id)
        if running is not None and self._terminal.can_draw:
            running.progress = text
        else:
            self._print([(fitted(f"  {text}", self._terminal.width, self._signs), Style.DIM)])

    def _take_output(self, call: Call, output: ToolOutput) -> None:
        """Keep what a running command has printed; the region shows its end."""
        if running := self._calls.get(call.call_id):
            lines = running.take(output)
            if self._followed == call.call_id:
                self._print_lines(lines)

    def _print_lines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._print([(line.expandtabs(4), Style.PLAIN)])

    def follow(self) -> bool:
        """Print what the call that began last prints, from its start; return if one runs."""
        own = [each for each in self._calls.values() if not each.call.caller]
        if own:
            call = own[-1].call
            self._followed = call.call_id
            self._say(f"{label_of(call)} {summary_of(call)}".rstrip(), Style.BOLD)
            self._print_lines(own[-1].printed)
            self._draw()
        return bool(own)

    def stop_following(self) -> None:
        """Show no more than the last lines again."""
        self._followed = ""

    def _end_call(self, call: Call) -> None:
        self._calls.pop(call.call_id, None)
        layout = self._layout
        if call.caller:
            for line in replace(layout, width=layout.width - 2).headline(call):
                self._print([("  ", Style.PLAIN), *line])
            return
        for line in layout.end(call) if self._terminal.can_draw else layout.plain_end(call):
            self._print(line)
        self._is_below_call = True
        self._last = call

    @property
    def usage(self) -> Usage:
        """The use of the run so far."""
        return self._usage or Usage()

    @property
    def last_call(self) -> Call | None:
        """The last call that has ended."""
        return self._last

    @property
    def _signs(self) -> Signs:
        return SIGNS if self._terminal.has_signs else ASCII_SIGNS

    @property
    def _layout(self) -> CallLayout:
        return CallLayout(self._terminal.width - 1, self._signs)

    def _print(self, line: Line) -> None:
        self._terminal.parts(*line)

    def _count(self, usage: Usage | None) -> None:
        if usage is not None:
            self._usage = usage if self._usage is None else self._usage.plus(usage)

    def _other_event(self, placed: PlacedEvent) -> None:
        meaning, details = meaning_of(placed.kind), placed.details
        subject = visible(details.subject, one_line=True)
        match details:
            case ChildEnded(usage=usage) | CompactEnded(usage=usage) if usage is not None:
                self._tokens[meaning.spender] += usage.total_tokens
            case ChildCreated(role="worker"):
                return  # a line about the worker follows
            case RunEnded(stop_objection=objection):
                self._objection = objection
            case _:
                pass
        line, style = "", Style.DIM
        if isinstance(details, RunQueued):
            line = queue_line(details)
        elif isinstance(details, ModelAsked):
            line, style = left_out_line(details), Style.WARN
        elif isinstance(details, ModelRetried):
            self._end_message(is_narration=True)
            line, style = retry_line(details, self._why_again(details)), Style.WARN
        elif meaning.now:
            line = ": ".join(filter(None, (meaning.now, subject)))
            line += self._task_of(placed)
        elif isinstance(details, CompactEnded) and details.reason == "request":
            pass  # the end of the run says it
        elif is_trouble(placed) and not meaning.is_implied:
            why = shown_error(details.why)
            line, style = event_line(kind_in_words(placed.kind), subject, why), Style.WARN
        if line:
            self._say(line, style)

    def _task_of(self, placed: PlacedEvent) -> str:
        """Return the task of a child that a call has started; empty for other events."""
        details = placed.details
        if not isinstance(details, ChildCreated) or details.tool_call_id is None:
            return ""
        call = self._projection.call(placed.event.agent_id, details.tool_call_id)
        room = self._terminal.width // 2
        return f", {fitted(summary_of(call), room, self._signs)}" if call is not None else ""

    def _why_again(self, details: ModelRetried) -> str:
        """Return why an attempt failed, once, and without the cure that the end may name."""
        before, self._retried = self._retried.cause, details
        if details.cause and details.cause == before:
            return _IN_THE_SAME_WAY
        first, _, rest = details.cause.partition("\n")
        why = rest or first.partition("; ")[0]
        return f": {shown_error(why)}" if why else ""

    def _unsaid(self, message: str) -> str:
        """Return the message of the error that ended the run, without what its retries showed."""
        if not message or message != self._retried.cause:
            return message
        first, _, rest = message.partition("\n")
        if not rest:
            attempt = f"attempt {self._retried.attempt + 1} failed{_IN_THE_SAME_WAY}"
            first = "; ".join(filter(None, (attempt, first.partition("; ")[2])))
        return first

    def _say(self, text: str, style: Style) -> None:
        """Write lines that break between words on a terminal."""
        for line in self._terminal.wrap(visible(text)):
            self._terminal.line(line, style)

    def _note_activity(self, kind: EventType) -> None:
        """Remember the reason why the run waits from now on."""
        if label := meaning_of(kind).silence:
            if self._doing is None or self._doing[0] != label:
                self._doing = label, monotonic()
        elif kind in CLOSING_EVENTS:
            self._doing = None

    def _draw(self) -> None:
        """Draw the unfinished text and the running calls with their time, until nothing runs."""
        if not self._terminal.can_draw:
            return
        lines = self._status_lines()
        if self._markdown is not None:
            text = self._markdown.peek(self._terminal.width - 1, self._terminal.rows)
            lines = [*text, *([""] if text and lines else []), *lines]
        self._terminal.draw("run", lines)
        if lines and self._ticking is None:
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:  # events are shown afterwards
                return
            self._ticking = loop.call_later(_TICK_S, self._tick)

    def _tick(self) -> None:
        self._ticking = None
        self._frame += 1
        self._draw()

    def _status_lines(self) -> list[str]:
        terminal, signs = self._terminal, self._signs
        room, now = terminal.width - 1, monotonic()
        sign = signs.spinner[self._frame % len(signs.spinner)]
        calls = list(self._calls.values())
        lines = list(draw_calls(calls, terminal, signs, sign, followed=self._followed))
        if lines or (self._reasoning is None and self._doing is None):
            return lines
        if thought := self._reasoning:
            tail = " ".join(thought.tail.split())
            took = format_elapsed(now - thought.since)
            said = f"reasoning {took}, {thought.characters:,} characters"
            left = room - 2 - len(said) - 2
            words = fitted(tail[-left:] if left > 0 else "", left, signs) if left > 8 else ""
            said += f": {words}" if words else ""
        else:
            label, since = self._doing or ("", now)
            if since > now:  # text has just come
                return []
            said = " · ".join([f"{label} {format_elapsed(now - since)}", *self._spent()])
        return [f"{sign} {terminal.styled(fitted(said, room - 2, signs), Style.DIM)}"]

    def _spent(self) -> list[str]:
        """Return the use of the run so far, unless it is shown elsewhere."""
        if self._usage is None or not self._usage.total_tokens or self._terminal.has_status:
            return []
        cost = self._usage.cost
        known = [] if cost is None else [format_dollars(cost)]
        return [f"{self._usage.total_tokens:,} tokens", *known]

    def _stop_drawing(self) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
            self._ticking = None
        self._doing = None
        self._calls.clear()
        self._terminal.draw("run", [])

    def end(self, result_text: str | None, error: ErrorPayload | None, usage: Usage | None) -> None:
        """Show how the run ended; `result_text` is the answer, if there is one.

        Raises:
            OutputClosedError: the answer cannot be written.
        """
        self._show_waiting()
        self._end_reasoning()
        self._end_message(is_narration=error is not None)
        self._stop_drawing()
        if result_text is None:
            self._narrate_held()
        elif not self._streamed:
            self._held.clear()
            self._answer(result_text)
        self._terminal.end_text()
        if error is not None:
            self.failure(describe_error(self._unsaid(error.message), error.code))
        if self._objection:
            self._say(objection_line(self._objection), Style.WARN)
        if self._terminal.has_status:
            return
        if usage is not None and usage.total_tokens:
            self._say(f"tokens: {format_usage(usage)}", Style.DIM)
        for spender in SPENDERS:
            if tokens := self._tokens[spender]:
                self._terminal.line(f"tokens of {spender}: {tokens}", Style.DIM)

    def _answer(self, text: str) -> None:
        """Write an answer that did not stream."""
        terminal = self._terminal
        if terminal.streams_answer and self._lays_out:
            self._leave_gap()
            markdown = self._open_markdown()
            markdown.feed(text)
            terminal.block(markdown.finish(terminal.width - 1))
        else:
            terminal.text(text)

    def failure(self, message: str) -> None:
        """Show an error."""
        self._stop_drawing()
        self._say(f"error: {shown_error(message)}", Style.BAD)

    def interrupted(self) -> None:
        """Show that the interrupt has arrived, and how to leave without waiting."""
        self._terminal.leave_line()
        self._terminal.line("cancelling; once more to leave at once", Style.WARN)

    def resumable(self, session_id: str) -> None:
        """Show how to continue after a run that was cancelled."""
        self._terminal.line(f"cancelled; to continue, run again with --session-id {session_id}")

    def waiting(self, hints: Mapping[str, str]) -> None:
        """Show the questions that the run waits for, and how to answer: the last lines of all."""
        for request_id, hint in hints.items():
            self._terminal.command(f"waiting for an answer to {request_id}:", hint)


def answers_of(request: "PermissionRequest") -> list[str]:
    """Return the answers that a question takes, as they are typed."""
    from agent_core.permissions.request import wide_of  # noqa: PLC0415 - few runs ask

    wide = wide_of(request)
    more = [wide[0].removeprefix("allow_")] if wide else []
    return ["allow", "session", *more, "deny"]


def answer_hint(question: "ApprovalRecord") -> str:
    """Return the command that answers a question, with the answers that it takes.

    A shell refuses the line as it is: pasted by mistake, it answers nothing.
    """
    *answers, last = answers_of(question.request)
    takes = f"{', '.join(answers)} or {last}; --always, --reason TEXT"
    return f"soong-agent approvals answer {question.request_id} ANSWER ({takes})"


async def answer_hints(runtime: "AgentRuntime", handle: "RunHandle") -> dict[str, str]:
    """Return the command for each question that a run waits for, by its id."""
    if not (pending := handle.pending_requests):
        return {}
    questions = await runtime.approvals(handle.session_id, limit=_MOST_QUESTIONS)
    return {each.request_id: answer_hint(each) for each in questions if each.request_id in pending}
