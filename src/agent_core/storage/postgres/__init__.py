"""The session store on Postgres; only loaded if a Postgres database is configured."""

from agent_core.storage.postgres.store import PostgresSessionStore

__all__ = ["PostgresSessionStore"]
