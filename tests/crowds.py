"""Fills a Postgres database with the sessions of many tenants, by SQL: 100,000 in about a minute.

Session number `n` is that of tenant `n % tenants`, so each tenant's rows lie between everybody
else's. The rows of one tenant are the same in number and kind, however many tenants there are. Of
each tenant's sessions, one in ten waits for an answer and one in twenty is queued; of the first
tenants' also one in fifty runs, because a house has only so many workers.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import psycopg

from agent_core import AgentCoreError, AgentRuntime
from agent_core.types import Page
from rows import a_question

Reads = Mapping[str, Callable[[], Awaitable[object]]]
"""Reads by what they are called."""

TENANT = "tenant_0"
RARE = "kumquat"
"""A word in one message of every tenant."""
LONG_AGO = datetime(2026, 1, 10, tzinfo=UTC)
"""A time soon after which most sessions were used."""

STORED_GRANTS = """
[permissions]
remember_scope = "session_stored"
"""
"""Settings with which remembered answers are rows."""

_GIVEN = re.compile(r":(sessions|tenants|step|question)\b")
_WORDS = """CREATE TEMPORARY TABLE texts AS
    SELECT which, string_agg('word' || (which * 7919 + place * 104729) % 3001, ' ') AS text
    FROM generate_series(0, 1999) AS which, generate_series(1, 8) AS place GROUP BY which;
CREATE UNIQUE INDEX ON texts (which)"""

_PLAN = """CREATE TEMPORARY TABLE plan AS SELECT n, n % :tenants AS of_tenant,
    n / :tenants AS place, to_char(n, 'FM00000000') AS id, 'tenant_' || n % :tenants AS tenant,
    to_char(timestamp '2026-01-01' + n * :step * interval '1 second',
        'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"') AS at
    FROM generate_series(0, :sessions - 1) AS n;
ANALYZE plan"""
"""The sessions; `place` is the number of a session among those of its tenant."""

_WAITS, _QUEUED, _RUNS = "place % 10 = 3", "place % 20 = 5", "place % 50 = 7 AND of_tenant < 20"
_STATUS = f"""CASE WHEN number = 1 THEN 'completed' WHEN {_WAITS} THEN 'waiting'
    WHEN {_QUEUED} THEN 'queued' WHEN {_RUNS} THEN 'running' ELSE 'completed' END"""
_EACH_RUN = "FROM plan CROSS JOIN generate_series(1, 2) AS number"
_USAGE = """'{"input_tokens":1200,"output_tokens":300,"total_tokens":1500,"cost":0.0125}'"""

# ruff: noqa: S608 - our own rows
_ROWS: dict[str, str] = {
    "sessions": f"""SELECT 'sess_' || id AS session_id, '/project/' || place % 5 AS cwd,
        'agent_' || id AS root_agent_id, 'node_' || id || '_2_4' AS active_node_id,
        CASE WHEN place % 20 = 11 THEN 'sess_' || to_char(n - :tenants, 'FM00000000') END
            AS parent_session_id,
        'active' AS status, CASE WHEN {_RUNS} THEN 'own_' || of_tenant % 7 END AS owner,
        CASE WHEN {_RUNS} THEN '2099-01-01T00:00:00.000000+00:00' END AS lease_expires_at,
        '{{}}' AS metadata_json, at AS created_at, at AS updated_at, 1 AS epoch,
        'Task ' || place || ' about word' || place % 97 AS title,
        tenant, 'host:a' AS place, 16 AS last_seq, 8 AS last_node_seq FROM plan""",
    "agents": """SELECT 'agent_' || id AS agent_id, 'sess_' || id AS session_id,
        'main' AS agent_type, 'idle' AS status, '{}' AS metadata_json, at AS created_at,
        at AS updated_at FROM plan""",
    "runs": f"""SELECT 'run_' || id || '_' || number AS run_id, 'sess_' || id AS session_id,
        'agent_' || id AS agent_id, 'normal' AS mode, {_STATUS} AS status,
        'node_' || id || '_' || number || '_4' AS end_node_id,
        CASE WHEN {_STATUS} = 'completed' THEN 'completed' END AS end_reason,
        2 AS turn_count, {_USAGE} AS usage_json, '{{"model":"openai:gpt-' || n % 3 || '"}}'
            AS metadata_json, at AS created_at, at AS updated_at,
        CASE WHEN {_STATUS} IN ('queued', 'waiting') THEN 'default/host:a/' || tenant || '/1' END
            AS lane,
        CASE WHEN {_STATUS} = 'queued' THEN
            '{{"content":[{{"type":"text","text":"more of it"}}]}}' END
            AS prompt_json,
        8 AS last_run_seq {_EACH_RUN}""",
    "spending": f"""SELECT 'sess_' || id AS session_id, 'run_' || id || '_' || number AS source,
        tenant, 'openai:gpt-' || n % 3 AS model,
        CAST(extract(epoch FROM CAST(at AS TIMESTAMPTZ)) * 1000000 AS BIGINT) AS begun_at,
        2 AS turns, 1200 AS input_tokens, 300 AS output_tokens, 1500 AS total_tokens,
        0 AS cache_read_tokens, 0 AS cache_write_tokens, 0 AS cache_write_1h_tokens,
        0 AS reasoning_tokens, 0.0125 AS cost, FALSE AS is_estimated {_EACH_RUN}""",
    "nodes": f"""SELECT 'node_' || id || '_' || number || '_' || step AS node_id,
        'sess_' || id AS session_id, (number - 1) * 4 + step AS node_seq,
        CASE WHEN step > 1 THEN 'node_' || id || '_' || number || '_' || step - 1
            WHEN number > 1 THEN 'node_' || id || '_' || number - 1 || '_4' END AS parent_id,
        'agent_' || id AS agent_id, 'run_' || id || '_' || number AS run_id,
        (ARRAY['user', 'assistant', 'tool', 'assistant'])[step] AS role, 'message' AS node_type,
        '[{{"type":"text","text":"' || texts.text || CASE WHEN place = 40 AND number = 2
            AND step = 4 THEN ' {RARE}' ELSE '' END || '"}}]' AS content_json,
        '{{}}' AS metadata_json, 60 AS token_count, at AS created_at, tenant
        {_EACH_RUN} CROSS JOIN generate_series(1, 4) AS step
        JOIN texts ON which = (n * 31 + number * 7 + step) % 2000""",
    "events": f"""SELECT 'evt_' || id || '_' || number || '_' || step AS event_id,
        (number - 1) * 8 + step AS seq, step AS run_seq, 'sess_' || id AS session_id,
        'agent_' || id AS agent_id, 'run_' || id || '_' || number AS run_id, 'info' AS level,
        CASE WHEN step % 2 = 1 THEN 'message_created' WHEN step = 8 THEN 'run_completed'
            WHEN step = 4 THEN 'tool_started' WHEN step = 6 THEN 'tool_completed'
            ELSE 'model_started' END AS event_type,
        CASE WHEN step % 2 = 1 THEN
            'node_' || id || '_' || number || '_' || (step + 1) / 2 END AS node_id,
        CASE WHEN step IN (4, 6) THEN 'call_' || number END AS tool_call_id,
        '{{}}' AS payload_json, at AS created_at
        {_EACH_RUN} CROSS JOIN generate_series(1, 8) AS step""",
    "artifacts": """SELECT 'art_' || id AS artifact_id, 'sess_' || id AS session_id,
        'agent_' || id AS agent_id, 'run_' || id || '_1' AS run_id,
        'node_' || id || '_1_3' AS node_id, CASE WHEN place % 2 = 0 THEN 'tool_result'
        ELSE 'debug_trace' END AS kind, '/nowhere' AS path, 'a.txt' AS filename,
        1000 AS size_bytes, '{}' AS metadata_json, at AS created_at
        FROM plan WHERE place % 5 = 1""",
    "budgets": """SELECT 'sess_' || id AS scope_id, 'sess_' || id AS session_id, 'session' AS kind,
        '{"turns":50}' AS limits_json, '{"turns":6}' AS spent_json, '{}' AS held_json FROM plan""",
    "budget_agents": """SELECT 'sess_' || id AS scope_id, 'agent_' || id AS agent_id,
        '{"turns":6}' AS spent_json FROM plan""",
    "node_snapshots": """SELECT 'node_' || id || '_2_' || step AS node_id,
        'sess_' || id AS session_id, 'run_' || id || '_2' AS run_id,
        '/project/' || place % 5 AS folder, md5(id || step) AS snapshot_id,
        md5(id || step - 1) AS previous_id, step = 1 AS is_begin
        FROM plan CROSS JOIN generate_series(1, 2) AS step WHERE place % 4 = 0""",
    "workspaces": """SELECT 'sess_' || id AS session_id, '/project/' || place % 5 AS folder,
        md5(id || 2) AS snapshot_id, '[]' AS undone_json FROM plan WHERE place % 4 = 0""",
    "approvals": f"""SELECT 'req_' || id || '_' || number AS request_id,
        'sess_' || id AS session_id, 'run_' || id || '_' || number AS run_id,
        'run_' || id || '_' || number AS root_run_id, 'agent_' || id AS agent_id,
        '["agent_' || id || '"]' AS agent_path_json, 'call_9' AS tool_call_id,
        'code.write_file' AS tool_name, 'same' AS access_hash, TRUE AS keeps_run,
        :question AS request_json, CASE WHEN number = 2 THEN 'open' ELSE 'answered' END AS state,
        CASE WHEN number = 2 THEN NULL ELSE 'deny' END AS decision, at AS asked_at, tenant
        {_EACH_RUN} WHERE {_WAITS}""",
    "grants": """SELECT 'grant_' || id AS grant_id, 'sess_' || id AS session_id,
        'shell.run' AS tool_name, 'all' AS covers, 'key' AS key, at AS created_at
        FROM plan WHERE place % 20 = 2""",
    "memory_backlog": "SELECT 'sess_' || id AS session_id FROM plan WHERE place % 20 = 9",
    "procrastinate_jobs": f"""SELECT 'default/host:a/' || tenant || '/1' AS queue_name,
        'run' AS task_name, 0 AS priority, 'sess_' || id AS lock,
        jsonb_build_object('run_id', 'run_' || id || '_2') AS args,
        CAST(CASE WHEN {_RUNS} THEN 'doing' ELSE 'todo' END AS procrastinate_job_status) AS status
        FROM plan WHERE {_QUEUED} OR {_RUNS}""",
    "blobs": """SELECT md5(id) || md5(id) AS blob, 1000 AS size_bytes, TRUE AS is_whole
        FROM plan WHERE place % 5 = 1""",
    "blob_uses": """SELECT 'sess_' || id AS session_id, 'art_' || id AS used_by,
        md5(id) || md5(id) AS blob FROM plan WHERE place % 5 = 1""",
    "shared_snapshots": """SELECT 'sess_' || id AS session_id, md5(id || 2) AS snapshot_id,
        '{}' AS about FROM plan WHERE place % 4 = 0""",
}
"""The rows of each table, in an order that foreign keys allow."""


async def _second(read: Callable[..., Awaitable[Page[Any]]]) -> None:
    first = await read(2)
    assert first.next_cursor
    await read(2, first.next_cursor)


async def _missing(read: Awaitable[object]) -> None:
    with suppress(AgentCoreError):
        await read


@dataclass(frozen=True)
class Crowd:
    """How many sessions there are, and of how many tenants."""

    sessions: int
    tenants: int

    @property
    def names(self) -> dict[str, str]:
        """The ids in a session of `TENANT`."""
        number = f"{40 * self.tenants:08d}"
        return {
            "session": f"sess_{number}",
            "run": f"run_{number}_2",
            "node": f"node_{number}_2_4",
        }

    def reads(self, runtime: AgentRuntime) -> Reads:
        """Every public method of a runtime that reads rows."""
        session, run, node = self.names.values()
        return {
            "attach": lambda: runtime.attach(run),
            "approvals": runtime.approvals,
            "permission_grants": runtime.permission_grants,
            "context_report": lambda: runtime.context_report(session),
            "run_report": lambda: runtime.run_report(run),
            "run_events": lambda: runtime.run_events(run),
            "approval": lambda: _missing(runtime.approval("req_none")),
            "artifact": lambda: _missing(runtime.artifact("art_none")),
            "open_artifact": lambda: _missing(runtime.open_artifact("art_none")),
            "replay_session": lambda: runtime.replay_session(session),
            "waiting_messages": lambda: runtime.waiting_messages(session),
            "session_runs": lambda: runtime.session_runs(session),
            "replay_run": lambda: runtime.replay_run(run),
            "inspect_run": lambda: runtime.inspect_run(run),
            "get_node_path": lambda: runtime.get_node_path(node),
            "undo_state": lambda: runtime.undo_state(session),
            "workers": runtime.workers,
            "queue": runtime.queue,
            "list_sessions": runtime.list_sessions,
            "session_summaries": runtime.session_summaries,
            "session_summaries of a project": lambda: runtime.session_summaries(
                project="/project/1"
            ),
            "session_summaries with words": lambda: runtime.session_summaries(query="word40"),
            "session_summaries of forks": lambda: runtime.session_summaries(forked_from=session),
            "costs": runtime.costs,
            "costs by day": lambda: runtime.costs("day"),
            "costs since": lambda: runtime.costs("model", since=LONG_AGO),
            "costs of a project": lambda: runtime.costs("session", project="/project/1"),
            "search_sessions": lambda: runtime.search_sessions(RARE),
            "last_session": runtime.last_session,
            "sessions_nearby": lambda: runtime.sessions_nearby("/"),
            "resolve_session_id": lambda: runtime.resolve_session_id(session),
            "resolve_run_id": lambda: runtime.resolve_run_id(run),
            "resolve_node_id": lambda: runtime.resolve_node_id(node),
            "session_summaries in pages": lambda: runtime.pages.sessions(),
            "session_summaries in pages, the second": lambda: _second(runtime.pages.sessions),
            "approvals in pages, the second": lambda: _second(runtime.pages.approvals),
            "queue in pages, the second": lambda: _second(runtime.pages.queue),
            "session_summaries in pages, waiting": lambda: runtime.pages.sessions(status="waiting"),
            "session_summaries in pages, done": lambda: runtime.pages.sessions(status="completed"),
            "replay_session in pages": lambda: runtime.pages.session(session),
            "search_sessions in pages": lambda: runtime.pages.matches(RARE),
            "approvals in pages": lambda: runtime.pages.approvals(),
            "approvals in pages, of a session": lambda: runtime.pages.approvals(session_id=session),
            "costs in pages": lambda: runtime.pages.costs("session"),
            "costs in pages, by project": lambda: runtime.pages.costs("project"),
            "queue in pages": lambda: runtime.pages.queue(),
            "workers in pages": lambda: runtime.pages.workers(),
            "stored_bytes": runtime.stored_bytes,
            "stored_bytes of a project": lambda: runtime.stored_bytes("/project/1"),
            "delete_sessions": lambda: runtime.delete_sessions(older_than=LONG_AGO),
            "cleanup_artifacts": runtime.cleanup_artifacts,
        }

    def fill(self, url: str) -> None:
        """Add the sessions to a database that has the tables of this version, and none of them."""
        values = {
            "sessions": str(self.sessions),
            "tenants": str(self.tenants),
            "step": str(20_000_000 / self.sessions),
            "question": f"'{a_question().request.model_dump_json()}'",
        }

        def given(statement: str) -> bytes:
            return _GIVEN.sub(lambda name: values[name[1]], statement).encode()

        with psycopg.connect(url, autocommit=True) as database:
            # As a restore does: without triggers and without looking up what rows refer to.
            database.execute("SET session_replication_role = replica")
            database.execute("SET synchronous_commit = off")
            database.execute("SET maintenance_work_mem = '256MB'")
            database.execute(_WORDS)
            database.execute(given(_PLAN))
            for table, select in _ROWS.items():
                _insert(database, table, given(select))
            database.execute("INSERT INTO sweeps VALUES ('blobs', now())")
            database.execute("VACUUM (ANALYZE)")


def _insert(database: psycopg.Connection[Any], table: str, select: bytes) -> None:
    """Add rows, and build the table's indexes anew, which is quicker than adding to them."""
    row = database.execute(b"SELECT * FROM (" + select + b") AS row LIMIT 0")
    names = ", ".join(column.name for column in row.description or ())
    indexes = database.execute(
        """SELECT indexrelid::regclass::text, pg_get_indexdef(indexrelid) FROM pg_index
        WHERE indrelid = %s::regclass AND NOT EXISTS
        (SELECT FROM pg_constraint WHERE conindid = indexrelid)""",
        (table,),
    ).fetchall()
    for name, _ in indexes:
        database.execute(f"DROP INDEX {name}".encode())
    # The statistics of plans are those of the filled database, whatever else the server does.
    database.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = false)".encode())
    database.execute(f"INSERT INTO {table} ({names}) ".encode() + select)
    for _, definition in indexes:
        database.execute(definition.encode())
