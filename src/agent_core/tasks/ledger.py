"""A session's Tasks in memory and on disk, kept the same: append, then apply, then tell."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_core.errors import ErrorCode, TaskError
from agent_core.redaction.redactor import Redactor
from agent_core.tasks.actor import Actor
from agent_core.tasks.apply import apply
from agent_core.tasks.changes import DURABLE, Change, TaskCreated, TaskUpdated
from agent_core.tasks.dag import Dag
from agent_core.tasks.decide import task_over
from agent_core.tasks.lines import Stamp, encode
from agent_core.tasks.secrets import require_no_secret, without_secrets
from agent_core.tasks.shelf import AnyLog, EndedLog, OpenTask, TaskLogStore, UnreadableLog
from agent_core.tasks.wal import LogChangedError, TaskLog
from agent_core.types import EventLevel, EventType, new_id


@dataclass(frozen=True, slots=True)
class Written:
    """A Task after a change, and the ids of the log lines that made it."""

    dag: Dag
    event_ids: list[str]


class TaskRepository:
    """Every Task of a session, whatever its state. Not safe for two callers at once.

    Changes lose their secrets here, before they are written: the log, the graph in memory and
    the events say the same.

    Attributes:
        open: Tasks that go on, by id; their logs are locked.
        ended: Tasks that are over, oldest log first; read when somebody asks.
        unreadable: logs that cannot be used, by file name.
    """

    def __init__(self, shelf: TaskLogStore, session_id: str, *, redactor: Redactor) -> None:
        self.open: dict[str, OpenTask] = {}
        self.ended: list[EndedLog] = []
        self.unreadable: dict[str, UnreadableLog] = {}
        self._shelf = shelf
        self._session_id = session_id
        self._redactor = redactor

    async def load(self, by: Actor) -> None:
        """Look at every log; what cannot be read is reported, and harms nothing else."""
        try:
            names = await asyncio.to_thread(self._shelf.names)
        except TaskError as error:
            _note_failure(by, error)
            return
        for name in names:
            self._place(await asyncio.to_thread(self._shelf.look_at, name), by)

    def close(self) -> None:
        """Give all logs back."""
        for task in self.open.values():
            task.log.close()
        self.open.clear()

    async def find(self, task_id: str, by: Actor) -> OpenTask | EndedLog:
        """The Task with this id; an active one before one that is over.

        Raises:
            TaskError: `task_not_found`, `task_wal_unavailable`.
        """
        if (task := self.open.get(task_id)) is not None:
            return task
        await self._look_again(task_id, by)
        if (task := self.open.get(task_id)) is not None:
            return task
        for log in self.unreadable.values():
            if log.task_id == task_id:
                raise log.error
        ended = [log for log in self.ended if log.task_id == task_id]
        if ended:
            return max(ended, key=lambda log: log.updated_at)
        message = f"this session has no Task {task_id}; agent.task_list lists them"
        if unknown := [log.error.message for log in self.unreadable.values() if not log.task_id]:
            message += f". It may be in a log that cannot be read: {unknown[0]}"
        raise TaskError(ErrorCode.TASK_NOT_FOUND, message, details={"task_id": task_id})

    async def find_open(self, task_id: str, by: Actor) -> OpenTask:
        """The active Task with this id.

        Raises:
            TaskError: `task_not_found`, `task_wal_unavailable`, `task_terminal`.
        """
        task = await self.find(task_id, by)
        if isinstance(task, EndedLog):
            raise task_over(task_id, task.status)
        return task

    async def read(self, log: EndedLog) -> Dag:
        """Replay a Task that is over.

        Raises:
            TaskError: `task_wal_unavailable`.
        """
        return await asyncio.to_thread(self._shelf.read, log.name)

    def path(self, name: str) -> str:
        """Where a log of this name is."""
        return str(self._shelf.path(name))

    async def create(self, name: str, changes: Sequence[Change], by: Actor) -> Written:
        """Make the log of a new Task, with its first lines.

        Raises:
            TaskError: `path_conflict`, `task_wal_unavailable`, `validation_error` (an id or the
                name holds a secret); there is no such Task then.
        """
        require_no_secret(name, self._redactor)
        changes = self._without_secrets(changes)
        dag = apply(None, changes[0])
        for change in changes[1:]:
            apply(dag, change)
        stamp = self._stamp(dag.task.task_id, by)
        event_ids = [new_id("evt") for _ in changes]
        try:
            log = await asyncio.to_thread(self._begin, name, changes, stamp, event_ids)
        except TaskError as error:
            if error.code is ErrorCode.TASK_WAL_UNAVAILABLE:
                _note_failure(by, error)
            raise
        task = self.open[dag.task.task_id] = OpenTask(dag, log, len(changes))
        task.recent.extend(changes)
        _note_changes(by, dag, changes, event_ids)
        return Written(dag, event_ids)

    async def commit(self, task: OpenTask, changes: Sequence[Change], by: Actor) -> Written:
        """Write changes down and make them true; without changes nothing happens.

        Raises:
            TaskError: `task_wal_unavailable`, `validation_error` (an id holds a secret); nothing
                has changed.
        """
        if not changes:
            return Written(task.dag, [])
        changes = self._without_secrets(changes)
        event_ids = [new_id("evt") for _ in changes]
        stamp = self._stamp(task.dag.task.task_id, by)
        try:
            first = task.lines + 1
            await asyncio.to_thread(_append, task.log, changes, stamp, event_ids, first=first)
        except TaskError as error:
            _note_failure(by, error)
            if isinstance(error, LogChangedError):
                self._set_aside(task, error)
            raise
        task.lines += len(changes)
        task.recent.extend(changes)
        for change in changes:
            apply(task.dag, change)
        self._retire(task)
        _note_changes(by, task.dag, changes, event_ids)
        return Written(task.dag, event_ids)

    def _without_secrets(self, changes: Sequence[Change]) -> list[Change]:
        return [without_secrets(change, self._redactor) for change in changes]

    def _begin(
        self, name: str, changes: Sequence[Change], stamp: Stamp, event_ids: Sequence[str]
    ) -> TaskLog:
        log = self._shelf.create(name)
        try:
            _append(log, changes, stamp, event_ids, first=1)
        except BaseException:
            self._shelf.discard(name)
            log.close()
            raise
        return log

    def _place(self, found: AnyLog | None, by: Actor) -> None:
        match found:
            case EndedLog():
                self.ended.append(found)
            case UnreadableLog():
                self.unreadable[found.name] = found
                _note_failure(by, found.error, task_id=found.task_id)
            case OpenTask():
                self._place_open(found, by)
            case None:
                pass  # somebody has removed it meanwhile

    def _place_open(self, task: OpenTask, by: Actor) -> None:
        task_id, path = task.dag.task.task_id, task.log.path
        if (other := self.open.get(task_id)) is not None:
            task.log.close()
            message = (
                f"the Task log {path} cannot be used: Task {task_id} is open in "
                f"{other.log.path}. Move one of them away"
            )
            error = TaskError(ErrorCode.TASK_WAL_UNAVAILABLE, message, details={"path": str(path)})
            self._place(self._shelf.unreadable(path.name, error), by)
            return
        self.open[task_id] = task
        payload = {"task_id": task_id, "wal_path": str(path), "lines": task.lines}
        level = EventLevel.DEBUG
        if task.dropped:
            payload["dropped_bytes"] = task.dropped
            level = EventLevel.WARNING
        by.journal.note(EventType.TASK_WAL_REPLAYED, payload, level=level)

    async def _look_again(self, task_id: str, by: Actor) -> None:
        """Somebody may have mended a log, or the process that held it may be gone."""
        for name, log in list(self.unreadable.items()):
            if log.task_id in {task_id, None} and not self._shelf.is_unchanged(log):
                found = await asyncio.to_thread(self._shelf.look_at, name)
                if isinstance(found, UnreadableLog):
                    self.unreadable[name] = found
                else:
                    del self.unreadable[name]
                    self._place(found, by)

    def _set_aside(self, task: OpenTask, error: LogChangedError) -> None:
        task_id, name = task.dag.task.task_id, task.log.path.name
        del self.open[task_id]
        task.log.close()
        self.unreadable[name] = UnreadableLog(name, error, task_id, None)

    def _retire(self, task: OpenTask) -> None:
        header = task.dag.task
        if header.status.is_terminal:
            del self.open[header.task_id]
            name = task.log.path.name
            self.ended.append(EndedLog(name, header.task_id, header.status, header.updated_at))
            task.log.close()

    def _stamp(self, task_id: str, by: Actor) -> Stamp:
        return Stamp(
            session_id=self._session_id,
            task_id=task_id,
            agent_id=by.agent_id,
            run_id=by.run_id,
        )


def _append(
    log: TaskLog,
    changes: Sequence[Change],
    stamp: Stamp,
    event_ids: Sequence[str],
    *,
    first: int,
) -> None:
    numbered = enumerate(zip(changes, event_ids, strict=True), first)
    lines = [encode(c, stamp, wal_seq=number, event_id=e) for number, (c, e) in numbered]
    log.append(b"".join(lines), durable=any(c.event_type in DURABLE for c in changes))


def _note_changes(by: Actor, dag: Dag, changes: Sequence[Change], event_ids: Sequence[str]) -> None:
    for change, event_id in zip(changes, event_ids, strict=True):
        payload: dict[str, Any] = {"task_id": dag.task.task_id, "wal_event_id": event_id}
        if change.step_id is not None:
            payload["step_id"] = change.step_id
        payload |= _shown(change)
        by.journal.note(change.event_type, payload, level=EventLevel.DEBUG)


def _shown(change: Change) -> Mapping[str, Any]:
    """The line's payload; of whole documents only what fits into a timeline."""
    match change.payload:
        case TaskCreated(task=task):
            shown = task.model_dump(mode="json", include={"wal_path", "title", "status"})
            return {**shown, "step_count": len(task.steps)}
        case TaskUpdated() as update:
            shown = update.model_dump(mode="json", exclude={"operations"})
            return {**shown, "operation_count": len(update.operations)}
        case payload:
            return payload.model_dump(mode="json")


def _note_failure(by: Actor, error: TaskError, *, task_id: str | None = None) -> None:
    payload = {"task_id": task_id, "message": error.message, **error.details}
    by.journal.note(EventType.TASK_WAL_FAILED, payload, level=EventLevel.WARNING)
