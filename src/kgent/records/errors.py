"""Every error as one line: `logs/errors.jsonl`."""

from agent_core.redaction import Redactor
from kgent.errors import ErrorInfo
from kgent.records.files import RunFiles
from kgent.records.lines import JsonLines
from kgent.runtime.state import now


class ErrorRecord(ErrorInfo):
    """An error, when it happened, and the tool call it belongs to."""

    timestamp: str
    correlation_id: str | None = None


class ErrorLogger:
    """Writes the errors of one run."""

    def __init__(self, files: RunFiles, name: str, *, redactor: Redactor) -> None:
        self._lines = JsonLines(files, name, redactor=redactor)

    def record(self, error: ErrorInfo, *, correlation_id: str | None = None) -> None:
        """Add an error.

        Raises:
            OSError: it could not be written.
            ValueError: the run is over.
        """
        self._lines.append(
            ErrorRecord(**error.model_dump(), timestamp=now(), correlation_id=correlation_id)
        )
