"""The schema: made in one step, recorded, and never touched by a program that is too old for it."""

import asyncio
import json
import os
import signal
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agent_core.errors import ErrorCode, StorageError
from agent_core.storage import migrations, spending
from agent_core.storage.connections import connect, open_writer
from agent_core.storage.migrations import MIGRATIONS, Migration
from agent_core.storage.rows import OPEN_RUN
from agent_core.storage.sqlite import SqliteSessionStore
from agent_core.types import CostSummary, new_id
from judging import judged, owners_are_dead
from rows import an_opening
from sweeps import sampled

COLUMNS = {
    "schema_migrations": "version name applied_at",
    "sessions": "session_id cwd root_agent_id active_node_id parent_session_id status owner"
    " lease_expires_at metadata_json created_at updated_at epoch title tenant place"
    " use_number",
    "agents": "agent_id session_id parent_agent_id agent_type agent_definition_id"
    " created_by_run_id fork_from_node_id status result_json metadata_json created_at updated_at",
    "runs": "run_id session_id agent_id parent_run_id mode status start_node_id end_node_id"
    " end_reason turn_count usage_json error_json metadata_json created_at updated_at prompt_json"
    " cancel_requested_at options_json lane takeovers",
    "nodes": "node_id session_id node_seq parent_id agent_id run_id role node_type content_json"
    " metadata_json token_count created_at",
    "events": "event_id seq run_seq session_id agent_id run_id level event_type node_id"
    " tool_call_id payload_json created_at",
    "artifacts": "artifact_id session_id agent_id run_id node_id tool_call_id kind path filename"
    " mime_type size_bytes summary metadata_json created_at",
    "budgets": "scope_id session_id kind limits_json spent_json held_json",
    "budget_agents": "scope_id agent_id spent_json",
    "budget_holds": "hold_id session_id run_id agent_id scopes_json amounts_json",
    "spending": "session_id source tenant model begun_at turns input_tokens output_tokens"
    " total_tokens cache_read_tokens cache_write_tokens cache_write_1h_tokens reasoning_tokens cost"
    " is_estimated",
}
NEXT = Migration(
    MIGRATIONS[-1].version + 1,
    "something new",
    ("CREATE TABLE later (x TEXT)", "INSERT INTO later VALUES ('y')"),
)


async def use(path: Path) -> None:
    async with SqliteSessionStore.open(path) as store:
        await judged(store, owners_are_dead).open_run(an_opening(run_id=new_id("run")))


def query(path: Path, sql: str) -> list[Any]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "home" / "sessions.sqlite"


def test_e1_a_new_database_gets_every_table_and_says_which_version_it_is(database: Path) -> None:
    asyncio.run(use(database))
    for table, columns in COLUMNS.items():
        found = [row[1] for row in query(database, f"PRAGMA table_info({table})")]
        assert found == columns.split(), table
    recorded = query(database, "SELECT version, name FROM schema_migrations")
    assert recorded == [(one.version, one.name) for one in MIGRATIONS]
    assert query(database, "PRAGMA journal_mode") == [("wal",)]


@pytest.mark.parametrize(
    ("table", "columns"),
    [
        ("events", ["session_id", "seq"]),
        ("events", ["run_id", "run_seq"]),
        ("nodes", ["session_id", "node_seq"]),
    ],
)
def test_the_orders_that_history_is_read_in_have_indexes(
    database: Path, table: str, columns: list[str]
) -> None:
    asyncio.run(use(database))
    indexes = [row[1] for row in query(database, f"PRAGMA index_list({table})")]
    indexed = [[row[2] for row in query(database, f"PRAGMA index_info({i})")] for i in indexes]
    assert columns in indexed


def test_files_and_folders_are_for_their_user_only(database: Path) -> None:
    old_mask = os.umask(0)
    try:
        writer = open_writer(database)
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("CREATE TABLE x (y)")
        writer.execute("COMMIT")
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in database.parent.iterdir()}
        writer.close()
    finally:
        os.umask(old_mask)
    assert modes == dict.fromkeys(
        ("sessions.sqlite", "sessions.sqlite-wal", "sessions.sqlite-shm"), 0o600
    )
    assert stat.S_IMODE(database.parent.stat().st_mode) == 0o700


def test_nothing_is_left_beside_a_database_that_was_closed(database: Path) -> None:
    asyncio.run(use(database))
    assert [path.name for path in database.parent.iterdir()] == ["sessions.sqlite"]


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_a_newer_database_is_refused_and_not_touched(database: Path, journal: str) -> None:
    asyncio.run(use(database))
    connection = sqlite3.connect(database, isolation_level=None)
    connection.execute("INSERT INTO schema_migrations VALUES (99, 'from the future', 'x')")
    connection.execute("ALTER TABLE runs ADD COLUMN future TEXT")
    connection.execute(f"PRAGMA journal_mode = {journal}")
    connection.close()
    before = database.read_bytes()
    changed = database.stat().st_mtime_ns

    with pytest.raises(StorageError) as refused:
        asyncio.run(use(database))

    assert refused.value.code is ErrorCode.MIGRATION_FAILED
    assert str(database) in refused.value.message
    assert "newer" in refused.value.message
    assert database.read_bytes() == before
    assert database.stat().st_mtime_ns == changed


def test_the_database_of_another_program_is_refused_and_not_touched(database: Path) -> None:
    database.parent.mkdir()
    connection = sqlite3.connect(database)
    connection.execute("CREATE TABLE bookmarks (url TEXT)")
    connection.commit()
    connection.close()
    before = database.read_bytes()
    with pytest.raises(StorageError) as refused:
        asyncio.run(use(database))
    assert refused.value.code is ErrorCode.MIGRATION_FAILED
    assert database.read_bytes() == before


def test_an_older_database_keeps_its_rows_and_gets_what_is_new(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(use(database))
    monkeypatch.setattr(migrations, "MIGRATIONS", (*MIGRATIONS, NEXT))
    asyncio.run(use(database))
    assert query(database, "SELECT version FROM schema_migrations ORDER BY version") == [
        (one.version,) for one in (*MIGRATIONS, NEXT)
    ]
    assert query(database, "SELECT x FROM later") == [("y",)]
    assert query(database, "SELECT session_id FROM sessions") == [("s1",)]


LAST_RELEASED = MIGRATIONS[-2].version


@pytest.mark.long
@pytest.mark.parametrize(
    "released", sorted({*sampled(range(1, LAST_RELEASED), keep=5), LAST_RELEASED})
)
def test_a_database_of_every_released_schema_goes_on_with_its_rows(
    database: Path, monkeypatch: pytest.MonkeyPatch, released: int
) -> None:
    with monkeypatch.context() as old:
        old.setattr(migrations, "MIGRATIONS", MIGRATIONS[:released])
        writer = open_writer(database)
        writer.execute(
            "INSERT INTO sessions (session_id, cwd, root_agent_id, active_node_id,"
            " parent_session_id, status, owner, lease_expires_at, metadata_json, created_at,"
            " updated_at) VALUES ('s1', '/project', NULL, NULL, NULL, 'active', NULL,"
            " NULL, '{}', '2026-01-01T00:00:00+00:00', '2026-01-01T00:00:00+00:00')"
        )
        writer.execute(
            "INSERT INTO runs (run_id, session_id, agent_id, parent_run_id, mode, status,"
            " start_node_id, end_node_id, end_reason, turn_count, usage_json, error_json,"
            " metadata_json, created_at, updated_at) "
            " VALUES ('run_old', 's1', 'agent_1', NULL, 'normal', 'completed',"
            " NULL, NULL, NULL, 1, '{}', NULL, '{}', '2026-01-01T00:00:00+00:00',"
            " '2026-01-01T00:00:00+00:00')"
        )
        writer.close()

    async def go_on() -> None:
        async with SqliteSessionStore.open(database) as store:
            run = await store.run("run_old")
            assert run is not None
            assert (run.prompt, run.cancel_requested_at, run.options) == (None, None, None)
            opened = await judged(store, owners_are_dead).open_run(an_opening())
            assert opened.resumed
            assert opened.session.epoch == 1

    asyncio.run(go_on())


def test_an_older_database_keeps_the_order_in_which_its_sessions_were_used(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as old:
        old.setattr(migrations, "MIGRATIONS", MIGRATIONS[:12])
        with closing(open_writer(database)) as writer:
            for name, day in (("b", 2), ("c", 3), ("a", 1)):
                writer.execute(
                    "INSERT INTO sessions"
                    " (session_id, cwd, status, metadata_json, created_at, updated_at)"
                    " VALUES (?, '/project', 'active', '{}', ?, ?)",
                    (name, *[f"2026-01-0{day}T00:00:00.000000+00:00"] * 2),
                )

    async def go_on() -> None:
        async with SqliteSessionStore.open(database) as store:
            assert [each.session_id for each in await store.sessions()] == ["c", "b", "a"]
            await store.open_run(an_opening("a", "run_a"))
            await store.open_run(an_opening("new", "run_new"))
            ordered = ["new", "a", "c", "b"]
            assert [each.session_id for each in await store.sessions()] == ordered

    asyncio.run(go_on())


BEFORE_SPENDING = next(one.version for one in MIGRATIONS if "in numbers" in one.name) - 1


def store_earlier_runs(database: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Make a database of the schema before spending was kept in numbers."""
    with monkeypatch.context() as old:
        old.setattr(migrations, "MIGRATIONS", MIGRATIONS[:BEFORE_SPENDING])
        with closing(open_writer(database)) as writer:
            writer.execute(
                "INSERT INTO sessions (session_id, cwd, status, metadata_json, created_at,"
                " updated_at) VALUES ('s1', '/project', 'active', ?, ?, ?)",
                (json.dumps({"background_usage": {"recall": USAGE, "compact": USAGE}}), *[NOW] * 2),
            )
            for number in range(count):
                writer.execute(EARLIER_RUN, (f"run_{number}", json.dumps(USAGE)))
            writer.execute(EARLIER_RUN, ("run_damaged", "{"))


NOW = "2026-01-01T00:00:00.000000+00:00"
USAGE = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15, "cost": 0.1}
EARLIER_RUN = f"""INSERT INTO runs (run_id, session_id, agent_id, mode, status, turn_count,
    usage_json, metadata_json, created_at, updated_at)
    VALUES (?, 's1', 'agent_1', 'normal', 'completed', 1, ?, '{{}}', '{NOW}', '{NOW}')"""  # noqa: S608 - a constant


async def spent(database: Path) -> CostSummary:
    async with SqliteSessionStore.open(database) as store:
        (total,) = await store.costs("all")
    return total


def test_spending_of_earlier_runs_is_summed(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_earlier_runs(database, monkeypatch, 7)
    monkeypatch.setattr(spending, "AT_ONCE", 2)
    total = asyncio.run(spent(database))
    assert (total.runs, total.usage.total_tokens, total.known_cost) == (8, 8 * 15, 0.8)


def test_others_use_a_database_while_spending_is_added(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_earlier_runs(database, monkeypatch, 7)
    monkeypatch.setattr(spending, "AT_ONCE", 2)
    changed = json.dumps(USAGE | {"total_tokens": 115})
    with closing(connect(database)) as upgrading, closing(connect(database)) as other:
        steps, count = migrations.migrate(upgrading, database), 0
        for count in range(100):
            upgrading.execute("BEGIN IMMEDIATE")
            is_done = next(steps, True)
            upgrading.execute("COMMIT")
            if is_done:
                break
            update = "UPDATE runs SET usage_json = ? WHERE run_id = ?"
            other.execute(update, (changed, f"run_{count}"))
    assert count >= 4
    total = asyncio.run(spent(database))
    assert (total.runs, total.usage.total_tokens) == (8, 8 * 15 + min(count, 7) * 100)


DIES = """
import os, sys
from pathlib import Path
from agent_core.storage import connections, spending

spending.AT_ONCE = 2
fill = spending.fill

def dying(connection):
    for number, _ in enumerate(fill(connection)):
        if number == 2:
            os.kill(os.getpid(), 9)
        yield

spending.fill = dying
connections.open_writer(Path(sys.argv[1]))
"""


@pytest.mark.long
def test_an_upgrade_that_is_killed_in_the_middle_is_finished_by_the_next_start(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_earlier_runs(database, monkeypatch, 7)
    command = [sys.executable, "-c", DIES, str(database)]
    killed = subprocess.run(command, check=False)  # noqa: S603 - our own interpreter
    assert killed.returncode == -signal.SIGKILL
    with closing(sqlite3.connect(database)) as between:
        (version,) = between.execute("SELECT max(version) FROM schema_migrations").fetchone()
        (rows,) = between.execute("SELECT count(*) FROM spending").fetchone()
    assert (version, rows) == (BEFORE_SPENDING + 1, 4)
    total = asyncio.run(spent(database))
    assert (total.runs, total.usage.total_tokens, total.known_cost) == (8, 8 * 15, 0.8)


SLIM = next(one.version for one in MIGRATIONS if one.is_optional)


def store_earlier_events(database: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Make a database whose events are stored as before, and return their rows."""
    with monkeypatch.context() as old:
        old.setattr(migrations, "MIGRATIONS", MIGRATIONS[: SLIM - 1])
        with closing(open_writer(database)) as writer:
            for name in ("s2", "s1"):
                writer.execute(EARLIER_SESSION, (name,))
                rows = [(f"evt_{name}_{n}", n, name, f'"{"x" * 40 * n}"') for n in range(1, 90)]
                writer.executemany(EARLIER_EVENT, rows)
    return query(database, EVERY_EVENT)


EARLIER_SESSION = f"""INSERT INTO sessions
    (session_id, cwd, status, metadata_json, created_at, updated_at)
    VALUES (?, '/project', 'active', '{{}}', '{NOW}', '{NOW}')"""  # noqa: S608 - a constant
EARLIER_EVENT = f"""INSERT INTO events (event_id, seq, session_id, payload_json, level, event_type,
    created_at) VALUES (?, ?, ?, ?, 'info', 'error', '{NOW}')"""  # noqa: S608
EVERY_EVENT = "SELECT * FROM events ORDER BY session_id, seq"


def test_events_of_an_earlier_schema_are_the_same_afterwards(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = store_earlier_events(database, monkeypatch)
    asyncio.run(use(database))
    after = [row for row in query(database, EVERY_EVENT) if row[5] is None]
    assert after == before
    assert len(before) == 178
    assert query(database, "PRAGMA integrity_check") == [("ok",)]
    (overflow,) = query(
        database, "SELECT count(*) FROM dbstat WHERE name = 'events' AND pagetype = 'overflow'"
    )[0]
    assert overflow < 89  # the longest do not fit into a page of their own


def test_a_damaged_database_is_opened_as_it_is(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_earlier_events(database, monkeypatch)
    pages = "SELECT pageno FROM dbstat WHERE name = 'events' AND pagetype = 'leaf' ORDER BY 1"
    (page,) = query(database, pages)[3]
    ((size,),) = query(database, "PRAGMA page_size")
    with database.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * 64)
    before = database.read_bytes()[(page - 1) * size : page * size]

    asyncio.run(use(database))

    recorded = query(database, "SELECT max(version) FROM schema_migrations")
    assert recorded == [(MIGRATIONS[-1].version,)]
    assert before in database.read_bytes()
    assert (
        "WITHOUT ROWID"
        in query(database, "SELECT sql FROM sqlite_schema WHERE name = 'events'")[0][0]
    )


ODD = {
    "events of a session whose row is lost": "DELETE FROM sessions WHERE session_id = 's1'",
    "an index that is missing": "DROP INDEX runs_owned",
    "an id that is no text": "INSERT INTO events (event_id, seq, session_id, payload_json, level,"
    " event_type, created_at) VALUES ('e', 1, x'00', '{}', 'info', 'error', '')",
}


@pytest.mark.parametrize("odd", ODD)
def test_a_database_that_cannot_be_rewritten_is_opened_as_it_is(
    database: Path, monkeypatch: pytest.MonkeyPatch, odd: str
) -> None:
    before = store_earlier_events(database, monkeypatch)
    with closing(sqlite3.connect(database)) as shell, shell:  # without foreign keys
        shell.execute(ODD[odd])
    asyncio.run(use(database))
    assert set(before) <= set(query(database, EVERY_EVENT))
    recorded = query(database, "SELECT max(version) FROM schema_migrations")
    assert recorded == [(MIGRATIONS[-1].version,)]


def test_a_database_is_not_rewritten_where_its_disk_has_no_room(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = store_earlier_events(database, monkeypatch)

    class SmallDisk:
        f_bavail, f_frsize = 10_000, 1000

        def __init__(self, path: Path) -> None:
            assert path == database

    monkeypatch.setattr("agent_core.storage.connections.os.statvfs", SmallDisk)
    size = database.stat().st_size
    asyncio.run(use(database))
    assert set(before) <= set(query(database, EVERY_EVENT))
    assert database.stat().st_size < size + 100_000
    schema = "SELECT sql FROM sqlite_schema WHERE name = 'events'"
    assert "WITHOUT ROWID" in query(database, schema)[0][0]


def test_a_new_database_is_what_the_migrations_make_of_an_old_one(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name"
    with monkeypatch.context() as old:
        old.setattr(migrations, "MIGRATIONS", MIGRATIONS[:1])
        open_writer(database).close()
    open_writer(database).close()
    other = database.with_name("new")
    open_writer(other).close()
    assert query(database, schema) == query(other, schema)


def test_runs_that_wait_are_found_by_the_index_of_open_runs(database: Path) -> None:
    asyncio.run(use(database))
    plan = query(
        database,
        f"EXPLAIN QUERY PLAN SELECT * FROM runs WHERE session_id = 's1' AND {OPEN_RUN}",  # noqa: S608
    )
    assert "runs_open" in plan[0][-1]


def test_a_migration_that_fails_half_way_leaves_the_old_schema(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(use(database))
    broken = Migration(
        NEXT.version, "broken", ("CREATE TABLE later (x TEXT)", "INSERT INTO nowhere VALUES (1)")
    )
    monkeypatch.setattr(migrations, "MIGRATIONS", (*MIGRATIONS, broken))
    with pytest.raises(StorageError) as failed:
        asyncio.run(use(database))
    assert failed.value.code is ErrorCode.MIGRATION_FAILED
    assert "broken" in failed.value.message
    monkeypatch.undo()
    assert query(database, "SELECT name FROM sqlite_master WHERE name = 'later'") == []
    asyncio.run(use(database))
