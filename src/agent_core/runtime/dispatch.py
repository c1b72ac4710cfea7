"""Puts runs into the workers' queue, and waits until runs of this process are next."""

import asyncio
import logging
import re
from contextlib import suppress
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent_core.aio import finish_uncancelled
from agent_core.config.paths import Setup
from agent_core.errors import ArgumentError, ErrorCode, StorageError
from agent_core.loop.option_checks import malformed_option
from agent_core.runtime.run import RunProgress, identity_of
from agent_core.runtime.workspaces import Workspaces
from agent_core.storage.owners import Owner
from agent_core.storage.store import SessionStore
from agent_core.types import (
    Batch,
    Claim,
    ClaimedRun,
    Dispatch,
    EventDraft,
    EventLevel,
    EventType,
    NewRun,
    PendingEvent,
    StoredOptions,
)
from agent_core.types.lanes import (
    NAME_PATTERN,
    PLACE_PATTERN,
    QUEUE_PATTERN,
    SNAPSHOT,
    Lane,
    Placement,
    own_place,
)
from agent_core.types.workers import QueuedRun

if TYPE_CHECKING:
    from agent_core.storage.postgres.queue import Job, RunQueue
    from agent_core.storage.postgres.workers import WorkerTable

logger = logging.getLogger(__name__)

_LOOK_S = 0.1
"""Seconds between checks whether this process' run is next: no notice announces it."""

_SAY_S = 1.0
"""Seconds between reports of what the run waits for, and before the first one."""

_FORMS = {
    "queue": (QUEUE_PATTERN, "1 to 24 letters, digits, _ or -"),
    "place": (PLACE_PATTERN, '"snapshot", or "host:" with the host_id of a machine'),
    "tenant": (NAME_PATTERN, "1 to 40 letters, digits, _, . or -"),
}


class Dispatcher:
    """Decides where the runs of this process' project are executed, if workers exist.

    Args:
        queue, workers: of the database.
        store, owner: of this process.
        setup: settings of the project.
        workspaces: makes the files of a session available on every machine.
    """

    def __init__(
        self,
        queue: "RunQueue",
        workers: "WorkerTable",
        *,
        store: SessionStore,
        owner: Owner,
        setup: Setup,
        workspaces: Workspaces,
    ) -> None:
        self.queue = queue
        self._workspaces = workspaces
        self._workers = workers
        self._store = store
        self._owner = owner
        self._tenant = setup.tenant
        self._config = setup.config.worker
        self._timeout_s = setup.config.store.queue_timeout_s

    @property
    def heartbeat_s(self) -> float:
        """Seconds between this process' heartbeats."""
        return self._config.heartbeat_s

    def claim(self) -> Claim:
        """Return this process' claim to a session."""
        return Claim(self._owner.owner_id, timedelta(seconds=self._config.lease_s))

    async def dispatch_of(
        self, placement: Placement, options: StoredOptions | None, *, has_message: bool
    ) -> Dispatch:
        """Return who may take a run with these options.

        Raises:
            AgentCoreError: `validation_error`: an argument is malformed or has no effect together
                with another one, the run belongs to another tenant than this runtime, or one of its
                options exists only in this process.
        """
        for name, (pattern, form) in _FORMS.items():
            value: object = getattr(placement, name)
            if value is not None and not (isinstance(value, str) and re.fullmatch(pattern, value)):
                raise malformed_option(name, f"{value!r} is invalid: it must be {form}")
        tenant = placement.tenant or self._tenant
        if self._tenant is not None and tenant != self._tenant:
            raise malformed_option("tenant", f"is {self._tenant!r} for every run of this runtime")
        is_here, home = bool(placement.here) or not has_message, own_place(self._config.host_id)
        if placement.queue_timeout_s is not None and not placement.here:
            reason = "is how long a run with here=True waits for its turn: give both, or neither"
            raise malformed_option("queue_timeout_s", reason)
        if placement.queue is not None and placement.here:
            reason = "names the workers that take the run, and here=True keeps it here: give one"
            raise malformed_option("queue", reason)
        if is_here and placement.place not in {None, home}:
            raise malformed_option("place", f"is {home!r} for runs with here=True")
        if not is_here and options is not None and options.needs_caller:
            names = ", ".join(options.needs_caller)
            message = (
                f"{names}: only this program has these, and a worker executes the run; start it"
                " with here=True, or register them with the workers and pass their names"
            )
            details = {"options": options.needs_caller}
            raise ArgumentError(message, options.needs_caller[0], details)
        return Dispatch(
            queue=placement.queue or "default",
            home=home,
            place=placement.place,
            tenant=tenant,
            process=await self.queue.register() if is_here else None,
        )

    async def add(self, new_run: NewRun) -> RunProgress:
        """Put a run into the queue; a warning says if there is no worker for it.

        If every machine should have the files, the project is recorded and sent first.

        Raises:
            StorageError: raised by `queue_run`, or the files cannot be recorded or sent.
        """
        if new_run.dispatch is not None and new_run.dispatch.place == SNAPSHOT:
            await finish_uncancelled(self._workspaces.begin(new_run.session_id))
        try:
            claimed = await self._queue_run(new_run)
            warnings = await self._warn(claimed)
        except BaseException:  # no handle would exist for it
            await finish_uncancelled(self._drop(new_run.run_id))
            raise
        record = claimed.run
        return RunProgress(
            identity=identity_of(record),
            status=record.status,
            is_for_workers=record.is_for_workers,
            warnings=warnings,
        )

    async def _warn(self, claimed: ClaimedRun) -> list[str]:
        """Record that there is no worker for a run, if so; return the warnings."""
        run = claimed.run
        lane = Lane.parse(run.lane or "")
        if lane is None or await self._workers.has_worker(lane):
            return []
        message = f"the run waits: {lane.say_no_worker()}"
        facts = {"message": message, "lane": run.lane}
        draft = EventDraft(EventType.RUN_WITHOUT_WORKER, facts, EventLevel.WARNING)
        batch = Batch(
            session_id=run.session_id,
            agent_id=run.agent_id,
            run_id=run.run_id,
            events=[PendingEvent(draft)],
            epoch=claimed.session.epoch,
        )
        try:
            await self._store.append(batch)
        except StorageError as error:
            if error.code is not ErrorCode.SESSION_ACTIVE:
                raise
            return []  # a worker has taken it by now
        return [message]

    async def _queue_run(self, new_run: NewRun) -> ClaimedRun:
        new_run = replace(new_run, lease=self.claim().lease)
        return await finish_uncancelled(self._store.queue_run(new_run))

    async def turn(
        self, new_run: NewRun, timeout_s: float | None
    ) -> "tuple[Job, ClaimedRun] | None":
        """Queue a run of this process, wait until it is next in its session, and claim the session.

        Returns:
            The job and the claimed run; None if the run was cancelled meanwhile, or closed as a
                dead process' run.

        Raises:
            StorageError: raised by `queue_run`; `session_active`: the run was not next in time, and
                was cancelled.
        """
        run_id, said = new_run.run_id, ""
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        until, say_at = monotonic() + timeout_s, monotonic() + _SAY_S
        look_at = monotonic() + self._config.heartbeat_s
        job: Job | None = None
        sweeping = asyncio.create_task(self._sweep())
        try:
            await self._queue_run(new_run)
            while True:
                job = job or await finish_uncancelled(self.queue.fetch_own(run_id))
                if job is not None:
                    try:
                        taken = await finish_uncancelled(self._take(run_id))
                    except StorageError as error:
                        if error.code is not ErrorCode.SESSION_ACTIVE:
                            raise
                    else:
                        if taken is None:
                            await self.queue.finish(job)
                            return None
                        return job, taken
                if monotonic() >= until:
                    raise _still_active(new_run, timeout_s)
                if monotonic() >= look_at:
                    look_at = monotonic() + self._config.heartbeat_s
                    record = await self._store.run(run_id)
                    if job is None and (record is None or record.status.is_terminal):
                        return None
                if monotonic() >= say_at:
                    say_at = monotonic() + _SAY_S
                    said = await self._say_what_is_before(new_run, said)
                await asyncio.sleep(min(_LOOK_S, max(until - monotonic(), 0)))
        except BaseException:  # it must not keep its place in the queue: no handle exists for it
            await finish_uncancelled(self._drop(run_id))
            raise
        finally:
            sweeping.cancel()  # not awaited: a cancellation here would lose a run that was taken

    async def keep_alive(self) -> None:
        """Send heartbeats of this process until cancelled, if it takes runs."""
        while True:
            await asyncio.sleep(self._config.heartbeat_s)
            try:
                await self.queue.heartbeat()
            except Exception as error:  # noqa: BLE001 - the next beat may succeed
                logger.warning("the queue has no heartbeat of this process: %s", error)

    async def _sweep(self) -> None:
        """End the runs of dead processes, until cancelled: there may be no worker to do it.

        This may wait for a locked session; heartbeats and runs do not wait for it.
        """
        while True:
            await asyncio.sleep(self._config.heartbeat_s)
            try:
                await self._store.close_lost_runs()
                await self.queue.sweep()
            except Exception as error:  # noqa: BLE001 - the next sweep may succeed
                logger.warning("what dead processes left could not be ended yet: %s", error)

    async def _say_what_is_before(self, new_run: NewRun, said: str) -> str:
        """Log what a run of this process waits for, unless that was `said` last; return it."""
        with suppress(StorageError):
            for first in await self._workers.queued(1, new_run.session_id):
                what = _what_is_before(new_run.run_id, first)
                if what and what != said:
                    logger.warning("run %s waits for its turn: %s", new_run.run_id, what)
                return what or said
        return said

    async def _take(self, run_id: str) -> ClaimedRun | None:
        return await self._store.take_run(
            run_id,
            self.claim(),
            max_takeovers=self._config.max_takeovers,
            is_next=True,
        )

    async def _drop(self, run_id: str) -> None:
        await self._store.drop_queued(run_id, taken_by=self._owner.owner_id)
        await self.queue.remove(run_id)


def _what_is_before(run_id: str, first: QueuedRun) -> str:
    """Describe the first run of a session's queue as the reason why another run waits."""
    if first.run_id == run_id:
        holder = first.worker_id
        return f"process {holder} has session {first.session_id}" if holder else ""
    which = f"run {first.run_id} of session {first.session_id} is before it"
    since = f"queued {first.queued_at:%Y-%m-%d %H:%M:%S} UTC"
    if first.worker_id is None:
        state = "is still queued"
        if first.is_without_worker:
            lane = Lane(
                queue=first.queue, place=first.place, tenant=first.tenant, protocol=first.protocol
            )
            state += f"; {lane.say_no_worker()}"
    else:
        process = "worker" if first.queue else "process"
        state = f"is executed by {process} {first.worker_id}"
    return f"{which}, {since}, and {state}"


def _still_active(run: NewRun, timeout_s: float) -> StorageError:
    return StorageError(
        ErrorCode.SESSION_ACTIVE,
        f"runs of session {run.session_id} that were queued before have not ended within"
        f" {timeout_s:g} s (queue_timeout_s); wait until they have, cancel them, or start the run"
        " without here=True, so that it waits for a worker",
        retryable=True,
        details={"session_id": run.session_id, "run_id": run.run_id},
    )
