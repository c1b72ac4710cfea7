"""Where sessions are kept: `sqlite.SqliteStore`, or `memory.MemoryStore` for tests and demos.

Both are what `agent_core.events.SessionStore` asks for. Nothing outside this package knows SQL.
"""
