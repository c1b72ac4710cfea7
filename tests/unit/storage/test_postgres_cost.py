"""Nothing costs more because there are more sessions: counted in rows that PostgreSQL touches."""

from collections.abc import Awaitable, Callable

import psycopg
import pytest

from agent_core.storage.postgres import PostgresSessionStore
from agent_core.types import BudgetHold, BudgetScope, EventType, RunChange, RunStatus
from explained import PlanLog
from postgres import Server
from rows import a_batch, a_child, a_child_run, a_node, a_question, an_event, an_opening

OTHERS = 10_000


HOLD = BudgetHold(
    hold_id="hold",
    session_id="s1",
    run_id="run_1",
    agent_id="agent_s1",
    scopes=[BudgetScope(kind="session", scope_id="s1", limits={"turns": 9})],
    fixed={"turns": 1},
)
Work = Callable[[PostgresSessionStore], Awaitable[object]]
WORK: list[Work] = [
    lambda s: s.open_run(an_opening()),
    lambda s: s.append(a_batch(a_node("n1"), an_event(), active_node_id="n1")),
    lambda s: s.append(a_batch(a_node("n2", "n1"))),
    lambda s: s.reserve_budget(HOLD),
    lambda s: s.settle_budget("hold", None),
    lambda s: s.ask(a_question()),
    lambda s: s.add_agent(a_child()),
    lambda s: s.add_run(a_child_run()),
    lambda s: s.heartbeat("me"),
    lambda s: s.request_cancel("run_child"),
    lambda s: s.close_lost_runs(),
    lambda s: s.page("s1"),
    lambda s: s.path("n2"),
    lambda s: s.run_history("run_1"),
    lambda s: s.run_nodes("run_1"),
    lambda s: s.events_after("run_1", 1),
    lambda s: s.last_events("s1", "agent_s1", EventType.MODEL_STARTED, limit=3),
    lambda s: s.open_calls("run_1", ["c1", "c2"]),
    lambda s: s.sessions(limit=5),
    lambda s: s.session_summaries(limit=5),
    lambda s: s.ids_beginning("session", "s1"),
    lambda s: s.append(
        a_batch(run=RunChange(status=RunStatus.COMPLETED), owner="me", release="me")
    ),
]

_OTHERS = f"""
INSERT INTO sessions (session_id, cwd, status, metadata_json, created_at, updated_at, title, epoch)
    SELECT 'x' || n, '/elsewhere', 'active', '{{}}', '2020', '2020' || n, 't', 1
    FROM generate_series(1, {OTHERS}) AS n;
INSERT INTO agents (agent_id, session_id, agent_type, status, metadata_json, created_at, updated_at)
    SELECT 'agent_x' || n, 'x' || n, 'main', 'completed', '{{}}', '2020', '2020'
    FROM generate_series(1, {OTHERS}) AS n;
INSERT INTO runs (run_id, session_id, agent_id, mode, status, turn_count, usage_json, metadata_json,
    created_at, updated_at)
    SELECT 'run_x' || n, 'x' || n, 'agent_x' || n, 'normal', 'completed', 1, '{{}}', '{{}}', '2020',
    '2020' FROM generate_series(1, {OTHERS}) AS n;
INSERT INTO nodes (node_id, session_id, node_seq, agent_id, run_id, role, node_type, content_json,
    metadata_json, token_count, created_at)
    SELECT 'node_x' || n, 'x' || n, 1, 'agent_x' || n, 'run_x' || n, 'assistant', 'message',
    '[{{"type": "text", "text": "something else"}}]', '{{}}', 1, '2020'
    FROM generate_series(1, {OTHERS}) AS n;
INSERT INTO events (event_id, seq, run_seq, session_id, agent_id, run_id, level, event_type,
    payload_json, created_at)
    SELECT 'evt_x' || n || '_' || seq, seq, seq, 'x' || n, 'agent_x' || n, 'run_x' || n, 'info',
    'model_started', '{{}}', '2020'
    FROM generate_series(1, {OTHERS}) AS n, generate_series(1, 3) AS seq;
"""  # noqa: S608 - our own rows

_TOUCHED = """SELECT sum(seq_tup_read + idx_tup_fetch + n_tup_ins + n_tup_upd)
    FROM pg_stat_user_tables"""


def touched(url: str) -> int:
    """Rows read and written in the database until now."""
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(_TOUCHED).fetchone()
        return int(row[0] or 0) if row else 0


async def cost(url: str) -> int:
    """What the work touches; the figures of a process are complete when it has ended."""
    before = touched(url)
    async with PostgresSessionStore.open(url) as store:
        for work in WORK:
            await work(store)
    return touched(url) - before


@pytest.mark.long
async def test_ten_thousand_other_sessions_cost_nothing(
    database_url: str, empty_database_url: str
) -> None:
    """A single look through all of one table would show."""
    async with PostgresSessionStore.open(empty_database_url):
        pass  # a second database, with its tables
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        connection.execute(_OTHERS.encode())
        connection.execute("ANALYZE")

    alone, among_others = await cost(database_url), await cost(empty_database_url)

    assert alone > len(WORK)
    assert among_others < alone + OTHERS / 10, (alone, among_others)


async def test_a_folder_above_or_below_is_counted_in_an_index(
    shared_postgres: Server, database_url: str
) -> None:
    async with PostgresSessionStore.open(database_url):
        pass
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("""
            INSERT INTO sessions (session_id, tenant, cwd, status, metadata_json, created_at,
                updated_at, epoch)
            SELECT 'x' || n, CASE n % 2 WHEN 0 THEN 'mine' END,
                CASE WHEN n <= 20000 THEN '/home/' || n % 5000 ELSE '/' END, 'active', '{}', '2020',
                '2020', 1 FROM generate_series(1, 30000) AS n""")
        connection.execute("ANALYZE sessions")
    log = PlanLog(shared_postgres, database_url.rpartition("/")[2])
    for tenant in (None, "mine"):
        async with PostgresSessionStore.open(database_url, tenant=tenant) as store:
            log.take()
            found = await store.sessions_nearby("/home", limit=50)
        assert len(found) == 50
        assert found["/"] == 1000
        scans = [scan for scan in log.take().scans() if scan.table == "sessions"]
        assert {scan.kind for scan in scans} == {"Index Only Scan"}
        assert sum(scan.rows for scan in scans) <= 1000 + 50 * 10
