"""`runtime.tasks`: a session's Tasks for programs, with or without an orchestrator."""

import asyncio
import builtins
import re
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Collection,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast

from msgspec import structs
from pydantic import TypeAdapter, ValidationError

from agent_core.aio import finish_uncancelled
from agent_core.api.arguments import checks_arguments
from agent_core.errors import AgentCoreError, ErrorCode, StorageError, TaskError
from agent_core.redaction.redactor import JournalRedactor
from agent_core.runtime.options import checked_session_id
from agent_core.storage.rows import session_not_found
from agent_core.tasks import Actor, BoardSettings, TaskBoard, TaskScope, TaskStatus, open_board
from agent_core.tasks.apply import apply
from agent_core.tasks.forks import PROGRAM, logs_of_others, program_id
from agent_core.tasks.graph import Dag
from agent_core.tasks.log_format import TaskEvent, read_events
from agent_core.tasks.log_store import TaskLogStore
from agent_core.tasks.model import (
    CLAIMS,
    OPEN,
    TASK_ENDS,
    AbortTask,
    Complete,
    ExpireLeases,
    NewStep,
    NewTask,
    Operation,
    Report,
    TaskDocument,
    TaskStepStatus,
    Update,
    task_error,
)
from agent_core.tasks.rules import decide
from agent_core.text import shorten_name
from agent_core.tools.schema import misfit
from agent_core.types import (
    EventDraft,
    EventLevel,
    EventType,
    PendingEvent,
    SessionNote,
    SessionRecord,
    new_id,
    utc_now,
)

if TYPE_CHECKING:
    from agent_core.api.home import RuntimeHome
    from agent_core.runtime.services import Services

ReportedStatus = Literal["running", "blocked", "completed", "failed", "cancelled"]
"""The states that can be reported of a step."""

_POLL_S = 0.25
_MODEL_TOOLS = re.compile(r"\bagent\.task_(\w+)")
_OPERATIONS: TypeAdapter[tuple[Operation, ...]] = TypeAdapter(tuple[Operation, ...])


class TaskEvents:
    """The changes of a Task: `await` returns those so far, `async for` follows them to its end."""

    def __init__(self, home: "RuntimeHome", session_id: str, task_id: str) -> None:
        self._home = home
        self._session_id = session_id
        self._task_id = task_id

    def __await__(self) -> Generator[Any, None, list[TaskEvent]]:
        return self._read(0).__await__()

    async def __aiter__(self) -> AsyncIterator[TaskEvent]:
        seen = 0
        while True:
            for event in await self._read(seen):
                seen = event.wal_seq
                yield event
                if event.event_type in TASK_ENDS:
                    return
            await asyncio.sleep(_POLL_S)

    async def _read(self, after: int) -> list[TaskEvent]:
        services = await self._home.services()
        with _naming_methods():
            reading = await _Reading.begin(services, self._session_id)
            return await asyncio.to_thread(reading.events, self._task_id, after)


@checks_arguments()
class Tasks:
    """The Tasks of sessions, for programs: read and changed without a model.

    If an orchestrator of this process works on the session, it sees each change at once. If one of
    another process does, the Tasks can be read, but a change is refused with
    `task_wal_unavailable`, which is retryable. Changes are recorded as events of the session, with
    `program` as their `actor_agent_id`.

    Every method raises `StorageError` (`session_not_found`) for an unknown session, and `TaskError`
    for a Task that is unknown (`task_not_found`), has ended (`task_terminal`) or has a log that
    cannot be used (`task_wal_unavailable`).
    """

    def __init__(self, home: "RuntimeHome") -> None:
        self._home = home

    async def create(
        self,
        session_id: str,
        *,
        task_id: str,
        title: str,
        steps: Sequence[NewStep | Mapping[str, Any]],
        summary: str = "",
        wal_name: str | None = None,
    ) -> TaskDocument:
        """Create a Task and its log, and the session if it does not exist.

        Args:
            session_id: the session.
            task_id: 1 to 64 of `a-z 0-9 _ -`, unique among the session's active Tasks.
            title: what it is about.
            steps: each with `step_id`, and optionally `title`, `summary`, `depends_on_step_ids`,
                `required` and `worker_pool_id`.
            summary: more about it.
            wal_name: the name of the log; default: the id of the Task.

        Raises:
            TaskError: `validation_error`, `path_conflict`, `dependency_cycle`, `step_not_found`;
                nothing is created then.
        """
        try:
            new = NewTask.model_validate(
                {
                    "task_id": task_id,
                    "wal_name": task_id if wal_name is None else wal_name,
                    "title": title,
                    "summary": summary,
                    "steps": _plain(steps),
                }
            )
        except ValidationError as error:
            raise misfit("tasks.create", error) from error
        async with self._changing(session_id, is_new=True) as (board, by):
            return _document((await board.create(new, by)).dag)

    async def get(self, session_id: str, task_id: str) -> TaskDocument:
        """Return a Task with its steps. A step whose lease has expired is shown as ready again."""
        services = await self._home.services()
        with _naming_methods():
            reading = await _Reading.begin(services, session_id)
            return _document(await asyncio.to_thread(reading.find, task_id))

    async def list(
        self, session_id: str, include_terminal: bool = False
    ) -> builtins.list[TaskDocument]:
        """Return the active Tasks, last changed first, and then those that have ended.

        Logs that cannot be read are left out; `get` says what is wrong with them.
        """
        services = await self._home.services()
        reading = await _Reading.begin(services, session_id)
        found = sorted(await asyncio.to_thread(reading.all), key=_order, reverse=True)
        return [
            _document(dag) for dag in found if include_terminal or not dag.task.status.is_terminal
        ]

    def events(self, session_id: str, task_id: str) -> TaskEvents:
        """Return the lines of a Task's log: `await` them, or follow them with `async for`."""
        return TaskEvents(self._home, session_id, task_id)

    async def update(
        self, session_id: str, task_id: str, operations: Sequence[Operation | Mapping[str, Any]]
    ) -> TaskDocument:
        """Change the graph, with all operations or none.

        Args:
            session_id: the session.
            task_id: the Task.
            operations: those of `agent.task_update`, for example
                `{"op": "reopen_step", "step_id": "check"}`.

        Raises:
            TaskError: `validation_error`, or the rule that an operation breaks.
        """
        try:
            checked = _OPERATIONS.validate_python(_plain(operations))
        except ValidationError as error:
            raise misfit("tasks.update", error) from error
        async with self._changing(session_id) as (board, by):
            return _document((await board.change(task_id, Update(checked), by)).dag)

    async def update_step(
        self,
        session_id: str,
        task_id: str,
        step_id: str,
        *,
        status: ReportedStatus | TaskStepStatus,
        result_summary: str | None = None,
        reason: str | None = None,
    ) -> TaskDocument:
        """Report on a step; a ready step is first claimed for this program.

        A program's claim lasts `task.step_lease_timeout_ms`; reporting `running` again renews it. A
        report on a worker's step counts like an orchestrator's.

        Args:
            session_id: the session.
            task_id: the Task.
            step_id: the step.
            status: running, completed, or with a reason blocked, failed or cancelled.
            result_summary: what was done.
            reason: why it is not completed.

        Raises:
            TaskError: `validation_error`, `step_not_found`, `step_not_ready`,
                `task_not_dispatchable`, `no_step_claimed`, `step_not_cancellable`.
        """
        try:
            reported = TaskStepStatus(status)
            if reported in {TaskStepStatus.PENDING, TaskStepStatus.READY, TaskStepStatus.CLAIMED}:
                raise ValueError(reported)
        except ValueError:
            known = "running, blocked, completed, failed or cancelled"
            message = f"status {str(status)!r} cannot be reported; use {known}"
            raise task_error(ErrorCode.VALIDATION_ERROR, message, path="$.status") from None
        report = Report(
            step_id=step_id, status=reported, result_summary=result_summary, reason=reason
        )
        async with self._changing(session_id) as (board, by):
            step = (await board.get(task_id, by)).step(step_id)
            if step.status in OPEN and reported is not TaskStepStatus.CANCELLED:
                claim = structs.replace(by, run_id=new_id(PROGRAM))
                step = (await board.claim(task_id, step_id, claim)).dag.step(step_id)
            if step.status.is_claim and step.claimed_by_agent_id == PROGRAM:
                by = Actor(PROGRAM, step.claimed_by_run_id or "", by.journal, TaskScope(task_id))
            return _document((await board.report(task_id, report, by)).dag)

    async def complete(
        self, session_id: str, task_id: str, *, result_summary: str | None = None
    ) -> TaskDocument:
        """End a Task whose required steps are all completed.

        Raises:
            TaskError: `task_not_completable`, naming the steps that prevent it.
        """
        async with self._changing(session_id) as (board, by):
            written = await board.change(task_id, Complete(result_summary), by)
            return _document(written.dag)

    async def fail(
        self, session_id: str, task_id: str, *, reason: str | None = None
    ) -> TaskDocument:
        """End a Task as failed, with every unfinished step; its workers are stopped first."""
        return await self._abort(session_id, task_id, AbortTask(TaskStatus.FAILED, reason))

    async def cancel(
        self, session_id: str, task_id: str, *, reason: str | None = None
    ) -> TaskDocument:
        """Cancel a Task, with every unfinished step; its workers are stopped first."""
        return await self._abort(session_id, task_id, AbortTask(TaskStatus.CANCELLED, reason))

    async def _abort(self, session_id: str, task_id: str, end: AbortTask) -> TaskDocument:
        services = await self._home.services()
        async with self._changing(session_id) as (board, by):
            stop_run = services.runs.children.stop
            return _document((await board.abort(task_id, end, by, stop_run=stop_run)).dag)

    @asynccontextmanager
    async def _changing(
        self, session_id: str, *, is_new: bool = False
    ) -> AsyncGenerator[tuple[TaskBoard, Actor]]:
        services = await self._home.services()
        services.store.require_writable()
        if is_new:
            session = await _opened_session(services, session_id)
        else:
            session = await _session(services, session_id)
        with _naming_methods():
            async with _board_of(services, session) as opened:
                yield opened


@contextmanager
def _naming_methods() -> Generator[None]:
    """Replace the names of tools in errors, which are for models, by methods of `Tasks`."""
    try:
        yield
    except TaskError as error:
        message = _MODEL_TOOLS.sub(r"tasks.\1", error.message)
        if message == error.message:
            raise
        raise TaskError(error.code, message, error.retryable, error.details) from error


class _Reading:
    """Reads the logs of one session without locking them, and writes nothing.

    Args:
        logs: of the session.
        others: names of logs of an earlier session with its id.
        now: takes back the claims whose lease has ended by then, in what is returned.
    """

    def __init__(self, logs: TaskLogStore, others: Collection[str], now: datetime) -> None:
        self._logs = logs
        self._others = others
        self._now = now

    @classmethod
    async def begin(cls, services: "Services", session_id: str) -> "_Reading":
        """Find the logs of a session.

        Raises:
            StorageError: `session_not_found`.
        """
        await _session(services, session_id)
        logs = _settings(services, session_id).open_logs()
        return cls(logs, await logs_of_others(logs, services.store), utc_now())

    def all(self) -> list[Dag]:
        """Return every Task that can be read."""
        return [dag for _, dag in self._readable({})]

    def find(self, task_id: str) -> Dag:
        """Return a Task; an active one takes precedence over those that have ended.

        Raises:
            TaskError: `task_not_found`, `task_wal_unavailable`.
        """
        return self._find(task_id)[1]

    def events(self, task_id: str, after: int) -> list[TaskEvent]:
        """Return the lines of a Task's log that follow the one numbered `after`.

        Raises:
            TaskError: as for `find`.
        """
        name, _ = self._find(task_id)
        return read_events(self._logs.content(name), after)

    def _find(self, task_id: str) -> tuple[str, Dag]:
        problems: dict[str, AgentCoreError] = {}
        found = [each for each in self._readable(problems) if each[1].task.task_id == task_id]
        if found:
            return max(found, key=lambda each: _order(each[1]))
        for name, problem in problems.items():
            if self._logs.describe_unreadable(name, problem).task_id in {task_id, None}:
                raise problem
        raise _not_found(task_id)

    def _readable(self, problems: dict[str, AgentCoreError]) -> Iterator[tuple[str, Dag]]:
        for name in self._logs.names():
            if name not in self._others:
                try:
                    yield name, self._settled(self._logs.read(name))
                except AgentCoreError as error:
                    problems[name] = error

    def _settled(self, dag: Dag) -> Dag:
        if not dag.task.status.is_terminal:
            over = [s.step_id for s in dag.steps(*CLAIMS) if s.has_ended_lease(self._now)]
            for change in decide(dag, ExpireLeases(over, may_promote=True), self._now):
                apply(dag, change)
        return dag


class _Notes:
    """The journal of a program: keeps the changes of one call, as events of the session."""

    def __init__(self, redactor: JournalRedactor) -> None:
        self.events: list[PendingEvent] = []
        self._redactor = redactor

    def note(
        self,
        event_type: EventType,
        payload: Mapping[str, Any] | None = None,
        *,
        level: EventLevel = EventLevel.INFO,
    ) -> None:
        """Keep an event if it is a line of a log; what else a board notes, its caller learns."""
        if payload and "wal_event_id" in payload:
            draft = EventDraft(event_type, self._redactor.payload(payload), level)
            self.events.append(PendingEvent(draft))


@asynccontextmanager
async def _board_of(
    services: "Services", session: SessionRecord
) -> AsyncGenerator[tuple[TaskBoard, Actor]]:
    """Yield the board of a session, and the program as the actor; store its changes as events."""
    session_id, store = session.session_id, services.store
    settings = _settings(services, session_id)
    others = await logs_of_others(settings.open_logs(), store)
    settings = structs.replace(settings, others=others)
    redactor = services.redactor
    notes = _Notes(JournalRedactor(redactor))
    by = Actor(PROGRAM, program_id(session), notes)
    opening = partial(
        open_board, settings, by, redactor=redactor, is_working=services.runs.children.is_working
    )
    async with services.runs.boards.use(session_id, opening) as board:
        try:
            yield board, by
        finally:
            if notes.events:
                await finish_uncancelled(
                    store.note(SessionNote(session_id=session_id, events=notes.events))
                )


async def _session(services: "Services", session_id: str) -> SessionRecord:
    session = await services.store.session(session_id)
    if session is None:
        raise session_not_found(session_id)
    return _in_this_project(services, session)


async def _opened_session(services: "Services", session_id: str) -> SessionRecord:
    """Return the session, which is created if there is none."""
    setup, now = services.project.setup, utc_now()
    session = await services.store.add_session(
        SessionRecord(
            session_id=checked_session_id(session_id),
            cwd=str(setup.project),
            tenant=setup.tenant,
            created_at=now,
            updated_at=now,
        )
    )
    return _in_this_project(services, session)


def _in_this_project(services: "Services", session: SessionRecord) -> SessionRecord:
    """Return a session, if its Tasks are in the folder of this runtime.

    Raises:
        StorageError: `session_elsewhere`.
    """
    project = str(services.project.setup.project)
    if session.cwd == project or session.files_folder != session.cwd:
        return session
    raise StorageError(
        ErrorCode.SESSION_ELSEWHERE,
        f"session {session.session_id} works in {session.cwd}, and its Tasks are there; open a"
        " runtime with that project_dir",
        details={"session_id": session.session_id, "cwd": session.cwd},
    )


def _settings(services: "Services", session_id: str) -> BoardSettings:
    setup, logs = services.project.setup, services.project.task_logs
    return BoardSettings(
        session_id=session_id,
        project_dir=setup.project,
        wal_dir=setup.tasks_dir,
        logs=None if logs is None else logs[session_id],
        step_lease_timeout_ms=setup.config.task.step_lease_timeout_ms,
        child_cancel_timeout_ms=setup.config.agents.child_cancel_timeout_ms,
    )


def _order(dag: Dag) -> tuple[bool, datetime]:
    """Sort active Tasks behind those that have ended, and each by their last change."""
    return not dag.task.status.is_terminal, dag.task.updated_at


def _document(dag: Dag) -> TaskDocument:
    roots = tuple(dag.roots())
    return TaskDocument(**dict(dag.task), root_step_ids=roots, steps=tuple(dag.steps()))


def _not_found(task_id: str) -> TaskError:
    message = f"this session has no Task {shorten_name(task_id)}; `tasks.list` returns those it has"
    return task_error(ErrorCode.TASK_NOT_FOUND, message, task_id=task_id)


def _plain(items: object) -> object:
    """Return a list of steps or operations as a model writes it, and anything else unchanged."""
    if isinstance(items, str | bytes) or not isinstance(items, Sequence):
        return items
    return tuple(
        dict(cast("Any", each)) if isinstance(each, Mapping | NewStep) else each
        for each in cast("Sequence[object]", items)
    )
