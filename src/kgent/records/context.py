"""The records of one run, together: whoever takes part writes here and opens no file itself."""

import json
import re
import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

from agent_core.redaction import Redactor
from kgent.records.errors import ErrorLogger
from kgent.records.events import EVENTS_FILE, EventRecorder
from kgent.records.files import RunFiles
from kgent.records.logs import ToolLogger
from kgent.records.transcript import TranscriptWriter
from kgent.runtime.ids import RunIds

TOOLS_FILE = "logs/tools.jsonl"
ERRORS_FILE = "logs/errors.jsonl"
TRANSCRIPT_FILE = "transcript.md"
ARCHIVE = "archive"
TOOL_OUTPUT = "tool-output"
"""The folder of the archive for results that are too large for a message."""

_NOT_PLAIN = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST_LABEL = 100


class Archive:
    """Files that a run keeps for later readers: too large for an event, or a result of its own.

    Kept files are named after labels such as a model's id of a call, which can be any text: a name
    has plain characters only, and no file is replaced by a later one with the same label.
    """

    def __init__(self, files: RunFiles, redactor: Redactor) -> None:
        self._files = files
        self._redactor = redactor
        self._lock = threading.Lock()
        self._taken: set[str] = set()

    def keep_json(self, folder: str, label: str, value: Any) -> str:
        """Keep a JSON value in a folder of the archive, redacted; returns its path.

        Raises:
            OSError: it could not be written.
        """
        text = json.dumps(self._redactor.payload(value), ensure_ascii=False, indent=1)
        return self._put(self._free_name(folder, label, ".json"), text.encode("utf-8", "replace"))

    def keep_raw(self, folder: str, label: str, content: bytes, *, ending: str = "") -> str:
        """Keep bytes in a folder of the archive, redacted; returns their path.

        Raises:
            OSError: they could not be written.
        """
        return self._put(self._free_name(folder, label, ending), self._redactor.raw(content))

    def add_lines(self, name: str, *values: Any) -> str:
        """Append JSON values to `archive/<name>`, redacted, one a line; returns that path.

        Raises:
            OSError: it could not be written.
        """
        clean = (self._redactor.payload(value) for value in values)
        text = "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in clean)
        self._files.append(f"{ARCHIVE}/{name}", text.encode("utf-8", "replace"))
        return f"{ARCHIVE}/{name}"

    def _free_name(self, folder: str, label: str, ending: str) -> str:
        plain = f"{folder}/{_NOT_PLAIN.sub('_', label)[:_LONGEST_LABEL] or 'unnamed'}"
        name, number = f"{plain}{ending}", 1
        with self._lock:
            while name in self._taken:
                number += 1
                name = f"{plain}-{number}{ending}"
            self._taken.add(name)
        return name

    def _put(self, name: str, raw: bytes) -> str:
        self._files.put(f"{ARCHIVE}/{name}", raw)
        return f"{ARCHIVE}/{name}"


@dataclass(frozen=True, slots=True)
class RunRecords:
    """Events, transcript, tool calls, errors, and the archive of what is too large for them.

    All of them are written through `files`.
    """

    files: RunFiles
    events: EventRecorder
    transcript: TranscriptWriter
    tools: ToolLogger
    errors: ErrorLogger
    archive: Archive
    redactor: Redactor

    @classmethod
    def at(cls, root: Path, ids: RunIds, *, redactor: Redactor) -> Self:
        """The records of a run folder. Nothing is opened before something is recorded."""
        files = RunFiles(root)
        archive = Archive(files, redactor)
        return cls(
            files=files,
            events=EventRecorder(
                files, ids, redactor=redactor, keep=partial(archive.keep_json, "events")
            ),
            transcript=TranscriptWriter(files, TRANSCRIPT_FILE, redactor=redactor),
            tools=ToolLogger(files, TOOLS_FILE, redactor=redactor),
            errors=ErrorLogger(files, ERRORS_FILE, redactor=redactor),
            archive=archive,
            redactor=redactor,
        )

    def hold(self) -> None:
        """Open every growing record now: it can be removed after that, and is still written.

        Raises:
            OSError: one of them cannot be opened.
        """
        for name in (EVENTS_FILE, TRANSCRIPT_FILE, TOOLS_FILE, ERRORS_FILE):
            self.files.hold(name)

    def close(self) -> None:
        """Flush everything and take no more lines. Harmless when called again."""
        self.files.close()
