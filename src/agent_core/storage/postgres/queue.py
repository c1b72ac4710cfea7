"""The queue of runs: jobs of Procrastinate, by its functions in the database.

A job says whose turn it is, and nothing else: whether a run has ended is in its row. A session has
one job under way, and its jobs are taken in the order in which they were queued. Every statement
goes through the store's own connections: a job is queued in the transaction that adds its run.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from agent_core.storage.claims import LOST, close_run
from agent_core.storage.postgres.statements import read_clock
from agent_core.storage.rows import dumps, find
from agent_core.storage.sql import Connection, JobWriter
from agent_core.types import OwnerIsDead, RunRecord, RunStatus
from agent_core.types.lanes import Lane, lane_of_process

_DEFER = """SELECT procrastinate_defer_jobs_v1(ARRAY[CAST(ROW(
    CAST(? AS TEXT), 'run', 0, CAST(? AS TEXT), NULL, CAST(? AS JSONB), NULL)
    AS procrastinate_job_to_defer_v1)])"""
_FETCH = """SELECT id, args ->> 'run_id'
    FROM procrastinate_fetch_job_v2(CAST(? AS VARCHAR[]), CAST(? AS BIGINT)) WHERE id IS NOT NULL"""
_LANES = """WITH RECURSIVE lanes(name) AS (
        SELECT min(queue_name) FROM procrastinate_jobs
        UNION ALL
        SELECT (SELECT min(queue_name) FROM procrastinate_jobs WHERE queue_name > lanes.name)
        FROM lanes WHERE lanes.name IS NOT NULL
    ) SELECT name FROM lanes WHERE name IS NOT NULL"""
"""Each lane that has jobs, found by as many steps in the index as there are lanes."""

_ALONE = "SELECT pg_advisory_xact_lock(hashtext('soong-agent tenants'))"
_UNDER_WAY = """SELECT queue_name, count(*) FROM procrastinate_jobs WHERE status = 'doing'
    GROUP BY queue_name"""
_MINE = """WITH mine AS (SELECT id FROM procrastinate_jobs
    WHERE id = ? AND worker_id = ? AND status = 'doing' FOR UPDATE)"""
_FINISH = f"{_MINE} SELECT procrastinate_finish_job_v1(id, 'succeeded', TRUE) FROM mine"  # noqa: S608
_GIVE_BACK = f"""{_MINE} SELECT procrastinate_retry_job_v2(id,
    clock_timestamp() + make_interval(secs => CAST(? AS DOUBLE PRECISION)), NULL, NULL, NULL)
    FROM mine"""  # noqa: S608
_CANCEL = """SELECT procrastinate_cancel_job_v1(id, FALSE, TRUE) FROM procrastinate_jobs
    WHERE status = 'todo' AND args ->> 'run_id' = ?"""
_REMOVE = "SELECT procrastinate_finish_job_v1(?, 'succeeded', TRUE)"
_PUT_BACK = "SELECT procrastinate_retry_job_v2(?, NULL, NULL, NULL, NULL)"
_PRUNE = "SELECT procrastinate_prune_stalled_workers_v1(CAST(? AS DOUBLE PRECISION))"
_LEFT = """SELECT jobs.id, jobs.args ->> 'run_id',
    jobs.args ->> 'owner', sessions.owner, sessions.lease_expires_at,
    NOT EXISTS (SELECT 1 FROM procrastinate_workers AS alive
        WHERE alive.id = coalesce(jobs.worker_id, CAST(jobs.args ->> 'process' AS BIGINT))
        AND alive.last_heartbeat + make_interval(secs => CAST(? AS DOUBLE PRECISION)) > now())
    FROM procrastinate_jobs AS jobs
    LEFT JOIN runs ON runs.run_id = jobs.args ->> 'run_id'
    LEFT JOIN sessions ON sessions.session_id = runs.session_id
    WHERE (jobs.status = 'doing' OR (jobs.status = 'todo' AND jobs.args ->> 'process' IS NOT NULL))
    AND (runs.run_id IS NOT NULL OR current_setting('soong.tenant', TRUE) IS NULL)
    ORDER BY jobs.id FOR UPDATE OF jobs SKIP LOCKED"""
"""The jobs under way, and those that wait for the process that has queued them."""


@dataclass(frozen=True, slots=True)
class Job:
    """A run whose turn it is, in this process."""

    job_id: int
    run_id: str


def add_job(
    connection: Connection, run: RunRecord, process: int | None = None, owner: str = ""
) -> None:
    """Queue a run, in the transaction of the connection; with a `process`, for that one alone."""
    args: dict[str, Any] = {"run_id": run.run_id}
    if process is not None:
        args |= {"owner": owner, "process": process}
    connection.execute(_DEFER, (run.lane, run.session_id, dumps(args))).fetchall()


def remove_job(connection: Connection, run_id: str) -> None:
    """Take a run that waits for its turn out of the queue, in the transaction of the connection."""
    connection.execute(_CANCEL, (run_id,)).fetchall()


class RunQueue:
    """The queue as one process sees it.

    Args:
        writer: of the store.
        lease_s: for how long a process counts as alive after a heartbeat.
        hurry: has the store wait no more for a server that is away.
    """

    def __init__(
        self, writer: JobWriter, *, lease_s: float, hurry: Callable[[], None] = lambda: None
    ) -> None:
        self._writer = writer
        self.hurry = hurry
        self._lease_s = lease_s
        self._process: int | None = None

    async def register(self) -> int:
        """Make this process one that takes runs; returns its number."""
        if (process := self._process) is None:
            sql = "SELECT worker_id FROM procrastinate_register_worker_v1()"
            process = await self._writer.submit(lambda c: int(c.execute(sql).fetchone()[0]))
            self._process = process
        return process

    async def unregister(self) -> None:
        """Take no more runs; a job that is still this process's is given to another one in time."""
        process, self._process = self._process, None
        if process is not None:
            sql = "SELECT procrastinate_unregister_worker_v1(?)"
            await self._writer.submit(lambda c: c.execute(sql, (process,)).fetchall())

    async def heartbeat(self) -> None:
        """Say that this process lives, if it takes runs; one given up as dead begins anew."""
        process = self._process
        if process is None:
            return

        def beat(connection: Connection) -> bool:
            connection.execute("SELECT procrastinate_update_heartbeat_v1(?)", (process,)).fetchall()
            found = "SELECT 1 FROM procrastinate_workers WHERE id = ?"
            return connection.execute(found, (process,)).fetchone() is not None

        if not await self._writer.submit(beat) and self._process == process:
            self._process = None
            await self.register()

    async def fetch_next(
        self, serves: Callable[[Lane], bool], *, tenant_concurrency: int = 0
    ) -> Job | None:
        """Take the first run whose turn it is of all lanes that this process serves.

        A tenant that has `tenant_concurrency` runs under way, in whichever processes, has to wait;
        0 is no limit.
        """
        process = await self.register()
        return await self._writer.submit(
            lambda c: _fetch(c, _open_lanes(c, serves, tenant_concurrency), process)
        )

    async def fetch_own(self, run_id: str) -> Job | None:
        """Take a run that only this process may take, if it is its turn."""
        process = await self.register()
        lanes = [lane_of_process(run_id)]
        return await self._writer.submit(lambda c: _fetch(c, lanes, process))

    async def finish(self, job: Job) -> None:
        """Remove the job of a run that has ended; one that is another process's by now stays."""
        process = self._process
        await self._writer.submit(lambda c: c.execute(_FINISH, (job.job_id, process)).fetchall())

    async def give_back(self, job: Job, pause_s: float = 0) -> None:
        """Let another process take the run, so much later; it keeps its place in its session."""
        values = (job.job_id, self._process, pause_s)
        await self._writer.submit(lambda c: c.execute(_GIVE_BACK, values).fetchall())

    async def remove(self, run_id: str) -> None:
        """Remove the job of a run that was cancelled before its turn."""
        await self._writer.submit(lambda c: remove_job(c, run_id))

    async def sweep(self, is_dead: OwnerIsDead) -> int:
        """Put back what dead processes have under way, and drop what only they could carry out.

        Returns:
            How many jobs that were.
        """
        return await self._writer.submit(lambda c: _sweep(c, is_dead, self._lease_s))


def _fetch(connection: Connection, lanes: Sequence[str], process: int) -> Job | None:
    if not lanes:
        return None
    row = connection.execute(_FETCH, (list(lanes), process)).fetchone()
    return Job(row[0], row[1]) if row else None


def _open_lanes(
    connection: Connection, serves: Callable[[Lane], bool], tenant_concurrency: int
) -> list[str]:
    """The lanes that have jobs and are served, and whose tenants may have another run."""
    under_way: Counter[str | None] = Counter()
    if tenant_concurrency:  # what is counted must not change until the job is taken
        connection.execute(_ALONE).fetchall()
        for name, count in connection.execute(_UNDER_WAY).fetchall():
            if (lane := Lane.parse(name)) is not None:
                under_way[lane.tenant] += count
    lanes = (Lane.parse(name) for (name,) in connection.execute(_LANES).fetchall())
    return [
        str(lane)
        for lane in lanes
        if lane is not None
        and serves(lane)
        and not (
            lane.tenant and tenant_concurrency and under_way[lane.tenant] >= tenant_concurrency
        )
    ]


def _sweep(connection: Connection, is_dead: OwnerIsDead, lease_s: float) -> int:
    now = read_clock(connection)
    swept = 0
    connection.execute(_PRUNE, (20 * lease_s,)).fetchall()
    for row in connection.execute(_LEFT, (lease_s,)).fetchall():
        job_id, run_id, starter, owner, lease_end, is_silent = row
        if starter is not None:
            is_left = is_dead(starter, is_silent)
        elif owner is not None:
            is_over = lease_end is None or datetime.fromisoformat(lease_end) <= now
            is_left = is_dead(owner, is_over)
        else:
            is_left = is_silent
        if not is_left:
            continue
        swept += 1
        if starter is None:
            connection.execute(_PUT_BACK, (job_id,)).fetchall()
            continue
        run = find(connection, RunRecord, run_id)
        if run is not None and run.status is RunStatus.QUEUED:
            close_run(connection, run, LOST)
        if run is None or not run.has_begun:  # that is closed with its session
            connection.execute(_REMOVE, (job_id,)).fetchall()
    return swept
