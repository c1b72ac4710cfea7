"""The events of a run, in `events.jsonl`."""

import fcntl
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from agent_core.errors import ToolError
from agent_core.tools.files import open_file
from agent_core.tools.values import storable
from agent_core.types import Frozen, new_id
from kgent.records.archive import Archive
from kgent.records.lines import RecordLines, summary_line

EVENTS_FILE = "events.jsonl"
MAX_DATA_BYTES = 2048

RunEventType = Literal[
    "run.created", "run.started", "run.completed", "run.incomplete", "run.failed",
    "config.loaded", "prompt.rendered", "skill.indexed", "skill.loaded",
    "memory.recall.started", "memory.recall.completed", "memory.write.requested",
    "tool.started", "tool.completed", "tool.failed", "tool.blocked",
    "file.read", "file.written", "file.rejected",
    "deliverable.check.started", "deliverable.check.completed", "deliverable.missing", "error",
]  # fmt: skip
"""All types of events that `events.jsonl` may contain."""


class Event(Frozen):
    """An event of a run. `sequence`, from 1 and without gaps, is the order of the events."""

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


class EventRecorder:
    """Records the events of one run.

    Args:
        lines: writes the records.
        archive: keeps data that is too large for an event.
        ids: `session_id`, `task_id` and `run_id`, which every event has.
    """

    def __init__(self, lines: RecordLines, archive: Archive, ids: Mapping[str, str]) -> None:
        self._lines = lines
        self._archive = archive
        self._ids = dict(ids)
        self.count = 0
        """The number of events so far."""

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
        with self._lines.lock:
            sequence = self.count + 1
            event = Event(
                event_id=new_id("evt"),
                sequence=sequence,
                type=event_type,
                timestamp=self._lines.now(),
                actor=actor,
                severity=severity,
                summary=summary_line(summary),
                data=self._bounded(storable(dict(data or {})), f"{sequence:06}"),
                correlation_id=correlation_id,
                parent_event_id=parent_event_id,
                **self._ids,
            )
            if sequence == 1:
                # Waits for readers, which hold it only for a moment. On a file system without locks
                # readers cannot see that the run is active.
                with suppress(OSError):
                    fcntl.flock(self._lines.files.hold(EVENTS_FILE), fcntl.LOCK_EX)
            self._lines.append(EVENTS_FILE, event)
            self.count = sequence
        return event

    def _bounded(self, content: dict[str, Any], label: str) -> dict[str, Any]:
        """Return the data of an event, or the description of an artifact if it is too large."""
        size = len(json.dumps(content, ensure_ascii=False).encode("utf-8", "replace"))
        if size <= MAX_DATA_BYTES:
            return content
        artifact = self._archive.keep_json("events", label, content)
        keys = [key[:60] for key in list(content)[:20]]
        facts = {"summarised": True, "bytes": size, "keys": keys, "artifact": artifact}
        return {key: content[key] for key in keys if key.endswith("_sha256")} | facts


def is_held(root: Path) -> bool | None:
    """Return whether a process still records into this run folder; None if unknown."""
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
