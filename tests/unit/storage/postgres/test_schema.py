"""The tables on PostgreSQL: how text is ordered in them, and how older ones go on."""

import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest

from agent_core.errors import ErrorCode, StorageError
from agent_core.storage import spending
from agent_core.storage.migrations import MIGRATIONS, Migration
from agent_core.storage.postgres import PostgresSessionStore, schema
from agent_core.storage.postgres.health import examine
from agent_core.storage.postgres.settings import connect
from agent_core.types import Dispatch, new_id
from postgres import Server
from rows import a_batch, a_node, a_question, an_event, an_opening
from sweeps import sampled

FREE_TEXT = {
    *("workers.host", "workers.version", "workers.tenant"),  # never compared with an id of SQLite's
    "shared_snapshots.about",
}
WITH_TENANTS = 14
"""Version in which questions and nodes got their tenant."""
NEXT = Migration(
    MIGRATIONS[-1].version + 1,
    "something new",
    (
        "CREATE TABLE later (later_id TEXT PRIMARY KEY NOT NULL, is_new INTEGER NOT NULL)",
        "ALTER TABLE sessions ADD COLUMN extra TEXT",
    ),
)


def test_text_is_ordered_by_the_codes_of_its_characters_whatever_the_database_does(
    database_url: str,
) -> None:
    with psycopg.connect(database_url) as connection:
        columns = connection.execute(
            """SELECT table_name || '.' || column_name FROM information_schema.columns
            WHERE table_schema = 'public' AND data_type = 'text' AND table_name NOT LIKE 'procra%%'
            AND table_name IN (SELECT tablename FROM pg_tables)
            AND collation_name IS DISTINCT FROM 'C'"""
        ).fetchall()
    assert {name for (name,) in columns} == FREE_TEXT


@contextmanager
def known(monkeypatch: pytest.MonkeyPatch, *migrations: Migration) -> Generator[None]:
    """A program that knows these versions."""
    with monkeypatch.context() as patched:
        patched.setattr(schema, "MIGRATIONS", migrations)
        if migrations[-1].version < WITH_TENANTS:
            views = {
                **schema._VIEWS,
                "approvals": schema._VIEWS["grants"].replace("grants", "approvals"),
            }
            del views["named_nodes"]
            patched.setattr(schema, "_VIEWS", views)
            patched.setattr(schema, "add_to_small", id)
        yield


@pytest.mark.long
@pytest.mark.parametrize(
    "released", sampled(range(schema.FIRST, MIGRATIONS[-1].version + 1), keep=4)
)
async def test_a_database_of_every_released_schema_goes_on_with_its_rows(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch, released: int
) -> None:
    with known(monkeypatch, *MIGRATIONS[:released]), connect(empty_database_url) as connection:
        schema.migrate(connection)
    async with PostgresSessionStore.open(empty_database_url) as store:
        opening = an_opening(dispatch=Dispatch(queue="q", home="host:a", tenant="acme"))
        await store.queue_run(opening)
    with known(monkeypatch, *MIGRATIONS, NEXT):
        async with PostgresSessionStore.open(empty_database_url, tenant="acme") as store:
            assert (await store.session("s1")) is not None
        async with PostgresSessionStore.open(empty_database_url, tenant="other") as store:
            assert (await store.session("s1")) is None
        async with PostgresSessionStore.open(empty_database_url) as store:
            (queued,) = await store.events_after("run_1", 0)
            position = await store.append(a_batch(a_node("n1"), an_event(), owner=None))
            assert (position.seq, position.node_seq) == ((queued.seq or 0) + 1, 1)
    assert selected(empty_database_url, "SELECT max(version) FROM schema_migrations") == [
        (NEXT.version,)
    ]
    for tenant in (None, "acme"):
        with connect(empty_database_url, tenant=tenant) as connection:
            found = connection.execute("SELECT session_id, extra FROM sessions").fetchall()
            assert [tuple(row) for row in found] == [("s1", None)]
    assert selected(empty_database_url, "SELECT status FROM procrastinate_jobs") == [("todo",)]


async def test_an_older_database_keeps_the_order_in_which_its_sessions_were_used(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with known(monkeypatch, *MIGRATIONS[:12]), connect(empty_database_url) as connection:
        schema.migrate(connection)
        for name, day in (("b", 2), ("c", 3), ("a", 1)):
            connection.execute(
                """INSERT INTO sessions
                (session_id, cwd, status, metadata_json, created_at, updated_at)
                VALUES ($1, '/project', 'active', '{}', $2, $2)""",
                (name, f"2026-01-0{day}T00:00:00.000000+00:00"),
            )
    async with PostgresSessionStore.open(empty_database_url) as store:
        assert [each.session_id for each in await store.sessions()] == ["c", "b", "a"]
        await store.open_run(an_opening("a", "run_a"))
        await store.open_run(an_opening("new", "run_new"))
        ordered = ["new", "a", "c", "b"]
        assert [each.session_id for each in await store.sessions()] == ordered


async def test_an_upgrade_that_breaks_off_while_it_adds_spending_is_finished_later(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = next(one.version for one in MIGRATIONS if "in numbers" in one.name) - 1
    usage = '{"total_tokens": 15, "cost": 0.1}'
    with known(monkeypatch, *MIGRATIONS[:before]), connect(empty_database_url) as connection:
        schema.migrate(connection)
        connection.execute(
            """INSERT INTO sessions
            (session_id, cwd, status, metadata_json, created_at, updated_at, tenant)
            VALUES ('s1', '/project', 'active', $1, '2026-01-01', '2026-01-01', 'acme')""",
            (f'{{"background_usage": {{"recall": {usage}, "compact": {usage}}}}}',),
        )
        for number in range(7):
            connection.execute(
                """INSERT INTO runs (run_id, session_id, agent_id, mode, status, turn_count,
                usage_json, metadata_json, created_at, updated_at)
                VALUES ($1, 's1', 'a', 'normal', 'completed', 1, $2, $3, $4, $4)""",
                (f"run_{number}", usage if number else "{", "{}", "2026-01-01T00:00:00+00:00"),
            )

    def breaking(*given: Any) -> Generator[None]:
        for number, _ in enumerate(spending.fill(*given)):
            if number == 2:
                raise psycopg.OperationalError("the connection is lost")
            yield

    monkeypatch.setattr(spending, "AT_ONCE", 2)
    with monkeypatch.context() as patched:
        patched.setattr(schema, "fill", breaking)
        with pytest.raises(StorageError):
            async with PostgresSessionStore.open(empty_database_url):
                pass
    assert selected(empty_database_url, "SELECT count(*) FROM spending") == [(4,)]
    for tenant, runs in ((None, 7), ("acme", 7), ("other", 0)):
        async with PostgresSessionStore.open(empty_database_url, tenant=tenant) as store:
            totals = await store.costs("all")
            found = [(each.runs, each.usage.total_tokens, each.known_cost) for each in totals]
            assert found == ([(7, 7 * 15, 0.7)] if runs else [])


async def test_a_user_with_rights_to_tables_alone_uses_sessions(
    shared_postgres: Server, database_url: str
) -> None:
    user = f"user_{database_url.rpartition('/')[2]}"
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {user} LOGIN PASSWORD 'secret'".encode())
        connection.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {user}".encode())
        connection.execute(f"GRANT USAGE ON SCHEMA public_of_tenant TO {user}".encode())
        connection.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA public_of_tenant TO {user}".encode())
    url = f"postgresql://{user}:secret@{database_url.rpartition('@')[2]}"
    for tenant in (None, "acme"):
        async with PostgresSessionStore.open(url, tenant=tenant) as store:
            for name in ("one", "two", "one"):
                await store.open_run(an_opening(f"{tenant}_{name}", new_id("run")))
            first, second, *_ = await store.sessions()
            assert (first.session_id, second.session_id) == (f"{tenant}_one", f"{tenant}_two")


async def test_nothing_a_user_has_made_is_used_with_the_rights_of_the_owner(
    shared_postgres: Server, database_url: str
) -> None:
    name = database_url.rpartition("/")[2]
    user = f"user_{name}"
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {user} LOGIN PASSWORD 'secret'".encode())
        connection.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {user}".encode())
        connection.execute(f"GRANT CREATE ON DATABASE {name} TO {user}".encode())
    url = f"postgresql://{user}:secret@{database_url.rpartition('@')[2]}"
    with_rights = selected(database_url, "SELECT proname FROM pg_proc WHERE prosecdef ORDER BY 1")
    assert with_rights == [("keep_spending_of_run",), ("keep_spending_of_session",), ("next_use",)]
    ((owner,),) = selected(database_url, "SELECT current_user")
    with psycopg.connect(url, autocommit=True) as connection:
        # Both would be searched before the schema of the tables.
        connection.execute(f"CREATE SCHEMA {owner}".encode())
        connection.execute(f"GRANT USAGE ON SCHEMA {owner} TO public".encode())
        for decoys in ("pg_temp", owner):
            for table in ("spending", "runs", "sessions"):
                connection.execute(f"CREATE TABLE {decoys}.{table} (LIKE public.{table})".encode())
            connection.execute(f"CREATE SEQUENCE {decoys}.session_uses START 900".encode())
        connection.execute(
            b"""INSERT INTO public.sessions (session_id, cwd, status, metadata_json, created_at,
            updated_at) VALUES ('s1', '/', 'active', '{"background_usage": {"title": {}}}', '2026',
            '2026')"""
        )
        connection.execute(
            b"""INSERT INTO public.runs (run_id, session_id, agent_id, mode, status, turn_count,
            usage_json, metadata_json, created_at, updated_at) VALUES ('r1', 's1', 'a', 'normal',
            'completed', 1, '{"total_tokens": 7}', '{}', '2026-01-01', '2026-01-01')"""
        )
    spent = "SELECT source, total_tokens FROM public.spending ORDER BY 1"
    assert selected(database_url, spent) == [("r1", 7), ("title", 0)]
    assert selected(database_url, "SELECT use_number < 900 FROM public.sessions") == [(True,)]


def selected(url: str, statement: Any) -> list[Any]:
    with psycopg.connect(url) as connection:
        return connection.execute(statement).fetchall()


async def test_a_user_who_cannot_add_a_missing_table_is_told_who_can(
    shared_postgres: Server, database_url: str
) -> None:
    guest = f"guest_{database_url.rpartition('/')[2]}"
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("DROP TABLE tenant_turns")
        connection.execute(f"CREATE ROLE {guest} LOGIN PASSWORD 'secret'".encode())
        connection.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {guest}".encode())
    url = f"postgresql://{guest}:secret@{database_url.rpartition('@')[2]}"
    with pytest.raises(StorageError, match="store migrate once as a user") as refused:
        async with PostgresSessionStore.open(url):
            pass
    assert refused.value.code is ErrorCode.MIGRATION_FAILED
    assert not examine(url).is_complete
    async with PostgresSessionStore.open(database_url):
        assert examine(database_url).is_complete


def test_an_upgrade_waits_for_writers_and_they_for_it(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer of the earlier version locks its session, adds a node, and changes the session."""
    with known(monkeypatch, *MIGRATIONS[: WITH_TENANTS - 1]), connect(empty_database_url) as old:
        schema.migrate(old)
    insert = """INSERT INTO sessions (session_id, cwd, status, metadata_json, created_at,
        updated_at) VALUES ('s1', '/', 'active', '{}', '2026', '2026')"""
    node = """INSERT INTO nodes (node_seq, node_id, session_id, agent_id, role, node_type,
        content_json, metadata_json, token_count, created_at)
        VALUES (1, 'n1', 's1', 'a', 'user', 'message', '[]', '{}', 1, '2026')"""
    waits = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    with psycopg.connect(empty_database_url) as writer, ThreadPoolExecutor() as threads:
        writer.execute(insert)
        writer.commit()
        writer.execute("SELECT FROM sessions WHERE session_id = 's1' FOR NO KEY UPDATE")
        writer.execute(node)
        upgrade = threads.submit(migrate, empty_database_url)
        while selected(empty_database_url, waits) == [(0,)]:
            time.sleep(0.01)
        writer.execute("UPDATE sessions SET last_node_seq = 1")
        writer.commit()
        upgrade.result()
    assert selected(empty_database_url, "SELECT node_id FROM nodes") == [("n1",)]


def migrate(url: str) -> None:
    with closing(connect(url)) as connection:
        schema.migrate(connection)


async def test_an_upgrade_keeps_the_questions_of_each_tenant(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with known(monkeypatch, *MIGRATIONS[: WITH_TENANTS - 1]), connect(empty_database_url) as old:
        schema.migrate(old)
        for tenant in ("acme", "bolt"):
            old.execute(
                """INSERT INTO sessions (session_id, tenant, cwd, status, metadata_json, created_at,
                updated_at) VALUES ($1, $1, '/', 'active', '{}', '2026', '2026')""",
                (tenant,),
            )
            old.execute(
                """INSERT INTO approvals (request_id, session_id, run_id, root_run_id, agent_id,
                agent_path_json, tool_call_id, tool_name, access_hash, keeps_run, request_json,
                state, asked_at) VALUES ($1, $2, 'r', 'r', 'a', '["a"]', 'c', 'code.write_file',
                'same', TRUE, $3, 'open', '2026-01-01T00:00:00.000000+00:00')""",
                (f"req_{tenant}", tenant, a_question().request.model_dump_json()),
            )
    for tenant in ("acme", "bolt"):
        async with PostgresSessionStore.open(empty_database_url, tenant=tenant) as store:
            assert [each.request_id for each in await store.approvals()] == [f"req_{tenant}"]


def test_a_process_that_waited_for_another_sees_the_tables_that_this_one_made(
    empty_database_url: str,
) -> None:
    blocked = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    with (
        connect(empty_database_url) as first,
        connect(empty_database_url) as waiting,
        connect(empty_database_url) as watching,
        ThreadPoolExecutor(1) as pool,
    ):
        with first.transaction():
            first.execute("SELECT pg_advisory_xact_lock(hashtext('soong-agent schema'))")
            second = pool.submit(schema.migrate, waiting)
            while not any(count for (count,) in watching.execute(blocked).fetchall()):
                time.sleep(0.01)
            schema.migrate(first)
        second.result()
        assert schema.version_of(waiting) == MIGRATIONS[-1].version
