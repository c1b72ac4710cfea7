"""What the store on PostgreSQL survives: cut connections, servers that stop, limits, refusals."""

import asyncio
import hashlib
import os
import signal
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from agent_core.blobs.base import BlobId
from agent_core.errors import ErrorCode, StorageError
from agent_core.storage.postgres import PostgresSessionStore
from agent_core.storage.postgres.blobs import PostgresBlobs
from agent_core.storage.postgres.connections import Threads
from agent_core.storage.postgres.health import examine
from agent_core.storage.postgres.notices import Notices
from agent_core.storage.postgres.queue import RunQueue
from agent_core.storage.postgres.settings import connect
from agent_core.storage.sql import Job, JobWriter, Named
from agent_core.types import (
    Batch,
    BudgetHold,
    BudgetScope,
    Dispatch,
    EventType,
    RunChange,
    RunStatus,
    TextBlock,
)
from judging import judged
from postgres import Server
from rows import a_batch, a_node, an_event, an_opening
from tcp_proxy import Proxy


def query(url: str, sql: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(sql.encode())
        return cursor.fetchall() if cursor.description else []


def is_connected(connection: psycopg.Connection[Any]) -> bool:
    with suppress(psycopg.OperationalError):
        connection.execute("SELECT 1")
        return True
    return False


def is_there(url: str) -> bool:
    with suppress(psycopg.OperationalError):
        return query(url, "SELECT 1") == [(1,)]
    return False


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not await asyncio.to_thread(is_so):  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.01)


def through(url: str, port: int) -> str:
    parts = urlsplit(url)
    user, _, _ = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user}@127.0.0.1:{port}"))


@pytest.fixture
async def proxy(database_url: str) -> AsyncGenerator[Proxy]:
    with Proxy.in_thread(urlsplit(database_url).port or 0) as opened:
        yield opened


@pytest.fixture
async def store(database_url: str, proxy: Proxy) -> AsyncGenerator[PostgresSessionStore]:
    """A store behind a proxy, with a session `s1`, its run `run_1` open."""
    url = through(database_url, proxy.port)
    async with PostgresSessionStore.open(url, patience=20) as opened:
        await opened.open_run(an_opening())
        yield opened


def seqs(url: str) -> list[int]:
    return [seq for (seq,) in query(url, "SELECT seq FROM events ORDER BY seq")]


BATCHES: dict[str, Callable[[], Batch]] = {
    "of a node": lambda: a_batch(a_node("the_last"), active_node_id="the_last"),
    "of events": lambda: a_batch(an_event(payload={"a": "the_last"}), an_event()),
    "that ends the run": lambda: a_batch(
        a_node("the_last"),
        run=RunChange(status=RunStatus.COMPLETED),
        owner="me",
        release="me",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("name", BATCHES)
async def test_a_batch_that_was_stored_without_an_answer_is_not_stored_twice(
    store: PostgresSessionStore, proxy: Proxy, database_url: str, name: str
) -> None:
    await store.append(a_batch(an_event()))
    proxy.unanswered = b"the_last"
    appending = store.append(BATCHES[name]())
    await until(lambda: len(seqs(database_url)) > 1)
    stored = seqs(database_url)
    proxy.unanswered = None
    proxy.cut()

    position = await appending

    assert (position.seq, position.run_seq) == (2, 2)
    assert seqs(database_url) == stored


async def test_a_job_that_was_done_without_an_answer_is_not_done_twice(
    store: PostgresSessionStore, proxy: Proxy, database_url: str
) -> None:
    scope = BudgetScope(kind="session", scope_id="s1", limits={"turns": 10})
    hold = BudgetHold(
        hold_id="the_last",
        session_id="s1",
        run_id="run_1",
        agent_id="agent_s1",
        scopes=[scope],
        fixed={"turns": 1},
    )
    proxy.unanswered = b"the_last"
    reserving = asyncio.create_task(store.reserve_budget(hold))
    await until(lambda: bool(query(database_url, "SELECT 1 FROM budget_holds")))
    proxy.unanswered = None
    proxy.cut()

    grant = await reserving

    assert grant.refused_by is None
    (use,) = await store.budget_uses(["s1"])
    assert use.reserved["turns"] == 1


class OneJobEach:
    """A writer whose jobs are carried out by several, one after the other."""

    def __init__(self, *writers: JobWriter) -> None:
        self._writers = iter(writers)

    def submit(
        self,
        job: Job[Any],
        about: str | None = None,
        /,
        *,
        by: Named = "session_id",
        is_small: bool = False,
    ) -> asyncio.Future[Any]:
        return next(self._writers).submit(job, about, by=by, is_small=is_small)


@pytest.mark.parametrize("sent", [b"take_job", b"COMMIT"])
async def test_a_run_whose_taking_was_not_answered_is_taken_once(
    store: PostgresSessionStore, proxy: Proxy, database_url: str, sent: bytes
) -> None:
    """Otherwise a living worker would have its job, and nobody would carry it out."""
    dispatch = Dispatch(queue="default", home="host:here")
    await store.queue_run(an_opening("s2", "run_2", dispatch=dispatch))
    direct, broken = Threads(database_url), Threads(through(database_url, proxy.port))
    queue = RunQueue(OneJobEach(broken, broken), keep=direct.keep, lease_s=30)
    await queue.register()
    proxy.unanswered = sent  # the text of a statement is sent once on a connection
    taking = asyncio.create_task(queue.fetch_next(lambda lane: True))
    await until(lambda: proxy.muted == 1)
    if sent == b"COMMIT":
        taken = "SELECT 1 FROM procrastinate_jobs WHERE status = 'doing'"
        await until(lambda: bool(query(database_url, taken)))
    proxy.unanswered = None
    proxy.cut()

    job = await taking

    assert job is not None
    assert job.run_id == "run_2"
    jobs = query(database_url, "SELECT status, count(*) OVER () FROM procrastinate_jobs")
    assert jobs == [("doing", 1)]
    assert await queue.fetch_next(lambda lane: True) is None
    for threads in (direct, broken):
        await threads.close()


async def test_an_append_that_is_cut_before_it_arrives_is_stored_once(
    store: PostgresSessionStore, proxy: Proxy, database_url: str
) -> None:
    with psycopg.connect(database_url) as other:
        other.execute("SELECT 1 FROM sessions WHERE session_id = 's1' FOR UPDATE")
        appending = [store.append(a_batch(a_node(f"n{i}"))) for i in range(3)]
        waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        await until(lambda: bool(query(database_url, waits)))
        proxy.cut()

    positions = await asyncio.gather(*appending)

    assert [position.seq for position in positions] == [1, 2, 3]
    assert seqs(database_url) == [1, 2, 3]


async def test_a_connection_that_the_server_ends_is_replaced(
    store: PostgresSessionStore, database_url: str
) -> None:
    end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
    for number in range(1, 4):
        query(database_url, f"{end} AND datname = current_database()")
        assert (await store.append(a_batch(an_event()))).seq == number
        assert len(await store.events_after("run_1", 0)) == number


@pytest.mark.long
@pytest.mark.parametrize("kill", [False, True], ids=["restarted", "killed"])
async def test_no_acknowledged_event_is_lost_when_the_server_goes_away(
    postgres_server: Server, kill: bool
) -> None:
    async with PostgresSessionStore.open(postgres_server.url()) as store:
        await store.open_run(an_opening())
        acknowledged: list[str] = []
        is_over = asyncio.Event()

        async def write() -> None:
            while not is_over.is_set():
                events = [an_event(payload={"text": "x" * 100}) for _ in range(3)]
                position = await store.append(a_batch(*events))
                assert position.seq == len(acknowledged) + 1
                acknowledged.extend(event.event_id for event in events)

        writing = asyncio.create_task(write())
        for _ in range(2):
            enough = len(acknowledged) + 30
            await until(lambda enough=enough: len(acknowledged) > enough)
            await asyncio.to_thread(postgres_server.kill if kill else postgres_server.stop)
            await asyncio.to_thread(postgres_server.start)
        is_over.set()
        await writing

        stored = await store.events_after("run_1", 0, limit=100_000)
        assert [event.event_id for event in stored] == acknowledged
        assert [event.seq for event in stored] == list(range(1, len(stored) + 1))


@pytest.mark.long
async def test_a_server_that_stays_away_is_said_so_and_found_again(postgres_server: Server) -> None:
    url = postgres_server.url()
    async with PostgresSessionStore.open(url, patience=0.3) as store:
        await store.open_run(an_opening())
        await asyncio.to_thread(postgres_server.stop)
        for work in (store.append(a_batch(an_event())), store.session("s1"), store.heartbeat("me")):
            with pytest.raises(StorageError) as caught:
                await work
            assert caught.value.retryable
            assert "cannot be reached" in str(caught.value)
            assert_says_nothing_of(caught.value, url)
        await asyncio.to_thread(postgres_server.start)
        assert (await store.append(a_batch(an_event()))).seq == 1


def assert_says_nothing_of(error: BaseException, url: str) -> None:
    """No text of the error, or of what it came from, has a part of the address."""
    parts = urlsplit(url)
    secrets = [parts.password, f"{parts.hostname}:{parts.port}", "postgresql://"]
    shown: BaseException | None = error
    while shown is not None:
        text = f"{shown} {shown!r} {getattr(shown, 'details', '')}"
        assert not [each for each in secrets if each and each in text], text
        shown = shown.__cause__ or (None if shown.__suppress_context__ else shown.__context__)


@pytest.mark.long
async def test_opening_leaves_nothing_in_the_log_of_the_server(
    shared_postgres: Server, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Nowhere/Land")
    async with (
        PostgresSessionStore.open(database_url) as store,
        PostgresSessionStore.open(database_url, tenant="mine") as mine,
        Notices.open(database_url) as notices,
    ):
        await store.open_run(an_opening())
        assert await mine.sessions() == []
        while not notices.is_connected:  # noqa: ASYNC110 - it says nothing then
            await asyncio.sleep(0.01)
        await asyncio.to_thread(examine, database_url)
    assert shared_postgres.log(database_url.rpartition("/")[2]) == []


LIMITS = {
    "role": "ALTER ROLE guest CONNECTION LIMIT 0",
    "database": "ALTER DATABASE {} CONNECTION LIMIT 0",
    "right": "REVOKE CONNECT ON DATABASE {} FROM public",
    "closed": "ALTER DATABASE {} ALLOW_CONNECTIONS false",
    "login": "ALTER ROLE guest NOLOGIN",
}
SAID = {
    "role": "takes no more connections",
    "database": "takes no more connections",
    "right": "GRANT CONNECT",
    "closed": "ALLOW_CONNECTIONS",
    "login": "refuses the user",
}


@pytest.mark.long
@pytest.mark.parametrize("limit", LIMITS)
async def test_what_keeps_a_connection_from_being_made_is_told(
    shared_postgres: Server, database_url: str, limit: str
) -> None:
    name = database_url.rpartition("/")[2]
    guest = f"guest_{name}"
    shared_postgres.sql(f"CREATE ROLE {guest} LOGIN PASSWORD 'secret'")
    shared_postgres.sql(LIMITS[limit].replace("guest", guest).format(name))
    url = f"postgresql://{guest}:secret@{database_url.rpartition('@')[2]}"
    with pytest.raises(StorageError, match=SAID[limit]) as refused:
        async with PostgresSessionStore.open(url):
            pass
    assert refused.value.retryable is (limit in {"role", "database"})
    shared_postgres.sql(f"DROP ROLE {guest}")


async def test_a_standby_is_waited_for_until_it_is_promoted(postgres_server: Server) -> None:
    url = postgres_server.url()
    async with PostgresSessionStore.open(url) as store:
        await store.open_run(an_opening())
        await asyncio.to_thread(postgres_server.stop)
        (postgres_server.folder / "data" / "standby.signal").touch()
        await asyncio.to_thread(postgres_server.start)
        with pytest.raises(StorageError, match="read-only"):
            async with PostgresSessionStore.open(url):
                pass
        writing: list[asyncio.Task[object]] = [
            asyncio.create_task(store.rename_session("s1", "title")),
            asyncio.create_task(store.heartbeat("me")),
        ]
        appending = store.append(a_batch(an_event()))
        refused = "cannot execute "
        while str(postgres_server.log("postgres")).count(refused) < 6:  # noqa: ASYNC110 - a file
            await asyncio.sleep(0.05)
        assert await store.session("s1") is not None
        assert not appending.done()
        assert not any(each.done() for each in writing)
        postgres_server.sql("SELECT pg_promote()")
        assert (await appending).seq == 1
        await asyncio.gather(*writing)


SETTINGS = {
    "DateStyle": "SQL, DMY",
    "IntervalStyle": "sql_standard",
    "TimeZone": "Asia/Kathmandu",
    "bytea_output": "escape",
    "extra_float_digits": "-15",
    "client_encoding": "LATIN1",
    "default_transaction_isolation": "serializable",
    "default_transaction_read_only": "on",
    "idle_in_transaction_session_timeout": "1ms",
    "idle_session_timeout": "500ms",
    "lock_timeout": "1ms",
    "transform_null_equals": "on",
}


async def test_no_setting_of_a_role_has_an_effect(
    shared_postgres: Server, database_url: str
) -> None:
    name = database_url.rpartition("/")[2]
    guest = f"guest_{name}"
    shared_postgres.sql(f"CREATE ROLE {guest} LOGIN SUPERUSER PASSWORD 'secret'")
    for setting, value in SETTINGS.items():
        shared_postgres.sql(f"ALTER ROLE {guest} SET {setting} = '{value}'")
    url = f"postgresql://{guest}:secret@{database_url.rpartition('@')[2]}"
    async with PostgresSessionStore.open(url) as store, Notices.open(url) as notices:
        queue = store.queue(30)
        await store.queue_run(an_opening(dispatch=Dispatch(queue="default", home="host:a")))
        job = await queue.fetch_next(lambda lane: True)
        assert job is not None
        assert job.run_id == "run_1"
        node = a_node("n1", content=[TextBlock(text="läuft 😀")])
        await asyncio.gather(*(store.append(a_batch(each)) for each in (node, an_event())))
        assert [each.text for each in await store.path("n1")] == ["läuft 😀"]
        assert await store.workers(None).queued(10)
        await queue.sweep()
        while not notices.is_connected:  # noqa: ASYNC110 - it says nothing then
            await asyncio.sleep(0.01)
    blobs = PostgresBlobs(url)
    content = bytes(range(256))
    blob = BlobId(hashlib.sha256(content).hexdigest(), len(content))
    blobs.keep(blob, BytesIO(content), session_id="s1", used_by="art_1")
    assert b"".join(blobs.pieces(blob.digest)) == content
    blobs.sweep()
    blobs.close()
    shared_postgres.sql(f"DROP ROLE {guest}")


BAD_ADDRESSES = {
    "password": ("soong:wrong", "127.0.0.1", "", "refuses the user or the password"),
    "user": ("nobody:secret", "127.0.0.1", "", "refuses the user or the password"),
    "database": ("", "127.0.0.1", "missing", "does not exist"),
    "host": ("", "no-such-host.invalid", "", "cannot be reached"),
    "at sign in the password": ("soong:se@cret", "127.0.0.1", "", ""),
    "slash in the password": ("soong:se/cret", "127.0.0.1", "", ""),
}


@pytest.mark.parametrize("name", BAD_ADDRESSES)
async def test_an_address_that_leads_nowhere_is_refused_without_being_shown(
    database_url: str, name: str
) -> None:
    account, host, database, reason = BAD_ADDRESSES[name]
    parts = urlsplit(database_url)
    account = account or parts.netloc.rpartition("@")[0]
    address = f"postgresql://{account}@{host}:{parts.port}/{database or parts.path[1:]}"

    with pytest.raises(StorageError) as caught:
        async with PostgresSessionStore.open(address):
            pass

    assert reason in str(caught.value)
    assert "cret" not in f"{caught.value!r} {caught.value.details} {caught.value.__cause__!r}"
    assert_says_nothing_of(caught.value, database_url)


FAULTS = {
    "53100": ("has no room", True),
    "53200": ("has no room", True),
    "57014": ("timeouts", True),
    "58030": ("disk of the server", True),
    "XX001": ("damaged", False),
    "42501": ("store check names the missing rights", False),
}


@pytest.mark.long
@pytest.mark.parametrize("code", FAULTS)
async def test_what_a_server_refuses_is_explained_and_leaves_nothing_half_done(
    store: PostgresSessionStore, database_url: str, code: str
) -> None:
    query(
        database_url,
        f"""CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN RAISE EXCEPTION 'as asked, at {database_url}' USING ERRCODE = '{code}'; END $$;
        CREATE TRIGGER fails BEFORE INSERT ON events EXECUTE FUNCTION fail()""",
    )
    meaning, retryable = FAULTS[code]
    queued = an_opening(run_id="run_2", events=[an_event(EventType.RUN_QUEUED)])

    for work in (store.append(a_batch(a_node("n1"))), store.open_run(queued)):
        with pytest.raises(StorageError) as caught:
            await work
        assert caught.value.code is ErrorCode.STORAGE_ERROR
        assert meaning in str(caught.value)
        assert caught.value.retryable is retryable
        assert_says_nothing_of(caught.value, database_url)

    query(database_url, "DROP TRIGGER fails ON events")
    assert await store.node("n1") is None
    assert [run.run_id for run in await store.runs("s1")] == ["run_1"]
    assert (await store.append(a_batch(a_node("n1")))).seq == 1


async def test_an_administrator_ends_a_write_that_waits_but_no_timeout_of_the_database_does(
    database_url: str,
) -> None:
    name = urlsplit(database_url).path[1:]
    query(database_url, f"ALTER DATABASE {name} SET statement_timeout = '200ms'")
    query(database_url, f"ALTER DATABASE {name} SET lock_timeout = '200ms'")
    waits = "FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    for_long = f"{waits} AND query_start < clock_timestamp() - interval '0.4 s'"
    async with PostgresSessionStore.open(database_url) as store:
        await store.open_run(an_opening())
        with psycopg.connect(database_url) as other:
            other.execute("SELECT 1 FROM sessions WHERE session_id = 's1' FOR UPDATE")
            appending = store.append(a_batch(an_event()))
            await until(lambda: bool(query(database_url, f"SELECT 1 {for_long}")))
            query(database_url, f"SELECT pg_cancel_backend(pid) {waits}")
            with pytest.raises(StorageError, match="timeouts") as caught:
                await appending
        assert caught.value.retryable
        assert (await store.append(a_batch(an_event()))).seq == 1


@pytest.mark.long
async def test_a_deadlock_is_tried_again(database_url: str) -> None:
    """Two stores give titles to the same sessions in opposite orders, again and again."""
    async with (
        PostgresSessionStore.open(database_url) as one,
        PostgresSessionStore.open(database_url) as other,
    ):
        ids = [f"s{number}" for number in range(30)]
        for session_id in ids:
            opening = an_opening(session_id, f"run_{session_id}")
            await one.open_run(opening)
        for _ in range(10):
            query(database_url, "UPDATE sessions SET title = NULL")
            await asyncio.gather(
                one.add_titles(dict.fromkeys(ids, "one")),
                other.add_titles(dict.fromkeys(reversed(ids), "other")),
            )
        assert {(await one.sessions(limit=100))[i].title for i in range(30)} <= {"one", "other"}


async def test_a_closed_store_refuses_and_says_so(database_url: str) -> None:
    async with PostgresSessionStore.open(database_url) as store:
        await store.open_run(an_opening())
        queued = [store.append(a_batch(an_event())) for _ in range(20)]
    assert [(await each).seq for each in queued] == list(range(1, 21))
    for work in (store.append(a_batch(an_event())), store.session("s1"), store.heartbeat("me")):
        with pytest.raises(StorageError, match="is closed"):
            await work


async def test_nothing_is_left_connected_when_the_store_is_closed(database_url: str) -> None:
    async with PostgresSessionStore.open(database_url) as store:
        await asyncio.gather(*(store.session(f"s{i}") for i in range(20)))
    others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    await until(lambda: query(database_url, others) == [(1,)])


async def test_several_processes_and_loops_use_one_database(
    database_url: str, tmp_path: Path
) -> None:
    """Each loop, in a thread of its own, with a store of its own."""

    async def write(session_id: str) -> list[int]:
        async with PostgresSessionStore.open(database_url) as store:
            opening = an_opening(session_id, f"run_{session_id}")
            await store.open_run(opening)
            of = {"session_id": session_id, "run_id": f"run_{session_id}"}
            return [(await store.append(a_batch(an_event(), **of))).seq for _ in range(10)]

    names = [f"s{number}" for number in range(4)]
    found = await asyncio.gather(*(asyncio.to_thread(asyncio.run, write(name)) for name in names))
    assert found == [list(range(1, 11))] * 4


async def test_a_process_that_is_paused_in_a_transaction_does_not_count_as_busy(
    store: PostgresSessionStore, database_url: str
) -> None:
    """The server ends a transaction that is idle, and waits for an active one for ever."""
    states = "SELECT DISTINCT state FROM pg_stat_activity WHERE xact_start IS NOT NULL"
    clients = "datname = current_database() AND backend_type = 'client backend'"
    others = f"{states} AND {clients} AND pid != pg_backend_pid()"
    is_paused, goes_on = threading.Event(), threading.Event()

    def pause(owner: str, lease: object) -> bool:
        is_paused.set()
        return goes_on.wait(20)

    opening = an_opening(run_id="run_2", owner="you")
    opened = asyncio.create_task(judged(store, pause).open_run(opening))
    try:
        await until(is_paused.is_set)
        assert query(database_url, others) == [("idle in transaction",)]
    finally:
        goes_on.set()
    assert (await opened).run.run_id == "run_2"


async def test_a_connection_that_takes_everything_and_says_nothing_is_given_up(
    database_url: str, proxy: Proxy
) -> None:
    def ask() -> None:
        with connect(through(database_url, proxy.port), silence_s=0.5) as connection:
            connection.execute("SELECT pg_sleep(0.2)")
            proxy.unanswered = b"SELECT"
            with pytest.raises(psycopg.OperationalError, match="does not answer"):
                connection.execute("SELECT 1")
            assert connection.is_silent
            assert connection.closed

    async with asyncio.timeout(20):
        await asyncio.to_thread(ask)


@pytest.mark.timeout(60)
async def test_leases_are_extended_in_time_on_a_new_connection_when_the_old_one_is_silent(
    proxy: Proxy, database_url: str
) -> None:
    lease_s = 9
    url = through(database_url, proxy.port)
    async with PostgresSessionStore.open(url, lease_s=lease_s) as store:
        await store.heartbeat("the_owner")
        proxy.unanswered = b"the_owner"  # the text of the statement is not sent again
        began = time.monotonic()
        beating = asyncio.create_task(store.heartbeat("the_owner"))
        await asyncio.sleep(1)
        proxy.unanswered = None
        await beating
        assert proxy.muted > 0
        assert time.monotonic() - began < lease_s * 2 / 3, "a third has passed since the last one"


async def test_heartbeats_that_nobody_waits_for_do_not_delay_the_end_without_a_server() -> None:
    patience = 2
    threads = Threads("postgresql://nobody@127.0.0.1:1/nothing", patience=patience)
    beats = [threads.keep(lambda connection: connection.execute("SELECT 1")) for _ in range(5)]
    await asyncio.sleep(0.1)
    for beat in beats:
        beat.cancel()
    began = time.monotonic()
    await threads.close()
    assert time.monotonic() - began < 4 * patience


@pytest.mark.parametrize("crash", ["of the machine", "of one process of the server"])
async def test_a_job_that_a_crash_has_lost_after_its_commit_is_done_again(
    postgres_server: Server, crash: str
) -> None:
    for setting in ("synchronous_commit = off", "wal_writer_delay = '10s'"):
        postgres_server.sql(f"ALTER SYSTEM SET {setting}")
    await asyncio.to_thread(postgres_server.restart)
    url = postgres_server.url()
    scope = BudgetScope(kind="session", scope_id="s1", limits={"turns": 10})
    hold = BudgetHold(
        hold_id="the_last",
        session_id="s1",
        run_id="run_1",
        agent_id="agent_s1",
        scopes=[scope],
        fixed={"turns": 1},
    )
    with Proxy.in_thread(urlsplit(url).port or 0) as proxy:
        async with PostgresSessionStore.open(through(url, proxy.port), patience=20) as store:
            await store.open_run(an_opening())
            postgres_server.sql("CHECKPOINT")
            proxy.unanswered = b"the_last"
            reserving = asyncio.create_task(store.reserve_budget(hold))
            await until(lambda: bool(query(url, "SELECT 1 FROM budget_holds")))
            if crash == "of the machine":
                await asyncio.to_thread(postgres_server.kill)
            else:  # the others end with it, and recover
                with psycopg.connect(url, autocommit=True) as other, psycopg.connect(url) as victim:
                    os.kill(victim.info.backend_pid, signal.SIGKILL)
                    await until(lambda: not is_connected(other))
            proxy.unanswered = None
            proxy.cut()
            proxy.target = 1  # nothing listens there
            if crash == "of the machine":
                await asyncio.to_thread(postgres_server.start)
            await until(lambda: is_there(url))
            for _ in range(30):  # they have the numbers of the transactions that were lost
                query(url, "SELECT pg_current_xact_id()")
            proxy.target = urlsplit(url).port or 0

            assert (await reserving).refused_by is None
            (use,) = await store.budget_uses(["s1"])
            assert use.reserved["turns"] == 1
            assert len(query(url, "SELECT 1 FROM budget_holds")) == 1
