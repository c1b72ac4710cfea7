"""The queue of runs: jobs of Procrastinate, through its functions in the database.

A job only says which run is next: whether the run has ended is in its row. A session has one job in
progress, and its jobs are taken in the order in which they were queued. Between tenants, the one
that has waited longest for a turn is next (`take_job` in the schema). Every statement uses the
store's own connections: a job is queued in the transaction that adds its run.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, cast

from msgspec import Struct

from agent_core.storage import owners
from agent_core.storage.liveness import OwnerIsDead, by_lease
from agent_core.storage.lost_runs import LOST, close_run
from agent_core.storage.postgres.statements import (
    PostgresRow,
    Statements,
    list_columns,
    read_clock,
)
from agent_core.storage.rows import columns_of, dumps, find, read, skip_unreadable, warn_once
from agent_core.storage.sql import Connection, FoundRow, JobWriter
from agent_core.text import quoted
from agent_core.types import NewRun, RunRecord, RunStatus, SessionRecord
from agent_core.types.lanes import HERE, Lane, lane_of_process

_DEFER = """SELECT procrastinate_defer_jobs_v1(ARRAY[CAST(ROW(
    CAST(? AS TEXT), 'run', 0, CAST(? AS TEXT), NULL, CAST(? AS JSONB), NULL)
    AS procrastinate_job_to_defer_v1)])"""
_MOST_KNOWN = 1000
"""Number of lanes that a process remembers, to take their jobs without a look-up."""

_PROCESS = "jobs.args ->> 'process'"
_TAKE = f"""WITH RECURSIVE lanes(name) AS (
        SELECT min(queue_name) FROM procrastinate_jobs WHERE status = 'todo'
        UNION ALL
        SELECT (SELECT min(queue_name) FROM procrastinate_jobs
            WHERE status = 'todo' AND queue_name > lanes.name)
        FROM lanes WHERE lanes.name IS NOT NULL
    ), unknown AS (
        SELECT name FROM lanes WHERE name NOT LIKE '{HERE}%'
        EXCEPT SELECT unnest(CAST(:served AS TEXT[]) || CAST(:others AS TEXT[]))
    ), job AS MATERIALIZED (
        SELECT id, run_id FROM take_job(ARRAY(
            SELECT name FROM lanes INTERSECT SELECT unnest(CAST(:served AS TEXT[]))), :process)
        WHERE NOT EXISTS (SELECT 1 FROM unknown)
    )
    SELECT ARRAY(SELECT name FROM unknown), job.id, job.run_id,
        CASE WHEN job.id IS NOT NULL THEN NOT EXISTS
            (SELECT 1 FROM procrastinate_jobs WHERE status = 'todo' AND id <> job.id) END,
        {list_columns(RunRecord)}, {list_columns(SessionRecord)}
    FROM (SELECT 1) AS once LEFT JOIN job ON TRUE
    LEFT JOIN runs ON runs.run_id = job.run_id
    LEFT JOIN sessions ON sessions.session_id = runs.session_id"""  # noqa: S608 - constants
"""Takes the next available job of some lanes, or names lanes with waiting jobs that are unknown.

Lanes are found by one index step each. The run of a job that was queued this very moment may not be
visible yet.
"""
_TAKE_OWN = _TAKE.replace("WHERE NOT EXISTS (SELECT 1 FROM unknown)", "")

_ALONE = "SELECT pg_advisory_xact_lock(hashtext('soong-agent tenants'))"
_UNDER_WAY = """SELECT queue_name, count(*) FROM procrastinate_jobs WHERE status = 'doing'
    GROUP BY queue_name"""
_MINE = """WITH mine AS (SELECT id, lock FROM procrastinate_jobs
    WHERE id = ? AND worker_id = ? AND status = 'doing' FOR UPDATE)"""
_FINISH = f"{_MINE} SELECT procrastinate_finish_job_v1(id, 'succeeded', TRUE) FROM mine"  # noqa: S608
_FINISH_UNBEGUN = """WITH mine AS (SELECT id FROM procrastinate_jobs
        WHERE args ->> 'run_id' = ? AND worker_id = ? AND status = 'doing' FOR UPDATE)
    SELECT procrastinate_finish_job_v1(id, 'succeeded', TRUE) FROM mine"""
REMOVE_ENDED = """ended AS (SELECT id FROM procrastinate_jobs
        WHERE lock = ? AND status = 'doing' AND args ->> 'run_id' = ? FOR UPDATE)
    SELECT procrastinate_finish_job_v1(id, 'succeeded', TRUE) FROM ended"""
"""Continues a WITH: removes the job of a run that has ended, whichever process has it."""

_GIVE_BACK = f"""{_MINE}, others AS (SELECT procrastinate_cancel_job_v1(jobs.id, FALSE, TRUE)
        FROM procrastinate_jobs AS jobs, mine
        WHERE (SELECT status = 'waiting' FROM runs WHERE run_id = ?)
        AND jobs.status = 'todo' AND jobs.lock = mine.lock AND jobs.args ->> 'run_id' = ?)
    SELECT procrastinate_retry_job_v2(id,
        clock_timestamp() + make_interval(secs => CAST(? AS DOUBLE PRECISION)), NULL, NULL, NULL),
        (SELECT count(*) FROM others)
    FROM mine"""  # noqa: S608
"""For a waiting run, also removes the job that an answer has queued meanwhile: this one is first in
its session. No such job is searched for other runs.
"""
_LIVES = """SELECT id, procrastinate_update_heartbeat_v1(id)
    FROM procrastinate_workers WHERE id = ?"""
_CANCEL = """SELECT procrastinate_cancel_job_v1(id, FALSE, TRUE) FROM procrastinate_jobs
    WHERE status = 'todo' AND args ->> 'run_id' = :run_id
    AND lock = (SELECT session_id COLLATE "default" FROM runs WHERE run_id = :run_id)"""
_REMOVE = "SELECT procrastinate_finish_job_v1(?, 'succeeded', TRUE)"
_PUT_BACK = "SELECT procrastinate_retry_job_v2(?, NULL, NULL, NULL, NULL)"
_PRUNE = """DELETE FROM procrastinate_workers AS seen
    WHERE last_heartbeat + make_interval(secs => CAST(? AS DOUBLE PRECISION)) < now()
    AND NOT EXISTS (SELECT 1 FROM procrastinate_jobs AS jobs
        WHERE jobs.status IN ('todo', 'doing')
        AND (jobs.worker_id = seen.id OR jobs.args ->> 'process' = CAST(seen.id AS TEXT)))"""
"""A process that has a job is judged by its own lease."""
_LEFT = f"""SELECT jobs.id, jobs.args ->> 'run_id',
    jobs.args ->> 'owner', sessions.owner, sessions.lease_expires_at,
    (SELECT extract(epoch FROM clock_timestamp()) - extract(epoch FROM seen.last_heartbeat)
        FROM procrastinate_workers AS seen
        WHERE CAST(seen.id AS TEXT) = coalesce(CAST(jobs.worker_id AS TEXT), {_PROCESS})),
    coalesce(jobs.args ->> 'lease_s', CAST((SELECT max(lease_s) FROM workers
        WHERE extract(epoch FROM clock_timestamp()) - extract(epoch FROM heartbeat_at) < lease_s)
        AS TEXT))
    FROM {{jobs}} AS jobs
    LEFT JOIN runs ON runs.run_id = jobs.args ->> 'run_id'
    LEFT JOIN sessions ON sessions.session_id = runs.session_id
    WHERE (runs.run_id IS NOT NULL OR coalesce(current_setting('soong.tenant', TRUE), '') = '')"""  # noqa: S608
"""The jobs in progress, and jobs that wait for the process that queued them.

With each come the seconds for which its process was silent, and that process' lease: the stored
one, or the longest lease of the living workers.
"""
_FIND_LEFT = _LEFT.format(
    jobs="""(
        SELECT * FROM procrastinate_jobs WHERE status = 'doing' UNION ALL
        SELECT * FROM procrastinate_jobs WHERE status = 'todo' AND args ->> 'process' IS NOT NULL
    )"""
)
_LOCK_LEFT = f"""{_LEFT.format(jobs="procrastinate_jobs")} AND jobs.id = ?
    AND (jobs.status = 'doing' OR (jobs.status = 'todo' AND {_PROCESS} IS NOT NULL))
    FOR UPDATE OF jobs SKIP LOCKED"""


class Job(Struct, frozen=True):
    """A job that this process has taken; it `is_last` if no other job waited."""

    job_id: int
    run_id: str
    is_last: bool = False
    rows: Sequence[Any] = ()

    def read(self) -> tuple[RunRecord, SessionRecord] | None:
        """Return the run and session as they were when the job was taken, if they were visible.

        Raises:
            StorageError: a row cannot be read as a record.
        """
        if not self.rows or self.rows[0] is None:
            return None
        run_columns, session_columns = columns_of(RunRecord), columns_of(SessionRecord)
        run, session = self.rows[: len(run_columns)], self.rows[len(run_columns) :]
        if session[0] is None:
            return None
        return (
            read(RunRecord, PostgresRow(run_columns, run)),
            read(SessionRecord, PostgresRow(session_columns, session)),
        )


def add_job(connection: Connection, run: RunRecord, opening: NewRun | None = None) -> None:
    """Queue a run in the connection's transaction, perhaps only for the process that opens it.

    That process counts as dead after being silent for longer than its own lease.
    """
    args: dict[str, Any] = {"run_id": run.run_id}
    if opening and opening.dispatch and (process := opening.dispatch.process) is not None:
        lease_s = opening.lease.total_seconds()
        args |= {"owner": opening.owner, "process": process, "lease_s": lease_s}
    connection.execute(_DEFER, (run.lane, run.session_id, dumps(args)))


def remove_job(connection: Connection, run_id: str) -> None:
    """Remove a queued run's job, in the connection's transaction."""
    connection.execute(_CANCEL, {"run_id": run_id})


class RunQueue:
    """The queue as one process uses it.

    Args:
        writer: writer of the store.
        keep: runs the jobs that show that this process lives; registering twice because of a broken
            connection leaves a number without jobs, which is swept later.
        lease_s: seconds for which a process counts as alive after a heartbeat.
        hurry: makes the store stop waiting for an unreachable server.
        is_surely_dead: judges the processes whose jobs are swept.
    """

    def __init__(
        self,
        writer: JobWriter,
        *,
        keep: Callable[[Callable[[Connection], Any]], Awaitable[Any]],
        lease_s: float,
        hurry: Callable[[], None] = lambda: None,
        is_surely_dead: OwnerIsDead = by_lease,
    ) -> None:
        self._writer = writer
        self._keep = keep
        self.hurry = hurry
        self._lease_s = lease_s
        self._is_surely_dead = is_surely_dead
        self._process: int | None = None
        self._beat_at = 0.0
        self._registering = asyncio.Lock()
        self._known: Mapping[str, Lane | None] = {}

    async def register(self) -> int:
        """Register this process as one that takes runs; return its number.

        A process that was suspended sends a heartbeat before it queues or takes a run: a silent
        process' job is swept away.
        """
        if self._process is not None and owners.now() - self._beat_at > self._lease_s / 2:
            await self.heartbeat()
        async with self._registering:  # once, though several runs are started at once
            if (process := self._process) is None:
                sql = "SELECT worker_id FROM procrastinate_register_worker_v1()"
                began = owners.now()
                process = int(await self._keep(lambda c: c.execute(sql).fetchone()[0]))
                self._process, self._beat_at = process, began
            return process

    async def unregister(self) -> None:
        """Take no more runs; a remaining job of this process is given to another one later."""
        process, self._process = self._process, None
        if process is not None:
            sql = "SELECT procrastinate_unregister_worker_v1(?)"
            await self._writer.submit(lambda c: c.execute(sql, (process,)).fetchall())

    async def heartbeat(self) -> None:
        """Send a heartbeat if this process takes runs; register again if it was declared dead."""
        process = self._process
        if process is None:
            return

        def beat(connection: Connection) -> bool:
            return connection.execute(_LIVES, (process,)).fetchone() is not None

        began = owners.now()
        is_known: bool = await self._keep(beat)
        if is_known:
            self._beat_at = began
        elif self._process == process:
            self._process = None
            await self.register()

    async def fetch_next(
        self, serves: Callable[[Lane], bool], *, tenant_concurrency: int = 0
    ) -> Job | None:
        """Take the next available run of all lanes that this process serves; tenants take turns.

        A tenant with `tenant_concurrency` runs in progress, in any processes, has to wait; 0 means
        no limit.
        """
        process, known = await self.register(), self._known

        def take(connection: Connection) -> tuple[Job | None, Mapping[str, Lane | None]]:
            full = _full_tenants(connection, tenant_concurrency) if tenant_concurrency else ()

            def can_take(lane: Lane | None) -> bool:
                if lane is None or not serves(lane):
                    return False
                return lane.tenant is None or lane.tenant not in full

            lanes = dict(known)
            while True:  # a tenant whose lane is new may have waited longest
                served = [name for name, lane in lanes.items() if can_take(lane)]
                others = list(lanes.keys() - set(served))
                values = {"served": served, "others": others, "process": process}
                job, new = _take(connection, _TAKE, values)
                if not new:
                    return job, lanes
                lanes |= {name: read_lane(name) for name in new}

        job, found = await self._writer.submit(take)
        self._known = found if len(found) < _MOST_KNOWN else {}
        return job

    async def fetch_own(self, run_id: str) -> Job | None:
        """Take a run that only this process may take, if it is next."""
        process = await self.register()
        values = {"served": [lane_of_process(run_id)], "others": list[str](), "process": process}
        job, _ = await self._writer.submit(lambda c: _take(c, _TAKE_OWN, values))
        return job

    async def finish(self, job: Job) -> None:
        """Remove the job of a run that has ended, unless another process has the job by now."""
        process = self._process
        await self._writer.submit(lambda c: c.execute(_FINISH, (job.job_id, process)).fetchall())

    async def give_back(self, job: Job, pause_s: float = 0) -> None:
        """Let another process take the run after a pause; it keeps its place in its session."""
        values = (job.job_id, self._process, job.run_id, job.run_id, pause_s)
        await self._writer.submit(lambda c: c.execute(_GIVE_BACK, values).fetchall())

    async def remove(self, run_id: str) -> None:
        """Remove the job of a run that has not begun, queued or taken by this process."""
        process = self._process

        def remove(connection: Connection) -> None:
            remove_job(connection, run_id)
            connection.execute(_FINISH_UNBEGUN, (run_id, process))

        await self._writer.submit(remove)

    async def sweep(self) -> int:
        """Put back the jobs of dead processes, and drop jobs that only they could execute.

        Returns:
            The number of these jobs.
        """
        is_dead, lease_s, swept = self._is_surely_dead, self._lease_s, 0
        for job_id in await self._writer.submit(lambda c: _find_left(c, is_dead, lease_s)):
            with skip_unreadable(f"job {job_id}"):  # a transaction each
                swept += await self._writer.submit(
                    lambda c, one=job_id: _sweep_job(c, one, is_dead, lease_s)
                )
        return swept


def read_lane(name: str) -> Lane | None:
    """Parse a lane; None if it belongs to one process, or cannot be read."""
    lane = Lane.parse(name)
    if lane is None and not name.startswith(HERE):
        warn_once(f"no worker takes the jobs of {quoted(name, 200)}: that names no lane")
    return lane


def _take(
    connection: Connection, sql: str, values: Mapping[str, Any]
) -> tuple[Job | None, Sequence[str]]:
    """Take the next job; return it, and the lanes that are still unknown."""
    cast("Statements", connection).mark_only("job")
    names, job_id, run_id, is_last, *rows = connection.execute(sql, values).fetchone()
    return None if job_id is None else Job(job_id, run_id, is_last, rows), names


def _full_tenants(connection: Connection, most: int) -> set[str | None]:
    """Return the tenants with this many runs in progress; blocks other takers until the commit."""
    connection.execute(_ALONE)
    under_way: Counter[str | None] = Counter()
    for name, count in connection.execute(_UNDER_WAY).fetchall():
        if (lane := read_lane(name)) is not None:
            under_way[lane.tenant] += count
    return {tenant for tenant, count in under_way.items() if count >= most}


def _find_left(connection: Connection, is_dead: OwnerIsDead, lease_s: float) -> list[int]:
    """Return the jobs that dead processes have left."""
    connection.execute(_PRUNE, (20 * lease_s,))
    rows, left = connection.execute(_FIND_LEFT), list[int]()
    now = read_clock(connection)
    for row in rows.fetchall():
        with skip_unreadable(f"job {row[0]}"):
            if _is_left(row, is_dead, now, lease_s):
                left.append(row[0])
    return left


def _is_left(row: FoundRow, is_dead: OwnerIsDead, now: datetime, lease_s: float) -> bool:
    """Return whether the process that executes the job, or reserved it for itself, is dead."""
    _, _, starter, owner, lease_end, silent_s, its_lease_s = row
    if starter is None and owner is not None:
        is_over = lease_end is None or datetime.fromisoformat(lease_end) <= now
        return is_dead(owner, is_over)
    if starter is not None or its_lease_s is None:
        lease_s = float(its_lease_s or lease_s)
    else:
        lease_s = max(lease_s, float(its_lease_s))
    is_silent = silent_s is None or silent_s > lease_s
    return is_silent if starter is None else is_dead(starter, is_silent)


def _sweep_job(connection: Connection, job_id: int, is_dead: OwnerIsDead, lease_s: float) -> bool:
    """Put an abandoned job back, or end its run; False if it is no longer abandoned."""
    row = connection.execute(_LOCK_LEFT, (job_id,)).fetchone()
    if row is None or not _is_left(row, is_dead, read_clock(connection), lease_s):
        return False
    _, run_id, starter, *_ = row
    if starter is None:
        connection.execute(_PUT_BACK, (job_id,)).fetchall()
        return True
    run = find(connection, RunRecord, run_id)
    if run is not None and run.status is RunStatus.QUEUED:
        close_run(connection, run, LOST)
    if run is None or not run.has_begun:  # otherwise the run is closed with its session
        connection.execute(_REMOVE, (job_id,)).fetchall()
    return True
