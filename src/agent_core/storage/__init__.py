"""Storage of sessions: `sqlite.SqliteSessionStore`, in a file or in memory.

It implements `agent_core.events.SessionStore`. Nothing outside this package knows SQL.
"""
