"""Databases with blobs in them, for tests."""

import psycopg

from agent_core.storage.postgres.schema import BLOB_TABLES


def with_blob_tables(url: str) -> str:
    """The database, with the tables that blobs need."""
    with psycopg.connect(url) as connection:
        found = connection.execute("SELECT to_regclass('blobs'), to_regclass('sessions')")
        blobs, sessions = found.fetchone() or (None, None)
        if sessions is None:
            connection.execute("CREATE TABLE sessions (session_id TEXT PRIMARY KEY)")
            connection.execute("CREATE TABLE artifacts (artifact_id TEXT PRIMARY KEY)")
        for statement in () if blobs else BLOB_TABLES:
            connection.execute(statement)
    return url
