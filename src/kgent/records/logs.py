"""The tool calls of a run, in `logs/tools.jsonl`."""

from typing import Any, Literal

from kgent.errors import ErrorInfo, Record

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
    args_summary: dict[str, Any] = {}
    result_summary: str | None = None
    artifacts: list[str] = []
    error: ErrorInfo | None = None
