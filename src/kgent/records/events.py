"""The events of a run, in `events.jsonl`."""

import fcntl
from pathlib import Path
from typing import Any, Literal

from agent_core.errors import ToolError
from agent_core.text import short_line
from agent_core.tools.files import open_file
from agent_core.tools.values import storable_text
from agent_core.types import Frozen, utc_now

EVENTS_FILE = "events.jsonl"


MAX_DATA_BYTES = 2048


_MAX_LINE = 300


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


def summary_line(text: str) -> str:
    """Return `text` as one line of limited length that is valid in every store."""
    return short_line(storable_text(text[: _MAX_LINE * 4]), _MAX_LINE + 1)


def now() -> str:
    """Return the current time in the form of all records: UTC, ISO 8601, microseconds."""
    return utc_now().isoformat(timespec="microseconds")
