"""The table of workers, and what waits for them: for people, and for what watches a worker.

The times of workers are the server's: their own clocks may differ.
"""

from collections.abc import Sequence
from typing import Any

from agent_core.storage.sql import Connection, JobReader, JobWriter
from agent_core.types import RunStatus
from agent_core.types.lanes import PROTOCOL, Lane
from agent_core.types.workers import QueueDepth, QueuedRun, WorkerRecord

_IS_ALIVE = "heartbeat_at + make_interval(secs => lease_s) > clock_timestamp()"
_OURS = "(CAST(:tenant AS TEXT) IS NULL OR tenant IS NULL OR tenant = :tenant)"
_BEAT = """
INSERT INTO workers (worker_id, host, pid, version, protocol, places, queues, tenant, concurrency,
    running, is_draining, lease_s)
VALUES (:worker_id, :host, :pid, :version, :protocol, :places, :queues, :tenant, :concurrency,
    :running, :is_draining, :lease_s)
ON CONFLICT (worker_id) DO UPDATE SET running = excluded.running,
    is_draining = excluded.is_draining, heartbeat_at = clock_timestamp()
"""
_PRUNE = """
DELETE FROM workers WHERE heartbeat_at + make_interval(secs => 20 * lease_s) < clock_timestamp()
"""
_QUEUED = """
SELECT runs.run_id, runs.session_id, runs.takeovers, runs.created_at, jobs.queue_name AS lane,
    jobs.status = 'doing' AS is_taken, sessions.owner
FROM procrastinate_jobs AS jobs
JOIN runs ON runs.run_id = jobs.args ->> 'run_id'
JOIN sessions ON sessions.session_id = runs.session_id
WHERE jobs.status IN ('todo', 'doing')
    AND runs.status IN ('queued', 'pending', 'running', 'waiting')
ORDER BY jobs.id LIMIT :most
"""
_DEPTHS = """
SELECT lanes.name, lanes.depth, extract(
    epoch FROM clock_timestamp() - CAST(runs.created_at AS TIMESTAMPTZ)) FROM (
    SELECT queue_name AS name, count(*) AS depth, min(id) AS first_id
    FROM procrastinate_jobs WHERE status = 'todo' GROUP BY queue_name
) AS lanes
JOIN procrastinate_jobs AS jobs ON jobs.id = lanes.first_id
JOIN runs ON runs.run_id = jobs.args ->> 'run_id'
"""


class WorkerTable:
    """The workers of a database, and the queue that they serve.

    Args:
        writer, reader: of the store.
        tenant: only what is for its sessions is seen; None: everything.
    """

    def __init__(self, writer: JobWriter, reader: JobReader, tenant: str | None = None) -> None:
        self._writer = writer
        self._reader = reader
        self._tenant = tenant

    async def beat(self, worker: WorkerRecord, lease_s: float) -> None:
        """Say that a worker is alive for so long; rows of workers long dead go."""
        row = worker.model_dump(exclude={"is_alive", "started_at", "heartbeat_at"})

        def store(connection: Connection) -> None:
            connection.execute(_BEAT, row | {"lease_s": lease_s})
            connection.execute(_PRUNE)

        await self._writer.submit(store, is_small=True)

    async def remove(self, worker_id: str) -> None:
        """The worker has ended."""
        sql = "DELETE FROM workers WHERE worker_id = ?"
        await self._writer.submit(lambda c: c.execute(sql, (worker_id,)))

    async def listed(self) -> list[WorkerRecord]:
        """The workers, those that were started first before the others."""
        sql = f"""SELECT *, {_IS_ALIVE} AS is_alive FROM workers WHERE {_OURS}
            ORDER BY started_at, worker_id"""  # noqa: S608 - constants
        rows = await self._reader.read(
            lambda c: c.execute(sql, {"tenant": self._tenant}).fetchall(), is_single=True
        )
        return [
            WorkerRecord(**{name: row[name] for name in WorkerRecord.model_fields}) for row in rows
        ]

    async def has_worker(self, lane: Lane) -> bool:
        """Whether a worker is alive that takes the runs of this lane."""
        return any(worker.takes(lane) for worker in await self.listed())

    async def queued(self, limit: int) -> list[QueuedRun]:
        """The runs that wait, and those that are carried out, in the order of the queue."""
        rows = await self._reader.read(lambda c: c.execute(_QUEUED, {"most": limit}).fetchall())
        alive = [worker for worker in await self.listed() if worker.is_alive]
        return [_queued_run(row, alive) for row in rows]

    async def depths(self) -> list[QueueDepth]:
        """How much waits in each lane; runs that wait for their own process are left out."""
        rows = await self._reader.read(lambda c: c.execute(_DEPTHS).fetchall())
        return [
            QueueDepth(
                queue=lane.queue,
                place=lane.place,
                tenant=lane.tenant,
                protocol=lane.protocol,
                depth=depth,
                oldest_s=max(float(age_s), 0.0),
            )
            for name, depth, age_s in rows
            if (lane := Lane.parse(name)) is not None
        ]


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
