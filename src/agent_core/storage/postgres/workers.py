"""The table of workers and their queue, for people and for monitoring.

Times of workers are the server's: their own clocks may differ.
"""

import json
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any

from agent_core.storage.liveness import OwnerIsDead, by_lease
from agent_core.storage.postgres.queue import read_lane
from agent_core.storage.postgres.statements import read_clock
from agent_core.storage.rows import MAX_SEQ, OPEN_RUN, skip_unreadable
from agent_core.storage.sql import Connection, JobReader
from agent_core.types import RunStatus
from agent_core.types.lanes import PROTOCOL, Lane
from agent_core.types.workers import QueueDepth, QueuedRun, WorkerRecord

_AGE_S = "extract(epoch FROM clock_timestamp()) - extract(epoch FROM heartbeat_at)"
_IS_ALIVE = f"{_AGE_S} < lease_s"
_OURS = "(CAST(:tenant AS TEXT) IS NULL OR tenant IS NULL OR tenant = :tenant)"
_BEAT = """
INSERT INTO workers (worker_id, host, pid, version, protocol, places, queues, tenant, concurrency,
    running, is_draining, lease_s)
VALUES (:worker_id, :host, :pid, :version, :protocol, :places, :queues, :tenant, :concurrency,
    :running, :is_draining, :lease_s)
ON CONFLICT (worker_id) DO UPDATE SET running = excluded.running,
    is_draining = excluded.is_draining, heartbeat_at = clock_timestamp()
"""
_PRUNE = f"""DELETE FROM workers WHERE worker_id IN (SELECT worker_id FROM workers
    WHERE {_AGE_S} > 20 * lease_s FOR UPDATE SKIP LOCKED)"""  # noqa: S608 - constants
_QUEUED = f"""
SELECT runs.run_id, runs.session_id, runs.takeovers, runs.created_at, jobs.queue_name AS lane,
    jobs.status = 'doing' AS is_taken, sessions.owner, jobs.id AS number
FROM procrastinate_jobs AS jobs
JOIN runs ON runs.run_id = jobs.args ->> 'run_id'
JOIN sessions ON sessions.session_id = runs.session_id
WHERE jobs.status IN ('todo', 'doing') AND runs.{OPEN_RUN} AND jobs.id < :before
ORDER BY jobs.id {{order}} LIMIT :most
"""  # noqa: S608 - a constant
_QUEUED_OF_SOME = f"""
WITH open_runs AS MATERIALIZED (
    SELECT run_id, session_id, session_id COLLATE "default" AS lock, takeovers, created_at,
        (SELECT owner FROM sessions WHERE sessions.session_id = runs.session_id) AS owner
    FROM runs WHERE {OPEN_RUN} {{only}}
)
SELECT open_runs.*, jobs.queue_name AS lane, jobs.is_taken, jobs.id AS number
FROM open_runs CROSS JOIN LATERAL (
    SELECT id, queue_name, args, FALSE AS is_taken FROM procrastinate_jobs
    WHERE status = 'todo' AND lock = open_runs.lock
    UNION ALL
    SELECT id, queue_name, args, TRUE FROM procrastinate_jobs
    WHERE status = 'doing' AND lock = open_runs.lock
) AS jobs
WHERE jobs.args ->> 'run_id' = open_runs.run_id AND jobs.id < :before
ORDER BY jobs.id {{order}} LIMIT :most
"""  # noqa: S608 - a constant
"""The same, but for a tenant or one session: no other job is read."""
_DEPTHS = """
SELECT lanes.name, lanes.depth, runs.created_at FROM (
    SELECT queue_name AS name, count(*) AS depth, min(id) AS first_id
    FROM procrastinate_jobs WHERE status = 'todo' {only} GROUP BY queue_name
) AS lanes
JOIN procrastinate_jobs AS jobs ON jobs.id = lanes.first_id
LEFT JOIN runs ON runs.run_id = jobs.args ->> 'run_id'
"""


class WorkerTable:
    """The workers of a database, and the queue that they serve.

    Args:
        reader: reader of the store.
        keep: runs, in order, the jobs that record a worker's heartbeat or end.
        is_dead: judges owners; a worker of this host is dead as soon as its lock is free.
        tenant: only rows for this tenant's sessions are seen; None for all.
    """

    def __init__(
        self,
        reader: JobReader,
        *,
        keep: Callable[[Callable[[Connection], Any]], Awaitable[Any]],
        is_dead: OwnerIsDead = by_lease,
        tenant: str | None = None,
    ) -> None:
        self._reader = reader
        self._keep = keep
        self._is_dead = is_dead
        self._tenant = tenant

    def of_tenant(self, tenant: str, reader: JobReader) -> "WorkerTable":
        """Return the table as one tenant sees it, read through its own reader."""
        return WorkerTable(reader, keep=self._keep, is_dead=self._is_dead, tenant=tenant)

    async def beat(self, worker: WorkerRecord, lease_s: float) -> dict[str, float]:
        """Record that a worker is alive for this long; rows of workers long dead are removed.

        Returns:
            The leases of all workers in seconds, by worker id.
        """
        row = worker.model_dump(exclude={"is_alive", "started_at", "heartbeat_at"})

        def store(connection: Connection) -> dict[str, float]:
            connection.execute(_BEAT, row | {"lease_s": lease_s})
            connection.execute(_PRUNE)
            return dict(connection.execute("SELECT worker_id, lease_s FROM workers").fetchall())

        leases: dict[str, float] = await self._keep(store)
        return leases

    async def remove(self, worker_id: str) -> None:
        """Remove a worker that has ended, after any heartbeat that is still being sent."""
        sql = "DELETE FROM workers WHERE worker_id = ?"
        await self._keep(lambda c: c.execute(sql, (worker_id,)))

    async def listed(self) -> list[WorkerRecord]:
        """Return the workers, in the order in which they were started."""
        sql = f"""SELECT worker_id, CAST(row_to_json(workers) AS TEXT), {_IS_ALIVE}
            FROM workers WHERE {_OURS} ORDER BY started_at, worker_id"""  # noqa: S608 - constants
        rows = await self._reader.read(
            lambda c: c.execute(sql, {"tenant": self._tenant}).fetchall(), is_single=True
        )
        workers: list[WorkerRecord] = []
        for worker_id, text, is_alive in rows:
            with skip_unreadable(f"worker {worker_id}"):
                is_alive = is_alive and not self._is_dead(worker_id, not is_alive)
                facts = {**json.loads(text), "is_alive": is_alive}
                known = {name: facts[name] for name in WorkerRecord.model_fields}
                workers.append(WorkerRecord.model_validate(known))
        return workers

    async def has_worker(self, lane: Lane) -> bool:
        """Return whether a living worker takes the runs of this lane."""
        sql = f"""SELECT worker_id, places, queues, tenant, protocol FROM workers
            WHERE {_OURS} AND {_IS_ALIVE} AND NOT is_draining"""  # noqa: S608 - constants
        rows = await self._reader.read(
            lambda c: c.execute(sql, {"tenant": self._tenant}).fetchall(), is_single=True
        )
        return any(
            lane.suits(*facts) and not self._is_dead(worker_id, False) for worker_id, *facts in rows
        )

    async def queued(self, limit: int, session_id: str | None = None) -> list[QueuedRun]:
        """Return queued runs and runs in progress, in the order of the queue."""
        found = await self._queued("", MAX_SEQ, limit, session_id)
        return [run for _, run in found]

    async def newest(self, before: int | None, limit: int) -> list[tuple[int, QueuedRun]]:
        """Return queued runs and runs in progress below a number, the last queued first."""
        return await self._queued("DESC", MAX_SEQ if before is None else before, limit, None)

    async def _queued(
        self, order: str, before: int, limit: int, session_id: str | None
    ) -> list[tuple[int, QueuedRun]]:
        values = {"most": limit, "before": before, "session_id": session_id}
        sql = _QUEUED.format(order=order)
        if self._tenant is not None or session_id is not None:
            only = "" if session_id is None else "AND session_id = :session_id"
            sql = _QUEUED_OF_SOME.format(only=only, order=order)
        rows = await self._reader.read(lambda c: c.execute(sql, values).fetchall())
        alive = [worker for worker in await self.listed() if worker.is_alive]
        queued: list[tuple[int, QueuedRun]] = []
        for row in rows:
            with skip_unreadable(f"run {row['run_id']}"):
                queued.append((row["number"], _queued_run(row, alive)))
        return queued

    async def depths(self) -> list[QueueDepth]:
        """Return the number of queued runs in each lane, without runs bound to a process."""
        only = "" if self._tenant is None else "AND split_part(queue_name, '/', 3) = :tenant"
        sql = _DEPTHS.format(only=only)
        now, rows = await self._reader.read(
            lambda c: (read_clock(c), c.execute(sql, {"tenant": self._tenant}).fetchall())
        )
        depths: list[QueueDepth] = []
        for name, depth, since in rows:
            if (lane := read_lane(name)) is None:
                continue
            age_s = 0.0
            with skip_unreadable(f"the time since which the first run of {name} waits"):
                age_s = (now - datetime.fromisoformat(since)).total_seconds()
            depths.append(
                QueueDepth(
                    queue=lane.queue,
                    place=lane.place,
                    tenant=lane.tenant,
                    protocol=lane.protocol,
                    depth=depth,
                    oldest_s=max(age_s, 0.0),
                )
            )
        return depths


def _queued_run(row: Any, alive: Sequence[WorkerRecord]) -> QueuedRun:
    lane = Lane.parse(row["lane"])
    worker_id = row["owner"] if row["is_taken"] else None
    has_worker = any(each.worker_id == worker_id for each in alive)
    return QueuedRun(
        run_id=row["run_id"],
        session_id=row["session_id"],
        status=RunStatus.RUNNING if row["is_taken"] else RunStatus.QUEUED,
        queue=lane.queue if lane else "",
        place=lane.place if lane else "here",
        tenant=lane.tenant if lane else None,
        protocol=lane.protocol if lane else PROTOCOL,
        takeovers=row["takeovers"],
        worker_id=worker_id,
        is_without_worker=lane is not None
        and not (has_worker or any(each.takes(lane) for each in alive)),
        queued_at=row["created_at"],
    )
