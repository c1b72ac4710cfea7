"""The store on Postgres. Nothing here is loaded unless a database is named."""

from agent_core.storage.postgres.store import PostgresSessionStore

__all__ = ["PostgresSessionStore"]
