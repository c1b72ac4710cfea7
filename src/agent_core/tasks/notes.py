"""Notes what happens to Task logs in the journal of the run that causes it."""

from collections.abc import Sequence

from agent_core.errors import TaskError
from agent_core.tasks.log_store import OpenTask
from agent_core.tasks.model import Actor, TaskChange, TaskCreated, TaskUpdated
from agent_core.text.json_text import JsonObject
from agent_core.types import EventLevel, EventType


def note_changes(
    by: Actor, task_id: str, changes: Sequence[TaskChange], event_ids: Sequence[str]
) -> None:
    """Note each line; payloads with whole documents are shortened to fit a timeline."""
    for change, event_id in zip(changes, event_ids, strict=True):
        note: JsonObject = {"task_id": task_id, "wal_event_id": event_id}
        if change.step_id is not None:
            note["step_id"] = change.step_id
        match change.payload:
            case TaskCreated(task=task):
                note |= task.model_dump(mode="json", include={"wal_path", "title", "status"})
                note["step_count"] = len(task.steps)
            case TaskUpdated() as update:
                note |= update.model_dump(mode="json", exclude={"operations"})
                note["operation_count"] = len(update.operations)
            case payload:
                note |= payload.model_dump(mode="json")
        by.journal.note(change.event_type, note, level=EventLevel.DEBUG)


def note_replay(by: Actor, task: OpenTask) -> None:
    """Note that an active Task was read from its log, and how much of a torn end was dropped."""
    header, path = task.dag.task, task.log.path
    payload = {"task_id": header.task_id, "wal_path": str(path), "lines": task.lines}
    level = EventLevel.DEBUG
    if task.dropped:
        payload["dropped_bytes"] = task.dropped
        level = EventLevel.WARNING
    by.journal.note(EventType.TASK_WAL_REPLAYED, payload, level=level)


def note_failure(by: Actor, error: TaskError, *, task_id: str | None = None) -> None:
    """Note that a log cannot be read or written."""
    payload = {"task_id": task_id, "message": error.message, **error.details}
    by.journal.note(EventType.TASK_WAL_FAILED, payload, level=EventLevel.WARNING)
