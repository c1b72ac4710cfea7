"""Where sessions are kept: `sqlite.SqliteSessionStore`, in a file or in memory.

It is what `agent_core.events.SessionStore` asks for. Nothing outside this package knows SQL.
"""
