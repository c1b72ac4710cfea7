"""The session store on Postgres. Nothing here is loaded unless a Postgres database is
configured.
"""

from agent_core.storage.postgres.store import PostgresSessionStore

__all__ = ["PostgresSessionStore"]
