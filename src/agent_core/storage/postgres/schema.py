"""The schema: SQLite's migrations translated for PostgreSQL, and additions for this database.

Rows are numbered by a column, since tables have no row number here. Sequence numbers are counted in
the rows of sessions and runs. A connection bound to a tenant sees views of the same names, in a
schema that is searched first.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import LiteralString

import psycopg
from procrastinate.schema import SchemaManager
from psycopg import Connection

from agent_core.errors import ErrorCode, StorageError
from agent_core.storage.migrations import LEDGER, MIGRATIONS, Migration
from agent_core.storage.postgres.faults import DATABASE
from agent_core.storage.postgres.folding import FOLDED, folding_script
from agent_core.storage.postgres.search import (
    NAMED_NODES,
    NODES_OF_TENANT,
    TENANTS_OF_ROWS,
    add_to_small,
)
from agent_core.storage.postgres.spending import FILL, SCHEMA as SPENDING, only_own_schema
from agent_core.storage.postgres.statements import PostgresRow, Statements
from agent_core.storage.postgres.upgrades import newest_comment
from agent_core.storage.rows import iso
from agent_core.storage.spending import announce_fill, fill
from agent_core.types import utc_now

FIRST = 11
"""Version with which a Postgres database begins; it contains all earlier ones."""

IDENTITY: LiteralString = (
    "SELECT 'postgresql ' || current_database() || ' ' || min(applied_at) FROM schema_migrations"
)
"""Finds an identity that distinguishes this database from every other, whatever its address."""

BLOB_TABLES: tuple[LiteralString, ...] = (
    """CREATE TABLE blobs (
        blob TEXT COLLATE "C" PRIMARY KEY,
        size_bytes BIGINT NOT NULL,
        is_whole BOOLEAN NOT NULL DEFAULT FALSE
    )""",
    """CREATE TABLE blob_uses (
        session_id TEXT COLLATE "C" NOT NULL,
        used_by TEXT COLLATE "C" NOT NULL,
        blob TEXT COLLATE "C" NOT NULL REFERENCES blobs,
        made_at TIMESTAMPTZ NOT NULL DEFAULT now(),
        PRIMARY KEY (session_id, used_by, blob)
    )""",
    "CREATE INDEX blob_uses_of_blob ON blob_uses (blob)",
    """CREATE TABLE blob_pieces (
        blob TEXT COLLATE "C" NOT NULL,
        number INTEGER NOT NULL,
        content BYTEA NOT NULL,
        PRIMARY KEY (blob, number)
    )""",
    """CREATE TABLE shared_snapshots (
        number BIGINT GENERATED ALWAYS AS IDENTITY,
        session_id TEXT COLLATE "C" NOT NULL,
        snapshot_id TEXT COLLATE "C" NOT NULL,
        about TEXT NOT NULL,
        made_at TIMESTAMPTZ NOT NULL DEFAULT now(),
        PRIMARY KEY (session_id, snapshot_id)
    )""",
)
"""Tables of blobs, their uses, contents stored in the database, and shared snapshots."""

_WORKERS = """
CREATE TABLE workers (
    worker_id TEXT COLLATE "C" PRIMARY KEY,
    host TEXT NOT NULL,
    pid BIGINT NOT NULL,
    version TEXT NOT NULL,
    protocol INTEGER NOT NULL,
    places TEXT[] NOT NULL,
    queues TEXT[] NOT NULL,
    tenant TEXT,
    concurrency INTEGER NOT NULL,
    running INTEGER NOT NULL,
    is_draining BOOLEAN NOT NULL,
    lease_s DOUBLE PRECISION NOT NULL,
    started_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    heartbeat_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
)
"""

_LAST_COMMITS: LiteralString = """CREATE TABLE IF NOT EXISTS last_commits (
    connection TEXT COLLATE "C" PRIMARY KEY,
    number BIGINT NOT NULL,
    at TIMESTAMPTZ NOT NULL DEFAULT now()
)"""
"""The last transaction committed by each connection, in case the connection breaks meanwhile."""

_TURNS: LiteralString = """
CREATE TABLE IF NOT EXISTS tenant_turns (
    tenant TEXT COLLATE "C" PRIMARY KEY,
    turn BIGINT GENERATED ALWAYS AS IDENTITY
);
CREATE INDEX IF NOT EXISTS jobs_of_lane ON procrastinate_jobs (queue_name, priority DESC, id)
    WHERE status = 'todo';
CREATE INDEX IF NOT EXISTS jobs_of_session ON procrastinate_jobs (lock, id) WHERE status = 'todo';

-- With OFFSET 0 the other jobs of a session are looked up by its lock. As a join, they would all be
-- read where the last statistics are from a time without a backlog.
CREATE OR REPLACE FUNCTION next_job(of_lanes TEXT[]) RETURNS BIGINT LANGUAGE sql AS $$
    SELECT job.id FROM unnest(of_lanes) AS lane (name) CROSS JOIN LATERAL (
        SELECT jobs.id, jobs.priority FROM procrastinate_jobs AS jobs
        WHERE jobs.queue_name = lane.name AND jobs.status = 'todo'
            AND (jobs.scheduled_at IS NULL OR jobs.scheduled_at <= now())
            AND NOT EXISTS (SELECT FROM procrastinate_jobs AS others
                WHERE others.lock = jobs.lock AND others.status = 'doing' OFFSET 0)
            AND NOT EXISTS (SELECT FROM procrastinate_jobs AS others
                WHERE others.lock = jobs.lock AND others.status = 'todo'
                AND (others.priority, -others.id) > (jobs.priority, -jobs.id) OFFSET 0)
        ORDER BY jobs.priority DESC, jobs.id LIMIT 1 FOR UPDATE OF jobs SKIP LOCKED
    ) AS job ORDER BY job.priority DESC, job.id LIMIT 1
$$;

-- Takes the next job of the tenant that has waited longest for a turn. A tenant whose turn another
-- process is taking comes last. A job that only its own process may take is no turn of a tenant.
CREATE OR REPLACE FUNCTION take_job(of_lanes TEXT[], process BIGINT)
RETURNS TABLE (id BIGINT, run_id TEXT) LANGUAGE plpgsql AS $$
DECLARE
    one record;
    found_id BIGINT;
    is_alone BOOLEAN;
    is_again BOOLEAN := TRUE;
BEGIN
    FOR attempt IN 1..3 LOOP
        EXIT WHEN found_id IS NOT NULL OR NOT is_again;
        is_again := FALSE;
        FOR one IN
            SELECT lanes.tenant, coalesce(turns.turn, 0) AS turn, array_agg(lanes.name) AS names
            FROM (
                SELECT name, CASE WHEN name NOT LIKE 'here/%' THEN split_part(name, '/', 3) END
                FROM unnest(of_lanes) AS given (name)
            ) AS lanes (name, tenant) LEFT JOIN tenant_turns AS turns USING (tenant)
            GROUP BY lanes.tenant, turns.turn
            ORDER BY 2, min(CASE WHEN turns.turn IS NULL AND cardinality(of_lanes) < 100 THEN (
                SELECT jobs.id
                FROM procrastinate_jobs AS jobs
                WHERE jobs.queue_name = lanes.name AND jobs.status = 'todo'
                ORDER BY jobs.priority DESC, jobs.id LIMIT 1) END)
        LOOP
            is_alone := one.tenant IS NOT NULL AND pg_try_advisory_xact_lock(
                hashtext('soong-agent turns'), hashtext(one.tenant));
            IF is_alone AND attempt < 3 AND one.turn < coalesce((SELECT turns.turn
                FROM tenant_turns AS turns WHERE turns.tenant = one.tenant), 0)
            THEN
                is_again := TRUE;  -- it has just had its turn
            ELSIF is_alone OR one.tenant IS NULL OR attempt = 3 THEN
                found_id := next_job(one.names);
            ELSE
                is_again := TRUE;
            END IF;
            EXIT WHEN found_id IS NOT NULL;
        END LOOP;
    END LOOP;
    IF is_alone AND found_id IS NOT NULL THEN
        INSERT INTO tenant_turns (tenant) VALUES (one.tenant)
            ON CONFLICT (tenant) DO UPDATE SET turn = DEFAULT;
    END IF;
    RETURN QUERY UPDATE procrastinate_jobs AS jobs SET status = 'doing', worker_id = process
        WHERE jobs.id = found_id RETURNING jobs.id, jobs.args ->> 'run_id';
END $$;
"""
"""The turns of tenants, and a function that takes the next job of the one whose turn it is."""

_ADDED: Mapping[LiteralString, Callable[[], LiteralString]] = {
    "last_commits": lambda: _LAST_COMMITS,
    "tenant_turns": lambda: _TURNS,
    FOLDED: folding_script,
}
"""Tables and a function added to a schema that has no new version: programs that do without them
may run beside this one.
"""

_ALONE: LiteralString = "SELECT pg_advisory_xact_lock(hashtext('soong-agent schema'))"

_FUNCTIONS = r"""
CREATE FUNCTION json_plain(given TEXT) RETURNS JSON LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    -- NULs and lone surrogates, which JSON of this database may not hold, become U+FFFD.
    SELECT CASE WHEN given LIKE '%\\u0000%' OR given ~* '\\ud[89a-f]' THEN
        CAST(regexp_replace(replace(given, '\\', '\u005c'), '\\u(0000|d[89a-f]..)', '\\ufffd', 'gi')
            AS JSON)
        ELSE CAST(given AS JSON) END
$$;
CREATE FUNCTION json_strings(given TEXT) RETURNS TEXT[] LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT ARRAY(SELECT json_array_elements_text(json_plain(given)))
$$;
CREATE FUNCTION json_extract(given TEXT, path TEXT) RETURNS TEXT
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT CASE found WHEN 'true' THEN '1' WHEN 'false' THEN '0' ELSE found END
    FROM (SELECT json_plain(given) #>> string_to_array(substr(path, 3), '.') AS found) AS field
$$;
CREATE FUNCTION json_each(given TEXT, path TEXT) RETURNS TABLE (key TEXT, value TEXT)
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT each.key, CAST(each.value AS TEXT)
    FROM json_each(json_plain(given) #> string_to_array(substr(path, 3), '.')) AS each
$$;
CREATE FUNCTION date(given TEXT, zone TEXT) RETURNS TEXT LANGUAGE sql STABLE AS $$
    SELECT to_char(CAST(given AS TIMESTAMPTZ), 'YYYY-MM-DD')
$$;
"""

_COUNTERS = """
ALTER TABLE sessions ADD COLUMN last_seq BIGINT NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN last_node_seq BIGINT NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN watched_until TIMESTAMPTZ;
ALTER TABLE runs ADD COLUMN last_run_seq BIGINT NOT NULL DEFAULT 0;
CREATE INDEX nodes_by_rowid ON nodes (rowid);
CREATE INDEX node_snapshots_by_rowid ON node_snapshots (rowid);

CREATE FUNCTION count_events() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    one record;
    watched TIMESTAMPTZ;
BEGIN
    FOR one IN SELECT session_id, run_id, max(seq) AS seq, max(run_seq) AS run_seq
        FROM added GROUP BY session_id, run_id
    LOOP
        UPDATE sessions SET last_seq = greatest(last_seq, one.seq), last_node_seq = coalesce(
            (SELECT max(node_seq) FROM nodes WHERE nodes.session_id = one.session_id), 0)
        WHERE session_id = one.session_id RETURNING watched_until INTO watched;
        IF one.run_id IS NOT NULL THEN
            UPDATE runs SET last_run_seq = one.run_seq WHERE run_id = one.run_id;
            IF watched > now() THEN
                PERFORM pg_notify('run_' || one.run_id, '');
            END IF;
        END IF;
    END LOOP;
    RETURN NULL;
END $$;
CREATE TRIGGER count_events AFTER INSERT ON events REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT WHEN (current_setting('soong.counts', TRUE) IS DISTINCT FROM 'itself')
    EXECUTE FUNCTION count_events();

-- Counts what it adds itself: one update of a row instead of three.
CREATE FUNCTION append_batch(of_session TEXT, of_agent TEXT, of_run TEXT, holder TEXT,
    in_epoch BIGINT, new_nodes TEXT, new_events TEXT, new_active TEXT,
    OUT first_seq BIGINT, OUT first_run_seq BIGINT, OUT first_node_seq BIGINT)
LANGUAGE plpgsql AS $$
DECLARE
    its record;
    run record;
    nodes_added BIGINT := 0;
    events_added BIGINT := 0;
BEGIN
    PERFORM set_config('soong.counts', 'itself', TRUE);  -- until the transaction ends
    SELECT owner, epoch, last_seq, last_node_seq, active_node_id, watched_until INTO its
        FROM sessions WHERE session_id = of_session FOR NO KEY UPDATE;
    SELECT status, last_run_seq, metadata_json INTO run
        FROM runs WHERE run_id = of_run AND session_id = of_session;
    IF run IS NULL THEN
        RAISE EXCEPTION 'run_not_found' USING ERRCODE = 'SA001';
    ELSIF (holder IS NOT NULL AND holder IS DISTINCT FROM its.owner) OR in_epoch <> its.epoch
        OR (run.status = 'failed' AND json_extract(run.metadata_json, '$.reason') = 'owner_lost')
    THEN
        RAISE EXCEPTION 'run_taken_over' USING ERRCODE = 'SA002';
    END IF;
    first_seq := its.last_seq + 1;
    first_run_seq := run.last_run_seq + 1;
    first_node_seq := its.last_node_seq + 1;
    IF new_nodes IS NOT NULL THEN
        INSERT INTO nodes (node_seq, node_id, session_id, parent_id, agent_id, run_id, role,
            node_type, content_json, metadata_json, token_count, created_at)
        SELECT its.last_node_seq + number, node_id, session_id, parent_id, agent_id, run_id, role,
            node_type, content_json, metadata_json, token_count, created_at
        FROM ROWS FROM (json_to_recordset(CAST(new_nodes AS JSON)) AS (node_id TEXT,
            session_id TEXT, parent_id TEXT, agent_id TEXT, run_id TEXT, role TEXT, node_type TEXT,
            content_json TEXT, metadata_json TEXT, token_count BIGINT, created_at TEXT))
            WITH ORDINALITY AS given (node_id, session_id, parent_id, agent_id, run_id, role,
            node_type, content_json, metadata_json, token_count, created_at, number)
        ORDER BY number;
        GET DIAGNOSTICS nodes_added = ROW_COUNT;
    END IF;
    IF new_events IS NOT NULL THEN
        INSERT INTO events (seq, run_seq, session_id, agent_id, run_id, event_id, level, event_type,
            node_id, tool_call_id, payload_json, created_at)
        SELECT its.last_seq + number, run.last_run_seq + number, of_session, of_agent, of_run,
            event_id, level, event_type, nullif(node_id, ''), nullif(tool_call_id, ''),
            payload_json, created_at
        FROM ROWS FROM (json_to_recordset(CAST(new_events AS JSON)) AS (event_id TEXT, level TEXT,
            event_type TEXT, node_id TEXT, tool_call_id TEXT, payload_json TEXT, created_at TEXT))
            WITH ORDINALITY AS given (event_id, level, event_type, node_id, tool_call_id,
            payload_json, created_at, number);
        GET DIAGNOSTICS events_added = ROW_COUNT;
        UPDATE runs SET last_run_seq = run.last_run_seq + events_added WHERE run_id = of_run;
        IF its.watched_until > now() THEN
            PERFORM pg_notify('run_' || of_run, '');
        END IF;
    END IF;
    UPDATE sessions SET last_seq = its.last_seq + events_added,
        last_node_seq = its.last_node_seq + nodes_added,
        active_node_id = coalesce(new_active, its.active_node_id) WHERE session_id = of_session;
END $$;
"""

_USE_ORDER = f"""
ALTER TABLE sessions ADD COLUMN use_number BIGINT;
CREATE SEQUENCE session_uses OWNED BY sessions.use_number;
-- Users that may write to the table need no right to its sequence.
CREATE FUNCTION next_use() RETURNS BIGINT LANGUAGE sql VOLATILE SECURITY DEFINER AS $$
    SELECT nextval('session_uses')
$$;
{only_own_schema("next_use")}
UPDATE sessions SET use_number = ordered.number FROM (
    SELECT session_id, row_number() OVER (ORDER BY updated_at, rowid) AS number FROM sessions
) AS ordered WHERE ordered.session_id = sessions.session_id;
SELECT setval('session_uses', (SELECT count(*) FROM sessions) + 1);
ALTER TABLE sessions ALTER COLUMN use_number SET DEFAULT next_use(),
    ALTER COLUMN use_number SET NOT NULL;
CREATE INDEX sessions_in_order ON sessions (use_number);
CREATE INDEX approvals_by_rowid ON approvals (rowid);
"""  # noqa: S608 - our own names

_INSTEAD: Mapping[int, str] = {13: _USE_ORDER, 15: SPENDING, 19: "", 20: ""}
"""Scripts that replace a migration's statements for SQLite: these cannot be translated, or save
pages of a file.
"""

_OF_TENANTS: LiteralString = f"""
CREATE INDEX sessions_of_tenant ON sessions (tenant, use_number) WHERE tenant IS NOT NULL;
CREATE INDEX sessions_of_tenant_by_project ON sessions (tenant, cwd, use_number)
    WHERE tenant IS NOT NULL;
CREATE INDEX sessions_of_tenant_by_id ON sessions (tenant, session_id) WHERE tenant IS NOT NULL;
CREATE INDEX sessions_of_tenant_by_time ON sessions (tenant, updated_at) WHERE tenant IS NOT NULL;
CREATE INDEX sessions_of_tenant_untitled ON sessions (tenant)
    WHERE tenant IS NOT NULL AND title IS NULL;
CREATE INDEX sessions_of_tenant_owned ON sessions (tenant)
    WHERE tenant IS NOT NULL AND owner IS NOT NULL;
{TENANTS_OF_ROWS}
CREATE INDEX approvals_of_tenant ON approvals (tenant, rowid) WHERE tenant IS NOT NULL;
CREATE INDEX approvals_of_tenant_open ON approvals (tenant, rowid)
    WHERE tenant IS NOT NULL AND state = 'open';
CREATE INDEX jobs_of_tenant ON procrastinate_jobs (split_part(queue_name, '/', 3))
    WHERE status = 'todo';
CREATE INDEX jobs_of_process ON procrastinate_jobs (id)
    WHERE status = 'todo' AND args ->> 'process' IS NOT NULL;
CREATE TABLE sweeps (of_what TEXT COLLATE "C" PRIMARY KEY, at TIMESTAMPTZ NOT NULL);
"""

_BESIDES: Mapping[int, LiteralString] = {14: _OF_TENANTS}
"""Scripts that run after a migration's statements for SQLite."""

_TENANT = "current_setting('soong.tenant')"
_SESSION = f"sessions AS its WHERE its.tenant = {_TENANT} AND its.session_id"
_OF_SESSION = (
    *("agents", "runs", "nodes", "events", "artifacts", "budgets", "budget_holds"),
    *("node_snapshots", "workspaces", "grants", "memory_backlog", "waiting_messages"),
)
_SEEN: Mapping[str, str] = {
    **dict.fromkeys(("sessions", "approvals", "spending", "repeats"), f"tenant = {_TENANT}"),
    **{table: f"EXISTS (SELECT 1 FROM {_SESSION} = {table}.session_id)" for table in _OF_SESSION},  # noqa: S608
    "budget_agents": f"""EXISTS (SELECT 1 FROM budgets AS one, {_SESSION} = one.session_id
        AND one.scope_id = budget_agents.scope_id)""",  # noqa: S608 - our own names
}
"""The rows of each table that a tenant sees."""
_VIEWS: Mapping[str, str] = {
    **{
        table: f"SELECT * FROM {table} WHERE {condition} WITH CHECK OPTION"  # noqa: S608
        for table, condition in _SEEN.items()
    },
    # For search, which reads many: no session is looked up for each.
    NAMED_NODES: f"SELECT * FROM nodes WHERE tenant = {_TENANT}",  # noqa: S608
}
"""The views of a tenant: one for each table, and one of the nodes with the tenant's name."""

_CURE = (
    ". Give the user of the address the right to create schemas and tables in the database, or run"
    " soong-agent store migrate once as a user who has it and owns the tables"
)

_FLAG = re.compile(r"\b((?:is|keeps)_\w+) INTEGER")
_TABLE = re.compile(r"CREATE TABLE (\w+) \(")
_INDEX = re.compile(r"^(CREATE INDEX \w+ ON (?!events)\w+ \([^)]+)\)")


_TABLES: LiteralString = """SELECT to_regclass('schema_migrations'), to_regclass('sessions')
    FROM pg_class LIMIT 1"""
"""Finds our tables. A server that locks a table notices what others made while it waited."""


def version_of(connection: Connection[PostgresRow]) -> int:
    """Return the schema version of a database; 0 if it has none of our tables.

    Raises:
        StorageError: `migration_failed`: it is newer than this program, or another program's.
        psycopg.errors.InsufficientPrivilege: the tables may not be read.
    """
    try:
        found = connection.execute(_TABLES).fetchone()
        if found is not None and found[0] is None and found[1] is None:
            return 0
        ledger = "SELECT max(version) FROM schema_migrations WHERE name <> '' AND applied_at <> ''"
        row = connection.execute(ledger).fetchone()
        version = int(row[0] or 0) if row else 0
    except psycopg.errors.InsufficientPrivilege:
        raise
    except (psycopg.ProgrammingError, psycopg.DataError, ValueError) as error:
        raise StorageError(
            ErrorCode.MIGRATION_FAILED,
            f"{DATABASE} has tables of another program; give the sessions a database of their own",
        ) from error
    newest = MIGRATIONS[-1].version
    if version > newest:
        raise StorageError(
            ErrorCode.MIGRATION_FAILED,
            f"{DATABASE} was written by a newer version of this program (schema {version}, known"
            f" up to {newest}); upgrade the program, or use another database. It was not touched",
            details={"schema": version, "known": newest},
        )
    return version


def migrate(connection: Connection[PostgresRow]) -> None:
    """Bring the database up to date, one process at a time.

    Raises:
        StorageError: `migration_failed`.
        psycopg.OperationalError: the server or the network failed, not a migration.
    """
    with connection.transaction():
        is_current = version_of(connection) == MIGRATIONS[-1].version
    if not is_current:
        _migrate(connection)
    with connection.transaction():
        for name, script in _ADDED.items():
            if not is_there(connection, name):
                try:
                    connection.execute(_ALONE)
                    connection.execute(script(), prepare=False)
                except psycopg.errors.InsufficientPrivilege as error:
                    kind = "function" if name == FOLDED else "table"
                    message = f"{DATABASE} lacks the {kind} {name}"
                    raise StorageError(ErrorCode.MIGRATION_FAILED, message + _CURE) from error
        if not is_there(connection, NODES_OF_TENANT):
            connection.execute(_ALONE)
            add_to_small(connection)
        connection.execute("DELETE FROM last_commits WHERE at < now() - interval '1 hour'")


def is_complete(connection: Connection[PostgresRow]) -> bool:
    """Return whether the tables and functions that belong to no version are there."""
    return all(is_there(connection, name) for name in _ADDED)


def is_there(connection: Connection[PostgresRow], name: str) -> bool:
    """Return whether there is a table of this name, or a function of this name and signature."""
    find: LiteralString = "to_regprocedure" if name.endswith(")") else "to_regclass"
    row = connection.execute(f"SELECT {find}($1) IS NOT NULL", (name,)).fetchone()
    return bool(row and row[0])


def _migrate(connection: Connection[PostgresRow]) -> None:
    while True:
        with connection.transaction():
            connection.execute(_ALONE)
            filled = _apply(connection)
        if filled is None:
            return
        _fill(connection, filled)


def _apply(connection: Connection[PostgresRow]) -> Migration | None:
    """Apply the migrations up to the next one that fills a table, and return that one."""
    current = version = version_of(connection)
    encoding = connection.info.parameter_status("server_encoding")
    if not current and encoding != "UTF8":
        raise StorageError(
            ErrorCode.MIGRATION_FAILED,
            f"{DATABASE} is in {encoding}, and has to be in UTF8: make another one with"
            " createdb --encoding UTF8 --template template0",
            details={"encoding": encoding},
        )
    try:
        steps = list(_steps_from(current))
        if current and steps:  # writers begin with this table, too: neither locks the other out
            connection.execute("LOCK TABLE sessions IN ACCESS EXCLUSIVE MODE")
        for version, name, script in steps:
            connection.execute(script.encode(), prepare=False)
            _record(connection, version, name)
        _make_views(connection)
    except psycopg.OperationalError:
        raise
    except psycopg.Error as error:
        is_refused = isinstance(error, psycopg.errors.InsufficientPrivilege)
        cure = _CURE if is_refused else ""
        raise StorageError(
            ErrorCode.MIGRATION_FAILED,
            f"{DATABASE} could not be brought to schema {version} ({type(error).__name__}:"
            f" {error.diag.message_primary}). It is as it was{cure}",
        ) from error
    version = version_of(connection)
    return next((one for one in MIGRATIONS if one.version > version), None)


def _fill(connection: Connection[PostgresRow], filled: Migration) -> None:
    """Add rows in many small transactions, so that others can work meanwhile."""
    with connection.transaction():
        sql = "SELECT CAST(reltuples AS BIGINT) FROM pg_class WHERE oid = 'runs'::regclass"
        row = connection.execute(sql).fetchone()
    announce_fill(DATABASE, row[0] if row else 0)
    steps, is_done = fill(Statements(connection), FILL), False
    while not is_done:
        with connection.transaction():
            connection.execute(_ALONE)
            is_done = version_of(connection) >= filled.version or next(steps, True) is True
            if is_done:
                _record(connection, filled.version, filled.name)


def _record(connection: Connection[PostgresRow], version: int, name: str) -> None:
    connection.execute(
        """INSERT INTO schema_migrations (version, name, applied_at) VALUES ($1, $2, $3)
        ON CONFLICT DO NOTHING""",
        (version, name, iso(utc_now())),
    )


def _steps_from(current: int) -> Iterator[tuple[int, str, str]]:
    """Yield the migrations to apply, as scripts; the first one creates all tables.

    An existing database gets those before the next one that fills a table.
    """
    if not current:
        begin = [one for one in MIGRATIONS if one.version <= FIRST]
        tables = [_in_our_words(each) for one in begin for each in one.statements]
        queue = SchemaManager.get_schema()
        script = ";\n".join([_in_our_words(LEDGER), *tables, *BLOB_TABLES, _WORKERS])
        yield (
            FIRST,
            "sessions, history, workers and blobs",
            f"{script};{_FUNCTIONS}{_COUNTERS}{queue};{newest_comment()}",
        )
    for one in MIGRATIONS:
        if one.version > max(current, FIRST):
            if one.is_filled and current:
                return
            script = ";\n".join(map(_in_our_words, one.statements))
            script = _INSTEAD.get(one.version, script)
            yield one.version, one.name, f"{script};{_BESIDES.get(one.version, '')}"


def _in_our_words(statement: str) -> str:
    """Translate a statement of SQLite's schema: its types, and a number for every row."""
    statement = _FLAG.sub(r"\1 BOOLEAN", statement)
    statement = statement.replace(" INTEGER", " BIGINT").replace(" TEXT", ' TEXT COLLATE "C"')
    if statement.endswith(" WITHOUT ROWID"):
        return statement.removesuffix(" WITHOUT ROWID")
    statement = _TABLE.sub(r"\g<0> rowid BIGINT GENERATED BY DEFAULT AS IDENTITY,", statement)
    return _INDEX.sub(r"\1, rowid)", statement)  # as every index of SQLite ends


def _make_views(connection: Connection[PostgresRow]) -> None:
    """Create the views for a tenant in place of the tables, replacing an older schema's."""
    schema = views_of(connection)
    views = [
        f"CREATE VIEW {schema}.{name} AS {select}"
        for name, select in _VIEWS.items()
        if name == NAMED_NODES or is_there(connection, name)
    ]
    defaults = [
        f"ALTER VIEW {schema}.{name} ALTER COLUMN tenant SET DEFAULT {_TENANT}"
        for name in ("sessions", "repeats")
        if is_there(connection, name)
    ]
    begin = f"DROP SCHEMA IF EXISTS {schema} CASCADE; CREATE SCHEMA {schema}"
    connection.execute(";\n".join([begin, *views, *defaults]).encode(), prepare=False)


def views_of(connection: Connection[PostgresRow]) -> str:
    """Return the quoted schema of a tenant's views, which is beside the schema of the tables."""
    row = connection.execute("SELECT quote_ident(current_schema() || '_of_tenant')").fetchone()
    return str(row and row[0])
