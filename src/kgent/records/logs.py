"""Every tool call as one line, whatever became of it: `logs/tools.jsonl`."""

import threading
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from agent_core.redaction import Redactor
from kgent.errors import ErrorInfo
from kgent.records.files import RunFiles
from kgent.records.lines import JsonLines


class ToolCallRecord(BaseModel):
    """One call: who asked for what, how long it took, what came of it.

    `args_summary` has every argument, long ones cut and secrets removed; `artifacts` are paths
    inside the run folder.
    """

    model_config = ConfigDict(frozen=True)

    call_id: str
    tool_name: str
    action: str
    started_at: str
    completed_at: str | None = None
    duration_ms: int | None = None
    status: Literal["completed", "failed", "blocked"]
    args_summary: dict[str, Any] = {}
    result_summary: str | None = None
    artifacts: list[str] = []
    error: ErrorInfo | None = None


class ToolLogger:
    """Writes the tool calls of one run, and remembers who made which file."""

    def __init__(self, files: RunFiles, name: str, *, redactor: Redactor) -> None:
        self._lines = JsonLines(files, name, redactor=redactor)
        self._lock = threading.Lock()
        self._makers: dict[str, str] = {}
        self._calls: list[ToolCallRecord] = []

    def record(self, call: ToolCallRecord) -> None:
        """Add a call that is over.

        Raises:
            OSError: it could not be written.
            ValueError: the run is over.
        """
        self._lines.append(call)
        with self._lock:
            self._calls.append(call)
            self._makers.update(dict.fromkeys(call.artifacts, call.tool_name))

    @property
    def calls(self) -> list[ToolCallRecord]:
        """The calls so far, in the order in which they ended."""
        with self._lock:
            return list(self._calls)

    def maker_of(self, path: str) -> str | None:
        """The tool that wrote a file of the run folder last."""
        return self._makers.get(path)
