"""Lines of records: redacted, in order of time, and on disk at once."""

import re
import threading

from pydantic import BaseModel

from agent_core.redaction import Redactor
from agent_core.text import short_line
from agent_core.tools.values import storable_text
from agent_core.types import utc_now
from kgent.sandbox.files import RunFiles

_MAX_LINE = 300
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST_LABEL = 100


class RecordLines:
    """Appends records to the files of a run, from any thread.

    Attributes:
        files: the run's own files.
        redactor: removes secrets from everything that is written.
        lock: held while several records have to belong together.
    """

    def __init__(self, files: RunFiles, redactor: Redactor) -> None:
        self.files = files
        self.redactor = redactor
        self.lock = threading.RLock()
        self._latest = ""

    def continue_from(self, time: str) -> None:
        """Take the time of the last record of earlier attempts."""
        self._latest = max(self._latest, time)

    def now(self) -> str:
        """Return the time for the next record, never earlier than the time of the last record."""
        with self.lock:
            self._latest = max(self._latest, now())
            return self._latest

    def append(self, name: str, record: BaseModel) -> None:
        """Append a record to a file as one line of JSON."""
        clean = type(record).model_validate(self.redactor.payload(record.model_dump(mode="json")))
        self.files.append(name, clean.model_dump_json().encode("utf-8", "replace") + b"\n")


def now() -> str:
    """Return the current time in the form of all records: UTC, ISO 8601, microseconds."""
    return utc_now().isoformat(timespec="microseconds")


def summary_line(text: str) -> str:
    """Return `text` as one line of limited length that is valid in every store."""
    return short_line(storable_text(text[: _MAX_LINE * 4]), _MAX_LINE + 1)


def plain_name(label: str) -> str:
    """Convert text to a file name of letters, digits, `_` and `-`, which may not be unique."""
    return _NOT_PLAIN.sub("_", label)[:_LONGEST_LABEL] or "unnamed"
