"""The records of a run, written as it happens: events, calls, errors, transcript, archive."""

import fcntl
import json
import re
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from agent_core.redaction import Redactor
from agent_core.text import strict_json, visible
from agent_core.tools.values import storable
from agent_core.types import new_id
from kgent.errors import ErrorInfo
from kgent.records.errors import ERRORS_FILE, ErrorRecord
from kgent.records.events import EVENTS_FILE, MAX_DATA_BYTES, Event, RunEventType, now, summary_line
from kgent.records.logs import TOOLS_FILE, ToolCallRecord
from kgent.records.transcript import SECTIONS, TRANSCRIPT_FILE
from kgent.runtime.ids import RunIds
from kgent.sandbox.files import RunFiles

ARCHIVE = "archive"


TOOL_OUTPUT = "tool-output"
"""The folder of the archive for results that are too large for a message."""


_NOT_PLAIN = re.compile(r"[^A-Za-z0-9_-]")


_LONGEST_LABEL = 100


class RunRecords:
    """Writes events, transcript, tool calls, errors, and the archive for larger content.

    Every line is redacted, and on disk before the method returns. Methods may be called from
    several threads. No file is opened before something is recorded. Every method raises `OSError`
    if the disk is full, and `ValueError` after the end of the run.
    """

    def __init__(self, root: Path, ids: RunIds, *, redactor: Redactor) -> None:
        self.files = RunFiles(root)
        self.redactor = redactor
        self._ids = ids
        self._lock = threading.RLock()
        self._sequence = 0
        self._calls: list[ToolCallRecord] = []
        self._makers: dict[str, str] = {}
        self._sections: dict[str, list[str]] = {}
        self._last_section: str | None = None
        self._archived: set[str] = set()
        self._errors = 0
        self._latest = ""

    def hold(self) -> None:
        """Open every growing record now, so that it is still written if a program removes it."""
        for name in (EVENTS_FILE, TRANSCRIPT_FILE, TOOLS_FILE, ERRORS_FILE):
            self.files.hold(name)

    def close(self) -> None:
        """Flush everything and refuse further lines. May be called again."""
        self.files.close()

    def now(self) -> str:
        """Return the time for the next record, never earlier than the time of the last record."""
        with self._lock:
            self._latest = max(self._latest, now())
            return self._latest

    # --- events, calls, errors --------------------------------------------------------------------

    def emit(
        self,
        event_type: RunEventType,
        summary: str,
        data: Mapping[str, Any] | None = None,
        *,
        actor: str = "runtime",
        severity: str = "info",
        correlation_id: str | None = None,
        parent_event_id: str | None = None,
    ) -> Event:
        """Record an event. The first one locks the file until the process ends or closes it."""
        with self._lock:
            sequence, content = self._sequence + 1, storable(dict(data or {}))
            size = len(json.dumps(content, ensure_ascii=False).encode("utf-8", "replace"))
            if size > MAX_DATA_BYTES:
                artifact = self.keep_json("events", f"{sequence:06}", content)
                keys = [key[:60] for key in list(content)[:20]]
                facts = {"summarised": True, "bytes": size, "keys": keys, "artifact": artifact}
                content = {key: content[key] for key in keys if key.endswith("_sha256")} | facts
            event = Event(
                event_id=new_id("evt"),
                sequence=sequence,
                run_id=self._ids.run_id,
                session_id=self._ids.session_id,
                task_id=self._ids.task_id,
                type=event_type,
                timestamp=self.now(),
                actor=actor,
                severity=severity,
                summary=summary_line(summary),
                data=content,
                correlation_id=correlation_id,
                parent_event_id=parent_event_id,
            )
            if sequence == 1:
                # Waits for readers, which hold it only for a moment. On a file system without locks
                # readers cannot see that the run is active.
                with suppress(OSError):
                    fcntl.flock(self.files.hold(EVENTS_FILE), fcntl.LOCK_EX)
            self._append_line(EVENTS_FILE, event)
            self._sequence = sequence
        return event

    def record_error(self, error: ErrorInfo, *, correlation_id: str | None = None) -> None:
        """Record an error; `correlation_id` is the id of its call, if it belongs to one."""
        facts = error.model_dump()
        with self._lock:
            line = ErrorRecord(**facts, timestamp=self.now(), correlation_id=correlation_id)
            self._append_line(ERRORS_FILE, line)
            self._errors += 1

    def record_call(self, call: ToolCallRecord) -> None:
        """Record a call that has ended."""
        with self._lock:
            self._append_line(TOOLS_FILE, call)
            self._calls.append(call)
            self._makers.update(dict.fromkeys(call.artifacts, call.tool_name))

    @property
    def counts(self) -> dict[str, int]:
        """Return the numbers of recorded events, calls and errors."""
        with self._lock:
            calls = len(self._calls)
            return {"events": self._sequence, "tool_calls": calls, "errors": self._errors}

    @property
    def calls(self) -> list[ToolCallRecord]:
        """Return the calls so far, in the order in which they ended."""
        with self._lock:
            return list(self._calls)

    def maker_of(self, path: str) -> str | None:
        """Return the tool that last wrote a file of the run folder."""
        return self._makers.get(path)

    def _append_line(self, name: str, line: BaseModel) -> None:
        clean = type(line).model_validate(self.redactor.payload(line.model_dump(mode="json")))
        self.files.append(name, clean.model_dump_json().encode("utf-8", "replace") + b"\n")

    # --- the transcript ---------------------------------------------------------------------------

    def append_section(self, title: str, content: str) -> None:
        """Add text to a section of the transcript, which can be read at any time."""
        clean = self.redactor.text(visible(content, zero_width=False)).rstrip()
        with self._lock:
            self._sections.setdefault(title, []).append(clean)
            head = "" if title == self._last_section else f"\n## {title}\n\n"
            self._last_section = title
            self.files.append(TRANSCRIPT_FILE, f"{head}{clean}\n".encode("utf-8", "replace"))

    def finish_transcript(self) -> None:
        """Rewrite the whole transcript with its sections in order."""
        with self._lock:
            others = [title for title in self._sections if title not in SECTIONS]
            parts = [f"# Transcript of {self._ids.run_id}"]
            for title in (*SECTIONS, *others):
                body = "\n".join(self._sections.get(title, ["(nothing)"]))
                parts.append(f"## {title}\n\n{body}")
            self.files.put(TRANSCRIPT_FILE, "\n\n".join(parts) + "\n")

    # --- the archive ------------------------------------------------------------------------------

    def keep_json(self, folder: str, label: str, value: Any) -> str:
        """Store a JSON value in a folder of the archive; return its path in the run folder."""
        text = strict_json(self.redactor.payload(value), ensure_ascii=False, indent=1)
        return self._keep(folder, label, ".json", text.encode("utf-8", "replace"))

    def keep_raw(self, folder: str, label: str, content: bytes, *, ending: str = "") -> str:
        """Store bytes in a folder of the archive; return their path in the run folder."""
        return self._keep(folder, label, ending, self.redactor.raw(content))

    def add_lines(self, name: str, *values: Any) -> str:
        """Append JSON values to `archive/<name>`, one per line; return that path."""
        clean = (self.redactor.payload(value) for value in values)
        text = "".join(strict_json(value, ensure_ascii=False) + "\n" for value in clean)
        self.files.append(f"{ARCHIVE}/{name}", text.encode("utf-8", "replace"))
        return f"{ARCHIVE}/{name}"

    def _keep(self, folder: str, label: str, ending: str, raw: bytes) -> str:
        """Write a file under an unused name of plain characters.

        The label may be any text, and may occur twice; a model's id of a call is an example.
        """
        plain = f"{ARCHIVE}/{folder}/{plain_name(label)}"
        name, number = f"{plain}{ending}", 1
        with self._lock:
            while name in self._archived:
                number += 1
                name = f"{plain}-{number}{ending}"
            self._archived.add(name)
        self.files.put(name, raw)
        return name


def plain_name(label: str) -> str:
    """Convert text to a file name of letters, digits, `_` and `-`, which may not be unique."""
    return _NOT_PLAIN.sub("_", label)[:_LONGEST_LABEL] or "unnamed"
