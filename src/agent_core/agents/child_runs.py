"""Child runs: how they are stored, carried out, limited and stopped."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine, Sequence
from contextlib import (
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    nullcontext,
    suppress,
)
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from agent_core.aio import TimeLimit, finish_uncancelled
from agent_core.config.models import AgentsConfig
from agent_core.context.composer import TaskBoardSource
from agent_core.errors import AgentCoreError, ErrorCode, ParkedError, StorageError, ToolError
from agent_core.events import EventStream, Journal
from agent_core.extensions import Extension
from agent_core.loop import (
    HistorySource,
    NoHistory,
    Outcome,
    RunContext,
    conclude,
    converse,
    settle,
    settle_parked,
)
from agent_core.loop.inside import enter_child
from agent_core.storage.store import SessionStore
from agent_core.text import plural
from agent_core.tools.base import Tool
from agent_core.types import (
    AgentDefinition,
    AgentRecord,
    AgentRole,
    Draft,
    EndReason,
    EventLevel,
    EventType,
    Node,
    RunIdentity,
    RunRecord,
    RunStatus,
    StoredOptions,
    utc_now,
)

if TYPE_CHECKING:
    from agent_core.agents.assignments import Assignment
    from agent_core.loop.options import Agent, RunOptions
    from agent_core.telemetry.spans import RunTrace
    from agent_core.tools.output import ExpectedOutput

logger = logging.getLogger(__name__)

_IDS = ("agent_definition_id", "worker_id", "task_id")
_END_EVENTS = {
    RunStatus.COMPLETED: EventType.CHILD_AGENT_COMPLETED,
    RunStatus.CANCELLED: EventType.CHILD_AGENT_CANCELLED,
}

OnFailure = Callable[[RunIdentity, Exception], Awaitable[None]]
"""Called with an exception that ends a run, before the run is settled."""

OnLeftBehind = Callable[[str], Awaitable[None]]
"""Called with the session's id when a child has ended after its parent."""

Pausing = Callable[[str, TimeLimit], AbstractContextManager[None]]
"""Pauses a limit on the time of a run, in a context, whenever a question of the run is open."""


def _no_pause(run_id: str, limit: TimeLimit) -> AbstractContextManager[None]:  # noqa: ARG001
    return nullcontext()


class ChildCancelReason(StrEnum):
    """Reasons to stop a child before it is done."""

    TIMEOUT = "timeout"
    PARENT_CANCELLED = "parent_cancelled"
    PARENT_ENDED = "parent_ended"
    TASK_ENDED = "task_ended"
    RUNTIME_CLOSED = "runtime_closed"


BeforeEnd = Callable[[ChildCancelReason | None, BaseException | None], Coroutine[Any, Any, None]]
"""Called while the run can still write, to finish its work on a Task.

Gets the reason for stopping the run, and the exception that ended it, if there are any.
"""


class TaskBinding(Struct, frozen=True, kw_only=True):
    """Ties a run to a Task; by default to none.

    Attributes:
        tools: the task tools of the run.
        board: the board that the run sees.
        extensions: extensions for the run, added to its own.
        begin: registers the run with its Task, right before it starts; may refuse.
        before_end: closes the step of the run before the end of the run is recorded.
    """

    tools: Sequence[Tool] = ()
    board: TaskBoardSource | None = None
    extensions: Sequence[Extension] = ()
    begin: Callable[[], None] = lambda: None
    before_end: BeforeEnd | None = None


class ChildSpec(Struct, frozen=True, kw_only=True):
    """Everything about a child that is known before it is created.

    Attributes:
        run: the identity it gets.
        agent: its agent; stored unless it exists.
        assignment: the assignment from the parent; `expected` is the shape of the answer.
        path: the conversation that it continues.
        granted: the only working tools it may have; None: the working tools of its role.
        record: facts for its row and for the events of the parent.
        is_resumed: it continues after waiting for an answer; its rows exist.
        options: the stored form of the shape of its answer.
        choices: the options of a child of a program's agent; None: its parent's options.
        agents: the agents that it may start itself.
        bind: ties the run to a Task, given the journal of the run.
    """

    run: RunIdentity
    agent: AgentRecord
    definition: AgentDefinition
    assignment: "Assignment"
    expected: "ExpectedOutput | None"
    prompt: Draft
    path: Sequence[Node] = ()
    history: HistorySource = field(default_factory=NoHistory)
    is_resumed: bool = False
    granted: frozenset[str] | None = None
    record: dict[str, Any]
    options: StoredOptions | None = None
    choices: "RunOptions[Any] | None" = None
    agents: "Sequence[Agent[Any]]" = ()
    bind: Callable[[Journal], TaskBinding] = lambda _: TaskBinding()


class ChildRun:
    """A run that was started by another run. It is carried out once, in a task of its own.

    Args:
        ctx: the context of the run.
        spec: everything settled before.
        parent: the journal of the parent; gets an event for each stage of the child.
        stream: the events of the child.
        before_end: called once in any case, before the end is recorded.
        trace: the trace of the run, if it is recorded.
        opened: what was opened for the run, closed at its end.

    Attributes:
        task: the task that carries it out, once it is started.
        is_left_behind: whether it did not stop in time, so that its parent no longer waits for it.
        is_stored: whether its rows exist.
    """

    task: asyncio.Task[None]

    def __init__(
        self,
        ctx: RunContext,
        spec: ChildSpec,
        *,
        parent: Journal,
        stream: EventStream,
        before_end: BeforeEnd | None,
        trace: "RunTrace | None" = None,
        opened: AsyncExitStack | None = None,
    ) -> None:
        self._opened = opened
        self.ctx = ctx
        self.spec = spec
        self.run = spec.run
        self.stream = stream
        self.parent = parent
        self.outcome = Outcome(EndReason.ABORTED_STREAMING)
        self.stop_reason: ChildCancelReason | None = None
        self.is_left_behind = False
        self._before_end = before_end
        self._trace = trace
        self._working: asyncio.Task[Any] | None = None
        self._requested: set[ChildCancelReason] = set()
        self.is_stored = False

    @property
    def is_working(self) -> bool:
        """Return whether a tool call of the run is open: it runs, waits, or asks a person."""
        answered = 0
        for node in reversed(self.ctx.journal.path):
            if node.calls:
                return not node.is_partial and answered < len(node.calls)
            answered += len(node.results)
        return False

    def request_stop(self, reason: ChildCancelReason) -> None:
        """Ask the run to stop, once for each reason; a run that is already ending is left alone.

        A tool may have swallowed an earlier request; the first reason is kept.
        """
        if reason in self._requested or self.ctx.journal.is_closing:
            return
        self._requested.add(reason)
        self.stop_reason = self.stop_reason or reason
        self.note_parent(EventType.CHILD_AGENT_CANCEL_REQUESTED, reason=reason)
        if self._working is not None:
            self._working.cancel()
        # Without a working task it has no rows yet, or they are being written: it ends right after.

    async def carry_out(
        self,
        store: SessionStore,
        on_failure: OnFailure | None,
        pausing: Pausing = _no_pause,
    ) -> None:
        """Write the rows, run to the end, settle. Returns normally also if the run was stopped.

        Raises:
            StorageError: the rows could not be written; the run does not exist.
        """
        if not self.spec.is_resumed:
            await self._add_rows(store)
            self._note_created()
        self.is_stored = True
        journal = self.ctx.journal
        journal.begin()
        try:
            if self.stop_reason is not None and self.spec.is_resumed:
                await settle_parked(journal, self.spec.history, self._finish)
            elif self.stop_reason is not None:
                await settle(journal, self.outcome, self._finish, began=False)
            else:
                self._working = asyncio.current_task()
                with nullcontext() if self._trace is None else self._trace.current():
                    await self._work(on_failure, pausing)
        except asyncio.CancelledError:
            if self.stop_reason is None:
                raise  # the event loop itself is shutting down
        finally:
            self._working = None
            if self._opened is not None:
                await finish_uncancelled(self._opened.aclose())

    def note_end(self) -> None:
        """Note in the parent how the run ended and its usage."""
        if not self.is_stored or self.outcome.status is RunStatus.WAITING:
            return
        outcome = self.outcome
        facts: dict[str, Any] = {
            **{name: self.spec.record[name] for name in _IDS if name in self.spec.record},
            "status": outcome.status,
            "turns": outcome.turns,
            "usage": outcome.usage.model_dump(exclude={"raw_usage"}),
            **outcome.metadata,
        }
        if outcome.status is RunStatus.CANCELLED:
            facts["reason"] = self.stop_reason
        if (event := _END_EVENTS.get(outcome.status)) is not None:
            self.note_parent(event, **facts)
            return
        if (error := outcome.error) is not None:
            facts |= {"code": error.code, "message": error.message}
        self.note_parent(EventType.CHILD_AGENT_FAILED, EventLevel.WARNING, **facts)

    def note_parent(
        self, event_type: EventType, level: EventLevel = EventLevel.INFO, **facts: Any
    ) -> None:
        """Write an event about this run into its parent's history while that history is open."""
        if not self.parent.is_closing:
            ids = {"child_run_id": self.run.run_id, "child_agent_id": self.run.agent_id}
            self.parent.note(event_type, {**ids, **facts}, level=level)

    @asynccontextmanager
    async def _in_time(self, pausing: Pausing) -> AsyncGenerator[None]:
        """Stop the work in this context when the time of the child is over.

        The time that people take to answer its questions does not count.

        Raises:
            AgentCoreError: `budget_exceeded`: the work was cancelled because its time is over.
        """
        budget = self.spec.assignment.budget
        limit = None if budget is None else budget.wall_s
        clock = asyncio.timeout(limit)
        try:
            async with clock:
                with pausing(self.run.run_id, TimeLimit(clock)):
                    yield
        except TimeoutError as error:
            if not clock.expired():
                raise
            raise AgentCoreError(
                ErrorCode.BUDGET_EXCEEDED,
                f"the time of the child is over: it may take {limit:g} s",
                details={
                    "limit": "wall_s",
                    "scope": "child",
                    "scope_id": self.run.run_id,
                    "limits": {"wall_s": limit},
                },
            ) from error

    async def _work(self, on_failure: OnFailure | None, pausing: Pausing) -> None:
        enter_child(self.run.run_id)
        parked_history = self.spec.history if self.spec.is_resumed else None
        async with conclude(self.ctx.journal, self._finish, parked_history=parked_history) as stats:
            ended_by: BaseException | None = None
            try:
                await self.parent.commit()  # from here on, watchers of the parent find this run
                async with self._in_time(pausing):
                    await converse(self.ctx, self.spec.prompt, stats)
            except BaseException as error:
                ended_by = error
                if isinstance(error, ParkedError):
                    raise
                if on_failure is not None and isinstance(error, Exception):
                    await on_failure(self.run, error)
                raise
            finally:
                if self._before_end is not None:
                    await finish_uncancelled(self._before_end(self.stop_reason, ended_by))

    def _finish(self, outcome: Outcome) -> None:
        self.outcome = outcome
        if self._trace is not None:
            self._trace.finish(outcome)

    def _note_created(self) -> None:
        role, agent_type = self.run.role, self.spec.agent.agent_type
        created = EventType.CHILD_AGENT_CREATED
        self.note_parent(created, role=role, agent_type=agent_type, **self.spec.record)
        if role is AgentRole.WORKER:
            self.note_parent(EventType.WORKER_DISPATCHED, **self.spec.record)

    async def _add_rows(self, store: SessionStore) -> None:
        run, now = self.run, utc_now()
        if await store.agent(run.agent_id) is None:
            await store.add_agent(self.spec.agent)
        await store.add_run(
            RunRecord(
                run_id=run.run_id,
                session_id=run.session_id,
                agent_id=run.agent_id,
                parent_run_id=run.parent_run_id,
                mode=run.mode,
                status=RunStatus.PENDING,
                metadata=self.spec.record,
                options=self.spec.options,
                created_at=now,
                updated_at=now,
            )
        )


class ChildRuns:
    """All child runs of a runtime. The run that starts a child waits for it here, or stops it.

    A child that does not stop in time is left behind: it keeps its place until it has ended, and
    `close` waits for it.
    """

    def __init__(
        self,
        store: SessionStore,
        config: AgentsConfig,
        *,
        on_failure: OnFailure | None = None,
        on_left_behind: OnLeftBehind | None = None,
        pausing: Pausing = _no_pause,
    ) -> None:
        self._store = store
        self._config = config
        self._on_failure = on_failure
        self._on_left_behind = on_left_behind
        self._pausing = pausing
        self._cancel_timeout_s = config.child_cancel_timeout_ms / 1000
        self._places: Counter[tuple[str, str]] = Counter()
        self._starting: Counter[str] = Counter()
        self._waiting: Counter[str] = Counter()
        self._left = asyncio.Event()
        self._running: dict[str, ChildRun] = {}

    def __len__(self) -> int:
        """Return the number of running children."""
        return len(self._running)

    async def start(
        self,
        build: Callable[[], Awaitable[ChildRun]],
        parent: RunIdentity,
        *,
        on_end: Callable[[], object] = lambda: None,
    ) -> ChildRun:
        """Take a place and start the child in it. The caller waits for it, or stops it.

        With `when_full = "wait"` it begins once a place is free, unless no child can leave one.

        Nothing of the child is stored before it runs. `on_end` is called once: when the child has
        ended for good, or if it could not be started.

        Raises:
            ToolError: `child_agent_limit_exceeded`.
            AgentCoreError: the child could not be built and does not exist.
        """
        cleanup = ExitStack()
        cleanup.callback(on_end)
        with ExitStack() as unless_started:
            unless_started.callback(cleanup.close)
            taken = await self._take_place(parent)
            cleanup.callback(lambda: self._leave_place(taken))
            self._starting[parent.session_id] += 1
            try:
                child = await build()
            finally:
                self._starting[parent.session_id] -= 1
            unless_started.pop_all()
        run_id = child.run.run_id
        self._running[run_id] = child
        child.task = asyncio.create_task(self._carry_out(child), name=run_id)
        child.task.add_done_callback(partial(self._remove, run_id, cleanup))
        return child

    async def wait(self, child: ChildRun) -> None:
        """Return when the child has ended or was left behind; stop it when its time is over.

        The time that people take to answer its questions does not count.

        Raises:
            AgentCoreError: the child could not be stored and does not exist.
            asyncio.CancelledError: the parent was cancelled, and the child with it.
        """
        assignment = child.spec.assignment
        config = self._config
        default_ms = min(config.default_child_timeout_ms, config.max_child_timeout_ms)
        limit_ms: float = assignment.timeout_ms or default_ms
        if assignment.budget is not None and assignment.budget.wall_s is not None:
            most_ms = assignment.budget.wall_s * 1000 + config.child_cancel_timeout_ms
            limit_ms = min(limit_ms, most_ms)  # it stops by itself, unless a tool delays it
        try:
            clock = asyncio.timeout(limit_ms / 1000)
            try:
                async with clock:
                    with self._pausing(child.run.run_id, TimeLimit(clock)):
                        await asyncio.wait([child.task])
            except TimeoutError:
                if not child.task.done():
                    await self._stop([child], ChildCancelReason.TIMEOUT)
        except asyncio.CancelledError:
            if not child.is_left_behind:
                # All children of the parent at once: one after the other would take many times as
                # long.
                await self._stop(self._of(child.parent.run), ChildCancelReason.PARENT_CANCELLED)
                if child.task.done():
                    child.note_end()
            raise
        if child.task.done():
            child.task.result()
            child.note_end()

    async def stop_all(self, parent: RunIdentity, reason: ChildCancelReason) -> None:
        """Stop the children that a run has started and not waited for; the run is over."""
        await self._stop(self._of(parent), reason)

    def is_running(self, run_id: str) -> bool:
        """Return whether a child is still running."""
        return run_id in self._running

    def is_working(self, run_id: str) -> bool:
        """Return whether a child has an open tool call."""
        child = self._running.get(run_id)
        return child is not None and child.is_working

    def stream(self, run_id: str, *, below: str | None = None) -> EventStream | None:
        """Return the events of a running child; with `below`, only if it is below that run.

        A child of a child is below the runs of both.
        """
        found = child = self._running.get(run_id)
        while below is not None and child is not None and child.run.parent_run_id != below:
            child = self._running.get(child.run.parent_run_id or "")
        return None if found is None or child is None else found.stream

    async def store(self, parent_run_id: str) -> None:
        """Store everything noted by the children of a run that has been cancelled."""
        for child in [*self._running.values()]:
            if child.run.parent_run_id == parent_run_id:
                with suppress(StorageError):  # the child fails with it
                    await child.ctx.journal.commit(is_shown=False)

    async def stop(self, run_id: str) -> None:
        """Ask a run to stop because its Task has ended, and return when it has."""
        if child := self._running.get(run_id):
            child.request_stop(ChildCancelReason.TASK_ENDED)
            await asyncio.wait([child.task])

    async def close(self) -> None:
        """Stop all running children, and wait as long as a cancellation may take."""
        children = list(self._running.values())
        for child in children:
            child.request_stop(ChildCancelReason.RUNTIME_CLOSED)
        if children:
            await asyncio.wait([c.task for c in children], timeout=self._cancel_timeout_s)

    async def _carry_out(self, child: ChildRun) -> None:
        try:
            await child.carry_out(self._store, self._on_failure, self._pausing)
        finally:
            if child.parent.is_closing and self._on_left_behind is not None:
                await self._on_left_behind(child.run.session_id)

    def _of(self, parent: RunIdentity) -> list[ChildRun]:
        """Return the running children of a run, without the children left behind."""
        mine = (c for c in self._running.values() if c.run.parent_run_id == parent.run_id)
        return [child for child in mine if not child.is_left_behind]

    async def _stop(self, children: Sequence[ChildRun], reason: ChildCancelReason) -> None:
        """Ask children to stop, and wait as long as a cancellation may take."""
        for child in children:
            child.request_stop(reason)
        if children:  # the last one may have ended when the parent was cancelled
            await asyncio.wait([child.task for child in children], timeout=self._cancel_timeout_s)
        for child in children:
            if not child.task.done() and not child.is_left_behind:
                child.is_left_behind = True
                logger.warning("child run %s did not stop in time", child.run.run_id)
                late = EventType.CHILD_AGENT_CANCEL_TIMEOUT
                child.note_parent(late, EventLevel.WARNING, reason=reason)

    def _remove(self, run_id: str, cleanup: ExitStack, task: asyncio.Task[None]) -> None:
        del self._running[run_id]
        cleanup.close()
        if not task.cancelled():
            task.exception()  # marks the exception as retrieved: the caller may be gone

    async def _take_place(self, parent: RunIdentity) -> Collection[tuple[str, str]]:
        """Take a place among the children of a run and of its session, and return both.

        Raises:
            ToolError: `child_agent_limit_exceeded`.
        """
        while True:
            try:
                return self._take_free_place(parent)
            except ToolError:
                self._waiting[parent.run_id] += 1
                try:
                    if self._config.when_full == "refuse" or self._is_stuck(parent.session_id):
                        raise
                    await self._left.wait()
                finally:
                    self._waiting[parent.run_id] -= 1
                    self._waiting = +self._waiting

    def _leave_place(self, taken: Collection[tuple[str, str]]) -> None:
        self._places.subtract(taken)
        self._left.set()
        self._left = asyncio.Event()

    def _is_stuck(self, session_id: str) -> bool:
        """Return whether all children of a session wait for places that only they could leave."""
        if self._starting[session_id]:
            return False
        running = [each.run for each in self._running.values() if each.run.session_id == session_id]
        parents = {run.parent_run_id for run in running}
        return all(run.run_id in self._waiting or run.run_id in parents for run in running)

    def _take_free_place(self, parent: RunIdentity) -> Collection[tuple[str, str]]:
        """Take a place at once.

        Raises:
            ToolError: `child_agent_limit_exceeded`.
        """
        self._places = +self._places  # forgets those without children
        limits = {
            ("run", parent.run_id): self._config.max_children_per_run,
            ("session", parent.session_id): self._config.max_concurrent_children_per_session,
        }
        for place, limit in limits.items():
            if (running := self._places[place]) >= limit:
                owner = place[0]
                children = plural(running, "running child", "running children")
                message = f"this {owner} has {children}, and no more may run"
                details = {"scope": owner, "running": running, "limit": limit}
                code = ErrorCode.CHILD_AGENT_LIMIT_EXCEEDED
                raise ToolError(code, message, retryable=True, details=details)
        self._places.update(limits.keys())
        return limits.keys()
