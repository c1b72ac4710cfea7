"""Runs jobs on PostgreSQL, in a bounded number of threads with one connection each.

Jobs of one session keep the order of the calls, jobs of several sessions run concurrently: each
begins by locking the row of its session. A job whose connection breaks is run again on another one,
unless it turns out to have been committed.

No job relies on what an earlier transaction of its connection has left. Behind a pooler, each
transaction may be executed by another server process, which also serves other clients.
"""

import asyncio
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, cast
from uuid import uuid4

import psycopg
from msgspec import Struct, field
from psycopg.errors import UniqueViolation
from psycopg.pq import TransactionStatus

from agent_core.aio.loops import ThreadPool, reset_after_fork
from agent_core.errors import ErrorCode, StorageError
from agent_core.storage.postgres.appends import Append
from agent_core.storage.postgres.faults import DATABASE, explain, is_passing, is_read_only
from agent_core.storage.postgres.settings import IDLE_S, READING, SILENCE_S, Answering, connect
from agent_core.storage.postgres.statements import Statements
from agent_core.storage.sql import Job, Named, Result
from agent_core.types import Position

PATIENCE = 60.0
"""Seconds that a job waits for an unreachable server, or for other processes, before it fails."""

_LEAST_SILENCE_S = 3.0
"""Seconds in which a server under load answers small statements, despite short leases."""
SILENCE_AT_END_S = 2.0
_REACH_S = 5
"""Seconds that an attempt to connect may take: the last one delays the end of the process."""
_REACH_AT_END_S = 2
_LONGEST_ATTEMPT_S = SILENCE_S + 10
"""No attempt takes longer, except one during which the process was suspended."""

_WRITERS = 4
_READERS = 2

_SESSION_OF = {
    "session_id": "$1",
    "run_id": "(SELECT session_id FROM runs WHERE run_id = $1)",
    "agent_id": "(SELECT session_id FROM agents WHERE agent_id = $1)",
    "request_id": "(SELECT session_id FROM approvals WHERE request_id = $1)",
    "hold_id": "(SELECT session_id FROM budget_holds WHERE hold_id = $1)",
}
_LOCKS = {
    by: f"""WITH held AS MATERIALIZED (
        SELECT FROM sessions WHERE session_id = {found} FOR NO KEY UPDATE
    ) SELECT count(*), clock_timestamp() FROM held"""  # noqa: S608
    for by, found in _SESSION_OF.items()
}
"""Waits until no other transaction holds the session, then reads the clock."""
_END = """SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
    WHERE pid = $1 AND CAST(extract(epoch FROM backend_start) AS TEXT) = $2"""
_LAST_COMMIT = """INSERT INTO last_commits (connection, number) VALUES ($1, -1)
    ON CONFLICT (connection) DO UPDATE SET at = excluded.at,
        number = least(last_commits.number, -1 - last_commits.number)
    RETURNING -1 - number"""
"""Returns the number of a connection's last transaction, once none is in progress, and refuses all
later ones of that connection: a proxy may still hold one back.

Each transaction writes its number into the row of its connection: it was committed if the number is
there. Postgres' own transaction status is not reliable after a crash, because it reuses the ids of
lost transactions.
"""
_RACES = 3
"""Number of attempts for a job whose row another process has added meanwhile."""


def attempts(
    patience: float = PATIENCE, wait: Callable[[float], object] = time.sleep
) -> Iterator[bool]:
    """Yield, per attempt, whether it is the last one; the waits between them grow.

    A process that is suspended during an attempt has most of its patience left afterwards: it only
    meets a connection that broke long ago.
    """
    spent, pause = 0.0, 0.02
    while spent + pause < patience:
        begun_at = time.monotonic()
        yield False
        wait(pause)
        took = time.monotonic() - begun_at
        spent += took if took < _LONGEST_ATTEMPT_S else patience / 4
        pause = min(pause * 2, 1.0)
    yield True


class _Link(Struct):
    """A thread's connection, and the number of its last transaction."""

    connection: Answering
    made_at: float
    name: str = field(default_factory=lambda: uuid4().hex)
    begun: int = 0


class _Waiting(Struct, frozen=True):
    """Work for a thread, and the future of its result."""

    work: Callable[[], Any]
    future: asyncio.Future[Any]


class Threads:
    """Runs writing jobs and queries, until it is closed.

    Args:
        url, tenant: of the connections, see `connect`.
        patience: see `PATIENCE`.
        idle_s: `idle_s` of the connections; also the seconds that `keep` waits for an answer.
        marks_commits: False if the database has no table `last_commits`: a job whose connection
            breaks at its commit is run again, whether or not it was committed.
    """

    def __init__(
        self,
        url: str,
        *,
        tenant: str | None = None,
        patience: float = PATIENCE,
        idle_s: float = IDLE_S,
        marks_commits: bool = True,
    ) -> None:
        self.tenant = tenant
        self._marks_commits = marks_commits
        self._url = url
        self._patience = patience
        self._idle_s = idle_s
        self._local = threading.local()
        self._links: list[_Link] = []
        self._lock = threading.Lock()
        self._lanes: dict[tuple[Named, str], deque[_Waiting]] = {}
        self._writers = ThreadPool(_WRITERS, thread_name_prefix="session-writer")
        self._keeper = ThreadPoolExecutor(
            1, thread_name_prefix="session-keeper", initializer=self._keep_short
        )
        self._readers = ThreadPool(_READERS, thread_name_prefix="session-reader")
        self._closed = False
        self._silent_at = -math.inf
        self._is_hurried = False
        logging.getLogger("psycopg").addFilter(_is_news)
        reset_after_fork(self)

    def reset(self) -> None:
        """Refuse jobs after a fork: the threads and connections belong to the parent process."""
        self._closed = True
        self._lock = threading.Lock()
        self._local, self._links, self._lanes = threading.local(), [], {}
        self._writers = self._keeper = self._readers = ThreadPool(1)

    def submit(
        self,
        job: Job[Result],
        about: str | None = None,
        /,
        *,
        by: Named = "session_id",
        is_small: bool = False,  # noqa: ARG002 - the network is never small
    ) -> asyncio.Future[Result]:
        """Run a job in a thread; jobs of one session in the order of the calls."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        if self._closed:
            future.set_exception(_closed_error())
            return future
        if isinstance(batch := cast("object", job), Append):
            work = partial(self._send, batch)
        else:
            work = partial(self._write, job, about, by, is_marked=self._marks_commits)
        if about is None:
            self._writers.submit(self._finish, _Waiting(work, future))
        else:
            self._line_up((by, about), _Waiting(work, future))
        return future

    def keep(self, job: Job[Result]) -> asyncio.Future[Result]:
        """Run a job that shows that this process lives, in a thread that does nothing else.

        The job must not wait for a lock that another process may hold for long, and may run twice;
        it is not begun if its caller has been cancelled.
        """
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        if self._closed:
            future.set_exception(_closed_error())
        else:
            work = partial(self._write, job, None, "session_id", is_marked=False)
            self._keeper.submit(self._finish_wanted, _Waiting(work, future))
        return future

    async def read(
        self, query: Job[Result], *, is_single: bool = False, tenant: str | None = None
    ) -> Result:
        """Run a query in a thread; with `tenant`, it sees only the rows of that tenant.

        Raises:
            StorageError: the database cannot be read, or is closed.
        """
        if self._closed:
            raise _closed_error()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._readers, self._read, query, is_single, tenant)

    def hurry(self) -> None:
        """Stop waiting for an unreachable server: the process is about to end."""
        self._is_hurried = True
        with self._lock:
            for link in self._links:
                link.connection.silence_s = SILENCE_AT_END_S

    async def close(self) -> None:
        """Finish what is queued, then close every connection."""
        self._closed = True
        while True:
            with self._lock:
                if not self._lanes:
                    break
            await asyncio.sleep(0.005)
        for threads in (self._writers, self._keeper, self._readers):
            await asyncio.to_thread(threads.shutdown)
        for link in self._links:
            link.connection.close()
        self._links.clear()

    def _line_up(self, key: tuple[Named, str], waiting: _Waiting) -> None:
        with self._lock:
            lane = self._lanes.get(key)
            if lane is not None:
                lane.append(waiting)
                return
            self._lanes[key] = deque([waiting])
        self._writers.submit(self._run_next, key)

    def _run_next(self, key: tuple[Named, str]) -> None:
        """Run the next job of a session; the following one is submitted again, to be fair."""
        with self._lock:
            waiting = self._lanes[key][0]
        self._finish(waiting)
        with self._lock:
            lane = self._lanes[key]
            lane.popleft()
            if not lane:
                del self._lanes[key]
                return
        self._writers.submit(self._run_next, key)

    def _finish_wanted(self, waiting: _Waiting) -> None:
        """Run a job if its caller still waits: while the database is away, each takes its time."""
        if not waiting.future.cancelled():
            self._finish(waiting)

    def _finish(self, waiting: _Waiting) -> None:
        """Run a job, and give its result to the waiting caller."""
        value: Any = None
        failure: Exception | None = None
        try:
            value = waiting.work()
        except Exception as error:  # noqa: BLE001 - the caller that awaits the job gets it
            failure = explain(error)
        with suppress(RuntimeError):  # the loop is gone, and the waiting caller with it
            waiting.future.get_loop().call_soon_threadsafe(_settle, waiting.future, value, failure)

    def _write(self, job: Job[Result], about: str | None, by: Named, *, is_marked: bool) -> Result:
        races = 0
        for is_last in attempts(self._patience):
            done: tuple[Result] | None = None
            try:
                connection = self._connection()
                link: _Link = self._local.link
                link.begun += is_marked
                mark = (link.name, link.begun) if is_marked else None
                with connection.together() as pipeline:
                    connection.begin()
                    statements = Statements(connection, pipeline, mark)
                    if about is not None:
                        statements.lock(_LOCKS[by], about)
                    done = (job(statements),)
                    connection.execute("COMMIT")
                return done[0]
            except UniqueViolation:
                self._take_back()
                races += 1
                if races > _RACES:
                    raise
            except psycopg.Error as error:
                is_lost = self._take_back(error)
                if is_last or self._is_hurried or not (is_lost or is_passing(error)):
                    raise
                if is_lost and is_marked and done is not None and self._was_committed():
                    return done[0]
            except BaseException:
                self._take_back()
                raise
        raise AssertionError

    def _send(self, batch: Append) -> Position:
        is_lost = False
        for is_last in attempts(self._patience):
            try:
                connection = self._connection()
                stored = batch.find(connection) if is_lost else None
                return stored or batch(connection)
            except UniqueViolation:
                self._take_back()
                if is_last or not is_lost:  # a proxy may have delivered the first attempt late
                    raise
            except psycopg.Error as error:
                broke = self._take_back(error)
                is_lost = is_lost or broke
                if is_last or self._is_hurried or not (broke or is_passing(error)):
                    raise
            except BaseException:
                self._take_back()
                raise
        raise AssertionError

    def _read(self, query: Job[Result], is_single: bool, tenant: str | None) -> Result:
        for is_last in attempts(self._patience):
            try:
                connection = self._connection()
                if (
                    is_single and tenant is None and connection.is_plain
                ):  # one round trip instead of two
                    return query(Statements(connection))
                with connection.together() as pipeline:
                    connection.begin(READING)
                    if tenant is not None:
                        connection.bind(tenant)
                    value = query(Statements(connection, pipeline))
                    connection.execute("COMMIT")
                return value
            except psycopg.Error as error:
                is_lost = self._take_back(error)
                if is_last or self._is_hurried or not (is_lost or is_passing(error)):
                    raise explain(error) from None
            except (UnicodeEncodeError, OverflowError) as error:
                self._take_back()
                raise explain(error) from error
            except BaseException:
                self._take_back()
                raise
        raise AssertionError

    def _connection(self) -> Answering:
        """Return this thread's connection; replaces a broken one and ends its server process.

        Behind a pooler only the pooler can do that: the process may serve another client by now.
        """
        link: _Link | None = getattr(self._local, "link", None)
        if link is not None and link.made_at < self._silent_at:  # it may be silent, too
            link.connection.close()
        if link is not None and not link.connection.closed:
            return link.connection
        if link is not None and self._is_hurried:
            raise psycopg.OperationalError("the connection is lost, and this is the end")
        made_at = time.monotonic()
        silence_s = getattr(self._local, "silence_s", SILENCE_S)
        connection = connect(
            self._url,
            tenant=self.tenant,
            silence_s=silence_s,
            idle_s=self._idle_s,
            reach_s=_REACH_AT_END_S if self._is_hurried else _REACH_S,
        )
        try:
            if link is not None and link.connection.process and connection.process:
                connection.execute(_END, link.connection.process)
        except BaseException:
            connection.close()
            raise
        self._local.link = new = _Link(connection, made_at)
        with self._lock:
            if link is not None:
                self._links.remove(link)
            self._links.append(new)
        return connection

    def _keep_short(self) -> None:
        """Let this thread wait no longer than a part of a lease: its jobs are small."""
        self._local.silence_s = max(self._idle_s, _LEAST_SILENCE_S)

    def _take_back(self, error: psycopg.Error | None = None) -> bool:
        """Roll back what an error left open; return whether the connection was lost."""
        link: _Link | None = getattr(self._local, "link", None)
        if link is None:
            return True
        connection = link.connection
        if connection.is_silent:
            self._silent_at = max(self._silent_at, time.monotonic())
        if not connection.closed:
            try:
                if connection.info.transaction_status != TransactionStatus.IDLE:
                    connection.execute("ROLLBACK")
            except psycopg.Error:
                connection.close()
        was_lost = connection.closed
        if error is not None and is_read_only(error):
            connection.close()
        return was_lost

    def _was_committed(self) -> bool:
        """Return whether the last transaction of a broken connection was committed."""
        broken: _Link = self._local.link
        for is_last in attempts(self._patience):
            try:
                connection = self._connection()
                with connection.transaction():
                    row = connection.execute(_LAST_COMMIT, (broken.name,)).fetchone()
            except psycopg.Error as error:
                broke = self._take_back(error)
                if is_last or self._is_hurried or not (broke or is_passing(error)):
                    raise
            else:
                return row is not None and row[0] == broken.begun
        raise AssertionError


def _is_news(record: logging.LogRecord) -> bool:
    """Return whether a log record says more than the error for which a job is run again."""
    return not str(record.msg).startswith("error ignored terminating")


def _settle(future: asyncio.Future[Any], value: Any, failure: Exception | None) -> None:
    if future.done():
        return
    if failure is not None:
        future.set_exception(failure)
    else:
        future.set_result(value)


def _closed_error() -> StorageError:
    message = f"{DATABASE} is closed, or was opened before this process was forked"
    return StorageError(ErrorCode.STORAGE_ERROR, message)
