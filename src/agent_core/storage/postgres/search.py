"""Search of messages by an index of their trigrams, if the database supports one.

The index begins with the tenant, so that a tenant's search reads only that tenant's rows. It needs
the extensions `pg_trgm` and `btree_gin`. A small database gets it with its tables, a filled one by
`store migrate`: building it takes minutes, in which runs continue.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, LiteralString

import psycopg
from psycopg import Connection as ServerConnection

from agent_core.storage.postgres.settings import Answering
from agent_core.storage.postgres.statements import PostgresRow
from agent_core.storage.sql import Connection
from agent_core.storage.summaries import nodes_with, numbered_nodes, words_condition
from agent_core.text.folding import pattern_in_json
from agent_core.types import Node

SearchIndex = Literal["there", "missing", "impossible"]
"""Whether search has its indexes; `store migrate` adds `missing` ones."""

TENANTS_OF_ROWS: LiteralString = """
ALTER TABLE nodes ADD COLUMN tenant TEXT COLLATE "C";
ALTER TABLE approvals ADD COLUMN tenant TEXT COLLATE "C";
UPDATE approvals SET tenant = sessions.tenant FROM sessions
    WHERE sessions.session_id = approvals.session_id AND sessions.tenant IS NOT NULL;
CREATE FUNCTION set_tenant() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    SELECT tenant INTO NEW.tenant FROM sessions WHERE session_id = NEW.session_id;
    RETURN NEW;
END $$;
CREATE TRIGGER set_tenant BEFORE INSERT ON nodes FOR EACH ROW EXECUTE FUNCTION set_tenant();
CREATE TRIGGER set_tenant BEFORE INSERT ON approvals FOR EACH ROW EXECUTE FUNCTION set_tenant();
"""
"""Writes the tenant into rows that are searched for by it; a session never changes its tenant.

Earlier nodes get it before their index is built.
"""

NAMED_NODES = "named_nodes"
NODES_OF_TENANT = "nodes_of_tenant"
_WORDS = "nodes_words"
_INDEXES: Mapping[str, LiteralString] = {
    NODES_OF_TENANT: "nodes_of_tenant ON nodes (tenant, rowid) WHERE tenant IS NOT NULL",
    _WORDS: """nodes_words ON nodes USING gin (tenant, folded(content_json) gin_trgm_ops)
        WHERE node_type IN ('message', 'compaction')""",
}
_VALID: LiteralString = """SELECT name FROM unnest(ARRAY['nodes_of_tenant', 'nodes_words']) AS name
    JOIN pg_index ON indexrelid = to_regclass(name) WHERE indisvalid"""
_CAN_HAVE_WORDS: LiteralString = """SELECT 2 = count(*) FILTER (WHERE
        installed_version IS NOT NULL OR has_database_privilege(current_database(), 'CREATE'))
    FROM pg_available_extensions WHERE name IN ('pg_trgm', 'btree_gin')"""
_EXTENSIONS: tuple[LiteralString, ...] = (
    "CREATE EXTENSION IF NOT EXISTS pg_trgm",
    "CREATE EXTENSION IF NOT EXISTS btree_gin",
)
_IS_SMALL: LiteralString = "SELECT pg_table_size('nodes') < 8 * 1024 * 1024"
_ALONE: LiteralString = "SELECT pg_try_advisory_lock(hashtext('soong-agent search'))"
_NOT_ALONE: LiteralString = "SELECT pg_advisory_unlock(hashtext('soong-agent search'))"
_NAME_TENANTS: LiteralString = """WITH batch AS MATERIALIZED (
        SELECT session_id, tenant FROM sessions
        WHERE tenant IS NOT NULL AND session_id > $1 ORDER BY session_id LIMIT 200
    ), named AS (
        UPDATE nodes SET tenant = batch.tenant FROM batch
        WHERE nodes.session_id = batch.session_id AND nodes.tenant IS NULL
    ) SELECT max(session_id) FROM batch"""

_CAN_SHOW: LiteralString = """SELECT 1
    WHERE has_function_privilege(to_regprocedure('show_trgm(text)'), 'EXECUTE')"""
_LETTERS: LiteralString = """SELECT sign FROM unnest(string_to_array(CAST(? AS TEXT), NULL)) AS sign
    WHERE show_trgm(sign) <> '{}'"""
_FEW, _MANY = 4_000, 64_000
"""How many of the newest nodes are read first: of a frequent word, the index finds too many."""


def search_index(connection: ServerConnection[PostgresRow]) -> SearchIndex:
    """Return whether search has its indexes in this database, or can have them."""
    wanted = _wanted(connection)
    if wanted - _valid(connection):
        return "missing"
    return "there" if _WORDS in wanted else "impossible"


def add_to_small(connection: ServerConnection[PostgresRow]) -> None:
    """Build missing indexes within a transaction, unless there are many nodes."""
    row = connection.execute(_IS_SMALL).fetchone()
    if row and row[0]:
        with suppress(psycopg.errors.InsufficientPrivilege), connection.transaction():
            _build(connection, "")


def add_to_any(connection: Answering) -> None:
    """Build missing indexes while others read and write; continue where a killed process stopped.

    Do nothing if another process is building them, if the user does not own the tables, or behind
    a pooler.
    """
    if connection.is_pooled:
        return
    row = connection.execute(_ALONE).fetchone()
    if row is None or not row[0]:
        return
    try:
        connection.execute("SELECT set_config('maintenance_work_mem', '256MB', FALSE)")
        with suppress(psycopg.errors.InsufficientPrivilege):
            _build(connection, "CONCURRENTLY")
    finally:
        if not connection.closed:
            connection.execute(_NOT_ALONE)


def find_nodes(
    connection: Connection,
    words: Sequence[str],
    before: int | None,
    limit: int,
    project: str | None,
    *,
    is_bound: bool,
) -> list[tuple[int, Node | None]]:
    """Return matching messages and summaries, the newest first: see `SessionStore.nodes_with`.

    Args:
        connection: of the database.
        words: the folded words.
        before: only nodes with a smaller number.
        limit: largest number of nodes.
        project: only sessions that work in this folder.
        is_bound: the connection is bound to a tenant.
    """
    valid = {name for (name,) in connection.execute(_VALID)}
    if is_bound and NODES_OF_TENANT not in valid:
        return nodes_with(connection, words, before, limit, project)
    nodes = f"""SELECT rowid, node_id, session_id, content_json
        FROM {NAMED_NODES if is_bound else "nodes"}
        WHERE rowid < ? AND node_type IN ('message', 'compaction')"""  # noqa: S608
    fits, values = words_condition(words, before, project)

    def select(source: str) -> list[Any]:
        sql = f"SELECT rowid, node_id FROM {source} ORDER BY rowid DESC LIMIT ?"  # noqa: S608
        return connection.execute(sql, (*values, limit)).fetchall()

    if _WORDS not in valid or not _has_trigram(connection, words):
        # OFFSET: words without a trigram would read the whole index.
        rows = select(f"({nodes} ORDER BY rowid DESC OFFSET 0) AS every WHERE {fits}")
    else:
        newest = f"({nodes} ORDER BY rowid DESC LIMIT {{}}) AS newest WHERE {fits}"
        rows = select(newest.format(_FEW))
        if limit * _FEW // _MANY <= len(rows) < limit:
            rows = select(newest.format(_MANY))
        if len(rows) < limit:  # OFFSET: all are found before the newest are chosen
            rows = select(f"({nodes} AND {fits} OFFSET 0) AS found")
    return numbered_nodes(connection, rows)


def _has_trigram(connection: Connection, words: Sequence[str]) -> bool:
    """Return whether a word has three letters or digits in a row, as the index knows them.

    Which characters beyond English letters count as letters depends on the database's locale.
    """
    text = " ".join(map(pattern_in_json, words))
    if re.search("[a-z0-9]{3}", text):
        return True
    if text.isascii() or connection.execute(_CAN_SHOW).fetchone() is None:
        return False
    signs = "".join({sign for sign in text if not sign.isascii()})
    letters = "".join(sign for (sign,) in connection.execute(_LETTERS, (signs,)))
    return re.search(f"[a-z0-9{re.escape(letters)}]{{3}}", text) is not None


def _build(connection: ServerConnection[PostgresRow], how: LiteralString) -> None:
    """Build the missing indexes; `nodes_words` only if the extensions can be created."""
    missing = _wanted(connection) - _valid(connection)
    if _WORDS in missing and not _add_extensions(connection):
        missing.remove(_WORDS)
    if missing:
        _name_tenants(connection)
    for name in sorted(missing):
        connection.execute(f"DROP INDEX {how} IF EXISTS {name}".encode())
        connection.execute(f"CREATE INDEX {how} {_INDEXES[name]}".encode())


def _add_extensions(connection: ServerConnection[PostgresRow]) -> bool:
    try:
        with connection.transaction():
            for statement in _EXTENSIONS:
                connection.execute(statement)
    except psycopg.Error:
        if connection.closed:
            raise
        return False
    return True


def _name_tenants(connection: ServerConnection[PostgresRow]) -> None:
    """Write the tenant into nodes that were added before they had one, some at a time."""
    last: str | None = ""
    while last is not None:
        row = connection.execute(_NAME_TENANTS, (last,)).fetchone()
        last = row[0] if row else None


def _wanted(connection: ServerConnection[PostgresRow]) -> set[str]:
    row = connection.execute(_CAN_HAVE_WORDS).fetchone()
    return set(_INDEXES) if row and row[0] else {NODES_OF_TENANT}


def _valid(connection: ServerConnection[PostgresRow]) -> set[str]:
    return {name for (name,) in connection.execute(_VALID)}
