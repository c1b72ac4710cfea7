"""The records of one run, as one object: events, transcript, calls, errors and archive."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from agent_core.redaction import Redactor
from kgent.records.archive import Archive
from kgent.records.conversation import ArchivedMessage, ConversationLog
from kgent.records.errors import ERRORS_FILE, ErrorLogger
from kgent.records.events import EVENTS_FILE, Event, EventRecorder
from kgent.records.lines import RecordLines
from kgent.records.logs import TOOLS_FILE, ToolCallRecord, ToolLogger
from kgent.records.transcript import TRANSCRIPT_FILE, TranscriptWriter
from kgent.runtime.ids import RunIds
from kgent.sandbox.files import RunFiles


class RunRecords:
    """Writes events, transcript, tool calls, errors, and the archive for larger content.

    Every line is redacted, and on disk before the method returns. Methods may be called from
    several threads. No file is opened before something is recorded. Every method raises `OSError`
    if the disk is full, and `ValueError` after the end of the run.

    Attributes:
        events: `events.jsonl`.
        transcript: `transcript.md`.
        tools: `logs/tools.jsonl`.
        errors: `logs/errors.jsonl`.
        archive: `archive/`.
        conversation: `archive/conversation.jsonl`.
        files: writes and hashes the run's own files.
        redactor: removes secrets.
    """

    def __init__(self, root: Path, ids: RunIds, *, redactor: Redactor | None = None) -> None:
        self.files = RunFiles(root)
        self.redactor = redactor or Redactor({})
        self._lines = RecordLines(self.files, self.redactor)
        self.archive = Archive(self._lines)
        self.events = EventRecorder(self._lines, self.archive, ids._asdict())
        self.transcript = TranscriptWriter(self._lines)
        self.tools = ToolLogger(self._lines)
        self.errors = ErrorLogger(self._lines)
        self.conversation = ConversationLog(self._lines, self.archive)

    def continue_from(
        self,
        events: Sequence[Event],
        *,
        calls: Iterable[ToolCallRecord | None],
        errors: int,
        messages: Iterable[ArchivedMessage],
        archived: Iterable[str],
    ) -> None:
        """Continue the records of earlier attempts: their numbers, names and conversation."""
        self.events.count, self.errors.count = len(events), errors
        self._lines.continue_from(max((event.timestamp for event in events), default=""))
        self.tools.continue_from(calls)
        self.archive.continue_from(archived)
        self.conversation.continue_from(messages)

    def hold(self) -> None:
        """Open every growing record now, so that it is still written if a program removes it."""
        for name in (EVENTS_FILE, TRANSCRIPT_FILE, TOOLS_FILE, ERRORS_FILE):
            self.files.hold(name)

    def close(self) -> None:
        """Flush everything and refuse further lines. May be called again."""
        self.files.close()

    def now(self) -> str:
        """Return the time for the next record, never earlier than the time of the last record."""
        return self._lines.now()

    @property
    def counts(self) -> dict[str, int]:
        """Return the numbers of recorded events, calls and errors."""
        calls, errors = self.tools.count, self.errors.count
        return {"events": self.events.count, "tool_calls": calls, "errors": errors}
