"""The errors of a run, in `logs/errors.jsonl`."""

from kgent.errors import ErrorInfo

ERRORS_FILE = "logs/errors.jsonl"


class ErrorRecord(ErrorInfo):
    """An error, its time, and the tool call it belongs to."""

    timestamp: str
    correlation_id: str | None = None
