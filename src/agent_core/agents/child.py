"""One child run, from its rows to its outcome."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from enum import StrEnum
from typing import Any

from agent_core.aio import to_the_end
from agent_core.events import EventStream, Journal, SessionStore
from agent_core.loop import Outcome, RunContext, RunStats, conclude, converse, settle
from agent_core.types import (
    AgentRecord,
    AgentRole,
    AgentType,
    Draft,
    EndReason,
    ErrorPayload,
    EventLevel,
    EventType,
    RunIdentity,
    RunRecord,
    RunStatus,
    utc_now,
)


class ChildCancelReason(StrEnum):
    """Why a child is asked to stop before it is done."""

    TIMEOUT = "timeout"
    PARENT_CANCELLED = "parent_cancelled"
    PARENT_ENDED = "parent_ended"
    TASK_ENDED = "task_ended"
    RUNTIME_CLOSED = "runtime_closed"


_NAMES = ("agent_definition_id", "worker_id", "task_id")

OnFailure = Callable[[RunIdentity, Exception], Awaitable[None]]
"""Hears of an exception that decides a run's fate, before it is settled."""

BeforeEnd = Callable[[ChildCancelReason | None, BaseException | None], Coroutine[Any, Any, None]]
"""What has to be put in order while the run can still write.

It gets the reason why the run was stopped, and the exception that ended it.
"""


async def nothing(_: ChildCancelReason | None, __: BaseException | None) -> None:
    """For a run that leaves nothing in disorder."""


async def no_trace(_: RunIdentity, __: Exception) -> None:
    """For a runtime that keeps no traces."""


class ChildRun:
    """A run that another run has started. Carried out once, in a task of its own.

    Args:
        ctx: what it is made of.
        prompt: its task.
        parent: the journal of the run that started it; hears how it goes, in a few words.
        stream: its own events.
        agent: its agent, if that one is new.
        record: facts for the run's row, told to the parent too.
        before_end: called once, whatever happens, before the end is written down.
    """

    def __init__(
        self,
        ctx: RunContext,
        prompt: Draft,
        *,
        parent: Journal,
        stream: EventStream,
        agent: AgentRecord | None,
        record: dict[str, Any],
        before_end: BeforeEnd = nothing,
    ) -> None:
        self.ctx = ctx
        self.stream = stream
        self.outcome = Outcome(EndReason.ABORTED_STREAMING)
        self.stop_reason: ChildCancelReason | None = None
        self.parent = parent
        self._prompt = prompt
        self._agent = agent
        self._record = record
        self._before_end = before_end
        self._working: asyncio.Task[Any] | None = None
        self._asked: set[ChildCancelReason] = set()
        self._exists = False

    @property
    def run(self) -> RunIdentity:
        return self.ctx.run

    def request_stop(self, reason: ChildCancelReason) -> None:
        """Ask the run to stop, once for each reason; one that is ending anyway is left alone.

        A tool may have swallowed an earlier request; the first reason is the one that counts.
        """
        if reason in self._asked or self.ctx.journal.is_closing:
            return
        self._asked.add(reason)
        self.stop_reason = self.stop_reason or reason
        self.tell_parent(EventType.CHILD_AGENT_CANCEL_REQUESTED, reason=reason)
        if self._working is not None:
            self._working.cancel()
        # Before that it has no rows yet, or they are being written: it ends right after.

    async def carry_out(self, store: SessionStore, on_failure: OnFailure) -> None:
        """Write the rows, run to the end, settle. Returns normally also when it was stopped.

        Raises:
            StorageError: the rows could not be written; there is no such run.
        """
        await self._add_rows(store)
        self._exists = True
        self.tell_parent(
            EventType.CHILD_AGENT_CREATED,
            role=self.run.role,
            agent_type=self._agent.agent_type if self._agent else AgentType.SUB,
            **self._record,
        )
        if self.run.role is AgentRole.WORKER:
            self.tell_parent(EventType.WORKER_DISPATCHED, **self._record)
        journal = self.ctx.journal
        journal.begin()
        try:
            if self.stop_reason is not None:
                await settle(journal, self.outcome, began=False)
            else:
                self._working = asyncio.current_task()
                async with conclude(journal, self._finish) as stats:
                    await self._work(stats, on_failure)
        except asyncio.CancelledError:
            if self.stop_reason is None:
                raise  # the event loop itself is shutting down
        finally:
            self._working = None

    def tell_end(self) -> None:
        """Tell the parent how it ended, and what it has cost."""
        if not self._exists:
            return
        outcome = self.outcome
        usage = outcome.usage.model_dump(exclude={"raw_usage"})
        known = {key: self._record[key] for key in _NAMES if key in self._record}
        facts: dict[str, Any] = {
            **known,
            "status": outcome.status,
            "turns": outcome.turns,
            "usage": usage,
        }
        if outcome.status is RunStatus.COMPLETED:
            self.tell_parent(EventType.CHILD_AGENT_COMPLETED, **facts)
        elif outcome.status is RunStatus.CANCELLED:
            self.tell_parent(EventType.CHILD_AGENT_CANCELLED, reason=self.stop_reason, **facts)
        else:
            error = outcome.error
            self.tell_parent(
                EventType.CHILD_AGENT_FAILED, EventLevel.WARNING, **facts, **_told(error)
            )

    def tell_parent(
        self, event_type: EventType, level: EventLevel = EventLevel.INFO, **facts: Any
    ) -> None:
        """Write an event about this run into its parent's history, while that one is open."""
        if not self.parent.is_closing:
            ids = {"child_run_id": self.run.run_id, "child_agent_id": self.run.agent_id}
            self.parent.note(event_type, {**ids, **facts}, level=level)

    async def _work(self, stats: RunStats, on_failure: OnFailure) -> None:
        ended_by: BaseException | None = None
        try:
            await self.parent.commit()  # whoever watches the parent can now watch this run
            await converse(self.ctx, self._prompt, stats)
        except BaseException as error:
            ended_by = error
            if isinstance(error, Exception):
                await on_failure(self.run, error)
            raise
        finally:
            await to_the_end(self._before_end(self.stop_reason, ended_by))

    def _finish(self, outcome: Outcome) -> None:
        self.outcome = outcome

    async def _add_rows(self, store: SessionStore) -> None:
        run, now = self.run, utc_now()
        if self._agent is not None:
            await store.add_agent(self._agent)
        await store.add_run(
            RunRecord(
                run_id=run.run_id,
                session_id=run.session_id,
                agent_id=run.agent_id,
                parent_run_id=run.parent_run_id,
                mode=run.mode,
                status=RunStatus.PENDING,
                metadata=self._record,
                created_at=now,
                updated_at=now,
            )
        )


def _told(error: ErrorPayload | None) -> dict[str, Any]:
    return {"code": error.code, "message": error.message} if error else {}
