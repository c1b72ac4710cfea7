"""The records of one run, together: whoever takes part writes here and opens no file itself."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from agent_core.redaction import Redactor
from kgent.records.errors import ErrorLogger
from kgent.records.events import EVENTS_FILE, EventRecorder
from kgent.records.files import PRIVATE_FILE, PRIVATE_FOLDER
from kgent.records.logs import ToolLogger
from kgent.records.transcript import TranscriptWriter
from kgent.runtime.ids import RunIds

TOOLS_FILE = "logs/tools.jsonl"
ERRORS_FILE = "logs/errors.jsonl"
TRANSCRIPT_FILE = "transcript.md"
ARCHIVE = "archive"


class Archive:
    """Files that a run keeps for later readers: too large for an event, or a result of its own."""

    def __init__(self, root: Path, redactor: Redactor) -> None:
        self._root = root
        self._redactor = redactor

    def keep_json(self, name: str, value: Any) -> str:
        """Keep a JSON value under `archive/<name>`, redacted; returns that path.

        Raises:
            OSError: it could not be written.
        """
        text = json.dumps(self._redactor.payload(value), ensure_ascii=False, indent=1)
        return self._write(name, text.encode("utf-8", "replace"), os.O_TRUNC)

    def keep_raw(self, name: str, content: bytes) -> str:
        """Keep bytes under `archive/<name>`, redacted; returns that path.

        Raises:
            OSError: it could not be written.
        """
        return self._write(name, self._redactor.raw(content), os.O_TRUNC)

    def add_lines(self, name: str, *values: Any) -> str:
        """Append JSON values to `archive/<name>`, redacted, one a line; returns that path.

        Raises:
            OSError: it could not be written.
        """
        clean = (self._redactor.payload(value) for value in values)
        text = "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in clean)
        return self._write(name, text.encode("utf-8", "replace"), os.O_APPEND)

    def _write(self, name: str, raw: bytes, how: int) -> str:
        path = self._root / ARCHIVE / name
        path.parent.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | how
        with os.fdopen(os.open(path, flags, PRIVATE_FILE), "wb") as file:
            file.write(raw)
        return f"{ARCHIVE}/{name}"


@dataclass(frozen=True, slots=True)
class RunRecords:
    """Events, transcript, tool calls, errors, and the archive of what is too large for them."""

    events: EventRecorder
    transcript: TranscriptWriter
    tools: ToolLogger
    errors: ErrorLogger
    archive: Archive
    redactor: Redactor

    @classmethod
    def at(cls, root: Path, ids: RunIds, *, redactor: Redactor) -> Self:
        """The records of a run folder. Nothing is opened before something is recorded."""
        archive = Archive(root, redactor)
        return cls(
            events=EventRecorder(
                root / EVENTS_FILE, ids, redactor=redactor, keep=archive.keep_json
            ),
            transcript=TranscriptWriter(root / TRANSCRIPT_FILE, redactor),
            tools=ToolLogger(root / TOOLS_FILE, redactor),
            errors=ErrorLogger(root / ERRORS_FILE, redactor),
            archive=archive,
            redactor=redactor,
        )

    def close(self) -> None:
        """The run is over: flush everything and take no more lines."""
        self.events.close()
        self.tools.close()
        self.errors.close()
