"""The errors of a run, in `logs/errors.jsonl`."""

from kgent.errors import ErrorInfo
from kgent.records.lines import RecordLines

ERRORS_FILE = "logs/errors.jsonl"


class ErrorRecord(ErrorInfo):
    """An error, its time, and the tool call it belongs to."""

    timestamp: str
    correlation_id: str | None = None


class ErrorLogger:
    """Records the errors of one run."""

    def __init__(self, lines: RecordLines) -> None:
        self._lines = lines
        self.count = 0
        """The number of errors so far."""

    def record(self, error: ErrorInfo, *, correlation_id: str | None = None) -> None:
        """Record an error; `correlation_id` is the id of its call, if it belongs to one."""
        facts = error.model_dump()
        with self._lines.lock:
            line = ErrorRecord(**facts, timestamp=self._lines.now(), correlation_id=correlation_id)
            self._lines.append(ERRORS_FILE, line)
            self.count += 1
