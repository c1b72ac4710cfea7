"""Shows a run as plain text: the answer as it is written, and a line for what happens besides."""

from collections.abc import Callable, Mapping
from typing import Any

from agent_core.cli.terminal import Style, Terminal
from agent_core.redaction.visible import shortened, visible
from agent_core.types import ErrorPayload, EventLevel, EventType, RuntimeEvent, Usage

_DONE = {
    EventType.TOOL_COMPLETED: ("ok", Style.GOOD),
    EventType.TOOL_FAILED: ("failed", Style.BAD),
    EventType.TOOL_DENIED: ("denied", Style.BAD),
}
_SAID_ELSEWHERE = {
    EventType.TOOL_TIMEOUT,  # a tool_failed follows
    EventType.MODEL_FAILED,  # the run's end says why
    EventType.LOOP_FAILED,
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
_TELLING = ("name", "worker_id", "agent_definition_id", "server_id", "step_id", "child_run_id")
_CHILD_ENDS = {
    EventType.CHILD_AGENT_COMPLETED,
    EventType.CHILD_AGENT_FAILED,
    EventType.CHILD_AGENT_CANCELLED,
}
_SUMMARY_ENDS = {EventType.COMPACT_COMPLETED, EventType.COMPACT_FAILED}
_LONGEST_MESSAGE = 2000


class PlainView:
    """Shows the events of one run."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._has_text = False
        self._child_tokens = 0
        self._summary_tokens = 0
        self._show: dict[EventType, Callable[[Mapping[str, Any]], None]] = {
            EventType.RUN_QUEUED: self._queued,
            EventType.MODEL_STARTED: self._model_started,
            EventType.MODEL_TEXT_DELTA: self._text,
            EventType.MODEL_COMPLETED: self._model_ended,
            EventType.MODEL_FAILED: self._model_ended,
            EventType.MODEL_RETRY: self._retry,
            EventType.TOOL_STARTED: self._tool_started,
            EventType.TOOL_PROGRESS: self._tool_progress,
        }

    def session(self, session_id: str) -> None:
        """Say which session this is: what `--session-id` takes to go on with it."""
        self._terminal.line(f"session {session_id}", Style.DIM)

    def event(self, event: RuntimeEvent) -> None:
        """Show one event, if it is worth showing.

        Raises:
            OutputClosedError: the answer cannot be written.
        """
        kind, payload = event.event_type, event.payload
        if kind in _CHILD_ENDS:
            self._child_tokens += _tokens(payload)
        if kind in _SUMMARY_ENDS:
            self._summary_tokens += _tokens(payload)
        if kind is EventType.CHILD_AGENT_CREATED and payload.get("role") == "worker":
            return  # a line about the worker follows
        if show := self._show.get(kind):
            show(payload)
        elif kind in _DONE:
            self._tool_ended(*_DONE[kind], payload)
        elif kind in _WORTH_A_LINE:
            self._terminal.line(_with_name(_WORTH_A_LINE[kind], payload), Style.DIM)
        elif event.level in {EventLevel.WARNING, EventLevel.ERROR} and kind not in _SAID_ELSEWHERE:
            text = _with_name(kind.replace("_", " "), payload)
            self._terminal.line(text + _because(payload), Style.WARN)

    def end(self, result_text: str | None, error: ErrorPayload | None, usage: Usage | None) -> None:
        """Show how the run ended.

        Raises:
            OutputClosedError: the answer cannot be written.
        """
        if result_text and not self._has_text:  # from a provider that does not stream
            self._terminal.text(result_text)
        self._terminal.end_text()
        if error is not None:
            self.failure(f"{error.code}: {error.message}")
        if usage is not None and usage.total_tokens:
            self._terminal.line(
                f"tokens: {usage.input_tokens} in, {usage.output_tokens} out,"
                f" {usage.total_tokens} in all",
                Style.DIM,
            )
        if self._child_tokens:
            self._terminal.line(f"tokens of child agents: {self._child_tokens}", Style.DIM)
        if self._summary_tokens:
            self._terminal.line(f"tokens of summaries: {self._summary_tokens}", Style.DIM)

    def failure(self, message: str) -> None:
        """Say what went wrong."""
        self._terminal.line(f"error: {_indented(message)}", Style.BAD)

    def interrupted(self) -> None:
        """Say that the interrupt was heard, and how to leave without waiting."""
        self._terminal.leave_line()
        self._terminal.line("cancelling; once more to leave at once", Style.WARN)

    def resumable(self, session_id: str) -> None:
        """Say how to go on after a run that was cancelled."""
        self._terminal.line(f"cancelled; to go on, run again with --session-id {session_id}")

    def _queued(self, payload: Mapping[str, Any]) -> None:
        taken_over = payload.get("taken_over")
        count = len(taken_over) if isinstance(taken_over, list) else 0  # pyright: ignore[reportUnknownArgumentType]
        text = "waiting for the runs in front"
        if count:
            text = (
                f"first come {count} messages that were queued when a process of this session died"
            )
        self._terminal.line(text, Style.DIM)

    def _model_started(self, _: Mapping[str, Any]) -> None:
        self._has_text = False

    def _text(self, payload: Mapping[str, Any]) -> None:
        text = str(payload.get("text", ""))
        self._has_text = self._has_text or bool(text)
        self._terminal.text(text)

    def _model_ended(self, _: Mapping[str, Any]) -> None:
        self._terminal.end_text()

    def _retry(self, payload: Mapping[str, Any]) -> None:
        seconds = _number(payload.get("delay_ms")) / 1000
        attempt = payload.get("attempt", "")
        text = f"attempt {attempt} failed{_because(payload)}; the next one in {seconds:.1f} s"
        self._terminal.line(text, Style.WARN)

    def _tool_started(self, payload: Mapping[str, Any]) -> None:
        name, summary = str(payload.get("tool_name", "")), str(payload.get("summary") or "")
        shown = name if summary == name else f"{name} {summary}".rstrip()
        self._one_line(f"> {shown}", Style.BOLD)

    def _tool_progress(self, payload: Mapping[str, Any]) -> None:
        self._one_line(f"  {payload.get('text', '')}", Style.DIM)

    def _tool_ended(self, word: str, style: Style, payload: Mapping[str, Any]) -> None:
        took = payload.get("duration_ms")
        duration = f" ({_duration(_number(took))})" if took is not None else ""
        why = "" if word == "ok" else _because(payload)
        name = visible(str(payload.get("tool_name", "")), one_line=True)
        self._terminal.line(f"  {name} {word}{duration}{why}", style)

    def _one_line(self, text: str, style: Style) -> None:
        room = self._terminal.width - 1
        line = visible(text, one_line=True)
        self._terminal.line(line if len(line) <= room else f"{line[: room - 1]}…", style)


def _because(payload: Mapping[str, Any]) -> str:
    error = payload.get("error")
    if isinstance(error, Mapping):
        return _because(error)  # pyright: ignore[reportUnknownArgumentType]
    said = payload.get("message") or error or payload.get("reason")
    code = payload.get("code")
    parts = [str(part) for part in (code, said) if part]
    return f": {_indented(': '.join(parts))}" if parts else ""


def _indented(message: str) -> str:
    # Messages quote files and servers: none of their lines may pass for one of ours.
    return shortened(message, _LONGEST_MESSAGE).replace("\n", "\n      ")


def _with_name(text: str, payload: Mapping[str, Any]) -> str:
    name = next((str(payload[key]) for key in _TELLING if payload.get(key)), "")
    return f"{text}: {visible(name, one_line=True)}" if name else text


def _tokens(payload: Mapping[str, Any]) -> int:
    usage = payload.get("usage")
    total = usage.get("total_tokens") if isinstance(usage, dict) else 0  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return total if isinstance(total, int) else 0


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _duration(milliseconds: float) -> str:
    return f"{milliseconds:.0f} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.1f} s"
