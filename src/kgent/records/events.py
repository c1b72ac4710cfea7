"""The events of a run, in `events.jsonl`, whose lock the process of an attempt holds."""

import fcntl
import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from agent_core.disk.locks import try_lock
from agent_core.errors import ToolError
from agent_core.opening import open_descriptor
from agent_core.tools.files import open_file
from agent_core.tools.values import storable
from agent_core.types import Frozen, new_id
from kgent.records.archive import Archive
from kgent.records.lines import RecordLines, summary_line

EVENTS_FILE = "events.jsonl"
MAX_DATA_BYTES = 2048

_OPEN = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
_WAIT_S = 0.002

RunEventType = Literal[
    "run.created", "run.started", "run.completed", "run.incomplete", "run.failed",
    "run.waiting_for_user", "run.review_required", "run.revision_required", "run.cancelled",
    "attempt.created", "user.asked", "user.answered",
    "config.loaded", "inputs.copied", "prompt.rendered", "nudge.sent",
    "skill.indexed", "skill.loaded",
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
        """Record an event."""
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


def lock_events(root: Path) -> int | None:
    """Take the lock of a run folder, and return its descriptor; None if a process has it.

    Readers, which hold it for a moment, are waited for. On a file system without locks it is free.
    """
    descriptor = open_descriptor(root / EVENTS_FILE, _OPEN)
    with suppress(OSError):  # the file system has no locks
        while not try_lock(descriptor, shared=False):
            if not try_lock(descriptor, shared=True):
                os.close(descriptor)
                return None
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            time.sleep(_WAIT_S)
    return descriptor
