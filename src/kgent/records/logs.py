"""The tool calls of a run, in `logs/tools.jsonl`."""

from collections.abc import Iterable
from typing import Literal

from agent_core.text.json_text import JsonObject
from kgent.errors import ErrorInfo, Record
from kgent.records.lines import RecordLines

TOOLS_FILE = "logs/tools.jsonl"


class ToolCallRecord(Record):
    """A tool call: its arguments, duration and result.

    `args_summary` has every argument, with long ones shortened and secrets removed; `artifacts` are
    paths inside the run folder.
    """

    call_id: str
    tool_name: str
    action: str
    started_at: str
    completed_at: str | None = None
    duration_ms: int | None = None
    status: Literal["completed", "failed", "blocked"]
    args_summary: JsonObject = {}
    result_summary: str | None = None
    artifacts: list[str] = []
    error: ErrorInfo | None = None


class ToolLogger:
    """Records the calls that have ended."""

    def __init__(self, lines: RecordLines) -> None:
        self._lines = lines
        self._calls: list[ToolCallRecord] = []
        self._makers: dict[str, str] = {}
        self.count = 0
        """The number of calls so far, also of earlier attempts."""

    def continue_from(self, calls: Iterable[ToolCallRecord | None]) -> None:
        """Count the calls of earlier attempts, and what they have written."""
        for call in calls:
            self.count += 1
            if call is not None:
                self._makers.update(dict.fromkeys(call.artifacts, call.tool_name))

    def record(self, call: ToolCallRecord) -> None:
        """Record a call that has ended."""
        with self._lines.lock:
            self._lines.append(TOOLS_FILE, call)
            self._calls.append(call)
            self.count += 1
            self._makers.update(dict.fromkeys(call.artifacts, call.tool_name))

    @property
    def calls(self) -> list[ToolCallRecord]:
        """Return the calls of this attempt so far, in the order in which they ended."""
        with self._lines.lock:
            return list(self._calls)

    def maker_of(self, path: str) -> str | None:
        """Return the tool that last wrote a file of the run folder."""
        return self._makers.get(path)
