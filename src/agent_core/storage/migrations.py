"""The schema, as the ordered list of migrations that lead to it."""

import sqlite3
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path

from msgspec import Struct

from agent_core.errors import ErrorCode, StorageError
from agent_core.opening import read_text
from agent_core.storage import spending
from agent_core.storage.faults import is_environmental
from agent_core.storage.rows import iso
from agent_core.types import utc_now


class Migration(Struct, frozen=True):
    """One migration. A released migration never changes; a new version is a new migration.

    Attributes:
        version: the version of the schema after it.
        name: what it adds.
        statements: applied in one transaction with the migrations before it.
        is_filled: it has no statements; `spending.fill` adds rows, in many transactions.
        is_optional: it only saves work, so a database may stay as it is instead.
    """

    version: int
    name: str
    statements: tuple[str, ...]
    is_filled: bool = False
    is_optional: bool = False


_OPEN = "status IN ('queued', 'pending', 'running')"

_INITIAL = (
    """CREATE TABLE sessions (
        session_id TEXT PRIMARY KEY NOT NULL,
        cwd TEXT NOT NULL,
        root_agent_id TEXT,
        active_node_id TEXT,
        parent_session_id TEXT,
        status TEXT NOT NULL,
        owner TEXT,
        lease_expires_at TEXT,
        metadata_json TEXT NOT NULL,
        created_at TEXT NOT NULL,
        updated_at TEXT NOT NULL
    )""",
    "CREATE INDEX sessions_by_use ON sessions (updated_at)",
    "CREATE INDEX sessions_by_owner ON sessions (owner) WHERE owner IS NOT NULL",
    """CREATE TABLE agents (
        agent_id TEXT PRIMARY KEY NOT NULL,
        session_id TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE,
        parent_agent_id TEXT,
        agent_type TEXT NOT NULL,
        agent_definition_id TEXT,
        created_by_run_id TEXT,
        fork_from_node_id TEXT,
        status TEXT NOT NULL,
        result_json TEXT,
        metadata_json TEXT NOT NULL,
        created_at TEXT NOT NULL,
        updated_at TEXT NOT NULL
    )""",
    "CREATE INDEX agents_by_session ON agents (session_id)",
    """CREATE UNIQUE INDEX agents_root ON agents (session_id, agent_type)
        WHERE parent_agent_id IS NULL""",
    """CREATE TABLE runs (
        run_id TEXT PRIMARY KEY NOT NULL,
        session_id TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE,
        agent_id TEXT NOT NULL,
        parent_run_id TEXT,
        mode TEXT NOT NULL,
        status TEXT NOT NULL,
        start_node_id TEXT,
        end_node_id TEXT,
        end_reason TEXT,
        turn_count INTEGER NOT NULL,
        usage_json TEXT NOT NULL,
        error_json TEXT,
        metadata_json TEXT NOT NULL,
        created_at TEXT NOT NULL,
        updated_at TEXT NOT NULL
    )""",
    "CREATE INDEX runs_by_session ON runs (session_id)",
    f"CREATE INDEX runs_open ON runs (session_id) WHERE {_OPEN}",
    """CREATE TABLE nodes (
        node_id TEXT PRIMARY KEY NOT NULL,
        session_id TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE,
        node_seq INTEGER NOT NULL,
        parent_id TEXT REFERENCES nodes,
        agent_id TEXT NOT NULL,
        run_id TEXT,
        role TEXT NOT NULL,
        node_type TEXT NOT NULL,
        content_json TEXT NOT NULL,
        metadata_json TEXT NOT NULL,
        token_count INTEGER NOT NULL,
        created_at TEXT NOT NULL
    )""",
    "CREATE UNIQUE INDEX nodes_by_session ON nodes (session_id, node_seq)",
    "CREATE INDEX nodes_by_parent ON nodes (parent_id)",
    # The timeline is the order of the table itself, which saves one index per event.
    """CREATE TABLE events (
        event_id TEXT NOT NULL,
        seq INTEGER NOT NULL,
        run_seq INTEGER,
        session_id TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE,
        agent_id TEXT,
        run_id TEXT,
        level TEXT NOT NULL,
        event_type TEXT NOT NULL,
        node_id TEXT,
        tool_call_id TEXT,
        payload_json TEXT NOT NULL,
        created_at TEXT NOT NULL,
        PRIMARY KEY (session_id, seq)
    ) WITHOUT ROWID""",
    "CREATE UNIQUE INDEX events_by_run ON events (run_id, run_seq)",
    """CREATE INDEX events_by_call ON events (session_id, tool_call_id, seq)
        WHERE tool_call_id IS NOT NULL""",
    """CREATE TABLE artifacts (
        artifact_id TEXT PRIMARY KEY NOT NULL,
        session_id TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE,
        agent_id TEXT,
        run_id TEXT,
        node_id TEXT,
        tool_call_id TEXT,
        kind TEXT NOT NULL,
        path TEXT NOT NULL,
        filename TEXT NOT NULL,
        mime_type TEXT,
        size_bytes INTEGER NOT NULL,
        summary TEXT,
        metadata_json TEXT NOT NULL,
        created_at TEXT NOT NULL
    )""",
    "CREATE INDEX artifacts_by_session ON artifacts (session_id)",
    "CREATE INDEX artifacts_by_run ON artifacts (run_id)",
)

_PROMPTS = ("ALTER TABLE runs ADD COLUMN prompt_json TEXT",)

_EPOCHS = (
    "ALTER TABLE sessions ADD COLUMN epoch INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE runs ADD COLUMN cancel_requested_at TEXT",
    "DROP INDEX runs_open",
    """CREATE INDEX runs_open ON runs (session_id)
        WHERE status IN ('queued', 'pending', 'running', 'waiting')""",
)

BUDGETS = (
    """CREATE TABLE budgets (
        scope_id TEXT PRIMARY KEY NOT NULL,
        session_id TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE,
        kind TEXT NOT NULL,
        limits_json TEXT NOT NULL,
        spent_json TEXT NOT NULL,
        held_json TEXT NOT NULL
    )""",
    "CREATE INDEX budgets_by_session ON budgets (session_id)",
    """CREATE TABLE budget_agents (
        scope_id TEXT NOT NULL REFERENCES budgets ON DELETE CASCADE,
        agent_id TEXT NOT NULL,
        spent_json TEXT NOT NULL,
        PRIMARY KEY (scope_id, agent_id)
    )""",
    """CREATE TABLE budget_holds (
        hold_id TEXT PRIMARY KEY NOT NULL,
        session_id TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE,
        run_id TEXT NOT NULL,
        agent_id TEXT NOT NULL,
        scopes_json TEXT NOT NULL,
        amounts_json TEXT NOT NULL
    )""",
    "CREATE INDEX budget_holds_by_session ON budget_holds (session_id)",
    "CREATE INDEX budget_holds_by_run ON budget_holds (run_id)",
)

_OPTIONS = ("ALTER TABLE runs ADD COLUMN options_json TEXT",)

_SNAPSHOTS = (
    """CREATE TABLE node_snapshots (
        node_id TEXT NOT NULL,
        session_id TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE,
        run_id TEXT,
        folder TEXT NOT NULL,
        snapshot_id TEXT NOT NULL,
        previous_id TEXT NOT NULL,
        is_begin INTEGER NOT NULL
    )""",
    "CREATE INDEX node_snapshots_by_node ON node_snapshots (node_id)",
    "CREATE INDEX node_snapshots_by_session ON node_snapshots (session_id)",
    "CREATE INDEX node_snapshots_by_run ON node_snapshots (run_id)",
    """CREATE TABLE workspaces (
        session_id TEXT PRIMARY KEY NOT NULL REFERENCES sessions ON DELETE CASCADE,
        folder TEXT NOT NULL,
        snapshot_id TEXT,
        open_run_id TEXT,
        undone_json TEXT NOT NULL,
        pending_json TEXT
    )""",
    "CREATE INDEX workspaces_pending ON workspaces (folder) WHERE pending_json IS NOT NULL",
)

_APPROVALS = (
    """CREATE TABLE approvals (
        request_id TEXT PRIMARY KEY NOT NULL,
        session_id TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE,
        run_id TEXT NOT NULL,
        root_run_id TEXT NOT NULL,
        agent_id TEXT NOT NULL,
        agent_path_json TEXT NOT NULL,
        tool_call_id TEXT NOT NULL,
        tool_name TEXT NOT NULL,
        access_hash TEXT NOT NULL,
        keeps_run INTEGER NOT NULL,
        request_json TEXT NOT NULL,
        state TEXT NOT NULL,
        decision TEXT,
        reason TEXT,
        decided_by TEXT,
        decider TEXT,
        asked_at TEXT NOT NULL,
        decided_at TEXT
    )""",
    "CREATE INDEX approvals_by_session ON approvals (session_id, request_id)",
    "CREATE INDEX approvals_by_call ON approvals (root_run_id, run_id, tool_call_id)",
    "CREATE INDEX approvals_open ON approvals (request_id) WHERE state = 'open'",
)

_ARGUMENTS = (
    "ALTER TABLE approvals ADD COLUMN arguments_json TEXT",
    "ALTER TABLE approvals ADD COLUMN changed_arguments_json TEXT",
)

_GRANTS = (
    """CREATE TABLE grants (
        grant_id TEXT PRIMARY KEY NOT NULL,
        session_id TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE,
        tool_name TEXT NOT NULL,
        covers TEXT NOT NULL,
        key TEXT NOT NULL,
        created_at TEXT NOT NULL,
        UNIQUE (session_id, key)
    )""",
)

_TITLES = (
    "ALTER TABLE sessions ADD COLUMN title TEXT",
    "CREATE INDEX sessions_untitled ON sessions (session_id) WHERE title IS NULL",
)

_MEMORY_BACKLOG = (
    """CREATE TABLE memory_backlog (
        session_id TEXT PRIMARY KEY NOT NULL REFERENCES sessions ON DELETE CASCADE
    )""",
)

_SCALE = (
    "ALTER TABLE sessions ADD COLUMN tenant TEXT",
    "ALTER TABLE sessions ADD COLUMN place TEXT",
    "ALTER TABLE runs ADD COLUMN lane TEXT",
    "ALTER TABLE runs ADD COLUMN takeovers INTEGER NOT NULL DEFAULT 0",
)

USE_ORDER = (
    "ALTER TABLE sessions ADD COLUMN use_number INTEGER NOT NULL DEFAULT 0",
    """UPDATE sessions SET use_number = ordered.number FROM (
        SELECT session_id, row_number() OVER (ORDER BY updated_at, rowid) AS number FROM sessions
    ) AS ordered WHERE ordered.session_id = sessions.session_id""",
    "CREATE INDEX sessions_in_order ON sessions (use_number)",
    """CREATE TRIGGER number_session AFTER INSERT ON sessions BEGIN
        UPDATE sessions SET use_number = (SELECT max(use_number) + 1 FROM sessions)
            WHERE session_id = new.session_id;
    END""",
)
"""The order in which sessions were last used, which no clock decides."""

_LOOKED_FOR = (
    "CREATE INDEX sessions_by_project ON sessions (cwd, use_number)",
    """CREATE INDEX sessions_by_origin ON sessions (parent_session_id, use_number)
        WHERE parent_session_id IS NOT NULL""",
    """CREATE INDEX runs_owned ON runs (session_id)
        WHERE status IN ('queued', 'pending', 'running', 'waiting') AND status != 'waiting'
        AND (lane IS NULL OR status != 'queued')""",
    "CREATE INDEX artifacts_by_kind ON artifacts (kind, created_at)",
    "CREATE INDEX node_snapshots_by_folder ON node_snapshots (folder)",
    "DROP INDEX approvals_open",
    "CREATE INDEX approvals_open ON approvals (state) WHERE state = 'open'",
)

_WAITING_MESSAGES = (
    """CREATE TABLE waiting_messages (
        message_id TEXT PRIMARY KEY NOT NULL,
        session_id TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE,
        run_id TEXT NOT NULL,
        prompt_json TEXT NOT NULL,
        is_taken INTEGER NOT NULL,
        created_at TEXT NOT NULL
    )""",
    "CREATE INDEX waiting_messages_by_session ON waiting_messages (session_id)",
    "CREATE INDEX waiting_messages_by_run ON waiting_messages (run_id)",
)

_REPEATS = (
    """CREATE TABLE repeats (
        request_key TEXT PRIMARY KEY NOT NULL,
        tenant TEXT,
        digest TEXT NOT NULL,
        holder TEXT NOT NULL,
        answer TEXT,
        about_session TEXT REFERENCES sessions ON DELETE CASCADE,
        expires_at TEXT NOT NULL
    )""",
    "CREATE INDEX repeats_by_end ON repeats (expires_at)",
    "CREATE INDEX repeats_by_session ON repeats (about_session) WHERE about_session IS NOT NULL",
)


def _move_events() -> Iterator[str]:
    """Yield statements that move all events, a part of the sessions after the other.

    A part takes the pages that the one before has freed, so the file does not double.
    """
    place = "LIMIT 1 OFFSET (SELECT count(*) * {} / 8 FROM sessions)"
    session = f"(SELECT session_id FROM sessions ORDER BY session_id {place})"  # noqa: S608
    for part in (*(f"session_id < {session.format(eighth)}" for eighth in range(1, 8)), "TRUE"):
        yield f"""INSERT INTO slim_events SELECT * FROM events
            WHERE {part} ORDER BY session_id, seq"""  # noqa: S608 - our own words
        yield f"DELETE FROM events WHERE {part}"  # noqa: S608


_SLIM = (
    "DROP INDEX sessions_by_use",
    "DROP INDEX runs_open",
    "DROP INDEX runs_owned",
    "DROP INDEX agents_root",
    "DROP INDEX agents_by_session",
    "DROP INDEX events_by_run",
    "DROP INDEX events_by_call",
    # A row of two thousand bytes fits into a page of a table, but not into one of an index.
    """CREATE TABLE slim_events (
        event_id TEXT NOT NULL,
        seq INTEGER NOT NULL,
        run_seq INTEGER,
        session_id TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE,
        agent_id TEXT,
        run_id TEXT,
        level TEXT NOT NULL,
        event_type TEXT NOT NULL,
        node_id TEXT,
        tool_call_id TEXT,
        payload_json TEXT NOT NULL,
        created_at TEXT NOT NULL,
        PRIMARY KEY (session_id, seq)
    )""",
    *_move_events(),
    "DROP TABLE events",
    "ALTER TABLE slim_events RENAME TO events",
    "CREATE UNIQUE INDEX events_by_run ON events (run_id, run_seq)",
    """CREATE INDEX events_by_call ON events (session_id, tool_call_id, seq)
        WHERE tool_call_id IS NOT NULL""",
    """CREATE INDEX runs_open ON runs (session_id, status, lane)
        WHERE status IN ('queued', 'pending', 'running', 'waiting')""",
    """CREATE UNIQUE INDEX agents_by_session ON agents
        (session_id, agent_type, CASE WHEN parent_agent_id IS NULL THEN '' ELSE agent_id END)""",
)
"""Every table and index that a write changes costs at least a page in the log."""

_UNREAD = (
    "DROP INDEX events_by_call",
    "DROP INDEX nodes_by_parent",
    # SQLite cannot drop a constraint; this changes its text, and no row.
    "PRAGMA writable_schema = ON",
    """UPDATE sqlite_schema SET sql = replace(sql, 'parent_id TEXT REFERENCES nodes',
        'parent_id TEXT') WHERE type = 'table' AND name = 'nodes'""",
    "PRAGMA writable_schema = RESET",
)
"""A call is looked for among the events of its run, and nothing looks for the nodes below a node,
which are only deleted with their session.
"""

MIGRATIONS: tuple[Migration, ...] = (
    Migration(1, "sessions, history and artifacts", _INITIAL),
    Migration(2, "messages of runs that have not begun", _PROMPTS),
    Migration(3, "epochs of sessions, requests to cancel, runs that wait", _EPOCHS),
    Migration(4, "budgets: limits, what was spent, what is reserved", BUDGETS),
    Migration(5, "options of runs", _OPTIONS),
    Migration(6, "snapshots of the files of a project, by node", _SNAPSHOTS),
    Migration(7, "questions about calls, and their answers", _APPROVALS),
    Migration(8, "what was allowed for sessions", _GRANTS),
    Migration(9, "titles of sessions", _TITLES),
    Migration(10, "sessions that are still to be looked through for memories", _MEMORY_BACKLOG),
    Migration(11, "runs that workers carry out", _SCALE),
    Migration(12, "arguments of calls that are asked about, and changed ones", _ARGUMENTS),
    Migration(13, "the order in which sessions were last used", USE_ORDER),
    Migration(14, "indexes for everything that is looked for", _LOOKED_FOR),
    Migration(15, "spending of runs, in numbers", spending.SCHEMA),
    Migration(16, "spending of earlier runs", (), is_filled=True),
    Migration(17, "messages sent to runs while they work", _WAITING_MESSAGES),
    Migration(18, "requests that may be sent twice, and their answers", _REPEATS),
    Migration(19, "fewer pages for each write", _SLIM, is_optional=True),
    Migration(20, "no indexes of calls and of parents", _UNREAD, is_optional=True),
)

LEDGER = """CREATE TABLE schema_migrations (
    version INTEGER PRIMARY KEY NOT NULL,
    name TEXT NOT NULL,
    applied_at TEXT NOT NULL
)"""


def version_of(connection: sqlite3.Connection, path: Path) -> int:
    """Return the schema version of a database; 0 for an empty one.

    Raises:
        StorageError: `migration_failed`: it is newer than this program or not a session database.
    """
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
    if "schema_migrations" not in tables:
        if tables:
            raise StorageError(
                ErrorCode.MIGRATION_FAILED,
                f"{path} is a database of another program; set [context] session_db_path",
            )
        return 0
    (version,) = connection.execute("SELECT max(version) FROM schema_migrations").fetchone()
    newest = MIGRATIONS[-1].version
    if (version or 0) > newest:
        raise StorageError(
            ErrorCode.MIGRATION_FAILED,
            f"{path} was written by a newer version of this program (schema {version}, known up"
            f" to {newest}); upgrade the program, or use another database. It was not touched",
            details={"path": str(path), "schema": version, "known": newest},
        )
    return version or 0


def migrate(
    connection: sqlite3.Connection, path: Path, *, with_optional: bool = True
) -> Generator[None]:
    """Upgrade the database; each step of the iteration needs its own transaction.

    A new database takes one step. If a process dies between two steps, the next one continues.

    Raises:
        StorageError: `migration_failed`.
        sqlite3.Error: the file or the machine failed, not a migration.
    """
    if version_of(connection, path) == 0:
        _create(connection, path)
    while True:
        current = version_of(connection, path)
        pending = [one for one in MIGRATIONS if one.version > current]
        together = [*takewhile(lambda one: not one.is_filled, pending)]
        for migration in together:
            with _explained(migration, path):
                if with_optional or not migration.is_optional:
                    for statement in migration.statements:
                        connection.execute(statement)
                _record(connection, migration)
        if len(together) == len(pending):
            return
        yield
        filled = pending[len(together)]
        with _explained(filled, path):
            yield from spending.fill(connection)
            _record(connection, filled)


def migrate_at_once(connection: sqlite3.Connection, path: Path) -> None:
    """Bring a database that no other process uses up to date, without what is optional."""
    for _ in migrate(connection, path, with_optional=False):
        pass


def schema_of(connection: sqlite3.Connection) -> str:
    """Return the statements that make the tables, indexes and triggers of a database.

    `make reference` writes them for the newest version into `schema.sql`, so that a new database
    does not go through those before it. A blank line ends a statement.
    """
    rows = connection.execute(
        "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite~_%' ESCAPE"
        " '~' ORDER BY type = 'trigger', type = 'index', rowid"
    )
    version = f"-- version {MIGRATIONS[-1].version}; make reference writes this file"
    return "\n\n".join([version, *(sql for (sql,) in rows)]) + "\n"


def _create(connection: sqlite3.Connection, path: Path) -> None:
    """Make the tables of a new database."""
    version, *statements = read_text(Path(__file__).with_name("schema.sql")).split("\n\n")
    if not version.startswith(f"-- version {MIGRATIONS[-1].version};"):
        statements = [LEDGER, *(each for one in MIGRATIONS for each in one.statements)]
    with _explained(MIGRATIONS[-1], path):
        for statement in statements:
            connection.execute(statement)
    for migration in MIGRATIONS:
        _record(connection, migration)


def _record(connection: sqlite3.Connection, migration: Migration) -> None:
    connection.execute(
        "INSERT OR IGNORE INTO schema_migrations (version, name, applied_at) VALUES (?, ?, ?)",
        (migration.version, migration.name, iso(utc_now())),
    )


@contextmanager
def _explained(migration: Migration, path: Path) -> Generator[None]:
    try:
        yield
    except sqlite3.Error as error:
        if is_environmental(error):
            raise
        raise StorageError(
            ErrorCode.MIGRATION_FAILED,
            f"{path} could not be brought to schema {migration.version} ({migration.name}):"
            f" {error}. It is as it was; keep a copy of it and report this",
        ) from error
