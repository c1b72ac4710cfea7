"""Shows a run as plain text: the answer as it is written, and a line for what happens besides."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from agent_core.cli.terminal import Style, Terminal
from agent_core.text import shortened, visible
from agent_core.types import ErrorPayload, EventLevel, EventType, RuntimeEvent, Usage

_TOOL_ENDS = {
    EventType.TOOL_COMPLETED: ("ok", Style.GOOD),
    EventType.TOOL_FAILED: ("failed", Style.BAD),
    EventType.TOOL_DENIED: ("denied", Style.BAD),
}
_SHOWN_ELSEWHERE = {
    EventType.TOOL_TIMEOUT,  # a tool_failed follows
    EventType.LOOP_FAILED,  # the run's end shows why
    EventType.LOOP_ABORTED,
    EventType.RUN_FAILED,
    EventType.RUN_CANCELLED,
    EventType.PERMISSION_FAILED,  # a tool_denied follows
}
_WORTH_A_LINE = {
    EventType.COMPACT_STARTED: "summarising the conversation",
    EventType.CHILD_AGENT_CREATED: "child agent started",
    EventType.CHILD_AGENT_COMPLETED: "child agent finished",
    EventType.WORKER_DISPATCHED: "worker started",
    EventType.CANCEL_TIMEOUT: "still cleaning up",
}
_NAMING = ("name", "worker_id", "agent_definition_id", "server_id", "step_id", "child_run_id")
_COUNTED = {
    **dict.fromkeys(
        (
            EventType.CHILD_AGENT_COMPLETED,
            EventType.CHILD_AGENT_FAILED,
            EventType.CHILD_AGENT_CANCELLED,
        ),
        "child agents",
    ),
    **dict.fromkeys((EventType.COMPACT_COMPLETED, EventType.COMPACT_FAILED), "summaries"),
}
"""Whose tokens an event reports."""
_LONGEST_MESSAGE = 2000
ANSWER = "soong-agent approvals answer %s allow|session|deny [--reason TEXT]"


class PlainView:
    """Shows the events of one run."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._has_text = False
        self._held: list[str] = []
        self._tokens = dict.fromkeys(_COUNTED.values(), 0)

    def session(self, session_id: str) -> None:
        """Show which session this is: what `--session-id` takes to go on with it."""
        self._terminal.line(f"session {session_id}", Style.DIM)

    def event(self, event: RuntimeEvent) -> None:
        """Show one event, if it is worth showing.

        Raises:
            OutputClosedError: the answer cannot be written.
        """
        kind, payload = event.event_type, event.payload
        if kind in _COUNTED:
            usage: Mapping[str, Any] = payload.get("usage") or {}
            self._tokens[_COUNTED[kind]] += int(usage.get("total_tokens") or 0)
        if kind is EventType.MODEL_TEXT_DELTA:
            text = str(payload.get("text", ""))
            if not self._terminal.streams_answer:
                self._held = [text] if payload.get("from_start") else [*self._held, text]
                return
            self._has_text = self._has_text or bool(text)
            self._terminal.text(text)
            return
        match kind:
            case EventType.MODEL_STARTED:
                self._narrate()
                self._has_text = False
            case EventType.MODEL_COMPLETED | EventType.MODEL_FAILED:
                if kind is EventType.MODEL_FAILED or payload.get("tool_calls"):
                    self._narrate()
                self._terminal.end_text()
            case EventType.TOOL_STARTED:
                self._narrate()
                name, summary = str(payload.get("tool_name", "")), payload.get("summary") or ""
                shown = name if summary == name else f"{name} {summary}".rstrip()
                self._one_line(f"> {shown}", Style.BOLD)
            case EventType.TOOL_PROGRESS:
                self._one_line(f"  {payload.get('text', '')}", Style.DIM)
            case _:
                self._other_event(event)

    def _other_event(self, event: RuntimeEvent) -> None:
        kind, payload = event.event_type, event.payload
        if kind is EventType.MODEL_RETRY:
            self._narrate()
        if kind is EventType.CHILD_AGENT_CREATED and payload.get("role") == "worker":
            return  # a line about the worker follows
        line, style = "", Style.DIM
        if kind in _TOOL_ENDS:
            word, style = _TOOL_ENDS[kind]
            took = payload.get("duration_ms")
            duration = f" ({_duration(_number(took))})" if took is not None else ""
            name = visible(str(payload.get("tool_name", "")), one_line=True)
            line = f"  {name} {word}{duration}{'' if word == 'ok' else _because(payload)}"
        elif kind is EventType.RUN_QUEUED:
            count = len(payload.get("taken_over") or ())
            died = "messages that were queued when a process of this session died"
            line = f"first come {count} {died}" if count else "waiting for the runs in front"
        elif kind is EventType.MODEL_RETRY:
            seconds, style = _number(payload.get("delay_ms")) / 1000, Style.WARN
            failed = f"attempt {payload.get('attempt', '')} failed{_because(payload)}"
            line = f"{failed}; {_next_model(payload) or f'the next one in {seconds:.1f} s'}"
        elif kind in _WORTH_A_LINE:
            line = _with_name(_WORTH_A_LINE[kind], payload)
        elif event.level in {EventLevel.WARNING, EventLevel.ERROR} and kind not in _SHOWN_ELSEWHERE:
            line, style = (
                _with_name(kind.replace("_", " "), payload) + _because(payload),
                Style.WARN,
            )
        if line:
            self._terminal.line(line, style)

    def end(self, result_text: str | None, error: ErrorPayload | None, usage: Usage | None) -> None:
        """Show how the run ended; `result_text` is the answer, if there is one.

        Raises:
            OutputClosedError: the answer cannot be written.
        """
        if result_text is None:
            self._narrate()
        elif not self._has_text:  # it was not known to be final, or not streamed
            self._terminal.text(result_text)
        self._terminal.end_text()
        if error is not None:
            self.failure(f"{error.code}: {error.message}")
        if usage is not None and usage.total_tokens:
            self._terminal.line(f"tokens: {format_usage(usage)}", Style.DIM)
        for purpose, tokens in self._tokens.items():
            if tokens:
                self._terminal.line(f"tokens of {purpose}: {tokens}", Style.DIM)

    def _narrate(self) -> None:
        """Show a text that has turned out to be none of the answer."""
        text, self._held = "".join(self._held).strip(), []
        if text:
            self._terminal.line(text, Style.DIM)

    def failure(self, message: str) -> None:
        """Show what went wrong."""
        self._terminal.line(f"error: {_indent(message)}", Style.BAD)

    def interrupted(self) -> None:
        """Show that the interrupt has arrived, and how to leave without waiting."""
        self._terminal.leave_line()
        self._terminal.line("cancelling; once more to leave at once", Style.WARN)

    def resumable(self, session_id: str) -> None:
        """Show how to go on after a run that was cancelled."""
        self._terminal.line(f"cancelled; to go on, run again with --session-id {session_id}")

    def waiting(self, request_ids: Sequence[str]) -> None:
        """Show what the run waits for, and how to answer: the last lines of all."""
        for request_id in request_ids:
            self._terminal.line(f"waiting for an answer to {request_id}: {ANSWER % request_id}")

    def _one_line(self, text: str, style: Style) -> None:
        room = self._terminal.width - 1
        line = visible(text, one_line=True)
        self._terminal.line(line if len(line) <= room else f"{line[: room - 1]}…", style)


def format_usage(usage: Usage) -> str:
    """The tokens of a run in words, and its cost if that is known."""
    cost = "" if usage.cost is None else f", ${usage.cost:,.{4 if usage.cost >= 0.01 else 6}f}"
    return f"{usage.input_tokens} in, {usage.output_tokens} out, {usage.total_tokens} in all{cost}"


def _because(payload: Mapping[str, Any]) -> str:
    error = payload.get("error")
    if isinstance(error, Mapping):
        return _because(error)  # pyright: ignore[reportUnknownArgumentType]
    reason = payload.get("message") or error or payload.get("reason")
    parts = [str(part) for part in (payload.get("code"), reason) if part]
    return f": {_indent(': '.join(parts))}" if parts else ""


def _next_model(payload: Mapping[str, Any]) -> str:
    """Which model is asked in place of the one that has failed, if another one is."""
    fallback = payload
    for key in ("error", "details", "fallback"):
        inner = fallback.get(key)
        if not isinstance(inner, Mapping):
            return ""
        fallback = cast("Mapping[str, Any]", inner)
    name = f"{fallback.get('model', '')} of {fallback.get('provider', '')}"
    return f"now {visible(name, one_line=True)} is asked"


def _indent(message: str) -> str:
    # Messages quote files and servers: none of their lines may pass for one of ours.
    return shortened(message, _LONGEST_MESSAGE).replace("\n", "\n      ")


def _with_name(text: str, payload: Mapping[str, Any]) -> str:
    name = next((str(payload[key]) for key in _NAMING if payload.get(key)), "")
    return f"{text}: {visible(name, one_line=True)}" if name else text


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _duration(milliseconds: float) -> str:
    return f"{milliseconds:.0f} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.1f} s"
