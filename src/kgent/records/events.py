"""What happened, in order: `events.jsonl`."""

import fcntl
import json
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from agent_core.errors import ToolError
from agent_core.redaction import Redactor
from agent_core.tools.files import open_file
from agent_core.tools.results import storable, storable_text
from agent_core.types import new_id
from kgent.records.files import RunFiles
from kgent.records.lines import JsonLines
from kgent.runtime.ids import RunIds
from kgent.runtime.state import now

EVENTS_FILE = "events.jsonl"
MAX_DATA_BYTES = 2048
_MAX_SUMMARY = 300


class EventType(StrEnum):
    """Everything that is recorded."""

    RUN_CREATED = "run.created"
    RUN_STARTED = "run.started"
    RUN_COMPLETED = "run.completed"
    RUN_INCOMPLETE = "run.incomplete"
    RUN_FAILED = "run.failed"
    CONFIG_LOADED = "config.loaded"
    PROMPT_RENDERED = "prompt.rendered"
    SKILL_INDEXED = "skill.indexed"
    SKILL_LOADED = "skill.loaded"
    MEMORY_RECALL_STARTED = "memory.recall.started"
    MEMORY_RECALL_COMPLETED = "memory.recall.completed"
    MEMORY_WRITE_REQUESTED = "memory.write.requested"
    TOOL_STARTED = "tool.started"
    TOOL_COMPLETED = "tool.completed"
    TOOL_FAILED = "tool.failed"
    TOOL_BLOCKED = "tool.blocked"
    FILE_READ = "file.read"
    FILE_WRITTEN = "file.written"
    FILE_REJECTED = "file.rejected"
    DELIVERABLE_CHECK_STARTED = "deliverable.check.started"
    DELIVERABLE_CHECK_COMPLETED = "deliverable.check.completed"
    DELIVERABLE_MISSING = "deliverable.missing"
    ERROR = "error"


class Event(BaseModel):
    """One thing that happened. `sequence`, from 1 and without gaps, is the order of the run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    event_id: str
    sequence: int
    run_id: str
    session_id: str
    task_id: str
    type: str
    timestamp: str
    actor: str
    severity: str = "info"
    summary: str
    data: dict[str, Any] = {}
    correlation_id: str | None = None
    parent_event_id: str | None = None


KeepLarge = Callable[[str, Any], str]
"""Keeps a JSON value as a file; takes a label and the value, returns its path in the run folder."""


class EventRecorder:
    """Writes the events of one run. Holds a lock on the file for as long as the run lives.

    Args:
        files: the run's own files.
        ids: of the run.
        redactor: removes secrets from everything.
        keep: where data beyond `MAX_DATA_BYTES` goes.
    """

    def __init__(
        self, files: RunFiles, ids: RunIds, *, redactor: Redactor, keep: KeepLarge
    ) -> None:
        self._lines = JsonLines(files, EVENTS_FILE, redactor=redactor)
        self._ids = ids
        self._keep = keep
        self._lock = threading.Lock()
        self._sequence = 0

    def emit(
        self,
        event_type: str,
        summary: str,
        data: Mapping[str, Any] | None = None,
        *,
        actor: str,
        severity: str = "info",
        correlation_id: str | None = None,
        parent_event_id: str | None = None,
    ) -> Event:
        """Record an event; it is in the file when this returns.

        Raises:
            OSError: it could not be written.
            ValueError: the run is over.
        """
        with self._lock:
            sequence = self._sequence + 1
            event = Event(
                event_id=new_id("evt"),
                sequence=sequence,
                run_id=self._ids.run_id,
                session_id=self._ids.session_id,
                task_id=self._ids.task_id,
                type=str(event_type),
                timestamp=now(),
                actor=actor,
                severity=severity,
                summary=_one_line(summary),
                data=self._bounded(storable(dict(data or {})), sequence),
                correlation_id=correlation_id,
                parent_event_id=parent_event_id,
            )
            if sequence == 1:
                self._hold()
            self._lines.append(event)
            self._sequence = sequence
        return event

    def _hold(self) -> None:
        # Waits for readers, who hold it only to look.
        with suppress(OSError):  # a file system without locks: nobody can tell that we live
            fcntl.flock(self._lines.hold(), fcntl.LOCK_EX)

    def _bounded(self, data: dict[str, Any], sequence: int) -> dict[str, Any]:
        size = len(json.dumps(data, ensure_ascii=False).encode("utf-8", "replace"))
        if size <= MAX_DATA_BYTES:
            return data
        artifact = self._keep(f"{sequence:06}", data)
        keys = [key[:60] for key in list(data)[:20]]
        summary = {"summarised": True, "bytes": size, "keys": keys, "artifact": artifact}
        hashes = {key: data[key] for key in keys if key.endswith("_sha256")}
        return {**hashes, **summary}


def is_held(root: Path) -> bool | None:
    """Whether a process still records into this run folder; None if that cannot be told."""
    try:
        with open_file(root.resolve() / EVENTS_FILE) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    except (OSError, ToolError):
        return None
    return False


def _one_line(text: str) -> str:
    line = " ".join(storable_text(text[: _MAX_SUMMARY * 4]).split())
    return line if len(line) <= _MAX_SUMMARY else f"{line[:_MAX_SUMMARY]}…"
